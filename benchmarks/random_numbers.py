"""What random numbers cost by several generators: dropout's and the sampling's.

  python benchmarks/random_numbers.py [--rows=32 --length=128 --width=256
      --heads=4 --slots=19 --vocab=30522 --dtype=float32] [--rounds=20]
      [--json=FILE]
  python benchmarks/random_numbers.py --check

Dropout is timed with its gradient, as 24 places of one compiled function have
it: on what a layer gives, and on the weights of attention. "none" leaves it
out. A draw of a token from given logits stands beside the likeliest token. The
forms take turns; a ratio is the median over the rounds, with a 95 % bootstrap
interval; the last column is the time beyond the first form's, per number.

--check times nothing: it compares our numbers on 1 and 8 simulated CPU devices
and on the accelerator, if JAX has one, and returns 1 where any differ. With an
accelerator it needs JAX_PLATFORMS=cuda,cpu or the like.
"""

import argparse
import functools
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import timing
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from truenegs_jax.objectives import output_softmax
from truenegs_jax.runtime import errors, rng

Array = jax.Array
Drop = Callable[[Array, Any, int], Array]

RATE, SITES = 0.1, 24
GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a table of times, or whether numbers are the same everywhere."""
  args = arguments(argv)
  if args.check:
    return check()
  count = args.rows, args.length
  shapes = {
    "layers": (*count, args.width),
    "attention": (args.rows, args.heads, args.length, args.length),
  }
  record = {"command": " ".join(sys.argv), **timing.machine()}
  print(f"{record['device']}, {args.rounds} rounds, {args.dtype}")
  print("numbers of    by                  ms  of the first            ps each")
  groups = {name: dropouts(s, args.dtype) for name, s in shapes.items()}
  shapes["tokens"] = args.rows, args.slots, args.vocab
  groups["tokens"] = samplings(shapes["tokens"])
  for group, runs in groups.items():
    size = np.prod(shapes[group]) * (1 if group == "tokens" else SITES)
    secs = timing.in_turn(runs, args.rounds)
    record[group] = {name: timing.quantiles(x) for name, x in secs.items()}
    first = secs[next(iter(secs))]
    for name, values in secs.items():
      median = statistics.median(values)
      each = 1e12 * (median - statistics.median(first)) / size
      ratio = str(timing.ratio(values, first))
      print(
        f"{group:12}  {name:14} {1e3 * median:7.2f}  {ratio:22} {each:8,.1f}"
      )
  if args.json:
    timing.append_json(args.json, record)
  return 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
  """The command line; by default the sizes of configs/electra_small.py."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  sizes = dict(rows=32, length=128, width=256, heads=4, slots=19, vocab=30_522)
  for name, size in {**sizes, "rounds": 20}.items():
    parser.add_argument(f"--{name}", type=int, default=size)
  parser.add_argument("--dtype", default="float32")
  parser.add_argument("--json", help="file to add the figures to")
  parser.add_argument("--check", action="store_true")
  return parser.parse_args(argv)


def dropouts(shape: tuple[int, ...], dtype: str) -> timing.Runs:
  """Form -> dropout and its gradient on arrays of this shape, compiled."""
  x = jax.random.normal(jax.random.key(1), shape, dtype)

  def ours(x, keys_B, site):
    return rng.dropout(x, keys_B, rate=RATE, site=site)

  def library(x, key, site):
    key = jax.random.fold_in(key, site)
    keep = jax.random.bernoulli(key, 1 - RATE, x.shape)
    return jnp.where(keep, x / (1 - RATE), 0).astype(x.dtype)

  def compiled(drop: Drop, keys: Any) -> Callable[[], Any]:
    def places(x, keys):
      for site in range(SITES):
        # The barrier keeps each place's array, as a layer would.
        x = jax.lax.optimization_barrier((x + drop(x, keys, site)) / 2)
      return x

    def both_ways(x, keys):
      y, push = jax.vjp(functools.partial(places, keys=keys), x)
      return y, push(x)

    return functools.partial(jax.jit(both_ways), x, keys)

  keys_B = rng.row_keys(jax.random.key(0), 0, jnp.arange(shape[0]))
  return {
    "none": compiled(lambda x, keys, site: x, None),
    "ours": compiled(ours, keys_B),
    **{g: compiled(library, jax.random.key(0, impl=g)) for g in GENERATORS},
  }


def samplings(shape: tuple[int, int, int]) -> timing.Runs:
  """Form -> a token drawn for each slot of given f32 logits, compiled."""
  logits_BxKxV = 3 * jax.random.normal(jax.random.key(1), shape)
  keys_B = rng.row_keys(jax.random.key(0), 0, jnp.arange(shape[0]))

  def gumbel(logits_BxKxV, keys_B):
    uniform_BxKxV = rng.uniform(keys_B, logits_BxKxV.shape[1:])
    noise_BxKxV = -jnp.log(-jnp.log(uniform_BxKxV))
    return output_softmax.predict(logits_BxKxV + noise_BxKxV)

  draw = lambda logits, key: jax.random.categorical(key, logits)
  compiled = lambda fn, *args: functools.partial(jax.jit(fn), *args)
  made = functools.partial(compiled, draw, logits_BxKxV)
  return {
    "likeliest": compiled(output_softmax.predict, logits_BxKxV),
    "ours": compiled(
      functools.partial(output_softmax.sample, temperature=1.0),
      logits_BxKxV,
      keys_B,
    ),
    "gumbel, ours": compiled(gumbel, logits_BxKxV, keys_B),
    **{g: made(jax.random.key(0, impl=g)) for g in GENERATORS},
  }


def check() -> int:
  """Compares our numbers on all kinds and counts of devices that there are."""
  jax.config.update("jax_num_cpu_devices", 8)
  cpus = jax.devices("cpu")
  places = {f"{n} of the CPU": cpus[:n] for n in (1, 8)}
  if jax.default_backend() != "cpu":
    places[jax.devices()[0].device_kind] = jax.devices()[:1]
  found = {name: numbers(devices) for name, devices in places.items()}
  first = found.pop("1 of the CPU")
  status = 0
  for name, values in found.items():
    same = {key: np.array_equal(values[key], first[key]) for key in first}
    status |= not all(same.values())
    listed = ", ".join(
      f"{key} {'the same' if x else 'DIFFERENT'}" for key, x in same.items()
    )
    print(f"{name}: {listed}")
  return status


def numbers(devices: Sequence[jax.Device]) -> dict[str, np.ndarray]:
  """Bits, uniform numbers and what dropout drops of 64 rows over devices."""
  place = NamedSharding(Mesh(np.array(devices), ("data",)), P("data"))

  @functools.partial(jax.jit, in_shardings=place)
  def draw(row_B):
    keys_B = rng.row_keys(jax.random.key(5), 7, row_B)
    ones = jnp.ones((len(row_B), 128, 256), jnp.bfloat16)
    dropped = rng.dropout(ones, keys_B, rate=RATE, site=3) == 0
    return {
      "bits": rng.random_bits(keys_B, (4, 128, 128), site=2),
      "uniform numbers": rng.uniform(keys_B, (77, 512)),
      "dropped units": dropped,
    }

  return jax.tree.map(np.asarray, draw(jax.device_put(np.arange(64), place)))


if __name__ == "__main__":
  try:
    sys.exit(main())
  except errors.TrueNegsError as e:
    print(f"error: {errors.printable(e)}", file=sys.stderr)
    sys.exit(e.exit_code)
