"""Cross-entropy, argmax and sample of the output layer in one pass.

All M slots of a batch go at once. The vocabulary is C blocks of W columns, and
everything goes by the blocks first:

* their maxima give that of the softmax, and the block of the likeliest token;
* their sums of exp give its normalizer, and the block of the sampled token.

So one block of each slot is read twice, and there is no noise and no index as
large as the logits. The gradient is (softmax - one-hot), put straight into the
products that lead to the slots and to the table. With `chunk`, logits are
computed for so many slots at a time, and again in the backward pass.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from truenegs_jax.runtime import cpu, rng

Array = jax.Array

BLOCK = 176  # columns: of 30,522 there are 174 blocks, 0.3 % of them padding
NEVER = -1e30  # bias of a column that pads; finite: nothing turns into NaN


@dataclasses.dataclass(frozen=True)
class SoftmaxOutput:
  """Loss and tokens of the slots; `loss_BxK` has a gradient."""

  loss_BxK: Array  # f32, the cross-entropy of the gold tokens
  predicted_BxK: Array  # int32, the likeliest; of equals the first
  sampled_BxK: Array  # int32, drawn from softmax(logits / temperature)


def compute(
  vectors_BxKxE: Array,
  word_VxE: Array,
  bias_V: Array,
  gold_BxK: Array,
  keys_B: Array,
  *,
  temperature: float = 1.0,
  chunk: int = 0,
) -> SoftmaxOutput:
  """Loss, prediction and sample of slots, without keeping all logits.

  Args:
    vectors_BxKxE: in the dtype of the products, which sum in f32.
    word_VxE, bias_V: the output layer, f32.
    gold_BxK: int32.
    keys_B: of the samples: a slot's depends on its row's key and its logits.
    temperature: of the samples alone.
    chunk: most slots whose logits are in memory at a time; 0: all. They are
      split evenly, so there are fewer where their number has no such divisor.
  """
  shape = gold_BxK.shape
  uniform_BxKx2 = rng.uniform(keys_B, (shape[1], 2))
  slots = _flat(vectors_BxKxE), _flat(gold_BxK), _flat(uniform_BxKx2)
  num_slots = math.prod(shape)
  parts = -(-num_slots // chunk) if chunk else 1
  while num_slots % parts:
    parts += 1
  loss_M, *tokens = _read(temperature, parts, slots, word_VxE, bias_V)
  return SoftmaxOutput(
    loss_M.reshape(shape), *(_tokens(x, shape, bias_V.size) for x in tokens)
  )


def compute_from_logits(
  logits_BxKxV: Array, gold_BxK: Array, keys_B: Array, *, temperature: float
) -> SoftmaxOutput:
  """`compute` of given logits, without a custom gradient."""
  return SoftmaxOutput(
    optax.softmax_cross_entropy_with_integer_labels(logits_BxKxV, gold_BxK),
    predict(logits_BxKxV),
    sample(logits_BxKxV, keys_B, temperature),
  )


def predict(logits_BxKxV: Array) -> Array:
  """The likeliest token of each slot, int32 `[B, K]`; no gradient."""
  blocks_MxCxW = _constant_blocks(logits_BxKxV)
  predicted_M = _likeliest(blocks_MxCxW, _maxima(blocks_MxCxW))
  return _tokens(predicted_M, logits_BxKxV.shape[:2], logits_BxKxV.shape[2])


def sample(logits_BxKxV: Array, keys_B: Array, temperature: float) -> Array:
  """One token a slot from softmax(logits / temperature), int32 `[B, K]`.

  By the inverse of its distribution function in f32 (half precision distorts
  the tail), with a uniform number for the block and one for the column. No
  gradient: the discriminator never trains the generator (Clark et al. 2020,
  section 3.1).
  """
  shape = logits_BxKxV.shape[:2]
  uniform_Mx2 = _flat(rng.uniform(keys_B, (shape[1], 2)))
  blocks_MxCxW = _constant_blocks(logits_BxKxV)
  top_M = _maxima(blocks_MxCxW).max(axis=1)
  mass_MxC = _masses(blocks_MxCxW, top_M, temperature)
  sampled_M = _sampled(blocks_MxCxW, top_M, mass_MxC, uniform_Mx2, temperature)
  return _tokens(sampled_M, shape, logits_BxKxV.shape[2])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _read(
  temperature: float, parts: int, slots: tuple, word_VxE: Array, bias_V: Array
) -> tuple[Array, Array, Array]:
  return _forward(temperature, parts, slots, word_VxE, bias_V)[0]


def _forward(temperature, parts, slots, word_VxE, bias_V):
  layer = _output_layer(word_VxE, bias_V, slots[0].dtype, parts)

  def one(slots):
    x_MxE, gold_M, uniform_Mx2 = slots
    logits_MxV = _logits(x_MxE, *layer)
    return _summary(logits_MxV, gold_M, uniform_Mx2, temperature), logits_MxV

  if parts == 1:
    (outputs, norm_M), logits_MxV = one(slots)
  else:
    several = jax.lax.map(lambda part: one(part)[0], _split(slots, parts))
    (outputs, norm_M), logits_MxV = _join(several), None
  return outputs, (slots, word_VxE, bias_V, norm_M, logits_MxV)


def _backward(temperature, parts, saved, cotangents):
  del temperature
  (x_MxE, gold_M, _), word_VxE, bias_V, norm_M, logits_MxV = saved
  word, bias = _output_layer(word_VxE, bias_V, x_MxE.dtype, parts)
  column = jnp.arange(bias.size, dtype=jnp.int32)

  def of_columns(column, word, logits):
    """The gradients of some columns: to their layer, and their part of x's."""
    is_gold = column[None] == gold_M[:, None]
    off = jnp.exp(logits - norm_M[:, None]) - is_gold
    off = (cotangents[0][:, None] * off).astype(x_MxE.dtype)
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    # The sum over slots as a product: XLA's own is 20 times slower on a CPU.
    ones_M = jnp.ones_like(gold_M, off.dtype)
    layer = product("mv,me->ve", off, x_MxE), product("m,mv->v", ones_M, off)
    return layer, product("mv,ve->me", off, word)

  if parts == 1:
    layer, to_x_MxE = of_columns(column, word, logits_MxV)
  else:
    # By parts of the vocabulary: their gradients stand side by side, where
    # those of parts of the slots would each be as large as the table.
    def add(to_x_MxE, part):
      column, word, bias = part
      logits = _logits(x_MxE, word, bias)
      layer, more_MxE = of_columns(column, word, logits)
      return to_x_MxE + more_MxE, layer

    zeros_MxE = jnp.zeros(x_MxE.shape)
    to_x_MxE, layer = jax.lax.scan(
      add, zeros_MxE, _split((column, word, bias), parts)
    )
    layer = _join(layer)
  to_word_VxE, to_bias_V = (x[: bias_V.size] for x in layer)
  to_slots = to_x_MxE.astype(x_MxE.dtype), None, None
  return to_slots, to_word_VxE, to_bias_V


_read.defvjp(_forward, _backward)


def _summary(logits_MxV, gold_M, uniform_Mx2, temperature):
  """(loss, predicted, sampled) and the log of the normalizer, `[M]` each."""
  blocks_MxCxW = _blocks(logits_MxV)
  maxima_MxC = _maxima(blocks_MxCxW)
  top_M = maxima_MxC.max(axis=1)
  mass_MxC = _masses(blocks_MxCxW, top_M, 1.0)
  norm_M = top_M + jnp.log(mass_MxC.sum(axis=1))
  gold_Mx1 = jnp.take_along_axis(logits_MxV, gold_M[:, None], axis=1)
  if temperature != 1.0:
    mass_MxC = _masses(blocks_MxCxW, top_M, temperature)
  sampled_M = _sampled(blocks_MxCxW, top_M, mass_MxC, uniform_Mx2, temperature)
  predicted_M = _likeliest(blocks_MxCxW, maxima_MxC)
  return (norm_M - gold_Mx1[:, 0], predicted_M, sampled_M), norm_M


def _maxima(blocks_MxCxW: Array) -> Array:
  """The largest logit of each block."""
  return _materialized(blocks_MxCxW.max(axis=2))


def _masses(blocks_MxCxW: Array, top_M: Array, temperature: float) -> Array:
  """The sum of exp((x - top) / temperature) over each block."""
  scaled_MxCxW = (blocks_MxCxW - top_M[:, None, None]) / temperature
  return _materialized(jnp.exp(scaled_MxCxW).sum(axis=2))


def _materialized(x_MxC: Array) -> Array:
  """On a CPU XLA would compute it anew, from all logits, for each use."""
  return jax.lax.optimization_barrier(x_MxC) if cpu.is_enabled() else x_MxC


def _likeliest(blocks_MxCxW: Array, maxima_MxC: Array) -> Array:
  """The first index of the largest logit, int32; any of logits that are NaN."""
  block_M = jnp.argmax(maxima_MxC, axis=1)
  column_M = jnp.argmax(_take(blocks_MxCxW, block_M), axis=1)
  return (block_M * BLOCK + column_M).astype(jnp.int32)


def _sampled(blocks_MxCxW, top_M, mass_MxC, uniform_Mx2, temperature):
  """A token from softmax(logits / temperature): its block, then its column."""
  block_M = _invert(mass_MxC, uniform_Mx2[:, 0])
  scaled_MxW = (_take(blocks_MxCxW, block_M) - top_M[:, None]) / temperature
  return block_M * BLOCK + _invert(jnp.exp(scaled_MxW), uniform_Mx2[:, 1])


def _invert(mass_MxC: Array, uniform_M: Array) -> Array:
  """Where a share of the sum of the masses is reached, int32 `[M]`.

  Never at one that is 0, however the sums are rounded; NaN gives any place.
  """
  size = mass_MxC.shape[1]
  place_1xC = jnp.arange(size, dtype=jnp.int32)[None]
  up_to_CxC = jnp.triu(jnp.ones((size, size), jnp.float32))
  reached_MxC = jnp.matmul(mass_MxC, up_to_CxC, precision="highest")
  there_MxC = reached_MxC > uniform_M[:, None] * reached_MxC[:, -1:]
  first_M = jnp.where(there_MxC & (mass_MxC > 0), place_1xC, size).min(axis=1)
  last_M = jnp.where(mass_MxC > 0, place_1xC, 0).max(axis=1)
  return jnp.minimum(first_M, last_M)


def _take(blocks_MxCxW: Array, block_M: Array) -> Array:
  """One block of each slot, `[M, W]`."""
  index_Mx1x1 = block_M[:, None, None]
  return jnp.take_along_axis(blocks_MxCxW, index_Mx1x1, axis=1)[:, 0]


def _output_layer(
  word_VxE: Array, bias_V: Array, dtype: Any, parts: int
) -> tuple[Array, Array]:
  """In the dtype of the products, padded to blocks and equal parts."""
  word_VxE = _padded(word_VxE, 0.0, parts).astype(dtype)
  return word_VxE, _padded(bias_V, NEVER, parts)


def _logits(x_MxE: Array, word_VxE: Array, bias_V: Array) -> Array:
  logits_MxV = jnp.einsum(
    "me,ve->mv", x_MxE, word_VxE, preferred_element_type=jnp.float32
  )
  return logits_MxV + bias_V[None]


def _padded(x: Array, value: float, parts: int = 1, *, axis: int = 0) -> Array:
  """Pads the vocabulary to `parts` equal parts of whole blocks."""
  widths = [(0, 0)] * x.ndim
  widths[axis] = 0, -x.shape[axis] % (parts * BLOCK)
  return jnp.pad(x, widths, constant_values=value)


def _constant_blocks(logits_BxKxV: Array) -> Array:
  """Given logits as f32 `[M, C, W]`, without a gradient."""
  logits_BxKxV = jax.lax.stop_gradient(logits_BxKxV).astype(jnp.float32)
  return _blocks(_padded(_flat(logits_BxKxV), NEVER, axis=1))


def _blocks(logits_MxV: Array) -> Array:
  return logits_MxV.reshape(len(logits_MxV), -1, BLOCK)


def _flat(x: Array) -> Array:
  """`[B, K, ...]` as `[M, ...]`."""
  return x.reshape(-1, *x.shape[2:])


def _tokens(token_M: Array, shape: tuple[int, ...], size: int) -> Array:
  """`[B, K]` without padding, which infinite vectors may lead to."""
  return jnp.minimum(token_M, size - 1).reshape(shape)


def _split(tree: Any, parts: int) -> Any:
  """Every n-th slot, or column: those of a device stay on the device."""
  split = lambda x: jnp.moveaxis(x.reshape(-1, parts, *x.shape[1:]), 1, 0)
  return jax.tree.map(split, tree)


def _join(tree: Any) -> Any:
  """Undoes `_split`."""
  join = lambda x: jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:])
  return jax.tree.map(join, tree)
