"""Every registered term obeys its contract; cosine equals the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.objectives import soft_regularization
from truenegs_jax.runtime.errors import InputError


def vectors(seed, shape=(2, 3, 8)):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


@pytest.fixture(params=soft_regularization.REGULARIZERS)
def term(request):
  return soft_regularization.get(request.param)


def test_equal_vectors_cost_exactly_nothing(term):
  a = vectors(0, (4, 64, 128))
  for scale in (1.0, 1e-6, 0.0):
    np.testing.assert_array_equal(term(scale * a, scale * a), 0.0)


def test_a_term_is_positive_and_of_one_number_a_slot(term):
  loss_BxK = term(vectors(0), vectors(1))
  assert loss_BxK.shape == (2, 3) and (loss_BxK > 0).all()


def test_gradients_are_finite_at_zero_and_at_equal_vectors(term):
  zero, a = jnp.zeros((2, 3, 8)), vectors(0)
  for pair in ((zero, a), (a, zero), (zero, zero), (a, a), (1e-30 * a, a)):
    grads = jax.grad(lambda x, y: term(x, y).sum(), argnums=(0, 1))(*pair)
    assert all(np.isfinite(g).all() for g in grads)


def test_half_precision_is_judged_in_f32(term):
  loss = term(vectors(0).astype("bfloat16"), vectors(1).astype("bfloat16"))
  assert loss.dtype == jnp.float32


def test_cosine_of_equal_orthogonal_and_opposite_vectors():
  a = jnp.array([[[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.0, 0.0]]])
  b = jnp.array([[[3.0, 0.0], [0.0, 0.5], [-1.0, 0.0], [1.0, 0.0]]])
  got = soft_regularization.cosine_distance(a, b)
  np.testing.assert_allclose(got, [[0.0, 1.0, 2.0, 1.0]], atol=1e-6)


def test_cosine_equals_a_numpy_oracle_in_value_and_gradient():
  a, b = vectors(0), vectors(1)
  x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
  norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
  cosine = (x * y).sum(-1) / norms
  np.testing.assert_allclose(
    soft_regularization.cosine_distance(a, b), 1 - cosine, rtol=1e-5, atol=1e-6
  )
  got = jax.grad(
    lambda a, b: soft_regularization.cosine_distance(a, b).sum(), argnums=(0, 1)
  )(a, b)
  # d cos / dx = y / |x||y| - cos x / |x|^2, and the same for y.
  for grad, this, other in zip(got, (x, y), (y, x), strict=True):
    square = (this**2).sum(-1, keepdims=True)
    want = other / norms[..., None] - cosine[..., None] * this / square
    np.testing.assert_allclose(grad, -want, rtol=1e-4, atol=1e-6)


def test_an_unknown_name_is_refused_with_the_known_ones():
  with pytest.raises(InputError, match="'kosine' is unknown.*cosine"):
    soft_regularization.get("kosine")
  with pytest.raises(ValueError, match="twice"):
    soft_regularization.regularizer("cosine")(lambda a, b: a)


def states(seed, width, *, correlation=None):
  """Two sets of states as an encoder ends: features of mean 0, variance 1."""
  rng = np.random.default_rng(seed)
  a, b = rng.normal(size=(2, 4, 500, width))
  if correlation is not None:
    b = correlation * a + np.sqrt(1 - correlation**2) * b
  norm = lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
  return norm(a), norm(b)


def divergence(p, q):
  """KL of the softmaxes in f64, with the gradient to the first states."""
  normalize = lambda x: x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
  p, q = normalize(np.float64(p)), normalize(np.float64(q))
  loss = (np.exp(p) * (p - q)).sum(axis=-1)
  return loss, np.exp(p) * (p - q - loss[..., None])


@pytest.mark.parametrize("width", [64, 256, 768])
def test_unlike_sentences_are_about_one_apart_and_like_ones_a_twentieth(width):
  apart = soft_regularization.sentence_divergence(
    *map(jnp.asarray, states(0, width))
  )
  assert apart.shape == (4, 500) and (apart > 0).all()
  assert 0.95 < apart.mean() < 1.01
  near = states(1, width, correlation=0.95)
  near = soft_regularization.sentence_divergence(*map(jnp.asarray, near))
  assert 0.045 < near.mean() < 0.055


def test_sentence_divergence_equals_a_numpy_oracle_in_value_and_gradient():
  p, q = states(2, 32)
  q *= 3.0  # so that the direction matters
  want, to_p = divergence(p, q)
  reverse, _ = divergence(q, p)
  assert np.abs(want - reverse).mean() > 0.1
  p, q = jnp.asarray(p, "float32"), jnp.asarray(q, "float32")
  got = soft_regularization.sentence_divergence(p, q)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
  total = lambda p, q: soft_regularization.sentence_divergence(p, q).sum()
  np.testing.assert_allclose(jax.grad(total)(p, q), to_p, rtol=1e-3, atol=1e-5)


def test_equal_sentences_cost_exactly_nothing_and_pull_nowhere():
  p, _ = states(3, 128)
  p = jnp.asarray(p, "float32")
  for scale in (1.0, 0.0, 1e4):
    np.testing.assert_array_equal(
      soft_regularization.sentence_divergence(scale * p, scale * p), 0.0
    )
  total = lambda x: soft_regularization.sentence_divergence(x, p).sum()
  np.testing.assert_allclose(jax.grad(total)(p), 0.0, atol=1e-6)


def test_sentences_of_half_precision_are_judged_in_f32():
  p, q = (jnp.asarray(x, "bfloat16") for x in states(4, 64))
  got = soft_regularization.sentence_divergence(p, q)
  assert got.dtype == jnp.float32
  want, _ = divergence(p.astype("float32"), q.astype("float32"))
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
