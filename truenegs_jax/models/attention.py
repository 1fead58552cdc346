"""Self-attention inside documents, by XLA or by a fused kernel.

mask = attention.make_mask(implementation, documents_BxL)  # once for all layers
mixed = attention.attend(query, key, value, mask, keys_B, rate=0.1, site=1)

A token attends to the tokens of its own document. Padding is document 0 and
attends to padding, so that no softmax is over nothing.

Models are built with `XLA`, which runs everywhere and is the reference for the
others. `choose_attention` chooses one for the devices of a training.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from truenegs_jax.models import flash_attention
from truenegs_jax.runtime import rng

Array = jax.Array

MASKED_SCORE = -1e9
# On a CPU, fewer scores than these are not worth a longer compilation.
MIN_SCORES = 2**18


@dataclasses.dataclass(frozen=True)
class Implementation:
  """How attention is computed."""

  # "xla", "pieces" (a quarter of the rows at a time, for CPUs), or "flash".
  name: str = "xla"
  # Devices that the kernel runs on; None: one. Rows are split over the first
  # axis, and heads over the others that divide their number.
  mesh: Mesh | None = None
  interpret: bool = False  # runs kernels without their devices, slowly
  platform: str = "tpu"  # or "cuda", for flash attention and `fused_norm`


XLA = Implementation()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionMask:
  """The mask of a batch, which all layers share."""

  documents_BxL: Array
  allowed_Bx1xLxL: Array | None  # `same_document` for "xla", else None
  implementation: Implementation = dataclasses.field(metadata={"static": True})
  window: int = dataclasses.field(default=0, metadata={"static": True})


def make_mask(
  implementation: Implementation, documents_BxL: Array, window: int = 0
) -> AttentionMask:
  """Builds the mask of a batch, for XLA if a mesh does not divide the rows.

  A token attends to tokens at most `window` positions away; 0: to any.
  """
  mesh = implementation.mesh  # the parameters are initialized with one row
  if mesh and len(documents_BxL) % mesh.shape[mesh.axis_names[0]]:
    implementation = XLA
  allowed_Bx1xLxL = None
  if implementation.name == "xla":
    allowed_Bx1xLxL = same_document(documents_BxL, window)
  return AttentionMask(documents_BxL, allowed_Bx1xLxL, implementation, window)


def same_document(documents_BxL: Array, window: int = 0) -> Array:
  """True `[B, 1, L, L]` where a query may attend to a key."""
  same_BxLxL = documents_BxL[:, :, None] == documents_BxL[:, None, :]
  if window:
    index_L = jnp.arange(documents_BxL.shape[1])
    near_LxL = jnp.abs(index_L[:, None] - index_L[None]) <= window
    same_BxLxL &= near_LxL[None]
  return same_BxLxL[:, None]


def attend(
  query_BxLxHxS: Array,
  key_BxLxHxS: Array,
  value_BxLxHxS: Array,
  mask: AttentionMask,
  keys_B: rng.Keys,
  *,
  rate: float,
  site: int | Array,
) -> Array:
  """Computes softmax(query key^T / sqrt(S)) value, `[B, L, H, S]`.

  All have one dtype. `site` is the number of the softmax's dropout, unique in
  the network.
  """
  qkv = query_BxLxHxS, key_BxLxHxS, value_BxLxHxS
  dropout = functools.partial(rng.dropout, rate=rate, site=site)
  if mask.allowed_Bx1xLxL is not None:
    return dot_product_attention(*qkv, mask.allowed_Bx1xLxL, keys_B, dropout)
  if mask.implementation.name == "pieces":
    rows, length, heads, _ = query_BxLxHxS.shape
    return _map_row_quarters(
      lambda query, key, value, documents, keys: dot_product_attention(
        query, key, value, same_document(documents, mask.window), keys, dropout
      ),
      *qkv,
      mask.documents_BxL,
      keys_B,
      num_scores=rows * heads * length**2,
    )
  rows, length, heads, _ = query_BxLxHxS.shape
  words = (jnp.zeros((rows, heads, length), jnp.uint32),) * 2
  if keys_B is None or rate == 0:
    return _run_kernel(mask, *qkv, words, rate=0.0)
  words = rng.line_words(keys_B, (heads, length), site)
  return _run_kernel(mask, *qkv, words, rate)


def _map_row_quarters(
  fn: Callable[..., Array], *arrays: Array | None, num_scores: int
) -> Array:
  """Applies a function of a batch to a quarter of its rows at a time.

  On a CPU, XLA computes a batched product on one core but independent products
  in parallel, and the scores of a quarter fit into the caches. With fewer
  attention scores than MIN_SCORES the batch is not split.
  """
  num_rows = next(len(x) for x in arrays if x is not None)
  num_parts = min(4, num_rows) if num_scores >= MIN_SCORES else 1
  split = [
    [None] * num_parts if x is None else jnp.array_split(x, num_parts)
    for x in arrays
  ]
  return jnp.concatenate([fn(*part) for part in zip(*split, strict=True)])


def dot_product_attention(
  query_BxLxHxS: Array,
  key_BxLxHxS: Array,
  value_BxLxHxS: Array,
  allowed_Bx1xLxL: Array,
  keys_B: rng.Keys,
  dropout: Callable[[Array, rng.Keys], Array],
) -> Array:
  """Computes `attend` from all scores `[B, H, L, L]`; the softmax is f32."""
  scaled_BxLxHxS = query_BxLxHxS / math.sqrt(query_BxLxHxS.shape[-1])
  # Heads first: otherwise XLA transposes the units of a head on a CPU.
  query_BxHxLxS, key_BxHxLxS, value_BxHxLxS = (
    jnp.swapaxes(x, 1, 2) for x in (scaled_BxLxHxS, key_BxLxHxS, value_BxLxHxS)
  )
  scores_BxHxLxL = jnp.einsum(
    "bhqs,bhks->bhqk",
    query_BxHxLxS,
    key_BxHxLxS,
    preferred_element_type=jnp.float32,
  )
  scores_BxHxLxL = jnp.where(allowed_Bx1xLxL, scores_BxHxLxL, MASKED_SCORE)
  weights_BxHxLxL = jax.nn.softmax(scores_BxHxLxL).astype(value_BxLxHxS.dtype)
  weights_BxHxLxL = dropout(weights_BxHxLxL, keys_B)
  mixed_BxHxLxS = jnp.einsum("bhqk,bhks->bhqs", weights_BxHxLxL, value_BxHxLxS)
  return jnp.swapaxes(mixed_BxHxLxS, 1, 2)


def _run_kernel(
  mask: AttentionMask,
  query_BxLxHxS: Array,
  key_BxLxHxS: Array,
  value_BxLxHxS: Array,
  words: tuple[Array, Array],
  rate: float,
) -> Array:
  """Runs flash attention, on a mesh on the rows and heads of each device."""
  how, mesh = mask.implementation, mask.implementation.mesh
  _, length, heads, _ = query_BxLxHxS.shape
  settings = flash_attention.Settings(
    length, rate, mask.window, how.platform, how.interpret
  )

  def kernel(query, key, value, documents, words):
    return flash_attention.attend(query, key, value, documents, words, settings)

  qkv = query_BxLxHxS, key_BxLxHxS, value_BxLxHxS
  arrays = *qkv, mask.documents_BxL, words
  if mesh is None:
    return kernel(*arrays)
  rows, *others = mesh.axis_names
  split = tuple(axis for axis in others if heads % mesh.shape[axis] == 0)
  units = P(rows, None, split or None)
  return jax.shard_map(
    kernel,
    mesh=mesh,
    in_specs=(units, units, units, P(rows), P(rows, split or None)),
    out_specs=units,
    check_vma=False,
  )(*arrays)
