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

With --torch_dtype=bfloat16, PyTorch computes in it by autocast. Losses are
compared in f32 only.

On both sides malloc keeps freed memory (truenegs_jax/runtime/cpu.py). PyTorch's
MKL uses AVX-512 only on Intel's CPUs: compare the rates of products. To make it
use AVX-512 on others, compile `int mkl_serv_intel_cpu_true() { return 1; }` to
a shared library: --torch_preload=LIBRARY.

Runs on the CPU, offline, and writes nothing. Needs PyTorch and transformers.
"""

import argparse
import contextlib
import functools
import multiprocessing
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from importlib import metadata
from typing import Any

from truenegs_jax.runtime import cpu

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"

OURS = "ours"
MODES = ("eager", "compiled", "stock")
DTYPES = ("float32", "bfloat16")
RECIPES = ("baseline", "hc", "sr", "hc+sr")
TOLERANCE = 1e-4
BATCHES = 4
PRODUCT_SIZE = 2048
_side: Any = None  # that of this process, in those that `start_sides` starts


def main(argv: Sequence[str] | None = None) -> int:
  """Prints losses and speeds; returns 1 if the losses differ."""
  args = _parse_arguments(argv)
  print(
    f"jax {metadata.version('jax')} in {args.dtype}, PyTorch in"
    f" {args.torch_dtype}; {args.threads} cores, {args.batch} rows of"
    f" {args.length} tokens"
  )
  is_exact = {args.dtype, args.torch_dtype} == {"float32"}
  plain_steps = args.plain_steps if is_exact else 0
  difference = compare_losses(args) if plain_steps else 0.0
  if args.rounds:
    compare_speed(args)
  return int(not difference <= TOLERANCE)


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  add = parser.add_argument
  add("--threads", type=int, default=len(_get_cores()))
  add("--sides", default="eager,stock", help=f"Some of {','.join(MODES)}.")
  add("--ours", choices=RECIPES, default="baseline")
  add("--variant", default="small", help="The size of the networks.")
  add("--batch", type=int, default=32)
  add("--length", type=int, default=128)
  add("--dropout", type=float, default=0.1)
  add("--plain_steps", type=int, default=6, help="0 compares no losses.")
  add("--rounds", type=int, default=10, help="0 compares no speeds.")
  add("--turn_steps", type=int, default=1)
  add("--dtype", choices=DTYPES, default="float32", help="Of our side.")
  add("--torch_dtype", choices=DTYPES, default="float32")
  add("--torch_preload", default="", help="A library.")
  args = parser.parse_args(argv)
  args.sides = args.sides.split(",")
  if unknown := set(args.sides) - set(MODES):
    parser.error(f"--sides has {unknown}. Choose some of {','.join(MODES)}.")
  if args.torch_preload and not pathlib.Path(args.torch_preload).is_file():
    parser.error(f"'{args.torch_preload}' is not a file.")  # only a warning
  return args


def _get_cores() -> list[int]:
  if hasattr(os, "sched_getaffinity"):  # Linux
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


def compare_losses(args: argparse.Namespace) -> float:
  """Prints losses without dropout; returns the largest relative difference."""
  modes = [m for m in args.sides if m != "compiled"] or ["eager"]
  changes = {"dropout": 0.0, "ours": "baseline"}
  plain_args = argparse.Namespace(**(vars(args) | changes))
  with start_sides(plain_args, modes) as (sides, _):
    losses: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(args.plain_steps):
      draws = call(sides[OURS], "draws")
      for name, side in sides.items():
        step_args = () if name == OURS else (draws,)
        losses[name].append(call(side, "step", *step_args))
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
  import steps

  with start_sides(args, args.sides) as (sides, inputs):

    def run_turn(side: Executor) -> None:
      for _ in range(args.turn_steps):
        call(side, "step")

    calls = {name: functools.partial(run_turn, x) for name, x in sides.items()}
    secs = steps.time_in_turns(calls, args.rounds, warmup=2)
    print(
      f"Dropout {args.dropout:g}, {args.rounds} rounds of"
      f" {args.turn_steps} step(s):\nside      ms per step (p10 to p90)"
      "  GB     GFLOP/s  share  loss     its time / ours"
    )
    for name, side in sides.items():
      low, median, high = steps.quantiles_ms(
        [x / args.turn_steps for x in secs[name]]
      )
      gb = side.submit(measure_peak_gb).result()
      loss = call(side, "step")
      flops_per_s = side.submit(measure_product_rate).result()
      share = 1e3 * inputs["flops"] / flops_per_s / median
      ratio = steps.paired_ratio(secs[name], secs[OURS])
      print(
        f"{name:9} {median:6.0f} ({low:.0f} to {high:.0f})  {gb:.2f} "
        f" {flops_per_s / 1e9:7.0f}  {share:5.0%}  {loss:.4f}  {ratio}"
      )


@contextlib.contextmanager
def start_sides(
  args: argparse.Namespace, modes: Sequence[str]
) -> Iterator[tuple[dict[str, Executor], Any]]:
  """Yields processes by side, and the inputs that OURS made for the others."""
  with contextlib.ExitStack() as stack:
    sides: dict[str, Executor] = {}
    inputs = None
    for mode in (OURS, *modes):
      context = multiprocessing.get_context("spawn")
      side = ProcessPoolExecutor(1, mp_context=context)
      sides[mode] = stack.enter_context(side)
      start_side(args, side, mode, inputs)
      inputs = inputs or call(side, "peer_inputs", BATCHES)
    yield sides, inputs


def start_side(
  args: argparse.Namespace, side: Executor, mode: str, inputs: Any
) -> None:
  """Builds OURS, or one of MODES with the inputs that OURS made."""
  options = {"dtype": args.dtype if mode == OURS else args.torch_dtype}
  if mode == OURS:
    for name in ("ours", "variant", "batch", "length", "dropout"):
      options["recipe" if name == "ours" else name] = getattr(args, name)
  cores = _get_cores()[: args.threads]
  before = dict(os.environ)
  if mode != OURS and args.torch_preload:
    os.environ["LD_PRELOAD"] = args.torch_preload
  try:
    # The first call starts the process, with the environment of this one.
    side.submit(build_side, mode, cores, inputs, options).result()
  finally:
    os.environ.clear()
    os.environ.update(before)


def call(side: Executor, method: str, *arguments: object) -> Any:
  """Calls a method of a side in its process."""
  return side.submit(call_side, method, arguments).result()


# --- in the process of a side


def build_side(
  mode: str, cores: Sequence[int], inputs: Any, options: dict[str, Any]
) -> None:
  """Builds OURS with `options`, or a mode of PyTorch with `inputs`."""
  global _side
  if hasattr(os, "sched_setaffinity"):  # XLA starts a thread for each core
    os.sched_setaffinity(0, cores)
  # The frameworks are imported below, after this has set the allocator.
  cpu.keep_freed_memory()
  if mode == OURS:
    import own_step

    _side = own_step.OwnStep(**options)
  else:
    import torch_step

    threads = len(cores)
    _side = torch_step.TorchStep(inputs, mode=mode, threads=threads, **options)


def call_side(method: str, arguments: Sequence[Any]) -> Any:
  """Calls a method of this process' side."""
  return getattr(_side, method)(*arguments)


def measure_peak_gb() -> float:
  """Returns the peak memory of this process in GB."""
  # On Linux; getrusage also counts the parent's peak before exec.
  status = pathlib.Path("/proc/self/status").read_text()
  (line,) = (x for x in status.splitlines() if "VmHWM" in x)
  return int(line.split()[1]) * 1024 / 1e9


def measure_product_rate() -> float:
  """Returns the FLOP/s of this side's products; the fastest of 12 counts."""
  multiply = _side.product(PRODUCT_SIZE)
  secs = []
  for _ in range(12):
    began = time.perf_counter()
    multiply()
    secs.append(time.perf_counter() - began)
  return 2 * PRODUCT_SIZE**3 / min(secs)


if __name__ == "__main__":
  sys.exit(main())
