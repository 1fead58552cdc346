"""Tables for people say what is true and break no word; the verdict's rule."""

import dataclasses
import io
import math
import re

import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.pretrain import cases, evaluate
from truenegs_jax.report.page import print_table
from truenegs_jax.train import metrics


def make_verdict(error):
  detection = evaluate.Detection(
    0.5388, error, 0.248, 0.56, 0.5567, error, 10**9
  )
  losses = 6.876, error, 6.933, error, 8.3, 6.886
  return evaluate.Verdict(*losses, 10**9, detection)


def render(verdict):
  out = io.StringIO()
  print_table(verdict.table, Console(file=out, width=120))
  return out.getvalue()


WORDS = ("representative", "congresswoman", "counterrevolutionary")
CASE = cases.Case(
  f"a {WORDS[2]} [MASK] of the institution",
  *WORDS[:2],
  0.97,
  WORDS,
)
TABLES = [
  make_verdict(0.0123).table,
  make_verdict(math.inf).table,
  cases.make_cases_table(cases.Search(10, 1, "x", [CASE]), [CASE]),
  evaluate.make_fills_table(
    [evaluate.MaskFill(CASE.sentence, WORDS, [0.1] * 3)]
  ),
]


@pytest.mark.parametrize("table", TABLES)
def test_no_word_is_broken_at_80_columns(table):
  def words(width):
    out = io.StringIO()
    console = Console(file=out, width=width)
    print_table(table, console)
    return sorted(re.findall(r"[\w.,%±\[\]()-]+", out.getvalue()))

  assert words(80) == words(300)


# Beats guessing in every row.
BETTER = dataclasses.replace(make_verdict(1e-3), mlm_hidden=6.5)


@pytest.mark.parametrize(
  ("name", "gain"),
  [
    ("mlm", 6.886 - 6.876),
    ("mlm_hidden", 6.886 - 6.5),
    ("detection.loss", 0.56 - 0.5388),
    ("detection.auc", 0.5567 - 0.5),
  ],
)
def test_each_metric_must_beat_guessing_by_3_errors(name, gain):
  *section, field = name.split(".")
  for count, answer in ((2.99, "no"), (3.01, "yes")):
    error = {f"{field}_error": gain / count}
    if section:
      detection = dataclasses.replace(BETTER.detection, **error)
      error = {"detection": detection}
    v = dataclasses.replace(BETTER, **error)
    assert v.answers[name] == answer and v.passed == (answer == "yes")
    outcome = evaluate.describe_outcome(v, PretrainConfig(steps=9), 9, 1.0)
    assert v.passed or f"{name} (no)" in outcome and ".steps" in outcome


def test_a_run_that_ends_early_says_what_to_type_for_all_steps(monkeypatch):
  argv = ["/bin/main", "--config=x", "--config.minutes=10", "--workdir=a b"]
  monkeypatch.setattr("sys.argv", argv)
  config = PretrainConfig(steps=1_500, minutes=10.0)
  for verdict in (BETTER, dataclasses.replace(BETTER, mlm=7.0)):
    text = evaluate.describe_outcome(verdict, config, 212, 71 * 60 - 9.0)
    assert (
      "212 of 1,500 steps fit into minutes=10. All would take some 71" in text
    )
    last = "main --config=x '--workdir=a b' --config.minutes=71"
    assert text.endswith(last)
    assert ("knows little" in text) != verdict.passed


def test_detection_does_not_count_while_the_generator_guesses():
  v = dataclasses.replace(BETTER, mlm_hidden=6.89)
  guesses = "no: the generator guesses"
  assert list(v.answers.values()) == ["yes", "no", guesses, guesses]
  assert not v.passed and guesses in render(v)
  collapsed = dataclasses.replace(v.detection, loss=0.57, auc=0.5)
  v = dataclasses.replace(v, detection=collapsed)
  assert list(v.answers.values()) == ["yes", "no", "no", "no"]


def test_one_batch_proves_nothing():
  v = dataclasses.replace(make_verdict(math.inf), mlm_hidden=6.5)
  assert set(v.answers.values()) == {"unknown: one batch"} and not v.passed
  assert "--config.eval.rows" in evaluate.describe_outcome(
    v, PretrainConfig(steps=9), 9, 1.0
  )
  assert render(v).count("unknown: one batch") == 4
  assert "6.876" in render(v) and "inf" not in render(v)
  assert "6.876 ± 0.001" in render(BETTER)


def test_error_of_the_detection_loss_is_of_the_gain():
  # The loss rises and falls with the share of replaced tokens, 0.1 below the
  # entropy of the labels: the batches agree that the discriminator learned.
  batches = [
    {
      "mlm": (500.0, 100.0),
      "mlm_hidden": (500.0, 100.0),
      "replaced": (100 * rate, 100.0),
      "detect": (100 * metrics.entropy(np.array([rate, 1 - rate])) - 10, 100.0),
      metrics.HISTOGRAM: (np.array([0.0, 1]), np.array([1.0, 0])),
    }
    for rate in (0.24, 0.25, 0.26)
  ]
  detection = evaluate.compute_verdict(batches, np.ones(9)).detection
  assert detection.loss == pytest.approx(
    detection.base_rate_entropy - 0.1, abs=0.01
  )
  assert detection.loss_error < 1e-3
