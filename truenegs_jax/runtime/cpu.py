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

# Parameters of glibc's malloc.h and their values.
MALLOC_SETTINGS = {
  -4: 0,  # M_MMAP_MAX: allocate large arrays on the heap like small ones
  -1: -1,  # M_TRIM_THRESHOLD: never shrink the heap
  -8: 1,  # M_ARENA_MAX: share the heap between all threads
}

_PLATFORM = contextvars.ContextVar("platform", default="")


def is_enabled(platform: str = "") -> bool:
  """Whether to use the code for CPUs in a program compiled for `platform`.

  The default is the platform of `lowering_for`, or else jax's default backend.
  """
  platform = platform or _PLATFORM.get()
  if not platform:
    import jax  # not at the top: `configure` must run first

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


def compiler_options() -> dict[str, int]:
  """Returns XLA's options for the training step that XLA_FLAGS does not name.

  Level 2 compiles sooner than 3, and the step is as fast. XLA uses half of an
  AVX-512 register, which CPUs with bfloat16 products need not.
  """
  if not is_enabled():
    return {}
  options = {"xla_backend_optimization_level": 2}
  info = pathlib.Path("/proc/cpuinfo")
  if info.exists() and "avx512_bf16" in info.read_text(errors="replace"):
    options["xla_cpu_prefer_vector_width"] = 512
  flags = os.environ.get("XLA_FLAGS", "")
  return {name: x for name, x in options.items() if name not in flags}


def configure() -> None:
  """Sets up memory and dispatch for training on a CPU.

  Dispatch becomes synchronous: two overlapping steps would compete for the same
  cores and need twice the scratch memory. Does nothing if JAX_PLATFORMS names a
  GPU or TPU, as launch/gpu.sh does.
  """
  if not is_enabled(os.environ.get("JAX_PLATFORMS") or "cpu"):
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
