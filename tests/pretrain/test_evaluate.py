"""The verdict's rule, and tables for people that break no word."""

import math
import pathlib

import numpy as np
import pytest

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.pretrain import evaluate
from truenegs_jax.train import metrics

UNIGRAM_V = np.ones(9)
GUESS = math.log(9)  # nats, for a token of the masked language model


def make_batches(mlm=-0.5, hidden=-0.5, detect=-0.1, ranked=True, count=3):
  """Returns held-out terms whose losses differ so much from their guesses.

  The share of replaced tokens varies, and the loss of detection with it.
  """
  return [
    {
      "mlm": (100 * (GUESS + mlm + noise), 100.0),
      "mlm_hidden": (100 * (GUESS + hidden + noise), 100.0),
      "replaced": (25 + 100 * noise, 100.0),
      "detect": (
        100 * (metrics.entropy([0.25 + noise, 0.75 - noise]) + detect),
        100.0,
      ),
      metrics.HISTOGRAM: (
        np.array([5.0, 5.0 + 9 * ranked]),
        np.array([5.0 + 9 * ranked, 5.0]),
      ),
    }
    for noise in (0.0, 0.01, -0.01)[:count]
  ]


def judge(**changes):
  verdict = evaluate.compute_verdict(make_batches(**changes), UNIGRAM_V)
  return verdict, [score.answer for score in verdict.scores.values()]


def test_a_metric_must_beat_guessing_by_3_errors():
  verdict, answers = judge()
  assert answers == ["yes"] * 4 and verdict.passed
  assert verdict.scores["mlm"].error == pytest.approx(0.01 / 3**0.5)
  # The batches agree on the gain over the entropy of their labels.
  detect = verdict.scores["detect"]
  assert detect.value == pytest.approx(detect.guess - 0.1, abs=1e-3)
  assert detect.error < 1e-3
  error = verdict.scores["mlm"].error
  for gain, answer in ((2.9 * error, "no"), (3.1 * error, "yes")):
    assert judge(mlm=-gain)[1][0] == answer
  assert judge(mlm=1.0)[1] == ["no", "yes", "yes", "yes"]
  assert judge(detect=0.1, ranked=False)[1] == ["yes", "yes", "no", "no"]


def test_detection_does_not_count_while_the_generator_guesses():
  guesses = "no: the generator guesses"
  verdict, answers = judge(hidden=0.1)
  assert answers == ["yes", "no", guesses, guesses] and not verdict.passed
  assert judge(hidden=0.1, ranked=False)[1] == ["yes", "no", guesses, "no"]


def test_one_batch_proves_nothing():
  verdict, answers = judge(count=1)
  assert answers == ["unknown: one batch"] * 4 and not verdict.passed
  c = PretrainConfig(steps=9, batch_size=1024)
  text = evaluate.describe_outcome(verdict, c, 9, pathlib.Path("run"))
  assert "Set --config.eval.rows=NUMBER above 1,024" in text
  assert "auc (unknown: one batch)" in text
  assert verdict.to_json()["scores"]["mlm"]["error"] is None
