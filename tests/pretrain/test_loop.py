"""Records of pre-training."""

import types

import jax
import pytest

from truenegs_jax.models import encoder
from truenegs_jax.pretrain import loop
from truenegs_jax.train import sharding, speed


def test_record_has_rates_and_memory(monkeypatch):
  monkeypatch.setattr(loop.plan, "row_flops", lambda run: 10.0)
  model = types.SimpleNamespace(roles={"bert": encoder.EncoderConfig})
  setup = types.SimpleNamespace(
    run=types.SimpleNamespace(batch_size=8, model=model),
    mesh=sharding.make_mesh(sharding.get_mesh_spec("dp")),
  )
  records = []
  callbacks = loop._Callbacks(
    setup, None, records.append, None, speed.Clock(6), None
  )
  callbacks.log({"step": 2, "row_tokens": 3.0})
  [record] = records
  assert record["tokens_per_s"] == pytest.approx(3 * record["rows_per_s"])
  per_device = 10.0 * record["rows_per_s"] / jax.device_count()
  assert record["flop_per_s"] == pytest.approx(per_device)
  assert record["memory_peak_gib"] > 0.01
  assert "mfu" not in record  # CPUs have no published peak
