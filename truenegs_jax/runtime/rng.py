"""Random numbers addressed by (seed, step, row), never streamed.

A row's key is `fold_in(fold_in(root, step), row)`; what a key is used for is
folded in as one of the constants below, and each place inside a network has a
site number. So a mask, a sample or a dropped unit is a function of where it is,
and does not change with the number of devices, processes or micro-batches.

Large draws (dropout, token sampling) hash an element counter with the key
instead of running threefry over it: on a CPU threefry would cost more than the
matrix products of a small model.
"""

import jax
import jax.numpy as jnp

Array = jax.Array

# What a row key is used for.
MASK, SAMPLE, GENERATOR_DROPOUT, DISCRIMINATOR_DROPOUT = range(4)


def row_keys(key: Array, step: Array | int, row_B: Array) -> Array:
  """One typed key per row: the same on any mesh, in any micro-batch."""
  key = jax.random.fold_in(key, step)
  return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, row_B)


def purpose_keys(keys_B: Array, purpose: int) -> Array:
  """Derives the keys of one purpose from the row keys."""
  return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys_B, purpose)


def uniform(
  keys_B: Array, shape: tuple[int, ...], *, site: int | Array = 0
) -> Array:
  """Uniform f32 numbers in the open interval (0, 1), `[B, *shape]`.

  Neither end is ever reached, so `log(u)` and `log1p(-u)` are finite.
  """
  bits = random_bits(keys_B, shape, site=site)
  return ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23


def random_bits(
  keys_B: Array, shape: tuple[int, ...], *, site: int | Array = 0
) -> Array:
  """Uniform uint32 numbers, `[B, *shape]`, of a counter hashed with the key.

  The hash is the 32-bit finalizer of MurmurHash3 (public domain, A. Appleby),
  the second key word entering between its rounds: rows with nearby counters
  are then different functions, not shifted copies of one sequence. `site` is an
  integer or, known only when it runs (a loop over layers), a scalar array.
  """
  words_Bx2 = jax.random.key_data(keys_B).reshape(keys_B.shape[0], -1)
  broadcast = (-1,) + (1,) * len(shape)
  site_bits = jnp.uint32(site) * jnp.uint32(0x9E3779B9)
  first = _finalize(words_Bx2[:, 0] ^ site_bits).reshape(broadcast)
  second = _finalize(words_Bx2[:, -1] + site_bits).reshape(broadcast)
  counter = jnp.zeros(shape, jnp.uint32)
  stride = 1
  # One iota per axis instead of a flat one reshaped: XLA fuses these.
  for axis in reversed(range(len(shape))):
    iota = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    counter = counter + iota * jnp.uint32(stride)
    stride *= shape[axis]
  bits = counter[None] * jnp.uint32(0x9E3779B1) + first
  bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B) ^ second
  bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
  return bits ^ (bits >> 16)


def dropout(
  x: Array, keys_B: Array | None, *, rate: float, site: int | Array
) -> Array:
  """Zeroes a share `rate` of `x` `[B, ...]` and scales the rest to keep E[x].

  Args:
    x: floats, the first axis being the rows.
    keys_B: the rows' dropout keys; None turns dropout off.
    rate: probability in [0, 1) of zeroing an element.
    site: number of the place in the network, unique per network; an integer or
      a scalar array of integers.
  """
  if keys_B is None or rate == 0.0:
    return x
  bits = random_bits(keys_B, x.shape[1:], site=site)
  keep = bits >= jnp.uint32(int(rate * 2**32))
  return jnp.where(keep, x / (1.0 - rate), 0).astype(x.dtype)


def _finalize(x: Array) -> Array:
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
