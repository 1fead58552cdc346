"""Self-attention behind one function: XLA's, cuDNN's or a TPU kernel's.

seen = attention.look(form, documents_BxL)  # once for all layers
mixed = attention.attend(query, key, value, seen, keys_B, rate=0.1, site=1)

Tokens see their own document. Padding counts as one, document 0: no row of a
softmax is empty, and nothing real sees it or is seen by it.

Models are built with PLAIN, which runs everywhere and is what the others are
measured by. `attention_choice` finds the form for the devices of a training.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from truenegs_jax.runtime import rng

Array = jax.Array
Drop = Callable[[Array, Array | None], Array]  # weights, keys -> weights

MASKED_SCORE = -1e9
PIECES = 4  # of a batch on a CPU
WORTH = 2**18  # scores; of fewer the pieces would take longer to compile
# Kernels see the rows whose length is a multiple of it, others do without:
# TPUs have 128 lanes, and cuDNN gave NaN gradients at odd multiples of 64
# (pytorch/pytorch#196678).
LENGTHS = 128
BLOCKS = (512, 384, 256, 128)  # tokens that splash attention has at a time


@dataclasses.dataclass(frozen=True)
class Form:
  """How attention is computed.

  Attributes:
    name: "xla", "pieces" or a key of KERNELS.
    mesh: devices that kernels run on, each with its own rows (first axis) and
      heads (second axis, if it divides them); None: one device.
    interpret: splash attention without a TPU, slowly.
  """

  name: str = "xla"
  mesh: Mesh | None = None
  interpret: bool = False


PLAIN = Form()


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["documents_BxL", "allowed_Bx1xLxL"],
  meta_fields=["form"],
)
@dataclasses.dataclass(frozen=True)
class Seen:
  """Who sees whom, for all layers alike, and how they look."""

  documents_BxL: Array
  allowed_Bx1xLxL: Array | None  # of the form "xla" alone
  form: Form


def look(form: Form, documents_BxL: Array) -> Seen:
  """What `attend` has to know of the rows; kernels take some lengths alone."""
  if form.name in KERNELS and documents_BxL.shape[1] % LENGTHS:
    form = PLAIN
  once = form.name == "xla"
  allowed_Bx1xLxL = attention_mask(documents_BxL) if once else None
  return Seen(documents_BxL, allowed_Bx1xLxL, form)


def attention_mask(documents_BxL: Array) -> Array:
  """True `[B, 1, L, L]` where query and key are of the same document."""
  return (documents_BxL[:, :, None] == documents_BxL[:, None, :])[:, None]


def attend(
  query_BxLxHxS: Array,
  key_BxLxHxS: Array,
  value_BxLxHxS: Array,
  seen: Seen,
  dropout_keys_B: Array | None,
  *,
  rate: float,
  site: int | Array,
) -> Array:
  """Softmax attention `[B, L, H, S]`, with dropout on its weights.

  Args:
    query_BxLxHxS, key_BxLxHxS, value_BxLxHxS: of one dtype, as the result.
    seen: what `look` returned.
    dropout_keys_B: None turns dropout off.
    rate: of dropout, 0 for a kernel in training.
    site: of dropout, as `randomness.dropout` has it.
  """
  qkv = query_BxLxHxS, key_BxLxHxS, value_BxLxHxS
  drop = functools.partial(rng.dropout, rate=rate, site=site)
  if seen.allowed_Bx1xLxL is not None:
    return plain(*qkv, seen.allowed_Bx1xLxL, dropout_keys_B, drop)
  if seen.form.name == "pieces":
    return _in_pieces(*qkv, seen.documents_BxL, dropout_keys_B, drop)
  assert dropout_keys_B is None or rate == 0, "kernels have no dropout of ours"
  return _on_mesh(seen.form, *qkv, seen.documents_BxL)


def plain(
  query_BxLxHxS: Array,
  key_BxLxHxS: Array,
  value_BxLxHxS: Array,
  allowed_Bx1xLxL: Array,
  dropout_keys_B: Array | None,
  drop: Drop,
) -> Array:
  """The mathematics as it is written; the softmax is f32."""
  # Heads first: else a CPU would put the units of a head in an order of theirs.
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


def _in_pieces(
  query: Array,
  key: Array,
  value: Array,
  documents_BxL: Array,
  keys_B: Array | None,
  drop: Drop,
) -> Array:
  """`plain` of a quarter of the rows at a time.

  XLA runs a batched product on one core of a CPU, but products that do not
  depend on one another side by side; and a quarter's scores stay in the caches.
  """
  rows, length, heads, _ = query.shape
  num = min(PIECES, rows) if rows * heads * length**2 >= WORTH else 1
  split = lambda x: [x] * num if x is None else jnp.array_split(x, num)
  arrays = query, key, value, documents_BxL, keys_B
  return jnp.concatenate(
    [
      plain(query, key, value, attention_mask(documents), keys, drop)
      for query, key, value, documents, keys in zip(
        *map(split, arrays), strict=True
      )
    ]
  )


def _cudnn(
  query: Array,
  key: Array,
  value: Array,
  documents_BxL: Array,
  *,
  interpret: bool,
) -> Array:
  """cuDNN's flash attention over rows of one document and then padding.

  It is given lengths: a mask would become a bias, of which it computes the
  gradient as well. A row of padding has the length 1, as no row of a softmax
  may be empty. Where a row is padded the output is zero.
  """
  del interpret
  lengths_B = jnp.sum(documents_BxL != 0, axis=1, dtype=jnp.int32)
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
  query: Array,
  key: Array,
  value: Array,
  documents_BxL: Array,
  *,
  interpret: bool,
) -> Array:
  """JAX's flash attention for TPUs, which knows of documents."""
  # Here, as it is experimental: without it the other forms still are there.
  from jax.experimental.pallas.ops.tpu import splash_attention as splash

  _, length, heads, width = query.shape
  block = next(size for size in BLOCKS if length % size == 0)
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
    documents_BxL,
  )
  return heads_first(mixed_BxHxLxS)


KERNELS: dict[str, Callable[..., Array]] = {"cudnn": _cudnn, "splash": _splash}


def _on_mesh(form: Form, *qkvd: Array) -> Array:
  """A kernel, run by each device on its own rows and heads."""
  kernel = functools.partial(KERNELS[form.name], interpret=form.interpret)
  if form.mesh is None:
    return kernel(*qkvd)
  heads, sizes = qkvd[0].shape[2], form.mesh.shape
  rows, *others = form.mesh.axis_names
  split = tuple(axis for axis in others if heads % sizes[axis] == 0)
  here = P(rows, None, split or None)
  run = jax.shard_map(
    kernel,
    mesh=form.mesh,
    in_specs=(here, here, here, P(rows)),
    out_specs=here,
    check_vma=False,
  )
  return run(*qkvd)
