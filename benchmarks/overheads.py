"""What the corrections add to the training step: the same step, other recipes.

  python benchmarks/overheads.py --config=electra_small --config.batch_size=4
      [--recipes=baseline,hc,sr,hc+sr] [--pairs=400] [--json=FILE]

The steps of all recipes are in one process and train one state in turn, a step
each. An overhead is the median over the rounds of the time beyond that of the
first recipe, with a 95 % bootstrap interval. "again" is the first recipe once
more: what it seems to add is chance, and so may be as much of the others'.

Below stands what the compiler made of each: its operations (kernels, about);
those of them that read or write an array of a row's K slots by V entries or
more, and how many such arrays they read and write; gathers from and scatters
into the table of embeddings; operations on logits at all positions, of which
there should be none; and scratch memory.
"""

import math
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

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
  "recipes",
  ["baseline", "hc", "sr", "hc+sr"],
  "Recipes; the first is the base.",
)
_PAIRS = flags.DEFINE_integer("pairs", 400, "Steps of each recipe.", 2)
_WARMUP = flags.DEFINE_integer("warmup", 5, "Steps of each before them.", 1)
_JSON = flags.DEFINE_string("json", None, "File to add the figures to.")

AGAIN = "again"
# What the compiler lists and no device does.
NO_WORK = frozenset(
  "parameter constant tuple get-tuple-element bitcast while conditional".split()
)
PADDING = 256  # entries that logits may have beyond the vocabulary's, at most
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_OPERATION = re.compile(
  r"\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*?)\)(.*)"
)
_SHAPE = re.compile(r"\[([\d,]+)\]")

Shape = tuple[int, ...]


class Operation(NamedTuple):
  """An operation of a compiled step."""

  kind: str
  reads: tuple[Shape, ...]
  writes: tuple[Shape, ...]
  fused: bool  # part of another one; its arrays are in no memory


def main(argv: list[str]) -> None:
  """Prints overheads and account, or what is wrong with the config."""
  del argv
  try:
    made = {name: make(_CONFIG.value, name) for name in _RECIPES.value}
    record = {"command": " ".join(sys.argv), **timing.machine()}
    record |= {
      "pairs": _PAIRS.value,
      "compiled": {name: account(step) for name, step in made.items()},
      "times": measure(made, _PAIRS.value, _WARMUP.value),
    }
    if _JSON.value:
      timing.append_json(_JSON.value, record)
  except errors.TrueNegsError as e:
    print(f"error: {errors.printable(e)}", file=sys.stderr)
    sys.exit(e.exit_code)
  console = Console(markup=False, highlight=False)
  console.print(f"{record['device']}, {record['pairs']} rounds")
  console.print(times(record["times"]))
  console.print(accounts(record["compiled"]))


def make(c: ConfigDict, recipe: str) -> steps.Step:
  """The step of a config with the corrections of a recipe.

  Raises:
    InputError: there is no such recipe, or the config cannot be.
  """
  if recipe not in common.RECIPES:
    known = ", ".join(common.RECIPES)
    raise errors.InputError(
      f"--recipes: {recipe!r} is unknown; known: {known}."
    )
  changed = c.copy_and_resolve_references()
  changed.negatives.update(common.RECIPES[recipe])
  return steps.make_step(changed)


def measure(
  made: dict[str, steps.Step], pairs: int, warmup: int
) -> dict[str, dict[str, Any]]:
  """Recipe, and AGAIN -> seconds of a step and its overhead over the first."""
  base = next(iter(made))
  runs = steps.takers(made | {AGAIN: made[base]})
  secs = timing.in_turn(runs, pairs, warmup)
  found = {}
  for name, values in secs.items():
    times = timing.ratio(values, secs[base])
    found[name] = {
      "step_s": timing.quantiles(values),
      "overhead": times.median - 1,
      "interval": [times.low - 1, times.high - 1],
      "half_width": times.half_width,
    }
  return found


def account(step: steps.Step) -> dict[str, int | None]:
  """What the compiler made of a step, counted; names as in the table."""
  c, run = step.c, step.run
  vocab = run.options.masking.vocab_size
  slots = masking.num_slots(c.length, c.masking.prob)
  params = plan.abstract_state(run, step.mesh).params
  (word,) = (
    x.shape for x in jax.tree.leaves(params["embeddings"]) if vocab in x.shape
  )
  held = {x.shape for x in jax.tree.leaves((params, step.aux))}
  tables = {rows for shape in held if vocab in shape for rows in shape}
  listed = list(operations(step.compiled.as_text()))
  work = [x for x in listed if not x.fused and x.kind not in NO_WORK]

  def logits(least: int, shapes: tuple[Shape, ...]) -> int:
    """How many are logits of so many positions or more."""
    found = [positions(shape, vocab) for shape in shapes]
    return sum(n >= least and n not in tables for n in found)

  reads = [logits(slots, x.reads) for x in work]
  writes = [logits(slots, x.writes) for x in work]
  shares = step.mesh.shape[sharding.DATA_AXIS] * c.optim.accumulation
  all_of_them = c.batch_size // shares * c.length
  memory = step.compiled.memory_analysis()
  return {
    "ops": len(work),
    "on KxV": sum(r + w > 0 for r, w in zip(reads, writes, strict=True)),
    "read": sum(reads),
    "written": sum(writes),
    "gathers": sum(x.kind == "gather" and x.reads[0] == word for x in listed),
    "scatters": sum(x.kind == "scatter" and word in x.writes for x in listed),
    "on LxV": sum(logits(all_of_them, x.reads + x.writes) > 0 for x in work),
    "MiB": memory and memory.temp_size_in_bytes >> 20,
  }


def positions(shape: Shape, vocab: int) -> int:
  """How many positions an array has logits of; 0: it is something else.

  The vocabulary may be padded and in blocks, and first or last.
  """
  splits = [(shape[:i], shape[i:]) for i in range(len(shape) + 1)]
  for one, other in splits + [split[::-1] for split in splits]:
    if vocab <= math.prod(other) < vocab + PADDING:
      return math.prod(one)
  return 0


def operations(text: str) -> Iterator[Operation]:
  """The operations of a compiled step, from the compiler's own listing."""
  fusions = set(re.findall(r" fusion\(.*calls=%?([\w.-]+)", text))
  shapes: dict[str, tuple[Shape, ...]] = {}
  fused = False
  for line in text.splitlines():
    if head := _COMPUTATION.match(line):
      shapes, fused = {}, head[1] in fusions
    elif found := _OPERATION.match(line):
      name, result, kind, operands, _ = found.groups()
      shapes[name] = tuple(
        tuple(map(int, dims.split(","))) for dims in _SHAPE.findall(result)
      )
      read = re.findall(r"%([\w.-]+)", operands)
      reads = sum((shapes.get(operand, ()) for operand in read), ())
      yield Operation(kind, reads, shapes[name], fused)


def times(found: dict[str, dict[str, Any]]) -> Table:
  """The times of each recipe as a table."""
  made = _table("recipe", "ms", "p10", "p90", "overhead, %", "95 %", "+-")
  for name, x in found.items():
    low, high = x["interval"]
    made.add_row(
      name,
      *(f"{1e3 * x['step_s'][q]:.2f}" for q in ("median", "p10", "p90")),
      f"{100 * x['overhead']:+.2f}",
      f"{100 * low:+.2f} to {100 * high:+.2f}",
      f"{100 * x['half_width']:.2f}",
    )
  return made


def accounts(found: dict[str, dict[str, int | None]]) -> Table:
  """What was compiled for each recipe as a table."""
  made = _table("recipe", *next(iter(found.values())))
  for name, counts in found.items():
    made.add_row(
      name, *(f"{x:,}" if x is not None else "" for x in counts.values())
    )
  return made


def _table(*columns: str) -> Table:
  made = Table(box=None, pad_edge=False)
  for i, column in enumerate(columns):
    made.add_column(column, justify="right" if i else "left", no_wrap=True)
  return made


if __name__ == "__main__":
  flags_lib.run(main)
