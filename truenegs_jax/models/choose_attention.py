"""Chooses the form of attention for a training, and checks it on the devices.

form, line = settle(wanted, roles.values(), mesh, length=512, packed=False)
model = with_form(model, form)  # for the steps of a training alone
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from truenegs_jax.models import attention
from truenegs_jax.runtime import cpu
from truenegs_jax.runtime.errors import InputError

Array = jax.Array
Configs = Iterable[Any]  # an `encoder.EncoderConfig` per network

PLATFORMS = {"pieces": "cpu", "cudnn": "cuda", "splash": "tpu"}
CHOICES = ("auto", "xla", *PLATFORMS)  # of a config
SPLASH_MIN_LENGTH = 512  # scores of shorter rows stay on a TPU's chip
ROWS_PER_DEVICE = 4  # of a check, on a device
COMPARED = ("result", "query", "key", "value")  # the last three: gradients
TOLERANCE = 0.03  # of the largest entry; bfloat16 keeps 8 bits


def with_attention(
  model: nn.Module, form: attention.Implementation
) -> nn.Module:
  """The same model with another attention in each of its networks."""
  fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}
  return model.clone(
    **{
      name: dataclasses.replace(config, attention=form)
      for name, config in fields.items()
      if hasattr(config, "attention")
    }
  )


def choose_checked(
  wanted: str, configs: Configs, mesh: Mesh, *, length: int, packed: bool
) -> tuple[attention.Implementation, str]:
  """`choose`, with the form checked on the devices of the mesh.

  A kernel whose numbers are wrong on these devices, or that does not run on
  them, gives way to "xla". Arguments and errors are those of `choose`.
  """
  configs = list(configs)
  form, line = choose(wanted, configs, mesh, length=length, packed=packed)
  if form.name not in attention.KERNELS:
    return form, line
  for config in configs:
    wrong = check_kernel(form, config, length=length)
    if wrong:
      return attention.XLA, f"xla: {form.name} fails here, {wrong}"
  return form, f"{line}, checked against xla"


def choose(
  wanted: str,
  configs: Configs,
  mesh: Mesh,
  *,
  length: int,
  packed: bool,
  platform: str = "",
) -> tuple[attention.Implementation, str]:
  """The form of all networks of a training, and a line that says why.

  Args:
    wanted: one of NAMES; "auto": the platform's own, or else "xla".
    configs: of the networks.
    mesh: the devices.
    length: tokens of a row, or of the longest.
    packed: whether a row may hold several documents.
    platform: "cpu", "cuda", "tpu" or another; default: the mesh's.

  Raises:
    InputError: an unknown name, or a form that is not possible here.
  """
  if wanted not in CHOICES:
    raise InputError(
      f"model.attention {wanted!r} is unknown; known: {', '.join(CHOICES)}."
    )
  platform = platform or get_platform(mesh.devices.flat[0])
  name = wanted
  if wanted == "auto":
    own = {owner: form for form, owner in PLATFORMS.items()}
    name = own.get(platform, "xla")
    if name == "pieces" and not cpu.is_enabled(platform):
      name = "xla"
  if name == "xla":
    return attention.XLA, name
  several = mesh.devices.size > 1
  problems = _problems(name, configs, length=length, packed=packed)
  if platform != PLATFORMS[name]:
    problems.append(f"it is of {PLATFORMS[name]}, and these are {platform}")
  if name == "pieces" and several:
    problems.append("the rows lie on several devices")
  if wanted == "auto" and name == "splash" and length < SPLASH_MIN_LENGTH:
    problems.append(f"rows of less than {SPLASH_MIN_LENGTH} tokens do without")
  if not problems:
    return attention.Implementation(name, mesh if several else None), name
  if wanted == "auto":
    return attention.XLA, f"xla; for {name}: {'; '.join(problems)}"
  raise InputError(
    f"model.attention={name}: {'; '.join(problems)}. Or give"
    " model.attention=auto."
  )


def get_platform(device: jax.Device) -> str:
  """The platform of jax, with "cuda" for NVIDIA's alone of the GPUs."""
  if device.platform != "gpu":
    return device.platform
  return "cuda" if "cuda" in device.client.platform_version else "gpu"


def check_kernel(
  form: attention.Implementation, config: Any, *, length: int
) -> str:
  """Runs a kernel at the size of a network: "", or what is wrong with it."""
  mesh = form.mesh
  rows = ROWS_PER_DEVICE * (mesh.devices.size if mesh else 1)
  shape = rows, length, config.heads, config.width // config.heads
  errors_of = jax.jit(
    lambda: kernel_errors(form, shape, config.dtype),
    out_shardings=NamedSharding(mesh, P()) if mesh else None,
  )
  try:
    errors = {name: float(error) for name, error in errors_of().items()}
  except Exception as e:  # of a library, a driver, a compiler: it does not run
    return f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"
  return ", ".join(
    f"its {name} is off by {errors[name]:.2g}"
    for name in COMPARED
    if not errors[name] <= TOLERANCE  # NaN, too
  )


def kernel_errors(
  form: attention.Implementation, shape: tuple[int, int, int, int], dtype: str
) -> dict[str, Array]:
  """Largest errors of a kernel, relative to the largest entries.

  Args:
    form: the form to check.
    shape: B, L, H and S; most rows end in padding, one of four in all but one.
    dtype: of queries, keys and values.

  Returns:
    f32 scalars of CHECKED, the result and the gradients, where there are
    tokens; NaN where any entry, those of padding included, is not finite.
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

  def run(form, query, key, value, cotangent):
    mask = attention.make_mask(form, documents_BxL.astype(jnp.int32))
    go = lambda q, k, v: attention.attend(q, k, v, mask, None, rate=0.0, site=0)
    result, push = jax.vjp(go, query, key, value)
    return result, *push(cotangent)

  def error(got, want):
    got = got.astype(jnp.float32)
    worst = jnp.max(jnp.abs(got - want), where=real_BxLx1x1, initial=0.0)
    largest = jnp.max(jnp.abs(want), where=real_BxLx1x1, initial=0.0)
    return jnp.where(jnp.isfinite(got).all(), worst / largest, jnp.nan)

  got = run(form, *arrays)
  with jax.default_matmul_precision("highest"):
    want = run(attention.XLA, *(x.astype(jnp.float32) for x in arrays))
  return dict(zip(COMPARED, map(error, got, want), strict=True))


def _problems(
  name: str, configs: Configs, *, length: int, packed: bool
) -> list[str]:
  """Ways out for each thing that a kernel cannot do for a model or its rows."""
  if name not in attention.KERNELS:
    return []
  problems = {}
  for c in configs:
    width = c.width // c.heads
    problems["give model.attention_dropout=0"] = c.attention_dropout > 0
    problems[f"give a length that {attention.LENGTH_MULTIPLE} divides"] = (
      length % attention.LENGTH_MULTIPLE > 0
    )
    if name == "cudnn":
      problems["give model.dtype=bfloat16"] = c.dtype != "bfloat16"
      problems["packed rows hold several documents"] = packed
      problems[f"heads are {width} wide, not 8, 16, ... 128"] = (
        width % 8 > 0 or width > 128
      )
  return [text for text, holds in problems.items() if holds]
