"""Networks in Hugging Face's format, a folder each, old ones included.

`config.json` and `model.safetensors`, or its shards; the vocabulary may lie
beside them.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats import hf_config, hf_names
from truenegs_jax.weights.formats.hf_safetensors import open_safetensors
from truenegs_jax.weights.formats.network import Arrays, Network, check_layers
from truenegs_jax.weights.formats.safe_files import find

CONFIG = "config.json"
VOCABULARIES = ("vocab.txt", "tokenizer.json")
# Of TF1's layer norms; transformers takes them, too.
OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}
# What a network without a head calls its parts.
PARTS = ("embeddings", "embeddings_project", "encoder", "pooler")
# Constants that older versions saved among the weights.
CONSTANTS = ("embeddings.position_ids", "embeddings.token_type_ids")
DECODER_BIAS, BIAS = "cls.predictions.decoder.bias", "cls.predictions.bias"
GENERATORS = ("generator_predictions.", "generator_lm_head.")


def open_network(folder: pathlib.Path) -> Network:
  """The network of a folder; its role is told by its head.

  Raises:
    InputError: no config, no weights in safetensors, damaged or hostile files,
      a family that is not known here.
  """
  path = folder / CONFIG
  if not path.exists():
    raise InputError(
      f"init: {folder} holds no {CONFIG}, which says what network its weights"
      " are of; it belongs to the model: take it from where they are from."
    )
  fields = hf_config.read_fields(find(folder, CONFIG).path)
  arrays = _canonical(open_safetensors(folder), fields["model_type"])
  role = _role(fields["model_type"], arrays.shapes)
  check_layers(fields, arrays)
  lowercase, strip_accents = _text(folder)
  return Network(
    role=role,
    place=str(folder),
    arrays=arrays,
    fields=fields,
    name_table=hf_names.name_table,
    turned=True,
    vocabulary=_vocabulary(folder),
    lowercase=lowercase,
    strip_accents=strip_accents,
    tied=hf_names.NETWORKS[role].tied,
  )


def _canonical(arrays: Arrays, family: str) -> Arrays:
  """The same arrays by the names that transformers gives them today."""
  bare = not any(name.startswith(f"{family}.") for name in arrays.shapes)
  given: dict[str, str] = {}
  for name in arrays.shapes:
    if name.endswith(CONSTANTS):
      continue
    new = f"{family}.{name}" if bare and name.startswith(PARTS) else name
    for old, ending in OLD_ENDINGS.items():
      if new.endswith(old):
        new = new.removesuffix(old) + ending
    if new in given:
      raise InputError(
        f"init: {arrays.path} holds both {given[new]} and {name}, which are one"
        " array; take the original file."
      )
    given[new] = name
  if DECODER_BIAS in given and BIAS not in given:
    given[BIAS] = given.pop(DECODER_BIAS)
  return dataclasses.replace(
    arrays,
    shapes={new: arrays.shapes[name] for new, name in given.items()},
    dtypes={new: arrays.dtypes[name] for new, name in given.items()},
    read=lambda name: arrays.read(given[name]),
  )


def _role(family: str, names: Iterable[str]) -> str:
  if family == "bert":
    return "bert"
  is_generator = any(name.startswith(GENERATORS) for name in names)
  return "generator" if is_generator else "discriminator"


def _vocabulary(folder: pathlib.Path) -> pathlib.Path | None:
  there = (name for name in VOCABULARIES if (folder / name).exists())
  return next((find(folder, name).path for name in there), None)


def _text(folder: pathlib.Path) -> tuple[bool | None, bool | None]:
  """Whether text is lower-cased and loses its accents, as far as is said.

  The tokenizer's files say it, the older of the two first. Where they say
  nothing of accents, or null, those go with lower-casing, as BERT's do.
  """
  config = _json(folder, "tokenizer_config.json")
  normalizer = _json(folder, "tokenizer.json").get("normalizer")
  whole = normalizer if isinstance(normalizer, dict) else {}
  lowercase = config.get("do_lower_case", whole.get("lowercase"))
  accents = config.get("strip_accents", whole.get("strip_accents"))
  lowercase = lowercase if isinstance(lowercase, bool) else None
  return lowercase, accents if isinstance(accents, bool) else lowercase


def _json(folder: pathlib.Path, name: str) -> Mapping[str, Any]:
  """A file that need not be there and need not be right."""
  if not (folder / name).exists():
    return {}
  file = find(folder, name)
  try:
    found = json.loads(file.target.read_text(encoding="utf-8"))
  except (OSError, ValueError, RecursionError):
    return {}
  return found if isinstance(found, dict) else {}
