"""Attention as two fused kernels with dropout, for TPUs and NVIDIA's GPUs.

Scores stay on the chip: the forward pass keeps the log-sum-exp of each query
only, and the backward pass computes the scores again (Dao et al. 2022,
"FlashAttention"; Dao 2023, "FlashAttention-2"). A query's weights are a line of
`rng.dropout`, which drops the same weights, whatever the tiles or the mesh.

The kernels are written in Pallas, which is imported when one is traced. A
program computes one block of one head: it keeps this *fixed* block and streams
the blocks of the other side past it, so that a tile of scores is [fixed,
streamed].

In shape suffixes, F and T are tokens of a fixed and of a streamed block.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from truenegs_jax.runtime import rng

Array = jax.Array
Ref = Any  # of Pallas: an array in the chip's memory, or a pointer

GPU_WIDTHS = 16, 32, 64, 128  # of a head: Triton's tiles are powers of two
GPU_WARPS = 8  # with `block_sizes`, ptxas spills no register (sm_90, S <= 128)
MASKED_SCORE = -1e9
LOG2_E = math.log2(math.e)  # scores are in units of log 2, for exp2


@dataclasses.dataclass(frozen=True)
class Settings:
  """The values with which a kernel is compiled."""

  length: int  # tokens of a row, without those added to fill a block
  rate: float = 0.0  # of dropout
  window: int = 0  # largest distance of a query and its keys; 0: any
  platform: str = "tpu"  # or "cuda"
  interpret: bool = False  # runs without such a device, slowly


class Blocks(NamedTuple):
  """Tokens of a fixed and of a streamed block."""

  fixed: int
  streamed: int


class Side(NamedTuple):
  """Position and document of each query, or key, of a tile: a column or row."""

  positions: Array
  documents: Array


def attend(
  query_BxLxHxS: Array,
  key_BxLxHxS: Array,
  value_BxLxHxS: Array,
  documents_BxL: Array,
  words: tuple[Array, Array],
  settings: Settings,
) -> Array:
  """Computes dropout(softmax(query key^T / sqrt(S))) value, `[B, L, H, S]`.

  Args:
    query_BxLxHxS, key_BxLxHxS, value_BxLxHxS: f32 or bf16, the result's dtype.
    documents_BxL: int32; a query attends to the keys of its document.
    words: of dropout, uint32 [B, H, L] each, see `rng.line_words`.
    settings: of this length.
  """
  length = query_BxLxHxS.shape[1]
  filled = padded_length(settings)

  def pad(x: Array, axis: int, value: int = 0) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, filled - length)
    return jnp.pad(x, widths, constant_values=value)

  # Tiles are the last two axes.
  qkv = (
    pad(jnp.swapaxes(x, 1, 2), axis=2)
    for x in (query_BxLxHxS, key_BxLxHxS, value_BxLxHxS)
  )
  documents_Bx1xL = pad(documents_BxL, axis=1, value=-1)[:, None]
  words_2xBxHx1xL = (pad(x, axis=2)[:, :, None] for x in words)
  mixed = _attend(settings, documents_Bx1xL, *words_2xBxHx1xL, *qkv)
  return jnp.swapaxes(mixed, 1, 2)[:, :length]


def padded_length(settings: Settings) -> int:
  """Returns the length of the rows that the kernels get."""
  if settings.platform == "tpu" or settings.length > 128:
    return -(-settings.length // 128) * 128
  return max(16, 1 << (settings.length - 1).bit_length())


def block_sizes(
  kernel: str, settings: Settings, width: int, dtype: Any
) -> Blocks:
  """Returns the blocks of a kernel, which divide `padded_length`."""
  length = padded_length(settings)
  if settings.platform == "tpu":
    block = length if length <= 512 else math.gcd(512, length)
    return Blocks(block, block)
  fixed = 256 if kernel == "flash_forward" else 128
  streamed = 64
  if width > 64:
    fixed //= 2
  if jnp.dtype(dtype) == jnp.float32:
    fixed = streamed = 32
  return Blocks(math.gcd(fixed, length), math.gcd(streamed, length))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(settings: Settings, *arrays: Array) -> Array:
  """Runs the forward kernel on arrays laid out for it."""
  return _run(flash_forward, settings, *arrays)[0]


def _forward_rule(settings: Settings, *arrays: Array) -> tuple[Array, tuple]:
  mixed, lse = (
    checkpoint_name(x, "attention")
    for x in _run(flash_forward, settings, *arrays)
  )
  return mixed, (arrays, mixed, lse)


def _backward_rule(
  settings: Settings, saved: tuple, cotangent: Array
) -> tuple[Array | None, ...]:
  arrays, mixed, lse = saved
  delta = jnp.sum(
    mixed.astype(jnp.float32) * cotangent.astype(jnp.float32), axis=-1
  )
  # The kernel scales its results instead of each weight that is kept.
  delta_BxHx1xL = delta[:, :, None] * (1 - settings.rate)
  inputs = *arrays, cotangent, lse, delta_BxHx1xL
  return None, None, None, *_run(flash_backward, settings, *inputs)


_attend.defvjp(_forward_rule, _backward_rule)


@functools.partial(jax.jit, static_argnums=(0, 1))  # traced once
def _run(
  kernel: Callable[..., None], settings: Settings, *arrays: Array
) -> list[Array]:
  """Runs a kernel on every fixed block of every head; knows the platforms.

  The kernel gets settings, blocks and references to the arrays and to the
  results, which its signature names in this order.
  """
  from jax.experimental import pallas as pl

  _, words, _, query, *_ = arrays
  rows, heads, _, length = words.shape
  width = query.shape[-1]
  blocks = block_sizes(kernel.__name__, settings, width, query.dtype)
  if settings.platform == "tpu":
    from jax.experimental.pallas import tpu

    params: Any = tpu.CompilerParams(
      dimension_semantics=("parallel", "parallel", "arbitrary"),
      # All keys of a row are on chip; the default of 2^24 is too little then.
      vmem_limit_bytes=length * 2**12 if length > 4_096 else None,
    )
  else:
    from jax.experimental.pallas import triton

    params = triton.CompilerParams(num_warps=GPU_WARPS, num_stages=2)
  units = pl.BlockSpec(
    (None, None, length, width), lambda b, h, _: (b, h, 0, 0)
  )
  line = pl.BlockSpec((None, None, 1, length), lambda b, h, _: (b, h, 0, 0))
  document_line = pl.BlockSpec((None, 1, length), lambda b, h, _: (b, 0, 0))
  in_specs = [document_line, line, line, units, units, units]
  like = jax.ShapeDtypeStruct(query.shape, query.dtype)
  lse = jax.ShapeDtypeStruct((rows, heads, 1, length), jnp.float32)
  results = [(like, units), (lse, line)]
  if kernel is flash_backward:
    in_specs += [units, line, line]
    results = [(like, units)] * 3
  out_shape, out_specs = zip(*results, strict=True)
  return pl.pallas_call(
    functools.partial(kernel, settings, blocks),
    grid=(rows, heads, length // blocks.fixed),
    in_specs=in_specs,
    out_specs=out_specs,
    out_shape=out_shape,
    compiler_params=params,
    name=kernel.__name__,
    interpret=settings.interpret,
  )(*arrays)


def flash_forward(
  settings: Settings,
  blocks: Blocks,
  documents_ref: Ref,
  first_ref: Ref,
  second_ref: Ref,
  query_ref: Ref,
  key_ref: Ref,
  value_ref: Ref,
  mixed_ref: Ref,
  lse_ref: Ref,
) -> None:
  """Computes the result of a block of queries, and log2-sum-exp2 of scores."""
  queries, streamed = _slices(blocks)
  drop = _make_dropout(settings, first_ref, second_ref)
  query_FxS = query_ref[queries, :]
  query_side = _side(documents_ref, queries, axis=0)

  def add_keys(block: Array, carry: tuple) -> tuple:
    mixed_FxS, largest_Fx1, total_Fx1 = carry
    keys = streamed(block)
    key_side = _side(documents_ref, keys, axis=1)
    scores_FxT = _scores(
      settings, query_FxS, key_ref[keys, :], query_side, key_side
    )
    row_largest_Fx1 = jnp.max(scores_FxT, axis=1, keepdims=True)
    next_Fx1 = jnp.maximum(largest_Fx1, row_largest_Fx1)
    weights_FxT = jnp.exp2(scores_FxT - next_Fx1)
    shrink_Fx1 = jnp.exp2(largest_Fx1 - next_Fx1)
    total_Fx1 = total_Fx1 * shrink_Fx1
    total_Fx1 += jnp.sum(weights_FxT, axis=1, keepdims=True)
    (weights_FxT,) = drop(queries, 0, key_side, weights_FxT)
    mixed_FxS *= shrink_Fx1
    mixed_FxS += _product(
      weights_FxT.astype(value_ref.dtype), value_ref[keys, :], 1, 0
    )
    return mixed_FxS, next_Fx1, total_Fx1

  column = blocks.fixed, 1
  start = (
    jnp.zeros(query_FxS.shape, jnp.float32),
    jnp.full(column, 2 * MASKED_SCORE, jnp.float32),
    jnp.zeros(column, jnp.float32),
  )
  mixed_FxS, largest_Fx1, total_Fx1 = _stream(
    settings, blocks, key_ref.shape[0], add_keys, start
  )
  mixed_FxS /= total_Fx1 * (1 - settings.rate)
  mixed_ref[queries, :] = mixed_FxS.astype(mixed_ref.dtype)
  lse_ref[:, queries] = (largest_Fx1 + jnp.log2(total_Fx1)).T


def flash_backward(
  settings: Settings,
  blocks: Blocks,
  documents_ref: Ref,
  first_ref: Ref,
  second_ref: Ref,
  query_ref: Ref,
  key_ref: Ref,
  value_ref: Ref,
  cotangent_ref: Ref,
  lse_ref: Ref,
  delta_ref: Ref,
  query_gradient_ref: Ref,
  key_gradient_ref: Ref,
  value_gradient_ref: Ref,
) -> None:
  """Computes the gradients of a block of keys, values and queries."""
  fixed, streamed = _slices(blocks)
  length, width = key_ref.shape
  drop = _make_dropout(settings, first_ref, second_ref)
  differentiate = functools.partial(
    _differentiate, settings, drop, documents_ref, lse_ref, delta_ref
  )
  refs = query_ref, key_ref, value_ref, cotangent_ref
  query_FxS, key_FxS, value_FxS, cotangent_FxS = (r[fixed, :] for r in refs)

  def add_queries(block: Array, carry: tuple[Array, Array]) -> tuple:
    key_gradient, value_gradient = carry
    queries = streamed(block)
    query_TxS = query_ref[queries, :]
    cotangent_TxS = cotangent_ref[queries, :]
    tensors = query_TxS, key_FxS, value_FxS, cotangent_TxS
    dropped, scores = differentiate(tensors, queries, fixed, axis=1)
    key_gradient += _product(scores, query_TxS, 1, 0)
    return key_gradient, value_gradient + _product(dropped, cotangent_TxS, 1, 0)

  def add_keys(block: Array, query_gradient: Array) -> Array:
    keys = streamed(block)
    key_TxS = key_ref[keys, :]
    value_TxS = value_ref[keys, :]
    tensors = query_FxS, key_TxS, value_TxS, cotangent_FxS
    _, scores = differentiate(tensors, fixed, keys, axis=0)
    return query_gradient + _product(scores, key_TxS, 1, 0)

  if length == blocks.fixed == blocks.streamed:
    tensors = query_FxS, key_FxS, value_FxS, cotangent_FxS
    dropped, scores = differentiate(tensors, fixed, fixed, axis=1)
    query_gradient = _product(scores, key_FxS, 0, 0)
    key_gradient = _product(scores, query_FxS, 1, 0)
    value_gradient = _product(dropped, cotangent_FxS, 1, 0)
  else:
    stream = functools.partial(_stream, settings, blocks, length)
    zeros_FxS = jnp.zeros(query_FxS.shape, jnp.float32)
    key_gradient, value_gradient = stream(add_queries, (zeros_FxS, zeros_FxS))
    query_gradient = stream(add_keys, zeros_FxS)
  scale = 1 / (1 - settings.rate)
  score_scale = scale / math.sqrt(width)
  for ref, gradient, factor in (
    (query_gradient_ref, query_gradient, score_scale),
    (key_gradient_ref, key_gradient, score_scale),
    (value_gradient_ref, value_gradient, scale),
  ):
    ref[fixed, :] = (gradient * factor).astype(ref.dtype)


def _differentiate(
  settings: Settings,
  drop: Callable[..., tuple[Array, ...]],
  documents_ref: Ref,
  lse_ref: Ref,
  delta_ref: Ref,
  tensors: tuple[Array, ...],
  queries: Ref,
  keys: Ref,
  axis: int,
) -> tuple[Array, Array]:
  """Returns weights after dropout, and the gradient of scores, of a tile.

  `tensors` are query, key, value, cotangent. `axis` is that of queries.
  """
  query, key, value, cotangent = tensors
  query_side = _side(documents_ref, queries, axis)
  key_side = _side(documents_ref, keys, 1 - axis)
  first, second = (query, key) if axis == 0 else (key, query)
  scores = _scores(settings, first, second, query_side, key_side)
  weights = jnp.exp2(scores - _line(lse_ref, queries, axis))
  first, second = (cotangent, value) if axis == 0 else (value, cotangent)
  gradient = _product(first, second, 1, 1)
  gradient, dropped = drop(queries, axis, key_side, gradient, weights)
  gradient = weights * (gradient - _line(delta_ref, queries, axis))
  return dropped.astype(value.dtype), gradient.astype(value.dtype)


def _slices(blocks: Blocks) -> tuple[Any, Callable[[Array], Any]]:
  """Returns the slice of this program's fixed block, and of streamed blocks."""
  from jax.experimental import pallas as pl

  def slice_at(block: Array, size: int) -> Any:
    return pl.ds(pl.multiple_of(block * size, size), size)

  fixed = slice_at(pl.program_id(2), blocks.fixed)
  return fixed, functools.partial(slice_at, size=blocks.streamed)


def _stream(
  settings: Settings,
  blocks: Blocks,
  length: int,
  body: Callable[[Array, Any], Any],
  start: Any,
) -> Any:
  """Runs `carry = body(block, carry)` on the blocks that the window reaches."""
  from jax.experimental import pallas as pl

  if not settings.window:
    return lax.fori_loop(0, length // blocks.streamed, body, start)
  first = pl.program_id(2) * blocks.fixed
  reach = first - settings.window, first + blocks.fixed - 1 + settings.window
  low, high = (
    lax.div(jnp.clip(position, 0, length - 1), blocks.streamed)
    for position in reach
  )
  return lax.fori_loop(low, high + 1, body, start)


def _line(ref: Ref, tokens: Any, axis: int) -> Array:
  """Reads numbers of tokens: a column for axis 0 of a tile, else a row."""
  row = ref[:, tokens]
  return row.T if axis == 0 else row


def _side(documents_ref: Ref, tokens: Any, axis: int) -> Side:
  shape = (tokens.size, 1) if axis == 0 else (1, tokens.size)
  positions = tokens.start + lax.broadcasted_iota(jnp.int32, shape, axis)
  return Side(positions, _line(documents_ref, tokens, axis))


def _product(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
  """Multiplies matrices over one axis of each; f32 is not rounded before."""
  return lax.dot_general(
    a,
    b,
    (((a_axis,), (b_axis,)), ((), ())),
    precision="highest" if a.dtype == jnp.float32 else "default",
    preferred_element_type=jnp.float32,
  )


def _scores(
  settings: Settings, a: Array, b: Array, queries: Side, keys: Side
) -> Array:
  """Returns a b^T / sqrt(S) in units of log 2, MASKED_SCORE where masked."""
  scores = _product(a, b, 1, 1) * (LOG2_E / math.sqrt(a.shape[1]))
  allowed = queries.documents == keys.documents
  if settings.window:
    distance = jnp.abs(queries.positions - keys.positions)
    allowed &= distance <= settings.window
  return jnp.where(allowed, scores, MASKED_SCORE)


def _make_dropout(
  settings: Settings, first_ref: Ref, second_ref: Ref
) -> Callable[..., tuple[Array, ...]]:
  """Returns `drop(queries, axis, keys, *tiles)`, which does not scale."""
  if not settings.rate:
    return lambda queries, axis, keys, *tiles: tiles

  def drop(
    queries: Any, axis: int, keys: Side, *tiles: Array
  ) -> tuple[Array, ...]:
    words = _line(first_ref, queries, axis), _line(second_ref, queries, axis)
    kept = rng.is_kept(keys.positions.astype(jnp.uint32), words, settings.rate)
    return tuple(jnp.where(kept, x, 0.0) for x in tiles)

  return drop
