"""Who may write a rows folder: locks that the system releases at any end."""

import contextlib
import pathlib
import sys
from collections.abc import Iterator

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import disk_errors


@contextlib.contextmanager
def alone(folder: pathlib.Path, name: str = "lock") -> Iterator[None]:
  """Waits until no other process holds this lock of `folder`."""
  yield from _held(folder, name, shared=False)


@contextlib.contextmanager
def together(folder: pathlib.Path) -> Iterator[None]:
  """Held by several at once, but not while one holds `alone`."""
  yield from _held(folder, "lock", shared=True)


def _held(folder: pathlib.Path, name: str, *, shared: bool) -> Iterator[None]:
  try:
    import fcntl
  except ImportError as error:
    raise InputError(
      "Rows cannot be prepared on Windows, which lacks the locks: prepare them"
      " under Linux or macOS, or WSL, and give data.rows."
    ) from error
  kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
  path = folder.with_name(f".{folder.name}.{name}")
  with disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a+")  # NFS shares a lock only of what is readable
  with file:
    with disk_errors(path):
      try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
      except BlockingIOError:
        print(f"Another process prepares {folder}; waiting.", file=sys.stderr)
        fcntl.flock(file, kind)
    yield
