"""Exports a pre-trained model to folders that transformers loads."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import safetensors

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError, NonFiniteError, one_of
from truenegs_jax.runtime.files import atomic_folder, disk_errors
from truenegs_jax.weights.export import model_card, torch_parity
from truenegs_jax.weights.formats import hf_folder, hf_names

MODEL_FILES = {
  model_card.CARD,
  hf_folder.CHECKSUMS,
  "config.json",
  "model.safetensors",
  "tokenizer_config.json",
  "vocab.txt",
}


@dataclasses.dataclass(frozen=True)
class ExportResult:
  """A finished export.

  Attributes:
    output: the folder.
    summary: a sentence for the user: transformers loaded the export and
      computed our logits, or why that was not checked.
  """

  output: pathlib.Path
  summary: str


def export_model(
  model: pretrain.Model,
  params: Mapping[str, Any],
  tokenizer: Tokenizer,
  output: str | pathlib.Path,
  *,
  origin: model_card.ModelOrigin = model_card.UNKNOWN,
  roles: Sequence[str] = (),
  dtype: str = "float32",
) -> ExportResult:
  """Writes a folder for each role, with model card and SHA-256 checksums.

  >>> model, params, tokenizer = load("runs/electra_demo")
  >>> result = export_model(model, params, tokenizer, "my_electra")
  >>> sorted(path.name for path in result.output.iterdir())
  ['discriminator', 'generator']

  Args:
    model: ELECTRA's pair or BERT.
    params: the model's parameters, f32 arrays of numpy or jax.
    output: the folder to create. An older export there is replaced after the
      new one is complete and checked.
    origin: where the weights come from, for the model cards.
    roles: the networks to write; empty means all of the model.
    dtype: of the written weights, "float32" or "bfloat16".

  Raises:
    InputError: `output` holds other files than an export; the vocabulary is not
      the model's; transformers does not have the backbone.
    NonFiniteError: a weight is NaN or infinite.
    DiskError: a file could not be written.
    TrueNegsError: transformers computes other logits.
  """
  one_of("dtype", dtype, hf_names.DTYPES)
  roles = roles or tuple(model.roles)
  output = check_replaceable(pathlib.Path(output), roles)
  params = pretrain.fold_temperature(jax.device_get(params), model)
  model = model.clone(temperature=1.0)
  check_finite(params)
  with atomic_folder(output) as partial:
    with disk_errors(output, safetensors.SafetensorError):
      for role in roles:
        folder = partial / role
        folder.mkdir()
        hf_folder.write_model(
          folder, params, model, role, tokenizer, dtype=dtype
        )
        card = model_card.pretrained_card(
          params, model, role, tokenizer, origin
        )
        (folder / model_card.CARD).write_text(card, encoding="utf-8")
        write_checksums(folder)
    folders = {role: partial / role for role in roles}
    summary = torch_parity.compare(folders, params, model, dtype=dtype)
  return ExportResult(output, summary)


def check_finite(params: Mapping[str, Any]) -> None:
  """Raises NonFiniteError if a parameter, a numpy array, is not finite."""
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    if not np.isfinite(x).all():
      name = jax.tree_util.keystr(path, simple=True, separator="/")
      raise NonFiniteError(
        f"{name} holds {np.count_nonzero(~np.isfinite(x)):,} values that are"
        " not finite. Nothing was exported. Export an earlier step: --step=N."
      )


def check_replaceable(
  output: pathlib.Path, roles: Collection[str] = tuple(hf_names.NETWORKS)
) -> pathlib.Path:
  """Returns the resolved `output` if an export may be written there.

  Args:
    roles: the networks that will be written.

  Raises:
    InputError: `output` is a file, or holds other files or networks than those
      that will be written.
    DiskError: `output` cannot be read.
  """
  with disk_errors(output):
    output = pathlib.Path(os.path.realpath(os.path.expanduser(output)))
    if not output.exists():
      return output
    if not output.is_dir():
      raise InputError(f"output='{output}' is a file. Choose another --output.")
    kept = hf_names.NETWORKS.keys() - set(roles)
    paths = sorted(output.iterdir())
    other = [x.name for x in paths if x.name in kept or not _is_export(x)]
  if other:
    raise InputError(
      f"output='{output}' holds what this export does not replace:"
      f" {', '.join(other[:5])}. Move it away or choose another --output."
    )
  return output


def write_checksums(folder: pathlib.Path) -> None:
  """Writes SHA256SUMS after all files of the folder are flushed to disk.

  The card is left out, because its owner may edit it.
  """
  lines = []
  for path in sorted(folder.iterdir()):
    with path.open("rb") as file:
      digest = hashlib.file_digest(file, "sha256").hexdigest()
      os.fsync(file.fileno())
    if path.name != model_card.CARD:
      lines.append(f"{digest}  {path.name}\n")
  with (folder / hf_folder.CHECKSUMS).open("w", encoding="utf-8") as file:
    file.writelines(lines)
    file.flush()
    os.fsync(file.fileno())


def _is_export(path: pathlib.Path) -> bool:
  """Whether a path inside an export was written by an export."""
  if path.is_symlink() or path.name not in hf_names.NETWORKS:
    return path.name == hf_folder.CHECKSUMS  # older versions wrote it here
  return path.is_dir() and {x.name for x in path.iterdir()} <= MODEL_FILES
