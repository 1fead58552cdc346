"""Tests that questions become statements by the rules of Jia & Liang."""

import itertools

import pytest

from truenegs_jax.robustness import statements
from truenegs_jax.robustness.parse_question import read_tree

WHEN = "(WHADVP (WRB When))"
WHAT = "(WHNP (WP What))"
IT = "(NP (PRP it))"
DID = "(VBD did)"


def square(*parts):
  return f"(ROOT (SBARQ {' '.join(parts)} (. ?)))"


@pytest.mark.parametrize(
  "rule, tree, expected",
  [
    (
      7,
      square("(WHADJP (WRB how) (JJ old))", f"(SQ (VBD was) {IT})"),
      "It was A old",
    ),
    (8, square(WHEN, f"(SQ {DID} {IT})"), "It occurred in A"),
    (9, square(WHEN, f"(SQ {DID} {IT} (VP (VB end)))"), "It end in A"),
    (
      11,
      square(
        WHEN, f"(SQ {DID} {IT} (VP (VB win) (NP (NN war)) (PP (IN at) {IT})))"
      ),
      "It win war at it in A",
    ),
    (12, square(WHEN, f"(SQ (VBD was) {IT})"), "It was in A"),
    (
      13,
      square(WHEN, f"(SQ (VBD was) {IT} (VP (VBN made)))"),
      "It was made in A",
    ),
    (15, square(WHAT, f"(SQ {DID} {IT} (VP (VB win)))"), "It win A"),
    (
      17,
      square(WHAT, f"(SQ {DID} {IT} (VP (VB do) (PP (IN for) {IT})))"),
      "It do A for it",
    ),
    (
      19,
      square(
        WHAT, f"(SQ {DID} {IT} (VP (VB use) (S (VP (TO to) (VP (VB win))))))"
      ),
      "It use to win A",
    ),
    (
      24,
      square(
        WHAT,
        "(SQ (VBZ is) (NP (NP (NN part)) (PP (IN of) (NP (NN it))))"
        " (VP (VBN used) (PP (IN for))))",
      ),
      "Part of it is used for A",
    ),
    (26, square(WHAT, f"(SQ (VBZ is) {IT} (VP (VBN named)))"), "It is named A"),
    (29, square(WHAT, "(SQ (VBZ is) (NP (NN fire)))"), "A is fire"),
    (31, square(WHAT, "(SQ (VP (VBD won)))"), "A won"),
    (
      32,
      square(
        "(WHPP (IN in) (WHNP (WDT what) (NN year)))",
        f"(SQ {DID} {IT} (VP (VB win) (NP (NN war))))",
      ),
      "It win war in the year of A",
    ),
    (
      35,
      square("(S (NP (NN war)) (VP (VBZ is) (WHNP (WP what))))"),
      "War is A",
    ),
    (
      31,
      square(
        "(PP (IN In) (NP (NN war)))", "(, ,)", WHAT, "(SQ (VP (VBD won)))"
      ),
      "In war , A won",
    ),
  ],
)
def test_rules_turn_questions_into_statements(rule, tree, expected):
  statement = statements.make_statement(read_tree(tree), ["A"])
  assert statement == ([*expected.split(), "."], rule)


def test_every_rule_is_reachable_and_has_its_slots():
  kinds = {"W": "(WHNP (WP {}))"}
  rules = [*statements.STATEMENT_RULES, *statements.WH_RULES]
  for number, (pattern, output) in enumerate(rules, start=1):
    nodes = []
    for atom in pattern.split():
      label, _, words = atom.partition(":")
      first = label.split("/")[0]
      first = statements.MACROS.get(first, first).split("/")[0]
      word = words.split("/")[0] or (first if first.islower() else "x")
      tag = first if first.isupper() else "XX"
      nodes.append(kinds.get(label, f"({tag} {{}})").format(word))
    trees = tuple(map(read_tree, nodes))
    assert statements.match(pattern.split(), trees) is not None
    slots = [p for p in pattern.split() if not p.islower() or "/" in p]
    digits = [int(p) for p in output.split() if p.isdigit()]
    assert max(digits) <= len(slots)
    if number <= len(statements.STATEMENT_RULES):
      statement = statements.make_statement(("ROOT", trees), ["A"])
      assert statement.rule <= number
  assert len(statements.STATEMENT_RULES) == 34 and statements.FALLBACK == 35


@pytest.mark.parametrize(
  "phrase, expected",
  [
    (
      "(WHPP (IN in) (WHNP (WHNP (WDT what) (NN type)) (PP (IN of)"
      " (NP (NN x)))))",
      "in A x",
    ),
    ("(WHPP (IN in) (WHNP (WDT what) (NN year)))", "in the year of A"),
    ("(WHPP (IN for) (WHNP (WP whom)))", "for A"),
    ("(WHNP (WHNP (WDT what) (NN kind)) (PP (IN of) (NP (NN x))))", "A x"),
    ("(WHNP (WDT which) (NNP NFL) (NN team))", "the NFL team of A"),
    ("(WHNP (WHADJP (WRB how) (JJ many)) (NNS men))", "A men"),
    ("(WHADVP (RB exactly) (WRB when))", "exactly A"),
    ("(WHNP (WP$ whose) (NN car))", "A"),
  ],
)
def test_wh_phrases_hold_the_answer(phrase, expected):
  tree = statements.group_wh_phrases(read_tree(phrase))
  assert statements.rewrite_wh(tree, ["A"]) == expected.split()


def test_parses_that_have_no_wh_phrase_are_no_statements():
  tree = read_tree(square("(SQ (VBD did) (NP (PRP it)) (VP (VB end)))"))
  assert statements.make_statement(tree, ["A"]) is None
  lifted = read_tree("(WHNP (WP what) (NN team) (SQ (VBD won)))")
  assert statements.group_wh_phrases(lifted)[0] == "SBARQ"


def test_words_of_a_tree_are_replaced_in_order():
  tree = read_tree(square(WHAT, "(SQ (VP (VBD won)))"))
  numbers = map(str, itertools.count())
  assert statements.words(statements.with_words(tree, numbers)) == [
    "0",
    "1",
    "2",
  ]
