"""Scores and their standard errors, and the paper's rows."""

import numpy as np
import pytest
from scipy import stats

from truenegs_jax.robustness import scores as scores_lib
from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.robustness.scores import estimate, score_model, score_set
from truenegs_jax.tasks.task import Question

GOLD = "deep blue sea"


def make_questions(count):
  return [
    Question(str(i), f"q{i}", GOLD, ((GOLD, 0),), "") for i in range(count)
  ]


def make_set(count):
  questions = make_questions(count)
  return EvalSet("s", "S", questions, questions, {})


def score(x, original, transformed):
  return score_set(x, {"s original": original, "s transformed": transformed})


def test_standard_errors_count_questions_not_answers():
  rng = np.random.default_rng(0)
  right_N = rng.random(300) < 0.8
  x = make_set(300)
  before, after = (
    [GOLD if is_right else "hill" for is_right in y]
    for y in (right_N, right_N[::-1])
  )
  one, three = (score(x, [before] * n, [after] * n) for n in (1, 3))
  p = right_N.mean()
  expected = 100 * np.sqrt(p * (1 - p) / 299)
  for scores in (one, three):
    assert estimate(scores["original"]["em"])["se"] == pytest.approx(expected)
    paired = stats.sem(100.0 * right_N - 100.0 * right_N[::-1])
    assert estimate(scores["drop"]["em"])["se"] == pytest.approx(paired)
  assert len(three["original"]["em"].by_run()) == 3


def test_equal_questions_are_answered_once_and_count_in_their_sets():
  questions = make_questions(3)
  pair = EvalSet("pair", "P", questions[:2], questions[1:], {})
  alone = EvalSet("alone", "A", [], questions, {})
  numbered = []

  def answer(examples):
    numbered.append([x.key for x in examples])
    return [[GOLD, GOLD, "blue"], ["hill"] * 3]

  runs, by_set = score_model(answer, {"x": 0, "y": 7}, [pair, alone])
  assert numbered == [["0", "1", "2"]]
  assert [(x["task"], x["seed"]) for x in runs.values()] == [
    ("squad", 0),
    ("squad", 7),
  ]
  saved = runs["x"]["answers"]
  assert [*saved] == ["pair original", "pair transformed", "alone transformed"]
  assert saved["pair transformed"] == {
    **{"keys": ["1", "2"], "golds": [(GOLD,)] * 2, "answers": [GOLD, "blue"]}
  }
  values = {split: x["em"] for split, x in runs["x"]["scores"].items()}
  assert values == pytest.approx(
    {
      **{"pair original": 100, "pair transformed": 50, "pair drop": 50},
      "alone transformed": 200 / 3,
    }
  )
  assert "drop" not in by_set["alone"]
  assert estimate(by_set["pair"]["original"]["em"])["value"] == 50


@pytest.mark.parametrize(
  ("title", "em"),
  [
    ("SwapSynWordNet", (80.67, 74.67)),
    ("add_sentence", (80.55, 25.60)),
    ("Synonym swap", None),
  ],
)
def test_the_papers_rows_stand_only_beside_its_own_sets(title, em):
  paper = scores_lib.find_published(title)
  assert [paper["paper, ELECTRA small"]["em"]] == [em] if em else not paper
  assert not scores_lib.find_published(title, "discriminator of 768 units")
