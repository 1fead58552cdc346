"""Reads weights in Hugging Face's files: safetensors, shards, or a pickle.

The files may come from anybody and are not trusted: their headers are checked
before an array is read. A pickle can run code, so `pytorch_model.bin` is read
only by PyTorch's `torch.load(weights_only=True)`, in versions where no way
around that protection is known. The format of safetensors:
https://huggingface.co/docs/safetensors/index#format
"""

import contextlib
import functools
import math
import os
import pathlib
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors

from truenegs_jax.runtime import install, json_text
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats.network import (
  Arrays,
  CheckedFile,
  find_file,
  read_error,
)

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
# Types that can be read: safetensors' name -> numpy's (or ml_dtypes').
DTYPES = {
  "BOOL": "bool",
  "BF16": np.dtype(ml_dtypes.bfloat16).name,
  "C64": "complex64",
  **{f"F{n}": f"float{n}" for n in (16, 32, 64)},
  **{f"I{n}": f"int{n}" for n in (8, 16, 32, 64)},
  **{f"U{n}": f"uint{n}" for n in (8, 16, 32, 64)},
}
# The names of BERT-large take 0.05 MB; parsed JSON takes up to 50 times as much
# memory as its text.
MAX_JSON_BYTES = 2**20
MAX_NAME, MAX_RANK, MAX_SIZE = 300, 32, 2**48
READ_ERRORS = (
  OSError,
  ValueError,
  MemoryError,
  RuntimeError,  # link loops
  safetensors.SafetensorError,
)
# Weights that other programs wrote, or PyTorch under another name.
OTHER_FORMATS = re.compile(r"\.(bin(\.index\.json)?|pth?|pkl|ckpt|h5|msgpack)$")
MIN_TORCH = [2, 10]  # no known way around weights_only=True from here on
RETRY = "Download the file again."


class _Entry(NamedTuple):
  file: CheckedFile
  shape: tuple[int, ...]
  dtype: str


def open_arrays(folder: pathlib.Path) -> Arrays:
  """Opens the arrays of a folder; of safetensors only the headers are read.

  The first of these that exists is used, as in transformers:
  `model.safetensors`, the shards that `model.safetensors.index.json` lists,
  `pytorch_model.bin`. No file is kept open.

  Types that numpy does not have keep safetensors' names ("f8_e4m3"). `read`
  refuses them.

  Raises:
    InputError: here or in `read`: there are no such files; a file is damaged,
      inconsistent, a link that leads out of the folder, or was changed; a
      pickle holds more than tensors, or PyTorch is missing or too old.
  """
  if os.path.lexists(folder / WEIGHTS):
    return open_file(folder, WEIGHTS)
  if os.path.lexists(folder / INDEX):
    weight_map = _read_index(find_file(folder, INDEX))
    return _open_shards(folder, _find_shards(folder, weight_map), weight_map)
  if os.path.lexists(folder / PICKLE):
    return _open_pickle(find_file(folder, PICKLE))
  raise _no_weights_error(folder)


def open_file(folder: pathlib.Path, name: str) -> Arrays:
  """Opens the arrays of one safetensors file; see `open_arrays`."""
  return _open_shards(folder / name, [find_file(folder, name)], {})


def _open_shards(
  path: pathlib.Path,
  shards: Sequence[CheckedFile],
  weight_map: Mapping[str, str],
) -> Arrays:
  """Opens several files; `weight_map` names the file of each array."""
  entries: dict[str, _Entry] = {}
  for shard in shards:
    header = _read_header(shard)
    if repeated := header.keys() & entries.keys():
      other = entries[min(repeated)].file.path.name
      problem = f"'{other}' also holds {_quote(repeated)}"
      raise read_error(shard.path, problem, RETRY)
    entries |= header
  actual = {name: entry.file.path.name for name, entry in entries.items()}
  misplaced = [n for n in weight_map if actual.get(n) != weight_map[n]]
  if misplaced:
    raise read_error(
      path / INDEX,
      f"{_quote({weight_map[n] for n in misplaced})} should hold"
      f" {_quote(misplaced)}, but does not",
      "The files belong to different networks. Download all of them again.",
    )
  return Arrays(
    path=path,
    shapes={name: entry.shape for name, entry in entries.items()},
    dtypes={name: entry.dtype for name, entry in entries.items()},
    read=lambda name: _read_array(name, entries[name]),
  )


def _read_header(file: CheckedFile) -> dict[str, _Entry]:
  """Reads and checks the header of a file.

  The library checks that the arrays have the sizes of their shapes, are stored
  without gaps or overlaps, and fill the file. The rest is checked here.
  """
  with _safe_read(file):
    with open(file.target, "rb") as raw:
      size = raw.read(8)
      if size == b"version ":
        raise ValueError("it is a pointer of Git LFS. Run `git lfs pull`")
      num_bytes = int.from_bytes(size, "little")
      if num_bytes > MAX_JSON_BYTES:
        raise ValueError(f"its header is longer than {MAX_JSON_BYTES:,} bytes")
      text = raw.read(num_bytes)
    entries = {}
    with safetensors.safe_open(file.target, "numpy") as opened:
      for name in opened.keys():
        array = opened.get_slice(name)
        shape, dtype = tuple(array.get_shape()), array.get_dtype()
        _check_array(name, shape)
        entries[name] = _Entry(file, shape, DTYPES.get(dtype, dtype.lower()))
    json_text.parse(text)  # the library accepts a repeated name
    if not entries:
      raise ValueError("it holds no arrays")
  return entries


def _check_array(name: str, shape: tuple[int, ...]) -> None:
  if not (name.isprintable() and 0 < len(name) <= MAX_NAME):
    raise ValueError(f"{_quote([name])} is not a valid name of an array")
  # With a 0 in the shape, the number of bytes does not limit the other sizes.
  if len(shape) > MAX_RANK or math.prod(max(n, 1) for n in shape) > MAX_SIZE:
    raise ValueError(f"{name!r} cannot have the shape {shape[:MAX_RANK]}")


def _read_array(name: str, entry: _Entry) -> np.ndarray:
  file = entry.file
  if entry.dtype not in DTYPES.values():
    raise read_error(
      file.path,
      f"{name!r} is of type {entry.dtype}, which cannot be read",
      f"Save it as one of {', '.join(DTYPES.values())}.",
    )
  with _safe_read(file), safetensors.safe_open(file.target, "numpy") as opened:
    return opened.get_tensor(name)


def _read_index(index: CheckedFile) -> dict[str, str]:
  """Returns the index's map from names of arrays to names of shards."""
  with _safe_read(index):
    if index.target.stat().st_size > MAX_JSON_BYTES:
      raise ValueError(f"it is longer than {MAX_JSON_BYTES:,} bytes")
    weight_map = json_text.parse(index.target.read_bytes()).get("weight_map")
    if not (weight_map and isinstance(weight_map, dict)):
      raise ValueError("it has no weight_map from arrays to files")
    for shard in weight_map.values():
      if not isinstance(shard, str):
        raise ValueError("a file name in weight_map is not a string")
      if shard in ("", ".", "..") or set(shard) & set("/\\\0"):
        raise ValueError(f"{_quote([shard])} leads out of the folder")
  return weight_map


def _find_shards(
  folder: pathlib.Path, weight_map: dict[str, str]
) -> list[CheckedFile]:
  shards = sorted(set(weight_map.values()))
  missing = {s for s in shards if not os.path.lexists(folder / s)}
  if missing:
    count = sum(shard in missing for shard in weight_map.values())
    raise read_error(
      folder / INDEX,
      f"{len(missing)} of its {len(shards)} files are missing, with {count} of"
      f" {len(weight_map)} arrays: {_quote(missing)}",
      "Download them too.",
    )
  return [find_file(folder, shard) for shard in shards]


def _open_pickle(file: CheckedFile) -> Arrays:
  """Opens the tensors of a `pytorch_model.bin` without executing its code."""
  torch = _import_torch(file.path)

  @functools.cache  # a pickle has no header: all of it is read
  def load_tensors() -> dict[str, Any]:
    with _safe_read(file):
      try:
        tensors = torch.load(
          file.target,
          map_location="cpu",
          weights_only=True,
          mmap=zipfile.is_zipfile(file.target),
        )
      except Exception as e:  # the class depends on where the file is damaged
        line = str(e).split("\n")[0]
        raise ValueError(f"PyTorch cannot read it: {line}") from e
      is_tensor_dict = isinstance(tensors, dict) and all(
        isinstance(name, str)
        and isinstance(x, torch.Tensor)
        and x.layout == torch.strided
        for name, x in tensors.items()
      )
      if not (is_tensor_dict and tensors):
        raise ValueError("it holds other things than named tensors")
      return tensors

  def read(name: str) -> np.ndarray:
    x = load_tensors()[name].detach()
    if x.dtype == torch.bfloat16:
      return x.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()

  tensors = load_tensors().items()
  return Arrays(
    path=file.path,
    shapes={name: tuple(x.shape) for name, x in tensors},
    dtypes={name: str(x.dtype).removeprefix("torch.") for name, x in tensors},
    read=read,
    release=load_tensors.cache_clear,
  )


def _import_torch(path: pathlib.Path) -> ModuleType:
  """Imports PyTorch, of a version whose `weights_only` is safe."""
  version = "none"
  with contextlib.suppress(ImportError):
    import torch

    version = str(torch.__version__)
    if [int(x) for x in re.findall(r"\d+", version)[:2]] >= MIN_TORCH:
      return torch
  raise read_error(
    path,
    "it is a pickle, which can run any code. PyTorch"
    f" {MIN_TORCH[0]}.{MIN_TORCH[1]} or later reads only its tensors"
    f" (installed: {version})",
    f"Run {install.torch_command()}. If you trust the file, you can also load"
    f" it with transformers, write it as {WEIGHTS} with"
    " save_pretrained('FOLDER'), copy the vocabulary there, and pass"
    " --config.init=FOLDER.",
  )


def _no_weights_error(folder: pathlib.Path) -> InputError:
  try:
    names = sorted(os.listdir(folder))
  except (OSError, ValueError) as e:
    return read_error(folder, e, "Choose another folder.")
  problem = f"it holds none of {WEIGHTS}, {INDEX} and {PICKLE}"
  if others := [x for x in names if OTHER_FORMATS.search(x)]:
    problem += f". Files of these formats are not read: {_quote(others)}"
  return read_error(
    folder,
    problem,
    f"Choose a folder with one of them, or write {WEIGHTS} with save_pretrained"
    " of transformers.",
  )


@contextlib.contextmanager
def _safe_read(file: CheckedFile) -> Iterator[None]:
  """Turns errors while a file is read, and changes of it, into InputErrors."""
  try:
    file.check_unchanged()
    yield
    file.check_unchanged()
  except READ_ERRORS as e:
    raise read_error(file.path, e, RETRY) from e


def _quote(names: Iterable[str]) -> str:
  """Quotes at most 50 names for a message and cuts long ones."""
  quoted = [repr(name[:MAX_NAME]) for name in sorted(names)]
  if len(quoted) > 50:
    quoted[50:] = [f"and {len(quoted) - 50} more"]
  return ", ".join(quoted)
