"""Reads arrays in Hugging Face's files: safetensors, msgpack or a pickle.

The files may come from anybody and are not trusted: links must not lead out of
the folder, and headers are checked before an array is read. A pickle can run
code, so `pytorch_model.bin` is read only by PyTorch's
`torch.load(weights_only=True)`, in versions where no way around that protection
is known. https://huggingface.co/docs/safetensors/index#format
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
from flax import serialization, traverse_util

from truenegs_jax.runtime.errors import InputError, printable
from truenegs_jax.runtime.paths import join_inside

TORCH = "torch==2.13.0"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
MIN_TORCH = [2, 10]  # no known way around weights_only=True from here on
WEIGHTS = "model.safetensors"
FLAX = "flax_model.msgpack"
PICKLE = "pytorch_model.bin"
FLOATS = ("float32", "float16", "bfloat16")  # types of arrays that are read
# The names of BERT-large take 0.05 MB; parsed JSON takes up to 50 times as much
# memory as its text.
MAX_JSON_BYTES = 2**20
MAX_NAME = 300
# Flax's names of arrays -> PyTorch's.
FLAX_ARRAYS = dict.fromkeys(("embedding", "kernel", "scale"), "weight")
RETRY = "Download the file again."
Named = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Arrays:
  """Named arrays, of which only the shapes are in memory."""

  path: pathlib.Path  # the file, or the workdir of a run, for messages
  # From headers, so that they can be checked before an array is read.
  shapes: Mapping[str, tuple[int, ...]]
  load: Callable[[], Named]
  # Frees what `load` keeps in memory; it still works afterwards.
  release: Callable[[], object] = lambda: None

  def rename(self, names: Mapping[str, str]) -> "Arrays":
    """Returns the arrays in `names`: new names -> present ones."""

    def load() -> Named:
      loaded = self.load()
      return {new: loaded[name] for new, name in names.items()}

    shapes = {new: self.shapes[name] for new, name in names.items()}
    return dataclasses.replace(self, shapes=shapes, load=load)


def open_arrays(folder: pathlib.Path) -> Arrays:
  """Opens the first of FORMATS that a folder has, by PyTorch's names.

  Of safetensors only the header is read. InputError, here or in `load`: no such
  files, a damaged or unsafe one, or PyTorch, which reads a pickle, is missing.
  """
  file = find_optional(folder, *FORMATS)
  if file is None:
    raise read_error(folder, f"it holds none of {', '.join(FORMATS)}")
  load = functools.partial(_load, file)
  with safe_read(file):
    with file.open("rb") as raw:
      if raw.read(8) == b"version ":
        raise ValueError("it is a pointer of Git LFS. Run `git lfs pull`")
    if file.name == WEIGHTS:
      shapes = _read_header(file)
    else:
      shapes = {name: x.shape for name, x in load().items()}
    if not shapes:
      raise ValueError("it holds no arrays")
    for name in shapes:
      if not (name.isprintable() and 0 < len(name) <= MAX_NAME):
        raise ValueError(f"{name[:MAX_NAME]!r} is not a valid name")
  return Arrays(file, shapes, load)


def find_file(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Finds a file of a folder by `paths.join_inside`."""
  path = join_inside(folder, name, key="init")
  with safe_read(path, fix=""):
    # Opening a pipe would wait forever.
    if not stat.S_ISREG(path.stat().st_mode):
      raise ValueError("it is not a file")
  return path


def find_optional(folder: pathlib.Path, *names: str) -> pathlib.Path | None:
  """Finds the first of several files; None if there is none, or no link."""
  for name in names:
    if os.path.lexists(folder / name):
      return find_file(folder, name)
  return None


def read_error(
  path: pathlib.Path, problem: Exception | str, fix: str = ""
) -> InputError:
  """Returns the error for a file that cannot be read; escapes its text."""
  if isinstance(problem, Exception):
    strerror = getattr(problem, "strerror", None)  # without number and path
    text = str(strerror or problem).partition("\n")[0].rstrip(".")
    problem = text or type(problem).__name__
  line = f"init: '{path}' cannot be read: {problem[:20_000]}. {fix}".strip()
  return InputError(printable(line))


@contextlib.contextmanager
def safe_read(file: pathlib.Path, *, fix: str = RETRY) -> Iterator[None]:
  """Turns all errors while a file is read into InputErrors.

  Their class depends on the library, and on where the file is damaged.
  """
  try:
    yield
  except InputError:  # a ValueError that explains itself
    raise
  except Exception as e:
    raise read_error(file, e, fix) from e


def _load(file: pathlib.Path) -> Named:
  with safe_read(file):
    try:
      return FORMATS[file.name](file)
    except (AttributeError, TypeError) as e:  # of another object than a dict
      raise ValueError(f"it holds no named arrays ({e})") from e


def _read_header(file: pathlib.Path) -> dict[str, tuple[int, ...]]:
  """Returns the shapes in a file, after a check of its header's size.

  The library checks that the arrays have the sizes of their shapes, are stored
  without gaps or overlaps, and fill the file.
  """
  with file.open("rb") as raw:
    num_bytes = int.from_bytes(raw.read(8), "little")
  if num_bytes > MAX_JSON_BYTES:
    raise ValueError(f"its header is longer than {MAX_JSON_BYTES:,} bytes")
  with safetensors.safe_open(file, "numpy") as opened:
    slices = {name: opened.get_slice(name) for name in opened.keys()}
    return {name: tuple(x.get_shape()) for name, x in slices.items()}


def _load_safetensors(file: pathlib.Path) -> Named:
  with safetensors.safe_open(file, "numpy") as opened:
    return {name: opened.get_tensor(name) for name in opened.keys()}


def _load_msgpack(file: pathlib.Path) -> Named:
  """Reads a Flax model with Flax, whose format has no code."""
  tree = serialization.msgpack_restore(file.read_bytes())
  if not isinstance(tree, dict):
    raise ValueError("it is not one map of arrays")
  arrays: Named = {}
  for path, x in traverse_util.flatten_dict(tree).items():
    name = ".".join([*map(str, path[:-1]), FLAX_ARRAYS.get(path[-1], path[-1])])
    if not isinstance(x, np.ndarray) or name in arrays:
      raise ValueError(f"{name[:MAX_NAME]!r} is not one array")
    arrays[name] = x.T if path[-1] == "kernel" else x
  return arrays


def _load_pickle(file: pathlib.Path) -> Named:
  """Reads the tensors of a `pytorch_model.bin` without executing its code."""
  torch = _import_torch(file)

  def to_numpy(x: Any) -> np.ndarray:
    x = x.detach()
    if x.dtype == torch.bfloat16:
      return x.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()

  is_zip = zipfile.is_zipfile(file)
  tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
  num_bytes = sum(x.numel() * x.element_size() for x in tensors.values())
  if num_bytes > 2 * file.stat().st_size:  # tied ones may share memory
    raise ValueError(f"its tensors would have {num_bytes:,} bytes")
  return {str(name): to_numpy(x) for name, x in tensors.items()}


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
    f"Run {torch_command()}. Or put the model's {FLAX} there, if it has one.",
  )


def torch_command() -> str:
  """Returns the command that installs PyTorch; on Linux its small CPU build."""
  if sys.platform == "linux":  # where PyPI has only the build with CUDA
    return f"pip install {TORCH} --index-url {TORCH_INDEX}"
  return f"pip install {TORCH}"


# Functions that load a folder's weights; the first of the files is read.
FORMATS: dict[str, Callable[[pathlib.Path], Named]] = {
  WEIGHTS: _load_safetensors,
  FLAX: _load_msgpack,
  PICKLE: _load_pickle,
}
