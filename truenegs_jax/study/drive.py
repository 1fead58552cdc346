"""Runs the parts of a study as processes, whose files say what is done.

  code = run_parts(parts, root, console)
  read_statuses(parts, root)[part.key].state

The outputs in a part's folder say that it is done, a lock that it runs. Besides
these, the folder has `log.txt`, `part.json` (command, config, seconds) and, if
the process failed, `failed.json`. The process inherits the lock, which is
released when both it and this process have ended, however they ended.
"""

import collections
import dataclasses
import datetime
import enum
import os
import pathlib
import shlex
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Any

from rich.console import Console

from truenegs_jax.runtime import errors, json_text, progress, signals
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.runtime.locks import is_locked, lock_file
from truenegs_jax.workdir import files

LOG, RECORD, FAILED, LOCK = "log.txt", "part.json", "failed.json", "part.lock"
LAST_LINES = 20  # of the log, in FAILED
STOPPING = (
  "the part that runs saves and ends; send the signal again to stop without"
  " saving ..."
)
SIGNALED = 128  # added to the number of the signal that killed a process
FIX = "Remove the file and run the same command again."


@dataclasses.dataclass(frozen=True)
class Part:
  """A process of a study: a pre-training, fine-tuning or measurement.

  Attributes:
    arm, seed: the recipe, and the seed of the pre-training.
    name: the part's kind and the last name of its folder.
    command: program and arguments.
    outputs: files in the part's folder that exist once it is done.
    needs: name of the part of the same arm and seed that must be done before.
    config: values that must not change once the part has started.
  """

  arm: str
  seed: int
  name: str
  command: tuple[str, ...]
  outputs: tuple[str, ...]
  needs: str = ""
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def key(self) -> str:
    """Folder of the part, relative to that of the study."""
    return part_key(self.arm, self.seed, self.name)

  @property
  def needs_key(self) -> str:
    """Folder of the part that must be done before, or ""."""
    return part_key(self.arm, self.seed, self.needs) if self.needs else ""

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


@dataclasses.dataclass(frozen=True)
class Status:
  """A part's state, the exit code if it failed, and the seconds it has run."""

  state: State
  code: int = 0
  secs: float = 0.0


Statuses = Mapping[str, Status]  # by key of part


def part_key(arm: str, seed: int, name: str) -> str:
  """Returns the folder of a part, relative to that of the study."""
  return f"runs/{arm}/seed-{seed}/{name}"


def read_statuses(parts: Sequence[Part], root: pathlib.Path) -> Statuses:
  """Reads the status of each part from its folder.

  Raises:
    CheckpointError: a file is damaged.
  """
  return {part.key: _read_status(part, root / part.key) for part in parts}


def _read_status(part: Part, folder: pathlib.Path) -> Status:
  secs = read_record(folder).get("secs", 0.0)
  if is_locked(folder / LOCK):
    return Status(State.RUNNING, secs=secs)
  if part.is_complete(folder):
    return Status(State.DONE, secs=secs)
  failed = _read(folder / FAILED)
  if not failed:
    return Status(State.MISSING, secs=secs)
  diverged = failed["code"] == errors.NonFiniteError.exit_code
  state = State.DIVERGED if diverged else State.FAILED
  return Status(state, failed["code"], secs)


def read_record(folder: pathlib.Path) -> dict[str, Any]:
  """Reads what a part was started with: {} if it has never been started."""
  return _read(folder / RECORD)


def _read(path: pathlib.Path) -> dict[str, Any]:
  if not path.exists():
    return {}
  with json_text.read_file(path, errors.CheckpointError, FIX) as value:
    return value


def run_parts(
  parts: Sequence[Part], root: pathlib.Path, console: Console
) -> int:
  """Runs all parts that are not done, one after the other, in their order.

  A part that fails is reported, and those that do not need it go on. Parts that
  another process runs are left to it, with those that need them.

  Returns:
    75 or 130 if this process or a part was stopped; else the exit code of the
    first part that failed and can be repeated, or 0.
  """
  tried: set[str] = set()
  while True:
    statuses = read_statuses(parts, root)
    part = next_part(parts, statuses, tried)
    if not part:
      codes = (x.code for x in statuses.values() if x.state == State.FAILED)
      return next(codes, 0)
    tried.add(part.key)
    progressed = describe_progress(parts, statuses)
    with progress.working(console, f"{part.key} [{progressed}]"):
      code, is_stopped = run_part(part, root / part.key, console)
    if is_stopped:
      return code
    if code:
      console.print(describe_failure(part, root), soft_wrap=True)


def next_part(
  parts: Sequence[Part], statuses: Statuses, tried: Collection[str] = ()
) -> Part | None:
  """Returns the first part that can be started, in the order of `parts`.

  Args:
    tried: keys of parts that this process has started before.
  """
  for part in parts:
    state = statuses[part.key].state
    is_open = state in (State.MISSING, State.FAILED) and part.key not in tried
    needed = statuses.get(part.needs_key)
    if is_open and (needed is None or needed.state == State.DONE):
      return part
  return None


def run_part(
  part: Part, folder: pathlib.Path, console: Console
) -> tuple[int, bool]:
  """Runs a part until its process ends, unless another process runs it.

  Returns:
    The exit code (0 if all outputs exist), and whether the study has to stop,
    because this process or the part was stopped.

  Raises:
    DiskError: a file in the folder cannot be written.
  """
  with disk_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
  with lock_file(folder / LOCK) as lock:
    if lock is None or part.is_complete(folder):
      return 0, False
    record = read_record(folder) or {"config": part.config, "secs": 0.0}
    record["command"] = shlex.join(part.command)
    files.save_json(folder / RECORD, record)  # before anything can depend on it
    began = time.monotonic()
    code, stopped_by = _run_process(part, folder / LOG, lock, console)
    record["secs"] += time.monotonic() - began
    files.save_json(folder / RECORD, record)
    code = 0 if part.is_complete(folder) else code
    if stopped_by:
      return signals.EXIT_CODES[stopped_by], True
    if code in signals.EXIT_CODES.values():
      return code, True
    if code:
      lines = _read_last_lines(folder / LOG)
      files.save_json(folder / FAILED, {"code": code, "lines": lines})
    else:
      (folder / FAILED).unlink(missing_ok=True)
    return code, False


def _run_process(
  part: Part, log_path: pathlib.Path, lock: IO[bytes], console: Console
) -> tuple[int, signal.Signals | None]:
  """Runs a part, and passes SIGTERM and SIGINT on to it.

  The process saves at the first signal and ends at once at the second, as a run
  that is started by hand. It is not in the terminal's group of processes, where
  Ctrl-C would count twice.

  Returns:
    Its exit code, as of a shell, and the first signal that was received.
  """
  received = list[signal.Signals]()
  process: subprocess.Popen | None = None

  def forward(number: int, frame: object) -> None:
    del frame
    if not received:
      console.print(f"{signal.Signals(number).name}: {STOPPING}")
    received.append(signal.Signals(number))
    if process:
      process.send_signal(number)

  previous = {x: signal.signal(x, forward) for x in signals.EXIT_CODES}
  try:
    with disk_errors(log_path):
      log = log_path.open("ab")
    with log:
      log.write(f"$ {shlex.join(part.command)}\n".encode())
      log.flush()
      process = subprocess.Popen(
        part.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        pass_fds=[lock.fileno()],
        process_group=0,
      )
      if received:  # while the process was being started
        process.send_signal(received[0])
      code = process.wait()
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)
  return SIGNALED - code if code < 0 else code, next(iter(received), None)


def _read_last_lines(path: pathlib.Path) -> list[str]:
  """Returns the last lines of a log, without control characters."""
  with path.open("rb") as file:
    file.seek(max(0, path.stat().st_size - 200 * LAST_LINES))
    lines = file.read().decode(errors="replace").splitlines()
  lines = [errors.printable(ValueError(x)) for x in lines if x.strip()]
  return lines[-LAST_LINES:]


def describe_failure(part: Part, root: pathlib.Path) -> str:
  """Describes why a part failed, and where its log is."""
  folder = root / part.key
  failed = _read(folder / FAILED)
  return (
    f"warning: '{folder}' failed with exit code {failed['code']}:"
    f" {(failed['lines'] or [''])[-1]} See '{folder / LOG}'."
  )


def estimate_secs(
  parts: Sequence[Part], statuses: Statuses
) -> tuple[float, int]:
  """Estimates how long the unfinished parts take, one after the other.

  A part takes the mean of the finished parts with its name, less the seconds
  that it has already run.

  Returns:
    Seconds, and the number of parts for which no such part is finished.
  """
  measured = collections.defaultdict[str, list[float]](list)
  for part in parts:
    if statuses[part.key].state == State.DONE:
      measured[part.name].append(statuses[part.key].secs)
  secs, unknown = 0.0, 0
  for part in parts:
    status, known = statuses[part.key], measured[part.name]
    if status.state in (State.DONE, State.DIVERGED):
      continue
    if known:
      secs += max(0.0, sum(known) / len(known) - status.secs)
    else:
      unknown += 1
  return secs, unknown


def describe_progress(parts: Sequence[Part], statuses: Statuses) -> str:
  """Describes how many parts are in each state, and the time left."""
  counts = collections.Counter(statuses[part.key].state for part in parts)
  listed = ", ".join(f"{counts[x]} {x}" for x in State if counts[x])
  secs, unknown = estimate_secs(parts, statuses)
  text = f"{len(parts)} parts: {listed}"
  if secs:
    text += f"; about {datetime.timedelta(seconds=round(secs))} left"
  if unknown:
    text += f"; {unknown} not yet measured"
  return text
