"""Weights as Hugging Face keeps them: one safetensors file, or shards.

The files may come from anybody, so they are held to be hostile until they were
seen to be sound, by their headers alone. Pickles can run code, so none is ever
opened. The format: https://huggingface.co/docs/safetensors/index#format
"""

import collections
import contextlib
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors

from truenegs_jax.runtime.errors import InputError, printable
from truenegs_jax.weights.formats.network import Arrays
from truenegs_jax.weights.formats.safe_files import File, find, reason, status

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
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
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".bin.index.json")
OLDER = {"tf_model.h5": "from_tf", "flax_model.msgpack": "from_flax"}
MEND = "Mend that, or fetch the file again."


class _Array(NamedTuple):
  file: File
  shape: tuple[int, ...]
  dtype: str


def open_safetensors(folder: pathlib.Path) -> Arrays:
  """The arrays of one network's folder; only the headers are read.

  That is `model.safetensors` or, where that is absent, all the shards which
  `model.safetensors.index.json` names: what transformers reads. The bytes of
  an array are read when it is asked for, and no file is kept open.

  Types that numpy lacks go by safetensors' names ("f8_e4m3"); `read` refuses
  them.

  Raises:
    InputError: here or in `read`: no such files, only pickles, a file that is
      damaged, contradicts itself, leads out of the folder or has changed.
  """
  if os.path.lexists(folder / WEIGHTS):
    path, places = folder / WEIGHTS, {}
    shards = [find(folder, WEIGHTS)]
  elif os.path.lexists(folder / INDEX):
    path, places = folder, _places(find(folder, INDEX))
    shards = _find_shards(folder, places)
  else:
    raise _absent(folder)
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
      folder / INDEX,
      f"{_some({places[name] for name in lost})} should hold {_some(lost)}",
      "They do not, so they are of another network: fetch all of them again.",
    )
  return Arrays(
    path=path,
    shapes={name: array.shape for name, array in found.items()},
    dtypes={name: array.dtype for name, array in found.items()},
    read=lambda name: _read(name, found[name]),
  )


def _header(file: File) -> dict[str, _Array]:
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


def _places(index: File) -> dict[str, str]:
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


def _find_shards(folder: pathlib.Path, places: dict[str, str]) -> list[File]:
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
  return [find(folder, shard) for shard in shards]


def _absent(folder: pathlib.Path) -> InputError:
  """Why there is nothing to read, and how to come by something."""
  try:
    names = sorted(os.listdir(folder))
  except (OSError, ValueError) as e:
    return _refusal(folder, f"no folder that can be read: {reason(e)}")
  why = f"neither {WEIGHTS} nor {INDEX} is there"
  older = [name for name in names if name in OLDER]
  if pickles := [name for name in names if name.endswith(PICKLES)]:
    why += f". {_some(pickles)}: pickles can run any code and are never opened"
    where, option = "On a machine where that file is trusted", ""
  elif older:
    why += f". {older[0]} is of an older format, which is not read"
    where = "With transformers 4, which still reads that"
    option = f", {OLDER[older[0]]}=True"
  else:
    return _refusal(folder, why, "Name a folder with one of them.")
  return _refusal(
    folder,
    why,
    f"{where}, transformers.{_architecture(folder)}.from_pretrained("
    f"{str(folder)!r}{option}).save_pretrained('NEW') writes {WEIGHTS}; copy"
    " the vocabulary beside it and give --config.init=NEW.",
  )


def _architecture(folder: pathlib.Path) -> str:
  """The class that config.json names, or the one for every network."""
  with contextlib.suppress(*UNREADABLE, LookupError, TypeError):
    name = _load_json(find(folder, "config.json"))["architectures"][0]
    if re.fullmatch("[A-Z][A-Za-z0-9]{,99}", name):
      return name
  return "AutoModel"


@contextlib.contextmanager
def _reading(file: File) -> Iterator[None]:
  """All that can be wrong with a file while it is read is an InputError."""
  try:
    _check_unchanged(file)
    yield
    _check_unchanged(file)
  except UNREADABLE as e:
    raise _refusal(file.path, reason(e)) from e


def _check_unchanged(file: File) -> None:
  if status(file.target) != file.status:
    raise ValueError("it has changed since it was first looked at")


def _load_json(file: File) -> Any:
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
