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


@pytest.mark.parametrize("runs", [1, 3])
def test_standard_errors_count_questions_not_answers(runs):
  right_N = np.random.default_rng(0).random(300) < 0.8
  before, after = (
    [GOLD if is_right else "hill" for is_right in x]
    for x in (right_N, right_N[::-1])
  )
  questions = make_questions(300)
  scores = score_set(
    EvalSet("s", "S", questions, questions, {}),
    {"s original": [before] * runs, "s transformed": [after] * runs},
  )
  paired = stats.sem(100.0 * right_N - 100.0 * right_N[::-1])
  assert estimate(scores["drop"]["em"])["se"] == pytest.approx(paired)
  assert len(scores["original"]["em"].by_run()) == runs


def test_equal_questions_are_answered_once_and_count_in_their_sets():
  questions = make_questions(3)
  pair_set = EvalSet("pair", "P", questions[:2], questions[1:], {})
  alone = EvalSet("alone", "A", [], questions, {})
  numbered = []

  def answer(examples):
    numbered.append([x.key for x in examples])
    return [[GOLD, GOLD, "blue"], ["hill"] * 3]

  runs, by_set = score_model(answer, {"x": 0, "y": 7}, [pair_set, alone])
  assert numbered == [["0", "1", "2"]]
  assert [x["seed"] for x in runs.values()] == [0, 7]
  saved = runs["x"]["answers"]
  assert [*saved] == ["pair original", "pair transformed", "alone transformed"]
  assert saved["pair transformed"]["answers"] == [GOLD, "blue"]
  values = [(split, x["em"]) for split, x in runs["x"]["scores"].items()]
  pair = [("pair original", 100), ("pair transformed", 50), ("pair drop", 50)]
  assert values == [*pair, ("alone transformed", pytest.approx(200 / 3))]
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
  paper = scores_lib.find_published(title, family="electra", width=256)
  assert [paper["paper, ELECTRA small"]["em"]] == [em] if em else not paper
  for family, width in (("electra", 768), ("bert", 256)):
    assert not scores_lib.find_published(title, family=family, width=width)
