"""Makes and reads the content of a step: arrays, and JSON with their checksums.

Orbax verifies its index only: a bit that flips on the disk would change a
parameter. So the description of a step has a checksum of each array, which does
not depend on the mesh, and one of itself.
"""

import contextlib
import json
import os
import pathlib
import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from truenegs_jax.runtime import errors
from truenegs_jax.runtime.files import parse_json, read_file, short_sha256
from truenegs_jax.workdir.files import list_saved

DAMAGED = ".damaged"  # suffix of the folders of steps that were set aside
# In errors of libraries, if files may be intact. The last words are
# TensorStore's, for a bucket that cannot be reached.
UNREADABLE = "|".join(map(os.strerror, errors.UNREADABLE)) + (
  "|(ABORTED|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAVAILABLE): .*"
)


def make_content(state: Any, run: Mapping[str, Any]) -> ocp.args.Composite:
  """Returns what Orbax saves of a tree of arrays and a description."""
  content = {"run": dict(run), "checksums": compute_checksums(state)}
  return ocp.args.Composite(
    state=ocp.args.StandardSave(state),
    run=ocp.args.JsonSave({**content, "sha256": _hash_json(content)}),
  )


@contextlib.contextmanager
def reading(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields the folder of a step to a body that reads it.

  Raises DiskError if the disk failed, else DamagedStepError for an error.
  """
  try:
    yield folder
  except Exception as e:  # KeyError, JSONDecodeError, ValueError, ...
    if errors.is_out_of_memory(e) or isinstance(e, errors.TrueNegsError):
      raise
    if reason := find_reason(e, UNREADABLE):
      raise errors.DiskError(
        f"Checkpoint '{folder}' cannot be read: {reason}. It may be intact. Run"
        " the same command again. To use the step before instead, rename the"
        f" folder to '{folder.name}{DAMAGED}'."
      ) from e
    reason = f"{type(e).__name__}: {first_line(e)}"
    message = f"Checkpoint '{folder}' cannot be restored ({reason})."
    if not list_saved(folder.parent).get(folder.name):
      message = f"Checkpoint '{folder}' was deleted by its run."
    raise errors.DamagedStepError(message) from e


def find_reason(error: Exception, pattern: str) -> str:
  """Returns the first match in the messages of an error and its causes."""
  # TensorStore's words are in the cause of Orbax's error.
  messages = "".join(traceback.format_exception(error, limit=0))
  match = re.search(pattern, messages)
  return match[0] if match else ""


def first_line(error: Exception) -> str:
  """Returns the first line of an error, at most 150 characters of it."""
  return str(error).partition("\n")[0][:150].rstrip(".")


def read_description(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the keys "run" and "checksums"; ValueError if it is damaged."""
  path = folder / "run" / "metadata"
  saved = parse_json(read_file(path), strict=False)
  if saved.pop("sha256", None) != _hash_json(saved):
    raise ValueError("its description does not match its checksum")
  return saved


def read_arrays(folder: pathlib.Path, like: Any) -> Any:
  """Returns a tree like `like` of (abstract) arrays, not yet verified.

  Raises ValueError if arrays are missing, or of another shape or dtype: that
  decides whether bits are those of a random key.
  """
  like = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like
  )
  each = ocp.checkpoint_utils.construct_restore_args(like)
  args = ocp.args.PyTreeRestore(like, partial_restore=True, restore_args=each)
  handler = ocp.PyTreeCheckpointHandler()
  tree = handler.restore(folder.resolve() / "state", args=args)
  for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True):
    is_array = isinstance(x, jax.Array)
    if not is_array or (x.shape, x.dtype) != (y.shape, y.dtype):
      raise ValueError("an array is missing or of another type")
  return tree


def compute_checksums(tree: Any) -> dict[str, int]:
  """Returns a 32-bit checksum of the bits of each array, by its path."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  by_path = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
  sums = jax.device_get(_sum_arrays(by_path))
  return {path: int(total) for path, total in sums.items()}


@jax.jit
def _sum_arrays(by_path: dict[str, jax.Array]) -> dict[str, jax.Array]:
  return jax.tree.map(_sum_array, by_path)


def _sum_array(x: jax.Array) -> jax.Array:
  """Sums the words of an array, each mixed one-to-one with its index.

  Constants: 2**32 / golden ratio; Wellons, "Prospecting for Hash Functions".
  """
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
  bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
  index = jax.lax.iota(jnp.uint32, x.size).reshape(x.shape)
  bits += index * np.uint32(0x9E3779B9)
  bits = (bits ^ bits >> 16) * np.uint32(0x7FEB352D)
  bits = (bits ^ bits >> 15) * np.uint32(0x846CA68B)
  return (bits ^ bits >> 16).sum(dtype=jnp.uint32)


def _hash_json(value: Any) -> str:
  return short_sha256(json.dumps(value, sort_keys=True))
