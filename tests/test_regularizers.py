"""Every registered term obeys its contract; cosine equals the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.errors import InputError
from truenegs_jax.objectives import regularizers


def vectors(seed, shape=(2, 3, 8)):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


@pytest.fixture(params=regularizers.REGULARIZERS)
def term(request):
  return regularizers.get(request.param)


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
  got = regularizers.cosine_distance(a, b)
  np.testing.assert_allclose(got, [[0.0, 1.0, 2.0, 1.0]], atol=1e-6)


def test_cosine_equals_a_numpy_oracle_in_value_and_gradient():
  a, b = vectors(0), vectors(1)
  x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
  norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
  cosine = (x * y).sum(-1) / norms
  np.testing.assert_allclose(
    regularizers.cosine_distance(a, b), 1 - cosine, rtol=1e-5, atol=1e-6
  )
  got = jax.grad(
    lambda a, b: regularizers.cosine_distance(a, b).sum(), argnums=(0, 1)
  )(a, b)
  # d cos / dx = y / |x||y| - cos x / |x|^2, and the same for y.
  for grad, this, other in zip(got, (x, y), (y, x), strict=True):
    square = (this**2).sum(-1, keepdims=True)
    want = other / norms[..., None] - cosine[..., None] * this / square
    np.testing.assert_allclose(grad, -want, rtol=1e-4, atol=1e-6)


def test_an_unknown_name_is_refused_with_the_known_ones():
  with pytest.raises(InputError, match="'kosine' is unknown.*cosine"):
    regularizers.get("kosine")
  with pytest.raises(ValueError, match="twice"):
    regularizers.regularizer("cosine")(lambda a, b: a)
