"""Plans a study: the arms of its config, and its parts in their order.

parts = make_parts(StudyOptions.parse(read(Study, c.study)), workdir)
"""

import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from truenegs_jax.config import grammar
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.task_sections import Study
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.study.drive import RECORD, Part, part_key, read_json
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks.task import OWN, SQUAD
from truenegs_jax.workdir import files

PRETRAIN, CORRECTIONS, ROBUSTNESS = "pretrain", "corrections", "robustness"
SQUAD1 = "squad1"  # SQuAD v1.1 in `study.tasks`
# Arguments of --config, and task of the config, by name in `study.tasks`.
TASKS = {
  **{x: (f"finetune_glue:{x}", x) for x in task_lib.TASKS if x != SQUAD},
  SQUAD1: ("finetune_squad", SQUAD),
  OWN: ("finetune_own", OWN),
}
SEED = "{seed}"  # in values of arms and overrides: the seed
# Keys that a study sets itself, or that would make its parts differ.
RESERVED = {
  "pretrain": ("task", "seed", "dry_run"),
  "finetune": (
    *("task", "seed", "init", "dry_run"),
    *("finetune.tasks", "finetune.seeds", "finetune.against"),
  ),
  "corrections": ("task", "init", "dry_run", "corrections.run"),
  "robustness": ("task", "init", "dry_run", "robustness.against"),
}

# Names of inputs: a run may find them elsewhere, but all runs of a study must
# have the same.
INPUTS = (
  *("init", "init_skip", "data.vocab", "data.language"),
  *("negatives.sources", "negatives.stop_words"),
  *("finetune.data", "finetune.files"),
)
Changes = Mapping[str, str]  # values of config keys


@dataclasses.dataclass(frozen=True)
class Arm:
  """A recipe: words after the base config's name, and values of its keys."""

  name: str
  words: str
  changes: Changes


@dataclasses.dataclass(frozen=True)
class StudyOptions:
  """The section `study` of a config, parsed.

  `corrections` and `robustness` are None if they are not measured.
  """

  base: str
  overrides: Changes
  arms: tuple[Arm, ...]
  seeds: int
  tasks: tuple[str, ...]
  finetune: Changes
  finetune_seeds: int
  corrections: Changes | None
  robustness: Changes | None

  @classmethod
  def parse(cls, s: Study) -> Self:
    """Parses a section whose numbers are in range.

    Raises:
      InputError: a value is not of its form, or a task is unknown.
    """
    tasks = grammar.parse_names(s.tasks, key="study.tasks")
    if unknown := [name for name in tasks if name not in TASKS]:
      raise InputError(
        f"study.tasks: {unknown[0]!r} is unknown. Choose any of"
        f" {', '.join(TASKS)}, divided by commas."
      )
    return cls(
      base=s.base,
      overrides=_parse_changes("overrides", s.overrides, PRETRAIN),
      arms=_parse_arms(s.arms),
      seeds=s.seeds,
      tasks=tasks,
      finetune=_parse_changes("finetune", s.finetune, "finetune"),
      finetune_seeds=s.finetune_seeds,
      corrections=_parse_changes(CORRECTIONS, s.corrections, CORRECTIONS)
      or None,
      robustness=_parse_changes(ROBUSTNESS, s.robustness, ROBUSTNESS) or None,
    )


def _parse_changes(name: str, text: str, task: str) -> Changes:
  item = grammar.parse_item(text, key=f"study.{name}")
  if item.name:
    raise InputError(
      f"study.{name}: {item.name!r} is not of the form KEY=VALUE, such as"
      " steps=1000. Put values with spaces in quotes."
    )
  _check_reserved(f"study.{name}", item.options, task)
  return item.options


def _check_reserved(name: str, changes: Changes, task: str) -> None:
  for key in changes:
    if key in RESERVED[task]:
      raise InputError(
        f"{name}: {key} cannot be set, because the study sets it for each of"
        " its parts. Remove it."
      )


def _parse_arms(text: str) -> tuple[Arm, ...]:
  arms = dict[str, Arm]()  # by lower case, which some disks ignore
  for item in grammar.parse_items(text, ";", key="study.arms"):
    if item.name or not item.options:
      raise InputError(
        f"study.arms: {item.name!r} is not of the form NAME=WORDS. Set"
        " --config.study.arms='NAME=WORDS; NAME=WORDS KEY=VALUE', such as"
        " 'hc=hc; more=hc masking.prob=0.25'."
      )
    (name, words), *changes = item.options.items()
    _check_reserved(f"study.arms: {name}", dict(changes), PRETRAIN)
    if name.lower() in arms:
      raise InputError(
        f"study.arms={text!r} has {name!r} twice. Choose different names."
      )
    arms[name.lower()] = Arm(name, words, dict(changes))
  if not arms:
    raise InputError(
      "study.arms has no arm. Set --config.study.arms='NAME=WORDS; NAME=WORDS'."
    )
  return tuple(arms.values())


def make_parts(options: StudyOptions, root: pathlib.Path) -> list[Part]:
  """Lists the parts of a study in the order in which they run.

  Seed by seed, all arms are pre-trained, and then each task is run for all
  arms, so that the first comparisons are complete early.

  Raises:
    InputError: a config of a part cannot be built.
  """
  parts = []
  for seed in range(options.seeds):
    by_arm = [_arm_parts(options, arm, seed, root) for arm in options.arms]
    parts += [part for row in zip(*by_arm, strict=True) for part in row]
  return parts


def select_shard(parts: Sequence[Part], job: tuple[int, int]) -> list[Part]:
  """Returns the parts of job (i, n); those of one pre-training stay together.

  Over all i, each part is in exactly one job.
  """
  index, count = job
  chains = list(dict.fromkeys((part.arm, part.seed) for part in parts))
  own = set(chains[index::count])
  return [part for part in parts if (part.arm, part.seed) in own]


def _arm_parts(
  options: StudyOptions, arm: Arm, seed: int, root: pathlib.Path
) -> Iterator[Part]:
  """Yields the parts of one pre-training, as many for each arm and seed."""

  def folder(name: str) -> str:
    return str(root / part_key(arm.name, seed, name))

  make = functools.partial(_make_part, arm=arm.name, seed=seed, root=root)
  base, _, words = options.base.partition(":")
  words = ",".join(filter(None, [words, arm.words]))
  config = f"{base}:{words}" if words else base
  changes = {**options.overrides, **arm.changes}
  yield make(PRETRAIN, config, changes, {"seed": seed}, needs="")
  count = options.finetune_seeds
  for name in options.tasks:
    config, task = TASKS[name]
    outputs = [f"{task}/seed-{n}/result.json" for n in range(count)]
    links = {"init": folder(PRETRAIN), "seed": 0, "finetune.seeds": count}
    yield make(name, config, options.finetune, links, outputs=outputs)
  if options.corrections is not None:
    links = {"corrections.run": folder(PRETRAIN)}
    yield make(CORRECTIONS, CORRECTIONS, options.corrections, links)
  if options.robustness is not None:
    name = robustness_task(options)
    links = {"init": folder(name)}
    yield make(ROBUSTNESS, ROBUSTNESS, options.robustness, links, needs=name)


def _make_part(
  name: str,
  config: str,
  changes: Changes,
  links: Mapping[str, Any],
  *,
  arm: str,
  seed: int,
  root: pathlib.Path,
  outputs: Sequence[str] = (files.RESULTS,),
  needs: str = PRETRAIN,
) -> Part:
  """Makes a part that is a task of `truenegs_jax.main`.

  Args:
    changes: values of config keys that the user chose.
    links: values of config keys that differ from seed to seed.
  """
  flags = f"--config={config}", *_format_flags(changes)
  return Part(
    arm=arm,
    seed=seed,
    name=name,
    command=(
      *(sys.executable, "-m", "truenegs_jax.main"),
      *(x.replace(SEED, str(seed)) for x in flags),
      *_format_flags(links),
      f"--workdir={root / part_key(arm, seed, name)}",
    ),
    outputs=tuple(outputs),
    needs=needs,
    config=_build_config(arm, name, flags),
  )


def _format_flags(values: Mapping[str, Any]) -> Iterator[str]:
  return (f"--config.{key}={value}" for key, value in values.items())


def robustness_task(options: StudyOptions) -> str:
  """Returns the name in `study.tasks` whose fine-tuned models are changed.

  Raises:
    InputError: it is not among the tasks of the study.
  """
  default = options.tasks[0] if len(options.tasks) == 1 else SQUAD1
  name = (options.robustness or {}).get("robustness.task", default)
  name = {task: x for x, (_, task) in TASKS.items()}.get(name, name)
  if name not in options.tasks:
    raise InputError(
      f"study.robustness scores models that were fine-tuned on {name}, which is"
      f" not in study.tasks={','.join(options.tasks)!r}. Add it there, or set"
      " robustness.task=TASK in study.robustness."
    )
  return name


@functools.cache
def _build_config(
  arm: str, name: str, flags: tuple[str, ...]
) -> Mapping[str, Any]:
  """Returns the checked config of flags, in JSON's types."""
  task = name if name in (PRETRAIN, CORRECTIONS, ROBUSTNESS) else "finetune"
  origin = f"study.{task}"
  if name == PRETRAIN:
    origin = f"study.arms, {arm!r} with study.base and study.overrides"
  try:
    c = parse_config(flags)
    if c.task != task:
      raise InputError(
        f"study.base has task={c.task!r}. Set --config.study.base to a config"
        " of pre-training, such as electra_small."
      )
    if c.get("minutes"):
      raise InputError(
        f"minutes={c.minutes:g} gives each arm another number of steps. Set"
        " steps=NUMBER instead."
      )
  except InputError as e:
    raise InputError(f"{origin}: {e}") from e
  return json.loads(c.to_json())


def check_unchanged(parts: Sequence[Part], root: pathlib.Path) -> None:
  """Refuses to mix parts of different configs.

  Raises:
    CheckpointError: a part was started with another config; lists differences.
  """
  for part in parts:
    if changes := _find_changes(part, root):
      listed = "\n  ".join(map(str, changes))
      raise CheckpointError(
        f"'{root / part.key}' was started with another config. Differences"
        f" (saved -> now):\n  {listed}\nAll parts of a study have the same"
        " values. Restore them, give the arm another name, or pass another"
        " --workdir."
      )


def _find_changes(part: Part, root: pathlib.Path) -> list[files.Change]:
  """Lists how a part's config differs from that with which it was started."""
  record = read_json(root / part.key / RECORD)
  if not record:
    return []
  saved, now = record["config"], part.config
  fixed = files.find_fixed_changes(saved, now)
  inputs = INPUTS if now["task"] in ("pretrain", "finetune") else ()
  return [
    change
    for change in files.find_changes(saved, now)
    if change in fixed or change.key in inputs
  ]
