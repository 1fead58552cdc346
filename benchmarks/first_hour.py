"""Checks this package on one GPU in about 8 minutes; prints one table.

  make first-hour
  python benchmarks/first_hour.py [--tiny]

Compares flash attention with plain attention, forward and backward. Then trains
electra_base and bert_base with hard correction for 20 steps of random rows, in
the largest batch that fits: 256 rows, halved as long as memory runs out. Half
of the steps are repeated from a checkpoint. --tiny shrinks all sizes for a CPU:
its figures mean nothing. Exit code 1: something is WRONG.
"""

import argparse
import contextlib
import dataclasses
import functools
import multiprocessing
import pathlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

import jax
import numpy as np
import steps

from truenegs_jax.config.load import load_config
from truenegs_jax.models import attention
from truenegs_jax.train import metrics
from truenegs_jax.train.step import TrainState, total_loss
from truenegs_jax.workdir.checkpoints import Checkpoints

Lines = dict[str, str]  # what was measured -> the result
HALF = 10  # steps before and after the checkpoint
TOLERANCE = 0.01  # of a loss after it: a GPU may add in another order
WRONG = "WRONG"


def main() -> int:
  """Runs all parts and prints the table; returns 1 if one is wrong."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--tiny", action="store_true", help="Sizes for a CPU.")
  tiny = parser.parse_args().tiny
  began = time.monotonic()
  lines = run_apart(check_device, tiny)
  for name in ("electra_base", "bert_base"):
    rows = 8 if tiny else 256
    while not (measured := run_apart(train, name, rows, tiny)) and rows > 1:
      rows //= 2
    lines |= measured or {f"{name}: rows": f"{WRONG}: not even one fits"}
  lines["minutes"] = f"{(time.monotonic() - began) / 60:.1f}"
  print("| what | result |\n| --- | --- |")
  for what, result in lines.items():
    print(f"| {what} | {result} |")
  return int(any(WRONG in result for result in lines.values()))


def run_apart(function, *args: object) -> Lines:
  """Calls a function in a new process, whose peak of memory is its own."""
  spawn = multiprocessing.get_context("spawn")
  with ProcessPoolExecutor(1, mp_context=spawn) as pool:
    return pool.submit(function, *args).result()


def check_device(tiny: bool) -> Lines:
  """Describes the device, and measures errors of flash attention on it."""
  git = ["git", "-C", sys.path[0], "describe", "--always", "--dirty"]
  commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
  device = jax.devices()[0]
  versions = " ".join(device.client.platform_version.split())
  lines = {
    "date, commit": f"{time.strftime('%Y-%m-%d')}, {commit or 'unknown'}",
    "device, versions": f"{steps.describe_machine()}, {versions}",
  }
  platform = attention.get_platform(device)
  flash = attention.Implementation("flash", platform=platform)
  if platform == "cpu":
    flash = dataclasses.replace(flash, platform="cuda", interpret=True)
  shape = (4, 128, 2, 16) if tiny else (8, 512, 12, 64)  # B, L, H, S
  for dtype in ("bfloat16", "float32"):
    call = functools.partial(
      attention.kernel_error, flash, shape, dtype, rate=0.1
    )
    error = float(jax.jit(call)())
    # Also wrong if it is not finite.
    verdict = "right" if error <= attention.TOLERANCE else WRONG
    lines[f"flash attention in {dtype}, error"] = f"{verdict}: {error:.1e}"
  return lines


def train(name: str, rows: int, tiny: bool) -> Lines:
  """Trains, and resumes in the middle; no lines if memory runs out."""
  device = jax.devices()[0]
  c = load_config(f"{name}:runlocal" if tiny else name)
  c.batch_size = rows
  try:
    step = steps.make_step(c, [device])
    with tempfile.TemporaryDirectory() as folder:
      with contextlib.closing(Checkpoints(pathlib.Path(folder))) as saved:
        state, _, _ = take_steps(step, step.init_state(), 0)
        saved.save(HALF, state, {}, wait=True)
        state, losses, secs = take_steps(step, state, HALF)
        peak = metrics.memory_fields(device)["memory_peak_gib"]
        params = jax.device_get(state.params)
        del state  # there may be no room for two
        state = saved.restore_state(HALF, step.abstract_state)
        state, resumed_losses, _ = take_steps(step, state, HALF)
  except jax.errors.JaxRuntimeError as e:
    if "RESOURCE_EXHAUSTED" not in str(e):
      raise
    return {}
  difference = np.max(np.abs(np.divide(resumed_losses, losses) - 1))
  resumption = f"losses differ by {difference:.1e}"
  if not difference <= TOLERANCE:  # also if it is not finite
    resumption = f"{WRONG}: {resumption}"
  elif jax.tree.all(jax.tree.map(np.array_equal, params, state.params)):
    resumption = "equal to the last bit"
  mfu = "none is published"
  if peak_flops := metrics.peak_flops(device.device_kind, c.model.dtype):
    mfu = f"{step.flops / secs / peak_flops:.1%}"
  compiled = step.memory_bytes() / 2**30
  return {
    f"{name}: rows": f"{rows} of {c.length} tokens, {c.model.dtype}",
    f"{name}: attention": step.run.attention_line,
    f"{name}: step": f"{1e3 * secs:,.1f} ms, {rows / secs:,.0f} rows/s",
    f"{name}: share of the peak": mfu,
    f"{name}: memory": f"{peak:.2f} GiB at most, {compiled:.2f} as compiled",
    f"{name}: loss": f"{losses[0]:.3f} to {losses[-1]:.3f}",
    f"{name}: resumed at step {HALF}": resumption,
  }


def take_steps(step: steps.CompiledStep, state: TrainState, first: int):
  """Takes HALF steps; returns the state, the losses and the median seconds."""
  losses = []
  secs = []
  for i in range(first, first + HALF):
    batch = jax.block_until_ready(step.batch(i))
    began = time.perf_counter()
    state, terms = step.compiled(state, batch, step.aux)
    losses.append(float(total_loss(terms, step.run.loss_weights)))
    secs.append(time.perf_counter() - began)
  return state, losses, float(np.median(secs))


if __name__ == "__main__":
  sys.exit(main())
