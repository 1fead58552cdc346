"""Predictions depend only on the line, and stay inside a document."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from support import tiny
from support.weight_files import TOKENIZER
from truenegs_jax.corrections import lines as lines_lib
from truenegs_jax.objectives.slot_predictions import Options
from truenegs_jax.pretrain import predict_slots
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.train import sharding

LENGTH = 32
MODEL = tiny.make_model(layers=1)
MASKING = dataclasses.replace(tiny.MASKING, style="80_10_10", mask_prob=0.25)


def make_predict(seed):
  """Returns the function, for one device, and its mesh."""
  spec = sharding.get_mesh_spec("dp")
  mesh = sharding.make_mesh(spec, jax.devices()[:1])
  run = types.SimpleNamespace(
    model=MODEL,
    options=Options(masking=MASKING, strict_subword=False),
    edges_V=None,
    mesh=mesh,
    mesh_spec=spec,
    config=types.SimpleNamespace(seed=seed),
  )
  return predict_slots.build_predict_step(run), mesh


@pytest.fixture(scope="module")
def params():
  return tiny.random_params(MODEL, np.random.default_rng(20), deviation=0.5)


def test_cut_lines_are_counted_and_a_limit_is_in_the_fingerprint(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text(" = w5 = \n\nw5 = w6\nw5 w6\nw5 w6 w7\n")

  def read(**options):
    return lines_lib.read_lines(str(path), TOKENIZER, length=4, **options)

  lines = read()
  assert lines.num_cut == 3
  assert read(limit=2).fingerprint != lines.fingerprint
  path.write_text("\u200b\n")
  with pytest.raises(DataError, match="has no tokens"):
    read()


def test_predictions_do_not_depend_on_batches(params):
  predict, mesh = make_predict(1)
  rng = np.random.default_rng(0)
  sequences = [
    np.array([2, *rng.integers(5, tiny.V, size), 3], np.int32)
    for size in [*rng.integers(1, 7, 8), *rng.integers(20, 30, 14), 30]
  ]
  advanced = []

  def predict_all(sequences):
    return lines_lib.predict_lines(
      predict,
      params,
      sequences,
      length=LENGTH,
      batch_size=8,
      mesh=mesh,
      advance=advanced.append,
    )

  # A batch of short lines only is narrower.
  every = predict_all(sequences)
  some = predict_all([*sequences[:4], sequences[-1]])
  assert advanced == [8, 8, 7, 5]
  for name in ("sequence_M", "position_M", "gold_M", "predicted_M"):
    by_every, by_some = (
      getattr(p, name)[p.sequence_M < 4] for p in (every, some)
    )
    np.testing.assert_array_equal(by_every, by_some)
    assert len(by_some) >= 4
  assert set(every.sequence_M) == set(range(23))
  slots = list(zip(every.sequence_M, every.position_M, strict=True))
  assert slots == sorted(slots)
  assert len(set(slots)) == len(slots)
  assert np.bincount(every.sequence_M)[-1] == 8  # of 32 tokens, at 25 %


def test_cases_of_packed_rows_stay_inside_a_document(params):
  predict, mesh = make_predict(0)
  batch = tiny.make_batch(0, length=24)
  full = (batch["documents"] > 0).all(axis=1)
  batch["documents"][full, 12:] = 2  # a second document from position 12 on
  batch["tokens"][full, 11:13] = tiny.SEP, tiny.CLS
  p = predict_slots.predict_batch(predict, params, mesh, batch)
  assert len(p.gold_M) > 20  # `Predictions` checks the gold tokens
  assert {row[0] for row in p.sequences} == {tiny.CLS}
  assert len(p.sequences) > tiny.B - 2
