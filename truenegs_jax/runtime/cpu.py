"""Settings for CPUs, and the switch for all code that is only for CPUs.

Commands call `configure` before jax is imported, and code that is traced asks
`is_enabled`.
"""

import contextlib
import contextvars
import ctypes
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

# Parameters of glibc's malloc.h and their values.
MALLOC_SETTINGS = {
  -4: 0,  # M_MMAP_MAX: allocate large arrays on the heap like small ones
  -1: -1,  # M_TRIM_THRESHOLD: never shrink the heap
  -8: 1,  # M_ARENA_MAX: share the heap between all threads
}

# Names in /proc/cpuinfo of products of bfloat16, two and 16 times f32's rate.
BFLOAT16 = ("avx512_bf16", "amx_bf16")
# Products by oneDNN. jax cannot keep such a program for the next start.
ONEDNN = "xla_cpu_experimental_onednn_custom_call"

_PLATFORM = contextvars.ContextVar("platform", default="")


def is_enabled() -> bool:
  """Whether to use the code for CPUs.

  The platform is that of `lowering_for`, or else jax's default backend.
  """
  platform = _PLATFORM.get()
  if not platform:
    import jax  # not at the top: `keep_freed_memory` must run first

    platform = jax.default_backend()
  return platform == "cpu"


@contextlib.contextmanager
def lowering_for(platform: str) -> Iterator[None]:
  """Traces functions in the body for a platform that need not be present.

  `jax.jit` does not trace a function again that it knows: pass a new one.
  """
  token = _PLATFORM.set(platform)
  try:
    yield
  finally:
    _PLATFORM.reset(token)


def compiler_options(dtype: str) -> dict[str, Any]:
  """Returns XLA's options for the training step that XLA_FLAGS does not name.

  Level 2 compiles sooner than 3, and the step is as fast. XLA uses half of an
  AVX-512 register, which CPUs with bfloat16 products need not. `dtype` is that
  of activations: for bfloat16, ONEDNN is on where `has_onednn`.
  """
  if not is_enabled():
    return {}
  options: dict[str, Any] = {"xla_backend_optimization_level": 2}
  if has_bfloat16():
    options["xla_cpu_prefer_vector_width"] = 512
  if dtype == "bfloat16" and has_onednn():
    options[ONEDNN] = True
  flags = os.environ.get("XLA_FLAGS", "")
  return {name: x for name, x in options.items() if name not in flags}


def has_bfloat16() -> bool:
  """Returns whether this machine's CPU multiplies in bfloat16."""
  info = pathlib.Path("/proc/cpuinfo")
  if not info.exists():
    return False
  text = info.read_text(errors="replace")
  return any(name in text for name in BFLOAT16)


def has_onednn() -> bool:
  """Returns whether XLA computes products by oneDNN, in bfloat16 at full speed.

  With jax before 0.12, and on CPUs without such products, XLA's own are as
  fast. oneDNN's are fast only if the result is bfloat16, too.
  """
  import jax

  return jax.__version_info__ >= (0, 12) and has_bfloat16()


def product_dtype(dtype: Any) -> Any:
  """Returns the type for products of `dtype` that are summed up in f32.

  It is f32, or `dtype` where only that is fast. oneDNN, too, sums in f32.
  """
  return dtype if is_enabled() and has_onednn() else "float32"


def choose_dtype() -> str:
  """Returns the type of activations that is fastest on the default devices."""
  return "bfloat16" if not is_enabled() or has_onednn() else "float32"


def configure() -> None:
  """Sets up memory and dispatch for training on a CPU.

  Dispatch becomes synchronous: two overlapping steps would compete for the same
  cores and need twice the scratch memory. Does nothing if JAX_PLATFORMS names a
  GPU or TPU, as launch/gpu.sh does.
  """
  if os.environ.get("JAX_PLATFORMS") not in (None, "", "cpu"):
    return
  keep_freed_memory()
  import jax

  jax.config.update("jax_cpu_enable_async_dispatch", False)


def keep_freed_memory() -> None:
  """Makes glibc's malloc keep freed memory; other mallocs are left alone.

  XLA allocates the scratch memory of a step in every step. To get it from the
  system each time takes a sixth of a step of ELECTRA-small.
  """
  if sys.platform.startswith("linux"):
    malloc = ctypes.CDLL(None)
    if hasattr(malloc, "mallopt"):
      for parameter, value in MALLOC_SETTINGS.items():
        malloc.mallopt(parameter, value)
