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
compared in f32 only. --torch_python=FILE is a Python with PyTorch, where this
one has none.

On both sides malloc keeps freed memory (truenegs_jax/runtime/cpu.py). PyTorch's
MKL uses AVX-512 only on Intel's CPUs: compare the rates of products. To make it
use AVX-512 on others, compile `int mkl_serv_intel_cpu_true() { return 1; }` to
a shared library: --torch_preload=LIBRARY.

Runs on the CPU, offline, and writes nothing. Needs PyTorch and transformers.
"""

import argparse
import contextlib
import functools
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from typing import Any

from peer_side import OURS

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"

FOLDER = pathlib.Path(__file__).parent
MODES = ("eager", "compiled", "stock")
DTYPES = ("float32", "bfloat16")
RECIPES = ("baseline", "hc", "sr", "hc+sr")
TOLERANCE = 1e-4
BATCHES = 4


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
  add("--torch_python", default=sys.executable)
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


class Side:
  """A side in a process of its own, perhaps of another Python."""

  def __init__(self, args: argparse.Namespace, mode: str, inputs: Any):
    """Starts OURS, or one of MODES with the inputs that OURS made."""
    options = {"dtype": args.dtype if mode == OURS else args.torch_dtype}
    if mode == OURS:
      for name in ("ours", "variant", "batch", "length", "dropout"):
        options["recipe" if name == "ours" else name] = getattr(args, name)
    ours, theirs = socket.socketpair()
    paths = [str(FOLDER.parent), str(FOLDER)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    if mode != OURS and args.torch_preload:
      env["LD_PRELOAD"] = args.torch_preload
    python = sys.executable if mode == OURS else args.torch_python
    command = [python, str(FOLDER / "peer_side.py"), str(theirs.fileno())]
    self._process = subprocess.Popen(
      command, env=env, pass_fds=[theirs.fileno()]
    )
    theirs.close()
    self._connection = Connection(ours.detach())
    cores = _get_cores()[: args.threads]
    self._connection.send((mode, cores, inputs, options))
    self._connection.recv()

  def call(self, method: str, *arguments: object) -> Any:
    """Calls a method in the process of the side."""
    self._connection.send((method, arguments))
    return self._connection.recv()

  def close(self) -> None:
    """Ends the process."""
    self._connection.close()
    self._process.wait()


@contextlib.contextmanager
def start_sides(
  args: argparse.Namespace, modes: Sequence[str]
) -> Iterator[tuple[dict[str, Side], Any]]:
  """Yields sides by name, and the inputs that OURS made for the others."""
  with contextlib.ExitStack() as stack:
    sides: dict[str, Side] = {}
    inputs = None
    for mode in (OURS, *modes):
      side = contextlib.closing(Side(args, mode, inputs))
      sides[mode] = stack.enter_context(side)
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
  import steps

  with start_sides(args, args.sides) as (sides, inputs):

    def run_turn(side: Side) -> None:
      for _ in range(args.turn_steps):
        side.call("step")

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
      gb = side.call("peak_gb")
      loss = side.call("step")
      flops_per_s = side.call("product_rate")
      share = 1e3 * inputs["flops"] / flops_per_s / median
      ratio = steps.paired_ratio(secs[name], secs[OURS])
      print(
        f"{name:9} {median:6.0f} ({low:.0f} to {high:.0f})  {gb:.2f} "
        f" {flops_per_s / 1e9:7.0f}  {share:5.0%}  {loss:.4f}  {ratio}"
      )


if __name__ == "__main__":
  sys.exit(main())
