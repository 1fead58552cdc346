"""Sampling follows the softmax; false negatives are what the table says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from truenegs_jax import randomness
from truenegs_jax.objectives import negatives


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_are_as_frequent_as_the_softmax_says(temperature):
  rows, slots, vocab = 256, 400, 12
  logits_V = np.random.default_rng(0).normal(size=vocab).astype(np.float32)
  logits = jnp.broadcast_to(jnp.asarray(logits_V), (rows, slots, vocab))
  keys_B = randomness.row_keys(jax.random.key(0), 0, jnp.arange(rows))
  got = np.asarray(negatives.sample(logits, keys_B, temperature))
  p_V = np.exp(logits_V.astype(np.float64) / temperature)
  expected = p_V / p_V.sum() * got.size
  counts = np.bincount(got.ravel(), minlength=vocab)
  chi_square = ((counts - expected) ** 2 / expected).sum()
  assert chi_square < vocab - 1 + 5 * np.sqrt(2 * (vocab - 1))
  # Neighbouring slots and rows draw apart: equal by chance alone.
  chance = ((p_V / p_V.sum()) ** 2).sum()
  for a, b in ((got[:, 1:], got[:, :-1]), (got[1:], got[:-1])):
    same = (a == b).mean()
    assert abs(same - chance) < 5 * np.sqrt(chance * (1 - chance) / a.size)


def test_samples_send_no_gradient():
  logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 5)))
  keys_B = randomness.row_keys(jax.random.key(0), 0, jnp.arange(2))
  table = jnp.arange(5.0)

  def picked(logits):
    return (
      table[negatives.sample(logits, keys_B, 1.0)].sum()
      + table[negatives.predict(logits)].sum()
    )

  np.testing.assert_array_equal(jax.grad(picked)(logits), 0.0)


def test_a_certain_token_is_always_sampled_and_an_impossible_one_never():
  logits = jnp.zeros((64, 50, 8)).at[..., 3].set(-jnp.inf)
  keys_B = randomness.row_keys(jax.random.key(0), 0, jnp.arange(64))
  assert not (negatives.sample(logits, keys_B, 1.0) == 3).any()
  logits = jnp.zeros((64, 50, 8), jnp.bfloat16).at[..., 3].set(60.0)
  assert (negatives.sample(logits, keys_B, 1.0) == 3).all()


def test_prediction_is_the_likeliest_token():
  logits = np.random.default_rng(0).normal(size=(3, 4, 9))
  got = negatives.predict(jnp.asarray(logits))
  assert got.dtype == jnp.int32
  np.testing.assert_array_equal(got, logits.argmax(axis=-1))


@functools.cache
def dense():
  dense_VxV = tiny.dense_table(share=0.3)
  dense_VxV[:, 31], dense_VxV[:, 32], dense_VxV[:, 63] = True, False, True
  return dense_VxV


LAYOUTS = {"bits_VxW": tiny.pack_bits, "ids_VxS": tiny.list_ids}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_is_synonym_agrees_with_the_dense_table_everywhere(layout):
  aux = {layout: jnp.asarray(LAYOUTS[layout](dense()))}
  a, b = np.meshgrid(*[np.arange(tiny.V)] * 2, indexing="ij")
  got = jax.jit(negatives.is_synonym)(aux, jnp.asarray(a), jnp.asarray(b))
  np.testing.assert_array_equal(got, dense())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("include_self", [False, True])
def test_false_negatives_are_wrong_and_listed_and_nothing_else(
  layout, include_self
):
  everything = np.ones((tiny.V, tiny.V), bool)
  a, b = np.meshgrid(*[np.arange(tiny.V)] * 2, indexing="ij")
  for table in (dense(), everything):
    aux = {layout: jnp.asarray(LAYOUTS[layout](table))}
    got = negatives.false_negatives(
      aux, jnp.asarray(a), jnp.asarray(b), include_self=include_self
    )
    np.testing.assert_array_equal(got, table & (include_self | (a != b)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_mean_over_synonyms_is_that_of_the_listed_columns(layout):
  table = dense().copy()
  table[7] = False  # a word without synonyms
  aux = {layout: jnp.asarray(LAYOUTS[layout](table))}
  original_BxK = np.arange(tiny.V).reshape(7, 10)
  values = np.random.default_rng(0).normal(size=(7, 10, tiny.V))
  mean_BxK, has_BxK = jax.jit(negatives.synonym_mean)(
    aux, jnp.asarray(original_BxK), jnp.asarray(values, jnp.float32)
  )
  for index, gold in np.ndenumerate(original_BxK):
    listed = values[index][table[gold]]
    assert has_BxK[index] == bool(len(listed))
    want = listed.mean() if len(listed) else 0.0
    np.testing.assert_allclose(mean_BxK[index], want, atol=1e-6)
