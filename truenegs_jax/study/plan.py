"""Plans a study: the arms of its config, and its parts in their order.

parts = make_parts(StudyOptions.from_config(c), workdir)
"""

import dataclasses
import functools
import json
import pathlib
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from ml_collections import ConfigDict

from truenegs_jax.configs.common_keys import rules
from truenegs_jax.runtime.config_files import flatten
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.runtime.flags import parse_config
from truenegs_jax.study.drive import Part, part_key, read_record
from truenegs_jax.tasks import glue, squad, user_task
from truenegs_jax.train import check_values
from truenegs_jax.workdir import files

PRETRAIN, CORRECTIONS, ROBUSTNESS = "pretrain", "corrections", "robustness"
SQUAD1 = "squad1"  # SQuAD v1.1 in `study.tasks`
# Arguments of --config, and task of the config, by name in `study.tasks`.
TASKS = {
  **{name: (f"finetune_glue:{name}", name) for name in glue.TASKS},
  SQUAD1: ("finetune_squad", squad.TASK.name),
  user_task.NAME: ("finetune_own", user_task.NAME),
}
SEED = "{seed}"  # in values of arms and overrides: the seed
# Keys that a study sets itself, or that would make its parts differ.
RESERVED = {
  "pretrain": ("task", "seed", "minutes", "dry_run"),
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


@dataclasses.dataclass(frozen=True)
class Arm:
  """A recipe: words after the base config's name, and KEY=VALUE of its keys."""

  name: str
  words: tuple[str, ...]
  changes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class StudyOptions:
  """The section `study` of a config, parsed.

  `finetune`, `corrections` and `robustness` are KEY=VALUE; None: not run.
  """

  base: str
  overrides: tuple[str, ...]
  arms: tuple[Arm, ...]
  seeds: int
  tasks: tuple[str, ...]
  finetune: tuple[str, ...]
  finetune_seeds: int
  corrections: tuple[str, ...] | None
  robustness: tuple[str, ...] | None

  @classmethod
  def from_config(cls, c: ConfigDict) -> Self:
    """Parses a config whose numbers are in range.

    Raises:
      InputError: a value is not of its form, or a task is unknown.
    """
    s = c.study

    def parse(name: str, task: str) -> tuple[str, ...]:
      return _check_changes(f"study.{name}", _split(name, s[name]), task)

    return cls(
      base=s.base,
      overrides=parse("overrides", "pretrain"),
      arms=_parse_arms(s.arms),
      seeds=s.seeds,
      tasks=_parse_tasks(s.tasks),
      finetune=parse("finetune", "finetune"),
      finetune_seeds=s.finetune_seeds,
      corrections=parse(CORRECTIONS, CORRECTIONS) if s.corrections else None,
      robustness=parse(ROBUSTNESS, ROBUSTNESS) if s.robustness else None,
    )


def _split(name: str, text: str) -> list[str]:
  """Splits words as a shell does; quotes keep spaces."""
  try:
    return shlex.split(text)
  except ValueError as e:
    raise InputError(
      f"study.{name}={text!r} has a quote without its partner."
    ) from e


def _check_changes(
  name: str, changes: Sequence[str], task: str
) -> tuple[str, ...]:
  for change in changes:
    key, equals, _ = change.partition("=")
    if not equals or not re.fullmatch(r"[a-z]\w*(\.\w+)*", key):
      raise InputError(
        f"{name}: {change!r} is not of the form KEY=VALUE, such as"
        " masking.prob=0.25. Put values with spaces in quotes."
      )
    if key in RESERVED[task]:
      raise InputError(
        f"{name}: {key} cannot be set, because the study sets it for each of"
        " its parts. Remove it."
      )
  return tuple(changes)


def _parse_arms(text: str) -> tuple[Arm, ...]:
  arms = []
  for entry in _split("arms", text):
    name, equals, recipe = entry.partition("=")
    if not equals or not re.fullmatch(r"\w[\w.+-]*", name):
      raise InputError(
        f"study.arms: {entry!r} is not of the form NAME=WORDS, such as hc=hc or"
        " more=hc,masking.prob=0.25."
      )
    items = [item for item in recipe.split(",") if item]
    changes = [item for item in items if "=" in item]
    words = tuple(item for item in items if "=" not in item)
    checked = _check_changes(f"study.arms: {name}", changes, "pretrain")
    arms.append(Arm(name, words, checked))
  names = [arm.name.lower() for arm in arms]  # some disks ignore the case
  repeated = [arm.name for arm in arms if names.count(arm.name.lower()) > 1]
  if repeated or not arms:
    problem = f"has {repeated[0]!r} twice" if repeated else "has no arm"
    raise InputError(
      f"study.arms={text!r} {problem}. Set --config.study.arms='NAME=WORDS"
      " NAME=WORDS', with different names."
    )
  return tuple(arms)


def _parse_tasks(text: str) -> tuple[str, ...]:
  names = tuple(dict.fromkeys(text.replace(",", " ").split()))
  if unknown := [name for name in names if name not in TASKS]:
    raise InputError(
      f"study.tasks: {unknown[0]!r} is unknown. Choose any of"
      f" {', '.join(TASKS)}."
    )
  return names


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
  words = ",".join([*filter(None, [words]), *arm.words])
  config = f"{base}:{words}" if words else base
  changes = options.overrides + arm.changes
  yield make(PRETRAIN, config, changes, [f"seed={seed}"], needs="")
  init, count = f"init={folder(PRETRAIN)}", options.finetune_seeds
  for name in options.tasks:
    config, task = TASKS[name]
    outputs = [f"{task}/seed-{n}/result.json" for n in range(count)]
    links = [init, "seed=0", f"finetune.seeds={count}"]
    yield make(name, config, options.finetune, links, outputs=outputs)
  if options.corrections is not None:
    links = [f"corrections.run={folder(PRETRAIN)}"]
    yield make(CORRECTIONS, CORRECTIONS, options.corrections, links)
  if options.robustness is not None:
    name = robustness_task(options)
    links = [f"init={folder(name)}"]
    yield make(ROBUSTNESS, ROBUSTNESS, options.robustness, links, needs=name)


def _make_part(
  name: str,
  config: str,
  changes: Sequence[str],
  links: Sequence[str],
  *,
  arm: str,
  seed: int,
  root: pathlib.Path,
  outputs: Sequence[str] = (files.RESULTS,),
  needs: str = PRETRAIN,
) -> Part:
  """Makes a part that is a task of `truenegs_jax.main`.

  Args:
    changes: KEY=VALUE that the user chose.
    links: KEY=VALUE that differ from seed to seed.
  """
  flags = (f"--config={config}", *(f"--config.{x}" for x in changes))
  return Part(
    arm=arm,
    seed=seed,
    name=name,
    command=(
      *(sys.executable, "-m", "truenegs_jax.main"),
      *(x.replace(SEED, str(seed)) for x in flags),
      *(f"--config.{x}" for x in links),
      f"--workdir={root / part_key(arm, seed, name)}",
    ),
    outputs=tuple(outputs),
    needs=needs,
    config=_build_config(arm, name, flags),
  )


def robustness_task(options: StudyOptions) -> str:
  """Returns the name in `study.tasks` whose fine-tuned models are changed.

  Raises:
    InputError: it is not among the tasks of the study.
  """
  named = [
    x.partition("=")[2]
    for x in options.robustness or ()
    if x.startswith("robustness.task=")
  ]
  default = options.tasks[0] if len(options.tasks) == 1 else SQUAD1
  names = {task: name for name, (_, task) in TASKS.items()}
  name = names.get(named[-1], named[-1]) if named else default
  if name not in options.tasks:
    raise InputError(
      f"study.robustness scores models that were fine-tuned on {name}, which is"
      f" not in study.tasks={' '.join(options.tasks)!r}. Add it there, or set"
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
    check_values.check_values(flatten(c.to_dict()), rules(task))
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
  record = read_record(root / part.key)
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
