"""The parts of a study: processes of `truenegs_jax.main`, each with a folder.

The folder of a part, runs/ARM/seed-S/PART, is the workdir of an ordinary run.
The part is done if it has its outputs, runs if it is locked, and has failed if
it has `failed.json`: the exit code and the last line of `log.txt`.
"""

import collections
import dataclasses
import enum
import functools
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from truenegs_jax.config import grammar
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.keys import flatten
from truenegs_jax.config.tables import Study
from truenegs_jax.runtime import errors, progress
from truenegs_jax.runtime import files as runtime_files
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks.task import OWN, SQUAD
from truenegs_jax.workdir import files

PRETRAIN = "pretrain"
CORRECTIONS = "corrections"
ROBUSTNESS = "robustness"
SQUAD1 = "squad1"  # SQuAD v1.1 in `study.tasks`
# Arguments of --config, and task of the config, by name in `study.tasks`.
TASKS = {
  **{x: (f"finetune_glue:{x}", x) for x in task_lib.TASKS if x != SQUAD},
  SQUAD1: ("finetune_squad", SQUAD),
  OWN: ("finetune_own", OWN),
}
MAIN = (sys.executable, "-m", "truenegs_jax.main")
SEED = "{seed}"  # in values of arms and overrides: the seed
ARM = re.compile(r"\w[\w.+-]*", re.ASCII)  # also the name of a folder
WORDS = "words"  # of an arm: those that follow the name of the base config
# Keys that would make a part end without its outputs.
RESERVED = ("task", "dry_run", "finetune.tasks")
LOG = "log.txt"
FIX = "Remove the file and run the same command again."
# Values that are the same for all parts of a study.
FIXED = ("base", "overrides", "finetune", "corrections", "robustness")


@dataclasses.dataclass(frozen=True)
class Part:
  """A process of a study: a pre-training, fine-tuning or measurement."""

  arm: str  # the recipe
  seed: int  # of the pre-training
  name: str  # the part's kind and the last name of its folder
  command: tuple[str, ...]  # MAIN and its flags
  outputs: tuple[str, ...]  # files in its folder that exist once it is done
  needs: str = ""  # key of the part that goes before

  @property
  def key(self) -> str:
    """Folder of the part, relative to that of the study."""
    return part_key(self.arm, self.seed, self.name)

  def is_complete(self, folder: pathlib.Path) -> bool:
    """Returns whether all outputs exist."""
    return all((folder / name).exists() for name in self.outputs)


class State(enum.StrEnum):
  """State of a part. `DIVERGED` (exit code 6) is final: it is not repeated."""

  DONE = enum.auto()
  RUNNING = enum.auto()  # in this or in another process
  FAILED = enum.auto()
  DIVERGED = enum.auto()
  MISSING = enum.auto()  # not started, or stopped


OPEN = (State.MISSING, State.FAILED)  # to be started
States = Mapping[str, State]  # by key of part


def part_key(arm: str, seed: int, name: str) -> str:
  """Returns the folder of a part, relative to that of the study."""
  return f"runs/{arm}/seed-{seed}/{name}"


def make_parts(s: Study, root: pathlib.Path) -> list[Part]:
  """Makes the parts of a study whose folder is `root`, in their order.

  Seed by seed, all arms are pre-trained, and then each task is run for all
  arms, so that the first comparisons are complete early. InputError: a wrong
  value.
  """
  tasks = grammar.parse_names(s.tasks, key="study.tasks", choices=TASKS)
  if s.robustness and SQUAD1 not in tasks:
    raise InputError(
      f"study.robustness scores models that were fine-tuned on {SQUAD1}, which"
      f" is not in study.tasks={s.tasks!r}. Add it there, or remove the values"
      " of study.robustness."
    )
  _check_arms(s.arms)
  parts = []
  for seed in range(s.seeds):
    chains = [_make_chain(s, arm, tasks, seed, root) for arm in s.arms]
    parts += [part for row in zip(*chains, strict=True) for part in row]
  return parts


def _check_arms(arms: Mapping[str, Any]) -> None:
  """Raises InputError without arms that are dicts with names of folders."""
  lower = collections.Counter(map(str.lower, arms))  # equal on some disks
  wrong = [
    name
    for name, arm in arms.items()
    if not isinstance(arm, Mapping)
    or not ARM.fullmatch(name)
    or lower[name.lower()] > 1
  ]
  if wrong or not arms:
    raise InputError(
      f"study.arms={arms!r}: {', '.join(wrong) or 'there is no arm'}. An arm is"
      ' a dict of keys, such as {"words": "hc", "masking.prob": 0.25}, with a'
      " name for its folder, of letters, digits, +, -, _ and dots."
    )


def _make_chain(
  s: Study, arm: str, tasks: Sequence[str], seed: int, root: pathlib.Path
) -> Iterator[Part]:
  """Yields one pre-training and the parts that need it: as many for each."""
  make = functools.partial(_make_part, arm=arm, seed=seed, root=root)
  base, _, words = s.base.partition(":")
  recipe = dict(s.arms[arm])
  words = ",".join(filter(None, [words, recipe.pop(WORDS, "")]))
  config = f"{base}:{words}" if words else base
  changes = {**flatten(s.overrides), **flatten(recipe)}
  yield make(PRETRAIN, config, changes, {"seed": seed})
  key = part_key(arm, seed, PRETRAIN)
  make = functools.partial(make, needs=key)
  pretrained = str(root / key)
  links = {"init": pretrained, "seed": 0, "finetune.seeds": s.finetune_seeds}
  for name in tasks:
    config, task = TASKS[name]
    seeds = range(s.finetune_seeds)
    outputs = [f"{task}/seed-{n}/{files.RESULT}" for n in seeds]
    yield make(name, config, flatten(s.finetune), links, outputs=outputs)
  if changes := flatten(s.corrections):
    links = {"corrections.run": pretrained}
    yield make(CORRECTIONS, CORRECTIONS, changes, links)
  if changes := flatten(s.robustness):
    key = part_key(arm, seed, SQUAD1)
    links = {"init": str(root / key)}
    yield make(ROBUSTNESS, ROBUSTNESS, changes, links, needs=key)


def _make_part(
  name: str,
  config: str,
  changes: Mapping[str, Any],
  links: Mapping[str, Any],
  *,
  arm: str,
  seed: int,
  root: pathlib.Path,
  outputs: Sequence[str] = (files.RESULTS,),
  needs: str = "",
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
  flags = (f"--config={config}", *_format_flags(changes))
  _check_config(origin, "finetune" if name in TASKS else name, flags)
  command = [*MAIN, *(x.replace(SEED, str(seed)) for x in flags)]
  command += [*_format_flags(links)]
  command.append(f"--workdir={root / part_key(arm, seed, name)}")
  return Part(arm, seed, name, tuple(command), tuple(outputs), needs)


def _format_flags(values: Mapping[str, Any]) -> Iterator[str]:
  for key, value in values.items():
    if isinstance(value, list):  # as a saved config has tuples
      value = tuple(value)
    yield f"--config.{key}={value}"


@functools.cache  # as all seeds have the same flags
def _check_config(origin: str, task: str, flags: tuple[str, ...]) -> None:
  """Raises InputError if the flags of a part are no config of its task."""
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
        " steps instead."
      )
  except InputError as e:
    raise InputError(f"{origin}: {e}") from e


def check_unchanged(s: Study, root: pathlib.Path) -> dict[str, Any]:
  """Raises CheckpointError if a study began with other values than these.

  Arms, seeds and tasks may be added or left out; an arm keeps its keys. Returns
  the arms that the folder has so far.
  """
  path = root / files.CONFIG
  if not path.exists():
    return {}
  with runtime_files.read_json(path, CheckpointError, FIX) as saved:
    before = Study.read(saved["study"])
  old, new = (
    {name: getattr(x, name) for name in FIXED}
    | {"arms": {arm: x.arms[arm] for arm in before.arms if arm in s.arms}}
    for x in (before, s)
  )
  if changes := files.find_changes(old, new):
    listed = "; ".join(f"study.{change}" for change in changes)
    raise CheckpointError(
      f"The study in '{root}' began with other values than it has now:"
      f" {listed}. All parts of a study have the same values. Restore them,"
      " give an arm another name, or pass another --workdir."
    )
  return before.arms


def read_failure(folder: pathlib.Path) -> dict[str, Any]:
  """Reads why a part failed, as `code` and `line`; {} if it did not."""
  path = folder / files.FAILED
  if not path.exists():
    return {}
  with runtime_files.read_json(path, CheckpointError, FIX) as saved:
    return {"code": int(saved["code"]), "line": str(saved["line"])}


def read_states(parts: Sequence[Part], root: pathlib.Path) -> dict[str, State]:
  """Reads the state of each part; CheckpointError if a file is damaged."""
  return {part.key: _read_state(part, root / part.key) for part in parts}


def _read_state(part: Part, folder: pathlib.Path) -> State:
  if files.is_running(folder / files.LOCK):
    return State.RUNNING
  if part.is_complete(folder):
    return State.DONE
  failure = read_failure(folder)
  if not failure:
    return State.MISSING
  is_final = failure["code"] == errors.NonFiniteError.exit_code
  return State.DIVERGED if is_final else State.FAILED


def run_parts(
  parts: Sequence[Part], root: pathlib.Path, console: Console
) -> int:
  """Runs all parts that are not done, one after the other, in their order.

  A part that fails is reported, and those that do not need it go on. Parts that
  another process runs are left to it, with those that need them. Returns 75 or
  130 if this process or a part was stopped; else the exit code of the first
  part that failed and can be repeated, or 0.
  """
  tried = set[str]()
  while True:
    states = read_states(parts, root)
    ready = [
      x
      for x in parts
      if x.key not in tried and states[x.key] in OPEN
      if not x.needs or states.get(x.needs) == State.DONE
    ]
    if not ready:
      failed = (key for key, x in states.items() if x == State.FAILED)
      return next((read_failure(root / key)["code"] for key in failed), 0)
    part = ready[0]
    tried.add(part.key)
    with progress.working(console, f"{part.key} [{describe_progress(states)}]"):
      code = _run_part(part, root / part.key, console)
    if code in errors.SIGNAL_CODES.values():
      return code
    if read_failure(root / part.key):
      console.print(describe_failure(part, root), soft_wrap=True)


def _run_part(part: Part, folder: pathlib.Path, console: Console) -> int:
  """Runs a part; writes failed.json if it ends with an error.

  Returns its exit code, or that of the first signal to this process. There is
  no failure if a part was stopped, has its outputs, or another process runs it.
  A log in a bucket is written at the end.
  """
  with runtime_files.disk_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
  (folder / files.FAILED).unlink(missing_ok=True)
  with tempfile.TemporaryDirectory() as temporary:
    log = folder / LOG
    if is_bucket(folder):
      log = pathlib.Path(temporary, LOG)
    code = _run_process(part, log, console)
    lines = log.read_text(errors="replace").splitlines()
    if is_bucket(folder):
      (folder / LOG).write_bytes(log.read_bytes())
  is_stopped = code in errors.SIGNAL_CODES.values()
  is_running = files.is_running(folder / files.LOCK)  # it refused this process
  if code and not (is_stopped or is_running or part.is_complete(folder)):
    last = [line for line in lines if line.strip()][-1]
    failure = {"code": code, "line": errors.printable(last)}
    files.save_json(folder / files.FAILED, failure)
  return code


def _run_process(part: Part, log_path: pathlib.Path, console: Console) -> int:
  """Runs a part, and passes SIGTERM and SIGINT on to it.

  It is not in the terminal's group of processes, or Ctrl-C would count twice.
  Returns its exit code, as of a shell, or that of the first signal received.
  """
  received = list[signal.Signals]()
  process: subprocess.Popen | None = None

  def forward(number: int, frame: object) -> None:
    del frame
    if not received:
      console.print(
        f"{signal.Signals(number).name}: the part that runs saves and ends;"
        " send the signal again to stop without saving ..."
      )
    received.append(signal.Signals(number))
    if process:
      process.send_signal(number)

  with runtime_files.disk_errors(log_path):
    log = runtime_files.open_append(log_path)
  previous = {x: signal.signal(x, forward) for x in errors.SIGNAL_CODES}
  try:
    with log:
      log.write(f"$ {shlex.join(part.command)}\n".encode())
      process = subprocess.Popen(
        part.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        process_group=0,
      )
      if received:  # while the process was being started
        process.send_signal(received[0])
      code = process.wait()
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)
  if received:
    return errors.SIGNAL_CODES[received[0]]
  return code if code >= 0 else 128 - code


def describe_failure(part: Part, root: pathlib.Path) -> str:
  """Describes why a part failed, and where its log is."""
  folder = root / part.key
  failure = read_failure(folder)
  return (
    f"warning: '{folder}' failed with exit code {failure['code']}:"
    f" {failure['line']} See '{folder / LOG}'."
  )


def describe_progress(states: States) -> str:
  """Describes how many parts are in each state."""
  counts = collections.Counter(states.values())
  listed = ", ".join(f"{counts[x]} {x}" for x in State if counts[x])
  return f"{len(states)} parts: {listed}"
