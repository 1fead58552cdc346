"""Times a training step and compares it with the limits of the devices.

  python benchmarks/step.py --config=electra_small[:ARG] --steps=100 --warmup=20
      [--config.batch_size=32 --config.length=128 --config.model.dtype=bfloat16]
      [--rows=FOLDER | --pad=0.1] [--json=FILE]

Runs on all of JAX's devices, without text or weights. The steps are timed in
three ways: one by one, each waited for (median, p10, p90); back to back, which
is the speed of the devices; and as trained: the training loop makes and sends
each batch and reads the outcome of the step before. Rates are as trained. MFU
is the rate of the model's matrix products (Chowdhery et al. 2022, appendix B)
over the published peak of the devices; the next share is over the rate of a
large matrix product. On an H100, the bound of the compiled step (roofline.py)
is printed as well. Rows are random and without padding by default.
"""

import itertools
import os
from typing import Any

import hlo_listing
import jax
import numpy as np
import roofline
import steps
import timing
from absl import flags
from rich.console import Console

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.data.rows import rows_folder
from truenegs_jax.runtime import errors
from truenegs_jax.train import plan, speed
from truenegs_jax.train.start import describe_objective

_CONFIG = flags_lib.define_config()
_STEPS = flags.DEFINE_integer("steps", 100, "Steps timed in each way.", 2)
_WARMUP = flags.DEFINE_integer("warmup", 20, "Steps that do not count.", 1)
_ROWS = flags.DEFINE_string("rows", None, "Folder of prepared rows.")
_PAD = flags.DEFINE_float("pad", 0.0, "Share of padding in rows.", 0, 0.5)
_JSON = flags.DEFINE_string("json", None, "File to append the figures to.")

BLOCK = 10  # steps that are timed together

Record = dict[str, Any]


def main(argv: list[str]) -> None:
  """Prints and saves the figures of one config."""
  del argv
  c, folder = _CONFIG.value, _ROWS.value
  with timing.exit_on_error():
    rows = rows_folder.open_rows(folder, "train") if folder else None
    step = steps.make_step(c, rows=rows, pad_share=_PAD.value)
    record = describe_step(step)
    record |= time_steps(step, _STEPS.value, _WARMUP.value)
    record |= {"peak_bytes": timing.peak_bytes()} | measure_limits(step)
    record |= compute_rates(step, record)
    if _JSON.value:
      timing.append_json(_JSON.value, record)
  lines = report_lines(record)
  Console(markup=False, highlight=False).print(plan.report_table(lines))


def describe_step(step: steps.CompiledStep) -> Record:
  """Returns the step's config, machine, compile times and memory."""
  c, memory = step.c, step.compiled.memory_analysis()
  return {
    **timing.new_record(),
    "xla_flags": os.environ.get("XLA_FLAGS", ""),
    "objective": describe_objective(step.run.config),
    "mesh": plan.describe_devices(step.run.config.mesh.preset, step.mesh),
    "attention": step.attention,
    "dtype": c.model.dtype,
    "batch": c.batch_size,
    "length": c.length,
    "trace_s": step.trace_secs,
    "compile_s": step.compile_secs,
    "flops": step.flops,
    "bound_s": bound_secs(step),
    "argument_bytes": memory.argument_size_in_bytes if memory else None,
    "scratch_bytes": memory.temp_size_in_bytes if memory else None,
  }


def bound_secs(step: steps.CompiledStep) -> float | None:
  """Bounds the step's time by its compiled listing; None if not on an H100.

  Also None if the listing has an operation of unknown cost: that must not end a
  measurement.
  """
  if "H100" not in step.mesh.devices.flat[0].device_kind:
    return None
  sizes = roofline.get_sizes(step.run, step.mesh, ())
  try:
    listing = hlo_listing.parse(step.compiled.as_text())
    bounds = roofline.bound_launches(listing, sizes)
  except errors.InputError as e:
    print(f"warning: no bound of the step: {e}")
    return None
  return sum(x.secs * x.launch.times for x in bounds)


def time_steps(step: steps.CompiledStep, count: int, warmup: int) -> Record:
  """Times steps in three ways, batches, and the devices' wait for the host."""
  run_step = steps.make_step_calls({"step": step})["step"]
  block, numbers = min(BLOCK, count), itertools.count(1)

  def next_batch():
    return step.batch(next(numbers))

  pending, waits = next_batch(), []

  def run_as_trained():
    nonlocal pending
    last = None
    wait = speed.HostWait()
    for _ in range(block):
      terms = run_step(pending, wait.dispatch)
      if last is not None:  # the loop reads terms one step late
        float(last["skipped"][0])
      last, pending = terms, next_batch()
    jax.block_until_ready(last)
    waits.append(wait.pop_fields().get("host_wait", 0.0))

  one_by_one = timing.time_in_turns({"step": run_step}, count, warmup)["step"]
  calls = {
    "back": lambda: [run_step() for _ in range(block)],
    "trained": run_as_trained,
  }
  secs = timing.time_in_turns(calls, max(count // block, 2))
  batches = timing.time_in_turns({"batch": next_batch}, block)["batch"]
  padding = [(step.host_batch(i)["documents"] == 0).mean() for i in range(16)]
  return {
    "steps": count,
    "warmup": warmup,
    "step_s": timing.quantiles(one_by_one),
    "back_to_back_s": float(np.median(secs["back"])) / block,
    "as_trained_s": float(np.median(secs["trained"])) / block,
    "batch_s": float(np.median(batches)),
    "host_wait": float(np.mean(waits)),
    "pad_share": float(np.mean(padding)),
  }


def measure_limits(step: steps.CompiledStep) -> Record:
  """Returns the devices' published peak, product rates and bandwidth."""
  dtype = step.c.model.dtype
  # Simulated devices share the CPU's cores.
  count = step.mesh.devices.size if jax.default_backend() != "cpu" else 1
  peak = speed.peak_flops(jax.devices()[0].device_kind, dtype)
  dtypes = dict.fromkeys(("float32", dtype))
  return {
    "peak_flops": peak and peak * count,
    "matmul_flops": {x: timing.measure_matmul_rate(x) * count for x in dtypes},
    "bandwidth": timing.measure_bandwidth() * count,
  }


def compute_rates(step: steps.CompiledStep, record: Record) -> Record:
  """Computes rows, tokens and FLOPs per second, and shares of the limits."""
  rows_per_s = step.c.batch_size / record["as_trained_s"]
  flops_per_s = step.flops / record["as_trained_s"]
  matmul_flops = record["matmul_flops"][record["dtype"]]
  return {
    "rows_per_s": rows_per_s,
    "tokens_per_s": rows_per_s * step.c.length * (1 - record["pad_share"]),
    "flops_per_s": flops_per_s,
    "mfu": record["peak_flops"] and flops_per_s / record["peak_flops"],
    "of_matmul": flops_per_s / matmul_flops,
    "floor_s": step.flops / matmul_flops,
  }


def report_lines(r: Record) -> dict[str, str]:
  """Formats a record as lines, name -> text."""
  step, peak = r["step_s"], r["peak_flops"]
  names = ("python", "jax", "jaxlib", "cudnn")
  matmul = (f"{d} {f / 1e12:.2f}" for d, f in r["matmul_flops"].items())
  compiled_memory = "not reported by the compiler"
  if r["scratch_bytes"] is not None:
    compiled_memory = (
      f"{plan.format_mib(r['argument_bytes'])} of arguments and"
      f" {plan.format_mib(r['scratch_bytes'])} of scratch, as compiled"
    )
  mfu = f"{r['mfu']:.1%} of {peak / 1e12:,.0f}" if peak else "no published peak"
  return {
    "objective": r["objective"],
    "device": f"{r['device']}, {r['cores']} core(s) for the host",
    "versions": ", ".join(f"{n} {r[n]}" for n in names if n in r),
    "batch": f"{r['batch']:,} rows of {r['length']} tokens, {r['dtype']},"
    f" padding {r['pad_share']:.1%}",
    "attention": r["attention"],
    "compiled": f"traced in {r['trace_s']:.1f} s, compiled in"
    f" {r['compile_s']:.1f} s",
    "step, ms": f"{_ms(step['median'])} (p10 {_ms(step['p10'])}, p90"
    f" {_ms(step['p90'])}) one by one; back to back"
    f" {_ms(r['back_to_back_s'])}; as trained {_ms(r['as_trained_s'])}",
    "host": f"no step runs in {r['host_wait']:.1%} of the time; a batch takes"
    f" {_ms(r['batch_s'])} ms to make and send",
    "rates": f"{r['rows_per_s']:,.1f} rows/s, {r['tokens_per_s']:,.0f} real"
    " tokens/s",
    "FLOPs": f"{r['flops']:.4g} per step, {r['flops_per_s'] / 1e12:.3g}"
    " TFLOP/s",
    "MFU": f"{mfu}; {r['of_matmul']:.1%} of the measured products",
    "measured": f"products {', '.join(matmul)} TFLOP/s; memory"
    f" {r['bandwidth'] / 1e9:,.0f} GB/s",
    "floor": f"{_ms(r['floor_s'])} ms if only the matrix products took time"
    + (f"; {_ms(r['bound_s'])} ms by the listing" if r["bound_s"] else ""),
    "memory": f"peak {plan.format_mib(r['peak_bytes'])}; {compiled_memory}",
  }


def _ms(secs: float) -> str:
  return f"{1e3 * secs:,.1f}"


if __name__ == "__main__":
  flags_lib.run(main)
