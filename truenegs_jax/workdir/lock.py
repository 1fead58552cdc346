"""The lock of a workdir: one run at a time."""

import contextlib
import fcntl
import pathlib
import secrets
from collections.abc import Iterator
from typing import IO

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.workdir import files


@contextlib.contextmanager
def lock(workdir: pathlib.Path) -> Iterator[None]:
  """Makes the workdir and holds it; a second run in it is refused.

  The first process of a run holds it for all, and all must see its mark in it.
  The kernel lets go of the lock however the process ends.
  """
  with contextlib.ExitStack() as stack:
    with distributed.raise_everywhere("lock"):
      if distributed.is_first_process():
        held = stack.enter_context(_take(workdir))
        held.truncate(0)  # only now: a run that is refused leaves it alone
        held.write(secrets.token_hex(4))
        held.flush()
    # Else each would wait for ever for what the others save elsewhere.
    try:
      seen = (workdir / files.LOCK).read_text()
    except OSError:
      seen = "none"
    distributed.check_same("workdir, a folder that all of them share", seen)
    yield


def _take(workdir: pathlib.Path) -> IO[str]:
  """The open file that is the lock, to be closed."""
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    file = (workdir / files.LOCK).open("a")
  except OSError as e:
    raise InputError(
      f"workdir {workdir} cannot be written to ({e.strerror}); give another"
      " --workdir."
    ) from e
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as e:
    file.close()
    raise InputError(
      f"another run is using {workdir}; wait for it, stop it, or give"
      " another --workdir."
    ) from e
  return file
