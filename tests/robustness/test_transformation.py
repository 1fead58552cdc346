"""Tests transformed sets and TextFlint's text of tokens."""

import random

import pytest

from support.spacy_tokens import tag_words
from truenegs_jax.robustness import transformation as lib
from truenegs_jax.tasks.task import Example, Question


def upper(example, rng):
  if example.key == "hard":
    raise lib.Refused("no letter")
  word = rng.choice(["A", "B"])
  return Example(example.key, example.first + word, None, "x", "")


UPPER = lib.Transformation("upper", "Upper", upper, {"letters": "AB"})


def test_refusals_are_counted_by_cause():
  keys = {"a": "x", "blank": " ", "hard": "y", "b": "z"}
  examples = [Example(k, v, None, "x", "") for k, v in keys.items()]
  result = lib.transform_all(examples, UPPER, seed=0)
  assert [x.key for x in result.original] == ["a", "b"]
  assert [x.key for x in result.transformed] == ["a", "b"]
  assert result.about["refused"] == {lib.BLANK: 1, "no letter": 1}
  assert (result.about["tried"], result.about["changed"]) == (4, 2)
  assert result.about["resources"] == {"letters": "AB"}


def test_unchanged_examples_are_refused():
  same = lib.Transformation("same", "Same", lambda example, rng: example)
  question = Question("q", "Who?", "Ann won.", (("Ann", 0),), "")
  result = lib.transform_all([question], same, seed=0)
  assert not result.original and result.about["refused"] == {lib.SAME: 1}


def test_draws_do_not_depend_on_the_other_examples():
  examples = [Example(str(i), "x", None, "x", "") for i in range(40)]
  forward, backward, other = (
    {x.key: x.first for x in lib.transform_all(e, UPPER, seed=s).transformed}
    for e, s in ((examples, 0), (examples[::-1], 0), (examples, 1))
  )
  assert forward == backward != other
  assert len(set(forward.values())) == 2  # nor are they alike


@pytest.mark.parametrize(
  ("tokens", "text"),
  [
    ("`` Hi , '' he said .", '"Hi," he said.'),
    ('" Hi " !', '" Hi "!'),
    ("( 10 % ) of wide - ranging x", "(10 %) of wide-ranging x"),
    ("Ann 's dogs ca n't . So ?", "Ann's dogs can't. So?"),
    ("I can not ; you : 3 .5", "I cannot; you: 3 .5"),
    ("a ) , ( b", "a), (b"),
    ("''", '"'),
  ],
)
def test_text_follows_the_rules(tokens, text):
  assert lib.detokenize(tokens.split())[0] == text


@pytest.mark.parametrize("seed", range(30))
def test_tokens_are_at_their_spans(seed):
  words = ["a", "``", "''", '"', "(", ")", "n't", "'s", "can", "not", "-", ".,"]
  tokens = random.Random(seed).choices(words, k=25)
  text, spans = lib.detokenize(tokens)
  quotes = {"``": '"', "''": '"'}
  expected = [quotes.get(token, token) for token in tokens]
  assert [text[a:b].replace(" ", "") for a, b in spans] == expected


@pytest.mark.parametrize(
  ("answer", "new"), [("Two  dogs", "Two dogs"), ("dogs", "dogs"), ("og", None)]
)
def test_answers_move_with_their_tokens(answer, new):
  context = "( Two  dogs )"
  start = context.index(answer)
  question = Question("q", "Who?", context, ((answer, start),), "file")
  tokens = tag_words(context, r"\S+", "NN")
  words = [token.text for token in tokens]
  places = lib.find_answers(question, tokens)
  if new is None:
    with pytest.raises(lib.Refused, match=lib.ILLEGAL):
      lib.replace_context(question, words, places)
  else:
    changed = lib.replace_context(question, words, places)
    assert changed.context == "(Two dogs)" and changed.key == "q"
    assert changed.answers == ((new, changed.context.index(new)),)


def test_answers_without_tokens_are_refused():
  question = Question("q", "Who?", "a  b", ((" ", 2),), "file")
  tokens = tag_words("a  b", r"\S+", "NN")
  with pytest.raises(lib.Refused, match=lib.ILLEGAL):
    lib.find_answers(question, tokens)
