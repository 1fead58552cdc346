"""The folder of an export, which stands under its name only once it is whole.

with in_place_of(output) as partial:
  with disk_errors(output):
    write_checksums(partial / "bert")
"""

import contextlib
import hashlib
import os
import pathlib
import shutil
from collections.abc import Collection, Iterator

import safetensors

from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.weights.formats import hf_names

CHECKSUMS = "SHA256SUMS"
MODEL_FILES = {
  CHECKSUMS,
  "README.md",
  "config.json",
  "model.safetensors",
  "tokenizer_config.json",
  "vocab.txt",
}


def check_replaceable(
  output: pathlib.Path, roles: Collection[str] = tuple(hf_names.NETWORKS)
) -> pathlib.Path:
  """Where `output` leads to, if nothing but an export stands there.

  Args:
    roles: the networks that are going to be written.

  Raises:
    InputError: something else does, or a network that is not written again.
    DiskError: the place cannot be looked at.
  """
  with disk_errors(output):  # what may not even be looked at, or has no name
    output = pathlib.Path(os.path.realpath(os.path.expanduser(output)))
    other = _others(output) if output.exists() else []
    if not other and output.exists():
      lost = {*hf_names.NETWORKS} - set(roles)
      other = sorted({path.name for path in output.iterdir()} & lost)
  if other:
    raise InputError(
      f"output {output} holds what this export does not replace:"
      f" {', '.join(other[:5])}; move that away or give another --output."
    )
  return output


@contextlib.contextmanager
def in_place_of(output: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a folder to fill, which in the end takes the place of `output`.

  Whatever is raised in between, what stood there before is as it was.

  Raises:
    DiskError: the place cannot be written to.
  """
  partial = output.with_name(f".{output.name}.partial")
  shutil.rmtree(partial, ignore_errors=True)  # of one that was killed
  try:
    with disk_errors(output):
      partial.mkdir(parents=True)
    yield partial
    with disk_errors(output):
      _replace(output, partial)
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def write_checksums(folder: pathlib.Path) -> None:
  """Writes SHA256SUMS, once all that it lists has reached the disk."""
  lines = []
  for path in sorted(folder.iterdir()):
    with path.open("rb") as file:
      digest = hashlib.file_digest(file, "sha256").hexdigest()
      os.fsync(file.fileno())
    lines.append(f"{digest}  {path.name}\n")
  with (folder / CHECKSUMS).open("w", encoding="utf-8") as file:
    file.writelines(lines)
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def disk_errors(output: pathlib.Path) -> Iterator[None]:
  """Turns what the system says of a file into a DiskError."""
  try:
    yield
  except (OSError, safetensors.SafetensorError) as e:
    raise DiskError(
      f"{output} could not be written: {e}\nWhat stood there before is intact;"
      " mend that, maybe free some space, or give another --output."
    ) from e


def _others(output: pathlib.Path) -> list[str]:
  """What stands there and is of no export."""
  if not output.is_dir():
    return ["it is a file"]
  return [path.name for path in output.iterdir() if not _is_ours(path)]


def _is_ours(path: pathlib.Path) -> bool:
  """Whether this, in the folder of an export, is of an export."""
  if path.is_symlink() or path.name not in hf_names.NETWORKS:
    return path.name == CHECKSUMS  # where older ones had it
  return path.is_dir() and {x.name for x in path.iterdir()} <= MODEL_FILES


def _replace(output: pathlib.Path, partial: pathlib.Path) -> None:
  """Puts the new export in the place of the old one, if there is one."""
  old = output.with_name(f".{output.name}.old")
  shutil.rmtree(old, ignore_errors=True)
  if output.exists():
    output.rename(old)  # no folder can be renamed onto a full one
  try:
    partial.rename(output)
  except OSError:
    if old.exists():
      old.rename(output)
    raise
  shutil.rmtree(old, ignore_errors=True)
