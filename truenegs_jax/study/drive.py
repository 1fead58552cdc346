"""Runs the parts of a study as processes, whose files say what is done.

  code = run_parts(parts, root, console)
  read_states(parts, root)[part.key]

The outputs in a part's folder say that it is done, a lock that it runs. Besides
these, the folder has `log.txt`, `part.json` (command and config) and, if the
process failed, `failed.json`. The process inherits the lock, which is released
when both it and this process have ended, however they ended. In a bucket, the
lock is a lease, and the log is there once the process has ended.
"""

import collections
import contextlib
import dataclasses
import enum
import os
import pathlib
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from truenegs_jax.runtime import errors, progress
from truenegs_jax.runtime import files as runtime_files
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.workdir import files
from truenegs_jax.workdir.lock import TAKEOVER_SECS, BucketLease

LOG, RECORD, FAILED, LOCK = "log.txt", "part.json", "failed.json", "part.lock"
STOPPING = (
  "the part that runs saves and ends; send the signal again to stop without"
  " saving ..."
)
SIGNALED = 128  # added to the number of the signal that killed a process
FIX = "Remove the file and run the same command again."


@dataclasses.dataclass(frozen=True)
class Part:
  """A process of a study: a pre-training, fine-tuning or measurement."""

  arm: str  # the recipe
  seed: int  # of the pre-training
  name: str  # the part's kind and the last name of its folder
  command: tuple[str, ...]  # program and arguments
  outputs: tuple[str, ...]  # files in its folder that exist once it is done
  needs: str = ""  # name of the part of this arm and seed that goes before
  # Values that must not change once the part has started.
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

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


States = Mapping[str, State]  # by key of part


def part_key(arm: str, seed: int, name: str) -> str:
  """Returns the folder of a part, relative to that of the study."""
  return f"runs/{arm}/seed-{seed}/{name}"


def read_states(parts: Sequence[Part], root: pathlib.Path) -> States:
  """Reads the state of each part; CheckpointError if a file is damaged."""
  return {part.key: _read_state(part, root / part.key) for part in parts}


def _read_state(part: Part, folder: pathlib.Path) -> State:
  if any(files.is_running(folder / name) for name in (LOCK, files.LOCK)):
    return State.RUNNING
  if part.is_complete(folder):
    return State.DONE
  failed = read_json(folder / FAILED)
  if not failed:
    return State.MISSING
  diverged = failed["code"] == errors.NonFiniteError.exit_code
  return State.DIVERGED if diverged else State.FAILED


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a file in a part's folder: {} if there is none."""
  if not path.exists():
    return {}
  with runtime_files.read_json(path, errors.CheckpointError, FIX) as value:
    return value


def run_parts(
  parts: Sequence[Part], root: pathlib.Path, console: Console
) -> int:
  """Runs all parts that are not done, one after the other, in their order.

  A part that fails is reported, and those that do not need it go on. Parts that
  another process runs are left to it, with those that need them. Returns 75 or
  130 if this process or a part was stopped; else the exit code of the first
  part that failed and can be repeated, or 0.
  """
  tried: set[str] = set()
  while True:
    part, states = find_next(parts, root, tried)
    if not part:
      failed = (key for key, x in states.items() if x == State.FAILED)
      return next((read_json(root / x / FAILED)["code"] for x in failed), 0)
    tried.add(part.key)
    with progress.working(console, f"{part.key} [{describe_progress(states)}]"):
      code = run_part(part, root / part.key, console)
    if code in errors.SIGNAL_CODES.values():
      return code
    if code:
      console.print(describe_failure(part, root), soft_wrap=True)


def find_next(
  parts: Sequence[Part], root: pathlib.Path, tried: Collection[str] = ()
) -> tuple[Part | None, States]:
  """Returns the next part that can be started, and the states.

  Without such a part, waits for those that run in a bucket for as long as a
  process that was killed seems to run.
  """
  end = time.monotonic() + TAKEOVER_SECS
  while True:
    states = read_states(parts, root)
    part = next_part(parts, states, tried)
    waits = is_bucket(root) and State.RUNNING in states.values()
    if part or not waits or time.monotonic() > end:
      return part, states
    time.sleep(5)


def next_part(
  parts: Sequence[Part], states: States, tried: Collection[str] = ()
) -> Part | None:
  """Returns the first part that can be started and has no key in `tried`."""
  for part in parts:
    state = states[part.key]
    is_open = state in (State.MISSING, State.FAILED) and part.key not in tried
    needed = part_key(part.arm, part.seed, part.needs)
    if is_open and (not part.needs or states[needed] == State.DONE):
      return part
  return None


def run_part(part: Part, folder: pathlib.Path, console: Console) -> int:
  """Runs a part until its process ends, unless another process runs it.

  Returns 75 or 130 if this process or the part was stopped, else the exit code
  of the part, 0 if all outputs exist. DiskError if a file cannot be written.
  """
  with runtime_files.disk_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
  with _lock_part(folder) as locked:
    if locked is None or part.is_complete(folder):
      return 0
    log, inherited = locked
    save_record(part, folder)  # before anything can depend on it
    code, stopped_by = _run_process(part, log, inherited, console)
    if stopped_by:
      return errors.SIGNAL_CODES[stopped_by]
    if not code or part.is_complete(folder):
      if not is_bucket(folder):  # where nothing is deleted
        (folder / FAILED).unlink(missing_ok=True)
      return 0
    if code not in errors.SIGNAL_CODES.values():
      lines = log.read_text(errors="replace").splitlines()
      last = [line for line in lines if line.strip()][-1]
      mark_failed(folder, code, errors.printable(last))
    return code


@contextlib.contextmanager
def _lock_part(folder: pathlib.Path) -> Iterator[Any]:
  """Yields a local log and the locks to inherit; None if another has it."""
  if not is_bucket(folder):
    with runtime_files.lock_file(folder / LOCK) as lock:
      yield (folder / LOG, [lock.fileno()]) if lock else None
    return
  own, uploaded = BucketLease(), folder / LOG
  try:
    own.acquire(folder / LOCK)
  except errors.InputError:
    if not files.is_running(folder / LOCK):
      raise
    yield None
    return
  with contextlib.closing(own), tempfile.TemporaryDirectory() as temporary:
    log = pathlib.Path(temporary, LOG)
    with contextlib.suppress(FileNotFoundError):
      log.write_bytes(uploaded.read_bytes())
    try:
      yield log, []
    finally:
      if log.exists():
        uploaded.write_bytes(log.read_bytes())


def mark_failed(folder: pathlib.Path, code: int, line: str) -> None:
  """Saves the exit code of a part, and a line that says why."""
  files.save_json(folder / FAILED, {"code": code, "line": line})


def save_record(part: Part, folder: pathlib.Path) -> None:
  """Saves the command of a part, and the config with which it first started."""
  with runtime_files.disk_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
  record = read_json(folder / RECORD) or {"config": part.config}
  record["command"] = shlex.join(part.command)
  files.save_json(folder / RECORD, record)


def _run_process(
  part: Part, log_path: pathlib.Path, inherited: list[int], console: Console
) -> tuple[int, signal.Signals | None]:
  """Runs a part, and passes SIGTERM and SIGINT on to it.

  It is not in the terminal's group of processes, or Ctrl-C would count twice.
  Returns its exit code, as of a shell, and the first signal that was received.
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

  previous = {x: signal.signal(x, forward) for x in errors.SIGNAL_CODES}
  try:
    with runtime_files.disk_errors(log_path):
      log = runtime_files.open_append(log_path)
    with log:
      log.write(f"$ {shlex.join(part.command)}\n".encode())
      log.flush()
      process = subprocess.Popen(
        part.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        pass_fds=inherited,
        process_group=0,
      )
      if received:  # while the process was being started
        process.send_signal(received[0])
      code = process.wait()
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)
  return SIGNALED - code if code < 0 else code, next(iter(received), None)


def describe_failure(part: Part, root: pathlib.Path) -> str:
  """Describes why a part failed, and where its log is, if the study has it."""
  folder = root / part.key
  failed, log = read_json(folder / FAILED), folder / LOG
  text = f"warning: '{folder}' failed with exit code {failed['code']}:"
  hint = f" See '{log}'." if log.exists() else ""
  return f"{text} {failed['line']}{hint}"


def describe_progress(states: States) -> str:
  """Describes how many parts are in each state."""
  counts = collections.Counter(states.values())
  listed = ", ".join(f"{counts[x]} {x}" for x in State if counts[x])
  return f"{len(states)} parts: {listed}"
