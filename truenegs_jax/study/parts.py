"""Runs the parts of a study as processes, and reads their states from disk.

  read_status(part, root).state
  run_part(part, root / part.key, console)

The outputs in a part's folder say that it is done, a lock that it runs. Besides
these, the folder has `log.txt`, `part.json` (command, config, seconds) and, if
the process failed, `failed.json`. The process inherits the lock, which is
released when both it and this process have ended, however they ended.
"""

import contextlib
import dataclasses
import enum
import fcntl
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any

from rich.console import Console

from truenegs_jax.runtime import errors, json_text, signals
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.study import end_with_parent
from truenegs_jax.workdir import files
from truenegs_jax.workdir.lock import is_locked

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
    config: values that must not change once the part has started; {} of a part
      that is not a task of `truenegs_jax.main`.
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


def part_key(arm: str, seed: int, name: str) -> str:
  """Returns the folder of a part, relative to that of the study."""
  return f"runs/{arm}/seed-{seed}/{name}"


def read_status(part: Part, root: pathlib.Path) -> Status:
  """Reads the status of a part from its folder.

  Raises:
    CheckpointError: a file is damaged.
  """
  folder = root / part.key
  secs = read_record(folder).get("secs", 0.0)
  if is_locked(folder / LOCK):
    return Status(State.RUNNING, secs=secs)
  if is_complete(part, folder):
    return Status(State.DONE, secs=secs)
  failed = _read(folder / FAILED)
  if not failed:
    return Status(State.MISSING, secs=secs)
  diverged = failed["code"] == errors.NonFiniteError.exit_code
  state = State.DIVERGED if diverged else State.FAILED
  return Status(state, failed["code"], secs)


def read_failure(folder: pathlib.Path) -> str:
  """Describes a failed part by its exit code and the last line of its log."""
  failed = _read(folder / FAILED)
  return f"exit code {failed['code']}: {(failed['lines'] or [''])[-1]}"


def is_complete(part: Part, folder: pathlib.Path) -> bool:
  """Returns whether all outputs exist."""
  return all((folder / name).exists() for name in part.outputs)


def read_record(folder: pathlib.Path) -> dict[str, Any]:
  """Reads what a part was started with: {} if it has never been started."""
  return _read(folder / RECORD)


def _read(path: pathlib.Path) -> dict[str, Any]:
  if not path.exists():
    return {}
  with json_text.read_file(path, errors.CheckpointError, FIX) as value:
    return value


@contextlib.contextmanager
def _lock(folder: pathlib.Path) -> Iterator[IO[bytes] | None]:
  """Creates and locks a folder; yields None if another process has the lock."""
  with disk_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / LOCK).open("ab")
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      yield None
    else:
      yield file


class _Forwarding:
  """Context that passes SIGTERM and SIGINT on to a process.

  The process saves at the first signal and ends at once at the second, as a run
  that is started by hand. It is not in the terminal's group of processes, where
  Ctrl-C would count twice.
  """

  process: subprocess.Popen | None = None
  received: signal.Signals | None = None

  def __init__(self, console: Console):
    self._console = console

  def __enter__(self) -> "_Forwarding":
    self._previous = {
      number: signal.signal(number, self._forward)
      for number in signals.EXIT_CODES
    }
    return self

  def __exit__(self, *exc: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def _forward(self, number: int, frame: object) -> None:
    del frame
    if self.received is None:
      self.received = signal.Signals(number)
      self._console.print(f"{self.received.name}: {STOPPING}", soft_wrap=True)
    if self.process:
      self.process.send_signal(number)


def run_part(
  part: Part, folder: pathlib.Path, console: Console
) -> tuple[int, bool] | None:
  """Runs a part until its process ends.

  Returns:
    The exit code (0 if all outputs exist), and whether the study has to stop,
    because this process or the part was stopped. None if nothing was run: the
    part is complete, or another process runs it.

  Raises:
    DiskError: a file in the folder cannot be written.
  """
  with _lock(folder) as lock, _Forwarding(console) as forwarding:
    if lock is None or is_complete(part, folder):
      return None
    record = read_record(folder) or {"config": part.config, "secs": 0.0}
    record["command"] = shlex.join(part.command)
    files.save_json(folder / RECORD, record)  # before anything can depend on it
    began = time.monotonic()
    code = _run_process(part, folder / LOG, lock.fileno(), forwarding)
    record["secs"] += time.monotonic() - began
    files.save_json(folder / RECORD, record)
    stopped_by = forwarding.received
    code = 0 if is_complete(part, folder) else code
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
  part: Part, log_path: pathlib.Path, lock: int, forwarding: _Forwarding
) -> int:
  """Returns the exit code of the part's process, as a shell does."""
  # In isolation, which starts in a few milliseconds.
  guard = "-IS", end_with_parent.__file__, str(os.getpid())
  with disk_errors(log_path):
    log = log_path.open("ab")
  with log:
    log.write(f"$ {shlex.join(part.command)}\n".encode())
    log.flush()
    if forwarding.received:
      return SIGNALED + forwarding.received
    process = subprocess.Popen(
      [sys.executable, *guard, *part.command],
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      env={**os.environ, "PYTHONUNBUFFERED": "1"},
      pass_fds=[lock],
      process_group=0,
    )
    forwarding.process = process
    if forwarding.received:  # while the process was being started
      process.send_signal(forwarding.received)
    code = process.wait()
  return SIGNALED - code if code < 0 else code


def _read_last_lines(path: pathlib.Path) -> list[str]:
  """Returns the last lines of a log, without control characters."""
  with path.open("rb") as file:
    file.seek(max(0, path.stat().st_size - 200 * LAST_LINES))
    lines = file.read().decode(errors="replace").splitlines()
  lines = [errors.printable(ValueError(x)) for x in lines if x.strip()]
  return lines[-LAST_LINES:]
