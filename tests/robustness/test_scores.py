"""Scores and their standard errors, and the paper's rows."""

import numpy as np
import pytest
from scipy import stats

from truenegs_jax.robustness import scores as scores_lib
from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.robustness.scores import estimate, score_set
from truenegs_jax.tasks.task import SQUAD, TASKS, Example, Question


def make_questions(count, gold="deep blue sea"):
  return [Question(str(i), "q", gold, ((gold, 0),), "") for i in range(count)]


def answers(correct_N):
  return ["deep blue sea" if x else "hill" for x in correct_N]


def make_set(count, **fields):
  questions = make_questions(count)
  return EvalSet("s", "S", questions, questions, {}, **fields)


def score(examples, task, original, transformed):
  answers = {"s original": original, "s transformed": transformed}
  return score_set(examples, task, answers)


def test_a_question_counts_by_its_worst_variant():
  variants = [(0, 1), (), (2,)]
  questions = make_questions(3)
  x = EvalSet("s", "S", questions, questions, {}, variants)
  original = [["deep blue sea", "deep blue", "deep blue sea"]]
  changed = [["deep blue", "blue", "hill"]]  # F1 80, 50, 0
  scores = score(x, TASKS[SQUAD], original, changed)
  f1_SxN = scores["f1"]["transformed"].example_SxN
  np.testing.assert_allclose(f1_SxN, [[50, 80, 0]])
  assert estimate(scores["em"]["original"])["value"] == pytest.approx(200 / 3)
  assert estimate(scores["em"]["drop"])["value"] == pytest.approx(200 / 3)


def test_standard_errors_count_questions_not_answers():
  rng = np.random.default_rng(0)
  right_N = rng.random(300) < 0.8
  x, before, after = make_set(300), answers(right_N), answers(right_N[::-1])
  one, three = (
    score(x, TASKS[SQUAD], [before] * n, [after] * n) for n in (1, 3)
  )
  p = right_N.mean()
  expected = 100 * np.sqrt(p * (1 - p) / 299)
  for scores in (one, three):
    assert estimate(scores["em"]["original"])["se"] == pytest.approx(expected)
    paired = stats.sem(100.0 * right_N - 100.0 * right_N[::-1])
    assert estimate(scores["em"]["drop"])["se"] == pytest.approx(paired)
  assert len(three["em"]["original"].by_run()) == 3


def test_errors_of_correlations_are_bootstrapped():
  task, rng = TASKS["cola"], np.random.default_rng(0)
  labels = rng.integers(2, size=400)
  guesses = np.where(rng.random(400) < 0.8, labels, 1 - labels)
  rows = [Example(str(i), "a", None, str(x), "") for i, x in enumerate(labels)]
  x = EvalSet("s", "S", rows, rows, {})
  scores = score(x, task, [labels.astype(str)], [guesses.astype(str)])
  changed = estimate(scores["matthews"]["transformed"])
  assert changed["value"] == pytest.approx(60, abs=8)
  assert changed["se"] == pytest.approx(100 * 0.8 / np.sqrt(400), rel=0.15)
  drop = estimate(scores["matthews"]["drop"])
  assert drop["value"] == pytest.approx(100 - changed["value"])


def test_classes_are_merged_as_in_hans():
  rows = [
    Example(str(i), "a", "b", label, "")
    for i, label in enumerate(["entailment", "non-entailment"] * 2)
  ]
  merged = dict.fromkeys(("neutral", "contradiction"), "non-entailment")
  x = EvalSet("s", "S", (), rows, {}, merged=merged)
  given = [["entailment", "neutral", "contradiction", "contradiction"]]
  scores = score(x, TASKS["mnli"], [[]], given)
  assert estimate(scores["accuracy"]["transformed"])["value"] == 75
  assert not {"original", "drop"} & scores["accuracy"].keys()


@pytest.mark.parametrize(
  ("title", "metrics", "em"),
  [
    ("SwapSynWordNet", ("em", "f1"), (80.67, 74.67)),
    ("AddSentDiverse-style", ("em", "f1"), (80.55, 25.60)),
    ("add_sentence", ("em", "f1"), (80.55, 25.60)),
    ("Synonym swap", ("em", "f1"), None),
    ("SwapSynWordNet", ("accuracy",), None),
  ],
)
def test_the_papers_rows_stand_only_beside_its_own_sets(title, metrics, em):
  paper = scores_lib.find_published(title, metrics)
  assert [paper["paper, ELECTRA small"]["em"]] == [em] if em else not paper
  for network in ("bert of 256 units", "discriminator of 768 units"):
    assert not scores_lib.find_published(title, metrics, network)
