"""Chooses the attention of a training, and checks it on the devices.

implementation, reason = choose(
  "auto", model.roles.values(), mesh, length=512, check=True
)
# For training steps only:
model = encoder.replace_configs(model, attention=implementation)
"""

import functools
from collections.abc import Collection

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from truenegs_jax.models import attention, encoder, flash_attention
from truenegs_jax.models import fused_norm as norm_lib
from truenegs_jax.runtime import cpu, rng
from truenegs_jax.runtime.errors import InputError

Array = jax.Array
Configs = Collection[encoder.EncoderConfig]  # one per network

# Where an implementation runs. "auto" takes the first that is possible.
PLATFORMS = {"pieces": ("cpu",), "flash": ("tpu", "cuda")}
CHOICES = ("auto", "xla", *PLATFORMS)  # of `model.attention`
ROWS_PER_DEVICE = 4  # in a check
COMPARED = ("result", "query", "key", "value")  # the last three are gradients
NORM = "norm"  # with its gradients
TOLERANCE = 0.03  # relative to the largest entry; bfloat16 has 8 bits


def choose(
  choice: str,
  configs: Configs,
  mesh: Mesh,
  *,
  length: int,
  platform: str = "",
  check: bool = False,
) -> tuple[attention.Implementation, str]:
  """Chooses one implementation for all networks of a training.

  Args:
    choice: one of CHOICES; "auto" is the first of the platform's own whose
      conditions are met, and otherwise "xla".
    length: tokens of the longest row.
    platform: of the devices, for a compiler that has none.
    check: runs the kernel on the devices, and takes "xla" if it does not run or
      its numbers are wrong.

  Returns:
    The implementation, and a line with its name and why it was chosen.
  """
  platform = platform or get_platform(mesh.devices.flat[0])
  names = [] if choice == "xla" else [choice]
  if choice == "auto":
    names = [name for name, where in PLATFORMS.items() if platform in where]
    if not cpu.is_enabled(platform):
      names = [name for name in names if name != "pieces"]
  chosen, line, problems = attention.XLA, "xla", list[str]()
  for name in names:
    if missing := _missing_conditions(name, configs, mesh, platform):
      if choice != "auto":
        raise InputError(
          f"model.attention={choice!r} is not possible. It needs {missing}. Set"
          " that, or set model.attention=auto."
        )
      problems.append(f"{name} needs {missing}")
      continue
    implementation = attention.Implementation(
      name, mesh if mesh.devices.size > 1 else None, platform=platform
    )
    is_checked = check and name == "flash"
    if is_checked and (
      problem := find_problem(implementation, configs, length=length)
    ):
      problems.append(f"{name} failed its check: {problem}")
      continue
    chosen, line = implementation, name + ", checked against xla" * is_checked
    break
  return chosen, f"{line}, as {'; '.join(problems)}" if problems else line


def get_platform(device: jax.Device) -> str:
  """Returns JAX's platform of a device, with "cuda" for NVIDIA's GPUs only."""
  if device.platform != "gpu":
    return device.platform
  return "cuda" if "cuda" in device.client.platform_version else "gpu"


def find_problem(
  implementation: attention.Implementation, configs: Configs, *, length: int
) -> str:
  """Runs a kernel at the sizes of all networks; returns its problem, or ""."""
  mesh = implementation.mesh
  rows = ROWS_PER_DEVICE * (mesh.devices.size if mesh else 1)
  for config, window in ((c, x) for c in configs for x in {0, c.window}):
    shape = rows, length, config.heads, config.width // config.heads
    dtype, rate = config.dtype, config.attention_dropout
    arguments = implementation, shape, dtype, rate, window
    checks = [functools.partial(kernel_errors, *arguments)]
    if norm_lib.is_possible(implementation, config.width):
      how = config.norm_epsilon, config.dropout, implementation
      settings = norm_lib.Settings(*how)
      checks += [functools.partial(norm_errors, config, settings, shape[:2])]
    everywhere = NamedSharding(mesh, P()) if mesh else None
    errors: dict[str, float] = {}
    try:
      for check in checks:
        measured = jax.jit(check, out_shardings=everywhere)()
        errors |= {name: float(error) for name, error in measured.items()}
    except Exception as e:  # from a library, a driver or a compiler
      first_line, *_ = str(e).split("\n")
      return f"{type(e).__name__}: {first_line}"
    wrong = [
      f"its {name} is off by {errors[name]:.2g}"
      for name in (*COMPARED, NORM)
      if not errors.get(name, 0.0) <= TOLERANCE  # also true of NaN
    ]
    if wrong:
      return ", ".join(wrong)
  return ""


def kernel_errors(
  implementation: attention.Implementation,
  shape: tuple[int, int, int, int],
  dtype: str,
  rate: float = 0.0,
  window: int = 0,
) -> dict[str, Array]:
  """Measures the errors of a kernel, compared with XLA in f32.

  `shape` is B, L, H, S. Of each four rows one is full; the others have padding,
  the last one after a single token. Both drop the same units.

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
  keys_B = rng.row_keys(jax.random.key(1), 0, jnp.arange(rows))

  def run(implementation, query, key, value, cotangent):
    documents = documents_BxL.astype(jnp.int32)
    mask = attention.make_mask(implementation, documents, window)
    attend = functools.partial(
      attention.attend, mask=mask, keys_B=keys_B, rate=rate, site=1
    )
    result, vjp = jax.vjp(attend, query, key, value)
    return result, *vjp(cotangent)

  results = run(implementation, *arrays)
  with jax.default_matmul_precision("highest"):
    expected = run(attention.XLA, *(x.astype(jnp.float32) for x in arrays))
  relative_error = functools.partial(_relative_error, where=real_BxLx1x1)
  errors = map(relative_error, results, expected)
  return dict(zip(COMPARED, errors, strict=True))


def norm_errors(
  config: encoder.EncoderConfig,
  settings: norm_lib.Settings,
  shape: tuple[int, int],
) -> dict[str, Array]:
  """Measures the largest error of a fused norm and its gradients."""
  arrays = jax.random.normal(jax.random.key(0), (3, *shape, config.width))
  arrays = arrays.astype(config.dtype)
  keys_B = rng.row_keys(jax.random.key(1), 0, jnp.arange(shape[0]))

  def plain(_, x, units, vectors, keys_B, site):
    units += vectors[0][None, None]
    x += rng.dropout(units, keys_B, rate=config.dropout, site=site)
    norm = {"scale": vectors[1], "bias": vectors[2]}
    return encoder.layer_norm(config).apply({"params": norm}, x)

  def run(normalize_sum, x, units, cotangent):
    def normalize(*arrays):
      return normalize_sum(settings, *arrays, keys_B, 1)

    vectors = tuple(units[:3, 0].astype(jnp.float32))
    result, vjp = jax.vjp(normalize, x, units, vectors)
    return jax.tree.leaves((result, vjp(cotangent)))

  results = run(norm_lib.normalize_sum, *arrays)
  expected = run(plain, *arrays.astype(jnp.float32))
  return {NORM: jnp.stack([*map(_relative_error, results, expected)]).max()}


def _relative_error(
  x: Array, expected: Array, where: Array | None = None
) -> Array:
  """Returns the largest error over the largest entry; NaN if not finite."""
  x = x.astype(jnp.float32)
  error, largest = (
    jnp.max(jnp.abs(y), where=where, initial=0.0)
    for y in (x - expected, expected)
  )
  return jnp.where(jnp.isfinite(x).all(), error / largest, jnp.nan)


def _missing_conditions(
  name: str, configs: Configs, mesh: Mesh, platform: str
) -> str:
  """Lists what an implementation needs and this training does not have."""
  missing = []
  if platform not in PLATFORMS[name]:
    missing.append(f"{' or '.join(PLATFORMS[name])} devices (not {platform})")
  if name == "pieces" and mesh.devices.size > 1:
    missing.append("a single device")
  choices = flash_attention.GPU_WIDTHS
  for width in sorted({c.width // c.heads for c in configs} - set(choices)):
    if name == "flash":
      widths = ", ".join(map(str, choices))
      missing.append(f"heads that are {widths} wide (not {width})")
  return ", ".join(missing)
