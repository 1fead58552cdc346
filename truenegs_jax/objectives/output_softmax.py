"""Computes cross-entropy, argmax and sample of the output layer in one pass.

All M = B * K slots of a batch are computed together. The vocabulary is split
into C blocks of W columns. The maxima of the blocks give the block of the
likeliest token, and the sums of exp the normalizer and the block of the sampled
token, so that only one block per slot is read again. With `chunk`, the logits
of only that many slots are in memory, and the backward pass computes them
again. Each chunk has slots of all rows: none changes its device.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from truenegs_jax.runtime import cpu, rng

Array = jax.Array

BLOCK = 176  # columns; 30,522 tokens are 174 blocks with 0.3 % padding
PADDING_BIAS = -1e30  # finite, so that no difference is NaN


@dataclasses.dataclass(frozen=True)
class SoftmaxOutput:
  """Loss, tokens and logits of the slots.

  The tokens have no gradient: the discriminator does not train the generator
  (Clark et al. 2020, section 3.1).
  """

  loss_BxK: Array  # f32, the cross-entropy of the gold tokens
  predicted_BxK: Array  # int32, the likeliest token, the first of equals
  sampled_BxK: Array  # int32, drawn from softmax(logits)
  listed_BxKxS: Array  # f32, the logits of the listed tokens


def compute(
  vectors_BxKxE: Array,
  word_VxE: Array,
  bias_V: Array,
  gold_BxK: Array,
  keys_B: Array,
  *,
  listed_BxKxS: Array | None = None,
  chunk: int = 0,
) -> SoftmaxOutput:
  """Computes loss, prediction and sample of each slot from its vector.

  A sample inverts the cumulative distribution in f32, as half precision
  distorts the tail: one uniform number chooses the block, and one the column.

  Args:
    vectors_BxKxE: float; products have this dtype and sum in f32.
    word_VxE: the output table, f32.
    bias_V: the output bias, f32.
    gold_BxK: int32.
    keys_B: one typed key per row, on which its samples depend.
    listed_BxKxS: int32, tokens whose logits are returned; None: none.
    chunk: the most slots whose logits are in memory at a time, but at least
      one of each row; 0: all.
  """
  num_rows, num_slots = gold_BxK.shape
  if listed_BxKxS is None:
    listed_BxKxS = jnp.zeros((*gold_BxK.shape, 0), jnp.int32)
  uniform_BxKx2 = rng.uniform(keys_B, (num_slots, 2))
  num_chunks = count_chunks(num_rows, num_slots, chunk)
  widths = (0, 0), (0, -num_slots % num_chunks), (0, 0)
  slots = tuple(
    jax.lax.collapse(jnp.pad(x, widths[: x.ndim]), 0, 2)
    for x in (vectors_BxKxE, gold_BxK, uniform_BxKx2, listed_BxKxS)
  )
  loss, predicted, sampled, listed = (
    x.reshape(num_rows, len(x) // num_rows, *x.shape[1:])[:, :num_slots]
    for x in _compute_flat(num_chunks, slots, word_VxE, bias_V)
  )
  # Infinite logits may have chosen padding of the vocabulary.
  last = bias_V.size - 1
  return SoftmaxOutput(
    loss, jnp.minimum(predicted, last), jnp.minimum(sampled, last), listed
  )


def list_top(
  vectors_BxKxE: Array,
  word_VxE: Array,
  bias_V: Array,
  top: int,
  *,
  chunk: int = 0,
) -> tuple[Array, Array]:
  """Returns the greatest logits of each slot and their tokens, `[B, K, top]`.

  They fall; arguments are those of `compute`.
  """
  num_rows, num_slots, _ = vectors_BxKxE.shape
  num_chunks = count_chunks(num_rows, num_slots, chunk)
  padding = (0, 0), (0, -num_slots % num_chunks), (0, 0)
  x_MxE = jax.lax.collapse(jnp.pad(vectors_BxKxE, padding), 0, 2)
  word_VxE = word_VxE.astype(x_MxE.dtype)
  chunks = jax.lax.map(
    lambda x_MxE: jax.lax.top_k(_logits(x_MxE, word_VxE, bias_V), top),
    _split_chunks(x_MxE, num_chunks),
  )
  logits_BxKxS, token_BxKxS = (
    x.reshape(num_rows, -1, top)[:, :num_slots] for x in _join_chunks(chunks)
  )
  return logits_BxKxS, token_BxKxS


def count_chunks(num_rows: int, num_slots: int, chunk: int) -> int:
  """Returns the number of chunks in which `compute` splits the K slots."""
  return -(-num_slots // max(chunk // num_rows, 1)) if chunk > 0 else 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _compute_flat(num_chunks, slots, word_VxE, bias_V):
  """Returns loss, predicted, sampled and listed logits of the slots.

  `slots` are vectors, gold tokens, uniform numbers and listed tokens.
  """
  return _forward(num_chunks, slots, word_VxE, bias_V)[0]


def _forward(num_chunks, slots, word_VxE, bias_V):
  layer = _pad_output_layer(word_VxE, bias_V, slots[0].dtype, num_chunks)

  def compute_chunk(slots):
    logits_MxV = _logits(slots[0], *layer)
    return _summarize(logits_MxV, *slots[1:]), logits_MxV

  if num_chunks == 1:
    (outputs, norm_M), logits_MxV = compute_chunk(slots)
  else:
    chunks = jax.lax.map(
      lambda chunk: compute_chunk(chunk)[0], _split_chunks(slots, num_chunks)
    )
    (outputs, norm_M) = _join_chunks(chunks)
    logits_MxV = None
  return outputs, (slots, word_VxE, bias_V, norm_M, logits_MxV)


def _backward(num_chunks, saved, cotangents):
  (x_MxE, gold_M, _, listed_MxS), word_VxE, bias_V, norm_M, logits_MxV = saved
  to_loss_M, *_, to_listed_MxS = cotangents
  index_Mx1 = jnp.arange(len(gold_M))[:, None]
  word, bias = _pad_output_layer(word_VxE, bias_V, x_MxE.dtype, num_chunks)
  column = jnp.arange(bias.size, dtype=jnp.int32)

  def column_gradients(column, word, logits):
    """Returns the gradients of columns of the layer, and their part of x's."""
    is_gold = column[None] == gold_M[:, None]
    grad = jnp.exp(logits - norm_M[:, None]) - is_gold
    grad = (to_loss_M[:, None] * grad).astype(x_MxE.dtype)
    # The columns are every n-th of the layer.
    is_here_MxS = listed_MxS % num_chunks == column[0]
    here_MxS = jnp.where(is_here_MxS, listed_MxS // num_chunks, column.size)
    change_MxS = to_listed_MxS.astype(grad.dtype)
    grad = grad.at[index_Mx1, here_MxS].add(change_MxS, mode="drop")
    product = functools.partial(
      jnp.einsum, preferred_element_type=cpu.product_dtype(grad.dtype)
    )
    to_word_VxE = product("mv,me->ve", grad, x_MxE).astype(jnp.float32)
    to_x_MxE = product("mv,ve->me", grad, word).astype(jnp.float32)
    return (to_word_VxE, _sum_slots(grad)), to_x_MxE

  if num_chunks == 1:
    layer, to_x_MxE = column_gradients(column, word, logits_MxV)
  else:
    # By chunks of the vocabulary, whose gradients add up to one table; each
    # chunk of slots would have a gradient as large as the table.
    def add_chunk(to_x_MxE, chunk):
      column, word, bias = chunk
      logits = _logits(x_MxE, word, bias)
      layer, more_MxE = column_gradients(column, word, logits)
      return to_x_MxE + more_MxE, layer

    zeros_MxE = jnp.zeros(x_MxE.shape)
    to_x_MxE, layer = jax.lax.scan(
      add_chunk, zeros_MxE, _split_chunks((column, word, bias), num_chunks)
    )
    layer = _join_chunks(layer)
  to_word_VxE, to_bias_V = (x[: bias_V.size] for x in layer)
  to_slots = to_x_MxE.astype(x_MxE.dtype), None, None, None
  return to_slots, to_word_VxE, to_bias_V


_compute_flat.defvjp(_forward, _backward)


def _sum_slots(grad_MxV: Array) -> Array:
  """Sums over slots, f32 `[V]`: by a product on CPUs, which is 20 times faster.

  On a GPU a product would need all gradients once more, in f32.
  """
  if not cpu.is_enabled():
    return jnp.sum(grad_MxV, axis=0, dtype=jnp.float32)
  ones_M = jnp.ones(len(grad_MxV), grad_MxV.dtype)
  return jnp.einsum(
    "m,mv->v", ones_M, grad_MxV, preferred_element_type=jnp.float32
  )


def _summarize(logits_MxV, gold_M, uniform_Mx2, listed_MxS):
  """Returns (loss, predicted, sampled, listed) and the log normalizers."""
  blocks_MxCxW = logits_MxV.reshape(len(logits_MxV), -1, BLOCK)
  maxima_MxC = _block_maxima(blocks_MxCxW)
  top_M = maxima_MxC.max(axis=1)
  mass_MxC = _block_sums(blocks_MxCxW, top_M)
  norm_M = top_M + jnp.log(mass_MxC.sum(axis=1))
  gold_Mx1 = jnp.take_along_axis(logits_MxV, gold_M[:, None], axis=1)
  sampled_M = _sample(blocks_MxCxW, top_M, mass_MxC, uniform_Mx2)
  predicted_M = _argmax(blocks_MxCxW, maxima_MxC)
  loss_M = norm_M - gold_Mx1[:, 0]
  listed_MxS = jnp.take_along_axis(logits_MxV, listed_MxS, axis=1)
  return (loss_M, predicted_M, sampled_M, listed_MxS), norm_M


def _block_maxima(blocks_MxCxW: Array) -> Array:
  return _materialize(blocks_MxCxW.max(axis=2))


def _block_sums(blocks_MxCxW: Array, top_M: Array) -> Array:
  """Sums exp(x - top) over each block, `[M, C]`."""
  weight_MxCxW = jnp.exp(blocks_MxCxW - top_M[:, None, None])
  return _materialize(weight_MxCxW.sum(axis=2))


def _materialize(x_MxC: Array) -> Array:
  """Stops XLA on a CPU from computing `x` from all logits at each use."""
  return jax.lax.optimization_barrier(x_MxC) if cpu.is_enabled() else x_MxC


def _argmax(blocks_MxCxW: Array, maxima_MxC: Array) -> Array:
  """Returns the first index of the largest logit, int32 `[M]`; any for NaN."""
  block_M = jnp.argmax(maxima_MxC, axis=1)
  column_M = jnp.argmax(_take_block(blocks_MxCxW, block_M), axis=1)
  return (block_M * BLOCK + column_M).astype(jnp.int32)


def _sample(blocks_MxCxW, top_M, mass_MxC, uniform_Mx2):
  """Draws from the softmax: a block, then its column."""
  block_M = _invert_cdf(mass_MxC, uniform_Mx2[:, 0])
  block_MxW = _take_block(blocks_MxCxW, block_M)
  weight_MxW = jnp.exp(block_MxW - top_M[:, None])
  return block_M * BLOCK + _invert_cdf(weight_MxW, uniform_Mx2[:, 1])


def _invert_cdf(mass_MxC: Array, uniform_M: Array) -> Array:
  """Returns the first index whose cumulative mass exceeds uniform * total.

  The int32 index `[M]` is never that of a mass of 0, whatever the rounding of
  the sums. NaN gives any index.
  """
  size = mass_MxC.shape[1]
  index_1xC = jnp.arange(size, dtype=jnp.int32)[None]
  up_to_CxC = jnp.triu(jnp.ones((size, size), jnp.float32))
  total_MxC = jnp.matmul(mass_MxC, up_to_CxC, precision="highest")
  exceeds_MxC = total_MxC > uniform_M[:, None] * total_MxC[:, -1:]
  first_M = jnp.where(exceeds_MxC & (mass_MxC > 0), index_1xC, size).min(axis=1)
  last_M = jnp.where(mass_MxC > 0, index_1xC, 0).max(axis=1)
  return jnp.minimum(first_M, last_M)


def _take_block(blocks_MxCxW: Array, block_M: Array) -> Array:
  """Returns one block per slot, `[M, W]`."""
  # From [M, V]: a TPU would copy all logits to gather from [M, C, W].
  logits_MxV = blocks_MxCxW.reshape(len(block_M), -1)

  def take(logits_V, block):
    return jax.lax.dynamic_slice(logits_V, (block * BLOCK,), (BLOCK,))

  return jax.vmap(take)(logits_MxV, block_M)


def _pad_output_layer(
  word_VxE: Array, bias_V: Array, dtype: jnp.dtype, num_chunks: int
) -> tuple[Array, Array]:
  """Pads table and bias to equal chunks of whole blocks; casts the table."""
  padding = 0, -bias_V.size % (num_chunks * BLOCK)
  word_VxE = jnp.pad(word_VxE, (padding, (0, 0))).astype(dtype)
  return word_VxE, jnp.pad(bias_V, padding, constant_values=PADDING_BIAS)


def _logits(x_MxE: Array, word_VxE: Array, bias_V: Array) -> Array:
  logits_MxV = jnp.einsum(
    "me,ve->mv", x_MxE, word_VxE, preferred_element_type=jnp.float32
  )
  return logits_MxV + bias_V[None]


def _split_chunks(tree: Any, num_chunks: int) -> Any:
  """Puts every n-th slot or column into one chunk."""
  return jax.tree.map(
    lambda x: jnp.moveaxis(
      x.reshape(len(x) // num_chunks, num_chunks, *x.shape[1:]), 1, 0
    ),
    tree,
  )


def _join_chunks(tree: Any) -> Any:
  """Undoes `_split_chunks`."""
  return jax.tree.map(
    lambda x: jax.lax.collapse(jnp.moveaxis(x, 0, 1), 0, 2), tree
  )
