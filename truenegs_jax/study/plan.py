"""Plans a study: the arms of its config, its parts in order, and the next one.

It imports no jax, so that --next of main is fast.
"""

import functools
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from truenegs_jax.config import grammar
from truenegs_jax.config.flags import parse_config, parse_job
from truenegs_jax.config.tables import Study
from truenegs_jax.runtime.errors import BusyError, CheckpointError, InputError
from truenegs_jax.runtime.files import atomic_file, disk_errors
from truenegs_jax.runtime.paths import join_inside
from truenegs_jax.study import drive
from truenegs_jax.study.drive import Part, State, States, part_key
from truenegs_jax.study.scores import Comparison
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
MAIN = (sys.executable, "-m", "truenegs_jax.main")
SEED = "{seed}"  # in values of arms and overrides: the seed
# Keys that would make a part end without its outputs.
RESERVED = ("task", "dry_run", "finetune.tasks")
# Names of inputs: a run may find them elsewhere, but all runs of a study must
# have the same.
INPUTS = (
  *("init", "init_skip", "data.vocab", "data.language"),
  *("negatives.sources", "negatives.stop_words"),
  *("finetune.data", "finetune.train", "finetune.dev", "finetune.test"),
)
Changes = dict[str, str]  # values of config keys


class Arm(NamedTuple):
  """A recipe: words after the base config's name, and values of its keys."""

  name: str
  words: str
  changes: Changes


def make_plan(s: Study, root: pathlib.Path) -> Comparison:
  """Plans a study whose folder is `root`; InputError for a wrong value.

  Seed by seed, all arms are pre-trained, and then each task is run for all
  arms, so that the first comparisons are complete early.
  """
  tasks = grammar.parse_names(s.tasks, key="study.tasks", choices=TASKS)
  arms = _parse_arms(s.arms)
  for arm in arms:  # of a saved config, perhaps a stranger's
    join_inside(root, part_key(arm.name, 0, PRETRAIN))
  parts = []
  for seed in range(s.seeds):
    by_arm = [_make_chain(s, arm, tasks, seed, root) for arm in arms]
    parts += [part for row in zip(*by_arm, strict=True) for part in row]
  return Comparison(
    scores=(),
    arms=[arm.name for arm in arms],
    seeds=range(s.seeds),
    tasks=[TASKS[name][1] for name in tasks],
    finetune_seeds=range(s.finetune_seeds),
    parts=parts,
  )


def _parse_arms(text: str) -> Sequence[Arm]:
  arms = dict[str, Arm]()  # by lower case, which some disks ignore
  for part in filter(None, grammar.split(text, ";", key="study.arms")):
    item = grammar.parse_item(part, key="study.arms")
    if item.name or not item.options:
      raise InputError(
        f"study.arms: {item.name!r} is not of the form NAME=WORDS. Set"
        " --config.study.arms='NAME=WORDS; NAME=WORDS KEY=VALUE', such as"
        " 'hc=hc; more=hc masking.prob=0.25'."
      )
    (name, words), *changes = item.options.items()
    if name.lower() in arms:
      raise InputError(
        f"study.arms={text!r} has {name!r} twice. Choose different names."
      )
    arms[name.lower()] = Arm(name, words, dict(changes))
  if not arms:
    raise InputError(
      "study.arms has no arm. Set --config.study.arms='NAME=WORDS; NAME=WORDS'."
    )
  return [*arms.values()]


def _parse_changes(name: str, text: str) -> Changes:
  item = grammar.parse_item(text, key=f"study.{name}")
  if item.name:
    raise InputError(
      f"study.{name}: {item.name!r} is not of the form KEY=VALUE, such as"
      " steps=1000. Put values with spaces in quotes."
    )
  return item.options


def _make_chain(
  s: Study, arm: Arm, tasks: Sequence[str], seed: int, root: pathlib.Path
) -> Iterator[Part]:
  """Yields one pre-training and the parts that need it: as many for each."""

  def folder(name: str) -> str:
    return str(root / part_key(arm.name, seed, name))

  make = functools.partial(_make_part, arm=arm.name, seed=seed, root=root)
  base, _, words = s.base.partition(":")
  words = ",".join(filter(None, [words, arm.words]))
  config = f"{base}:{words}" if words else base
  changes = {**_parse_changes("overrides", s.overrides), **arm.changes}
  yield make(PRETRAIN, config, changes, {"seed": seed}, needs="")
  changes, count = _parse_changes("finetune", s.finetune), s.finetune_seeds
  for name in tasks:
    config, task = TASKS[name]
    outputs = [f"{task}/seed-{n}/result.json" for n in range(count)]
    links = {"init": folder(PRETRAIN), "seed": 0, "finetune.seeds": count}
    yield make(name, config, changes, links, outputs=outputs)
  if changes := _parse_changes(CORRECTIONS, s.corrections):
    links = {"corrections.run": folder(PRETRAIN)}
    yield make(CORRECTIONS, CORRECTIONS, changes, links)
  if changes := _parse_changes(ROBUSTNESS, s.robustness):
    name = _find_robustness_task(changes, tasks)
    links = {"init": folder(name)}
    yield make(ROBUSTNESS, ROBUSTNESS, changes, links, needs=name)


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
  """Makes a part with the user's `changes` and the study's `links` of keys."""
  origin = "study.finetune" if name in TASKS else f"study.{name}"
  if name == PRETRAIN:
    origin = f"study.arms, {arm!r} with study.base and study.overrides"
  for key in changes:
    if key in links or key in RESERVED:
      raise InputError(
        f"{origin}: {key} cannot be set, because the study sets it for each of"
        " its parts. Remove it."
      )
  flags = f"--config={config}", *_format_flags(changes)
  return Part(
    arm=arm,
    seed=seed,
    name=name,
    command=(
      *MAIN,
      *(x.replace(SEED, str(seed)) for x in flags),
      *_format_flags(links),
      f"--workdir={root / part_key(arm, seed, name)}",
    ),
    outputs=tuple(outputs),
    needs=needs,
    config=_build_config(origin, name, flags),
  )


def _format_flags(values: Mapping[str, Any]) -> Iterator[str]:
  return (f"--config.{key}={value}" for key, value in values.items())


def _find_robustness_task(changes: Changes, tasks: Sequence[str]) -> str:
  """Returns the name in `study.tasks` whose fine-tuned models are scored."""
  name = changes.get("robustness.task", tasks[0] if len(tasks) == 1 else SQUAD1)
  name = {task: x for x, (_, task) in TASKS.items()}.get(name, name)
  if name not in tasks:
    raise InputError(
      f"study.robustness scores models that were fine-tuned on {name}, which is"
      f" not in study.tasks={','.join(tasks)!r}. Add it there, or set"
      " robustness.task=TASK in study.robustness."
    )
  return name


@functools.cache
def _build_config(
  origin: str, name: str, flags: tuple[str, ...]
) -> Mapping[str, Any]:
  """Returns the checked config of flags, in JSON's types."""
  try:
    c = parse_config(flags)
    if c.task != ("finetune" if name in TASKS else name):
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


def select_shard(parts: Sequence[Part], shard: str) -> list[Part]:
  """Returns the parts of job "i/n"; those of one pre-training stay together."""
  index, count = parse_job("--config.study.shard", shard)
  chains = list(dict.fromkeys((part.arm, part.seed) for part in parts))
  own = set(chains[index::count])
  return [part for part in parts if (part.arm, part.seed) in own]


def check_unchanged(parts: Sequence[Part], root: pathlib.Path) -> None:
  """Raises CheckpointError if a part was started with another config."""
  for part in parts:
    record = drive.read_json(root / part.key / drive.RECORD)
    saved, now = record.get("config", part.config), part.config
    fixed = files.find_fixed_changes(saved, now)
    inputs = INPUTS if now["task"] in ("pretrain", "finetune") else ()
    changes = files.find_changes(saved, now)
    if changes := [x for x in changes if x in fixed or x.key in inputs]:
      listed = "\n  ".join(map(str, changes))
      raise CheckpointError(
        f"'{root / part.key}' was started with another config. Differences"
        f" (saved -> now):\n  {listed}\nAll parts of a study have the same"
        " values. Restore them, give the arm another name, or pass another"
        " --workdir."
      )


def open_study(
  s: Study, root: pathlib.Path
) -> tuple[Comparison, Sequence[Part], States]:
  """Plans a study; returns it, this job's parts and the states of all parts."""
  if (root / files.CHECKPOINTS).exists():
    raise InputError(
      f"--workdir='{root}' is the workdir of a run. Choose another, such as"
      " --workdir=runs/study."
    )
  files.check_checkpoint_folder(root / files.CHECKPOINTS)
  study = make_plan(s, root)
  own = select_shard(study.parts, s.shard)
  states = drive.read_states(study.parts, root)
  check_unchanged(study.parts, root)
  return study, own, states


def save_config(config: Mapping[str, Any], root: pathlib.Path) -> dict:
  """Saves and returns the config of a study, the same for all of its jobs."""
  shared = {**config, "study": {**config["study"], "shard": "0/1"}}
  with disk_errors(root):
    root.mkdir(parents=True, exist_ok=True)
  with atomic_file(root / files.CONFIG, several_writers=True) as file:
    file.write(f"{json.dumps(shared, indent=2)}\n".encode())
  return shared


def find_next_flags(
  config: Mapping[str, Any], root: pathlib.Path, own_flags: Sequence[str]
) -> Sequence[str]:
  """Returns flags of main for the next missing part, which a launcher runs.

  A part that was stopped or failed is returned again, and resumes. When all
  have ended, these are `own_flags` of the study, which makes its tables, and
  after that none. Configs are saved, so that later calls with others are
  refused. BusyError if all that is missing runs, or needs what runs.
  """
  _, own, _ = open_study(Study.read(config["study"]), root)
  config = save_config(config, root)
  part, states = drive.find_next(own, root)
  if part:
    drive.save_record(part, root / part.key)
    return part.command[len(MAIN) :]
  if running := [x.key for x in own if states[x.key] == State.RUNNING]:
    raise BusyError(
      f"All missing parts run, or need one that runs: {', '.join(running)}."
      " Run the same command again when they have ended."
    )
  saved = drive.read_json(root / files.RESULTS)
  shown = saved.get("parts", {})
  is_current = all(shown.get(x.key) == states[x.key] for x in own)
  return [] if is_current and saved["config"] == config else own_flags
