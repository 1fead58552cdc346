"""Tests scores against torchmetrics, published values and theory."""

import numpy as np
import pytest

from truenegs_jax.stats import intervals
from truenegs_jax.tasks import scoring
from truenegs_jax.tasks.task import CLASSES, METRICS, SCORE

WORDS = ["the", "The", "a", "an", "AN", "cat", "Cat's", "cats,", "U.S."]
WORDS += ["1,000", "—", "naïve", "ÉCOLE", "École", "İstanbul", "straße"]
WORDS += ["东京", "东京。", "“quoted”", "(in)", "a-b", "the-end", "theory"]
WORDS += ["an.", "\u00a0x", "½", "$5", "...", "!"]


def compute(metric, gold, predicted):
  """Returns a metric of two sequences of numbers."""
  return scoring.score_answers([metric], [*gold], [*predicted])[metric]


def random_answers(count, seed=0):
  """Makes answers and 1 to 4 gold answers to each question."""
  rng = np.random.default_rng(seed)

  def make_text(min_words):
    return " ".join(rng.choice(WORDS, rng.integers(min_words, 6)))

  golds, answers = [], []
  for _ in range(count):
    golds.append([make_text(1) for _ in range(rng.integers(1, 5))])
    kind, gold = rng.random(), golds[-1][-1]
    if kind < 0.3:
      answers.append(gold.upper().replace(" ", "  the "))
    elif kind < 0.6:
      answers.append(" ".join(gold.split()[1:] + [make_text(0)]))
    else:
      answers.append(make_text(0))
  return answers, golds


def torch_squad(answers, golds):
  from torchmetrics.functional.text import squad

  numbers = [str(i) for i in range(len(golds))]
  scores = squad(
    [
      {"id": i, "prediction_text": text}
      for i, text in zip(numbers, answers, strict=True)
    ],
    [
      {"id": i, "answers": {"text": texts, "answer_start": [0] * len(texts)}}
      for i, texts in zip(numbers, golds, strict=True)
    ],
  )
  return scores["exact_match"].item(), scores["f1"].item()


def test_squad_scores_match_torchmetrics():
  pytest.importorskip("torch")
  pytest.importorskip("torchmetrics")
  answers, golds = random_answers(1_000)
  # If both answers are empty, v2.0 and torchmetrics give 1, v1.1 gives 0.
  golds = [
    [text for text in texts if scoring.normalize_answer(text)] or ["x"]
    for texts in golds
  ]
  by_question = scoring.question_scores(golds, answers)
  for start in range(0, len(golds), 100):  # small, so that one question matters
    part = slice(start, start + 100)
    means = [by_question[name][part].mean() for name in ("em", "f1")]
    theirs = torch_squad(answers[part], golds[part])
    np.testing.assert_allclose(means, theirs, rtol=1e-5)
  ours = scoring.score_answers(["em", "f1"], golds, answers)
  assert ours == {name: by_question[name].mean() for name in ("em", "f1")}
  assert 10 < ours["em"] < ours["f1"] < 90


def test_published_values_of_squad():
  assert scoring.normalize_answer("The  Cat's.") == "cats"
  assert scoring.normalize_answer("an A-the theory\u00a0—") == "athe theory —"
  f1 = scoring.token_f1("the cat sat", "cat sat down")
  assert f1 == pytest.approx(80)
  assert scoring.exact_match("the cat sat", "cat sat down") == 0
  assert scoring.token_f1("cat cat", "cat dog") == pytest.approx(50)
  assert scoring.token_f1("the", "a") == 0 and scoring.exact_match("the", "a")


def test_the_best_gold_of_a_question_counts():
  golds, answers = [["x y", "z"], ["x"], ["w"]], ["y", "", "w"]
  by_question = scoring.question_scores(golds, answers)
  np.testing.assert_array_equal(by_question["em"], [0, 0, 100])
  np.testing.assert_allclose(by_question["f1"], [200 / 3, 0, 100])
  # The best gold by F1 need not be the one by EM.
  both = scoring.score_answers(["em", "f1"], [["an", "the the x"]], ["the"])
  assert both == {"em": 100, "f1": 0}


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
