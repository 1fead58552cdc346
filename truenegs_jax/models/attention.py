"""Self-attention behind one function: XLA's, cuDNN's or a TPU kernel's.

mask = attention.make_mask(form, documents_BxL)  # once for all layers
mixed = attention.attend(query, key, value, mask, keys_B, rate=0.1, site=1)

Tokens attend to their own document. Padding counts as one, document 0: no row
of a softmax is empty, and nothing real attends to it.

Models are built with PLAIN, which runs everywhere and is the reference of the
other forms. `choose_attention` chooses the form for the devices of a training.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from truenegs_jax.runtime import cpu_ops, rng

Array = jax.Array
Drop = Callable[[Array, Array | None], Array]  # weights, keys -> weights

MASKED_SCORE = -1e9
# Kernels are used for rows whose length is a multiple of it: TPUs have 128
# lanes, and cuDNN gave NaN gradients at odd multiples of 64
# (pytorch/pytorch#196678).
LENGTH_MULTIPLE = 128
BLOCK_SIZES = (512, 384, 256, 128)  # tokens of a block of splash attention


@dataclasses.dataclass(frozen=True)
class Implementation:
  """How attention is computed.

  Attributes:
    name: "xla", "pieces" (quarters of the batch, for a CPU) or one of KERNELS.
    mesh: devices that kernels run on, each with its own rows (first axis) and
      heads (second axis, if it divides them); None: one device.
    interpret: splash attention without a TPU, slowly.
  """

  name: str = "xla"
  mesh: Mesh | None = None
  interpret: bool = False


XLA = Implementation()


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["documents_BxL", "allowed_Bx1xLxL"],
  meta_fields=["implementation"],
)
@dataclasses.dataclass(frozen=True)
class AttentionMask:
  """Who attends to whom, for all layers alike, and the form that computes it.

  `allowed_Bx1xLxL` is true where query and key are of the same document; only
  the form "xla" has it.
  """

  documents_BxL: Array
  allowed_Bx1xLxL: Array | None
  implementation: Implementation


def make_mask(form: Implementation, documents_BxL: Array) -> AttentionMask:
  """The mask of rows; "xla" replaces a kernel that does not take the length."""
  if form.name in KERNELS and documents_BxL.shape[1] % LENGTH_MULTIPLE:
    form = XLA
  allowed_Bx1xLxL = None
  if form.name == "xla":
    allowed_Bx1xLxL = same_document(documents_BxL)
  return AttentionMask(documents_BxL, allowed_Bx1xLxL, form)


def same_document(documents_BxL: Array) -> Array:
  """True `[B, 1, L, L]` where query and key are of the same document."""
  return (documents_BxL[:, :, None] == documents_BxL[:, None, :])[:, None]


def attend(
  query_BxLxHxS: Array,
  key_BxLxHxS: Array,
  value_BxLxHxS: Array,
  mask: AttentionMask,
  dropout_keys_B: Array | None,
  *,
  rate: float,
  site: int | Array,
) -> Array:
  """Softmax attention `[B, L, H, S]`, with dropout on its weights.

  Args:
    query_BxLxHxS, key_BxLxHxS, value_BxLxHxS: of one dtype, as the result.
    mask: of their rows.
    dropout_keys_B: None turns dropout off.
    rate: of dropout, 0 for a kernel in training.
    site: of dropout, as in `rng.dropout`.
  """
  qkv = query_BxLxHxS, key_BxLxHxS, value_BxLxHxS
  documents_BxL = mask.documents_BxL
  drop = functools.partial(rng.dropout, rate=rate, site=site)
  if mask.allowed_Bx1xLxL is not None:
    return dot_product_attention(
      *qkv, mask.allowed_Bx1xLxL, dropout_keys_B, drop
    )
  if mask.implementation.name == "pieces":
    rows, length, heads, _ = query_BxLxHxS.shape
    return cpu_ops.map_row_quarters(
      lambda query, key, value, documents, keys: dot_product_attention(
        query, key, value, same_document(documents), keys, drop
      ),
      *qkv,
      documents_BxL,
      dropout_keys_B,
      num_scores=rows * heads * length**2,
    )
  assert dropout_keys_B is None or rate == 0, "kernels have no dropout of ours"
  return _on_mesh(mask.implementation, *qkv, documents_BxL)


def dot_product_attention(
  query_BxLxHxS: Array,
  key_BxLxHxS: Array,
  value_BxLxHxS: Array,
  allowed_Bx1xLxL: Array,
  dropout_keys_B: Array | None,
  drop: Drop,
) -> Array:
  """Softmax attention as it is written in the paper; the softmax is f32."""
  # Heads first: otherwise XLA transposes the units of a head on a CPU.
  query_BxHxLxS, key_BxHxLxS, value_BxHxLxS = (
    jnp.swapaxes(x, 1, 2)
    for x in (
      query_BxLxHxS / math.sqrt(query_BxLxHxS.shape[-1]),
      key_BxLxHxS,
      value_BxLxHxS,
    )
  )
  scores_BxHxLxL = jnp.einsum(
    "bhqs,bhks->bhqk",
    query_BxHxLxS,
    key_BxHxLxS,
    preferred_element_type=jnp.float32,
  )
  scores_BxHxLxL = jnp.where(allowed_Bx1xLxL, scores_BxHxLxL, MASKED_SCORE)
  weights_BxHxLxL = jax.nn.softmax(scores_BxHxLxL).astype(value_BxLxHxS.dtype)
  weights_BxHxLxL = drop(weights_BxHxLxL, dropout_keys_B)
  mixed_BxHxLxS = jnp.einsum("bhqk,bhks->bhqs", weights_BxHxLxL, value_BxHxLxS)
  return jnp.swapaxes(mixed_BxHxLxS, 1, 2)


def _cudnn(
  query: Array, key: Array, value: Array, documents: Array, *, interpret: bool
) -> Array:
  """cuDNN's flash attention over rows of one document and then padding.

  It takes lengths: a mask would become a bias, of which it computes the
  gradient as well. A row of padding has the length 1, as no row of a softmax
  may be empty. The output is zero where a row is padded.
  """
  del interpret
  lengths_B = jnp.sum(documents != 0, axis=1, dtype=jnp.int32)
  lengths_B = jnp.maximum(lengths_B, 1)
  return jax.nn.dot_product_attention(
    query,
    key,
    value,
    query_seq_lengths=lengths_B,
    key_value_seq_lengths=lengths_B,
    implementation="cudnn",
  )


def _splash(
  query: Array, key: Array, value: Array, documents: Array, *, interpret: bool
) -> Array:
  """JAX's flash attention for TPUs, which takes documents as segments."""
  # An experimental module: without it the other forms still work.
  from jax.experimental.pallas.ops.tpu import splash_attention as splash

  _, length, heads, width = query.shape
  block = next(size for size in BLOCK_SIZES if length % size == 0)
  run = splash.make_splash_mha_single_device(
    splash.MultiHeadMask([splash.FullMask((length, length))] * heads),
    block_sizes=splash.BlockSizes(
      block_q=block,
      block_kv=block,
      block_q_dkv=block,
      block_kv_dkv=block,
      use_fused_bwd_kernel=True,
    ),
    interpret=interpret,
  )

  def row(query_HxLxS, key_HxLxS, value_HxLxS, documents_L):
    ids = splash.SegmentIds(documents_L, documents_L)
    return run(query_HxLxS, key_HxLxS, value_HxLxS, segment_ids=ids)

  heads_first = lambda x: jnp.swapaxes(x, 1, 2)
  mixed_BxHxLxS = jax.vmap(row)(
    heads_first(query / math.sqrt(width)),
    heads_first(key),
    heads_first(value),
    documents,
  )
  return heads_first(mixed_BxHxLxS)


KERNELS: dict[str, Callable[..., Array]] = {"cudnn": _cudnn, "splash": _splash}


def _on_mesh(form: Implementation, *qkvd: Array) -> Array:
  """A kernel, run by each device on its own rows and heads."""
  kernel = functools.partial(KERNELS[form.name], interpret=form.interpret)
  if form.mesh is None:
    return kernel(*qkvd)
  heads, sizes = qkvd[0].shape[2], form.mesh.shape
  rows, *others = form.mesh.axis_names
  split = tuple(axis for axis in others if heads % sizes[axis] == 0)
  spec = P(rows, None, split or None)
  run = jax.shard_map(
    kernel,
    mesh=form.mesh,
    in_specs=(spec, spec, spec, P(rows)),
    out_specs=spec,
    check_vma=False,
  )
  return run(*qkvd)
