"""Where what can be made again is kept."""

import os
import pathlib
import stat

OTHERS = stat.S_IWGRP | stat.S_IWOTH


def folder() -> pathlib.Path:
  """$TRUENEGS_CACHE, else ~/.cache/truenegs_jax; not necessarily there yet."""
  default = pathlib.Path.home() / ".cache" / "truenegs_jax"
  return pathlib.Path(os.environ.get("TRUENEGS_CACHE") or default)


def make_private_folder(path: pathlib.Path) -> None:
  """Makes a folder that nobody but the user, and root, can write to.

  One that others could write to is not mended: they may have done so.

  Raises:
    PermissionError: somebody else can write to it, or put another in its
      place; the message says where.
    OSError: it cannot be made.
  """
  path.mkdir(parents=True, exist_ok=True, mode=0o700)
  at, todo = pathlib.Path("/"), [*reversed(path.absolute().parts[1:])]
  while todo:  # as the system walks: through links, from where each one lies
    part = todo.pop()
    if part == "..":
      at = at.parent
      continue
    about = (at / part).lstat()
    if about.st_uid not in (0, os.geteuid()):
      raise PermissionError(f"{at / part} belongs to user {about.st_uid}")
    if stat.S_ISLNK(about.st_mode):
      to = (at / part).readlink()
      at, parts = (pathlib.Path("/") if to.is_absolute() else at), to.parts
      todo += [name for name in reversed(parts) if name != "/"]
      continue
    # In a folder such as /tmp, which is sticky, none moves what is another's.
    if about.st_mode & OTHERS and not about.st_mode & stat.S_ISVTX:
      raise PermissionError(f"{at / part} can be written to by others")
    at /= part


def enable_compilation_cache() -> None:
  """Keeps what is compiled, so that a restart does not compile again.

  Whoever can write the folder can have code run, so it is the user's alone;
  where it cannot be, a line says so and nothing is kept. A damaged entry is
  compiled again. JAX_COMPILATION_CACHE_DIR, when set, names another folder,
  which is then taken as it is.
  """
  import jax

  from truenegs_jax.runtime import distributed

  if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    return
  compiled = folder() / "xla"
  try:
    make_private_folder(compiled)
  except OSError as e:
    distributed.print_once(
      f"what is compiled is not kept for the next start: {e}. To keep it, let"
      " TRUENEGS_CACHE name a folder that only you can write to."
    )
    return
  jax.config.update("jax_compilation_cache_dir", str(compiled))
