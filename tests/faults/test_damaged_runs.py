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


def test_readers_take_the_step_before_and_rename_nothing(tmp_path):
  c = bert_base.get_config("runlocal")
  model = build_model(c, vocab_size=tiny.V)
  expected = jax.device_get(tiny.random_params(model))
  params = {10: expected, 20: jax.tree.map(lambda x: x + 1, expected)}
  workdir = weight_files.write_run(tmp_path / "run", c, params)
  damaged = workdir / "checkpoints" / "20"
  saved_steps.truncate(damaged / "state" / "_METADATA", random.Random(0))
  names = sorted(path.name for path in workdir.rglob("*"))
  lines = []
  networks = Weights(str(workdir), lines.append).for_roles(model.roles)
  matched = match.match_weights(networks, model, weight_files.TOKENIZER)
  read = load.load_params(matched, report=print)
  jax.tree.map(np.testing.assert_array_equal, read, expected)
  [line] = lines
  assert "20' cannot be restored" in line
  with pytest.raises(DamagedStepError, match="20' cannot be restored"):
    weight_files.load_params(damaged, model)  # it is named
  assert sorted(path.name for path in workdir.rglob("*")) == names
