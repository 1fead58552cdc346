"""Readers of a run skip its damaged steps, say so, and rename nothing."""

import random

import jax
import numpy as np
import pytest

from support import saved_steps, tiny, weight_files
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.config.tables import Corrections
from truenegs_jax.configs import bert_base
from truenegs_jax.configs import corrections as corrections_config
from truenegs_jax.corrections import run as corrections
from truenegs_jax.runtime.errors import DamagedStepError
from truenegs_jax.weights import load, match
from truenegs_jax.weights.find import Weights
from truenegs_jax.workdir import saved_model
from truenegs_jax.workdir.saved_model import build_model

pytestmark = saved_steps.IGNORE_UNFINISHED_READS
collect = saved_steps.collect


@pytest.fixture(params=["state/_METADATA", "run/metadata"])
def run(request, tmp_path):
  """Returns (workdir, model, parameters of step 10); step 20 is damaged."""
  c = bert_base.get_config("runlocal")
  model = build_model(c, vocab_size=tiny.V)
  params = jax.device_get(tiny.random_params(model))
  newer = jax.tree.map(lambda x: x + 1, params)
  workdir = tmp_path / "run"
  weight_files.write_run(workdir, c, {10: params, 20: newer})
  saved_steps.truncate(
    workdir / "checkpoints" / "20" / request.param, random.Random(0)
  )
  names = sorted(path.name for path in workdir.rglob("*"))
  yield workdir, model, params
  assert sorted(path.name for path in workdir.rglob("*")) == names


def read_as_export(workdir, model, lines):
  with saved_model.open_run(workdir) as checkpoints:
    saved, params = saved_model.load(checkpoints, None, report=lines.append)
  assert saved.step == 10
  return params


def read_as_init(workdir, model, lines):
  weights = Weights(str(workdir), lines.append)
  networks = weights.for_roles(model.roles)
  matched = match.match_weights(networks, model, weight_files.TOKENIZER)
  return load.load_params(matched, report=print)


def open_measured(workdir, steps, lines):
  c = corrections_config.get_config()
  c.corrections.run, c.corrections.steps = str(workdir), steps
  m = corrections.Measurement(
    Corrections.read(c.corrections),
    PretrainConfig.read(c),
    Weights("", lines.append),
    sources=(),
  )
  return corrections.open_model(m)


def read_as_table_2(workdir, model, lines):
  with open_measured(workdir, "kept", lines) as (_, steps):
    [(step, params)] = steps
    assert step == 10
    return params


READERS = (read_as_export, read_as_init, read_as_table_2)


@pytest.mark.parametrize("read", READERS)
def test_a_reader_takes_the_step_before(run, read):
  workdir, model, expected = run
  lines = []
  params = read(workdir, model, lines)
  jax.tree.map(np.testing.assert_array_equal, params, expected)
  line = lines[0]
  assert "20' cannot be restored" in line
  assert len(lines) == 1 or read is read_as_table_2


def test_a_damaged_step_that_is_named_is_refused(run):
  workdir, model, _ = run
  with pytest.raises(DamagedStepError, match="20' cannot be restored"):
    weight_files.load_params(workdir / "checkpoints" / "20", model)
  with (
    open_measured(workdir, "10,20", []) as (_, steps),
    pytest.raises(DamagedStepError),
  ):
    list(steps)
