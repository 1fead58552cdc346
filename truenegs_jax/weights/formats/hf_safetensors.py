"""Weights as Hugging Face keeps them: one safetensors file, shards, a pickle.

The files may come from anybody, so they are held to be hostile until their
headers were seen to be sound. A pickle can run code: `pytorch_model.bin` is
left to PyTorch's reader of tensors alone, `torch.load(weights_only=True)`, in
versions without known ways around it. The format of safetensors:
https://huggingface.co/docs/safetensors/index#format
"""

import collections
import contextlib
import functools
import json
import math
import os
import pathlib
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors

from truenegs_jax.runtime.errors import InputError, printable
from truenegs_jax.weights.formats.network import (
  Arrays,
  CheckedFile,
  error_text,
  find_file,
)

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
# What can be read; of bfloat16 numpy learns from ml_dtypes.
DTYPES = {
  "BOOL": "bool",
  "BF16": np.dtype(ml_dtypes.bfloat16).name,
  "C64": "complex64",
  **{f"F{n}": f"float{n}" for n in (16, 32, 64)},
  **{f"I{n}": f"int{n}" for n in (8, 16, 32, 64)},
  **{f"U{n}": f"uint{n}" for n in (8, 16, 32, 64)},
}
# BERT-large has 0.05 MB of names; parsed, JSON takes up to 50 times its size.
MAX_JSON_BYTES = 2**20
TOO_MANY = f"more than the {MAX_JSON_BYTES} bytes that are read of names"
MAX_NAME, MAX_RANK, MAX_SIZE = 300, 32, 2**48
UNREADABLE = (
  *(OSError, ValueError, MemoryError, safetensors.SafetensorError),
  RuntimeError,  # nested too deeply, links in a circle
)
OTHERS = (
  *(".bin", ".pt", ".pth", ".pkl", ".ckpt", ".bin.index.json"),
  *(".h5", ".msgpack"),
)
TORCH = [2, 10]  # the first without known ways around weights_only=True
MEND = "Fix that, or fetch the file again."


class _Array(NamedTuple):
  file: CheckedFile
  shape: tuple[int, ...]
  dtype: str


def open_arrays(folder: pathlib.Path) -> Arrays:
  """The arrays of one network's folder; of safetensors only headers are read.

  That is `model.safetensors`, or all the shards which
  `model.safetensors.index.json` names, or `pytorch_model.bin`: the first of
  them that is there, as in transformers. No file is kept open.

  Types that numpy lacks go by safetensors' names ("f8_e4m3"); `read` refuses
  them.

  Raises:
    InputError: here or in `read`: no such files, or one that is damaged,
      contradicts itself, leads out of the folder or has changed; a pickle, and
      no PyTorch to read it or more in it than tensors.
  """
  if os.path.lexists(folder / WEIGHTS):
    return open_file(folder, WEIGHTS)
  if os.path.lexists(folder / INDEX):
    places = _places(find_file(folder, INDEX))
    return _open_shards(folder, _find_shards(folder, places), places)
  if os.path.lexists(folder / PICKLE):
    return _open_pickle(find_file(folder, PICKLE))
  raise _absent(folder)


def open_file(folder: pathlib.Path, name: str) -> Arrays:
  """The arrays of one file of safetensors; as `open_arrays`."""
  return _open_shards(folder / name, [find_file(folder, name)], {})


def _open_shards(
  path: pathlib.Path, shards: Sequence[CheckedFile], places: Mapping[str, str]
) -> Arrays:
  """Arrays of several files; `places` says which has to be in which."""
  found: dict[str, _Array] = {}
  for shard in shards:
    header = _header(shard)
    if twice := header.keys() & found.keys():
      other = found[min(twice)].file.path.name
      raise _refusal(shard.path, f"{other!r} holds {_some(twice)}, too")
    found |= header
  inside = {name: array.file.path.name for name, array in found.items()}
  if lost := [name for name in places if inside.get(name) != places[name]]:
    raise _refusal(
      path / INDEX,
      f"{_some({places[name] for name in lost})} should hold {_some(lost)}",
      "They do not, so they are of another network: fetch all of them again.",
    )
  return Arrays(
    path=path,
    shapes={name: array.shape for name, array in found.items()},
    dtypes={name: array.dtype for name, array in found.items()},
    read=lambda name: _read(name, found[name]),
  )


def _header(file: CheckedFile) -> dict[str, _Array]:
  """The arrays of a file that is sound.

  The library checks that they are of their shapes' sizes, lie one behind the
  other and fill the file; here is what it lets pass.
  """
  with _reading(file):
    with open(file.target, "rb") as raw:
      size = raw.read(8)
      if size == b"version ":
        raise ValueError("a pointer of Git LFS, which `git lfs pull` follows")
      num_bytes = int.from_bytes(size, "little")
      if num_bytes > MAX_JSON_BYTES:
        raise ValueError(f"its header claims {num_bytes} bytes, {TOO_MANY}")
      text = raw.read(num_bytes)
    found = {}
    with safetensors.safe_open(file.target, "numpy") as opened:
      for name in opened.keys():
        array = opened.get_slice(name)
        shape, dtype = tuple(array.get_shape()), array.get_dtype()
        _check_array(name, shape)
        found[name] = _Array(file, shape, DTYPES.get(dtype, dtype.lower()))
    _parse(text)  # of a name that is there twice, the library takes either
    if not found:
      raise ValueError("it holds no arrays")
  return found


def _check_array(name: str, shape: tuple[int, ...]) -> None:
  if not (name.isprintable() and 0 < len(name) <= MAX_NAME):
    raise ValueError(f"{_some([name])} is no name of an array")
  # Where one of the sizes is 0, the number of bytes says nothing of the others.
  if len(shape) > MAX_RANK or math.prod(max(n, 1) for n in shape) > MAX_SIZE:
    raise ValueError(f"{name!r} cannot have the shape {shape[:MAX_RANK]}")


def _read(name: str, array: _Array) -> np.ndarray:
  file = array.file
  if array.dtype not in DTYPES.values():
    raise _refusal(
      file.path,
      f"{name!r} is of type {array.dtype}, which cannot be read",
      f"These can: {', '.join(DTYPES.values())}.",
    )
  with _reading(file), safetensors.safe_open(file.target, "numpy") as opened:
    return opened.get_tensor(name)


def _places(index: CheckedFile) -> dict[str, str]:
  """Name of an array -> name of its shard, as an index has them."""
  with _reading(index):
    fields = _load_json(index)
    places = fields.get("weight_map") if isinstance(fields, dict) else None
    if not (places and isinstance(places, dict)):
      raise ValueError("there is no `weight_map` from arrays to files")
    for shard in places.values():
      if not isinstance(shard, str):
        raise ValueError("weight_map: the name of a file is no text")
      if shard in ("", ".", "..") or set(shard) & set("/\\\0"):
        raise ValueError(f"{_some([shard])} leads out of the folder")
  return places


def _find_shards(
  folder: pathlib.Path, places: dict[str, str]
) -> list[CheckedFile]:
  shards = sorted(set(places.values()))
  absent = {s for s in shards if not os.path.lexists(folder / s)}
  if absent:
    count = sum(shard in absent for shard in places.values())
    raise _refusal(
      folder / INDEX,
      f"{len(absent)} of its {len(shards)} files are not there, with {count} of"
      f" {len(places)} arrays: {_some(absent)}",
      "Fetch them, too.",
    )
  return [find_file(folder, shard) for shard in shards]


def _open_pickle(file: CheckedFile) -> Arrays:
  """The tensors of a `pytorch_model.bin`; nothing else in it is executed."""
  torch = _import_torch(file.path)

  @functools.cache  # its header is the whole pickle
  def tensors() -> dict[str, Any]:
    with _reading(file):
      try:
        loaded = torch.load(
          file.target,
          map_location="cpu",
          weights_only=True,
          mmap=zipfile.is_zipfile(file.target),
        )
      except Exception as e:  # of any kind, by where the pickle is damaged
        text = str(e).split("\n")[0]
        raise ValueError(f"PyTorch does not read it: {text}") from e
      strided = isinstance(loaded, dict) and all(
        isinstance(name, str)
        and isinstance(x, torch.Tensor)
        and x.layout == torch.strided
        for name, x in loaded.items()
      )
      if not (loaded and strided):
        raise ValueError("it holds other things than named tensors")
      return loaded

  def read(name: str) -> np.ndarray:
    x = tensors()[name].detach()
    if x.dtype == torch.bfloat16:
      return x.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()

  named = tensors().items()
  return Arrays(
    path=file.path,
    shapes={name: tuple(x.shape) for name, x in named},
    dtypes={name: str(x.dtype).removeprefix("torch.") for name, x in named},
    read=read,
    release=tensors.cache_clear,
  )


def _import_torch(path: pathlib.Path) -> Any:
  """PyTorch, of a version whose `weights_only` is trusted."""
  try:
    import torch

    version = str(torch.__version__)
  except ImportError:
    version = "none"
  else:
    numbers = [int(x) for x in re.findall(r"\d+", version)[:2]]
    if numbers >= TORCH:
      return torch
  raise _refusal(
    path,
    f"a pickle, which can run any code; PyTorch {TORCH[0]}.{TORCH[1]} or later"
    f" reads its tensors alone, and here is {version}",
    "Install it: pip install 'truenegs_jax[torch]'. Or, on a machine where the"
    " file is trusted, from_pretrained and save_pretrained('NEW') of the class"
    f" of transformers that config.json names write {WEIGHTS}; copy the"
    " vocabulary beside it and give --config.init=NEW.",
  )


def _absent(folder: pathlib.Path) -> InputError:
  try:
    names = sorted(os.listdir(folder))
  except (OSError, ValueError) as e:
    return _refusal(folder, f"no folder that can be read: {error_text(e)}")
  why = f"none of {WEIGHTS}, {INDEX} and {PICKLE} is there"
  if others := [name for name in names if name.endswith(OTHERS)]:
    why += f". {_some(others)}: such files are not read"
  return _refusal(
    folder,
    why,
    "Name a folder with one of them; from_pretrained and save_pretrained of"
    f" transformers make {WEIGHTS} of others.",
  )


@contextlib.contextmanager
def _reading(file: CheckedFile) -> Iterator[None]:
  """All that can be wrong with a file while it is read is an InputError."""
  try:
    file.check_unchanged()
    yield
    file.check_unchanged()
  except UNREADABLE as e:
    raise _refusal(file.path, error_text(e)) from e


def _load_json(file: CheckedFile) -> Any:
  if file.target.stat().st_size > MAX_JSON_BYTES:
    raise ValueError(f"it has {TOO_MANY}")
  return _parse(file.target.read_bytes())


def _parse(text: bytes) -> Any:
  """JSON in which no name is there twice; one of UNREADABLE if it is not."""

  def no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
      counts = collections.Counter(name for name, _ in pairs)
      raise ValueError(f"{_some(counts.most_common(1)[0][:1])} is there twice")
    return fields

  return json.loads(text.decode(), object_pairs_hook=no_twice)


def _some(names: Iterable[str]) -> str:
  """Names as they may be shown, not more than can be read."""
  shown = sorted(names)
  more = [f"and {len(shown) - 50} more"] if len(shown) > 50 else []
  return ", ".join([repr(name[:MAX_NAME]) for name in shown[:50]] + more)


def _refusal(path: pathlib.Path, why: str, way: str = MEND) -> InputError:
  line = f"init: {path}: {why[:20_000]}. {way}".replace("\n", " ")
  return InputError(printable(ValueError(line)))
