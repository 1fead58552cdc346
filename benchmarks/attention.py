"""Whether each form of attention that a device has is right, and how fast.

  python benchmarks/attention.py --batch=128 --length=512 --heads=12 \\
      --dtype=bfloat16 [--json=FILE]

The forms are those of truenegs_jax/models/attention.py. Result and gradients
are compared with "xla" in f32; timed is forward and backward through --layers
in a row, in turns, and "xla" with dropout as well. A form that does not run is
reported, and the rest goes on. Exit code 1: one that runs is wrong.
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
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens of a row.", 1)
_HEADS = flags.DEFINE_integer("heads", 4, "Heads.", 1)
_WIDTH = flags.DEFINE_integer("width", 64, "Units of a head.", 1)
_LAYERS = flags.DEFINE_integer("layers", 12, "Of what is timed.", 1)
_ROUNDS = flags.DEFINE_integer("rounds", 20, "Of timing.", 1)
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "")
_RATE = flags.DEFINE_float("rate", 0.1, "Of dropout.", 0, 0.99)
_INTERPRET = flags.DEFINE_bool("interpret", False, "Splash without a TPU.")
_JSON = flags.DEFINE_string("json", None, "File that a record is added to.")

CHECKED_ROWS = 8


def main(argv: list[str]) -> None:
  """Tries every form, prints and saves what is found."""
  del argv
  found: dict[str, dict[str, Any]] = {}
  runs: dict[str, Callable[[], Any]] = {}
  for name, (form, rate) in candidates().items():
    try:
      found[name] = {"errors": errors_of(form)}
      runs[name], found[name]["scratch_bytes"] = make_run(form, rate)
      jax.block_until_ready(runs[name]())
    except Exception as e:  # whatever it is, the others are tried
      runs.pop(name, None)
      found.setdefault(name, {})["failure"] = f"{type(e).__name__}: {e}"[:500]
  secs = timing.in_turn(runs, _ROUNDS.value)
  for name in runs:
    found[name]["secs"] = timing.quantiles(secs[name])
    if name != "xla" and "xla" in secs:
      found[name]["of_xla"] = str(timing.ratio(secs[name], secs["xla"]))
  show(found)
  if _JSON.value:
    given = {f: flags.FLAGS[f].value for f in ("batch", "length", "heads")}
    given |= {f: flags.FLAGS[f].value for f in ("width", "layers", "dtype")}
    record = {"benchmark": "attention", "given": given, "forms": found}
    timing.append_json(_JSON.value, record | {"machine": timing.machine()})
  sys.exit(any(is_wrong(of.get("errors", {})) for of in found.values()))


def candidates() -> dict[str, tuple[attention.Implementation, float]]:
  """The forms that this device may have, by name, with a rate of dropout."""
  platform = choose_attention.get_platform(jax.devices()[0])
  found = {"xla": (attention.XLA, 0.0)}
  if _RATE.value:
    found["xla, dropout"] = attention.XLA, _RATE.value
  for name, owner in choose_attention.PLATFORMS.items():
    if owner == platform:
      found[name] = attention.Implementation(name), 0.0
  if "pieces" in found and _RATE.value:
    found["pieces, dropout"] = attention.Implementation("pieces"), _RATE.value
  if _INTERPRET.value:
    found["splash"] = attention.Implementation("splash", interpret=True), 0.0
  return found


def errors_of(form: attention.Implementation) -> dict[str, float]:
  """Errors of result and gradients against "xla" in f32."""
  shape = CHECKED_ROWS, _LENGTH.value, _HEADS.value, _WIDTH.value
  errors = choose_attention.kernel_errors
  run = jax.jit(lambda: errors(form, shape, _DTYPE.value))
  return {name: float(error) for name, error in run().items()}


def is_wrong(errors: dict[str, float]) -> bool:
  """Over the tolerance, or not a number."""
  return not all(e <= choose_attention.TOLERANCE for e in errors.values())


def make_run(
  form: attention.Implementation, rate: float
) -> tuple[Callable, int]:
  """Layers of attention and their gradients, compiled, and their scratch."""
  rows, length = _BATCH.value, _LENGTH.value
  shape = rows, length, _HEADS.value, _WIDTH.value
  keys = jax.random.split(jax.random.key(0), 4)
  arrays = [jax.random.normal(k, shape).astype(_DTYPE.value) for k in keys]
  documents_BxL = jnp.ones((rows, length), jnp.int32)
  keys_B = rng.row_keys(keys[0], 0, jnp.arange(rows))

  def loss(query, key, value, cotangent, documents_BxL, keys_B):
    mask = attention.make_mask(form, documents_BxL)
    for site in range(_LAYERS.value):
      query = query + attention.attend(
        query, key, value, mask, keys_B if rate else None, rate=rate, site=site
      )
    return jnp.sum(query.astype(jnp.float32) * cotangent)

  gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
  given = *arrays, documents_BxL, keys_B
  compiled = gradient.lower(*given).compile()
  memory = compiled.memory_analysis()
  scratch = memory.temp_size_in_bytes if memory else 0
  return functools.partial(compiled, *given), scratch


def show(found: dict[str, dict[str, Any]]) -> None:
  """A line a form."""
  shape = _BATCH.value, _LENGTH.value, _HEADS.value, _WIDTH.value
  # Two products forward and four backward.
  rows, length, heads, width = shape
  flops = 12 * rows * heads * length**2 * width * _LAYERS.value
  print(f"{jax.devices()[0].device_kind}: BxLxHxS {shape}, {_DTYPE.value}")
  for name, of in found.items():
    errors = of.get("errors", {})
    worst = max(errors.values(), default=float("nan"))
    told = f"error {worst:.1e}{' WRONG' if is_wrong(errors) else ''}"
    if "secs" in of:
      median = of["secs"]["median"]
      told += f", {1e3 * median:.2f} ms, {flops / median / 1e12:.3g} TFLOP/s"
      told += f", scratch {of['scratch_bytes'] / 2**20:.0f} MiB"
    if "of_xla" in of:
      told += f", of xla's time {of['of_xla']}"
    print(f"  {name}: {of.get('failure', told)}")


if __name__ == "__main__":
  app.run(main)
