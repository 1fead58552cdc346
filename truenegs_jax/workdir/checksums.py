"""Computes checksums of arrays, which do not depend on the mesh."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def compute_checksums(tree: Any) -> dict[str, int]:
  """Returns a 32-bit checksum of the bits of each array, by its path.

  Orbax verifies its index only: a bit that flips on the disk would change a
  parameter.
  """
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  by_path = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
  sums = jax.device_get(_sum_arrays(by_path))
  return {path: int(total) for path, total in sums.items()}


@jax.jit
def _sum_arrays(by_path: dict[str, jax.Array]) -> dict[str, jax.Array]:
  return jax.tree.map(_sum_array, by_path)


def _sum_array(x: jax.Array) -> jax.Array:
  """Sums the words of an array, each mixed one-to-one with its index.

  Constants: 2**32 / golden ratio; Wellons, "Prospecting for Hash Functions".
  """
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
  bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
  index = jax.lax.iota(jnp.uint32, x.size).reshape(x.shape)
  bits += index * np.uint32(0x9E3779B9)
  bits = (bits ^ bits >> 16) * np.uint32(0x7FEB352D)
  bits = (bits ^ bits >> 15) * np.uint32(0x846CA68B)
  return (bits ^ bits >> 16).sum(dtype=jnp.uint32)
