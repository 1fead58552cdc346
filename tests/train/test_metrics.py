"""Metrics equal independent computations; progress lines are few."""

import io
import math
import re

import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.train import metrics


def pairwise_auc(positive, negative):
  """Computes the AUC pair by pair."""
  difference = np.subtract.outer(positive, negative)
  return (np.sign(difference) / 2 + 0.5).mean()


@pytest.mark.parametrize("seed", range(4))
def test_auc_equals_count_of_pairs_with_ties(seed):
  rng = np.random.default_rng(seed)
  bins = 6  # few, so that there are many ties
  positive, negative = rng.integers(1, bins, 30), rng.integers(0, bins - 1, 50)
  auc = metrics.auc(
    np.bincount(positive, minlength=bins), np.bincount(negative, minlength=bins)
  )
  assert auc == pytest.approx(pairwise_auc(positive, negative), rel=1e-12)
  assert metrics.auc(np.zeros(2), np.array([3, 0])) == 0.5  # no positives


def test_auc_stays_exact_for_counts_beyond_float32():
  positive, negative = np.array([1, 2**25]), np.array([2**25, 1])
  n = 2**25 + 1
  expected = (2**25 * 2**25 + 0.5 * 2**25 * 2) / n**2
  auc = metrics.auc(positive.astype("f4"), negative.astype("f4"))
  assert auc == pytest.approx(expected, rel=1e-6)


def test_terms_are_added_in_float64_and_divided_once():
  # float32 cannot count by ones above 2^24.
  batches = [{"a": (np.float32(1.0), np.float32(2**24))}] * 2
  batches += [{"a": (np.float32(1.0), np.float32(1.0))}] * 64
  merged = metrics.merge_terms(batches)
  assert merged == {"a": (66, 2**25 + 64)}
  assert metrics.compute_ratios(merged) == {"a": 66 / (2**25 + 64)}
  assert metrics.compute_ratios({"a": (0.0, 0.0)}) == {"a": 0.0}


def test_entropy_of_equal_and_of_certain_counts():
  assert metrics.entropy(np.full(7, 3)) == pytest.approx(math.log(7))
  assert metrics.entropy(np.array([0, 5, 0])) == 0.0
  p = 0.138  # share of replaced tokens in ELECTRA-small
  assert metrics.entropy(np.array([p, 1 - p])) == pytest.approx(0.401, abs=1e-3)


def make_record(step, **values):
  times = {"time": 0.0, "eta_s": 3.0, "rows_per_s": 7.0}
  return {"step": step, "split": "train", "total": 1.5, **times, **values}


# All columns of ELECTRA with soft regularization and of a GPU.
VALUES = {"total": 14.25, "mlm": 7.5, "detect": 0.65, "soft": 0.9}
VALUES |= {"sentence": 0.5, "corrected_of_slots": 0.0123, "auc": 0.75}


def print_run(steps, every, *, terminal=False, evaluate=0, **values):
  """Returns what ProgressLine prints at 80 columns in a run of `steps`."""
  out = io.StringIO()
  console = Console(file=out, force_terminal=terminal, width=80)
  line = metrics.ProgressLine(console, steps, first_step=0)
  for step in range(every, steps + 1, every):
    line.write(make_record(step, **{**VALUES, "eta_s": steps - step, **values}))
    if evaluate and not step % evaluate:
      held_out = {"step": step, "time": 0.0, "split": "held_out", "mlm": 4.0}
      line.write(held_out)
  line.close()
  return out.getvalue()


@pytest.mark.parametrize(
  "steps, every", [(12, 1), (1_500, 10), (10_000, 1), (1_000_000, 1_000)]
)
def test_log_of_a_run_is_short_and_has_its_end(steps, every):
  start, header, *lines = print_run(steps, every, mfu=0.45).splitlines()
  assert start == "first steps ..."
  assert len(lines) <= 30 and len(lines) >= min(steps, 20) / 2
  assert max(map(len, [header, *lines])) <= 80
  assert f"step of {steps:,}" in header and lines[0].split()[0] == f"{every:,}"
  assert lines[-1].split()[0] == f"{steps:,}"
  for column in ("mlm", "detect", "soft", "sentence", "corrected", "rows/s"):
    assert header.index(column) + len(column) in {
      m.end() for m in re.finditer(r"\S+", lines[0])
    }


def test_lines_are_an_hour_apart_at_most():
  out = io.StringIO()
  line = metrics.ProgressLine(Console(file=out, width=80), 10**6, first_step=0)
  for step in range(100_000, 100_300):
    line.write(make_record(step, time=60.0 * step))
  assert len(out.getvalue().splitlines()) == 2 + 5


@pytest.mark.parametrize("terminal", [False, True])
def test_evaluations_stay_on_the_screen(terminal):
  printed = print_run(1_000, 10, terminal=terminal, evaluate=500)
  text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", printed)
  for step in ("500", "1,000"):
    assert re.search(rf"held-out +{step} +4.000\r?\n", text)
  assert "first steps" in text and terminal == ("\x1b" in printed)
