"""Metrics equal independent computations; progress lines are few."""

import io
import math
import re

import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.train import metrics


def random_batches(seed, n=6):
  rng = np.random.default_rng(seed)
  return [
    {
      "a": (np.float32(rng.normal()), np.float32(rng.integers(1, 9))),
      "detect_histogram": (rng.integers(0, 9, 5), rng.integers(0, 9, 5)),
    }
    for _ in range(n)
  ]


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


def test_auc_of_perfect_reversed_and_one_sided_scores():
  low, high, none = np.array([3, 0]), np.array([0, 5]), np.zeros(2)
  assert metrics.auc(high, low) == 1.0
  assert metrics.auc(low, high) == 0.0
  assert metrics.auc(low, low) == 0.5
  assert metrics.auc(none, low) == metrics.auc(high, none) == 0.5


def test_auc_stays_exact_for_counts_beyond_float32():
  positive, negative = np.array([1, 2**25]), np.array([2**25, 1])
  n = 2**25 + 1
  expected = (2**25 * 2**25 + 0.5 * 2**25 * 2) / n**2
  auc = metrics.auc(positive.astype("f4"), negative.astype("f4"))
  assert auc == pytest.approx(expected, rel=1e-6)


def test_merging_is_associative():
  batches = random_batches(0)
  merged = metrics.merge_terms(batches)
  halves = metrics.merge_terms(
    [metrics.merge_terms(batches[4:]), metrics.merge_terms(batches[:4])]
  )
  for name in merged:
    for a, b in zip(merged[name], halves[name], strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-6)
  assert merged["a"][1] == sum(terms["a"][1] for terms in batches)


def test_ratio_is_computed_from_sums():
  merged = metrics.merge_terms([{"a": (1.0, 1.0)}, {"a": (0.0, 3.0)}])
  assert metrics.compute_ratios(merged) == {"a": 0.25}
  assert metrics.compute_ratios({"a": (0.0, 0.0)}) == {"a": 0.0}


def test_merging_keeps_counts_beyond_float32():
  # float32 cannot count by ones above 2^24.
  batches = [{"a": (np.float32(1.0), np.float32(2**24))}] * 2
  batches += [{"a": (np.float32(1.0), np.float32(1.0))}] * 64
  assert metrics.merge_terms(batches)["a"][1] == 2**25 + 64


def test_jackknife_of_a_mean_is_its_standard_error():
  x = np.random.default_rng(0).normal(size=20)
  batches = [{"a": (value, 1.0)} for value in x]
  value, error = metrics.jackknife(
    batches, lambda terms: metrics.compute_ratios(terms)["a"]
  )
  assert value == pytest.approx(x.mean())
  assert error == pytest.approx(x.std(ddof=1) / math.sqrt(20))


def test_jackknife_of_one_batch_has_infinite_error():
  value, error = metrics.jackknife(
    [{"a": (3.0, 2.0)}], lambda terms: metrics.compute_ratios(terms)["a"]
  )
  assert (value, error) == (1.5, math.inf)


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
  "steps, every", [(12, 1), (1_500, 10), (100_000, 1), (1_000_000, 100)]
)
def test_log_of_a_run_is_short_and_has_its_end(steps, every):
  start, header, *lines = print_run(steps, every, mfu=0.45).splitlines()
  assert start == "first steps ..."
  assert len(lines) <= 30 and len(lines) >= min(steps, 20) / 2
  assert max(map(len, [header, *lines])) <= 80
  assert f"step of {steps:,}" in header and lines[0].split()[0] == f"{every}"
  assert lines[-1].split()[0] == f"{steps:,}"
  for column in ("mlm", "detect", "soft", "sentence", "corrected", "rows/s"):
    assert header.index(column) + len(column) in {
      m.end() for m in re.finditer(r"\S+", lines[0])
    }


def test_columns_that_fit_are_shown():
  text = print_run(1, 1)
  assert "loss" not in text and "auc" in text
  out = io.StringIO()
  line = metrics.ProgressLine(Console(file=out, width=80), 9, first_step=0)
  line.write(make_record(1, mlm=float("nan"), mfu=0.451, eta_s=183_600.2))
  for part in ("loss", "1.500", "nan", "mfu", "45.1%", "51:00:00"):
    assert part in out.getvalue()
  assert "auc" not in out.getvalue()


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


def test_only_a_long_wait_for_the_host_is_shown():
  assert "waits for the host: 27%" in print_run(1, 1, host_wait=0.27)
  assert "host" not in print_run(1, 1, host_wait=0.15)
