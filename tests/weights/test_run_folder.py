"""Loading weights from the workdir of another run."""

import pytest
from tests.support.tokenizer_files import write_vocabulary

from support import tiny
from support.weight_files import (
  TOKENIZER,
  assert_same_tree,
  load_params,
  random_params,
  write_run,
)
from truenegs_jax.configs import electra_demo
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.weights import find
from truenegs_jax.workdir import files
from truenegs_jax.workdir.saved_model import build_model

STEPS = (10, 20)


def _config(backbone):
  c = electra_demo.get_config("runlocal")
  c.model.backbone = backbone
  c.generator.multiplier = 1.0
  return c


@pytest.fixture(scope="module", params=["encoder", "modern"])
def run(request, tmp_path_factory):
  """Returns (workdir, model, {step: params}) of a run with two saved steps."""
  folder, c = tmp_path_factory.mktemp("run"), _config(request.param)
  model = build_model(c, vocab_size=tiny.V)
  params = {step: random_params(model, step) for step in STEPS}
  return write_run(folder, c, params), model, params


def test_loads_the_newest_step_or_the_given_one(run):
  folder, model, params = run
  before = sorted(folder.rglob("*"))
  for path, step in (folder, 20), (folder / "checkpoints" / "10", 10):
    assert_same_tree(load_params(path, model)[0], params[step])
  assert sorted(folder.rglob("*")) == before
  with pytest.raises(
    CheckpointError, match="no checkpoint of step 15.*: 10, 20"
  ):
    load_params(folder / "checkpoints" / "15", model)


def test_parse_run_path_recognizes_runs_and_their_steps(run, tmp_path):
  folder, *_ = run
  assert files.parse_run_path(folder) == (folder, None)
  assert files.parse_run_path(folder / "checkpoints" / "7") == (folder, 7)
  # A workdir whose path looks like a step.
  workdir = tmp_path / "checkpoints" / "2024"
  (workdir / "checkpoints").mkdir(parents=True)
  assert files.parse_run_path(workdir) == (workdir, None)
  for other in (tmp_path / "checkpoints" / "9", tmp_path / "nothing"):
    assert files.parse_run_path(other) is None


def test_mismatched_backbone_is_refused(run):
  folder, model, _ = run
  other = "modern" if model.backbone == "encoder" else "encoder"
  with pytest.raises(InputError, match=f"model.backbone='{other}'"):
    load_params(folder, build_model(_config(other), vocab_size=tiny.V))


def test_workdir_without_checkpoint_is_refused(tmp_path):
  (tmp_path / "checkpoints").mkdir()
  write_vocabulary(TOKENIZER.vocab, tmp_path / "vocab.txt")
  with pytest.raises(CheckpointError, match="has no checkpoint yet"):
    find.Weights(str(tmp_path)).encoder()
