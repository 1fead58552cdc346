"""Checks and times each implementation of attention that a device has.

  python benchmarks/attention.py --batch=128 --length=512 --heads=12 \\
      --dtype=bfloat16 [--json=FILE]

Results and gradients are compared with "xla" in f32. The forward and backward
passes of --layers layers are timed in turns, with dropout as well where there
is one. "cudnn" (bfloat16 only) and "splash" are libraries' kernels without
dropout, for comparison. Failures are reported. Exit code 1: one that runs is
wrong, or flash attention does not run where it should.
"""

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import timing
from absl import app, flags

from truenegs_jax.models import attention
from truenegs_jax.runtime import rng

_BATCH = flags.DEFINE_integer("batch", 32, "Rows.", 1)
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens per row.", 1)
_HEADS = flags.DEFINE_integer("heads", 4, "Attention heads.", 1)
_WIDTH = flags.DEFINE_integer("width", 64, "Units per head.", 1)
_LAYERS = flags.DEFINE_integer("layers", 12, "Layers that are timed.", 1)
_ROUNDS = flags.DEFINE_integer("rounds", 20, "Rounds of timing.", 1)
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], None)
_RATE = flags.DEFINE_float("rate", 0.1, "Dropout rate.", 0, 0.99)
_INTERPRET = flags.DEFINE_bool("interpret", False, "Run kernels on a CPU, too.")
_JSON = flags.DEFINE_string("json", None, "File to append the figures to.")

CHECKED_ROWS = 8

Array = jax.Array
Results = dict[str, dict[str, Any]]  # name -> errors, times or a failure


class Candidate(NamedTuple):
  """An implementation of attention.

  Attributes:
    attend: `(query, key, value, documents, keys_B, site) -> result`.
    measure_errors: returns the errors of result and gradients.
  """

  attend: Callable[..., Array]
  measure_errors: Callable[[], dict[str, Array]]


def main(argv: list[str]) -> None:
  """Checks and times all implementations, prints and saves the results."""
  del argv
  results: Results = {}
  calls: dict[str, Callable[[], object]] = {}
  for name, candidate in list_candidates().items():
    results[name] = {}
    try:
      errors = jax.jit(candidate.measure_errors)()
      results[name]["errors"] = {k: float(x) for k, x in errors.items()}
      call, results[name]["scratch_bytes"] = compile_layers(candidate.attend)
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
  sys.exit(any(is_problem(*item) for item in results.items()))


def list_candidates() -> dict[str, Candidate]:
  """Returns the implementations for this device, by name."""
  platform = attention.get_platform(jax.devices()[0])
  implementations = {"xla": attention.XLA}
  for name, platforms in attention.PLATFORMS.items():
    if platform in platforms:
      implementations[name] = attention.Implementation(name, platform=platform)
  if _INTERPRET.value:
    implementations["flash"] = attention.Implementation("flash", interpret=True)
  candidates = {name: own(impl, 0.0) for name, impl in implementations.items()}
  for name, attend in (("cudnn", attend_cudnn), ("splash", attend_splash)):
    if platform == {"cudnn": "cuda", "splash": "tpu"}[name] or _INTERPRET.value:
      candidates[name] = Candidate(
        attend, functools.partial(library_errors, attend)
      )
  for name, impl in implementations.items():
    if _RATE.value:
      candidates[f"{name}, dropout"] = own(impl, _RATE.value)
  return candidates


def own(impl: attention.Implementation, rate: float) -> Candidate:
  """Returns an implementation of this package with a dropout rate."""

  def attend(query, key, value, documents_BxL, keys_B, site):
    mask = attention.make_mask(impl, documents_BxL)
    keys_B = keys_B if rate else None
    return attention.attend(
      query, key, value, mask, keys_B, rate=rate, site=site
    )

  shape = CHECKED_ROWS, _LENGTH.value, _HEADS.value, _WIDTH.value
  errors = attention.kernel_errors
  return Candidate(
    attend, functools.partial(errors, impl, shape, _DTYPE.value, rate)
  )


def attend_cudnn(
  query: Array, key: Array, value: Array, documents_BxL: Array, *_: object
) -> Array:
  """Computes attention by cuDNN, for rows of one document and padding."""
  lengths_B = (documents_BxL > 0).sum(1)
  return jax.nn.dot_product_attention(
    *(query, key, value),
    query_seq_lengths=lengths_B,
    key_value_seq_lengths=lengths_B,
    implementation="xla" if _INTERPRET.value else "cudnn",
  )


def attend_splash(
  query: Array, key: Array, value: Array, documents_BxL: Array, *_: object
) -> Array:
  """Computes attention by JAX's kernel for TPUs."""
  from jax.experimental.pallas.ops.tpu import splash_attention as splash

  _, length, heads, width = query.shape
  block = min(512, length)
  sides = "q", "kv", "q_dkv", "kv_dkv", "q_dq", "kv_dq"
  kernel = splash.make_splash_mha(
    splash.MultiHeadMask([splash.FullMask((length, length))] * heads),
    block_sizes=splash.BlockSizes(**{f"block_{x}": block for x in sides}),
    head_shards=1,
    q_seq_shards=1,
    interpret=_INTERPRET.value,
  )
  arrays = (query / math.sqrt(width)).astype(query.dtype), key, value
  heads_first = (jnp.swapaxes(x, 1, 2) for x in arrays)
  segments = splash.SegmentIds(documents_BxL, documents_BxL)
  return jnp.swapaxes(jax.vmap(kernel)(*heads_first, segments), 1, 2)


def library_errors(attend: Callable[..., Array]) -> dict[str, Array]:
  """Measures a library's errors at real tokens; half of the rows are padded."""
  rows, length = CHECKED_ROWS, _LENGTH.value
  ends_B = jnp.where(jnp.arange(rows) % 2, length, length // 2 + 1)
  real_BxL = jnp.arange(length)[None] < ends_B[:, None]
  real_BxLx1x1, documents_BxL = real_BxL[..., None, None], real_BxL.astype(int)
  *qkv, cotangent = make_arrays(rows)
  cotangent = cotangent * real_BxLx1x1.astype(cotangent.dtype)

  def run(attend, cotangent, *qkv):
    result, vjp = jax.vjp(lambda *x: attend(*x, documents_BxL, None, 0), *qkv)
    arrays = result, *vjp(cotangent)
    return [x.astype(jnp.float32) * real_BxLx1x1 for x in arrays]

  results = run(attend, cotangent, *qkv)
  with jax.default_matmul_precision("highest"):
    f32 = (x.astype(jnp.float32) for x in (cotangent, *qkv))
    expected = run(own(attention.XLA, 0.0).attend, *f32)
  return {
    name: abs(x - y).max() / abs(y).max()
    for name, x, y in zip(attention.COMPARED, results, expected, strict=True)
  }


def make_arrays(rows: int) -> list[Array]:
  """Draws query, key, value and cotangent."""
  shape = rows, _LENGTH.value, _HEADS.value, _WIDTH.value
  keys = jax.random.split(jax.random.key(0), 4)
  return [jax.random.normal(k, shape).astype(_DTYPE.value) for k in keys]


def is_problem(name: str, result: dict[str, Any]) -> bool:
  """Returns whether a kernel is wrong, or flash attention does not run."""
  is_missing = name.startswith("flash") and "failure" in result
  return is_missing or is_wrong(result.get("errors", {}))


def is_wrong(errors: dict[str, float]) -> bool:
  """Returns whether an error is above the tolerance or NaN."""
  return not all(e <= attention.TOLERANCE for e in errors.values())


def compile_layers(
  attend: Callable[..., Array],
) -> tuple[Callable[[], object], int]:
  """Compiles layers and their gradients; returns a call and scratch bytes."""
  rows, length = _BATCH.value, _LENGTH.value
  arrays = make_arrays(rows)
  documents_BxL = jnp.ones((rows, length), jnp.int32)
  keys_B = rng.row_keys(jax.random.key(1), 0, jnp.arange(rows))

  def loss(query, key, value, cotangent, documents_BxL, keys_B):
    for site in range(_LAYERS.value):
      query = query + attend(query, key, value, documents_BxL, keys_B, site)
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
