"""Checks and times each implementation of attention that a device has.

  python benchmarks/attention.py --batch=128 --length=512 --heads=12 \\
      --dtype=bfloat16 [--json=FILE]

Results and gradients are compared with "xla" in f32. The forward and backward
passes of --layers layers are timed in turns, with dropout as well where there
is one. Failures are reported. Exit code 1: one that runs is wrong.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import timing
from absl import app, flags

from truenegs_jax.models import attention, choose_attention
from truenegs_jax.runtime import rng

_BATCH = flags.DEFINE_integer("batch", 32, "Rows.", 1)
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens per row.", 1)
_HEADS = flags.DEFINE_integer("heads", 4, "Attention heads.", 1)
_WIDTH = flags.DEFINE_integer("width", 64, "Units per head.", 1)
_LAYERS = flags.DEFINE_integer("layers", 12, "Layers that are timed.", 1)
_ROUNDS = flags.DEFINE_integer("rounds", 20, "Rounds of timing.", 1)
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], None)
_RATE = flags.DEFINE_float("rate", 0.1, "Dropout rate.", 0, 0.99)
_INTERPRET = flags.DEFINE_bool("interpret", False, "Run flash on a CPU, too.")
_JSON = flags.DEFINE_string("json", None, "File to append the figures to.")

CHECKED_ROWS = 8

Results = dict[str, dict[str, Any]]  # name -> errors, times or a failure


def main(argv: list[str]) -> None:
  """Checks and times all implementations, prints and saves the results."""
  del argv
  results: Results = {}
  calls: dict[str, Callable[[], object]] = {}
  for name, (impl, rate) in list_candidates().items():
    results[name] = {}
    try:
      results[name]["errors"] = measure_errors(impl, rate)
      call, results[name]["scratch_bytes"] = compile_layers(impl, rate)
      jax.block_until_ready(call())
      calls[name] = call
    except Exception as e:  # from a library, a driver or a compiler
      results[name]["failure"] = f"{type(e).__name__}: {e}"[:500]
  secs = timing.time_in_turns(calls, _ROUNDS.value)
  for name in calls:
    results[name]["secs"] = timing.quantiles(secs[name])
    if name != "xla" and "xla" in secs:
      ratio = timing.paired_ratio(secs[name], secs["xla"])
      results[name]["of_xla"] = str(ratio)
  print_results(results)
  if _JSON.value:
    names = ("batch", "length", "heads", "width", "layers", "dtype")
    given = {name: flags.FLAGS[name].value for name in names}
    record = {"benchmark": "attention", "given": given, "forms": results}
    machine = {"machine": timing.describe_machine()}
    timing.append_json(_JSON.value, record | machine)
  sys.exit(any(is_wrong(x.get("errors", {})) for x in results.values()))


def list_candidates() -> dict[str, tuple[attention.Implementation, float]]:
  """Returns implementations and dropout rates for this device, by name."""
  platform = choose_attention.get_platform(jax.devices()[0])
  implementations = {"xla": attention.XLA}
  for name, platforms in choose_attention.PLATFORMS.items():
    if platform in platforms:
      implementations[name] = attention.Implementation(name, platform=platform)
  if _INTERPRET.value:
    implementations["flash"] = attention.Implementation("flash", interpret=True)
  candidates = {name: (impl, 0.0) for name, impl in implementations.items()}
  for name in ("xla", "pieces", "flash"):
    if name in implementations and _RATE.value:
      candidates[f"{name}, dropout"] = implementations[name], _RATE.value
  return candidates


def measure_errors(
  impl: attention.Implementation, rate: float
) -> dict[str, float]:
  """Measures the errors of result and gradients against "xla" in f32."""
  shape = CHECKED_ROWS, _LENGTH.value, _HEADS.value, _WIDTH.value
  errors = choose_attention.kernel_errors
  measure = jax.jit(lambda: errors(impl, shape, _DTYPE.value, rate))
  return {name: float(error) for name, error in measure().items()}


def is_wrong(errors: dict[str, float]) -> bool:
  """Returns whether an error is above the tolerance or NaN."""
  return not all(e <= choose_attention.TOLERANCE for e in errors.values())


def compile_layers(
  impl: attention.Implementation, rate: float
) -> tuple[Callable[[], object], int]:
  """Compiles layers and their gradients; returns a call and scratch bytes."""
  rows, length = _BATCH.value, _LENGTH.value
  shape = rows, length, _HEADS.value, _WIDTH.value
  keys = jax.random.split(jax.random.key(0), 4)
  arrays = [jax.random.normal(k, shape).astype(_DTYPE.value) for k in keys]
  documents_BxL = jnp.ones((rows, length), jnp.int32)
  keys_B = rng.row_keys(keys[0], 0, jnp.arange(rows))

  def loss(query, key, value, cotangent, documents_BxL, keys_B):
    mask = attention.make_mask(impl, documents_BxL)
    for site in range(_LAYERS.value):
      query = query + attention.attend(
        query, key, value, mask, keys_B if rate else None, rate=rate, site=site
      )
    return jnp.sum(query.astype(jnp.float32) * cotangent)

  gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
  args = *arrays, documents_BxL, keys_B
  compiled = gradient.lower(*args).compile()
  memory = compiled.memory_analysis()
  scratch = memory.temp_size_in_bytes if memory else 0
  return functools.partial(compiled, *args), scratch


def print_results(results: Results) -> None:
  """Prints a line per implementation."""
  shape = _BATCH.value, _LENGTH.value, _HEADS.value, _WIDTH.value
  rows, length, heads, width = shape
  # Two products forward and four backward.
  flops = 12 * rows * heads * length**2 * width * _LAYERS.value
  print(f"{jax.devices()[0].device_kind}: BxLxHxS {shape}, {_DTYPE.value}")
  for name, result in results.items():
    errors = result.get("errors", {})
    worst = max(errors.values(), default=float("nan"))
    text = f"error {worst:.1e}{' WRONG' if is_wrong(errors) else ''}"
    if "secs" in result:
      median = result["secs"]["median"]
      text += f", {1e3 * median:.2f} ms, {flops / median / 1e12:.3g} TFLOP/s"
      text += f", scratch {result['scratch_bytes'] / 2**20:.0f} MiB"
    if "of_xla" in result:
      text += f", time / xla's {result['of_xla']}"
    print(f"  {name}: {result.get('failure', text)}")


if __name__ == "__main__":
  app.run(main)
