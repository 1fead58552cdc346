"""Where what can be made again is kept."""

import os
import pathlib


def folder() -> pathlib.Path:
  """$TRUENEGS_CACHE, else ~/.cache/truenegs_jax; not necessarily there yet."""
  default = pathlib.Path.home() / ".cache" / "truenegs_jax"
  return pathlib.Path(os.environ.get("TRUENEGS_CACHE") or default)
