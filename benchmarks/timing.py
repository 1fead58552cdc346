"""Times calls in turns and measures the limits of the machine.

  secs = timing.time_in_turns({"old": old, "new": new}, rounds=20)
  print(timing.paired_ratio(secs["new"], secs["old"]))  # 0.912 (0.905 to 0.921)

The speed of a shared machine changes from minute to minute. So calls are
compared in turns, and a ratio is taken from times of the same round.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truenegs_jax.runtime import errors
from truenegs_jax.runtime.files import disk_errors

Calls = Mapping[str, Callable[[], object]]
BOOTSTRAPS = 2000  # samples of the rounds, for the interval of a ratio


@dataclasses.dataclass(frozen=True)
class Ratio:
  """The median ratio of paired times and its 95 % bootstrap interval."""

  median: float
  low: float
  high: float

  @property
  def half_width(self) -> float:
    """Half of the interval's width."""
    return (self.high - self.low) / 2

  def __str__(self) -> str:
    return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def time_in_turns(
  calls: Calls, rounds: int, warmup: int = 1
) -> dict[str, list[float]]:
  """Times calls in the order A B C, C B A, B C A, ...

  A call that follows itself has a warm cache. In this order each call is
  equally often first, and equally often follows itself. Results are waited for.

  Returns:
    Name -> seconds in each round, without those of the `warmup` rounds before.
  """
  names = list(calls)
  secs: dict[str, list[float]] = {name: [] for name in names}
  for turn in range(warmup + rounds):
    first = turn // 2 % len(names)
    order = names[first:] + names[:first]
    for name in order[:: -1 if turn % 2 else 1]:
      start = time.perf_counter()
      jax.block_until_ready(calls[name]())
      secs[name].append(time.perf_counter() - start)
  return {name: values[warmup:] for name, values in secs.items()}


def quantiles(secs: Sequence[float]) -> dict[str, float]:
  """Returns "p10", "median" and "p90", in the unit of the input."""
  values = np.quantile(secs, (0.1, 0.5, 0.9)).tolist()
  return dict(zip(("p10", "median", "p90"), values, strict=True))


def paired_ratio(secs_a: Sequence[float], secs_b: Sequence[float]) -> Ratio:
  """Returns the median over the rounds of A's seconds / B's seconds."""
  ratios = np.divide(secs_a, secs_b)
  num = len(ratios)
  samples = np.random.default_rng(0).integers(num, size=(BOOTSTRAPS, num))
  low, high = np.quantile(np.median(ratios[samples], axis=1), (0.025, 0.975))
  return Ratio(float(np.median(ratios)), float(low), float(high))


def measure_matmul_rate(dtype: str) -> float:
  """Measures the FLOP/s of a square matrix product; the best of 8 rounds.

  A round is four products, each of which needs the one before, so that launch
  times do not count. A GPU computes f32 products in TF32 unless
  jax_default_matmul_precision is set, both here and in the model.
  """
  size = 2048 if jax.default_backend() == "cpu" else 8192
  # Random, as zeros take less power; scaled to keep the product's magnitude.
  x, w = (
    (jax.random.normal(key, (size, size)) * size**-0.5).astype(dtype)
    for key in jax.random.split(jax.random.key(0))
  )
  product = jax.jit(jnp.matmul)

  def chain():
    y = x
    for _ in range(4):
      y = product(y, w)
    return y

  secs = time_in_turns({"products": chain}, 8)["products"]
  return 4 * 2 * size**3 / min(secs)


def measure_bandwidth() -> float:
  """Measures the bytes/s of a = a + 3 c in f32; the best of 8 rounds.

  Two arrays are read and one is written. It is written in place, so that a CPU
  does not spend time on new memory pages.
  """
  count = 1 << (26 if jax.default_backend() == "cpu" else 29)
  triad = jax.jit(lambda a, c: a + 3.0 * c, donate_argnums=0)
  a, c = jnp.zeros(count), jnp.ones(count)

  def chain():
    nonlocal a
    for _ in range(4):
      a = triad(a, c)
    return a

  secs = time_in_turns({"triad": chain}, 8)["triad"]
  return 4 * 3 * 4 * count / min(secs)


def peak_bytes() -> int:
  """Returns the device's peak memory, or this process's if it has none."""
  stats = jax.local_devices()[0].memory_stats() or {}
  if "peak_bytes_in_use" in stats:
    return stats["peak_bytes_in_use"]
  status = pathlib.Path("/proc/self/status")
  if status.exists():  # getrusage also counts the parent's peak before exec
    (line,) = (x for x in status.read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024
  unit = 1 if sys.platform == "darwin" else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def describe_machine() -> dict[str, str]:
  """Returns the device, the number of usable cores and the versions."""
  device = jax.devices()[0]
  kind = device.device_kind
  cpuinfo = pathlib.Path("/proc/cpuinfo")
  if device.platform == "cpu" and cpuinfo.exists():
    lines = cpuinfo.read_text().splitlines()
    kind = next((x.split(": ")[1] for x in lines if "model name" in x), kind)
  cores = os.cpu_count() or 1
  if hasattr(os, "sched_getaffinity"):  # Linux
    cores = len(os.sched_getaffinity(0))
  fields = {
    "device": f"{jax.device_count()} x {kind} ({device.platform})",
    "cores": str(cores),
    "python": sys.version.split()[0],
    "jax": jax.__version__,
    "jaxlib": importlib.metadata.version("jaxlib"),
  }
  if device.platform == "gpu":
    installed = {d.name: d.version for d in importlib.metadata.distributions()}
    cudnn = (v for n, v in installed.items() if n.startswith("nvidia-cudnn"))
    fields["cudnn"] = next(cudnn, "the system's")
  return fields


def new_record() -> dict[str, Any]:
  """Returns a record for `append_json` with the command and the machine."""
  return {"command": " ".join(sys.argv), **describe_machine()}


def append_json(path: str | pathlib.Path, record: Mapping[str, Any]) -> None:
  """Appends a record to the list in a JSON file; replaces the file atomically.

  Raises:
    InputError: the file exists and contains no list.
    DiskError: the file cannot be written.
  """
  path = pathlib.Path(path)
  try:
    records = json.loads(path.read_text()) if path.exists() else []
  except ValueError:
    records = None
  if not isinstance(records, list):
    raise errors.InputError(
      f"{path}: no list in JSON. Choose another file: --json=FILE."
    )
  temporary = path.with_suffix(f".{os.getpid()}.tmp")
  with disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(json.dumps([*records, record], indent=2) + "\n")
    temporary.replace(path)


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
  """Prints a TrueNegsError without traceback and exits with its code."""
  try:
    yield
  except errors.TrueNegsError as e:
    print(f"error: {errors.printable(e)}", file=sys.stderr)
    sys.exit(e.exit_code)
