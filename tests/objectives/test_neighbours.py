"""A token's neighbours are those of a plain search, however it is done."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from truenegs_jax.objectives.negatives import neighbour_ids
from truenegs_jax.train import sharding

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
  return neighbour_ids(
    table_VxE, golds_V, words_V, top=top, threshold=threshold, cells=cells
  )


@pytest.mark.parametrize("make", [signs, normal])
@pytest.mark.parametrize(
  ("top", "threshold"),
  [(1, -1.0), (5, 0.25), (10, 0.5), (3, 1.0), (V - 1, -1.0), (V + 9, 0.0)],
)
def test_neighbours_are_those_of_a_plain_search(make, top, threshold):
  for seed in range(3):
    table_VxE, (golds_V, words_V) = make(seed), masks(seed)
    options = dict(top=top, threshold=threshold)
    got = compiled(table_VxE, golds_V, words_V, **options)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(
      got, expected(table_VxE, golds_V, words_V, **options)
    )


def test_tables_of_signs_have_ties_zeros_and_lists_that_are_short():
  table_VxE, (golds_V, words_V) = signs(0), masks(0)
  zeros_V = ~table_VxE.any(axis=1)
  assert zeros_V.any()
  ids_VxS = expected(table_VxE, golds_V, words_V, top=5, threshold=0.25)
  listed = (ids_VxS >= 0).sum(axis=1)
  assert {0, 5} < set(listed.tolist())
  # Fewer than were equal to the last one of a list: the smaller ids are taken.
  unit_VxE = np.sign(table_VxE)
  full = [a for a in range(V) if listed[a] == 5]
  last = [unit_VxE[a] @ unit_VxE[ids_VxS[a, -1]] for a in full]
  cut = [
    set(np.flatnonzero((unit_VxE @ unit_VxE[a] == x) & words_V))
    - {a, *ids_VxS[a]}
    for a, x in zip(full, last, strict=True)
  ]
  assert any(cut)


@pytest.mark.parametrize("cells", [1, 2 * V, 7 * V + 3, V * V, 2**24])
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
  mesh = sharding.make_mesh(sharding.get_spec("fsdp"))
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
