"""Opens a network's folder in Hugging Face's format; reads only headers.

network = open_network(folder)

The files may come from anybody and are not trusted: links must not lead out of
the folder, and headers are checked before an array is read. A pickle can run
code, so `pytorch_model.bin` is read only by PyTorch's
`torch.load(weights_only=True)`, in versions where no way around that protection
is known. https://huggingface.co/docs/safetensors/index#format
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import re
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
from flax import serialization, traverse_util

from truenegs_jax.config.sections import SIZES
from truenegs_jax.data import tokenizer_files
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.data.tokenizer_files import load_tokenizer
from truenegs_jax.runtime.errors import InputError, printable
from truenegs_jax.runtime.files import CHECKSUMS, parse_json, read_file, sync
from truenegs_jax.runtime.paths import join_inside
from truenegs_jax.weights import hf_config, hf_names

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CARD = "README.md"
FLAX = "flax_model.msgpack"
PICKLE = "pytorch_model.bin"
# PyPI's build for Linux has CUDA and is much larger.
INSTALL_TORCH = (
  "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
)
MIN_TORCH = (2, 10)  # no known way around weights_only=True from here on
# The names of BERT-large take 0.05 MB; parsed JSON takes up to 50 times as much
# memory as its text.
MAX_HEADER = 2**20
CHECKSUM = re.compile(r"^([0-9a-f]{64}) [ *](.+)$", re.MULTILINE)
# Suffixes of TF1's layer norms, which transformers reads too.
OLD_SUFFIXES = {".gamma": ".weight", ".beta": ".bias"}
# First words of the names in a file without heads and without a family prefix.
BARE_PREFIXES = (
  *("embeddings", "embeddings_project", "encoder", "pooler"),
  *("layers", "final_norm"),  # ModernBERT's
)
# Constants that older versions of transformers saved with the weights.
CONSTANTS = ("embeddings.position_ids", "embeddings.token_type_ids")
DECODER_BIAS = "cls.predictions.decoder.bias"
BIAS = "cls.predictions.bias"
GENERATORS = ("generator_predictions.", "generator_lm_head.")
# Flax's names of arrays -> PyTorch's.
FLAX_ARRAYS = dict.fromkeys(("embedding", "kernel", "scale"), "weight")
Shapes = dict[str, tuple[int, ...]]
Named = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Network:
  """The weights of one network and their description; arrays are not loaded."""

  role: str  # "discriminator", "generator" or "bert"
  location: str  # where they are, for messages, with the path in quotes
  shapes: Shapes  # of this network only, by Hugging Face's names
  load: Callable[[], Named]
  fields: Mapping[str, Any]  # of `config.json`, with defaults filled in
  vocabulary: pathlib.Path | None  # file next to the weights
  lowercase: bool | None  # how text is normalized; None if unknown
  strip_accents: bool | None
  backbone: str  # a module of truenegs_jax/models
  prefix: str = ""  # of a wrapper, which was taken off the names of arrays

  @functools.cached_property
  def tokenizer(self) -> Tokenizer:
    """The tokenizer; capitals in the vocabulary decide an unknown case."""
    if self.vocabulary is None:
      raise InputError(
        f"init: {self.location} has no vocabulary file. Copy the vocab.txt or"
        " tokenizer.json of the weights there."
      )
    path = str(self.vocabulary)
    accents = self.strip_accents
    load = functools.partial(load_tokenizer, path, strip_accents=accents)
    tokenizer = load(lowercase=self.lowercase is not False)
    words = (x for x in tokenizer.vocab if not x.startswith("["))
    is_open = self.lowercase is None and not tokenizer.definition
    if is_open and any(x != x.lower() for x in words):
      return load(lowercase=False)
    return tokenizer

  @functools.cached_property
  def values(self) -> dict[str, Any]:
    """All values of `EncoderConfig` that its config.json has."""
    return hf_config.read_sizes(self.fields)

  @property
  def sizes(self) -> dict[str, float]:
    """Keys of `model` with its sizes, and bases of rotary positions if any."""
    names = (*SIZES, *hf_config.THETAS)
    return {x: self.values[x] for x in names if x in self.values}

  @property
  def generator_sizes(self) -> tuple[int, ...]:
    """Those of the sizes that a generator does not share."""
    return tuple(self.values[x] for x in ("width", "layers", "heads", "ffn"))

  @property
  def architecture(self) -> str:
    """Its class of transformers; "" if unknown."""
    match self.fields.get("architectures"):
      case [str(name), *_]:
        return name
    return ""


def open_network(folder: pathlib.Path) -> Network:
  """Opens a folder's network; family and array names determine its role.

  ModernBERT's do not: without a detector's labels, the role is "bert".
  """
  if find_optional(folder, f"{hf_names.DETECTOR}/{CONFIG}"):
    folder /= hf_names.DETECTOR  # the same encoder, and a head
  verify_checksums(folder)
  path = find_optional(folder, CONFIG)
  if path is None:
    raise InputError(
      f"init: '{folder}' holds no {CONFIG}. Copy that of the weights."
    )
  with safe_read(path):
    fields = hf_config.complete_fields(parse_json(read_file(path)), path)
  stored, load = open_arrays(folder)
  names, prefix = _current_names(folder, stored, fields["model_type"])
  if (num_layers := fields["num_hidden_layers"]) > len(names):
    raise InputError(
      f"init: '{folder}' has only {len(names)} arrays, but its {CONFIG} has"
      f" {num_layers:,} layers. Use the config of the weights."
    )

  def load_current() -> Named:
    loaded = load()
    return {new: loaded[name] for new, name in names.items()}

  lowercase, strip_accents = tokenizer_files.read_text_options(folder)
  return Network(
    role=_find_role(fields, names),
    location=f"'{folder}'",
    shapes={new: stored[name] for new, name in names.items()},
    load=load_current,
    fields=fields,
    vocabulary=tokenizer_files.find_file(folder),
    lowercase=lowercase,
    strip_accents=strip_accents,
    backbone="modern" if fields["model_type"] == "modernbert" else "encoder",
    prefix=prefix,
  )


def _find_role(fields: Mapping[str, Any], names: Iterable[str]) -> str:
  if fields["model_type"] == "electra":
    is_generator = any(name.startswith(GENERATORS) for name in names)
    return "generator" if is_generator else "discriminator"
  labels = hf_config.label_fields(hf_names.DETECTOR_LABELS)["id2label"]
  is_detector = fields.get("architectures") == [hf_names.DETECTOR_CLASS]
  has_labels = fields.get("id2label") == labels
  return "discriminator" if is_detector and has_labels else "bert"


def verify_checksums(folder: pathlib.Path) -> None:
  """Compares the files to read with a folder's SHA256SUMS, if it has one."""
  sums = find_optional(folder, CHECKSUMS)
  if sums is None:
    return
  with safe_read(sums):
    lines = CHECKSUM.findall(read_file(sums).decode("utf-8", "replace"))
  listed = {name: digest for digest, name in lines}
  weights = [x for x in FORMATS if os.path.lexists(folder / x) or x in listed]
  for name in (*weights[:1], *tokenizer_files.HUB_FILES):
    path = find_optional(folder, name)
    if (path and hash_file(path)) != listed.get(name):
      problem = "is not as listed" if path else "is missing, but listed"
      raise InputError(
        f"init: '{folder / name}' {problem} in '{sums}', so a file is damaged."
        " Use the original files. If you changed it yourself, remove"
        f" {CHECKSUMS}."
      )


def hash_file(path: pathlib.Path) -> str:
  """Returns the SHA-256 of a file in hexadecimal digits."""
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: pathlib.Path) -> None:
  """Flushes all files to disk and writes SHA256SUMS of all but the card."""
  lines = []
  for path in sorted(folder.iterdir()):
    if path.is_dir():
      continue
    sync(path)
    if path.name != CARD:
      lines.append(f"{hash_file(path)}  {path.name}\n")
  sums = folder / CHECKSUMS
  sums.write_text("".join(lines), encoding="utf-8")
  sync(sums)


def _current_names(
  folder: pathlib.Path, stored: Iterable[str], family: str
) -> tuple[dict[str, str], str]:
  """Maps the names that transformers uses today to those that are stored.

  Returns also what precedes them all: the prefix of a wrapper, such as
  "module." of PyTorch's data parallelism or "_orig_mod." of a compiled module.
  """
  prefix, names = hf_names.FAMILIES[family]
  table = f"{names['embeddings/word']}.weight"
  starts = [x.removesuffix(table) for x in stored if x.endswith(table)]
  start = starts[0] if len(starts) == 1 else prefix
  wrapper = start.removesuffix(prefix)
  is_bare = not start.endswith(prefix)
  stored_names: dict[str, str] = {}  # by current name
  for name in stored:
    if name.endswith(CONSTANTS):
      continue
    current = name.removeprefix(wrapper)
    if is_bare and current.startswith(BARE_PREFIXES):
      current = f"{prefix}{current}"
    for old, new in OLD_SUFFIXES.items():
      if current.endswith(old):
        current = current.removesuffix(old) + new
    if current in stored_names:
      raise InputError(
        f"init: '{folder}' holds {stored_names[current]} and {name}, which are"
        " two names of one array. Use the original file."
      )
    stored_names[current] = name
  if DECODER_BIAS in stored_names and BIAS not in stored_names:
    stored_names[BIAS] = stored_names.pop(DECODER_BIAS)
  return stored_names, wrapper


def open_arrays(folder: pathlib.Path) -> tuple[Shapes, Callable[[], Named]]:
  """Opens the first of FORMATS that a folder has, by PyTorch's names.

  Returns the arrays' shapes and a function that reads them; of safetensors only
  the header is read before. InputError, here or later: no such files, a damaged
  or unsafe one, or PyTorch, which reads a pickle, is missing.
  """
  file = find_optional(folder, *FORMATS)
  if file is None:
    raise InputError(f"init: '{folder}' holds none of {', '.join(FORMATS)}.")
  load = functools.partial(_load, file)
  with safe_read(file):
    with file.open("rb") as raw:
      start = raw.read(8)
    if start == b"version ":
      raise ValueError("it is a pointer of Git LFS. Run `git lfs pull`")
    if file.name != WEIGHTS:
      shapes = {name: x.shape for name, x in load().items()}
    elif (num_bytes := int.from_bytes(start, "little")) > MAX_HEADER:
      raise ValueError(f"its header has {num_bytes:,} bytes")
    else:
      # The library checks that arrays have the sizes of their shapes, are
      # stored without gaps or overlaps, and fill the file.
      with safetensors.safe_open(file, "numpy") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}
        shapes = {name: tuple(x.get_shape()) for name, x in slices.items()}
  return shapes, load


def find_optional(folder: pathlib.Path, *names: str) -> pathlib.Path | None:
  """Finds the first of several files of a folder; None if there is none.

  InputError: it is a link out of the folder, or no file.
  """
  for name in names:
    if os.path.lexists(folder / name):
      path = join_inside(folder, name, key="init")
      with safe_read(path):
        # Opening a pipe would wait forever.
        if not stat.S_ISREG(path.stat().st_mode):
          raise ValueError("it is not a file")
      return path
  return None


@contextlib.contextmanager
def safe_read(path: pathlib.Path) -> Iterator[None]:
  """Turns all errors while a file is read into InputErrors.

  Their class depends on the library, and on where the file is damaged.
  """
  try:
    yield
  except InputError:  # a ValueError that explains itself
    raise
  except Exception as e:
    reason = str(getattr(e, "strerror", None) or e).partition("\n")[0]
    reason = (reason or type(e).__name__)[:1000].rstrip(".")
    line = f"init: '{path}' cannot be read: {reason}. Use the original file."
    raise InputError(printable(line)) from e


def _load(file: pathlib.Path) -> Named:
  with safe_read(file):
    return FORMATS[file.name](file)


def _load_safetensors(file: pathlib.Path) -> Named:
  with safetensors.safe_open(file, "numpy") as opened:
    return {name: opened.get_tensor(name) for name in opened.keys()}


def _load_msgpack(file: pathlib.Path) -> Named:
  """Reads a Flax model with Flax, whose format has no code."""
  tree = serialization.msgpack_restore(file.read_bytes())
  arrays: Named = {}
  for path, x in traverse_util.flatten_dict(tree).items():
    name = ".".join([*map(str, path[:-1]), FLAX_ARRAYS.get(path[-1], path[-1])])
    if not isinstance(x, np.ndarray) or name in arrays:
      raise ValueError(f"{name!r} is not one array")
    arrays[name] = x.T if path[-1] == "kernel" else x
  return arrays


def _load_pickle(file: pathlib.Path) -> Named:
  """Reads the tensors of a `pytorch_model.bin` without executing its code."""
  version = "none"
  with contextlib.suppress(ImportError):
    import torch

    version = str(torch.__version__)
  numbers = re.findall(r"\d+", version)[:2]
  if tuple(map(int, numbers)) < MIN_TORCH:
    raise ValueError(
      "it is a pickle, which can run any code. PyTorch"
      f" {'.'.join(map(str, MIN_TORCH))} or later reads only its tensors"
      f" (installed: {version}). Run {INSTALL_TORCH}, or put the model's {FLAX}"
      " there, if it has one"
    )

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


# Functions that load a folder's weights; the first of the files is read.
FORMATS: dict[str, Callable[[pathlib.Path], Named]] = {
  WEIGHTS: _load_safetensors,
  FLAX: _load_msgpack,
  PICKLE: _load_pickle,
}
