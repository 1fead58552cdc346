"""The cache folder, for files that can be created again."""

import os
import pathlib
import stat
from collections.abc import Callable

from truenegs_jax.runtime.paths import check_local


def folder() -> pathlib.Path:
  """Returns $TRUENEGS_CACHE or ~/.cache/truenegs_jax, which may not exist."""
  if path := os.environ.get("TRUENEGS_CACHE"):
    check_local("TRUENEGS_CACHE", path)
    return pathlib.Path(path)
  return pathlib.Path.home() / ".cache" / "truenegs_jax"


def make_private_folder(path: pathlib.Path) -> None:
  """Creates a folder that only the user and root can write to.

  Raises PermissionError if another user can write to it, or to a folder on its
  path and so replace it. An existing one is not repaired, since others may
  already have written to it.
  """
  path.mkdir(parents=True, exist_ok=True, mode=0o700)
  absolute = path.absolute()
  real = path.resolve()
  for entry in (absolute, *absolute.parents, real, *real.parents):
    status = entry.lstat()
    if status.st_uid not in (0, os.geteuid()):
      raise PermissionError(f"'{entry}' belongs to user {status.st_uid}")
    is_open = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    # In a sticky folder such as /tmp nobody can rename the files of others.
    is_safe = stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX
    if is_open and not is_safe:
      raise PermissionError(f"'{entry}' can be written to by others")


def enable_compilation_cache(warn: Callable[[str], object]) -> None:
  """Keeps compiled programs on disk, so that a restart need not compile.

  Others who can write to the folder could make the run execute their code. If
  there are any, nothing is kept, and `warn` is called. jax uses the folder of
  JAX_COMPILATION_CACHE_DIR without this check.
  """
  import jax

  if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    return
  compiled = folder() / "xla"
  try:
    make_private_folder(compiled)
  except OSError as e:
    warn(
      f"warning: compiled programs are not kept for the next start: {e}. Set"
      " TRUENEGS_CACHE to a folder that only you can write to."
    )
    return
  jax.config.update("jax_compilation_cache_dir", str(compiled))
