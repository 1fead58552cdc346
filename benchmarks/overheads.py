"""Measures how much time the corrections add to the training step.

  python benchmarks/overheads.py --config=electra_small --config.batch_size=4
      [--recipes=baseline,hc,sr,hc+sr] [--pairs=400]

All recipes train one state in turns, one step each, because separate states
would have different places in memory. An overhead is the median over the rounds
of the time relative to the first recipe, minus 1, with a 95 % bootstrap
interval. "again" is the first recipe a second time: its overhead is chance, and
the others' may be as wrong.
"""

import steps
from absl import flags
from ml_collections import ConfigDict

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.configs import common
from truenegs_jax.runtime.errors import one_of

_CONFIG = flags_lib.define_config()
_RECIPES = flags.DEFINE_list(
  "recipes", ["baseline", "hc", "sr", "hc+sr"], "Compared with the first one."
)
_PAIRS = flags.DEFINE_integer("pairs", 400, "Steps of each recipe.", 2)
_WARMUP = flags.DEFINE_integer("warmup", 5, "Steps that do not count.", 1)

AGAIN = "again"


def main(argv: list[str]) -> None:
  """Prints a row of a Markdown table for each recipe."""
  del argv
  first = _RECIPES.value[0]
  by_recipe = {
    recipe: steps.make_step(with_recipe(_CONFIG.value, recipe))
    for recipe in _RECIPES.value
  }
  calls = steps.make_step_calls({**by_recipe, AGAIN: by_recipe[first]})
  secs = steps.time_in_turns(calls, _PAIRS.value, _WARMUP.value)
  print(f"{steps.describe_machine()}, {_PAIRS.value} rounds\n")
  print("| recipe | ms | p10 | p90 | overhead, % | 95 % |")
  print("| --- | --- | --- | --- | --- | --- |")
  for name, values in secs.items():
    low, median, high = steps.quantiles_ms(values)
    ratio = steps.paired_ratio(values, secs[first])
    overhead, *interval = (
      f"{100 * (x - 1):+.2f}" for x in (ratio.median, ratio.low, ratio.high)
    )
    print(
      f"| {name} | {median:.2f} | {low:.2f} | {high:.2f} | {overhead} |"
      f" {' to '.join(interval)} |"
    )


def with_recipe(c: ConfigDict, recipe: str) -> ConfigDict:
  """Returns a config with a recipe's corrections; InputError if unknown."""
  one_of("--recipes", recipe, common.RECIPES)
  changed = c.copy_and_resolve_references()
  changed.negatives.update(common.RECIPES[recipe])
  return changed


if __name__ == "__main__":
  flags_lib.run(main)
