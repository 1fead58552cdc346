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

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import figures
import jax
import steps
import timing
from absl import flags
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from truenegs_jax.configs import common
from truenegs_jax.objectives import masking
from truenegs_jax.runtime import errors
from truenegs_jax.runtime import flags as flags_lib
from truenegs_jax.train import plan, sharding

_CONFIG = flags_lib.define_config()
_RECIPES = flags.DEFINE_list(
  "recipes", ["baseline", "hc", "sr", "hc+sr"], "Compared with the first one."
)
_PAIRS = flags.DEFINE_integer("pairs", 400, "Steps of each recipe.", 2)
_WARMUP = flags.DEFINE_integer("warmup", 5, "Steps that do not count.", 1)
_JSON = flags.DEFINE_string("json", None, "File to append the figures to.")

AGAIN = "again"
# HLO operations that no device executes.
NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
NO_WORK |= {"while", "conditional"}  # their bodies are listed as well
PADDING = 256  # the most columns that logits have beyond the vocabulary
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_OPERATION = re.compile(
  r"\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*?)\)"
)
_SHAPE = re.compile(r"\[([\d,]+)\]")

Shape = tuple[int, ...]
Times = dict[str, dict[str, Any]]  # recipe -> seconds and overhead
Counts = dict[str, int | None]


class Operation(NamedTuple):
  """An HLO operation of a compiled step."""

  kind: str
  reads: tuple[Shape, ...]
  writes: tuple[Shape, ...]
  fused: bool  # inside a fusion, so that its arrays are not in memory


def main(argv: list[str]) -> None:
  """Prints and saves the overheads and the counts of operations."""
  del argv
  with timing.exit_on_error():
    by_recipe = {x: make_recipe_step(_CONFIG.value, x) for x in _RECIPES.value}
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


def make_recipe_step(c: ConfigDict, recipe: str) -> steps.CompiledStep:
  """Compiles a config's step with a recipe; InputError if it is unknown."""
  errors.one_of("--recipes", recipe, common.RECIPES)
  changed = c.copy_and_resolve_references()
  changed.negatives.update(common.RECIPES[recipe])
  return steps.make_step(changed)


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
  """Counts a compiled step's operations, by the columns of the table."""
  c, vocab_size = step.c, step.run.options.masking.vocab_size
  params = plan.abstract_state(step.run, step.mesh).params
  shapes = [x.shape for x in jax.tree.leaves(params["embeddings"])]
  (embedding_table,) = (x for x in shapes if vocab_size in x)
  shapes = [x.shape for x in jax.tree.leaves((params, step.aux))]
  # A table [V, E] looks like logits at E positions.
  table_sizes = {n for shape in shapes if vocab_size in shape for n in shape}
  num_slots = masking.num_slots(c.length, c.masking.prob)
  num_slices = step.mesh.shape[sharding.DATA_AXIS] * c.optim.accumulation
  num_positions = c.batch_size // num_slices * c.length

  def count_logits(shapes: tuple[Shape, ...], min_positions: int) -> int:
    sizes = [logit_positions(shape, vocab_size) for shape in shapes]
    return sum(n >= min_positions and n not in table_sizes for n in sizes)

  columns = "ops", "on KxV", "read", "written", "gathers", "scatters", "on LxV"
  counts: Counts = dict.fromkeys(columns, 0)
  for x in parse_operations(step.compiled.as_text()):
    counts["gathers"] += x.kind == "gather" and x.reads[0] == embedding_table
    counts["scatters"] += x.kind == "scatter" and embedding_table in x.writes
    if x.fused or x.kind in NO_WORK:
      continue
    read = count_logits(x.reads, num_slots)
    written = count_logits(x.writes, num_slots)
    counts["ops"] += 1
    counts["on KxV"] += read + written > 0
    counts["read"] += read
    counts["written"] += written
    counts["on LxV"] += count_logits(x.reads + x.writes, num_positions) > 0
  memory = step.compiled.memory_analysis()
  return {**counts, "MiB": memory and memory.temp_size_in_bytes >> 20}


def logit_positions(shape: Shape, vocab_size: int) -> int:
  """Returns the number of positions of which an array has logits, or 0.

  The vocabulary may be padded, split into blocks, and first or last.
  """
  splits = [(shape[:i], shape[i:]) for i in range(len(shape) + 1)]
  splits += [(right, left) for left, right in splits]
  for positions, tokens in splits:
    if vocab_size <= math.prod(tokens) < vocab_size + PADDING:
      return math.prod(positions)
  return 0


def parse_operations(hlo: str) -> Iterator[Operation]:
  """Yields the operations of a compiled step from its HLO text."""
  fusions = set(re.findall(r" fusion\(.*calls=%?([\w.-]+)", hlo))
  shapes: dict[str, tuple[Shape, ...]] = {}
  fused = False
  for line in hlo.splitlines():
    if computation := _COMPUTATION.match(line):
      shapes, fused = {}, computation[1] in fusions
    elif operation := _OPERATION.match(line):
      name, result, kind, operands = operation.groups()
      dims = [x.split(",") for x in _SHAPE.findall(result)]
      shapes[name] = tuple(tuple(map(int, x)) for x in dims)
      reads: tuple[Shape, ...] = ()
      for operand in re.findall(r"%([\w.-]+)", operands):
        reads += shapes.get(operand, ())
      yield Operation(kind, reads, shapes[name], fused)


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
