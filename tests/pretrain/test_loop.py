"""Records of pre-training."""

import io
import types

import jax
import pytest
from rich.console import Console
from tests.support.small_rows import TOKENIZER

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.pretrain import plan
from truenegs_jax.pretrain import run as run_lib
from truenegs_jax.train import speed


@pytest.fixture
def started(monkeypatch):
  monkeypatch.setattr(run_lib.describe, "row_flops", lambda run: 10.0)
  config = PretrainConfig(objective="mlm", batch_size=8)
  return types.SimpleNamespace(
    run=plan.make_run(config, TOKENIZER),
    inputs=types.SimpleNamespace(train_rows=None),
    state=types.SimpleNamespace(step=0),
    description={},
  )


def make_training(started, write, clock=None, console=None):
  clock = clock or speed.Clock(6)
  return run_lib.Training(started, None, write, None, clock, console)


def test_record_has_rates_and_memory(started):
  records = []
  make_training(started, records.append).log({"step": 2, "row_tokens": 3.0})
  [record] = records
  assert record["tokens_per_s"] == pytest.approx(3 * record["rows_per_s"])
  per_device = 10.0 * record["rows_per_s"] / jax.device_count()
  assert record["flop_per_s"] == pytest.approx(per_device)
  assert record["memory_peak_gib"] > 0.01
  assert "mfu" not in record  # CPUs have no published peak


def test_a_held_out_loss_that_is_not_finite_is_warned_of_once(
  started, monkeypatch
):
  monkeypatch.setattr(run_lib.Training, "compute_held_out", lambda *_: None)
  screen = io.StringIO()
  records = []
  training = make_training(
    started, records.append, console=Console(file=screen)
  )
  for done, loss in enumerate((2.0, float("nan"), 2.0, float("inf"))):
    training.held_out = [{"mlm": (loss, 1.0)}]
    training.evaluate(done, None)
  assert len(records) == 4
  warning = " ".join(screen.getvalue().split())
  assert warning.startswith("warning: The held-out loss after step 1 is not")
  assert warning.count("warning") == 1
