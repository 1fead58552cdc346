"""Times the random numbers of dropout and sampling, by generator.

  python benchmarks/random_numbers.py [--rows=32 --length=128 --width=256
      --heads=4 --slots=19 --vocab=30522 --dtype=float32] [--rounds=20]
      [--json=FILE]
  python benchmarks/random_numbers.py --check

Dropout is timed with its gradient, at 24 places of one compiled function: on
outputs of layers, and on attention weights. "none" has no dropout. Sampling a
token from logits is compared with the likeliest token. "ours" is this package's
generator. Generators take turns; a ratio is the median over the rounds, with a
95 % bootstrap interval. The last column is the time that a number adds to the
first line.

--check compares the numbers on 1 and 8 simulated CPU devices and on the
accelerator, if there is one, and returns 1 if any differ. With an accelerator
it needs JAX_PLATFORMS=cuda,cpu or similar.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import timing
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from truenegs_jax.objectives import output_softmax
from truenegs_jax.runtime import rng

Array = jax.Array
# (x, keys, site) -> x with dropout
Dropout = Callable[[Array, rng.Keys, int], Array]

RATE, SITES = 0.1, 24
GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a table of times, or whether the numbers are equal everywhere."""
  args = parse_arguments(argv)
  if args.check:
    return check_devices()
  shapes = {
    "layers": (args.rows, args.length, args.width),
    "attention": (args.rows, args.heads, args.length, args.length),
  }
  groups = {x: compile_dropouts(s, args.dtype) for x, s in shapes.items()}
  shapes["tokens"] = args.rows, args.slots, args.vocab
  groups["tokens"] = compile_samplings(shapes["tokens"])
  record = timing.new_record()
  print(f"{record['device']}, {args.rounds} rounds, {args.dtype}")
  print(
    "numbers of    by                  ms  / the first               ps each"
  )
  for group, calls in groups.items():
    size = np.prod(shapes[group]) * (1 if group == "tokens" else SITES)
    secs = timing.time_in_turns(calls, args.rounds)
    record[group] = {name: timing.quantiles(x) for name, x in secs.items()}
    first = secs[next(iter(secs))]
    for name, values in secs.items():
      median = np.median(values)
      ps = 1e12 * (median - np.median(first)) / size
      ratio = str(timing.paired_ratio(values, first))
      cells = f"{name:14} {1e3 * median:7.2f}  {ratio:22} {ps:8,.1f}"
      print(f"{group:12}  {cells}")
  if args.json:
    timing.append_json(args.json, record)
  return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
  """Parses the flags; default sizes are those of configs/electra_small.py."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  sizes = dict(rows=32, length=128, width=256, heads=4, slots=19, vocab=30_522)
  for name, size in {**sizes, "rounds": 20}.items():
    parser.add_argument(f"--{name}", type=int, default=size)
  parser.add_argument("--dtype", default="float32")
  parser.add_argument("--json", help="File to append the figures to.")
  parser.add_argument("--check", action="store_true")
  return parser.parse_args(argv)


def compile_dropouts(shape: tuple[int, ...], dtype: str) -> timing.Calls:
  """Returns generator -> compiled dropout and gradient of arrays."""
  x = jax.random.normal(jax.random.key(1), shape, dtype)

  def own_dropout(x, keys_B, site):
    return rng.dropout(x, keys_B, rate=RATE, site=site)

  def jax_dropout(x, key, site):
    key = jax.random.fold_in(key, site)
    keep = jax.random.bernoulli(key, 1 - RATE, x.shape)
    return jnp.where(keep, x / (1 - RATE), 0).astype(x.dtype)

  def compile_dropout(dropout: Dropout, keys: rng.Keys) -> Callable:
    def forward(x, keys):
      for site in range(SITES):
        # The barrier materializes each array, as a layer would.
        x = jax.lax.optimization_barrier((x + dropout(x, keys, site)) / 2)
      return x

    def forward_and_backward(x, keys):
      y, vjp = jax.vjp(functools.partial(forward, keys=keys), x)
      return y, vjp(x)

    return functools.partial(jax.jit(forward_and_backward), x, keys)

  keys_B = rng.row_keys(jax.random.key(0), 0, jnp.arange(shape[0]))
  calls = {
    "none": compile_dropout(lambda x, keys, site: x, None),
    "ours": compile_dropout(own_dropout, keys_B),
  }
  for generator in GENERATORS:
    key = jax.random.key(0, impl=generator)
    calls[generator] = compile_dropout(jax_dropout, key)
  return calls


def compile_samplings(shape: tuple[int, int, int]) -> timing.Calls:
  """Returns generator -> compiled sampling, from f32 logits of a shape."""
  logits_BxKxV = 3 * jax.random.normal(jax.random.key(1), shape)
  keys_B = rng.row_keys(jax.random.key(0), 0, jnp.arange(shape[0]))

  def sample_with_gumbel(logits_BxKxV, keys_B):
    uniform_BxKxV = rng.uniform(keys_B, logits_BxKxV.shape[1:])
    noise_BxKxV = -jnp.log(-jnp.log(uniform_BxKxV))
    return output_softmax.predict(logits_BxKxV + noise_BxKxV)

  def compile_sampling(fn: Callable, *keys: Array) -> Callable[[], Array]:
    return functools.partial(jax.jit(fn), logits_BxKxV, *keys)

  def sample_with_jax(logits_BxKxV, key):
    return jax.random.categorical(key, logits_BxKxV)

  own_sample = functools.partial(output_softmax.sample, temperature=1.0)
  calls = {
    "likeliest": compile_sampling(output_softmax.predict),
    "ours": compile_sampling(own_sample, keys_B),
    "gumbel, ours": compile_sampling(sample_with_gumbel, keys_B),
  }
  for generator in GENERATORS:
    key = jax.random.key(0, impl=generator)
    calls[generator] = compile_sampling(sample_with_jax, key)
  return calls


def check_devices() -> int:
  """Compares CPU devices and the accelerator; returns 1 if any differ."""
  jax.config.update("jax_num_cpu_devices", 8)
  cpus = jax.devices("cpu")
  expected = draw_numbers(cpus[:1])
  groups = {"8 CPU devices": cpus}
  if jax.default_backend() != "cpu":
    groups[jax.devices()[0].device_kind] = jax.devices()[:1]
  status = 0
  for group, devices in groups.items():
    numbers = draw_numbers(devices)
    for name, array in expected.items():
      is_equal = np.array_equal(numbers[name], array)
      status |= not is_equal
      result = "equal" if is_equal else "DIFFERENT"
      print(f"{group} and 1 CPU device: {name} {result}")
  return status


def draw_numbers(devices: Sequence[jax.Device]) -> dict[str, np.ndarray]:
  """Draws bits, uniform numbers and dropped units of 64 rows on devices."""
  place = NamedSharding(Mesh(np.array(devices), ("data",)), P("data"))

  @functools.partial(jax.jit, in_shardings=place)
  def draw(row_B):
    keys_B = rng.row_keys(jax.random.key(5), 7, row_B)
    ones = jnp.ones((len(row_B), 128, 256), jnp.bfloat16)
    return {
      "bits": rng.random_bits(keys_B, (4, 128, 128), site=2),
      "uniform numbers": rng.uniform(keys_B, (77, 512)),
      "dropped units": rng.dropout(ones, keys_B, rate=RATE, site=3) == 0,
    }

  return jax.tree.map(np.asarray, draw(jax.device_put(np.arange(64), place)))


if __name__ == "__main__":
  with timing.exit_on_error():
    sys.exit(main())
