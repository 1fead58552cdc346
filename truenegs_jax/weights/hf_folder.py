"""Reads and writes a network's folder in Hugging Face's format.

network = open_network(folder)
write_model(folder, params, model, "discriminator", tokenizer)
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from tokenizers import decoders, processors

from truenegs_jax.config.sections import SIZES
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.runtime.errors import InputError, printable
from truenegs_jax.runtime.files import CHECKSUMS, parse_json, read_file
from truenegs_jax.weights import arrays as arrays_lib
from truenegs_jax.weights import hf_config, hf_names
from truenegs_jax.weights.arrays import Arrays, find_optional, safe_read
from truenegs_jax.weights.hf_config import THETAS

CONFIG = "config.json"
TOKENIZER = "tokenizer_config.json"
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


@dataclasses.dataclass(frozen=True)
class Network:
  """The weights of one network and their description."""

  role: str  # "discriminator", "generator" or "bert"
  location: str  # where they are, for messages, with the path in quotes
  arrays: Arrays  # of this network only
  fields: Mapping[str, Any]  # of `config.json`, with defaults filled in
  vocabulary: pathlib.Path | None  # file next to the weights
  lowercase: bool | None  # how text is normalized; None if unknown
  strip_accents: bool | None
  backbone: str  # a module of truenegs_jax/models
  # Whether names and layouts are those of our checkpoints, not Hugging Face's.
  is_ours: bool = False
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
    if self.lowercase is None and any(x != x.lower() for x in words):
      return load(lowercase=False)
    return tokenizer

  def names(self, model: hf_names.Model, role: str) -> dict[str, str]:
    """Maps each path of a model's network to the name of its array here."""
    if not self.is_ours:
      return hf_names.name_table(model, role)
    paths = hf_names.list_paths(model, role)
    # Those of a checkpoint have the head of pre-training.
    return {x: x.replace(hf_names.TASK_HEAD, f"{role}_head/") for x in paths}

  @property
  def tied(self) -> Mapping[str, str]:
    """Names of arrays that may be stored a second time -> paths in our tree."""
    if self.is_ours:
      return {}
    return hf_names.BACKBONES[self.backbone][self.role].tied

  @property
  def has_pooler(self) -> bool:
    """Whether it has BERT's pooler."""
    starts = ("pooled/pooler/", hf_names.POOLER)
    return any(name.startswith(starts) for name in self.arrays.shapes)

  @functools.cached_property
  def values(self) -> dict[str, Any]:
    """All values of `EncoderConfig` that its config.json has."""
    return hf_config.read_sizes(self.fields)

  @property
  def sizes(self) -> dict[str, int]:
    """The sizes, by the names of their keys of `model`."""
    return {x: self.values[x] for x in SIZES if x in self.values}

  @property
  def thetas(self) -> dict[str, float]:
    """Keys of `model` with the bases of rotary positions, if it has them."""
    return {x: self.values[x] for x in THETAS if x in self.values}

  @property
  def generator_sizes(self) -> tuple[int, ...]:
    """Those of the sizes that a generator does not share."""
    return tuple(self.values[x] for x in ("width", "layers", "heads", "ffn"))

  @property
  def architecture(self) -> str:
    """Its class of transformers; "" if unknown."""
    match self.fields.get("architectures"):
      case [str(name), *_]:
        return printable(name[:80])
    return ""


def model_config(
  model: hf_names.Model, role: str, *, pad: int
) -> dict[str, Any]:
  """Returns a complete `config.json`, as defaults are of other sizes."""
  family = hf_names.network_names(model, role).family
  name = hf_names.architecture(model, role)
  return hf_config.make_fields(model.roles[role], family, name, pad=pad)


def check_tokenizer(model: hf_names.Model, tokenizer: Tokenizer) -> None:
  """Raises InputError for a tokenizer of other tokens than the model's."""
  fix = "Use the tokenizer with which the model was trained or loaded."
  expected = getattr(model, "tokenizer", None)
  tokenizer_lib.check_tokens("The model", expected, tokenizer, fix)
  [size, *_] = [config.vocab_size for config in model.roles.values()]
  if len(tokenizer.vocab) != size:
    raise InputError(
      f"The vocabulary has {len(tokenizer.vocab):,} entries, but the model has"
      f" {size:,}. {fix}"
    )


def _fast_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
  """Returns BERT's `tokenizer.json`; transformers makes none for ModernBERT."""
  backend = tokenizer.make_backend()
  backend.add_special_tokens(list(tokenizer_lib.SPECIALS))
  backend.decoder = decoders.WordPiece()
  backend.post_processor = processors.BertProcessing(
    ("[SEP]", tokenizer.sep), ("[CLS]", tokenizer.cls)
  )
  return json.loads(backend.to_str())


def write_model(
  folder: pathlib.Path,
  params: Mapping[str, Any],
  model: hf_names.Model,
  role: str,
  tokenizer: Tokenizer,
  *,
  class_name: str = "",
  extra_fields: Mapping[str, Any] | None = None,
) -> None:
  """Writes one network into an existing folder, for `from_pretrained`.

  `class_name` is the network's, or without it its last of `list_classes`;
  `extra_fields` are those of `config.json` for a task. InputError: another
  vocabulary than the model's, or a network that transformers does not have.
  """
  if reason := hf_names.unsupported_reason(model):
    raise InputError(f"{reason} Use --config.model.backbone=encoder.")
  check_tokenizer(model, tokenizer)
  path = folder / arrays_lib.WEIGHTS
  tensors = hf_names.to_huggingface(params, model, role)
  fields = model_config(model, role, pad=tokenizer.pad) | dict(
    extra_fields or {}
  )
  if class_name == hf_names.MODERN_ENCODER:  # its names have no prefix
    fields["architectures"] = [class_name]
    names = [x for x in tensors if x.startswith("model.")]
    tensors = {x.removeprefix("model."): tensors[x] for x in names}
  elif len(hf_names.list_classes(model, role)) > 1:
    fields |= hf_config.label_fields(hf_names.DETECTOR_LABELS)
  safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
  # safetensors makes the file private, but an export is meant to be shared.
  path.chmod(0o644)
  family = fields["model_type"]
  if family == "modernbert":  # its ids are by default of another vocabulary
    cls = tokenizer.cls
    sep = tokenizer.sep
    fields |= {"bos_token_id": cls, "cls_token_id": cls}
    fields |= {"eos_token_id": sep, "sep_token_id": sep}
  tokenizer_lib.write_tokenizer(tokenizer, folder)
  length = model.roles[role].max_positions
  files = {CONFIG: fields} | _tokenizer_files(tokenizer, family, length)
  for name, value in files.items():
    text = json.dumps(value, indent=2) + "\n"
    (folder / name).write_text(text, encoding="utf-8")


def _tokenizer_files(
  tokenizer: Tokenizer, family: str, length: int
) -> dict[str, Any]:
  """Returns what transformers reads beside the vocabulary, by file name."""
  inputs = ["input_ids", "token_type_ids", "attention_mask"]
  if family == "modernbert":  # it has no token types
    inputs.remove("token_type_ids")
  limits = {"model_max_length": length, "model_input_names": inputs}
  if tokenizer.definition:
    return {TOKENIZER: json.loads(tokenizer.files[TOKENIZER]) | limits}
  # In BERT's tokenizer, null means that accents are stripped if lower-casing.
  is_default = tokenizer.strip_accents == tokenizer.lowercase
  config: dict[str, Any] = {
    "tokenizer_class": f"{family.capitalize()}Tokenizer",
    "do_lower_case": tokenizer.lowercase,
    "model_max_length": length,
    **{f"{x[1:-1].lower()}_token": x for x in tokenizer_lib.SPECIALS},
    "strip_accents": None if is_default else tokenizer.strip_accents,
    "tokenize_chinese_chars": True,
  }
  if family != "modernbert":
    return {TOKENIZER: config}
  config |= {"tokenizer_class": "PreTrainedTokenizerFast"} | limits
  return {TOKENIZER: config, tokenizer_lib.JSON: _fast_tokenizer(tokenizer)}


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
  fields = hf_config.read_fields(path)
  arrays = arrays_lib.open_arrays(folder)
  arrays, prefix = _use_current_names(arrays, fields["model_type"])
  backbone = "modern" if fields["model_type"] == "modernbert" else "encoder"
  role = "discriminator" if fields["model_type"] == "electra" else "bert"
  if role != "bert" and any(x.startswith(GENERATORS) for x in arrays.shapes):
    role = "generator"
  labels = hf_config.label_fields(hf_names.DETECTOR_LABELS)["id2label"]
  is_detector = fields.get("architectures") == [hf_names.DETECTOR_CLASS]
  if is_detector and fields.get("id2label") == labels:
    role = "discriminator"
    arrays = _subtract_labels(arrays)
  if (num_layers := fields["num_hidden_layers"]) > len(arrays.shapes):
    raise InputError(
      f"init: '{arrays.path}' has only {len(arrays.shapes)} arrays, but its"
      f" config has {num_layers:,} layers. Use the config of the weights."
    )
  lowercase, strip_accents = _read_text_options(folder)
  for name in tokenizer_lib.FILES:
    find_optional(folder, name)  # refuses links out of the folder
  vocabulary = tokenizer_lib.find_file(folder)
  return Network(
    role=role,
    location=f"'{folder}'",
    arrays=arrays,
    fields=fields,
    vocabulary=vocabulary and find_optional(folder, vocabulary.name),
    lowercase=lowercase,
    strip_accents=strip_accents,
    backbone=backbone,
    prefix=prefix,
  )


def verify_checksums(folder: pathlib.Path) -> None:
  """Compares the files to read with a folder's SHA256SUMS, if it has one."""
  sums = find_optional(folder, CHECKSUMS)
  if sums is None:
    return
  with safe_read(sums):
    lines = CHECKSUM.findall(read_file(sums).decode("utf-8", "replace"))
  listed = {name: digest for digest, name in lines}
  formats = arrays_lib.FORMATS
  weights = [x for x in formats if os.path.lexists(folder / x) or x in listed]
  for name in (*weights[:1], *tokenizer_lib.HUB_FILES):
    digest = None
    if path := find_optional(folder, name):
      with safe_read(path):
        digest = hash_file(path)
    if digest != listed.get(name):
      problem = "is not as listed" if digest else "is missing, but listed"
      raise InputError(
        f"init: '{folder / name}' {problem} in '{sums}', so a file is damaged."
        " Use the original files. If you changed it yourself, remove"
        f" {CHECKSUMS}."
      )


def hash_file(path: pathlib.Path) -> str:
  """Returns the SHA-256 of a file in hexadecimal digits."""
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _use_current_names(arrays: Arrays, family: str) -> tuple[Arrays, str]:
  """Renames arrays to the names that transformers uses today.

  Returns also what precedes them all: the prefix of a wrapper, such as
  "module." of PyTorch's data parallelism or "_orig_mod." of a compiled module.
  """
  prefix, names = hf_names.FAMILIES[family]
  table = f"{names['embeddings/word']}.weight"
  starts = [x.removesuffix(table) for x in arrays.shapes if x.endswith(table)]
  start = starts[0] if len(starts) == 1 else prefix
  wrapper = start.removesuffix(prefix)
  is_bare = not start.endswith(prefix)
  old_names: dict[str, str] = {}  # by current name
  for name in arrays.shapes:
    if name.endswith(CONSTANTS):
      continue
    current = name.removeprefix(wrapper)
    if is_bare and current.startswith(BARE_PREFIXES):
      current = f"{prefix}{current}"
    for old, new in OLD_SUFFIXES.items():
      if current.endswith(old):
        current = current.removesuffix(old) + new
    if current in old_names:
      raise InputError(
        f"init: '{arrays.path}' holds {old_names[current]} and {name}, which"
        " are two names of one array. Use the original file."
      )
    old_names[current] = name
  if DECODER_BIAS in old_names and BIAS not in old_names:
    old_names[BIAS] = old_names.pop(DECODER_BIAS)
  return arrays.rename(old_names), wrapper


def _subtract_labels(arrays: Arrays) -> Arrays:
  """Returns the one logit of a detector, of `replaced` over `original`."""
  both = {"classifier.weight", "classifier.bias"} & arrays.shapes.keys()
  names = [name for name in both if arrays.shapes[name][:1] == (2,)]

  def load() -> arrays_lib.Named:
    loaded = arrays.load()
    for name in names:
      x = loaded[name].astype(np.float32)
      loaded[name] = x[1:] - x[:1]
    return loaded

  shapes = {name: (1, *arrays.shapes[name][1:]) for name in names}
  return dataclasses.replace(
    arrays, shapes={**arrays.shapes, **shapes}, load=load
  )


def _read_text_options(folder: pathlib.Path) -> tuple[bool | None, bool | None]:
  """Reads whether text is lower-cased and loses its accents; None if unknown.

  `tokenizer_config.json` has precedence over `tokenizer.json`. If both leave
  out accents or hold null, accents are stripped if text is lower-cased.
  """
  config = _read_optional_json(folder, TOKENIZER)
  tokenizer = _read_optional_json(folder, "tokenizer.json")
  normalizer = tokenizer.get("normalizer")
  rules = normalizer if isinstance(normalizer, dict) else {}
  lowercase = config.get("do_lower_case", rules.get("lowercase"))
  accents = config.get("strip_accents", rules.get("strip_accents"))
  lowercase = lowercase if isinstance(lowercase, bool) else None
  return lowercase, accents if isinstance(accents, bool) else lowercase


def _read_optional_json(folder: pathlib.Path, name: str) -> Mapping[str, Any]:
  """Reads a JSON object; empty if the file is missing or no valid JSON."""
  if path := find_optional(folder, name):
    with safe_read(path):
      text = read_file(path, tokenizer_lib.MAX_VALUES)
    with contextlib.suppress(ValueError):
      return parse_json(text)
  return {}
