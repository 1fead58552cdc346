"""Regularizers: values, gradients, and what each reading trains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle, tiny
from truenegs_jax.objectives import soft_regularization

divergence = soft_regularization.sentence_divergence
TERMS = [*soft_regularization.REGULARIZERS.values(), divergence]


def draw_vectors(seed, shape=(2, 3, 8)):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


@pytest.mark.parametrize("term", TERMS)
def test_the_loss_is_zero_for_equal_vectors_only(term):
  a = draw_vectors(0, (4, 64, 128))
  for scale in (1.0, 1e-6, 0.0):
    np.testing.assert_array_equal(term(scale * a, scale * a), 0.0)
  loss_BxK = term(draw_vectors(0), draw_vectors(1))
  assert loss_BxK.shape == (2, 3) and (loss_BxK > 0).all()


@pytest.mark.parametrize("term", TERMS)
def test_gradients_are_finite_and_losses_are_f32(term):
  zero, a = jnp.zeros((2, 3, 8)), draw_vectors(0)
  for pair in ((zero, a), (a, zero), (zero, zero), (a, a), (1e-30 * a, a)):
    grads = jax.grad(lambda x, y: term(x, y).sum(), argnums=(0, 1))(*pair)
    assert all(np.isfinite(g).all() for g in grads)
  bfloat16_pair = [x.astype("bfloat16") for x in (a, draw_vectors(1))]
  loss = term(*bfloat16_pair)
  assert loss.dtype == jnp.float32
  expected = term(*(x.astype("float32") for x in bfloat16_pair))
  np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)


def test_pair_cosine_detects_a_collapsed_table():
  def mean_cosine(word_VxE):
    model = oracle.StubModel({"word": jnp.asarray(word_VxE, jnp.float32)})
    total, count = soft_regularization.pair_cosine(model)
    assert count > 500
    return float(total / count)

  rng = np.random.default_rng(0)
  assert mean_cosine(np.eye(tiny.V)) == 0  # no word is paired with itself
  assert np.isclose(mean_cosine(np.ones((tiny.V, 3))), 1)
  assert abs(mean_cosine(rng.choice([-1.0, 1.0], (tiny.V, 1)))) < 0.2
  assert 0.4 < mean_cosine(np.eye(2)[np.arange(tiny.V) % 2]) < 0.6
