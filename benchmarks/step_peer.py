"""Whether pre-training is what it is in PyTorch with transformers, and faster.

  python benchmarks/step_peer.py --threads=4
  python benchmarks/step_peer.py --dropout=0 --sides=eager,compiled --rounds=20

ELECTRA-small's step, forward to update, beside that of benchmarks/torch_step.py
with the same weights, rows, losses, dropout and optimizer:

- ours: what main.py runs with configs/electra_small.py[:--ours];
- eager: PyTorch as it comes, slots gathered before the vocabulary;
- compiled: the same by torch.compile, whose first step takes minutes;
- stock: as ElectraForMaskedLM has it, logits at all positions.

1. Without dropout, with our masks and samples on both sides: the losses of
   --plain_steps steps. As the first update has a rate of 0, the first two
   compare the networks; the others the gradients and the optimizer, too.
   Returns 1 where any is apart by more than 1e-4 of it.
2. Speed: each side is a process of its own, on the first --threads cores, and
   takes --turn_steps steps when it is its turn: A B C, C B A, ... Ratios are of
   the turns of one round. Each side draws dropout in its own way.

The allocator is the same on all sides: "tuned" is truenegs_jax/runtime/cpu.py,
"glibc" what the system has, and a path a library to preload (tcmalloc). MKL, as
PyTorch's wheels hold it, leaves AVX-512 alone on other CPUs than Intel's, and
is slow: compare the rates of products. For PyTorch at its best there, make
`int mkl_serv_intel_cpu_true() { return 1; }` a shared library and give its path
to --torch_preload.

On the CPU, without the network; writes nothing. Needs PyTorch, transformers.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any
from unittest import mock

from truenegs_jax.runtime import cpu

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"

# This file is imported by each side before it sets its allocator: what takes
# memory is imported later.

OURS, MODES = "ours", ("eager", "compiled", "stock")
PACKAGES = ("jax", "torch", "transformers")
RECIPES = ("baseline", "hc", "sr", "hc+sr")
SYSTEM_ALLOCATORS = ("glibc", "tuned")
TOLERANCE, BATCHES, PRODUCT = 1e-4, 4, 2048


def main(argv: Sequence[str] | None = None) -> int:
  """Prints what was found; returns 1 where the two are different networks."""
  flags = _flags(argv)
  versions = (f"{x} {metadata.version(x)}" for x in PACKAGES)
  print(
    f"{', '.join(versions)}; {flags.threads} cores, allocator"
    f" {flags.allocator}, {flags.batch} rows of {flags.length} tokens"
  )
  gap = same_losses(flags) if flags.plain_steps else 0.0
  if flags.rounds:
    compare_speed(flags)
  return int(not gap <= TOLERANCE)


def _flags(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  count, share = _number(int, 1, 1 << 20), _number(float, 0.0, 0.9)
  threads = _number(int, 1, len(_cores()))
  parser.add_argument("--threads", type=threads, default=len(_cores()))
  parser.add_argument("--sides", type=_modes, default=["eager", "stock"])
  parser.add_argument("--ours", choices=RECIPES, default="baseline")
  parser.add_argument("--batch", type=count, default=32)
  parser.add_argument("--length", type=_number(int, 8, 512), default=128)
  parser.add_argument("--dropout", type=share, default=0.1)
  parser.add_argument("--plain_steps", type=_number(int, 0, 100), default=6)
  parser.add_argument("--rounds", type=_number(int, 0, 1 << 20), default=10)
  parser.add_argument("--turn_steps", type=count, default=1)
  parser.add_argument("--allocator", type=_allocator, default="tuned")
  parser.add_argument("--torch_preload", type=_library, default="")
  parser.add_argument("--attention", choices=("eager", "sdpa"), default="eager")
  return parser.parse_args(argv)


def _number(kind: type, low: float, high: float) -> Callable[[str], Any]:
  """A type for argparse, which says what is wrong with another text."""

  def number(text: str) -> Any:
    value = kind(text)
    if not low <= value <= high:
      raise argparse.ArgumentTypeError(f"{text}: not {low} to {high}")
    return value

  return number


def _modes(text: str) -> list[str]:
  modes = [name for name in text.split(",") if name]
  if not modes or set(modes) - set(MODES):
    raise argparse.ArgumentTypeError(f"{text!r}: give some of {MODES}")
  return modes


def _library(text: str) -> str:
  if text and not pathlib.Path(text).is_file():
    raise argparse.ArgumentTypeError(f"there is no library {text!r}")
  return text


def _allocator(text: str) -> str:
  return text if text in SYSTEM_ALLOCATORS else _library(text)


def _cores() -> list[int]:
  if hasattr(os, "sched_getaffinity"):  # Linux
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


class Side:
  """A process that takes training steps when it is asked to."""

  def __init__(self, flags: argparse.Namespace, mode: str, given: Any = None):
    libraries = [os.environ.get("LD_PRELOAD", "")]
    if flags.allocator not in SYSTEM_ALLOCATORS:
      libraries.append(flags.allocator)
    if mode != OURS:
      libraries.append(flags.torch_preload)
    context = multiprocessing.get_context("spawn")
    self._mode = mode
    self._pipe, theirs = context.Pipe()
    self._process = context.Process(
      target=serve, args=(theirs, flags, mode, given), daemon=True
    )
    with mock.patch.dict(os.environ, LD_PRELOAD=" ".join(libraries)):
      self._process.start()
    theirs.close()

  def ask(self, method: str, *args: Any) -> Any:
    """What a method of the side returns; ends the program if the side did."""
    try:
      self._pipe.send((method, args))
      return self._pipe.recv()
    except (EOFError, OSError) as e:
      raise SystemExit(f"{self._mode} has ended; see above.") from e

  def close(self) -> None:
    """Lets the process end, and its memory go."""
    self._pipe.close()
    self._process.join()


def serve(pipe: Any, flags: argparse.Namespace, mode: str, given: Any) -> None:
  """Answers in the process of a side until nobody asks any more."""
  if hasattr(os, "sched_setaffinity"):  # XLA then has as many threads
    os.sched_setaffinity(0, _cores()[: flags.threads])
  if flags.allocator == "tuned":
    cpu.keep_freed_memory()
  if mode == OURS:
    if flags.allocator == "glibc":
      os.environ[cpu.SWITCH] = "plain"
    import own_step

    side: Any = own_step.OwnStep(
      flags.ours,
      batch=flags.batch,
      length=flags.length,
      dropout=flags.dropout,
    )
  else:
    import torch_step

    side = torch_step.TorchStep(
      given, mode=mode, attention=flags.attention, threads=flags.threads
    )
  own = {"peak": peak, "rate": lambda: rate(side.product(PRODUCT))}
  with contextlib.suppress(EOFError):
    while True:
      method, args = pipe.recv()
      pipe.send((own.get(method) or getattr(side, method))(*args))


def peak() -> float:
  """The most memory that this process has had, GB."""
  status = pathlib.Path("/proc/self/status")
  if status.exists():  # getrusage has the parent's peak where that was higher
    (line,) = (x for x in status.read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024 / 1e9
  unit = 1 if sys.platform == "darwin" else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def rate(multiply: Callable[[], Any]) -> float:
  """FLOP/s of a product of square matrices, the best of several."""
  secs = []
  for _ in range(12):
    began = time.perf_counter()
    multiply()
    secs.append(time.perf_counter() - began)
  return 2 * PRODUCT**3 / min(secs)


@contextlib.contextmanager
def sides(
  flags: argparse.Namespace, modes: Sequence[str], **changes: Any
) -> Iterator[tuple[dict[str, Side], Any]]:
  """Our side and those of PyTorch, and what they have been given by it."""
  flags = argparse.Namespace(**{**vars(flags), **changes})
  with contextlib.ExitStack() as stack:
    made: dict[str, Side] = {}
    given = None
    for mode in (OURS, *modes):
      made[mode] = Side(flags, mode, given)
      stack.callback(made[mode].close)
      given = given or made[OURS].ask("given", BATCHES)
    yield made, given


def same_losses(flags: argparse.Namespace) -> float:
  """Without dropout; returns the largest gap, as a share of the loss."""
  modes = [m for m in flags.sides if m != "compiled"] or ["eager"]
  changes = dict(dropout=0.0, ours="baseline")
  with sides(flags, modes, **changes) as (made, _):
    losses: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(flags.plain_steps):
      draws = made[OURS].ask("draws")
      for name, side in made.items():
        args = () if name == OURS else (draws,)
        losses[name].append(side.ask("step", *args))
  import numpy as np

  ours = np.array(losses.pop(OURS))
  apart = {name: np.abs(x - ours) / ours for name, x in losses.items()}
  print("Without dropout, ours' masks and samples on all sides:")
  print("step  ours        " + "".join(f"{x:12}apart     " for x in losses))
  for t, loss in enumerate(ours):
    theirs = (f"{x[t]:<12.7f}{apart[n][t]:<10.1e}" for n, x in losses.items())
    print(f"{t:4}  {loss:<12.7f}{''.join(theirs)}")
  gap = float(np.max(list(apart.values())))
  print(f"largest gap {gap:.1e} of the loss; up to {TOLERANCE:g} is rounding")
  return gap


def compare_speed(flags: argparse.Namespace) -> None:
  """Prints the time of each side, and how many times faster ours is."""
  import timing

  with sides(flags, flags.sides) as (made, given):
    runs = {
      name: lambda side=side: [
        side.ask("step") for _ in range(flags.turn_steps)
      ]
      for name, side in made.items()
    }
    secs = timing.in_turn(runs, flags.rounds, warmup=2)
    print(
      f"Dropout {flags.dropout:g}, {flags.rounds} rounds of"
      f" {flags.turn_steps} step(s):\nside      ms a step (p10 to p90)"
      "  GB     GFLOP/s  share  loss     ours is faster"
    )
    for name, side in made.items():
      q = {
        k: x / flags.turn_steps for k, x in timing.quantiles(secs[name]).items()
      }
      memory, loss, flops = side.ask("peak"), side.ask("step"), side.ask("rate")
      share = given["flops"] / flops / q["median"]
      times = "" if name == OURS else timing.ratio(secs[name], secs[OURS])
      print(
        f"{name:9} {1e3 * q['median']:6.0f} ({1e3 * q['p10']:.0f} to"
        f" {1e3 * q['p90']:.0f})  {memory:.2f}  {flops / 1e9:7.0f}"
        f"  {share:5.0%}  {loss:.4f}  {times}"
      )


if __name__ == "__main__":
  sys.exit(main())
