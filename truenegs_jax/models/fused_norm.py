"""norm(x + dropout(units + bias)) as two fused kernels, for NVIDIA's GPUs.

Each pass reads and writes two arrays; XLA's passes need 13 in all. The backward
pass also adds up the gradients of all vectors. The units of a token are a line
of `rng.dropout`, which drops the same units.

A program computes some tokens of one row, a tile [R, C] at a time. C is a power
of two, as Triton's tiles are; columns beyond the width D do not exist.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from truenegs_jax.runtime import rng

Array = jax.Array
Ref = Any  # of Pallas: a pointer
Implementation = Any  # attention.Implementation, of a module of this height

FORWARD, BACKWARD = "norm_forward", "norm_backward"
# ptxas spills no register, and two programs fit on a processor.
WARPS, TILE = 8, 2_048
TOKENS = 64  # of a program in the backward pass


class Settings(NamedTuple):
  """The values with which a kernel is compiled; `rate` is that of dropout."""

  epsilon: float
  rate: float
  how: Implementation


def is_possible(how: Implementation, width: int) -> bool:
  """Whether the kernels run there: beside flash attention."""
  return how.name == "flash" and how.platform == "cuda" and width <= 2 * TILE


def normalize_sum(
  settings: Settings,
  x_BxLxD: Array,
  units_BxLxD: Array,
  vectors: Sequence[Array],
  keys_B: rng.Keys,
  site: int | Array,
) -> Array:
  """Computes norm(x + dropout(units + bias)), of x's dtype.

  `vectors` are the bias of units, and scale and bias of the norm.
  """
  words, rate = rng.dropout_words(x_BxLxD, keys_B, settings.rate, site)
  settings = settings._replace(rate=rate)
  return _normalize_sum(settings, *words, x_BxLxD, units_BxLxD, *vectors)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalize_sum(settings: Settings, *arrays: Array) -> Array:
  return _run(norm_forward, settings, *arrays)[0]


def _forward_rule(settings, *arrays):
  result, total = _run(norm_forward, settings, *arrays)
  return result, (*arrays[:2], total, arrays[5])


def _backward_rule(settings, saved, cotangent):
  *tokens, scale = saved
  dx, dunits, sums = _run(norm_backward, settings, *tokens, cotangent, scale)
  return None, None, dx, dunits, *sums.sum(axis=(0, 1))


_normalize_sum.defvjp(_forward_rule, _backward_rule)


@functools.partial(jax.jit, static_argnums=(0, 1))  # traced once
def _run(
  kernel: Callable[..., None], settings: Settings, *arrays: Array
) -> Sequence[Array]:
  """Runs a kernel on two words, two arrays [B, L, D] and vectors.

  On a mesh it runs on the rows of each device.
  """
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import triton

  def run(*arrays: Array) -> Sequence[Array]:
    rows, length, width = arrays[2].shape
    columns = 1 << (width - 1).bit_length()
    shape = math.gcd(length, max(1, TILE // columns)), columns
    count, block = 2, shape[0]
    if kernel is norm_backward:
      count, block = 3, math.gcd(length, TOKENS)
    units = pl.BlockSpec((None, block, width), lambda b, t: (b, t, 0))
    line = pl.BlockSpec((1, width), lambda b, t: (0, 0))
    sums = pl.BlockSpec((None, None, 3, width), lambda b, t: (b, t, 0, 0))
    like = jax.ShapeDtypeStruct(arrays[2].shape, arrays[2].dtype)
    parts = jax.ShapeDtypeStruct((rows, length // block, 3, width), jnp.float32)
    return pl.pallas_call(
      functools.partial(kernel, settings, shape),
      grid=(rows, length // block),
      in_specs=[pl.BlockSpec()] * 2 + [units] * 2 + [line] * len(arrays[4:]),
      out_specs=[units, units, sums][:count],
      out_shape=[like, like, parts][:count],
      compiler_params=triton.CompilerParams(num_warps=WARPS),
      name=kernel.__name__,
      interpret=settings.how.interpret,
    )(*arrays[:4], *(x[None] for x in arrays[4:]))

  if (mesh := settings.how.mesh) is None:
    return run(*arrays)
  rows = P(mesh.axis_names[0])
  specs = (rows,) * 4 + (P(),) * len(arrays[4:])
  return jax.shard_map(
    run, mesh=mesh, in_specs=specs, out_specs=rows, check_vma=False
  )(*arrays)


def norm_forward(
  settings: Settings, shape: tuple[int, int], *refs: Ref
) -> None:
  """Computes the norm of the sum, and the sum, of one tile."""
  *words, x_ref, units_ref, units_bias, scale, bias, result_ref, total_ref = (
    refs
  )
  vectors = (_access(ref, (1, shape[1])) for ref in (units_bias, scale, bias))
  units_bias, scale, bias = vectors
  drop = _make_dropout(settings, x_ref, *words)
  units = _access(units_ref, shape) + units_bias
  # The norm is that of the rounded sum, as in the backward pass.
  total = (_access(x_ref, shape) + drop(units, 0)).astype(x_ref.dtype)
  _access(total_ref, shape, store=total)
  unit, _ = _normalize(total.astype(jnp.float32), x_ref, settings.epsilon)
  _access(result_ref, shape, store=unit * scale + bias)


def norm_backward(
  settings: Settings, shape: tuple[int, int], *refs: Ref
) -> None:
  """Computes the gradients of x and units, and of vectors by program."""
  *words, total_ref, cotangent_ref, scale, x_ref, units_ref, sums_ref = refs
  drop = _make_dropout(settings, total_ref, *words)
  scale, width = _access(scale, (1, shape[1])), total_ref.shape[1]

  def add_tile(step: Array, sums: Sequence[Array]) -> Sequence[Array]:
    start = step * shape[0]
    total = _access(total_ref, shape, start)
    unit, rate = _normalize(total, total_ref, settings.epsilon)
    cotangent = _access(cotangent_ref, shape, start)
    scaled = cotangent * scale
    slope = _mean(scaled * unit, width)
    gradient = rate * (scaled - _mean(scaled, width) - unit * slope)
    dropped = drop(gradient, start)
    _access(x_ref, shape, start, store=gradient)
    _access(units_ref, shape, start, store=dropped)
    return sums[0] + dropped, sums[1] + cotangent * unit, sums[2] + cotangent

  zeros = (jnp.zeros(shape, jnp.float32),) * 3
  sums = lax.fori_loop(0, total_ref.shape[0] // shape[0], add_tile, zeros)
  for i, x in enumerate(sums):
    total = jnp.sum(x, axis=0, keepdims=True)
    _access(sums_ref, total.shape, i, store=total)


def _access(
  ref: Ref,
  shape: tuple[int, ...],
  start: Array | int = 0,
  store: Array | None = None,
) -> Any:
  """Reads a tile from a token on, in f32, or stores it."""
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import triton

  exists = lax.broadcasted_iota(jnp.int32, shape, 1) < ref.shape[1]
  tile = ref.at[pl.ds(start, shape[0]), pl.ds(0, shape[1])]
  if store is not None:
    return triton.store(tile, store.astype(ref.dtype), mask=exists)
  return triton.load(tile, mask=exists, other=0.0).astype(jnp.float32)


def _mean(x: Array, width: int) -> Array:
  return jnp.sum(x / width, axis=1, keepdims=True)


def _normalize(x: Array, ref: Ref, epsilon: float) -> tuple[Array, Array]:
  """Returns (x - mean) * rate, and rate = 1 / sqrt(var + epsilon), [R, 1]."""
  width = ref.shape[1]
  exists = lax.broadcasted_iota(jnp.int32, x.shape, 1) < width
  centered = jnp.where(exists, x - _mean(x, width), 0.0)
  rate = lax.rsqrt(_mean(centered * centered, width) + epsilon)
  return centered * rate, rate


def _make_dropout(
  settings: Settings, ref: Ref, *words: Ref
) -> Callable[[Array, Array | int], Array]:
  """Returns `drop(tile, start)`, which is `rng.dropout`."""
  from jax.experimental import pallas as pl

  if not settings.rate:
    return lambda tile, start: tile
  row, first = pl.program_id(0), pl.program_id(1) * ref.shape[0]
  row_words = [word[row] for word in words]

  def drop(tile: Array, start: Array | int) -> Array:
    token_Rx1, column_1xC = (
      lax.broadcasted_iota(jnp.int32, shape, axis)
      for axis, shape in enumerate(((len(tile), 1), (1, tile.shape[1])))
    )
    counter_Rx1 = 2 * (token_Rx1 + first + start).astype(jnp.uint32)
    line_words = (
      rng.hash_counter(counter_Rx1, *row_words),
      rng.hash_counter(counter_Rx1 + jnp.uint32(1), *row_words),
    )
    kept = rng.is_kept(column_1xC.astype(jnp.uint32), line_words, settings.rate)
    return jnp.where(kept, tile / (1 - settings.rate), 0.0)

  return drop
