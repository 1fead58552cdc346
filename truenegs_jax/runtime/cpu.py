"""What pays on a CPU and is said once, before the first array is made."""

import ctypes
import os
import sys

SWITCH = "TRUENEGS_CPU"  # =plain: jax and malloc as they come

# Numbers of glibc's malloc.h, and values: large arrays come from the heap like
# small ones, the heap is never given back, and all threads share one.
M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX = -4, -1, -8
SETTINGS = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_ARENA_MAX: 1}


def tune() -> None:
  """Keeps memory and the order of work as suits a training on a CPU.

  A step begins when the last one has ended: both would want the same cores, and
  twice the scratch memory. Neither counts where JAX_PLATFORMS names a GPU or
  TPU (as launch/gpu.sh does), and nothing is done there.
  """
  elsewhere = os.environ.get("JAX_PLATFORMS", "cpu") not in ("", "cpu")
  if elsewhere or os.environ.get(SWITCH) == "plain":
    return
  keep_memory()
  # Not above: malloc should know before jax is loaded.
  import jax

  jax.config.update("jax_cpu_enable_async_dispatch", False)


def keep_memory() -> None:
  """Has glibc's malloc keep what is freed; does nothing with another malloc.

  XLA asks for the scratch memory of a step, a gigabyte and more, at every step
  anew, and glibc would fetch it from the system each time, zeroed, page by
  page: a sixth of a step of ELECTRA-small.
  """
  if sys.platform.startswith("linux"):
    malloc = ctypes.CDLL(None)
    for setting in SETTINGS.items() if hasattr(malloc, "mallopt") else ():
      malloc.mallopt(*setting)
