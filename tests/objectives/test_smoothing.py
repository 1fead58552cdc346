"""Balanced smoothing has the gradient of its target; its value is a score."""

import jax
import jax.numpy as jnp
import numpy as np

from support import oracle
from truenegs_jax.objectives import mlm

SHARE, V = 0.3, oracle.V


def test_the_gradient_of_balanced_smoothing_is_that_to_its_target():
  """The target moves share * q * p[s] / (p[g] + p[s]) from g to s."""
  case = oracle.make_case(0)
  aux = oracle.make_objective(
    oracle.make_options(smoothing=SHARE), case, pair=False, train=True
  ).keywords["aux"]
  z_VxV = np.random.default_rng(0).normal(size=(V, V), scale=2.0)
  rates_VxV, target_VxV = oracle.find_rates(case), np.eye(V)
  p_VxV = np.exp(z_VxV) / np.exp(z_VxV).sum(axis=1, keepdims=True)
  for g, s in np.argwhere(rates_VxV):
    p_V = p_VxV[g]
    moved = SHARE * rates_VxV[g, s] * p_V[s] / (p_V[s] + p_V[g])
    target_VxV[g, s] += moved
    target_VxV[g, g] -= moved
  gold_1xV, weight_1xV = jnp.arange(V)[None], jnp.ones((1, V))

  def loss(z_1xVxV):
    options = {"smoothing": SHARE, "smoothing_by": "balanced"}
    return mlm.mlm_loss(
      z_1xVxV, gold_1xV, weight_1xV, aux, hard_correction=False, **options
    )[0]

  grad_VxV = jax.grad(loss)(jnp.float32(z_VxV)[None])[0]
  assert (np.abs(target_VxV - np.eye(V)) > 0.01).sum() > V
  np.testing.assert_allclose(grad_VxV, p_VxV - target_VxV, atol=1e-6)
