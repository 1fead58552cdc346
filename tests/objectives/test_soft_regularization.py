"""Regularizers: values, gradients, and what each reading trains."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle, tiny
from truenegs_jax.objectives import soft_regularization

cosine = soft_regularization.cosine_distance
divergence = soft_regularization.sentence_divergence
TERMS = [*soft_regularization.REGULARIZERS.values(), divergence]
case_of = functools.cache(oracle.make_case)


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


def test_cosine_equals_numpy_in_value_and_gradient():
  a, b = draw_vectors(0), draw_vectors(1)
  x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
  norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
  expected = (x * y).sum(-1) / norms
  np.testing.assert_allclose(cosine(a, b), 1 - expected, rtol=1e-5, atol=1e-6)
  result = jax.grad(lambda a, b: cosine(a, b).sum(), argnums=(0, 1))(a, b)
  # d cos / dx = y / |x||y| - cos x / |x|^2, and the same for y.
  for grad, own, other in zip(result, (x, y), (y, x), strict=True):
    square = (own**2).sum(-1, keepdims=True)
    slope = other / norms[..., None] - expected[..., None] * own / square
    np.testing.assert_allclose(grad, -slope, rtol=1e-4, atol=1e-6)


def test_the_word_term_trains_gold_and_prediction():
  recipe = oracle.make_options(soft_weight=1.0)
  case = case_of(1)
  grads = oracle.gradients(recipe, case, pair=False)["soft"]
  assert {n for n, x in grads.items() if x.any()} == {"word"}
  # A correct prediction moves nothing.
  slots = oracle.draw_slots(recipe, case).slots
  wrong = [s for s in slots if s.prediction != s.gold]
  moved = {s.gold for s in wrong} | {s.prediction for s in wrong}
  assert set(np.nonzero(grads["word"].any(axis=-1))[0]) == moved


def test_zero_rows_are_orthogonal_and_have_no_gradient():
  word_VxE = case_of(1).params["word"].copy()
  word_VxE[::2] = 0.0
  case = oracle.set_params(case_of(1), word=word_VxE)
  recipe = oracle.make_options(soft_weight=1.0)
  oracle.check_terms(recipe, case, pair=False, train=True)
  grads = oracle.gradients(recipe, case, pair=False)["soft"]
  assert grads["word"].any() and not grads["word"][::2].any()
  for grad in grads.values():
    assert np.isfinite(grad).all() and np.abs(grad).max() < 1e3


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
