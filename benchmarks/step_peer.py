"""Compares pre-training with PyTorch and transformers: losses and speed.

  python benchmarks/step_peer.py --threads=4
  python benchmarks/step_peer.py --dropout=0 --sides=eager,compiled --rounds=20

Runs ELECTRA-small's training step on sides with the same weights, rows, losses,
dropout rate and optimizer, each in a process on the first --threads cores:

- ours: the step of main.py with configs/electra_small.py[:--ours];
- eager: PyTorch (benchmarks/torch_step.py), logits only at the slots;
- compiled: the same by torch.compile, whose first step takes minutes;
- stock: the same, logits at all positions, as in ElectraForMaskedLM.

First come the losses of --plain_steps steps without dropout, with the masks and
samples of "ours" on all sides. The first update has a learning rate of 0: the
first two losses compare the networks, the others also the gradients and the
optimizer. Returns 1 if a loss differs by more than 1e-4 of its value. Then the
sides are timed in turns of --turn_steps steps, each with its own dropout.

--allocator: "tuned" is that of truenegs_jax/runtime/cpu.py, "glibc" the
system's; a path is a library to preload, such as tcmalloc. PyTorch's MKL uses
AVX-512 only on Intel's CPUs: compare the rates of products. To make it use
AVX-512 on others, compile `int mkl_serv_intel_cpu_true() { return 1; }` to a
shared library: --torch_preload=LIBRARY.

Runs on the CPU, offline, and writes nothing. Needs PyTorch and transformers.
"""

import argparse
import contextlib
import functools
import multiprocessing
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from truenegs_jax.runtime import cpu

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"

# Each side imports this file before it sets its allocator. So imports that
# allocate much memory are inside functions.

OURS, MODES = "ours", ("eager", "compiled", "stock")
PACKAGES = ("jax", "torch", "transformers")
RECIPES = ("baseline", "hc", "sr", "hc+sr")
ALLOCATORS = ("glibc", "tuned")
TOLERANCE, BATCHES, PRODUCT_SIZE = 1e-4, 4, 2048


def main(argv: Sequence[str] | None = None) -> int:
  """Prints losses and speeds; returns 1 if the losses differ."""
  args = _parse_arguments(argv)
  versions = (f"{x} {metadata.version(x)}" for x in PACKAGES)
  print(
    f"{', '.join(versions)}; {args.threads} cores, allocator"
    f" {args.allocator}, {args.batch} rows of {args.length} tokens"
  )
  difference = compare_losses(args) if args.plain_steps else 0.0
  if args.rounds:
    compare_speed(args)
  return int(not difference <= TOLERANCE)


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  count, share = _in_range(int, 1, 1 << 20), _in_range(float, 0.0, 0.9)
  threads = _in_range(int, 1, len(_get_cores()))
  parser.add_argument("--threads", type=threads, default=len(_get_cores()))
  parser.add_argument("--sides", type=_parse_modes, default=["eager", "stock"])
  parser.add_argument("--ours", choices=RECIPES, default="baseline")
  parser.add_argument("--batch", type=count, default=32)
  parser.add_argument("--length", type=_in_range(int, 8, 512), default=128)
  parser.add_argument("--dropout", type=share, default=0.1)
  parser.add_argument("--plain_steps", type=_in_range(int, 0, 100), default=6)
  parser.add_argument("--rounds", type=_in_range(int, 0, 1 << 20), default=10)
  parser.add_argument("--turn_steps", type=count, default=1)
  parser.add_argument("--allocator", type=_check_allocator, default="tuned")
  parser.add_argument("--torch_preload", type=_check_library, default="")
  parser.add_argument("--attention", choices=("eager", "sdpa"), default="eager")
  return parser.parse_args(argv)


def _in_range(kind: type, low: float, high: float) -> Callable[[str], float]:
  """Returns a type for argparse that accepts numbers from `low` to `high`."""

  def number(text: str) -> float:  # argparse prints this name
    value = kind(text)
    if not low <= value <= high:
      raise argparse.ArgumentTypeError(f"{text}. Choose {low:,} to {high:,}.")
    return value

  return number


def _parse_modes(text: str) -> list[str]:
  modes = [name for name in text.split(",") if name]
  if not modes or set(modes) - set(MODES):
    raise argparse.ArgumentTypeError(
      f"{text!r} is unknown. Choose some of {','.join(MODES)}."
    )
  return modes


def _check_allocator(text: str) -> str:
  return text if text in ALLOCATORS else _check_library(text)


def _check_library(text: str) -> str:
  if text and not pathlib.Path(text).is_file():
    raise argparse.ArgumentTypeError(f"{text!r} is not a file.")
  return text


def _get_cores() -> list[int]:
  if hasattr(os, "sched_getaffinity"):  # Linux
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


class SideProcess:
  """A process that runs the methods of one side on request."""

  def __init__(self, args: argparse.Namespace, mode: str, inputs: Any):
    """Starts OURS, or one of MODES with the `inputs` of `TorchStep`."""
    libraries = [os.environ.get("LD_PRELOAD", "")]
    if args.allocator not in ALLOCATORS:
      libraries.append(args.allocator)
    if mode != OURS:
      libraries.append(args.torch_preload)
    context = multiprocessing.get_context("spawn")
    self._mode = mode
    self._pipe, child_pipe = context.Pipe()
    self._process = context.Process(
      target=serve_calls, args=(child_pipe, args, mode, inputs), daemon=True
    )
    with mock.patch.dict(os.environ, LD_PRELOAD=" ".join(libraries)):
      self._process.start()
    child_pipe.close()

  def call(self, method: str, *args: object) -> Any:
    """Calls a method in the process; exits if the process has ended."""
    try:
      self._pipe.send((method, args))
      return self._pipe.recv()
    except (EOFError, OSError) as e:
      raise SystemExit(
        f"error: The process of {self._mode!r} has ended. See above for why."
      ) from e

  def close(self) -> None:
    """Ends the process and frees its memory."""
    self._pipe.close()
    self._process.join()


def serve_calls(
  pipe: Connection, args: argparse.Namespace, mode: str, inputs: Any
) -> None:
  """Builds a side and runs its methods until the pipe is closed."""
  if hasattr(os, "sched_setaffinity"):  # XLA starts a thread for each core
    os.sched_setaffinity(0, _get_cores()[: args.threads])
  if args.allocator == "tuned":
    cpu.keep_freed_memory()
  if mode == OURS:
    if args.allocator == "glibc":
      os.environ[cpu.SWITCH] = "plain"
    import own_step

    side: Any = own_step.OwnStep(
      args.ours, batch=args.batch, length=args.length, dropout=args.dropout
    )
  else:
    import torch_step

    side = torch_step.TorchStep(
      inputs, mode=mode, attention=args.attention, threads=args.threads
    )
  functions = {
    "peak_gb": measure_peak_gb,
    "product_rate": lambda: measure_rate(side.product(PRODUCT_SIZE)),
  }
  with contextlib.suppress(EOFError):
    while True:
      name, call_args = pipe.recv()
      function = functions.get(name) or getattr(side, name)
      pipe.send(function(*call_args))


def measure_peak_gb() -> float:
  """Returns the peak memory of this process in GB."""
  status = pathlib.Path("/proc/self/status")
  if status.exists():  # getrusage also counts the parent's peak before exec
    (line,) = (x for x in status.read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024 / 1e9
  unit = 1 if sys.platform == "darwin" else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def measure_rate(multiply: Callable[[], object]) -> float:
  """Returns the FLOP/s of a matrix product; the fastest of 12 counts."""
  secs = []
  for _ in range(12):
    start = time.perf_counter()
    multiply()
    secs.append(time.perf_counter() - start)
  return 2 * PRODUCT_SIZE**3 / min(secs)


@contextlib.contextmanager
def start_sides(
  args: argparse.Namespace, modes: Sequence[str]
) -> Iterator[tuple[dict[str, SideProcess], Any]]:
  """Yields sides by name, and the inputs that OURS made for the others."""
  with contextlib.ExitStack() as stack:
    sides: dict[str, SideProcess] = {}
    inputs = None
    for mode in (OURS, *modes):
      sides[mode] = SideProcess(args, mode, inputs)
      stack.callback(sides[mode].close)
      inputs = inputs or sides[OURS].call("peer_inputs", BATCHES)
    yield sides, inputs


def compare_losses(args: argparse.Namespace) -> float:
  """Prints losses without dropout; returns the largest relative difference."""
  modes = [m for m in args.sides if m != "compiled"] or ["eager"]
  changes = {"dropout": 0.0, "ours": "baseline"}
  plain_args = argparse.Namespace(**(vars(args) | changes))
  with start_sides(plain_args, modes) as (sides, _):
    losses: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(args.plain_steps):
      draws = sides[OURS].call("draws")
      for name, side in sides.items():
        step_args = () if name == OURS else (draws,)
        losses[name].append(side.call("step", *step_args))
  import numpy as np

  print("Without dropout, with the same masks and samples on all sides:")
  expected = np.array(losses.pop(OURS))
  columns = "".join(f"{name:12}difference  " for name in losses)
  print(f"step  {OURS:12}{columns}")
  losses_SxT = np.array(list(losses.values()))
  differences_SxT = np.abs(losses_SxT - expected) / expected
  for t, loss in enumerate(expected):
    pairs = zip(losses_SxT[:, t], differences_SxT[:, t], strict=True)
    cells = (f"{x:<12.7f}{difference:<12.1e}" for x, difference in pairs)
    print(f"{t:4}  {loss:<12.7f}{''.join(cells)}")
  largest = float(differences_SxT.max())
  print(f"largest difference {largest:.1e} of the loss; limit {TOLERANCE:g}")
  return largest


def compare_speed(args: argparse.Namespace) -> None:
  """Prints each side's time, memory and product rate, and the speed-up."""
  import timing

  with start_sides(args, args.sides) as (sides, inputs):

    def run_turn(side: SideProcess) -> None:
      for _ in range(args.turn_steps):
        side.call("step")

    calls = {name: functools.partial(run_turn, x) for name, x in sides.items()}
    secs = timing.time_in_turns(calls, args.rounds, warmup=2)
    print(
      f"Dropout {args.dropout:g}, {args.rounds} rounds of"
      f" {args.turn_steps} step(s):\nside      ms per step (p10 to p90)"
      "  GB     GFLOP/s  share  loss     ours is faster"
    )
    for name, side in sides.items():
      quantiles = timing.quantiles([x / args.turn_steps for x in secs[name]])
      ms = {q: 1e3 * x for q, x in quantiles.items()}
      gb, loss = side.call("peak_gb"), side.call("step")
      flops_per_s = side.call("product_rate")
      share = inputs["flops"] / flops_per_s / quantiles["median"]
      ratio = timing.paired_ratio(secs[name], secs[OURS])
      print(
        f"{name:9} {ms['median']:6.0f} ({ms['p10']:.0f} to"
        f" {ms['p90']:.0f})  {gb:.2f}  {flops_per_s / 1e9:7.0f}"
        f"  {share:5.0%}  {loss:.4f}  {'' if name == OURS else ratio}"
      )


if __name__ == "__main__":
  sys.exit(main())
