"""Sizes and logits of the models of pre-training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError


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
  init, key = jax.jit(pretrain.init_params, static_argnums=0), jax.random.key(0)
  shared = init(tiny.make_model(layers=1), key)
  model = tiny.make_model(layers=1, sharing="disentangled")
  params = init(model, key)
  for role in model.roles:
    own = pretrain.own_embeddings(params, role)
    jax.tree.map(np.testing.assert_array_equal, own, shared)


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


@pytest.mark.parametrize("name", ["layers", "../encoder", "a\0b"])
def test_an_unknown_backbone_is_an_error(name):
  with pytest.raises(InputError, match="is not a backbone"):
    pretrain.make_bert(vocab_size=9, variant="tiny", backbone=name)
