"""Tests that questions become statements by the rules of Jia & Liang."""

import pytest
from nltk.tree import Tree

from truenegs_jax.robustness import add_sentence

WHEN = "(WHADVP (WRB When))"
WHAT = "(WHNP (WP What))"
IT = "(NP (PRP it))"
DID = "(VBD did)"
IN_YEAR = "(WHPP (IN in) (WHNP (WDT what) (NN year)))"


def square(*parts):
  return f"(ROOT (SBARQ {' '.join(parts)} (. ?)))"


@pytest.mark.parametrize(
  ("tree", "expected"),
  [
    (
      square("(WHADJP (WRB how) (JJ old))", f"(SQ (VBD was) {IT})"),
      "It was A old",
    ),
    (square(WHEN, f"(SQ {DID} {IT})"), "It occurred in A"),
    (square(WHEN, f"(SQ {DID} {IT} (VP (VB end)))"), "It end in A"),
    (
      square(WHEN, f"(SQ (VBD was) {IT} (VP (VBN made)))"),
      "It was made in A",
    ),
    (
      square(WHAT, f"(SQ {DID} {IT} (VP (VB do) (PP (IN for) {IT})))"),
      "It do A for it",
    ),
    (square(WHAT, f"(SQ (VBZ is) {IT} (VP (VBN named)))"), "It is named A"),
    (square(WHAT, "(SQ (VBZ is) (NP (NN fire)))"), "A is fire"),
    (
      square("(PP (IN In) (NN war))", "(, ,)", WHAT, "(SQ (VP (VBD won)))"),
      "In war , A won",
    ),
    (
      square(IN_YEAR, f"(SQ {DID} {IT} (VP (VB win) (NP (NN war))))"),
      "It win war in the year of A",
    ),
    (
      square("(S (NP (NN war)) (VP (VBZ is) (WHNP (WP what))))"),
      "War is A",
    ),
  ],
)
def test_rules_turn_questions_into_statements(tree, expected):
  statement = add_sentence.make_statement(Tree.fromstring(tree), ["A"])
  assert statement == [*expected.split(), "."]


def test_every_rule_is_reachable_and_has_its_slots():
  kinds = {"W": "(WHNP (WP {}))"}
  rules = [*add_sentence.STATEMENT_RULES, *add_sentence.WH_RULES]
  for pattern, output in rules:
    nodes = []
    for atom in pattern.split():
      label, _, words = atom.partition(":")
      first = label.split("/")[0]
      first = add_sentence.MACROS.get(first, first).split("/")[0]
      word = words.split("/")[0] or (first if first.islower() else "x")
      tag = first if first.isupper() else "XX"
      nodes.append(kinds.get(label, f"({tag} {{}})").format(word))
    trees = [*map(Tree.fromstring, nodes)]
    assert add_sentence.match(pattern.split(), trees) is not None
    slots = [p for p in pattern.split() if not p.islower() or "/" in p]
    digits = [int(p) for p in output.split() if p.isdigit()]
    assert max(digits) <= len(slots)


@pytest.mark.parametrize(
  "phrase, expected",
  [
    (IN_YEAR, "in the year of A"),
    ("(WHPP (IN for) (WHNP (WP whom)))", "for A"),
    ("(WHNP (WHNP (WDT what) (NN kind)) (PP (IN of) (NP (NN x))))", "A x"),
    ("(WHNP (WDT which) (NNP NFL) (NN team))", "the NFL team of A"),
    ("(WHNP (WHADJP (WRB how) (JJ many)) (NNS men))", "A men"),
    ("(WHADVP (RB exactly) (WRB when))", "exactly A"),
    ("(WHNP (WP$ whose) (NN car))", "A"),
  ],
)
def test_wh_phrases_hold_the_answer(phrase, expected):
  tree = add_sentence.group_wh_phrases(Tree.fromstring(phrase))
  assert add_sentence.rewrite_wh(tree, ["A"]) == expected.split()


def test_parses_that_have_no_wh_phrase_are_no_statements():
  tree = Tree.fromstring(square("(SQ (VBD did) (NP (PRP it)) (VP (VB end)))"))
  assert not add_sentence.make_statement(tree, ["A"])
  lifted = Tree.fromstring("(WHNP (WP what) (NN team) (SQ (VBD won)))")
  assert add_sentence.group_wh_phrases(lifted).label() == "SBARQ"
