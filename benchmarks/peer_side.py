"""One side of benchmarks/step_peer.py, in a process of its own.

  python benchmarks/peer_side.py DESCRIPTOR

The descriptor is that of a socket. The first message has the arguments of
`build_side`, the others are calls: the name of a method and its arguments.
"""

import os
import pathlib
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from truenegs_jax.runtime import cpu

OURS = "ours"
PRODUCT_SIZE = 2048
# A side imports its framework after `keep_freed_memory` has set the allocator.


def main() -> None:
  """Builds a side, and answers calls until the other end is closed."""
  connection = Connection(int(sys.argv[1]))
  side = build_side(*connection.recv())
  own = {"peak_gb": measure_peak_gb, "product_rate": measure_product_rate}
  connection.send(None)
  while True:
    try:
      name, arguments = connection.recv()
    except EOFError:
      return
    call = own[name] if name in own else getattr(side, name)
    connection.send(call(side) if name in own else call(*arguments))


def build_side(
  mode: str, cores: Sequence[int], inputs: Any, options: dict[str, Any]
) -> Any:
  """Returns OURS with `options`, or a mode of PyTorch with `inputs`."""
  if hasattr(os, "sched_setaffinity"):  # XLA starts a thread for each core
    os.sched_setaffinity(0, cores)
  cpu.keep_freed_memory()
  if mode == OURS:
    import own_step

    return own_step.OwnStep(**options)
  import torch_step

  return torch_step.TorchStep(inputs, mode=mode, threads=len(cores), **options)


def measure_peak_gb(side: Any) -> float:
  """Returns the peak memory of this process in GB."""
  del side
  # On Linux; getrusage also counts the parent's peak before exec.
  status = pathlib.Path("/proc/self/status").read_text()
  (line,) = (x for x in status.splitlines() if "VmHWM" in x)
  return int(line.split()[1]) * 1024 / 1e9


def measure_product_rate(side: Any) -> float:
  """Returns the FLOP/s of a side's products; the fastest of 12 counts."""
  multiply = side.product(PRODUCT_SIZE)
  secs = []
  for _ in range(12):
    began = time.perf_counter()
    multiply()
    secs.append(time.perf_counter() - began)
  return 2 * PRODUCT_SIZE**3 / min(secs)


if __name__ == "__main__":
  main()
