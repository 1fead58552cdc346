"""Paths that users type, names in files, and the folder of the cache."""

import os
import pathlib
import re
import shlex
import stat
import warnings
from collections.abc import Callable
from typing import cast

from truenegs_jax.runtime.errors import InputError, missing_package

_BUCKET = re.compile(r"(gs|s3)://[\w.-]+(/(?!\.\.?(/|$))[^/*?\[\]]+)+/?", re.A)
_PART = r"\w([\w.-]*\w)?"
HUB_NAME = re.compile(rf"(?!.*(\.\.|--)){_PART}(/{_PART})?", re.ASCII)


def is_bucket(path: pathlib.PurePath) -> bool:
  """Returns whether a result of `open_path` is in a bucket."""
  return not isinstance(path, pathlib.Path)


def open_path(name: str, text: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path of a flag or key `name`; for gs:// and s3:// a BucketPath.

  That has those methods of `pathlib.Path` that the files of runs need. Raises
  InputError for a URL of something else.
  """
  text = str(text)
  if not text.startswith(("gs://", "s3://")):
    check_local(name, text)
    return pathlib.Path(text).expanduser()
  if not _BUCKET.fullmatch(text):
    raise InputError(
      f"{name}={text!r} is no folder or file in a bucket. Write"
      " gs://BUCKET/FOLDER, without '//', '..', '*', '?' and brackets in it."
    )
  try:
    from truenegs_jax.runtime import buckets
  except ImportError as error:
    raise missing_package(text, error) from error
  return cast(pathlib.Path, buckets.BucketPath(text.rstrip("/")))


def join_inside(
  folder: pathlib.Path, name: str, *, key: str = ""
) -> pathlib.Path:
  """Returns the path of a folder's file, whose name was read from a file.

  Whoever wrote that file must not choose what else is read or written. So this
  raises InputError if the name leads out of the folder: an absolute path, a
  part that is empty, "." or "..", a backslash or a NUL, or a link in a local
  folder. The folder itself, which the user has named, may be a link. Folders
  models--X--Y/snapshots/REVISION of the hub's library may have links to all of
  models--X--Y, which has the files of one repository.

  Messages begin with the `key` of the config that has the folder.
  """
  start = f"{key}: " if key else ""
  if re.search(r"[\\\0]", name) or {"", ".", ".."} & {*name.split("/")}:
    raise InputError(
      f"{start}{name[:100]!r} is no name of a file in '{folder}', but leads out"
      " of it, so its files may be made to do harm. Use the original files."
    )
  path = folder / name
  if is_bucket(folder):
    return path
  try:
    root = folder.resolve()
    target = path.resolve()
  except (OSError, RuntimeError) as error:  # RuntimeError: link loops
    raise InputError(f"{start}'{path}' cannot be read: {error}.") from error
  for parent in root.parents:
    repository = parent.parent
    if parent.name == "snapshots" and repository.name.startswith("models--"):
      root = repository
      break
  if not target.is_relative_to(root):
    raise InputError(
      f"{start}'{path}' is a link that leads out of the folder, to '{target}'."
      " Copy what it leads to into the folder."
    )
  return path


def check_local(name: str, path: str | os.PathLike[str]) -> None:
  """Raises InputError for a URL, which would be a local folder like `gs:`."""
  if re.match(r"[a-z][a-z\d+.-]+:/", str(path), re.IGNORECASE):
    raise InputError(
      f"{name}='{path}' is a URL that cannot be used here. Use a local folder,"
      " or mount the storage and use the folder of the mount. Runs, rows and"
      " weights can be at gs://BUCKET/FOLDER and s3://BUCKET/FOLDER."
    )


def check_utf8(path: str | os.PathLike[str]) -> None:
  """Raises InputError for a path that Orbax and JSON cannot hold."""
  try:
    os.path.realpath(path).encode()
  except UnicodeEncodeError as e:
    raise InputError(
      f"{str(path)!r}, or a folder above it, is not named in UTF-8, which"
      " saved files need. Rename it. If it is, run export LC_ALL=C.UTF-8."
    ) from e


def is_hub_name(text: str) -> bool:
  """Whether a text has the form NAME or OWNER/NAME of the Hugging Face hub."""
  return HUB_NAME.fullmatch(text) is not None


def cache_folder() -> pathlib.Path:
  """Returns $TRUENEGS_CACHE or ~/.cache/truenegs_jax, which may not exist.

  Its files can be created again.
  """
  if path := os.environ.get("TRUENEGS_CACHE"):
    check_local("TRUENEGS_CACHE", path)
    return pathlib.Path(path)
  return pathlib.Path.home() / ".cache" / "truenegs_jax"


def enable_compilation_cache(warn: Callable[[str], object]) -> None:
  """Keeps compiled programs on disk, so that a restart need not compile.

  Others who can write to the folder could make the run execute their code. If
  there are any, nothing is kept, and `warn` is called. jax uses the folder of
  JAX_COMPILATION_CACHE_DIR without this check.
  """
  import jax

  if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    return
  compiled = cache_folder() / "xla"
  try:
    make_private_folder(compiled)
  except OSError as e:
    warn(
      f"warning: compiled programs are not kept for the next start: {e}. You"
      " can set TRUENEGS_CACHE to a folder that only you can write to."
    )
    return
  jax.config.update("jax_compilation_cache_dir", str(compiled))
  # Programs with oneDNN's products cannot be kept.
  warnings.filterwarnings(
    "ignore", "Error writing persistent compilation cache.*MemoryError"
  )


def make_private_folder(path: pathlib.Path) -> None:
  """Creates a folder that only the user and root can write to.

  Raises PermissionError if another user can write to it, or to a folder on its
  path and so replace it.
  """
  for folder in reversed(path.parents):
    folder.mkdir(mode=0o755, exist_ok=True)
  path.mkdir(mode=0o700, exist_ok=True)
  real = path.resolve()
  for folder in (real, *real.parents):
    status = folder.stat()
    is_foreign = status.st_uid not in (0, os.geteuid())
    is_open = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    # In a sticky folder such as /tmp nobody can rename the files of others.
    if is_foreign or (is_open and not status.st_mode & stat.S_ISVTX):
      reason = f"'{folder}' can be written to by others"
      if status.st_uid == os.geteuid():
        reason += f". Run chmod go-w {shlex.quote(str(folder))} to end that"
      raise PermissionError(reason)
