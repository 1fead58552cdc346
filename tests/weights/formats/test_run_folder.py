"""A run of ours as the place that another one starts from."""

import jax
import pytest

from support import tiny
from support.weight_files import TOKENIZER, assert_same, write_run
from truenegs_jax.configs import bert_base, electra_demo
from truenegs_jax.data.tokens.tokenizer import write_vocabulary
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.weights.formats import find
from truenegs_jax.weights.init import load
from truenegs_jax.workdir import files
from truenegs_jax.workdir.from_config import build_model

STEPS = (10, 20)


def _config(backbone):
  c = electra_demo.get_config("runlocal")
  c.model.backbone = backbone
  return c


@pytest.fixture(scope="module", params=["encoder", "rotary"])
def run(request, tmp_path_factory):
  """(workdir, model, {step: params}) of a run that saved two steps."""
  folder, c = tmp_path_factory.mktemp("run"), _config(request.param)
  model = build_model(c, vocab_size=tiny.V)
  init = jax.jit(lambda seed: pretrain.init_params(model, jax.random.key(seed)))
  params = {step: jax.device_get(init(step)) for step in STEPS}
  return write_run(folder, c, params), model, params


def _networks(init):
  return find.Weights(init).networks


def test_the_newest_step_is_taken_or_the_one_that_is_named(run):
  folder, model, params = run
  before = sorted(folder.rglob("*"))
  newest = load.load_params(
    find.Weights(str(folder)), model, tokenizer=TOKENIZER
  )
  assert_same(newest, params[20])
  named = load.load_params(
    find.Weights(str(folder / "checkpoints" / "10")), model, tokenizer=TOKENIZER
  )
  assert_same(named, params[10])
  assert sorted(folder.rglob("*")) == before
  with pytest.raises(
    CheckpointError, match="no checkpoint of step 15.*: 10, 20"
  ):
    _networks(str(folder / "checkpoints" / "15"))


def test_what_is_a_run_and_which_of_its_steps(run, tmp_path):
  folder, *_ = run
  assert files.parse_run_path(folder) == (folder, None)
  assert files.parse_run_path(folder / "checkpoints" / "7") == (folder, 7)
  inside = tmp_path / "checkpoints" / "2024"  # a workdir, of whatever name
  (inside / "checkpoints").mkdir(parents=True)
  assert files.parse_run_path(inside) == (inside, None)
  for other in (tmp_path / "checkpoints" / "9", tmp_path / "nothing"):
    assert files.parse_run_path(other) is None


def test_another_size_is_refused_with_both(run):
  folder, model, _ = run
  c = _config(model.backbone)
  c.generator.multiplier = 1.0
  other = build_model(c, vocab_size=tiny.V)
  with pytest.raises(InputError) as e:
    load.load_params(find.Weights(str(folder)), other, tokenizer=TOKENIZER)
  assert "hidden_size is 16, the model's 32" in str(e.value)
  assert (
    "generator/layer_0/query/kernel is (16, 16), the model's (32, 32)"
    in str(e.value)
  )
  bert = build_model(bert_base.get_config("runlocal"), vocab_size=tiny.V)
  with pytest.raises(InputError, match="this run trains 'bert'"):
    load.load_params(find.Weights(str(folder)), bert, tokenizer=TOKENIZER)


def test_another_backbone_is_refused(run):
  folder, model, _ = run
  other = "rotary" if model.backbone == "encoder" else "encoder"
  with pytest.raises(InputError, match=f"model.backbone is '{other}'"):
    load.load_params(
      find.Weights(str(folder)),
      build_model(_config(other), vocab_size=tiny.V),
      tokenizer=TOKENIZER,
    )


def test_a_workdir_without_a_saved_step_is_refused(tmp_path):
  (tmp_path / "checkpoints").mkdir()
  write_vocabulary(TOKENIZER.vocab, tmp_path / "vocab.txt")
  with pytest.raises(CheckpointError, match="has no checkpoint yet"):
    _networks(str(tmp_path))
