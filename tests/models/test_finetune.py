"""Heads of tasks: their outputs, gradients and dropout; equal to references."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.objectives import task_losses
from truenegs_jax.runtime import rng as rng_lib
from truenegs_jax.train import step

B, L, C = 8, 12, 3
ROLES = {  # the network that a head is mostly tested with
  "dense": "discriminator",
  "pooler": "bert",
  "spans": "discriminator",
}
PAIRS = [*ROLES.items(), ("spans", "bert")]
TERMS = {
  kind: functools.partial(task_losses.task_terms, kind=kind)
  for kind in task_losses.LOSSES
}
KEYS = functools.partial(rng_lib.row_keys, jax.random.key(0), 0)


def make_model(head, role=None, **overrides):
  """Builds a model, by default without layers, which compiles faster."""
  return finetune.make_downstream(
    role=role or ROLES[head],
    head=head,
    vocab_size=tiny.V,
    variant="tiny",
    **{"num_outputs": C, "layers": 0, **overrides},
  )


@functools.cache
def draw_params(head, **overrides):
  """Draws parameters so large that a softmax is far from uniform."""
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda x: rng.normal(scale=0.2, size=x.shape).astype(np.float32),
    pretrain.param_shapes(make_model(head, **overrides)),
  )


def make_inputs():
  """Builds rows of two texts with targets of all kinds."""
  rng = np.random.default_rng(0)
  batch = tiny.make_batch(0, B, L)
  batch["tokens"][:, 0] += np.arange(B)  # no two rows begin with the same token
  ends = batch["documents"].sum(axis=1)
  index = np.arange(L)[None]
  spans = np.sort(rng.integers(3, ends[:, None], (B, 2)), axis=1)
  spans[0] = 0  # no answer in this window
  return {
    "tokens": batch["tokens"],
    "types": ((index >= 3) * batch["documents"]).astype(np.int32),
    "documents": batch["documents"],
    "weight": np.ones(B, np.float32),
    "label": rng.integers(0, C, B).astype(np.int32),
    "start": spans[:, 0].astype(np.int32),
    "end": spans[:, 1].astype(np.int32),
  }


@functools.cache
def compiled(head):
  """Compiles (params, inputs) -> (loss of the step, its gradient)."""
  terms, model = TERMS.get(head, TERMS["classes"]), make_model(head)

  def loss(params, inputs):
    values = terms(params, inputs, None, {}, model=model, train=False)
    return step.total_loss(values, {"loss": 1.0})

  return jax.jit(jax.value_and_grad(loss))


@pytest.mark.parametrize(("head", "role"), PAIRS)
def test_every_head_returns_f32_of_its_shape(head, role):
  model = make_model(head, role, layers=1, dtype="bfloat16")
  shapes = pretrain.param_shapes(model)
  pooled = {"pooled"} if head == "pooler" else set()
  assert set(shapes) == {"embeddings", role, "task_head"} | pooled

  apply = functools.partial(model.apply, method="logits", keys_B=None)
  logits = jax.eval_shape(apply, {"params": shapes}, make_inputs())
  assert logits.dtype == jnp.float32
  assert logits.shape == ((B, L, 2) if head == "spans" else (B, C))


@pytest.mark.parametrize("backbone", ["encoder", "modern"])
@pytest.mark.parametrize("head", ROLES)
def test_dropout_sites_of_heads_follow_those_of_the_layers(
  head, backbone, monkeypatch
):
  model = make_model(head, backbone=backbone, layers=2, head_dropout=0.3)
  sites, rates = [], []

  def dropout(x, keys_B, *, rate, site):
    if keys_B is not None:
      sites.append(site)
      rates.append(rate)
    return x

  monkeypatch.setattr(rng_lib, "dropout", dropout)
  inputs = make_inputs()
  jax.eval_shape(
    functools.partial(model.apply, method="logits"),
    {"params": pretrain.param_shapes(model)},
    inputs,
    KEYS(jnp.arange(B)),
  )
  num_in_head = {"spans": 0, "dense": 2}.get(head, 1)
  if backbone == "modern":
    num_in_head = 1
  assert sorted(sites) == list(range(1 + 2 * 3 + num_in_head))
  assert rates == [0.1] * 7 + [0.3] * num_in_head


@pytest.mark.parametrize("head", ROLES)
def test_every_parameter_is_trained(head):
  _, grads = compiled(head)(draw_params(head), make_inputs())
  without_gradient = {
    jax.tree_util.keystr(path, simple=True, separator="/")
    for path, x in jax.tree_util.tree_leaves_with_path(grads)
    if abs(x).max() < 1e-6
  }
  # A softmax over positions ignores a constant that is added to all.
  added = {
    "spans": {
      "embeddings/norm/bias",
      "discriminator/project/bias",
      "task_head/output/bias",
    },
  }
  assert without_gradient == added.get(head, set())


def test_embeddings_of_bert_are_as_wide_as_the_network():
  assert make_model("pooler", "bert").config.embedding_size == 32
  assert make_model("dense", "discriminator").config.embedding_size == 16
