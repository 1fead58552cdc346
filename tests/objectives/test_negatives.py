"""False negatives are the table's; neighbours those of a plain search."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from support import tiny
from truenegs_jax.objectives import negatives
from truenegs_jax.train import sharding


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
  gold_BxK = np.arange(tiny.V).reshape(7, 10)
  values = np.random.default_rng(0).normal(size=(7, 10, tiny.V))
  mean_BxK, has_BxK = jax.jit(negatives.synonym_mean)(
    aux, jnp.asarray(gold_BxK), jnp.asarray(values, jnp.float32)
  )
  for index, gold in np.ndenumerate(gold_BxK):
    listed = values[index][table[gold]]
    assert has_BxK[index] == bool(len(listed))
    want = listed.mean() if len(listed) else 0.0
    np.testing.assert_allclose(mean_BxK[index], want, atol=1e-6)


V, E = 45, 16


def signs(seed):
  """Rows of +-1, whose cosines are exact and often equal; some are zero."""
  rng = np.random.default_rng(seed)
  table_VxE = rng.choice([-1.0, 1.0], (V, E))
  table_VxE[rng.integers(0, V, 8)] = table_VxE[rng.integers(0, V, 8)]
  table_VxE[rng.integers(0, V, 4)] = 0.0
  # Lengths that cannot be squared in f32.
  return (table_VxE * 2.0 ** rng.integers(-120, 120, (V, 1))).astype("f4")


def normal(seed, size=V, width=E):
  return np.random.default_rng(seed).normal(size=(size, width)).astype("f4")


def masks(seed, size=V):
  return np.random.default_rng(seed + 99).random((2, size)) < 0.8


def expected(table_VxE, golds_V, words_V, *, top, threshold):
  """The definition, a pair at a time."""
  table_VxE = table_VxE.astype(np.float64)
  ids_VxS = np.full((len(table_VxE), top), -1, np.int32)
  for a, gold_E in enumerate(table_VxE):
    ranked = []
    for b, word_E in enumerate(table_VxE):
      norms = np.sqrt((gold_E @ gold_E) * (word_E @ word_E))
      if golds_V[a] and words_V[b] and a != b and norms > 0:
        cosine = gold_E @ word_E / norms
        if cosine >= threshold:
          ranked.append((-cosine, b))
    best = [b for _, b in sorted(ranked)[:top]]
    ids_VxS[a, : len(best)] = best
  return ids_VxS


@functools.partial(jax.jit, static_argnames=("top", "cells"))
def compiled(table_VxE, golds_V, words_V, *, top, threshold, cells=2**24):
  return negatives.neighbour_ids(
    table_VxE, golds_V, words_V, top=top, threshold=threshold, cells=cells
  )


@pytest.mark.parametrize("make", [signs, normal])
@pytest.mark.parametrize(
  ("top", "threshold"),
  [(1, -1.0), (5, 0.25), (3, 1.0), (V + 9, 0.0)],
)
def test_neighbours_are_those_of_a_plain_search(make, top, threshold):
  for seed in range(2):
    table_VxE, (golds_V, words_V) = make(seed), masks(seed)
    options = dict(top=top, threshold=threshold)
    got = compiled(table_VxE, golds_V, words_V, **options)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(
      got, expected(table_VxE, golds_V, words_V, **options)
    )


@pytest.mark.parametrize("cells", [1, 7 * V + 3, V * V])
def test_it_does_not_matter_how_many_are_ranked_at_a_time(cells):
  options = dict(top=6, threshold=0.1)
  for make in (signs, normal):
    table_VxE, (golds_V, words_V) = make(5), masks(5)
    np.testing.assert_array_equal(
      compiled(table_VxE, golds_V, words_V, cells=cells, **options),
      expected(table_VxE, golds_V, words_V, **options),
    )


def test_memory_is_that_of_a_chunk_and_products_are_exact():
  size, width, cells = 128_000, 128, 2**24
  of = jax.ShapeDtypeStruct
  some_V = of((size,), bool)
  lowered = compiled.lower(
    of((size, width), "f4"), some_V, some_V, top=10, threshold=0.5, cells=cells
  )
  assert "HIGHEST" in lowered.as_text()  # a TPU would take bfloat16
  scratch = lowered.compile().memory_analysis().temp_size_in_bytes
  assert scratch < 4 * (3 * cells + 4 * size * width) < size * size / 8


def test_one_split_table_gives_the_ids_of_a_whole_one():
  mesh = sharding.make_mesh(sharding.get_mesh_spec("fsdp"))
  assert mesh.size == 8
  table_VxE, whole = normal(1, 300, 64), NamedSharding(mesh, P())
  split = NamedSharding(mesh, P(None, "data"))
  golds_V, words_V = jax.device_put(masks(1, 300), whole)
  got = [
    compiled(
      jax.device_put(table_VxE, place),
      golds_V,
      words_V,
      top=10,
      threshold=0.1,
      cells=2**12,
    )
    for place in (whole, split)
  ]
  np.testing.assert_array_equal(*got)
  np.testing.assert_array_equal(
    got[0], expected(table_VxE, *masks(1, 300), top=10, threshold=0.1)
  )


def test_a_row_that_is_not_finite_is_no_neighbour_and_spoils_no_other():
  everything_V = np.ones(V, bool)
  table_VxE = normal(2)
  table_VxE[7, 3], table_VxE[9, 0] = np.nan, np.inf
  got = compiled(table_VxE, everything_V, everything_V, top=4, threshold=-1.0)
  table_VxE[[7, 9]] = 0.0
  np.testing.assert_array_equal(
    got,
    expected(table_VxE, everything_V, everything_V, top=4, threshold=-1.0),
  )
