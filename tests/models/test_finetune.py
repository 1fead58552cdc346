"""Heads of tasks: their outputs and dropout; tests/weights has references."""

import functools

import jax
import jax.numpy as jnp
import pytest

from support import tiny
from truenegs_jax.models import pretrain
from truenegs_jax.runtime import rng as rng_lib

ROLES = {"dense": "discriminator", "pooler": "bert", "spans": "discriminator"}


@pytest.mark.parametrize("backbone", ["encoder", "modern"])
@pytest.mark.parametrize("head", ROLES)
def test_dropout_sites_of_heads_follow_those_of_the_layers(
  head, backbone, monkeypatch
):
  model = tiny.make_downstream(
    ROLES[head], head, backbone=backbone, layers=2, head_dropout=0.3
  )
  sites, rates = [], []

  def dropout(x, keys_B, *, rate, site):
    if keys_B is not None:
      sites.append(site)
      rates.append(rate)
    return x

  monkeypatch.setattr(rng_lib, "dropout", dropout)
  jax.eval_shape(
    functools.partial(model.apply, method="logits"),
    {"params": pretrain.param_shapes(model)},
    tiny.make_batch(0),
    rng_lib.row_keys(jax.random.key(0), 0, jnp.arange(tiny.B)),
  )
  num_in_head = {"spans": 0, "dense": 2}.get(head, 1)
  if backbone == "modern":
    num_in_head = 1
  assert sorted(sites) == list(range(1 + 2 * 3 + num_in_head))
  assert rates == [0.1] * 7 + [0.3] * num_in_head
