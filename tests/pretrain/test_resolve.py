"""Replacing "init" in a config by sizes and vocabulary of the weights."""

import dataclasses
import functools

import pytest

from support import tiny
from support.weight_files import TOKENIZER, write_export
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.models import pretrain
from truenegs_jax.pretrain import plan
from truenegs_jax.pretrain import resolve as resolve_lib
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights import find

# All sizes differ from each other, from the defaults, and from derived values.
SIZES = {
  **{"embedding_size": 12, "width": 20, "layers": 3, "heads": 5, "ffn": 28},
  **{"type_vocab_size": 3, "max_positions": 48},
}
GENERATOR_SIZES = (14, 1, 7, 18)  # width, layers, heads, ffn


def pair():
  return pretrain.make_electra(
    vocab_size=tiny.V,
    variant="init",
    generator_multiplier=1,
    generator_sizes=GENERATOR_SIZES,
    **SIZES,
  )


def bert():
  return pretrain.make_bert(
    vocab_size=tiny.V, variant="init", pooler=True, **SIZES
  )


def make_config(init, *, objective="electra", **changed):
  config = PretrainConfig(init=str(init), objective=objective, length=32)
  init_values = dict.fromkeys(("model.variant", "data.vocab"), "init")
  return config.replace(init_values | changed)


def make_run(c):
  weights = find.Weights(c.init)
  config = resolve_lib.resolve_config(c, weights, saved=None)
  return plan.make_run(config, plan.find_tokenizer(config.data), weights)


def resolve(c, saved=None):
  return resolve_lib.replace_init(c, find.Weights(c.init), saved=saved)


@pytest.mark.parametrize("objective", ["electra", "mlm"])
def test_config_describes_the_model_of_the_weights(tmp_path, objective):
  model = pair() if objective == "electra" else bert()
  c = make_config(write_export(tmp_path, model), objective=objective)
  run = make_run(c.replace({"negatives.hard_correction": False}))
  assert run.model == model
  assert run.tokenizer.fingerprint == TOKENIZER.fingerprint
  assert run.matched.tokenizer is run.tokenizer and not run.matched.missing


def test_a_resumed_run_keeps_the_precision_that_it_began_with(monkeypatch):
  c = make_config("", **{"model.variant": "tiny", "data.vocab": "train"})
  c = c.replace({"model.dtype": "auto"})
  monkeypatch.setattr(resolve_lib.cpu, "choose_dtype", lambda: "bfloat16")
  begun = resolve(c)
  assert begun.model.dtype == "bfloat16"
  monkeypatch.setattr(resolve_lib.cpu, "choose_dtype", lambda: "float32")
  assert resolve(c, dataclasses.asdict(begun)).model.dtype == "bfloat16"
  other = c.replace({"model.dtype": "float32"})  # refused later, as changed
  assert resolve(other, dataclasses.asdict(begun)).model.dtype == "float32"


def test_other_values_are_not_changed(tmp_path):
  write_export(tmp_path, pair())
  c = make_config(tmp_path, **{"data.vocab": "mine"})
  resolved = resolve(c)
  assert resolved.data.vocab == "mine"
  assert {name: getattr(resolved.model, name) for name in SIZES} == SIZES
  assert resolved.generator.sizes == GENERATOR_SIZES
  c = make_config(tmp_path, **{"model.variant": "small"})
  resolved = resolve(c)
  c = c.replace({"model.type_vocab_size": 3, "model.max_positions": 48})
  assert resolved.model == c.model and resolved.generator == c.generator
  assert resolved.data.vocab == str(tmp_path / "discriminator" / "vocab.txt")


def test_resumed_run_uses_its_saved_values(tmp_path):
  write_export(tmp_path / "weights", pair())
  c = make_config(tmp_path / "weights")
  first = resolve(c)
  saved = first.to_json()
  (tmp_path / "weights").rename(tmp_path / "gone")
  assert resolve(c, saved) == first
  c = make_config("", **{"data.vocab": "mine", "generator.multiplier": 0.5})
  resolved = resolve(c, saved)  # the checkpoint refuses differences later
  assert resolved.data.vocab == "mine"
  assert resolved.generator.multiplier == 0.5
  assert resolved.model == first.model


def test_rotary_positions_are_those_of_the_weights_unless_set(tmp_path):
  sizes = dict(layers=5, max_positions=8192, window=9, global_every=4)
  fields = dict(vocab_size=tiny.V, variant="tiny", backbone="modern", **sizes)
  model = pretrain.make_bert(**fields, global_rope_theta=99)
  weights = write_export(tmp_path / "weights", model)
  own = {"model.backbone": "modern", "negatives.hard_correction": False}
  c = make_config(weights, objective="mlm", **own)
  assert make_run(c).model == model
  c = c.replace({"model.local_rope_theta": 7.0})
  first = resolve(c)
  thetas = first.model.global_rope_theta, first.model.local_rope_theta
  assert thetas == (99.0, 7.0)
  weights.rename(tmp_path / "gone")
  assert resolve(c, first.to_json()) == first


@pytest.mark.parametrize("init", ["", "?"])
@pytest.mark.parametrize("name", ["model.variant", "data.vocab"])
def test_init_is_required(init, name):
  c = PretrainConfig(init=init).replace({name: "init"})
  with pytest.raises(
    InputError, match="^init: .*data.vocab=init.*--config.init="
  ):
    resolve(c)


@pytest.mark.parametrize(
  ("values", "advice"),
  [
    ({"steps": 9, "optim.warmup_steps": 9}, "optim.warmup_steps=0"),
    (
      {"steps": 50, "optim.schedule": "wsd", "optim.decay_steps": 99},
      "optim.decay_steps=10",
    ),
    (
      {"negatives.sources": "model every=10", "negatives.smoothing": 0.3}
      | {"negatives.smoothing_by": "teacher"},
      "negatives.smoothing_by=model",
    ),
    (
      {"negatives.sources": "model every=10", "negatives.smoothing": 0.3}
      | {"negatives.smoothing_by": "balanced"},
      "negatives.smoothing_by=model",
    ),
    (
      {"negatives.sources": "model every=10", "negatives.smoothing": 1.0}
      | {"negatives.smoothing_by": "balanced"},
      "negatives.smoothing_by=set",
    ),
    (
      {"negatives.smoothing": 1.0, "negatives.smoothing_by": "teacher"},
      "negatives.smoothing_by=set",
    ),
  ],
)
def test_what_a_message_advises_is_accepted(values, advice):
  config = PretrainConfig().replace({"optim.warmup_steps": 5} | values)
  with pytest.raises(InputError, match=f"Set --config.{advice}"):
    resolve_lib.check(config)
  name, _, value = advice.partition("=")
  resolve_lib.check(
    config.replace({name: int(value) if value.isdigit() else value})
  )


def test_a_branch_needs_synonyms_and_a_resumed_run_has_them(tmp_path):
  sources = f"pairs path={tmp_path / 'lost.tsv'}"
  config = PretrainConfig().replace({"negatives.sources": sources})
  resolve = functools.partial(
    resolve_lib.resolve_config, config, find.Weights(""), saved=config.to_json()
  )
  resolve(has_table=True)
  with pytest.raises(InputError, match="lost.tsv"):
    resolve()
