"""Chooses the attention of a training, and checks it on the devices.

implementation, reason = choose_checked(
  "auto", model.roles.values(), mesh, length=512, packed=False
)
# For training steps only:
model = encoder.replace_configs(model, attention=implementation)
"""

from collections.abc import Collection

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from truenegs_jax.models import attention, encoder
from truenegs_jax.runtime import cpu
from truenegs_jax.runtime.errors import InputError

Array = jax.Array
Configs = Collection[encoder.EncoderConfig]  # one per network

PLATFORMS = {"pieces": "cpu", "cudnn": "cuda", "splash": "tpu"}
CHOICES = ("auto", "xla", *PLATFORMS)  # of `model.attention`
SPLASH_MIN_LENGTH = 512  # a TPU keeps the scores of shorter rows on its chip
ROWS_PER_DEVICE = 4  # in a check
COMPARED = ("result", "query", "key", "value")  # the last three are gradients
TOLERANCE = 0.03  # relative to the largest entry; bfloat16 has 8 bits


def choose_checked(
  choice: str,
  configs: Configs,
  mesh: Mesh,
  *,
  length: int,
  packed: bool,
  platform: str = "",
) -> tuple[attention.Implementation, str]:
  """Chooses as `choose` does, but replaces a kernel that fails by "xla".

  A kernel fails if it does not run on the devices of the mesh, or if its
  numbers are wrong. Arguments and errors are those of `choose`.
  """
  chosen, reason = choose(
    choice, configs, mesh, length=length, packed=packed, platform=platform
  )
  if chosen.name not in attention.KERNELS:
    return chosen, reason
  for config in configs:
    problem = check_kernel(chosen, config, length=length)
    if problem:
      return attention.XLA, f"xla, as {chosen.name} failed its check: {problem}"
  return chosen, f"{reason}, checked against xla"


def choose(
  choice: str,
  configs: Configs,
  mesh: Mesh,
  *,
  length: int,
  packed: bool,
  platform: str = "",
) -> tuple[attention.Implementation, str]:
  """Chooses one implementation for all networks of a training.

  Args:
    choice: one of CHOICES; "auto" is the platform's own implementation if its
      conditions are met, and otherwise "xla".
    configs: of the networks.
    mesh: the devices.
    length: tokens of the longest row.
    packed: whether a row may hold several documents.
    platform: of the devices if they are absent, see `get_platform`; a compiler
      without a device does not know it.

  Returns:
    The implementation, and a line with its name and why it was chosen.

  Raises:
    InputError: the choice is not possible here.
  """
  platform = platform or get_platform(mesh.devices.flat[0])
  name = choice
  if choice == "auto":
    by_platform = {platform: name for name, platform in PLATFORMS.items()}
    name = by_platform.get(platform, "xla")
    if name == "pieces" and not cpu.is_enabled(platform):
      name = "xla"
  if name == "xla":
    return attention.XLA, name
  kernel_mesh = mesh if mesh.devices.size > 1 else None
  missing = _missing_conditions(name, configs, length=length, packed=packed)
  if platform != PLATFORMS[name]:
    missing.append(f"{PLATFORMS[name]} devices (not {platform})")
  if name == "pieces" and kernel_mesh:
    missing.append("a single device")
  if choice == "auto" and name == "splash" and length < SPLASH_MIN_LENGTH:
    missing.append(f"rows of {SPLASH_MIN_LENGTH} tokens or more to be faster")
  if not missing:
    return attention.Implementation(name, kernel_mesh), name
  if choice == "auto":
    return attention.XLA, f"xla, as {name} needs {', '.join(missing)}"
  raise InputError(
    f"model.attention={choice!r} is not possible. It needs"
    f" {', '.join(missing)}. Set that, or set model.attention=auto."
  )


def get_platform(device: jax.Device) -> str:
  """Returns JAX's platform of a device, with "cuda" for NVIDIA's GPUs only."""
  if device.platform != "gpu":
    return device.platform
  return "cuda" if "cuda" in device.client.platform_version else "gpu"


def check_kernel(
  implementation: attention.Implementation,
  config: encoder.EncoderConfig,
  *,
  length: int,
) -> str:
  """Runs a kernel at the size of a network; returns its problem, or ""."""
  mesh = implementation.mesh
  rows = ROWS_PER_DEVICE * (mesh.devices.size if mesh else 1)
  shape = rows, length, config.heads, config.width // config.heads
  measure = jax.jit(
    lambda: kernel_errors(implementation, shape, config.dtype),
    out_shardings=NamedSharding(mesh, P()) if mesh else None,
  )
  try:
    errors = {name: float(error) for name, error in measure().items()}
  except Exception as e:  # from a library, a driver or a compiler
    first_line, *_ = str(e).split("\n")
    return f"{type(e).__name__}: {first_line}"
  return ", ".join(
    f"its {name} is off by {errors[name]:.2g}"
    for name in COMPARED
    if not errors[name] <= TOLERANCE  # also true of NaN
  )


def kernel_errors(
  implementation: attention.Implementation,
  shape: tuple[int, int, int, int],
  dtype: str,
) -> dict[str, Array]:
  """Measures the errors of a kernel, compared with XLA in f32.

  Args:
    shape: B, L, H, S. Of each four rows one is full; the others have padding,
      the last one after a single token.
    dtype: of queries, keys and values.

  Returns:
    The largest error over the largest entry, both of real tokens, as f32
    scalars by the names in COMPARED. NaN if any entry, also of padding, is not
    finite.
  """
  rows, length, *_ = shape
  arrays = [
    jax.random.normal(key, shape).astype(dtype)
    for key in jax.random.split(jax.random.key(0), 4)
  ]
  ends_4 = jnp.array([length, length - 1, length // 2 + 1, 1])
  index_L = jnp.arange(length)
  documents_BxL = index_L[None] < jnp.resize(ends_4, (rows,))[:, None]
  real_BxLx1x1 = documents_BxL[..., None, None]

  def run(implementation, query, key, value, cotangent):
    mask = attention.make_mask(implementation, documents_BxL.astype(jnp.int32))
    result, vjp = jax.vjp(
      lambda q, k, v: attention.attend(q, k, v, mask, None, rate=0.0, site=0),
      query,
      key,
      value,
    )
    return result, *vjp(cotangent)

  def relative_error(x, expected):
    x = x.astype(jnp.float32)
    error = jnp.max(jnp.abs(x - expected), where=real_BxLx1x1, initial=0.0)
    largest = jnp.max(jnp.abs(expected), where=real_BxLx1x1, initial=0.0)
    return jnp.where(jnp.isfinite(x).all(), error / largest, jnp.nan)

  results = run(implementation, *arrays)
  with jax.default_matmul_precision("highest"):
    expected = run(attention.XLA, *(x.astype(jnp.float32) for x in arrays))
  errors = map(relative_error, results, expected)
  return dict(zip(COMPARED, errors, strict=True))


def _missing_conditions(
  name: str, configs: Configs, *, length: int, packed: bool
) -> list[str]:
  """Lists what a kernel needs and the networks or their rows do not have."""
  if name not in attention.KERNELS:
    return []
  multiple = attention.LENGTH_MULTIPLE
  has_dropout = any(c.attention_dropout for c in configs)
  missing = ["model.attention_dropout=0"] if has_dropout else []
  if length % multiple:
    missing.append(f"a length that {multiple} divides")
  if name == "splash":
    return missing
  if any(c.dtype != "bfloat16" for c in configs):
    missing.append("model.dtype=bfloat16")
  if packed:
    missing.append("rows that are not packed")
  for width in {c.width // c.heads for c in configs}:
    if width % 8 or width > 128:
      missing.append(f"heads that are 8, 16, ... 128 wide (not {width})")
  return missing
