"""Tests scores against torchmetrics, published values and theory."""

import numpy as np
import pytest

from truenegs_jax.stats import intervals
from truenegs_jax.tasks import scoring
from truenegs_jax.tasks.task import CLASSES, METRICS, SCORE

# Answers and their golds: articles, punctuation, capitals and white space.
ANSWERS = {
  "The  Cat's.": ["cats", "dog"],
  "AN A-the theory": ["athe theory", "theory"],
  "cat sat down": ["the cat sat", "sat"],
  "cat cat": ["cat dog"],
  "ÉCOLE naïve": ["École", "naïve École"],
  "İstanbul straße": ["istanbul", "İSTANBUL STRASSE"],
  "东京。 — “quoted”": ["东京 —", "东京。"],
  "\u00a0x $5 1,000 ½": ["x 5 1000 ½"],
  "": ["x"],
}


def compute(metric, gold, predicted):
  """Returns a metric of two sequences of numbers."""
  return scoring.score_answers([metric], [*gold], [*predicted])[metric]


def test_squad_scores_match_torchmetrics():
  functional = pytest.importorskip("torchmetrics").functional
  for answer, golds in ANSWERS.items():
    theirs = functional.text.squad(
      [{"id": "0", "prediction_text": answer}],
      [{"id": "0", "answers": {"text": golds, "answer_start": [0, 0]}}],
    )
    ours = scoring.question_scores([golds], [answer])
    assert ours["em"] == [theirs["exact_match"].item()]
    assert ours["f1"] == pytest.approx([theirs["f1"].item()])
  golds = [*ANSWERS.values()]
  by_question = scoring.question_scores(golds, [*ANSWERS])
  means = {name: x.mean() for name, x in by_question.items()}
  scores = scoring.score_answers(["em", "f1"], golds, [*ANSWERS])
  assert scores == pytest.approx(means)
  assert 10 < means["em"] < means["f1"] < 90


@pytest.mark.parametrize("seed", range(2))
def test_metrics_match_torchmetrics(seed):
  torch = pytest.importorskip("torch")
  functional = pytest.importorskip("torchmetrics").functional
  rng = np.random.default_rng(seed)
  gold = rng.integers(0, 2, 301)
  predicted = np.where(rng.random(301) < 0.7, gold, rng.random(301) < 0.3)
  x, y = torch.tensor(gold), torch.tensor(predicted)
  score = np.round(rng.random(301) * 5, 1)  # ties
  guess = np.round(score + rng.normal(size=301), 1)
  s, g = torch.tensor(score), torch.tensor(guess)
  three = rng.integers(0, 3, 301), rng.integers(0, 3, 301)
  three_t = [torch.tensor(x) for x in three]
  classes = {"task": "multiclass", "num_classes": 3}
  pairs = [
    (compute("accuracy", gold, predicted), (x == y).double().mean()),
    (
      compute("matthews", gold, predicted),
      functional.matthews_corrcoef(y, x, "binary"),
    ),
    (compute("f1", gold, predicted), functional.f1_score(y, x, "binary")),
    (compute("spearman", score, guess), functional.spearman_corrcoef(g, s)),
    (compute("pearson", score, guess), functional.pearson_corrcoef(g, s)),
    (
      compute("f1", *three),
      functional.f1_score(*three_t[::-1], average="macro", **classes),
    ),
    (
      compute("matthews", *three),
      functional.matthews_corrcoef(*three_t[::-1], **classes),
    ),
  ]
  for ours, theirs in pairs:
    assert ours == pytest.approx(100 * theirs.item(), rel=1e-5, abs=1e-3)


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_constant_and_infinite_scores_give_zero(metric):
  gold = np.random.default_rng(0).random(1_001)
  for value in (0.1, 1e-30, 1e9 / 3):  # their means have rounding errors
    for kind in (np.float32, np.float64):
      assert compute(metric, gold, np.full(1_001, value, kind)) == 0
  for value in (np.nan, np.inf):
    assert compute(metric, gold, np.append(gold[1:], value)) == 0
  # A small spread of 1e-6 is enough.
  shifted = 1000 + 1e-6 * gold
  assert compute(metric, gold, shifted) == pytest.approx(100, abs=1e-3)


def test_macro_f1_averages_the_classes_that_occur():
  # F1 of classes 0 and 2 is 2/3, of 3 it is 0; class 1 does not occur.
  expected = 100 * (2 / 3 + 2 / 3 + 0) / 3
  assert compute("f1", [0, 0, 2, 2], [0, 3, 2, 3]) == pytest.approx(expected)


def test_f1_of_a_run_does_not_depend_on_the_classes_of_others():
  golds, labels = ["a", "b", "a", "b"], ("a", "b", "c")
  two = ["a", "b", "a", "a"]  # by its ids alone, a task of two classes
  expected = 100 * (4 / 5 + 2 / 3) / 2
  for runs in ([two], [two, ["a", "b", "a", "c"]]):
    scores = scoring.score_runs(["f1"], golds, runs, labels)["f1"]
    drawn_RxN = np.arange(4)[None]
    assert scores.draw(drawn_RxN)[0, 0] == pytest.approx(expected)


@pytest.mark.parametrize("metric", METRICS[CLASSES] + METRICS[SCORE])
def test_drawn_scores_match_a_plain_loop_over_resamples(metric):
  rng = np.random.default_rng(0)
  gold, runs = rng.integers(0, 3, 120), rng.integers(0, 3, (2, 120))
  drawn_RxN = rng.integers(120, size=(20, 120))
  scores = scoring.score_runs([metric], [*gold], runs)[metric]
  expected = [[compute(metric, gold[d], x[d]) for d in drawn_RxN] for x in runs]
  np.testing.assert_allclose(scores.draw(drawn_RxN), expected, atol=1e-6)
  expected = [compute(metric, gold, x) for x in runs]
  np.testing.assert_allclose(scores.by_run(), expected, atol=1e-6)
  change = scores - scoring.score_runs([metric], [*gold], runs[::-1])[metric]
  expected = [expected[0] - expected[1], expected[1] - expected[0]]
  np.testing.assert_allclose(change.by_run(), expected, atol=1e-6)


@pytest.mark.parametrize("metric", METRICS[CLASSES] + METRICS[SCORE])
def test_scores_of_examples_are_those_of_the_jackknife(metric):
  gold, answers = np.random.default_rng(0).integers(0, 3, (2, 30))
  got = scoring.example_scores(metric, [*gold], [*answers])
  without = [
    compute(metric, np.delete(gold, i), np.delete(answers, i))
    for i in range(30)
  ]
  mean = compute(metric, gold, answers)
  expected = intervals.jackknife_values(mean, without)
  np.testing.assert_allclose(got, expected, atol=1e-6)


def test_classes_have_the_ids_of_their_labels():
  golds, answers = ["b", "a", "b"], ["b", "b", "a"]
  for labels, f1 in ((("a", "b"), 50), (("b", "a"), 0)):
    assert scoring.score_answers(["f1"], golds, answers, labels) == {"f1": f1}
