"""Metrics equal independent computations; writers and progress lines."""

import importlib.util
import io
import math
import re

import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.runtime.errors import InputError
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
  return {"step": step, "split": "train", "total": 1.5, "eta_s": 3.0, **values}


def test_tensorboard_gets_the_numbers_of_a_record(tmp_path):
  pytest.importorskip("tensorboardX")
  writer = metrics.TensorBoardWriter(tmp_path, first_step=0)
  writer.write(make_record(1, mlm=2.5))
  writer.close()
  (events,) = (tmp_path / "tensorboard").iterdir()
  assert b"train/mlm" in events.read_bytes()
  assert b"train/split" not in events.read_bytes()


def test_missing_or_unknown_writer_is_refused(monkeypatch):
  metrics.check_writers([])
  with pytest.raises(InputError, match="Choose tensorboard"):
    metrics.check_writers(["wandb"])
  monkeypatch.setattr(importlib.util, "find_spec", {}.get)
  with pytest.raises(InputError, match="Run pip install tensorboardX"):
    metrics.check_writers(["tensorboard"])


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_line_shows_step_loss_and_remaining_time(terminal):
  out = io.StringIO()
  console = Console(file=out, force_terminal=terminal, width=120)
  line = metrics.ProgressLine(console, 1_000, first_step=0)
  line.write(make_record(10, auc=0.75, eta_s=3_700.2))
  line.write({"step": 10, "split": "held_out", "mlm": 4.0})
  line.close()
  text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue())
  for part in ("10/1,000", "loss 1.500", "auc 0.750", "eta 1:01:40"):
    assert part in text
  assert re.search("held-out at step 10.{1,3}mlm 4.000", text)


def test_long_line_is_wrapped_between_fields():
  fields = ["step 1,234/1,000,000", *["loss 1.2345"] * 6, "eta 1 day, 3:01:40"]
  lines = metrics.wrap_fields(fields, 80).splitlines()
  assert len(lines) == 2 and max(map(len, lines)) <= 80
  assert [x.strip() for x in " ".join(lines).split("·")] == fields


def test_progress_line_hides_small_host_wait():
  def print_line(**values):
    out = io.StringIO()
    line = metrics.ProgressLine(Console(file=out, width=80), 9, first_step=0)
    line.write(make_record(1, **values))
    return out.getvalue()

  assert "host wait 7%" in print_line(host_wait=0.07)
  assert "host wait" not in print_line(host_wait=0.004)
  assert "mfu 45.1%" in print_line(mfu=0.451) and "mfu" not in print_line()
  assert "mlm nan" in print_line(mlm=float("nan"))
