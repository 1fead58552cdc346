"""Times calls in turn, and says what a machine gives: no config, no model.

  secs = timing.in_turn({"old": old, "new": new}, rounds=20)
  print(timing.ratio(secs["new"], secs["old"]))  # 0.912 (0.905 to 0.921)

A shared machine is slower or faster from minute to minute. So what is compared
is timed in turns, and a ratio is one of pairs from the same round.
"""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import disk_errors

Runs = Mapping[str, Callable[[], Any]]


@dataclasses.dataclass(frozen=True)
class Ratio:
  """The median ratio of pairs and its 95 % bootstrap interval."""

  median: float
  low: float
  high: float

  @property
  def half_width(self) -> float:
    """Half of the interval's width."""
    return (self.high - self.low) / 2

  def __str__(self) -> str:
    return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def in_turn(runs: Runs, rounds: int, warmup: int = 1) -> dict[str, list[float]]:
  """Name -> the seconds of its call in each round; A B C, C B A, B C A, ...

  Forth and back, and each as often first as the others: whoever follows itself
  finds a cache that is warm.

  Args:
    runs: name -> a call; what it returns is waited for.
    rounds: rounds that count.
    warmup: rounds before them, which do not.
  """
  names = list(runs)
  secs: dict[str, list[float]] = {name: [] for name in names}
  for turn in range(warmup + rounds):
    first = turn // 2 % len(names)
    order = names[first:] + names[:first]
    for name in order[:: -1 if turn % 2 else 1]:
      began = time.perf_counter()
      jax.block_until_ready(runs[name]())
      secs[name].append(time.perf_counter() - began)
  return {name: values[warmup:] for name, values in secs.items()}


def quantiles(secs: Sequence[float]) -> dict[str, float]:
  """p10, median and p90, in the unit of what is given."""
  values = np.quantile(secs, (0.1, 0.5, 0.9)).tolist()
  return dict(zip(("p10", "median", "p90"), values, strict=True))


def ratio(
  secs_a: Sequence[float],
  secs_b: Sequence[float],
  draws: int = 2000,
  seed: int = 0,
) -> Ratio:
  """How long A takes of B: the median over the pairs of the same rounds.

  Args:
    secs_a: of each round.
    secs_b: of the same rounds.
    draws: resamplings of the pairs behind the interval.
    seed: of the resamplings.
  """
  ratios = np.divide(secs_a, secs_b)
  picks = np.random.default_rng(seed).integers(
    len(ratios), size=(draws, len(ratios))
  )
  low, high = np.quantile(np.median(ratios[picks], axis=1), (0.025, 0.975))
  return Ratio(float(np.median(ratios)), float(low), float(high))


def matmul_rate(
  dtype: str = "float32", size: int | None = None, rounds: int = 8
) -> float:
  """FLOP/s of a square matrix product, the best of several rounds.

  A round is four products in a row, each of which needs the one before, so
  that the time of a launch does not count. A GPU computes f32 products in TF32
  unless jax_default_matmul_precision says otherwise, here as in the model.

  Args:
    dtype: of the factors.
    size: rows and columns; default 2,048 on a CPU, 8,192 elsewhere.
    rounds: how often it is tried.
  """
  size = size or (2048 if jax.default_backend() == "cpu" else 8192)
  # Random, as zeros take less power; scaled to keep the product's size.
  keys = jax.random.split(jax.random.key(0))
  make = lambda key: jax.random.normal(key, (size, size)) * size**-0.5
  x, w = (make(key).astype(dtype) for key in keys)
  product = jax.jit(jnp.matmul)

  def chain():
    y = x
    for _ in range(4):
      y = product(y, w)
    return y

  secs = in_turn({"products": chain}, rounds)["products"]
  return 4 * 2 * size**3 / min(secs)


def bandwidth(rounds: int = 8) -> float:
  """Bytes a second of a = a + 3 c in f32, the best of several rounds.

  Two arrays are read and one is written, in place: what a CPU takes to get
  fresh memory from the system does not count.
  """
  count = 1 << (26 if jax.default_backend() == "cpu" else 29)
  triad = jax.jit(lambda a, c: a + 3.0 * c, donate_argnums=0)
  a, c = jnp.zeros(count), jnp.ones(count)

  def chain():
    nonlocal a
    for _ in range(4):
      a = triad(a, c)
    return a

  secs = in_turn({"triad": chain}, rounds)["triad"]
  return 4 * 3 * 4 * count / min(secs)


def peak_bytes() -> int:
  """The most memory taken so far: of the device, else of this process."""
  stats = jax.local_devices()[0].memory_stats() or {}
  if "peak_bytes_in_use" in stats:
    return stats["peak_bytes_in_use"]
  status = pathlib.Path("/proc/self/status")
  if status.exists():  # getrusage has the parent's peak where that was higher
    (line,) = (x for x in status.read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024
  unit = 1 if sys.platform == "darwin" else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def machine() -> dict[str, str]:
  """The device, the cores that may be used, and the versions beneath."""
  device = jax.devices()[0]
  kind = device.device_kind
  cpu = pathlib.Path("/proc/cpuinfo")
  if device.platform == "cpu" and cpu.exists():
    lines = cpu.read_text().splitlines()
    kind = next((x.split(": ")[1] for x in lines if "model name" in x), kind)
  cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
  found = {
    "device": f"{jax.device_count()} x {kind} ({device.platform})",
    "cores": str(len(cores(0))),
    "python": sys.version.split()[0],
    "jax": jax.__version__,
    "jaxlib": importlib.metadata.version("jaxlib"),
  }
  if device.platform == "gpu":
    installed = {d.name: d.version for d in importlib.metadata.distributions()}
    cudnn = (v for n, v in installed.items() if n.startswith("nvidia-cudnn"))
    found["cudnn"] = next(cudnn, "the system's")
  return found


def append_json(path: str | os.PathLike[str], record: Mapping) -> None:
  """Adds a record to the list in a JSON file; the file is whole at any time.

  Raises:
    InputError: the file is there and holds something else.
    DiskError: it could not be written.
  """
  path = pathlib.Path(path)
  try:
    records = json.loads(path.read_text()) if path.exists() else []
  except ValueError:
    records = None
  if not isinstance(records, list):
    raise InputError(f"{path} holds no list in JSON; name another file.")
  whole = path.with_suffix(f".{os.getpid()}.tmp")
  with disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    whole.write_text(json.dumps([*records, record], indent=2) + "\n")
    whole.replace(path)
