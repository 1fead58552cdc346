"""Random numbers addressed by (seed, step, row) instead of a stream.

The key of a row is `fold_in(fold_in(root, step), row)`. The purpose of the key,
one of the constants below, is folded in as well, and each place in a network
has a site number. A mask, a sample or a dropped unit is therefore a function of
its address, whatever the number of devices, processes or micro-batches.

Large draws hash an element counter with the key instead of using threefry,
which on a CPU would take longer than the matrix products of a small model.
Dropout hashes a counter of lines, and its elements take three operations each.
"""

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Keys = Array | None  # dropout keys, one per row; None turns dropout off

# Purposes of row keys.
MASK, SAMPLE, GENERATOR_DROPOUT, DISCRIMINATOR_DROPOUT, DROP = range(5)


def row_keys(key: Array, step: Array | int, row_B: Array | np.ndarray) -> Array:
  """Returns one typed key per row, the same on any mesh.

  >>> row_keys(jax.random.key(0), 7, jnp.array([12, 5])).shape  # rows 12 and 5
  (2,)
  """
  key = jax.random.fold_in(key, step)
  return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, row_B)


def purpose_keys(keys_B: Array, purpose: int) -> Array:
  """Derives the keys of one purpose from the row keys.

  Draws with the same keys depend on each other: masks and dropout need two.

  >>> keys_B = row_keys(jax.random.key(0), 0, jnp.array([12, 5]))
  >>> mask_keys_B, dropout_keys_B = (purpose_keys(keys_B, i) for i in range(2))
  """
  return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys_B, purpose)


def uniform(
  keys_B: Array, shape: tuple[int, ...], *, site: int | Array = 0
) -> Array:
  """Returns f32 numbers, uniform in the open interval (0, 1), `[B, *shape]`.

  0 and 1 never occur, so `log(u)` and `log1p(-u)` are finite.
  """
  bits = random_bits(keys_B, shape, site=site)
  return ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23


def random_bits(
  keys_B: Array, shape: tuple[int, ...], *, site: int | Array = 0
) -> Array:
  """Returns uniform uint32 numbers, `[B, *shape]`: a counter hashed by key.

  The hash is the 32-bit finalizer of MurmurHash3 (public domain, A. Appleby).
  The second word of the key enters between its rounds, so that the rows are
  different functions of the counter, not shifted copies of one sequence.

  Args:
    keys_B: typed keys of the rows.
    shape: of the numbers of one row.
    site: number of the place in the network; a scalar array if it is known only
      at run time, as in a loop over layers.
  """
  first_B, second_B = row_words(keys_B, site)
  broadcast = (-1,) + (1,) * len(shape)
  counter = jnp.zeros(shape, jnp.uint32)
  stride = 1
  # XLA fuses one iota per axis, but not the reshape of a flat one.
  for axis in reversed(range(len(shape))):
    iota = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    counter = counter + iota * jnp.uint32(stride)
    stride *= shape[axis]
  return hash_counter(
    counter[None], first_B.reshape(broadcast), second_B.reshape(broadcast)
  )


def row_words(keys_B: Array, site: int | Array) -> tuple[Array, Array]:
  """Returns the two words by which each row hashes its counters, uint32 [B]."""
  words_Bx2 = jax.random.key_data(keys_B).reshape(keys_B.shape[0], -1)
  site_bits = jnp.uint32(site) * jnp.uint32(0x9E3779B9)
  first_B = _finalize(words_Bx2[:, 0] ^ site_bits)
  return first_B, _finalize(words_Bx2[:, -1] + site_bits)


def hash_counter(counter: Array, first: Array, second: Array) -> Array:
  """Hashes uint32 counters by the words of their row; see `random_bits`."""
  bits = counter * jnp.uint32(0x9E3779B1) + first
  bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B) ^ second
  bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
  return bits ^ (bits >> 16)


def line_words(
  keys_B: Array, lines: tuple[int, ...], site: int | Array
) -> tuple[Array, Array]:
  """Returns the two words of each line of a row's dropout, `[B, *lines]`.

  A line is the last axis of what drops out: units of a token, or weights of a
  query.
  """
  words_BxNx2 = random_bits(keys_B, (*lines, 2), site=site)
  return words_BxNx2[..., 0], words_BxNx2[..., 1]


def is_kept(place: Array, words: tuple[Array, Array], rate: float) -> Array:
  """Returns whether dropout keeps the elements at these places of their lines.

  Each line has its words, and each place two products, which add no cost for
  each element. The high bits of the result are random. The strides differ: with
  one, decisions depend on each other at lags where its products nearly repeat.

  Args:
    place: uint32, from 0.
    words: of the lines, of shapes that broadcast with the places'.
    rate: probability of dropping an element.
  """
  first, second = words
  bits = first ^ place * jnp.uint32(0x9E3779B1)
  bits *= second ^ place * jnp.uint32(0xC2B2AE35)
  return bits >= jnp.uint32(int(rate * 2**32))


def dropout(x: Array, keys_B: Keys, *, rate: float, site: int | Array) -> Array:
  """Zeroes a share `rate` of `x` `[B, ...]` and scales the rest to keep E[x].

  Args:
    x: floats; the first axis is the rows.
    keys_B: of the rows.
    rate: probability in [0, 1) of zeroing an element.
    site: number of the place, unique in its network; see `random_bits`.
  """
  if keys_B is None or rate == 0.0:
    return x
  first, second = line_words(keys_B, x.shape[1:-1], site)
  line = (1,) * (x.ndim - 1) + x.shape[-1:]
  place = jax.lax.broadcasted_iota(jnp.uint32, line, x.ndim - 1)
  kept = is_kept(place, (first[..., None], second[..., None]), rate)
  return jnp.where(kept, x / (1.0 - rate), 0).astype(x.dtype)


def _finalize(x: Array) -> Array:
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
