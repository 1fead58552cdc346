"""Many processes as one run: how they agree, and end together.

Each process drives the devices of its machine and runs the same program.
`_client` alone looks behind what `jax.distributed` offers.
"""

import contextlib
import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
from jax.experimental import multihost_utils

from truenegs_jax import errors

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
