"""Runs the parts of a study in order, and estimates how long they take.

code = run_parts(parts, folder, console)
"""

import collections
import datetime
import pathlib
import time
from collections.abc import Collection, Mapping, Sequence

from rich.console import Console

from truenegs_jax.runtime import progress
from truenegs_jax.study import parts as parts_lib
from truenegs_jax.study.parts import Part, State, Status

POLL_SECS = 1.0  # while another process runs the only parts that are left
Statuses = Mapping[str, Status]  # by key of part


def run_parts(
  parts: Sequence[Part], root: pathlib.Path, console: Console
) -> int:
  """Runs all parts that are not done, one after the other, in their order.

  A part that fails is reported, and those that do not need it go on. Parts that
  another process runs are waited for once nothing else can be started.

  Returns:
    75 or 130 if this process or a part was stopped; else the exit code of the
    first part that failed and can be repeated, or 0.
  """
  failed: set[str] = set()
  waiting = ""
  while True:
    statuses = read_statuses(parts, root)
    running = [key for key, x in statuses.items() if x.state == State.RUNNING]
    if part := next_part(parts, statuses, failed):
      progressed = describe_progress(parts, statuses)
      with progress.working(console, f"{part.key} [{progressed}]"):
        ended = parts_lib.run_part(part, root / part.key, console)
      code, is_stopped = ended or (0, False)
      if is_stopped:
        return code
      if code:
        failed.add(part.key)
        console.print(describe_failure(part, root), soft_wrap=True)
    elif running:
      if waiting != running[0]:
        waiting = running[0]
        text = f"Waiting for '{root / waiting}', which another process runs."
        console.print(text, soft_wrap=True)
      time.sleep(POLL_SECS)
    else:
      codes = (x.code for x in statuses.values() if x.state == State.FAILED)
      return next(codes, 0)


def read_statuses(parts: Sequence[Part], root: pathlib.Path) -> Statuses:
  """Reads the status of each part; raises CheckpointError as `read_status`."""
  return {part.key: parts_lib.read_status(part, root) for part in parts}


def next_part(
  parts: Sequence[Part], statuses: Statuses, failed: Collection[str]
) -> Part | None:
  """Returns the first part that can be started, in the order of `parts`.

  Args:
    failed: keys of parts that failed in this process; they are not repeated.
  """
  for part in parts:
    state = statuses[part.key].state
    is_open = state in (State.MISSING, State.FAILED) and part.key not in failed
    needed = statuses.get(part.needs_key)
    if is_open and (needed is None or needed.state == State.DONE):
      return part
  return None


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


def describe_failure(part: Part, root: pathlib.Path) -> str:
  """Describes why a part failed, and where its log is."""
  folder = root / part.key
  return (
    f"warning: '{folder}' failed with {parts_lib.read_failure(folder)} See"
    f" '{folder / parts_lib.LOG}'."
  )
