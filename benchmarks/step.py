"""How long a training step takes, and what share that is of what could be.

  python benchmarks/step.py --config=electra_small[:ARG] --steps=100 --warmup=20
      [--config.batch_size=32 --config.length=128 --config.model.dtype=bfloat16]
      [--rows=FOLDER | --pad=0.1] [--json=FILE]

Runs on the devices that JAX has, without text and weights. The steps are taken
three times over: one by one, each waited for (median, p10, p90); back to back,
which is the devices' own pace; and as the training loop takes them, which makes
and sends each batch and looks at what came of the step before. Rates are of the
last. MFU counts the products of the model (Chowdhery et al. 2022, appendix B)
against the peak that the maker states, and beside it against the rate of a
large matrix product in this process.

Rows are made unless --rows names a folder of prepared ones, and then full
unless --pad says otherwise. A compilation cache, if one is set, shortens that.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import steps
import timing
from absl import flags
from rich.console import Console

from truenegs_jax.data.rows import rows_folder
from truenegs_jax.runtime import errors
from truenegs_jax.runtime import flags as flags_lib
from truenegs_jax.train import plan, speed

_CONFIG = flags_lib.define_config()
_STEPS = flags.DEFINE_integer("steps", 100, "Steps of each kind.", 2)
_WARMUP = flags.DEFINE_integer("warmup", 20, "Steps before them.", 1)
_ROWS = flags.DEFINE_string("rows", None, "Folder of prepared rows.")
_PAD = flags.DEFINE_float("pad", 0.0, "Share of padding in made rows.", 0, 0.5)
_JSON = flags.DEFINE_string("json", None, "File to add the figures to.")

BLOCK = 10  # steps that are timed as one

Record = dict[str, Any]


def main(argv: list[str]) -> None:
  """Prints the figures of one config, or what is wrong with it."""
  del argv
  c, folder = _CONFIG.value, _ROWS.value
  try:
    rows = rows_folder.open_rows(folder, "train") if folder else None
    step = steps.make_step(c, rows=rows, pad_share=_PAD.value)
    record = identity(step) | measure(step, _STEPS.value, _WARMUP.value)
    record |= {"peak_bytes": timing.peak_bytes()} | limits(step)
    record |= rates(step, record)
    if _JSON.value:
      timing.append_json(_JSON.value, record)
  except errors.TrueNegsError as e:
    print(f"error: {errors.printable(e)}", file=sys.stderr)
    sys.exit(e.exit_code)
  Console(markup=False, highlight=False).print(plan.report_table(lines(record)))


def identity(step: steps.Step) -> Record:
  """What is measured, on what, and what it took to compile."""
  c, memory = step.c, step.compiled.memory_analysis()
  return {
    "command": " ".join(sys.argv),
    **timing.machine(),
    "xla_flags": os.environ.get("XLA_FLAGS", ""),
    "objective": step.run.summary,
    "mesh": plan.describe_devices(step.run, step.mesh),
    "attention": step.attention,
    "dtype": c.model.dtype,
    "batch": c.batch_size,
    "length": c.length,
    "trace_s": step.trace_secs,
    "compile_s": step.compile_secs,
    "flops": step.flops,
    "argument_bytes": memory.argument_size_in_bytes if memory else None,
    "scratch_bytes": memory.temp_size_in_bytes if memory else None,
  }


def measure(step: steps.Step, count: int, warmup: int) -> Record:
  """Seconds of a step in three ways, of a batch, and the host's share."""
  take, at = steps.takers({"step": step})["step"], 0
  block = min(BLOCK, count)

  def next_batch():
    nonlocal at
    at += 1
    return step.batch(at)

  pending, waits = next_batch(), []

  def as_trained():
    nonlocal pending
    last = None
    wait = speed.HostWait()
    for _ in range(block):
      terms = take(pending, wait.dispatch)
      if last is not None:  # as the loop does, one step late
        float(last["skipped"][0])
      last, pending = terms, next_batch()
    jax.block_until_ready(last)
    waits.append(wait.pop_fields().get("host_wait", 0.0))

  back_to_back = lambda: [take() for _ in range(block)]
  alone = timing.in_turn({"step": take}, count, warmup)["step"]
  both = {"back": back_to_back, "trained": as_trained}
  secs = timing.in_turn(both, max(count // block, 2))
  batches = timing.in_turn({"batch": next_batch}, block)["batch"]
  padded = [(step.host_batch(i)["documents"] == 0).mean() for i in range(16)]
  return {
    "steps": count,
    "warmup": warmup,
    "step_s": timing.quantiles(alone),
    "back_to_back_s": float(np.median(secs["back"])) / block,
    "as_trained_s": float(np.median(secs["trained"])) / block,
    "batch_s": float(np.median(batches)),
    "host_wait": float(np.mean(waits)),
    "pad_share": float(np.mean(padded)),
  }


def limits(step: steps.Step) -> Record:
  """What the devices do at best: as their maker states, and as measured."""
  dtype = step.c.model.dtype
  # Simulated devices share the CPU's cores.
  count = step.mesh.devices.size if jax.default_backend() != "cpu" else 1
  peak = speed.peak_flops(jax.devices()[0].device_kind, dtype)
  dtypes = dict.fromkeys(("float32", dtype))
  return {
    "peak_flops": peak and peak * count,
    "matmul_flops": {d: timing.matmul_rate(d) * count for d in dtypes},
    "bandwidth": timing.bandwidth() * count,
  }


def rates(step: steps.Step, record: Mapping[str, Any]) -> Record:
  """Rows, tokens and operations a second, and their share of the limits."""
  rows = step.c.batch_size / record["as_trained_s"]
  done = step.flops / record["as_trained_s"]
  measured = record["matmul_flops"][record["dtype"]]
  return {
    "rows_per_s": rows,
    "tokens_per_s": rows * step.c.length * (1 - record["pad_share"]),
    "flops_per_s": done,
    "mfu": record["peak_flops"] and done / record["peak_flops"],
    "of_matmul": done / measured,
    "floor_s": step.flops / measured,
  }


def lines(r: Mapping[str, Any]) -> dict[str, str]:
  """The report: name -> text."""
  ms = lambda secs: f"{1e3 * secs:,.1f}"
  step, peak = r["step_s"], r["peak_flops"]
  names = ("python", "jax", "jaxlib", "cudnn")
  matmul = (f"{d} {f / 1e12:.2f}" for d, f in r["matmul_flops"].items())
  held = "not told by the compiler"
  if r["scratch_bytes"] is not None:
    held = (
      f"{plan.format_mib(r['argument_bytes'])} of arguments and"
      f" {plan.format_mib(r['scratch_bytes'])} of scratch, as compiled"
    )
  mfu = f"{r['mfu']:.1%} of {peak / 1e12:,.0f}" if peak else "no published peak"
  return {
    "objective": r["objective"],
    "device": f"{r['device']}, {r['cores']} core(s) for the host",
    "versions": ", ".join(f"{n} {r[n]}" for n in names if n in r),
    "batch": f"{r['batch']:,} rows of {r['length']} tokens, {r['dtype']};"
    f" padding {r['pad_share']:.1%}",
    "attention": r["attention"],
    "compiled": f"traced in {r['trace_s']:.1f} s, compiled in"
    f" {r['compile_s']:.1f} s",
    "step, ms": f"{ms(step['median'])} (p10 {ms(step['p10'])}, p90"
    f" {ms(step['p90'])}) one by one; back to back {ms(r['back_to_back_s'])};"
    f" as trained {ms(r['as_trained_s'])}",
    "host": f"{r['host_wait']:.1%} of the time no step is in flight; a batch"
    f" takes {ms(r['batch_s'])} ms to make and send",
    "rates": f"{r['rows_per_s']:,.1f} rows/s, {r['tokens_per_s']:,.0f} real"
    " tokens/s",
    "FLOPs": f"{r['flops']:.4g} a step, {r['flops_per_s'] / 1e12:.3g} TFLOP/s",
    "MFU": f"{mfu}; {r['of_matmul']:.1%} of the products measured here",
    "measured": f"products {', '.join(matmul)} TFLOP/s; memory"
    f" {r['bandwidth'] / 1e9:,.0f} GB/s",
    "floor": f"{ms(r['floor_s'])} ms, were the step its products alone",
    "memory": f"{plan.format_mib(r['peak_bytes'])} at most; {held}",
  }


if __name__ == "__main__":
  flags_lib.run(main)
