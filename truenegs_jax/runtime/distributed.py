"""The processes of one run: joining, agreeing, failing and ending together.

Each process is started with --coordinator, --num_processes and --process_id, or
by a launcher that jax knows (Slurm, Open MPI, Cloud TPU, GKE). `initialize`
connects them through `jax.distributed`; after that

  with raise_everywhere("rows"):  # an error in one process is one in all
    rows = open_rows(folder)

In a run of one process all functions here do the obvious and cost nothing.

Three things have no public way in jax and are in this file alone. `_client` is
the client of jax's coordinator: it passes messages without touching a device,
and waits for as long as it is told, where `multihost_utils` needs a device that
works and gives up after minutes. `_detected` asks the launcher before joining:
`initialize` alone would fail on a laptop and could not say who it is. Both do
without where jax hides them. `os._exit` ends a process whose partners are gone:
the interpreter's own end waits for them, and jax then aborts with another exit
code than the one that a launcher should see.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
from jax.experimental import multihost_utils

from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import InputError

SHUTDOWN_SECS = 20  # from one process's end until the others are ended, too
ALIKE_SECS = 10  # within which processes meet an error that they all meet
PATIENCE_SECS = 24 * 3600  # the first one exports, the others wait for it

FLAGS = "--coordinator=HOST:PORT --num_processes=N --process_id=I"
JOIN_SECS = "TRUENEGS_JOIN_SECS"  # environment: how long to wait for all
HEARTBEAT_SECS = "TRUENEGS_HEARTBEAT_SECS"  # silent for so long: dead
DEFAULTS = {JOIN_SECS: 300, HEARTBEAT_SECS: 100}


def process_count() -> int:
  """How many processes the run has."""
  return jax.process_count() if jax.distributed.is_initialized() else 1


def is_first_process() -> bool:
  """Whether this process writes the run's files and speaks for it."""
  return process_count() == 1 or jax.process_index() == 0


def to_host(tree: Any) -> Any:
  """Every array of a tree as numpy, whole, in every process.

  In a run of many all must call it, with the same tree; keys are not taken.
  """

  def fetch(x):
    if isinstance(x, jax.Array) and not (
      x.is_fully_addressable or x.is_fully_replicated
    ):
      return multihost_utils.process_allgather(x, tiled=True)
    return jax.device_get(x)

  return jax.tree.map(fetch, tree)


@contextlib.contextmanager
def raise_everywhere(name: str) -> Iterator[None]:
  """Raises in all processes what the body raised in any of them.

  All wait for one another at the end of the body, and then raise the same: the
  error of the process with the lowest number that has one. So it is printed
  once.

  Args:
    name: of this meeting; each is held once in a run.

  Raises:
    TrueNegsError: as described.
  """
  own: errors.TrueNegsError | None = None
  try:
    yield
  except errors.TrueNegsError as e:
    own = e
  packed = "" if own is None else _pack(own)
  texts = _exchange(f"together/{name}", packed)
  failed = sorted(index for index, text in texts.items() if text)
  if failed:
    kind, message = json.loads(texts[failed[0]])
    who = f"process {failed[0]} of {process_count()}: " if failed[0] else ""
    raise getattr(errors, kind)(who + message)
  if own is not None:
    raise own


def check_same(what: str, value: str) -> None:
  """Refuses processes that do not all give the same value.

  Raises:
    InputError: in all of them; long values are not shown.
  """
  values = _exchange(f"alike/{what.replace(' ', '_')}", value)
  first = values.get(0, value)
  others = {i: text for i, text in values.items() if text != first}
  if others:
    shown = [f"process {i} has {text}" for i, text in others.items()]
    if max(map(len, shown)) > 80:
      shown = [f"process {i}" for i in others]
    raise InputError(
      f"the processes do not agree on {what}: other than process 0's"
      f"{f' ({first})' if len(first) < 80 else ''}: {', '.join(shown)}."
    )


def print_once(message: str) -> None:
  """Prints to stderr, once where several processes say the same."""
  client = _client()
  if client is None:
    print(message, file=sys.stderr)
    return
  digest = hashlib.sha256(message.encode()).hexdigest()
  key = f"truenegs/told/{digest}"
  try:
    if is_first_process():
      client.key_value_set(key, "", allow_overwrite=True)
    else:
      client.blocking_key_value_get(key, ALIKE_SECS * 1000)
      return
  except Exception:  # it did not, or is gone
    message = f"process {jax.process_index()} of {process_count()}: {message}"
  print(message, file=sys.stderr)


def exit_all(exit_code: int, *, failed: bool) -> NoReturn:
  """Ends the process; one of many ends with the others.

  Those that are at work are ended by jax, with a code that is not 0, within
  about half a minute of the one that failed.

  Args:
    exit_code: of this process.
    failed: do not wait until the others have got here, too.
  """
  if not jax.distributed.is_initialized():
    sys.exit(exit_code)
  # Once all is saved, one more signal must not take the exit code away.
  saved = exit_code in (errors.SAVED_RESTART, errors.SAVED_INTERRUPT)
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN if saved else signal.SIG_DFL)
  sys.stdout.flush()
  sys.stderr.flush()
  client = _client()
  if client is not None:
    secs = ALIKE_SECS if failed else PATIENCE_SECS
    with contextlib.suppress(Exception):
      client.wait_at_barrier("truenegs/end", secs * 1000)
  # The others may never come, and then jax aborts with a code of its own.
  ending = threading.Thread(target=_shut_down, daemon=True)
  ending.start()
  ending.join(SHUTDOWN_SECS - 2)
  os._exit(exit_code)


def _client() -> Any:
  """The client of jax's coordinator; None in one process, or if jax hides it.

  It reaches the others without a device, and waits as long as it is told.
  """
  if not jax.distributed.is_initialized():
    return None
  try:
    from jax._src import distributed as private

    return private.global_state.client
  except (ImportError, AttributeError):
    return None


def _exchange(name: str, text: str) -> dict[int, str]:
  """The text of every process, by its number; empty where there is but one."""
  client = _client()
  if client is None:
    return {}
  folder = f"truenegs/{name}"
  client.key_value_set(f"{folder}/{jax.process_index()}", text or " ")
  client.wait_at_barrier(folder, PATIENCE_SECS * 1000)
  return {
    int(key.rsplit("/", 1)[1]): value.strip()
    for key, value in client.key_value_dir_get(folder)
  }


def _pack(error: errors.TrueNegsError) -> str:
  return json.dumps([type(error).__name__, errors.printable(error)])


def _shut_down() -> None:
  with contextlib.suppress(Exception):
    jax.distributed.shutdown()


@dataclasses.dataclass(frozen=True)
class ProcessInfo:
  """A process's place in a run of `count`."""

  coordinator: str  # HOST:PORT, where process 0 listens
  count: int
  index: int
  local_devices: tuple[int, ...] | None = None  # None: all of the machine

  def __str__(self) -> str:
    return f"process {self.index} of {self.count}"


def initialize(
  coordinator: str | None,
  num_processes: int | None,
  process_id: int | None,
  say: Callable[[str], Any],
) -> None:
  """Joins the processes of a run; does nothing where there is only one.

  Must run before anything touches a device.

  Args:
    coordinator, num_processes, process_id: the flags, all three or none. With
      none, jax finds them on Cloud TPU, GKE, Slurm and Open MPI.
    say: takes the lines before and after, in every process.

  Raises:
    InputError: flags that cannot be, or processes that do not agree on how
      many they are. Where they do not find one another within
      TRUENEGS_JOIN_SECS, jax aborts the process: exit code 134.
  """
  waits = {name: _secs(name) for name in DEFAULTS}
  place = _given(coordinator, num_processes, process_id)
  if place is None:
    place = _detected(waits[JOIN_SECS])
  if place is None or place.count == 1:
    return
  say(
    f"joining as {place}, coordinator {place.coordinator}, waiting at most"
    f" {waits[JOIN_SECS]} s ({JOIN_SECS}). If jax ends this process with a"
    " trace, the coordinator cannot be reached, or a process is missing, or two"
    " have the same process_id, or another num_processes: start all"
    f" {place.count} within that time"
  )
  try:
    jax.distributed.initialize(
      place.coordinator,
      place.count,
      place.index,
      local_device_ids=place.local_devices,
      initialization_timeout=waits[JOIN_SECS],
      heartbeat_timeout_seconds=waits[HEARTBEAT_SECS],
      shutdown_timeout_seconds=SHUTDOWN_SECS,
    )
  except Exception as e:  # RuntimeError, ValueError, ...: the port is taken
    say(f"error: could not join as {place}: {str(e).partition(chr(10))[0]}")
    os._exit(InputError.exit_code)  # else what has begun would wait, and abort
  check_same("num_processes", str(place.count))
  say(
    f"joined: {place}, {jax.local_device_count()} local of"
    f" {jax.device_count()} devices"
  )


def _secs(name: str) -> int:
  text = os.environ.get(name) or str(DEFAULTS[name])
  if not re.fullmatch(r"[1-9]\d{0,6}", text):
    raise InputError(f"{name}={text!r}: give whole seconds, 1 or more.")
  return int(text)


def _given(
  coordinator: str | None, num_processes: int | None, process_id: int | None
) -> ProcessInfo | None:
  """The place that the flags name; InputError when they cannot be."""
  flags = (coordinator, num_processes, process_id)
  if flags == (None, None, None):
    return None
  if coordinator is None or num_processes is None or process_id is None:
    shown = ", ".join(map(str, flags))
    raise InputError(f"give all of {FLAGS}, or none; there are: {shown}.")
  port = re.fullmatch(r"\S+:(\d{1,5})", coordinator)
  if not port or not 0 < int(port[1]) < 2**16:
    raise InputError(
      f"--coordinator={coordinator}: give HOST:PORT, a port that is free on"
      " the machine of process 0."
    )
  if not 0 <= process_id < num_processes:
    raise InputError(
      f"--num_processes={num_processes} --process_id={process_id}: processes"
      " are numbered from 0 to one less than there are."
    )
  return ProcessInfo(coordinator, num_processes, process_id)


def _detected(join_secs: int) -> ProcessInfo | None:
  """The place that jax finds in the environment; None on a laptop.

  There is no public way to ask before joining: where jax hides it, the flags
  are needed.
  """
  try:
    from jax._src import clusters

    detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
  except (ImportError, AttributeError):
    return None
  given = os.environ.get("JAX_COORDINATOR_ADDRESS")
  try:
    address, number, index, devices = detect(
      given, None, None, None, None, join_secs
    )
  except Exception as e:  # each cluster has its own
    raise InputError(
      "this machine is one of a cluster, but jax cannot find its place in it:"
      f" {e}. Give {FLAGS}."
    ) from e
  if not number or not address or index is None:
    return None
  return ProcessInfo(
    address, number, index, tuple(devices) if devices else None
  )
