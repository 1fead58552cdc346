"""The file of a synonym table: a header in JSON and the pairs, as `.npz`."""

import contextlib
import json
import os
import pathlib
import secrets
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.errors import DataError, DiskError, disk_errors

FORMAT = 2  # a reader refuses what it does not know
MAX_FILE_BYTES = 1 << 30  # unpacked; a file that claims more is not ours


def write(
  path: str | os.PathLike[str], header: Mapping[str, Any], keys_Q: np.ndarray
) -> None:
  """Writes a file that appears under its name only when it is whole.

  Raises:
    DiskError: it could not be written, or what stands there is no file.
  """
  path = pathlib.Path(path).resolve()  # a link's file, not the link
  if path.exists() and not path.is_file():
    raise DiskError(f"{path} is no file that could be replaced; name another.")
  text = np.array(json.dumps({"format": FORMAT, **header}))
  whole = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
  try:
    with disk_errors(path):
      path.parent.mkdir(parents=True, exist_ok=True)
      with whole.open("wb") as file:
        np.savez_compressed(file, header=text, keys=keys_Q)
        file.flush()
        os.fsync(file.fileno())
      whole.replace(path)
  finally:
    with contextlib.suppress(OSError):  # most often it has its name by now
      whole.unlink()


def read(
  path: str | os.PathLike[str], fields: Sequence[str]
) -> tuple[dict[str, Any], np.ndarray]:
  """The named fields of the header, and keys_Q, int64, of any values.

  Raises:
    DataError: the file is missing, damaged or of an unknown format.
  """
  try:
    with zipfile.ZipFile(path) as file:
      size = sum(member.file_size for member in file.infolist())
    if size > MAX_FILE_BYTES:
      raise ValueError(f"it claims {size} bytes")
    with np.load(path, allow_pickle=False) as file:
      header, keys_Q = json.loads(str(file["header"])), file["keys"]
    if header["format"] != FORMAT:
      raise ValueError(f"format {header['format']}, not {FORMAT}")
    if keys_Q.ndim != 1 or keys_Q.dtype != np.int64:
      raise ValueError(f"keys are {keys_Q.dtype} of shape {keys_Q.shape}")
    return {name: header[name] for name in fields}, keys_Q
  except FileNotFoundError as error:
    raise DataError(f"There is no synonym table {path}.") from error
  except Exception as error:  # zipfile and zlib have exceptions of their own
    raise damaged(path, f"{type(error).__name__}: {error}") from error


def damaged(path: str | os.PathLike[str], why: str) -> DataError:
  """The error of a file that is no whole table."""
  return DataError(
    f"{path} is not a whole synonym table ({why}). Remove it to have it built"
    " anew."
  )
