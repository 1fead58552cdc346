"""Measures how much time the corrections add to the training step.

  python benchmarks/overheads.py --config=electra_small --config.batch_size=4
      [--recipes=baseline,hc,sr,hc+sr] [--pairs=400] [--json=FILE]

All recipes train one state in turns, one step each. An overhead is the median
over the rounds of the time relative to the first recipe, minus 1, with a 95 %
bootstrap interval. "again" is the first recipe a second time: its overhead is
chance, and the others' may be as wrong.

A second table counts for each compiled step: operations (roughly, kernels);
those that read or write arrays of at least K x V entries per row (K slots, V
tokens), and the arrays that they read and write; gathers from and scatters into
the embedding table; operations on logits at all positions, which should be 0;
and scratch memory.
"""

from collections.abc import Mapping
from typing import Any

import figures
import hlo_listing
import jax
import roofline
import steps
import timing
from absl import flags
from rich.console import Console
from rich.table import Table

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.train import plan

_CONFIG = flags_lib.define_config()
_RECIPES = flags.DEFINE_list(
  "recipes", ["baseline", "hc", "sr", "hc+sr"], "Compared with the first one."
)
_PAIRS = flags.DEFINE_integer("pairs", 400, "Steps of each recipe.", 2)
_WARMUP = flags.DEFINE_integer("warmup", 5, "Steps that do not count.", 1)
_JSON = flags.DEFINE_string("json", None, "File to append the figures to.")

AGAIN = "again"
Times = dict[str, dict[str, Any]]  # recipe -> seconds and overhead
Counts = dict[str, int | None]


def main(argv: list[str]) -> None:
  """Prints and saves the overheads and the counts of operations."""
  del argv
  with timing.exit_on_error():
    by_recipe = {
      x: steps.make_step(steps.with_recipe(_CONFIG.value, x))
      for x in _RECIPES.value
    }
    record = timing.new_record() | {
      "pairs": _PAIRS.value,
      "compiled": {x: count_operations(s) for x, s in by_recipe.items()},
      "times": time_recipes(by_recipe, _PAIRS.value, _WARMUP.value),
    }
    if _JSON.value:
      timing.append_json(_JSON.value, record)
  console = Console(markup=False, highlight=False)
  console.print(f"{record['device']}, {record['pairs']} rounds")
  console.print(times_table(record["times"]))
  console.print(counts_table(record["compiled"]))


def time_recipes(
  by_recipe: Mapping[str, steps.CompiledStep], pairs: int, warmup: int
) -> Times:
  """Times the steps of all recipes, and of the first again, in turns.

  Returns:
    Recipe or AGAIN -> seconds per step and overhead over the first recipe.
  """
  base = next(iter(by_recipe))
  calls = steps.make_step_calls({**by_recipe, AGAIN: by_recipe[base]})
  secs = timing.time_in_turns(calls, pairs, warmup)
  times = {}
  for name, values in secs.items():
    ratio = timing.paired_ratio(values, secs[base])
    times[name] = {
      "step_s": timing.quantiles(values),
      "overhead": ratio.median - 1,
      "interval": [ratio.low - 1, ratio.high - 1],
      "half_width": ratio.half_width,
    }
  return times


def count_operations(step: steps.CompiledStep) -> Counts:
  """Counts a compiled step's operations, by the columns of the table.

  Operations in a loop count once, those in a fusion as one, except gathers and
  scatters.
  """
  params = plan.abstract_state(step.run, step.mesh).params
  shapes = [x.shape for x in jax.tree.leaves((params, step.aux))]
  sizes = roofline.get_sizes(step.run, step.mesh, shapes)
  shapes = [x.shape for x in jax.tree.leaves(params["embeddings"])]
  (embedding_table,) = (x for x in shapes if sizes.vocab_size in x)
  columns = "ops", "on KxV", "read", "written", "gathers", "scatters", "on LxV"
  counts: Counts = dict.fromkeys(columns, 0)
  listing = hlo_listing.parse(step.compiled.as_text())
  for computation in listing.computations.values():
    for op in computation.values():
      table = (op.kind == "gather" and computation[op.operands[0]]) or op
      is_table = embedding_table in (x.shape for x in table.results)
      counts["gathers"] += op.kind == "gather" and is_table
      counts["scatters"] += op.kind == "scatter" and is_table
  positions = sizes.rows * sizes.length
  for op, computation, _ in listing.launches():
    written = [x.shape for x in op.results]
    operands = (computation[name] for name in op.operands)
    read = [x.shape for operand in operands for x in operand.results]
    on_read = sizes.count_logits(read, sizes.slots)
    on_written = sizes.count_logits(written, sizes.slots)
    counts["ops"] += 1
    counts["on KxV"] += on_read + on_written > 0
    counts["read"] += on_read
    counts["written"] += on_written
    counts["on LxV"] += sizes.count_logits(read + written, positions) > 0
  memory = step.compiled.memory_analysis()
  return {**counts, "MiB": memory and memory.temp_size_in_bytes >> 20}


def times_table(times: Times) -> Table:
  """Builds a table of the times of each recipe."""
  columns = "recipe", "ms", "p10", "p90", "overhead, %", "95 %", "+-"
  table = figures.make_table(*columns)
  for name, x in times.items():
    low, high = x["interval"]
    table.add_row(
      name,
      *(f"{1e3 * x['step_s'][q]:.2f}" for q in ("median", "p10", "p90")),
      f"{100 * x['overhead']:+.2f}",
      f"{100 * low:+.2f} to {100 * high:+.2f}",
      f"{100 * x['half_width']:.2f}",
    )
  return table


def counts_table(counts_by_recipe: Mapping[str, Counts]) -> Table:
  """Builds a table of the counts of each recipe."""
  table = figures.make_table("recipe", *next(iter(counts_by_recipe.values())))
  for recipe, counts in counts_by_recipe.items():
    cells = (f"{x:,}" if x is not None else "" for x in counts.values())
    table.add_row(recipe, *cells)
  return table


if __name__ == "__main__":
  flags_lib.run(main)
