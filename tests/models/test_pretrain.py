"""Sizes and logits of the models of pre-training."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError

# Compiles in half the time.
quick_jit = functools.partial(
  jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


@functools.cache
def tiny_params():
  init_params = quick_jit(pretrain.init_params, static_argnums=0)
  return init_params(tiny.make_model(layers=1), jax.random.key(0))


def test_logits_are_of_the_given_positions():
  model, inputs = tiny.make_model(layers=1), tiny.make_batch(0)
  bound = model.bind({"params": tiny.random_params(model)})
  positions = np.random.default_rng(0).integers(0, tiny.L, (tiny.B, 5))
  all_positions = np.tile(np.arange(tiny.L), (tiny.B, 1))
  compute = jax.jit(lambda x: bound.generate_logits(inputs, x, None))
  all_logits = compute(all_positions)
  expected = np.take_along_axis(all_logits, positions[..., None], axis=1)
  np.testing.assert_allclose(compute(positions), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sharing", ["disentangled", "none"])
def test_a_network_reads_its_own_embeddings(sharing):
  model = tiny.make_model(layers=1, sharing=sharing)
  params, batch = tiny.random_params(model), tiny.make_batch(0)
  shared = model.clone(sharing="full")
  positions = jnp.ones((tiny.B, 2), jnp.int32)

  def compute(model, role, params):
    bound = model.bind({"params": params})
    if role == "discriminator":
      return bound.detect_logits(batch, None)
    return bound.generate_logits(batch, positions, None)

  for role in model.roles:
    own = pretrain.own_embeddings(params, role)
    logits = compute(model, role, params)
    np.testing.assert_array_equal(logits, compute(shared, role, own))
  expected = params[pretrain.OWN[sharing]]["embeddings"]["word"]
  if sharing == "disentangled":
    expected += params["embeddings"]["word"]
  own = pretrain.own_embeddings(params, "discriminator")
  np.testing.assert_array_equal(own["embeddings"]["word"], expected)


def test_disentangled_networks_start_as_those_that_share():
  model = tiny.make_model(layers=1, sharing="disentangled")
  params = quick_jit(pretrain.init_params, static_argnums=0)(
    model, jax.random.key(0)
  )
  for role in model.roles:
    own = pretrain.own_embeddings(params, role)
    jax.tree.map(np.testing.assert_array_equal, own, tiny_params())


def test_a_generator_without_projection_has_half_the_layers():
  model = tiny.make_model(backbone="modern", layers=8)
  kept, generator = model.roles.values()
  assert generator == dataclasses.replace(kept, layers=4)
  with pytest.raises(InputError, match=r"generator: width=.*multiplier=1,"):
    pretrain.make_electra(
      vocab_size=9, variant="demo", backbone="modern", generator_multiplier=0.25
    )


SIZES = dict(embedding_size=8, width=12, layers=1, heads=3, ffn=7)
make_pair = functools.partial(
  pretrain.make_electra, vocab_size=9, generator_multiplier=0.5
)


def test_sizes_of_a_generator_follow_from_those_that_are_set():
  def sizes(*given):
    c = make_pair(variant="base", generator_sizes=given).generator_config
    return c.width, c.layers, c.heads, c.ffn

  assert sizes(0, 0, 0, 0) == (384, 12, 6, 1_536)
  assert sizes(128, 0, 0, 0) == (128, 12, 2, 512)
  assert sizes(0, 3, 3, 10) == (384, 3, 3, 10)


@pytest.mark.parametrize(
  ("changes", "match"),
  [
    ({"variant": "smal"}, "^model.variant='smal'.* small, .* or init"),
    ({"heads": 5}, "^model: 5 heads do not divide a width of 12"),
    ({"generator_sizes": (0, 0, 5, 0)}, "^generator: 5 heads.* width of 6"),
    ({"generator_sizes": (0, 5)}, "^generator.sizes=.*Give four numbers"),
  ],
)
def test_sizes_that_do_not_fit_are_an_error(changes, match):
  with pytest.raises(InputError, match=match):
    make_pair(**{"variant": "small", **SIZES, **changes})


@pytest.mark.parametrize("name", ["resnet", "layers", "", "../encoder", "a\0b"])
def test_an_unknown_backbone_is_an_error(name):
  with pytest.raises(InputError, match="is not a backbone"):
    pretrain.make_bert(vocab_size=9, variant="tiny", backbone=name)
