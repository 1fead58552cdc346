"""Times a training step and compares it with the limits of the devices.

  python benchmarks/step.py --config=electra_small[:ARG] --steps=100 --warmup=20
      [--config.batch_size=32 --config.length=128 --config.model.dtype=bfloat16]

Runs on all of JAX's devices, without text or weights. The steps are timed in
three ways: one by one, each waited for (median, p10, p90); back to back, which
is the speed of the devices; and as trained: the training loop makes and sends
each batch and reads the outcome of the step before. Rates are as trained. MFU
is the rate of the model's matrix products (Chowdhery et al. 2022, appendix B)
over the published peak of the devices; the next share is over the rate of a
large matrix product.
"""

import itertools
import time

import jax
import jax.numpy as jnp
import steps
from absl import flags
from rich.console import Console

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.pretrain import describe
from truenegs_jax.runtime import progress
from truenegs_jax.train import metrics

_CONFIG = flags_lib.define_config()
_STEPS = flags.DEFINE_integer("steps", 100, "Steps timed in each way.", 2)
_WARMUP = flags.DEFINE_integer("warmup", 20, "Steps that do not count.", 1)

BLOCK = 10  # steps that are timed together


def main(argv: list[str]) -> None:
  """Prints the figures of one config."""
  del argv
  step = steps.make_step(_CONFIG.value)
  lines = describe_step(step) | time_steps(step, _STEPS.value, _WARMUP.value)
  Console(markup=False, highlight=False).print(progress.make_table(lines))


def describe_step(step: steps.CompiledStep) -> dict[str, str]:
  """Describes the step's config, its machine and its memory."""
  c = step.c
  return {
    "objective": describe.describe_objective(step.run.config),
    "machine": steps.describe_machine(),
    "batch": f"{c.batch_size:,} rows of {c.length} tokens, {c.model.dtype}",
    "attention": step.run.attention_line,
    "compiled": f"in {step.compile_secs:.1f} s; needs"
    f" {describe.format_mib(step.memory_bytes())} of a device",
  }


def time_steps(
  step: steps.CompiledStep, count: int, warmup: int
) -> dict[str, str]:
  """Times steps in three ways and describes their times and rates."""
  run_step = steps.make_step_calls({"step": step})["step"]
  block = min(BLOCK, count)
  numbers = itertools.count(1)
  pending = step.batch(0)

  def run_block():
    return [run_step() for _ in range(block)]

  def run_as_trained():
    nonlocal pending
    last = None
    for _ in range(block):
      terms = run_step(pending)
      if last is not None:  # the loop reads terms one step late
        float(last["skipped"][0])
      last = terms
      pending = step.batch(next(numbers))
    return last

  one_by_one = steps.time_in_turns({"step": run_step}, count, warmup)["step"]
  low, median, high = steps.quantiles_ms(one_by_one)
  calls = {"back": run_block, "trained": run_as_trained}
  blocks = steps.time_in_turns(calls, max(count // block, 2))
  _, back, _ = steps.quantiles_ms(blocks["back"])
  _, trained, _ = steps.quantiles_ms(blocks["trained"])
  return {
    "step, ms": f"{median:,.1f} (p10 {low:,.1f}, p90 {high:,.1f}) one by one;"
    f" back to back {back / block:,.1f}; as trained {trained / block:,.1f}",
    **describe_rates(step, trained / block / 1e3),
  }


def describe_rates(step: steps.CompiledStep, secs: float) -> dict[str, str]:
  """Describes rates of steps that take `secs`, and shares of the limits."""
  dtype = step.c.model.dtype
  # Simulated devices share the CPU's cores.
  count = step.run.mesh.devices.size if jax.default_backend() != "cpu" else 1
  rows_per_s = step.c.batch_size / secs
  flops_per_s = step.flops / secs
  products = measure_products(dtype) * count
  peak = metrics.peak_flops(jax.devices()[0].device_kind, dtype)
  mfu = "no published peak"
  if peak:
    mfu = f"{flops_per_s / peak / count:.1%} of {peak * count / 1e12:,.0f}"
  return {
    "rates": f"{rows_per_s:,.1f} rows/s, {rows_per_s * step.c.length:,.0f}"
    " tokens/s",
    "FLOPs": f"{step.flops:.4g} per step, {flops_per_s / 1e12:.3g} TFLOP/s",
    "MFU": f"{mfu}; {flops_per_s / products:.1%} of large products in {dtype}"
    f" ({products / 1e12:.2f} TFLOP/s)",
  }


def measure_products(dtype: str) -> float:
  """Measures the FLOP/s of a large matrix product on a device; within 1 s."""
  size = 1024 if jax.default_backend() == "cpu" else 8192
  a = jnp.ones((size, size), dtype)
  multiply = jax.jit(jnp.matmul)
  secs = []
  for _ in range(6):  # the first compiles
    began = time.perf_counter()
    multiply(a, a).block_until_ready()
    secs.append(time.perf_counter() - began)
  return 2 * size**3 / min(secs)


if __name__ == "__main__":
  flags_lib.run(main)
