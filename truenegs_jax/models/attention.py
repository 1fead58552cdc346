"""Self-attention inside documents, by XLA or by a fused kernel.

mask = attention.make_mask(implementation, documents_BxL)  # once for all layers
mixed = attention.attend(query, key, value, mask, keys_B, rate=0.1, site=1)

A token attends to the tokens of its own document. Padding is document 0 and
attends to padding, so that no softmax is over nothing.

Models are built with `XLA`, which runs everywhere. `choose` takes another for
the devices of a training, and checks it there.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from truenegs_jax.models import flash_attention
from truenegs_jax.runtime import rng
from truenegs_jax.runtime.errors import InputError

Array = jax.Array
Configs = Collection[Any]  # encoder.EncoderConfig, one per network

# On a CPU, fewer scores than these are not worth a longer compilation.
MIN_SCORES = 2**18
PLATFORMS = {"cpu": "sliced", "tpu": "flash", "cuda": "flash"}  # of "auto"
ROWS_PER_DEVICE = 4  # in a check
TOLERANCE = 0.03  # relative to the largest entry; bfloat16 has 8 bits


@dataclasses.dataclass(frozen=True)
class Implementation:
  """How attention is computed."""

  # "xla", "sliced" (a quarter of the rows at a time, for CPUs), or "flash".
  name: str = "xla"
  # Devices that the kernel runs on; None: one. Rows are split over the first
  # axis, and heads over the others that divide their number.
  mesh: Mesh | None = None
  interpret: bool = False  # runs kernels without their devices, slowly
  platform: str = "tpu"  # or "cuda", of flash attention


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
  """Builds the mask of a batch; a token sees `window` positions, 0: all."""
  allowed_Bx1xLxL = None
  if implementation.name == "xla":
    allowed_Bx1xLxL = same_document(documents_BxL, window)
  return AttentionMask(documents_BxL, allowed_Bx1xLxL, implementation, window)


def same_document(documents_BxL: Array, window: int = 0) -> Array:
  """Returns bool `[B, 1, L, L]`: whether a query may attend to a key."""
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
  rows, length, heads, _ = query_BxLxHxS.shape
  dropout = functools.partial(rng.dropout, rate=rate, site=site)
  if mask.allowed_Bx1xLxL is not None:
    return dot_product_attention(*qkv, mask.allowed_Bx1xLxL, keys_B, dropout)
  if mask.implementation.name == "sliced":
    return _map_slices(
      lambda query, key, value, documents, keys: dot_product_attention(
        query, key, value, same_document(documents, mask.window), keys, dropout
      ),
      *qkv,
      mask.documents_BxL,
      keys_B,
      num_scores=rows * heads * length**2,
    )
  if keys_B is None or rate == 0:
    zeros_BxHxL = jnp.zeros((rows, heads, length), jnp.uint32)
    return _run_kernel(mask, *qkv, (zeros_BxHxL, zeros_BxHxL), rate=0.0)
  words = rng.line_words(keys_B, (heads, length), site)
  return _run_kernel(mask, *qkv, words, rate)


def _map_slices(
  fn: Callable[..., Array], *arrays: Array | None, num_scores: int
) -> Array:
  """Applies a function of a batch to a quarter of its rows at a time.

  On a CPU, XLA computes a batched product on one core, but independent products
  in parallel. With fewer scores than MIN_SCORES the batch is not split.
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
  scores_BxHxLxL = jnp.where(
    allowed_Bx1xLxL, scores_BxHxLxL, flash_attention.MASKED_SCORE
  )
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
  how = mask.implementation
  mesh = how.mesh
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


def choose(
  choice: str,
  configs: Configs,
  mesh: Mesh,
  *,
  length: int,
  platform: str = "",
  check: bool = False,
) -> tuple[Implementation, str]:
  """Chooses one implementation for all networks; says which one, and why.

  Args:
    choice: `model.attention`; "auto" is the platform's own if its conditions
      are met, and otherwise "xla".
    configs: of the networks, `encoder.EncoderConfig`.
    mesh: of the devices of the training.
    length: tokens of the longest row.
    platform: of the devices, for a compiler that has none.
    check: runs the kernel on the devices, and takes "xla" if it does not run or
      its numbers are wrong.
  """
  platform = platform or get_platform(mesh.devices.flat[0])
  own = PLATFORMS.get(platform, "xla")
  name = own if choice == "auto" else choice
  if name == "xla":
    return XLA, name
  needed = ""
  if name != own:
    needed = f"other devices than {platform}"
  elif name == "sliced" and mesh.devices.size > 1:
    needed = "a single device"
  elif name == "flash":
    needed = _find_widths(configs)
  if needed and choice != "auto":
    raise InputError(
      f"model.attention={choice!r} is not possible. It needs {needed}. Set"
      " model.attention=auto."
    )
  if needed:
    return XLA, f"xla, as {name} needs {needed}"
  implementation = Implementation(
    name, mesh if mesh.devices.size > 1 else None, platform=platform
  )
  if not check or name != "flash":
    return implementation, name
  if problem := find_problem(implementation, configs, length=length):
    return XLA, f"xla, as {name} failed its check: {problem}"
  return implementation, f"{name}, checked against xla"


def get_platform(device: jax.Device) -> str:
  """Returns JAX's platform of a device, with "cuda" for NVIDIA's GPUs only."""
  if device.platform != "gpu":
    return device.platform
  return "cuda" if "cuda" in device.client.platform_version else "gpu"


def _find_widths(configs: Configs) -> str:
  """Describes the heads that flash attention needs, or "" if all suit."""
  for config in configs:
    width = config.width // config.heads
    if width not in flash_attention.GPU_WIDTHS:
      listed = ", ".join(map(str, flash_attention.GPU_WIDTHS))
      return f"heads that are {listed} wide, not {width}"
  return ""


def find_problem(
  implementation: Implementation, configs: Configs, *, length: int
) -> str:
  """Runs a kernel at the sizes of all networks; returns its problem, or ""."""
  mesh = implementation.mesh
  rows = ROWS_PER_DEVICE * (mesh.devices.size if mesh else 1)
  everywhere = NamedSharding(mesh, P()) if mesh else None
  for config, window in ((c, x) for c in configs for x in {0, c.window}):
    measure = functools.partial(
      kernel_error,
      implementation,
      (rows, length, config.heads, config.width // config.heads),
      config.dtype,
      config.attention_dropout,
      window,
    )
    try:
      error = float(jax.jit(measure, out_shardings=everywhere)())
    except Exception as e:  # from a library, a driver or a compiler
      first_line, *_ = str(e).split("\n")
      return f"{type(e).__name__}: {first_line}"
    if not error <= TOLERANCE:  # also true of NaN
      return f"it is off by {error:.2g}"
  return ""


def kernel_error(
  implementation: Implementation,
  shape: tuple[int, int, int, int],
  dtype: str,
  rate: float = 0.0,
  window: int = 0,
) -> Array:
  """Measures the error of a kernel, compared with XLA in f32.

  `shape` is B, L, H, S. Of each four rows one is full; the others have padding,
  the last one after a single token. Both drop the same units. The result is the
  largest error of outputs and gradients of real tokens, relative to the largest
  entry, or NaN if any entry, also of padding, is not finite.
  """
  rows, length, *_ = shape
  arrays = [
    jax.random.normal(key, shape).astype(dtype)
    for key in jax.random.split(jax.random.key(0), 4)
  ]
  ends_4 = jnp.array([length, length - 1, length // 2 + 1, 1])
  index_L = jnp.arange(length)
  real_BxL = index_L[None] < jnp.resize(ends_4, (rows,))[:, None]
  keys_B = rng.row_keys(jax.random.key(1), 0, jnp.arange(rows))

  def run(implementation, query, key, value, cotangent):
    mask = make_mask(implementation, real_BxL.astype(jnp.int32), window)
    mix = functools.partial(attend, mask=mask, keys_B=keys_B, rate=rate, site=1)
    result, vjp = jax.vjp(mix, query, key, value)
    return result, *vjp(cotangent)

  def largest(x_BxLxHxS):
    is_real = real_BxL[..., None, None]
    return jnp.max(jnp.abs(x_BxLxHxS), where=is_real, initial=0.0)

  results = run(implementation, *arrays)
  with jax.default_matmul_precision("highest"):
    expected = run(XLA, *(x.astype(jnp.float32) for x in arrays))
  errors = []
  for x, y in zip(results, expected, strict=True):
    x = x.astype(jnp.float32)
    error = largest(x - y) / largest(y)
    errors.append(jnp.where(jnp.isfinite(x).all(), error, jnp.nan))
  return jnp.stack(errors).max()
