"""Starts, synchronizes and ends the processes of one run, also if one hangs.

Each process is started with --coordinator, --num_processes and --process_id, or
by a launcher that jax knows (Slurm, Open MPI, Cloud TPU, GKE). `initialize`
connects them through `jax.distributed`; after that

  with raise_everywhere("rows"):  # an error in one process is raised in all
    rows = open_rows(folder)

In a run of one process no function communicates.

jax notices partners that are dead, but waits forever for one that hangs, and so
does a process for its own devices. So the watchdog limits the time of a step of
training or evaluation, the body of `with watch_step():`.

Only `_client` and `_detect_cluster` use private functions of jax: to exchange
messages without touching a device, and to read a launcher's environment without
failing on a laptop. `_detect_cluster` returns None where jax has moved its own.
"""

import collections
import contextlib
import faulthandler
import json
import os
import re
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import InputError

SHUTDOWN_SECS = 20  # between the end of one process and jax ending the others
SAME_ERROR_SECS = 10  # within which all processes reach an error they share
SAME_SIGNAL_SECS = 3  # or a signal that all of them got
BARRIER_SECS = 24 * 3600  # the first process exports while the others wait

# In an error of jax: its coordinator, Gloo or NCCL misses a process.
LOSS = r"Error: ([A-Z_]+: .*(?:Gloo|NCCL|oordination|arrier|eartbeat).*)"
FLAGS = "--coordinator=HOST:PORT --num_processes=N --process_id=I"
# Environment variables: seconds to wait for all processes to join, and seconds
# of silence after which a process counts as dead.
JOIN_VARIABLE = "TRUENEGS_JOIN_SECS"
HEARTBEAT_VARIABLE = "TRUENEGS_HEARTBEAT_SECS"
STALL_VARIABLE = "TRUENEGS_STALL_SECS"  # least seconds that a step may take

MEDIANS = 20  # a step may also take as many medians of the steps before
FIRST = 12  # times the least seconds for the first step
TICK_SECS = 0.5
_uses = collections.Counter[str]()  # of a name, by `_exchange`


def process_count() -> int:
  """Returns the number of processes of the run."""
  return jax.process_count() if jax.distributed.is_initialized() else 1


def is_first_process() -> bool:
  """Whether this process writes the run's files and prints its progress."""
  return process_count() == 1 or jax.process_index() == 0


def to_host(tree: Any) -> Any:
  """Copies a tree of arrays to numpy; all processes must call it."""

  def fetch(x: jax.Array | np.ndarray) -> np.ndarray:
    if isinstance(x, jax.Array) and not (
      x.is_fully_addressable or x.is_fully_replicated
    ):
      return multihost_utils.process_allgather(x, tiled=True)
    return jax.device_get(x)

  return jax.tree.map(fetch, tree)


@contextlib.contextmanager
def raise_everywhere(name: str) -> Iterator[None]:
  """Raises in all processes the error that the body raises in one of them.

  The processes wait for one another at the end of the body. All must use the
  same names in the same order.
  """
  own_error = None
  packed = ""
  try:
    yield
  except errors.TrueNegsError as e:
    own_error = e
    packed = json.dumps([type(e).__name__, errors.printable(e)])
  texts = _exchange(f"raise_everywhere/{name}", packed)
  if failed := [index for index, text in texts.items() if text]:
    first = min(failed)
    kind, message = json.loads(texts[first])
    origin = f"process {first} of {process_count()}: " if first else ""
    raise getattr(errors, kind)(origin + message)
  if own_error is not None:  # of the only process
    raise own_error


def check_same(name: str, value: str) -> None:
  """Raises InputError in all processes unless all pass the same value."""
  values = _exchange(f"check_same/{name.replace(' ', '_')}", value)
  if len(set(values.values())) > 1:
    listed = [f"process {i} has {x[:60]}" for i, x in values.items()]
    raise InputError(
      f"The processes do not agree on {name}: {', '.join(listed)}. Start all"
      " with the same command and the same files."
    )


def from_first(name: str, value: str) -> str:
  """Returns the first process's value; all must use the same names."""
  return _exchange(f"from_first/{name}", value).get(0, value)


def warn(message: str) -> None:
  """Prints to stderr, with the number of the process if there are several."""
  if process_count() > 1:
    message = f"process {jax.process_index()} of {process_count()}: {message}"
  print(message, file=sys.stderr)


def exit_all(exit_code: int, *, failed: bool) -> NoReturn:
  """Exits this process together with the other processes of its run.

  Waits until all arrive here, but after a failure only SAME_ERROR_SECS. Within
  half a minute jax then ends those that still work, with a non-zero exit code.
  """
  if not jax.distributed.is_initialized():
    sys.exit(exit_code)
  secs = BARRIER_SECS
  by_signal = exit_code in errors.SIGNAL_CODES.values()
  if failed:
    secs = SAME_SIGNAL_SECS if by_signal else SAME_ERROR_SECS
  errors.exit_at_signals()
  for number in errors.SIGNAL_CODES if failed or by_signal else ():
    # When all is saved, another signal must not change the exit code.
    signal.signal(number, signal.SIG_IGN if by_signal else signal.SIG_DFL)
  sys.stdout.flush()
  sys.stderr.flush()
  if exit_code == errors.HANGS:  # jax aborts those that outlive the first
    time.sleep(SAME_ERROR_SECS * is_first_process())
    os._exit(exit_code)
  with contextlib.suppress(Exception):  # a process may be gone
    _start(_client().wait_at_barrier, "truenegs/end", secs * 1000).result()
  # If the others never arrive, the shutdown aborts with an exit code of jax.
  with contextlib.suppress(Exception):
    _start(jax.distributed.shutdown).result(min(secs, SHUTDOWN_SECS - 2))
  os._exit(exit_code)


def explain_loss(error: Exception) -> Exception:
  """Returns a LostError if an exception is due to another process's end."""
  match = re.search(LOSS, "".join(traceback.format_exception(error)))
  if process_count() == 1 or not match:
    return error
  return errors.LostError(
    f"Another process of the run is gone ({match[1][:300]}). Its output says"
    " why. All that was saved is intact. Run the same command again in all."
  )


def _start(function: Callable, *args: Any, **more: Any) -> Future:
  """Calls a function of C++, in which no signal is handled, in a thread."""
  return ThreadPoolExecutor(1).submit(function, *args, **more)


def _client() -> Any:
  """Returns the client of jax's coordinator; None with one process."""
  if not jax.distributed.is_initialized():
    return None
  from jax._src import distributed as private

  return private.global_state.client


def _exchange(name: str, text: str) -> dict[int, str]:
  """Returns each process's text by its number; empty with one process."""
  client = _client()
  if client is None:
    return {}
  _uses[name] += 1
  folder = f"truenegs/{name}/{_uses[name]}"
  client.key_value_set(f"{folder}/{jax.process_index()}", text or " ")
  _start(client.wait_at_barrier, folder, BARRIER_SECS * 1000).result()
  return {
    int(key.rsplit("/", 1)[1]): value.strip()
    for key, value in client.key_value_dir_get(folder)
  }


def initialize(
  address: str | None,
  count: int | None,
  index: int | None,
  say: Callable[[str], object],
) -> None:
  """Connects the processes of a run; does nothing if there is only one.

  Must be called before anything touches a device. Without the three flags, jax
  reads Cloud TPU, GKE, Slurm and Open MPI. `say` prints lines before and after.
  """
  join_secs = read_secs(JOIN_VARIABLE, default=300)
  heartbeat_secs = read_secs(HEARTBEAT_VARIABLE, default=100)
  devices = None
  if (address, count, index) == (None, None, None):
    address, count, index, devices = _detect_cluster(join_secs)
    if not address or not count or index is None:
      return
  if (
    address is None or count is None or index is None or not 0 <= index < count
  ):
    raise InputError(
      f"The flags of processes are not complete. Pass all of {FLAGS}, with I"
      " from 0 to N - 1, or none."
    )
  if count == 1:
    return
  process = f"process {index} of {count}"
  say(
    f"Joining as {process}, coordinator {address}. Waiting at most"
    f" {join_secs} s ({JOIN_VARIABLE}). If jax ends this process with a"
    " traceback, the coordinator cannot be reached, a process is missing, two"
    " have the same process_id, or their num_processes differ. Start all"
    f" {count} within that time."
  )
  # Its handler of SIGTERM would replace ours, which also saves.
  jax.config.update("jax_enable_preemption_service", False)
  try:
    _start(
      jax.distributed.initialize,
      *(address, count, index, devices or None),
      initialization_timeout=join_secs,
      heartbeat_timeout_seconds=heartbeat_secs,
      shutdown_timeout_seconds=SHUTDOWN_SECS,
    ).result()
  except Exception as e:  # such as RuntimeError, ValueError: the port is taken
    reason = str(e).partition("\n")[0]
    say(f"error: {process} could not join: {reason}")
    os._exit(InputError.exit_code)  # a normal exit would wait, then abort
  check_same("num_processes", str(count))
  _start(jax.devices).result()  # of all processes
  say(
    f"Joined as {process}, with {jax.local_device_count()} of"
    f" {jax.device_count()} devices."
  )


def read_secs(name: str, *, default: int) -> int:
  """Returns a whole number of seconds from the environment."""
  text = os.environ.get(name) or str(default)
  if not re.fullmatch(r"[1-9]\d{0,6}", text):
    raise InputError(
      f"{name}={text!r} is not a number of seconds. Set 1 or a larger integer."
    )
  return int(text)


def _detect_cluster(
  join_secs: int,
) -> tuple[str | None, int | None, int | None, Sequence[int] | None]:
  """Reads a launcher's coordinator, processes, own number and devices."""
  try:
    from jax._src import clusters

    detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
  except (ImportError, AttributeError):
    return None, None, None, None
  address = os.environ.get("JAX_COORDINATOR_ADDRESS")
  try:
    return detect(address, None, None, None, None, join_secs)
  except Exception as e:  # each kind of cluster raises its own
    raise InputError(
      f"jax detected a cluster but not this process's number in it: {e}. Pass"
      f" {FLAGS}."
    ) from e


class _Watchdog:
  """The seconds of the last steps, and of the one that is being taken."""

  def __init__(self) -> None:
    self._secs = collections.deque[float](maxlen=99)
    self._is_stepping = False
    self._waited = 0.0

  @contextlib.contextmanager
  def watch_step(self) -> Iterator[None]:
    """Watches the body, a step. Waiting for devices belongs to it."""
    began = time.monotonic()
    self._waited = 0.0
    self._is_stepping = True
    try:
      yield
    finally:
      self._is_stepping = False
      self._secs.append(time.monotonic() - began)

  def start(self, stall_secs: float) -> None:
    """Ends the process with HANGS and its stacks if a step takes too long."""
    threading.Thread(target=self._watch, args=[stall_secs], daemon=True).start()

  def _watch(self, stall_secs: float) -> None:
    limit = FIRST * stall_secs
    while self._waited < limit:
      time.sleep(TICK_SECS)
      # A sleeping machine or a stopped process (SIGSTOP) takes no ticks.
      self._waited = self._waited + TICK_SECS if self._is_stepping else 0.0
      if self._secs:
        limit = max(stall_secs, MEDIANS * statistics.median([*self._secs]))
    text = (
      f"\nerror: A step has taken {self._waited:,.0f} s; the median of those"
      f" before is {statistics.median([*self._secs] or [0]):.2g} s."
      " This process or another of its run hangs. Run the same command again,"
      f" or set {STALL_VARIABLE}=SECONDS if steps may take longer. Stacks:\n"
    )
    os.write(errors.STDERR, text.encode())
    faulthandler.dump_traceback(errors.STDERR)
    os._exit(errors.HANGS)


_watchdog = _Watchdog()  # of this process
start_watchdog = _watchdog.start
watch_step = _watchdog.watch_step
