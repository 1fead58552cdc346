"""False negatives are what the table says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.objectives import negatives


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
