"""Readers of a run skip its damaged steps, say so, and rename nothing."""

import random

import jax
import numpy as np
import pytest

from support import saved_steps, tiny, weight_files
from truenegs_jax.configs import bert_base
from truenegs_jax.runtime.errors import DamagedStepError
from truenegs_jax.weights import load, match
from truenegs_jax.weights.find import Weights
from truenegs_jax.workdir.saved_model import build_model

pytestmark = saved_steps.IGNORE_UNFINISHED_READS
collect = saved_steps.collect


@pytest.fixture
def run(tmp_path):
  """Returns (workdir, model, parameters of step 10); step 20 is damaged."""
  c = bert_base.get_config("runlocal")
  model = build_model(c, vocab_size=tiny.V)
  params = jax.device_get(tiny.random_params(model))
  newer = jax.tree.map(lambda x: x + 1, params)
  workdir = tmp_path / "run"
  weight_files.write_run(workdir, c, {10: params, 20: newer})
  path = workdir / "checkpoints" / "20" / "state" / "_METADATA"
  saved_steps.truncate(path, random.Random(0))
  names = sorted(path.name for path in workdir.rglob("*"))
  yield workdir, model, params
  assert sorted(path.name for path in workdir.rglob("*")) == names


def test_a_reader_takes_the_step_before(run):
  workdir, model, expected = run
  lines = []
  networks = Weights(str(workdir), lines.append).for_roles(model.roles)
  matched = match.match_weights(networks, model, weight_files.TOKENIZER)
  params = load.load_params(matched, report=print)
  jax.tree.map(np.testing.assert_array_equal, params, expected)
  [line] = lines
  assert "20' cannot be restored" in line


def test_a_damaged_step_that_is_named_is_refused(run):
  workdir, model, _ = run
  with pytest.raises(DamagedStepError, match="20' cannot be restored"):
    weight_files.load_params(workdir / "checkpoints" / "20", model)
