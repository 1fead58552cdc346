"""What "init" stands for: sizes and vocabulary of the weights of a run."""

import dataclasses
import json

import pytest

from support import tiny
from support.weight_files import TOKENIZER, random_params
from truenegs_jax.configs import common
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import checks
from truenegs_jax.weights.formats import find, hf_folder
from truenegs_jax.weights.init import config_sizes
from truenegs_jax.workdir.from_config import build_model, build_tokenizer

# No size is another, nor the default, nor what would follow from another.
BODY = "embedding_size=12 width=20 layers=3 heads=5 ffn=28 type_vocab_size=3"
OWN = "embedding_size=12 width=14 layers=1 heads=7 ffn=18 type_vocab_size=3"
POSITIONS = 48


def write(folder, model, roles=None):
  """A folder for each role, as an export has them."""
  params = random_params(model)
  for role in roles or model.roles:
    (folder / role).mkdir(parents=True)
    hf_folder.write_model(folder / role, params, model, role, TOKENIZER)
  return str(folder)


def pair():
  return pretrain.make_pair(
    vocab_size=tiny.V,
    variant=BODY,
    generator_multiplier=1,
    generator_variant=OWN,
    max_positions=POSITIONS,
  )


def bert():
  return pretrain.make_bert(
    vocab_size=tiny.V, variant=BODY, max_positions=POSITIONS
  )


def asking(init, *, objective="electra", **changed):
  c = common.get_config()
  c.init, c.objective, c.length = init, objective, 32
  c.model.variant = c.data.vocab = "init"
  c.update_from_flattened_dict(changed)
  return c.lock()


def resolve(c, saved=None):
  return config_sizes.resolve(c, find.Weights(c.init), saved=saved)


@pytest.mark.parametrize("objective", ["electra", "mlm"])
def test_the_model_is_the_one_that_was_written(tmp_path, objective):
  model = pair() if objective == "electra" else bert()
  before = asking(write(tmp_path, model), objective=objective)
  text = before.to_json()
  c = resolve(before)
  assert before.to_json() == text and c.is_locked
  assert c.model.max_positions == 512  # is the user's
  c.model.max_positions = POSITIONS
  checks.check_config(c)
  checks.check_required_files(c, find.Weights(c.init), saved=False)
  assert build_model(c, vocab_size=tiny.V) == model
  vocabulary = build_tokenizer(c, c.data.vocab)
  assert vocabulary.fingerprint == TOKENIZER.fingerprint


def test_what_is_not_init_is_left_to_the_user(tmp_path):
  write(tmp_path, pair())
  c = asking(str(tmp_path), **{"data.vocab": "mine"})
  found = resolve(c)
  assert found.data.vocab == "mine" and found.model.variant == BODY
  assert found.generator.variant == OWN
  for variant in ("tiny", OWN.replace("width=14", "width=7")):
    c = asking(str(tmp_path), **{"generator.variant": variant})
    assert resolve(c).generator.variant == variant
  c = asking(str(tmp_path), **{"model.variant": "small"})
  found = resolve(c)
  assert found.model == c.model and found.generator == c.generator
  assert found.data.vocab == str(tmp_path / "discriminator" / "vocab.txt")


def test_a_generator_that_is_not_there_is_left_to_the_multiplier(tmp_path):
  c = asking(write(tmp_path, pair(), roles=["discriminator"]))
  found = resolve(c)
  assert (found.model.variant, found.generator.variant) == (BODY, "")


def test_a_run_that_goes_on_has_what_it_had(tmp_path):
  write(tmp_path / "weights", pair())
  c = asking(str(tmp_path / "weights"))
  first = resolve(c)
  saved = json.loads(first.to_json())
  (tmp_path / "weights").rename(tmp_path / "gone")
  assert resolve(c, saved) == first
  c = asking("", **{"data.vocab": "mine", "generator.variant": "tiny"})
  found = resolve(c, saved)  # what differs is for the checkpoint to refuse
  assert (found.data.vocab, found.generator.variant) == ("mine", "tiny")
  assert found.model == first.model


@pytest.mark.parametrize("init", ["", "?"])
@pytest.mark.parametrize("name", ["model.variant", "data.vocab"])
def test_weights_have_to_be_given(init, name):
  c = common.get_config()
  c.init = init
  c.update_from_flattened_dict({name: "init"})
  with pytest.raises(InputError, match=f"^init: .*{name}=init.*--config.init="):
    resolve(c)


def test_a_vocabulary_has_to_lie_there_if_it_is_wanted(tmp_path):
  c = asking(write(tmp_path, bert()), objective="mlm")
  (tmp_path / "bert" / "vocab.txt").unlink()
  with pytest.raises(InputError, match="^init: .*no vocabulary.*data.vocab="):
    resolve(c)
  c = asking(str(tmp_path), objective="mlm", **{"data.vocab": "train"})
  assert resolve(c).data.vocab == "train"


@pytest.mark.parametrize("size", ["20", 2.5, 0, None, [20]])
@pytest.mark.parametrize("name", ["hidden_size", "intermediate_size"])
def test_a_field_that_is_no_size_is_named(tmp_path, name, size):
  c = asking(write(tmp_path, bert()), objective="mlm")
  network = find.Weights(c.init).networks["bert"]
  fields = {**network.fields, name: size}
  with pytest.raises(InputError, match=f"^init: .*{name} .*no size"):
    config_sizes.read_variant(
      dataclasses.replace(network, fields=fields), report=print
    )
