"""Times the synonym look-up in the loss of a masked language model.

  python benchmarks/lookup.py [--rounds=6]

Times the loss of fixed f32 logits, without its gradient, over the slots of a
batch: without correction ("plain"), with a prediction for every slot but no
synonyms ("predict"), and with hard correction by generated tables of both
layouts with S synonyms per token ("bits S", "ids S"). They take turns: A B,
B A. A ratio is the median over the rounds, with minimum and maximum. The last
column times the look-up alone. A CPU needs 8 GB and some minutes.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from truenegs_jax.objectives import negatives, output_softmax
from truenegs_jax.objectives.slot_predictions import weighted_sum
from truenegs_jax.synonyms.table import SynonymTable

Array = jax.Array
# (aux, golds_BxK, predicted_BxK) -> the slots to correct, bool [B, K]
FindNegatives = Callable[[Mapping[str, Array], Array, Array], Array]
TableArrays = Mapping[str, np.ndarray]
Calls = dict[str, Callable[[], Array | tuple[Array, Array]]]
Secs = dict[str, list[float]]

# Rows, slots per row, and micro-batches, which limit the logits' memory.
BATCHES = ((128, 19, 1), (256, 77, 8))
# Vocabulary size -> S and layout. WordNet has up to 55 synonyms for one of
# BERT's tokens. A bit matrix for 128,000 tokens would take 2 GB.
TABLES = {
  30_522: ((55, "bits"), (55, "ids"), (10, "ids")),
  128_000: ((55, "ids"), (10, "ids")),
}


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a table; returns 1 if two layouts correct different slots."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--rounds", type=int, default=6)
  rounds = parser.parse_args(argv).rounds
  print(f"{jax.devices()[0].device_kind}, {rounds} rounds")
  print("tokens   batch     loss          MB      ms  / plain, / predict, us")
  for size, layouts in TABLES.items():
    tables = {f"{kind} {s}": make_table(size, s, kind) for s, kind in layouts}
    for rows, slots, micro in BATCHES:
      losses = compile_losses(size, rows // micro, slots, tables)
      counts = {int(losses[name]()[1]) for name in tables if "55" in name}
      if len(counts) > 1:
        print("error: The layouts correct different slots.", file=sys.stderr)
        return 1
      secs = time_calls(losses, micro, rounds)
      lookups = compile_lookups(size, rows, slots, tables)
      lookup_secs = time_calls(lookups, 1, 5 * rounds)
      for name, values in secs.items():
        table_mb = sum(x.nbytes for x in tables.get(name, {}).values()) / 1e6
        print(
          f"{size:7,}  {rows} x {slots}  {name:7} {table_mb:8.1f}"
          f" {1e3 * np.median(values):7.1f}",
          *(format_ratio(values, secs[x]) for x in ("plain", "predict")),
          f"{1e6 * np.median(lookup_secs.get(name, 0)):5.0f}",
        )
  return 0


def make_table(size: int, width: int, layout: str) -> TableArrays:
  """Generates a table of `width` synonyms per token, spread over all ids."""
  steps_VxS = np.random.default_rng(0).integers(1, size // width, (size, width))
  ids_VxS = (np.arange(size)[:, None] + steps_VxS.cumsum(axis=1)) % size
  tokens = [f"w{i}" for i in range(size)]
  table = SynonymTable.from_ids(ids_VxS, tokens, source="generated", options={})
  return table.arrays(layout)


def compile_losses(
  size: int, rows: int, slots: int, tables: Mapping[str, TableArrays]
) -> Calls:
  """Returns name -> compiled loss of a micro-batch: (sum, number of slots)."""
  golds_BxK = jax.random.randint(jax.random.key(0), (rows, slots), 0, size)
  logits_BxKxV = jax.random.normal(jax.random.key(1), (rows, slots, size))

  def compile_loss(find: FindNegatives | None, aux: TableArrays) -> Callable:
    fn = jax.jit(functools.partial(compute_loss, find_negatives=find))
    call = functools.partial(fn, logits_BxKxV, golds_BxK, jax.device_put(aux))
    jax.block_until_ready(call())
    return call

  losses: Calls = {"plain": compile_loss(None, {})}
  losses["predict"] = compile_loss(lambda _, gold, token: gold == token, {})
  for name, aux in tables.items():
    losses[name] = compile_loss(negatives.false_negatives, aux)
  return losses


def compile_lookups(
  size: int, rows: int, slots: int, tables: Mapping[str, TableArrays]
) -> Calls:
  """Returns name -> compiled look-up of one prediction per slot."""
  pairs_2xBxK = jax.random.randint(jax.random.key(2), (2, rows, slots), 0, size)
  fn = jax.jit(negatives.false_negatives)
  calls: Calls = {
    name: functools.partial(fn, jax.device_put(aux), *pairs_2xBxK)
    for name, aux in tables.items()
  }
  jax.block_until_ready([call() for call in calls.values()])
  return calls


def compute_loss(
  logits_BxKxV: Array,
  golds_BxK: Array,
  aux: Mapping[str, Array],
  *,
  find_negatives: FindNegatives | None,
) -> tuple[Array, Array]:
  """Computes equation 2 of Zhang et al. 2023: no loss at false negatives."""
  loss_BxK = optax.softmax_cross_entropy_with_integer_labels(
    logits_BxKxV, golds_BxK
  )
  weight_BxK = jnp.ones(golds_BxK.shape)
  if find_negatives:
    predicted_BxK = output_softmax.predict(logits_BxKxV)
    weight_BxK -= find_negatives(aux, golds_BxK, predicted_BxK)
  return weighted_sum(loss_BxK, weight_BxK)


def time_calls(calls: Calls, repeats: int, rounds: int) -> Secs:
  """Returns name -> seconds of `repeats` calls, for each round."""
  secs: Secs = {name: [] for name in calls}
  for turn in range(rounds):
    for name in list(calls)[:: -1 if turn % 2 else 1]:
      start = time.perf_counter()
      jax.block_until_ready([calls[name]() for _ in range(repeats)])
      secs[name].append(time.perf_counter() - start)
  return secs


def format_ratio(secs_a: Sequence[float], secs_b: Sequence[float]) -> str:
  """Formats the ratios of times from the same rounds."""
  ratios = np.divide(secs_a, secs_b)
  return f"{np.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
  sys.exit(main())
