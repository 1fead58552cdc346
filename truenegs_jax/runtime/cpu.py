"""Settings for CPUs, and the switch of all code that is only for CPUs.

`configure` is called once, before jax is imported; `is_enabled` is called while
a function is traced. The code itself is in `cpu_ops`.
"""

import contextlib
import contextvars
import ctypes
import os
import sys
from collections.abc import Iterator

SWITCH = "TRUENEGS_CPU"  # =plain: jax, flax and malloc as they come

# Numbers of glibc's malloc.h, and values: large arrays come from the heap like
# small ones, the heap is never given back, and all threads share one.
M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX = -4, -1, -8
SETTINGS = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_ARENA_MAX: 1}

_PLATFORM = contextvars.ContextVar("platform", default="")


def is_enabled(platform: str = "") -> bool:
  """Whether to use the code for CPUs.

  Args:
    platform: that the program is for; default: that of `lowering_for`, or
      else jax's default backend.
  """
  if os.environ.get(SWITCH) == "plain":
    return False
  platform = platform or _PLATFORM.get()
  if not platform:
    import jax  # not above: `configure` comes first

    platform = jax.default_backend()
  return platform == "cpu"


@contextlib.contextmanager
def lowering_for(platform: str) -> Iterator[None]:
  """Traces functions for a platform that may be absent.

  What `jax.jit` has traced before is not traced again: pass a new function.
  """
  token = _PLATFORM.set(platform)
  try:
    yield
  finally:
    _PLATFORM.reset(token)


def configure() -> None:
  """Sets up memory and the order of work for training on a CPU.

  A step begins when the last one has ended: both would want the same cores, and
  twice the scratch memory. Neither counts where JAX_PLATFORMS names a GPU or
  TPU (as launch/gpu.sh does), and nothing is done there.
  """
  if not is_enabled(os.environ.get("JAX_PLATFORMS") or "cpu"):
    return
  keep_freed_memory()
  import jax

  jax.config.update("jax_cpu_enable_async_dispatch", False)


def keep_freed_memory() -> None:
  """Makes glibc's malloc keep what is freed; no effect on another malloc.

  XLA asks for the scratch memory of a step, a gigabyte and more, at every step
  anew, and glibc would fetch it from the system each time, zeroed, page by
  page: a sixth of a step of ELECTRA-small.
  """
  if sys.platform.startswith("linux"):
    malloc = ctypes.CDLL(None)
    for setting in SETTINGS.items() if hasattr(malloc, "mallopt") else ():
      malloc.mallopt(*setting)
