"""What a fine-tuning has to do: its tasks, and the seeds that are missing."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.finetune import gather, origin, recipe, results
from truenegs_jax.finetune import tuning as tuning_lib


@dataclasses.dataclass(frozen=True)
class Plan:
  """A task and the seeds that are missing.

  Attributes:
    made: as of `results.Result`.
  """

  tuning: tuning_lib.Tuning
  made: Mapping[str, Any]
  missing: Sequence[int]


def prepare(
  c: ConfigDict,
  workdir: pathlib.Path,
  seeds: Sequence[int],
  console: Console,
  check: Callable[[], Any],
) -> tuple[origin.Origin, list[Plan]]:
  """Opens the weights, reads all tasks, and sees that they are as before.

  All of it: what is bad is said before hours of work.

  Raises:
    InputError, DataError: weights, files or values that cannot be used.
    CheckpointError: the runs that are there are of other weights or data.
  """
  say = functools.partial(console.print, soft_wrap=True)
  of = origin.open_origin(c, say=say)
  plans, known = [], results.ended(workdir)
  for name in recipe.task_names(c):
    check()
    with console.status(f"reading {name} ..."):
      data = gather.gather(of.c, name, of.tokenizer)
      made = origin.made_of(of, data)
    made[results.CONFIG] = json.loads(c.to_json())
    results.check_alike(known, name, made)
    tuning = tuning_lib.make_tuning(of.c, of.model(data.num_outputs), data)
    missing = results.missing(workdir, name, seeds)
    plans.append(Plan(tuning, made, missing))
  return of, plans
