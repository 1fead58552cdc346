"""False negatives follow the table; neighbours equal a plain search."""

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

RELATION = tiny.dense_table(share=0.3)
RELATION[:, [31, 63]], RELATION[:, 32] = True, False  # ends of words of 32 bits
LAYOUTS = {"bits_VxW": tiny.pack_bits, "ids_VxS": tiny.list_ids}
PAIRS = jnp.indices((tiny.V, tiny.V))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_false_negatives_are_the_listed_mismatches(layout):
  gold, predicted = PAIRS
  for table in (RELATION, np.ones_like(RELATION)):
    aux = {layout: jnp.asarray(LAYOUTS[layout](table))}
    result = negatives.false_negatives(aux, gold, predicted)
    expected = table & (gold != predicted)
    np.testing.assert_array_equal(result, expected)


V, E = 45, 16


def draw_signs(seed):
  """Draws rows of +-1 with exact and often equal cosines; some are zero."""
  rng = np.random.default_rng(seed)
  table_VxE = rng.choice([-1.0, 1.0], (V, E))
  table_VxE[rng.integers(0, V, 8)] = table_VxE[rng.integers(0, V, 8)]
  table_VxE[rng.integers(0, V, 4)] = 0.0
  # Lengths whose squares are out of range in f32.
  return (table_VxE * 2.0 ** rng.integers(-120, 120, (V, 1))).astype("f4")


def draw_normal(seed, size=V, width=E):
  return np.random.default_rng(seed).normal(size=(size, width)).astype("f4")


def draw_classes(seed, size=V):
  """Draws classes; tokens of class 0 have no neighbours."""
  rng = np.random.default_rng(seed + 99)
  return rng.choice(3, size, p=[0.2, 0.4, 0.4])


def search_plainly(table_VxE, words_V, *, top, threshold):
  """Lists neighbours by definition, one pair at a time."""
  table_VxE = table_VxE.astype(np.float64)
  ids_VxS = np.full((len(table_VxE), top), -1, np.int32)
  for a, gold_E in enumerate(table_VxE):
    ranked = []
    for b, word_E in enumerate(table_VxE):
      norms = np.sqrt((gold_E @ gold_E) * (word_E @ word_E))
      is_one_class = words_V[a] == words_V[b] > 0
      if is_one_class and a != b and norms > 0:
        cosine = gold_E @ word_E / norms
        if cosine >= threshold:
          ranked.append((-cosine, b))
    best = [b for _, b in sorted(ranked)[:top]]
    ids_VxS[a, : len(best)] = best
  return ids_VxS


@functools.partial(jax.jit, static_argnames=("top", "cells"))
def compiled(table_VxE, words_V, *, top, threshold, cells=2**24):
  return negatives.neighbour_ids(
    table_VxE, words_V, top=top, threshold=threshold, cells=cells
  )


@pytest.mark.parametrize("make", [draw_signs, draw_normal])
@pytest.mark.parametrize(
  ("top", "threshold", "cells"),
  [(5, 0.25, 2**24), (3, 1.0, 2**24), (V + 9, 0.0, 1), (6, 0.1, 7 * V + 3)],
)
def test_neighbours_equal_a_plain_search(make, top, threshold, cells):
  for seed in range(2):
    table_VxE, words_V = make(seed), draw_classes(seed)
    options = dict(top=top, threshold=threshold)
    result = compiled(table_VxE, words_V, cells=cells, **options)
    assert result.dtype == jnp.int32
    np.testing.assert_array_equal(
      result, search_plainly(table_VxE, words_V, **options)
    )


def test_a_sharded_table_gives_the_ids_of_a_replicated_one():
  mesh = sharding.make_mesh(sharding.get_mesh_spec("fsdp"))
  assert mesh.size == 8
  table_VxE, replicated = draw_normal(1, 300, 64), NamedSharding(mesh, P())
  split = NamedSharding(mesh, P(None, "data"))
  words_V = jax.device_put(draw_classes(1, 300), replicated)
  options = dict(top=10, threshold=0.1)
  expected = search_plainly(table_VxE, draw_classes(1, 300), **options)
  for layout in (replicated, split):
    table = jax.device_put(table_VxE, layout)
    result = compiled(table, words_V, cells=2**12, **options)
    np.testing.assert_array_equal(result, expected)


def test_a_row_that_is_not_finite_has_no_effect_on_others():
  words_V, options = np.ones(V, bool), dict(top=4, threshold=-1.0)
  table_VxE = draw_normal(2)
  table_VxE[7, 3], table_VxE[9, 0] = np.nan, np.inf
  result = compiled(table_VxE, words_V, **options)
  table_VxE[[7, 9]] = 0.0
  expected = search_plainly(table_VxE, words_V, **options)
  np.testing.assert_array_equal(result, expected)
