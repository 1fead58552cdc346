"""Tests TextFlint's text of tokens and the places of answers in it."""

import random

import pytest

from truenegs_jax.robustness import detokenize as lib
from truenegs_jax.robustness.transformation import Refused
from truenegs_jax.tasks.squad import Question


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
  tokens = [(0, 1), (2, 5), (7, 11), (12, 13)]
  words = [context[a:b] for a, b in tokens]
  places = [lib.find_tokens(tokens, (start, start + len(answer)))]
  if new is None:
    with pytest.raises(Refused, match=lib.ILLEGAL):
      lib.replace_context(question, words, places)
  else:
    changed = lib.replace_context(question, words, places)
    assert changed.context == "(Two dogs)" and changed.key == "q"
    assert changed.answers == ((new, changed.context.index(new)),)


def test_answers_without_tokens_are_refused():
  with pytest.raises(Refused, match=lib.ILLEGAL):
    lib.find_tokens([(0, 1), (4, 5)], (2, 3))
