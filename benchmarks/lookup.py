"""What it costs to look synonyms up in the loss of a masked language model.

  python benchmarks/lookup.py [--rounds=6]

Times the loss of given logits, in f32 and without its gradient, over the slots
of a batch: as it is without correction (plain), with the prediction of every
slot that a correction judges (predict), and with hard correction by generated
tables of either layout, in which each token has S synonyms. All take turns:
A B B A; a ratio is the median over the rounds, with the least and the greatest.
The last column is the look-up alone, of predictions that are there already.
Runs on the device that JAX has; a CPU needs 8 GB and some minutes.
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from truenegs_jax.objectives import negatives, output_softmax
from truenegs_jax.objectives.slot_predictions import weighted_sum
from truenegs_jax.synonyms import table

Array = jax.Array
Judge = Callable[[Mapping[str, Array], Array, Array], Array]
Table = Mapping[str, np.ndarray]
Runs = dict[str, Callable[[], Any]]

# Rows, the slots of each, and micro-batches, which bound the logits' memory.
BATCHES = ((128, 19, 1), (256, 77, 8))
# Entries -> S and layout. WordNet has up to 55 synonyms for one of BERT's
# tokens; a bit matrix for 128,000 would take 2 GB.
TABLES = {
  30_522: ((55, "bits"), (55, "ids"), (10, "ids")),
  128_000: ((55, "ids"), (10, "ids")),
}


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a table; returns 1 where two layouts correct different slots."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--rounds", type=int, default=6)
  rounds = parser.parse_args(argv).rounds
  print(f"{jax.devices()[0].device_kind}, {rounds} rounds")
  print("entries  batch     loss          MB      ms  of plain, of predict, us")
  for size, layouts in TABLES.items():
    tables = {f"{kind} {s}": make_table(size, s, kind) for s, kind in layouts}
    for rows, slots, micro in BATCHES:
      losses = make_losses(size, rows // micro, slots, tables)
      kept = {int(losses[name]()[1]) for name in tables if "55" in name}
      if len(kept) > 1:
        print("The layouts differ in what they correct.", file=sys.stderr)
        return 1
      secs = measure(losses, micro, rounds)
      alone = measure(make_lookups(size, rows, slots, tables), 1, 5 * rounds)
      for name, values in secs.items():
        held = sum(x.nbytes for x in tables.get(name, {}).values()) / 1e6
        print(
          f"{size:7,}  {rows} x {slots}  {name:7} {held:8.1f}"
          f" {1e3 * statistics.median(values):7.1f}",
          *(ratio(values, secs[other]) for other in ("plain", "predict")),
          f"{1e6 * statistics.median(alone.get(name, [0])):5.0f}",
        )
  return 0


def make_table(size: int, width: int, layout: str) -> Table:
  """A table in which every token has `width` synonyms, all over the place."""
  steps_VxS = np.random.default_rng(0).integers(1, size // width, (size, width))
  ids_VxS = (np.arange(size)[:, None] + steps_VxS.cumsum(axis=1)) % size
  tokens = [f"w{i}" for i in range(size)]
  made = table.from_ids(ids_VxS, tokens, source="generated", options={})
  return table.build_arrays(made, layout)


def make_losses(
  size: int,
  rows: int,
  slots: int,
  tables: Mapping[str, Table],
) -> Runs:
  """Name -> the compiled loss of one micro-batch: (sum, kept slots)."""
  golds_BxK = jax.random.randint(jax.random.key(0), (rows, slots), 0, size)
  logits_BxKxV = jax.random.normal(jax.random.key(1), (rows, slots, size))

  def compiled(judge: Judge | None, aux: Mapping = {}):
    fn = jax.jit(functools.partial(loss, judge=judge))
    found = functools.partial(fn, logits_BxKxV, golds_BxK, jax.device_put(aux))
    jax.block_until_ready(found())
    return found

  by_letter = lambda aux, golds_BxK, predicted_BxK: golds_BxK == predicted_BxK
  return {"plain": compiled(None), "predict": compiled(by_letter)} | {
    name: compiled(negatives.false_negatives, aux)
    for name, aux in tables.items()
  }


def make_lookups(
  size: int, rows: int, slots: int, tables: Mapping[str, Table]
) -> Runs:
  """Name -> the compiled look-up of one prediction for each slot."""
  pairs_2xBxK = jax.random.randint(jax.random.key(2), (2, rows, slots), 0, size)
  fn = jax.jit(negatives.false_negatives)
  runs = {
    name: functools.partial(fn, jax.device_put(aux), *pairs_2xBxK)
    for name, aux in tables.items()
  }
  jax.block_until_ready([run() for run in runs.values()])
  return runs


def loss(
  logits_BxKxV: Array,
  golds_BxK: Array,
  aux: Mapping[str, Array],
  *,
  judge: Judge | None,
) -> tuple[Array, Array]:
  """Equation 2 of Zhang et al. 2023, without the slots that `judge` finds."""
  loss_BxK = optax.softmax_cross_entropy_with_integer_labels(
    logits_BxKxV, golds_BxK
  )
  weight_BxK = jnp.ones(golds_BxK.shape)
  if judge:
    weight_BxK -= judge(aux, golds_BxK, output_softmax.predict(logits_BxKxV))
  return weighted_sum(loss_BxK, weight_BxK)


def measure(runs: Runs, micro: int, rounds: int) -> dict[str, list[float]]:
  """Name -> the seconds of so many calls, in each round."""
  secs: dict[str, list[float]] = {name: [] for name in runs}
  for turn in range(rounds):
    for name in list(runs)[:: -1 if turn % 2 else 1]:
      start = time.perf_counter()
      jax.block_until_ready([runs[name]() for _ in range(micro)])
      secs[name].append(time.perf_counter() - start)
  return secs


def ratio(values: Sequence[float], others: Sequence[float]) -> str:
  """Of pairs from the same round."""
  ratios = [a / b for a, b in zip(values, others, strict=True)]
  median = statistics.median(ratios)
  return f"{median:5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
  sys.exit(main())
