"""How the processes of a run find one another, and say so.

`jax.distributed` does it. What jax does not offer in public is in `_detected`
and `_with_callback`, and both can do without.
"""

import contextlib
import dataclasses
import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from truenegs_jax import distributed
from truenegs_jax.errors import InputError

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
  distributed.check_alike("num_processes", str(place.count))
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
      shutdown_timeout_seconds=distributed.SHUTDOWN_SECS,
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
