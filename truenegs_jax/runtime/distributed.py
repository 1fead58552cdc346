"""How the processes of a run find one another, and say so.

`jax.distributed` does it. What jax does not offer in public is in `_detected`
and `_with_callback`, and both can do without.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jax
from jax.experimental import multihost_utils

from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import InputError

SHUTDOWN_SECS = 20  # from one process's end until the others are ended, too
ALIKE_SECS = 10  # within which processes meet an error that they all meet
PATIENCE_SECS = 24 * 3600  # the first one exports, the others wait for it


def count() -> int:
  """How many processes the run has."""
  return jax.process_count() if jax.distributed.is_initialized() else 1


def is_first() -> bool:
  """Whether this process writes the run's files and speaks for it."""
  return count() == 1 or jax.process_index() == 0


def to_host(tree: Any) -> Any:
  """Every array of a tree as numpy, whole, in every process.

  In a run of many all must call it, with the same tree; keys are not taken.
  """

  def whole(x):
    if isinstance(x, jax.Array) and not (
      x.is_fully_addressable or x.is_fully_replicated
    ):
      return multihost_utils.process_allgather(x, tiled=True)
    return jax.device_get(x)

  return jax.tree.map(whole, tree)


@contextlib.contextmanager
def together(name: str) -> Iterator[None]:
  """What fails inside in one process raises in all, once all are through.

  All raise the same, so that it can be told once: the first process's error, or
  that of the lowest number that has one.

  Args:
    name: of the meeting; each is held once in a run.

  Raises:
    TrueNegsError: as described.
  """
  mine: errors.TrueNegsError | None = None
  try:
    yield
  except errors.TrueNegsError as e:
    mine = e
  found = _exchange(f"together/{name}", _packed(mine))
  failed = sorted(index for index, packed in found.items() if packed)
  if failed:
    kind, message = json.loads(found[failed[0]])
    who = f"process {failed[0]} of {count()}: " if failed[0] else ""
    raise getattr(errors, kind)(who + message)
  if mine is not None:
    raise mine


def check_alike(what: str, value: str) -> None:
  """Refuses processes that do not all give the same value.

  Raises:
    InputError: in all of them; long values are not shown.
  """
  values = _exchange(f"alike/{what.replace(' ', '_')}", value)
  mine = values.get(0, value)
  others = {i: text for i, text in values.items() if text != mine}
  if others:
    shown = [f"process {i} has {text}" for i, text in others.items()]
    if max(map(len, shown)) > 80:
      shown = [f"process {i}" for i in others]
    raise errors.InputError(
      f"the processes do not agree on {what}: other than process 0's"
      f"{f' ({mine})' if len(mine) < 80 else ''}: {', '.join(shown)}."
    )


def tell(message: str) -> None:
  """Prints to stderr, once where several processes say the same."""
  client = _client()
  if client is None:
    print(message, file=sys.stderr)
    return
  digest = hashlib.sha256(message.encode()).hexdigest()
  key = f"truenegs/told/{digest}"
  try:
    if is_first():
      client.key_value_set(key, "", allow_overwrite=True)
    else:
      client.blocking_key_value_get(key, ALIKE_SECS * 1000)
      return
  except Exception:  # it did not, or is gone
    message = f"process {jax.process_index()} of {count()}: {message}"
  print(message, file=sys.stderr)


def leave(exit_code: int, *, failed: bool) -> NoReturn:
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
  """What every process has to say, by its number."""
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


def _packed(error: errors.TrueNegsError | None) -> str:
  if error is None:
    return ""
  return json.dumps([type(error).__name__, errors.printable(error)])


def _shut_down() -> None:
  with contextlib.suppress(Exception):
    jax.distributed.shutdown()


FLAGS = "--coordinator=HOST:PORT --num_processes=N --process_id=I"
JOIN_SECS = "TRUENEGS_JOIN_SECS"  # environment: how long to wait for all
HEARTBEAT_SECS = "TRUENEGS_HEARTBEAT_SECS"  # silent for so long: dead
DEFAULTS = {JOIN_SECS: 300, HEARTBEAT_SECS: 100}


@dataclasses.dataclass(frozen=True)
class Place:
  """A process's place in a run of `count`."""

  coordinator: str  # HOST:PORT, where process 0 listens
  count: int
  index: int
  local_devices: tuple[int, ...] | None = None  # None: all of the machine

  def __str__(self) -> str:
    return f"process {self.index} of {self.count}"


def join(
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
      many they are. Where they do not find one another, within
      TRUENEGS_JOIN_SECS, the process ends here with the same exit code.
  """
  waits = {name: _secs(name) for name in DEFAULTS}
  place = _given(coordinator, num_processes, process_id)
  if place is None:
    place = _detected(waits[JOIN_SECS])
  if place is None or place.count == 1:
    return
  say(
    f"joining as {place}, coordinator {place.coordinator}, waiting"
    f" at most {waits[JOIN_SECS]} s"
  )
  began = time.monotonic()
  try:
    _connect(place, waits)
  except Exception as e:  # jax: RuntimeError, ValueError, XlaRuntimeError, ...
    say(
      f"error: could not join as {place}, coordinator {place.coordinator}, in"
      f" {time.monotonic() - began:.0f} s: it cannot be reached, or a process"
      " is missing, or two have the same process_id, or another num_processes."
      f" Start all {place.count} within {JOIN_SECS}={waits[JOIN_SECS]} seconds."
      f"{_reason(e)}"
    )
    # What jax has begun would wait for the others, and abort.
    os._exit(InputError.exit_code)
  check_alike("num_processes", str(place.count))
  say(
    f"joined: {place}, {jax.local_device_count()} local of"
    f" {jax.device_count()} devices"
  )


def _reason(error: Exception) -> str:
  """What jax says, unless it is only that it could not call us back."""
  text = str(error).partition("\n")[0]
  return "" if "bad_cast" in text else f" ({text})"


def _secs(name: str) -> int:
  text = os.environ.get(name) or str(DEFAULTS[name])
  if not re.fullmatch(r"[1-9]\d{0,6}", text):
    raise InputError(f"{name}={text!r}: give whole seconds, 1 or more.")
  return int(text)


def _given(
  coordinator: str | None, num_processes: int | None, process_id: int | None
) -> Place | None:
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
  return Place(coordinator, num_processes, process_id)


def _detected(join_secs: int) -> Place | None:
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
  return Place(address, number, index, tuple(devices) if devices else None)


def _connect(place: Place, waits: Mapping[str, int]) -> None:
  with _with_callback():
    jax.distributed.initialize(
      place.coordinator,
      place.count,
      place.index,
      local_device_ids=place.local_devices,
      initialization_timeout=waits[JOIN_SECS],
      heartbeat_timeout_seconds=waits[HEARTBEAT_SECS],
      shutdown_timeout_seconds=SHUTDOWN_SECS,
    )


@contextlib.contextmanager
def _with_callback() -> Iterator[None]:
  """Lets a failure to join be an exception.

  jax aborts the process in C++, with a stack trace, unless its client has a
  callback for errors, which `jax.distributed.initialize` does not pass on.
  """
  try:
    from jax._src import distributed as private

    module, name = private._jax, "get_distributed_runtime_client"
    make = getattr(module, name)
    known = "missed_heartbeat_callback" in (make.__doc__ or "")
  except (ImportError, AttributeError):
    known = False
  if not known:
    yield
    return
  ignore = lambda *_: None
  setattr(
    module, name, functools.partial(make, missed_heartbeat_callback=ignore)
  )
  try:
    yield
  finally:
    setattr(module, name, make)
