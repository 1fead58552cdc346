"""Records of pre-training."""

import io
import types

import jax
import pytest
from rich.console import Console
from tests.support.small_rows import TOKENIZER

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.pretrain import loop
from truenegs_jax.train import sharding, speed
from truenegs_jax.train.start import Run

RUN = Run(PretrainConfig(objective="mlm", batch_size=8), TOKENIZER)
INPUTS = types.SimpleNamespace(train_rows=None, verification=None)


def test_record_has_rates_and_memory(monkeypatch):
  monkeypatch.setattr(loop.plan, "row_flops", lambda run: 10.0)
  mesh = sharding.make_mesh(RUN.mesh_spec)
  setup = types.SimpleNamespace(run=RUN, mesh=mesh, inputs=INPUTS)
  records = []
  training = loop.Training(setup, records.append, None, speed.Clock(6), None)
  training.log({"step": 2, "row_tokens": 3.0})
  [record] = records
  assert record["tokens_per_s"] == pytest.approx(3 * record["rows_per_s"])
  per_device = 10.0 * record["rows_per_s"] / jax.device_count()
  assert record["flop_per_s"] == pytest.approx(per_device)
  assert record["memory_peak_gib"] > 0.01
  assert "mfu" not in record  # CPUs have no published peak


def test_a_held_out_loss_that_is_not_finite_is_warned_of_once(monkeypatch):
  monkeypatch.setattr(loop.plan, "row_flops", lambda run: 10.0)
  monkeypatch.setattr(loop.Training, "compute_held_out", lambda *_: None)
  mesh = sharding.make_mesh(RUN.mesh_spec)
  setup = types.SimpleNamespace(run=RUN, mesh=mesh, inputs=INPUTS)
  screen, records = io.StringIO(), []
  training = loop.Training(
    setup, records.append, None, speed.Clock(6), Console(file=screen)
  )
  for done, loss in enumerate((2.0, float("nan"), 2.0, float("inf"))):
    training.held_out = [{"mlm": (loss, 1.0)}]
    training.evaluate(done, None)
  assert len(records) == 4
  warning = " ".join(screen.getvalue().split())
  assert warning.startswith("warning: The held-out loss after step 1 is not")
  assert warning.count("warning") == 1


@pytest.mark.parametrize("others", [False, True])
def test_a_checkpoint_is_verified_if_it_is_in_all_processes(
  monkeypatch, others
):
  monkeypatch.setattr(loop.plan, "row_flops", lambda run: 10.0)
  names = []

  def exchange(name, text):
    names.append(name)
    return {0: text, 1: "yes" * (others and "is_true" in name)}

  monkeypatch.setattr(loop.distributed, "_exchange", exchange)
  mesh = sharding.make_mesh(RUN.mesh_spec)
  verification = types.SimpleNamespace(is_complete=False)
  setup = types.SimpleNamespace(
    run=RUN,
    mesh=mesh,
    description={},
    inputs=types.SimpleNamespace(train_rows=None, verification=verification),
  )
  clock = types.SimpleNamespace(running=None, to_json=dict)
  training = loop.Training(setup, None, None, clock, None)
  for is_complete in (False, True):
    verification.is_complete = is_complete
    _, description = training.content(types.SimpleNamespace())
    assert description[loop.ROWS_VERIFIED] == (is_complete and others)
  assert len(set(names)) == 2
