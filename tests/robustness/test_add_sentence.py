"""Tests AddSentenceDiverse: altered words, fake answers, and the sentence."""

import itertools
import random
import re
from types import SimpleNamespace
from unittest import mock

import pytest
from nltk.tree import Tree

from support.spacy_tokens import make_tokens, tag_words
from truenegs_jax.robustness import add_sentence, annotate
from truenegs_jax.robustness.annotate import Annotator
from truenegs_jax.robustness.transformation import Refused
from truenegs_jax.tasks.task import Question

QUESTION = "Which NFL team represented the AFC at Super Bowl 50?"
TREE = (
  "(ROOT (SBARQ (WHNP (WDT Which) (NNP NFL) (NN team)) (SQ (VP"
  " (VBD represented) (NP (DT the) (NNP AFC)) (PP (IN at) (NP (NNP Super)"
  " (NNP Bowl) (CD 50))))) (. ?)))"
)
TAGS = "WDT NNP/ORGANIZATION NN VBD DT NNP/ORGANIZATION IN NNP NNP CD ."
CONTEXT = "It was in 2016. The Denver Broncos beat Carolina. Denver cheered."
CONTEXT_TAGS = "PRP VBD IN CD . DT NNP NNPS VBD NNP . NNP VBD ."
NEIGHBOURS = {
  "50": ["50th", "40"],
  "super": ["superior", "planet", "champ"],
  "a": ["b"],
  "team": ["teams", "won", "squad"],
}


def make_lemma(name, *antonyms):
  return SimpleNamespace(name=lambda: name, antonyms=lambda: antonyms)


class Reader:
  """A stand-in for WordNet, in which only "presence" has antonyms."""

  def synsets(self, word, pos):
    names = ("no_show", "absence") if word.lower() == "presence" else ()
    lemma = make_lemma(word, *map(make_lemma, names))
    return [SimpleNamespace(lemmas=lambda: [lemma])]


def split_sentences(text, tags):
  """Returns the sentences of a text with these tags."""
  tokens = make_tokens(text, re.findall(r"[?.]|[^ ?.]+", text), tags.split())
  ends = [i + 1 for i, token in enumerate(tokens) if token.text in ".?"]
  return [tokens[a:b] for a, b in itertools.pairwise([0, *ends])]


def annotate_words(text):
  tags = {"won": "VBD", "squad": "NN"}
  words = text.split()
  return (make_tokens(text, words, [tags.get(x, "XX") for x in words]),)


def change(question, tree=TREE, sentences=None):
  """Adds the sentence to a question with the annotations of the constants."""
  known = {
    QUESTION: split_sentences(QUESTION, TAGS)
    if sentences is None
    else sentences,
    CONTEXT: split_sentences(CONTEXT, CONTEXT_TAGS),
  }
  neighbours = NEIGHBOURS | {"super": ["champ"]}
  apply = add_sentence.AddSentence(
    Annotator("test", known.get), Reader(), neighbours
  )
  tree = tree and Tree.fromstring(tree)
  with mock.patch.object(annotate, "parse_question", lambda tokens: tree):
    return apply(question, random.Random(0))


def ask(*answers):
  spans = tuple((a, CONTEXT.index(a)) for a in answers)
  return Question("q1", QUESTION, CONTEXT, spans, "file: q1")


def test_worked_example_of_textflint():
  question = ask("Denver Broncos", "The Denver Broncos", "2016")
  changed = change(question)
  assert changed.context == (
    "It was in 2016. The UNICEF team of Kew Gardens represented the UNICEF at"
    " Champ Bowl 40. The Denver Broncos beat Carolina. Denver cheered."
  )
  place = changed.context.index("Denver")
  expected = ("Denver Broncos", place), ("The Denver Broncos", place - 4)
  assert changed.answers == (*expected, question.answers[2])
  assert (changed.key, changed.text) == (question.key, question.text)
  # Before another sentence if the answer starts its own, as in TextFlint.
  changed = change(ask("The Denver Broncos"))
  assert changed.context.startswith("The UNICEF team of The Kew Gardens")


@pytest.mark.parametrize(
  ("tree", "sentences", "cause"),
  [
    (TREE.replace("Super", "super"), None, add_sentence.NOT_ALIGNED),
    (None, None, add_sentence.NO_RULE),
    (TREE, (), add_sentence.SEVERAL),
  ],
)
def test_refusals_have_causes(tree, sentences, cause):
  with pytest.raises(Refused, match=cause):
    change(ask("Carolina"), tree, sentences)


@pytest.mark.parametrize(
  ("tags", "question", "expected"),
  [
    ("NNP/PERSON NNP/PERSON", "When?", "Jeff Dean"),
    ("NNP/PERSON NNP", "When was it?", "1956"),
    ("NN", "How many are there?", "42"),
    ("VBD DT NN", "What?", "learned"),
    ("DT JJ NN", "What?", "the hamster"),
    ("RB JJR", "What?", "deeper"),
    ("CD", "What?", "aliens"),
  ],
)
def test_fake_answers_are_of_the_answers_kind(tags, question, expected):
  words = ["the" if tag == "DT" else "x" for tag in tags.split()]
  tokens = make_tokens(" ".join(words), words, tags.split())
  example = Question("q", question, "x", (("x", 0),), "")
  assert add_sentence.fake_answer(example, tokens) == expected


@pytest.mark.parametrize(
  ("words", "tag", "expected"),
  [
    ("U.S.", "NNP/LOCATION", "U.K."),
    ("Presence", "NN", "Absence"),
    ("50", "CD", "40"),  # 50th has the same stem
    ("50 40", "CD", "50 40"),  # in the question, too
    ("Super", "NNP", "Champ"),  # planet is a bad alteration
    ("a", "NNP", "a"),  # a part of "war"
    ("team", "NN", "team"),
    ("team", "NN/ORGANIZATION", "squad"),  # a noun, unlike won
    ("NFL", "NNP/ORGANIZATION", "UNICEF"),
    ("Ajax", "NNP/ORGANIZATION", "Acme"),
    ("Celts", "NNPS", "Daleks"),
    ("Bowl", "NNP/ORGANIZATION", "Bowl"),  # not to be altered
  ],
)
def test_first_rule_with_a_candidate_counts(words, tag, expected):
  apply = add_sentence.AddSentence(
    Annotator("test", annotate_words), Reader(), NEIGHBOURS
  )
  assert apply.alter(tag_words(words, r"\S+", tag)) == expected.split()


def test_neighbours_come_from_vectors(tmp_path):
  vectors = tmp_path / "vectors.txt"
  vectors.write_text("50 1 0\n40 1 .1\n30 0 1\nteam -1 0\nother 1 0\n")
  questions = [
    Question(text, text, "x", (("x", 0),), "")
    for text in ("50", "30", "team ?", "40")
  ]
  annotator = Annotator("test", annotate_words)
  transformation = add_sentence.make_add_sentence(
    annotator, Reader(), questions, neighbours=str(vectors)
  )
  # Only words of the questions.
  assert transformation.apply.neighbours["50"] == ["40", "30", "team"]


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
    (square(WHEN, f"(SQ {DID} {IT} (VP (VB end)))"), "It end in A"),
    (
      square(WHAT, f"(SQ {DID} {IT} (VP (VB do) (PP (IN for) {IT})))"),
      "It do A for it",
    ),
    (
      square("(PP (IN In) (NN war))", "(, ,)", WHAT, "(SQ (VP (VBD won)))"),
      "In war , A won",
    ),
    (
      square(IN_YEAR, f"(SQ {DID} {IT} (VP (VB win) (NP (NN war))))"),
      "It win war in the year of A",
    ),
    (square("(S (NP (NN war)) (VP (VBZ is) (WHNP (WP what))))"), "War is A"),
  ],
)
def test_rules_turn_questions_into_statements(tree, expected):
  statement = add_sentence.make_statement(Tree.fromstring(tree), ["A"])
  assert statement == [*expected.split(), "."]


@pytest.mark.parametrize(
  "phrase, expected",
  [
    (IN_YEAR, "in the year of A"),
    ("(WHNP (WDT which) (NNP NFL) (NN team))", "the NFL team of A"),
    ("(WHNP (WHADJP (WRB how) (JJ many)) (NNS men))", "A men"),
    ("(WHNP (WP$ whose) (NN car))", "A"),
  ],
)
def test_wh_phrases_hold_the_answer(phrase, expected):
  tree = add_sentence.group_wh_phrases(Tree.fromstring(phrase))
  assert add_sentence.rewrite_wh(tree, ["A"]) == expected.split()


def test_questions_without_a_wh_phrase_have_no_statement():
  tree = Tree.fromstring(square("(SQ (VBD did) (NP (PRP it)) (VP (VB end)))"))
  assert not add_sentence.make_statement(tree, ["A"])
