"""A model as folders that Hugging Face's transformers loads."""

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
from truenegs_jax.runtime.errors import InputError, NonFiniteError
from truenegs_jax.runtime.files import atomic_folder, disk_errors
from truenegs_jax.weights.export import model_card, torch_parity
from truenegs_jax.weights.formats import hf_folder, hf_names

CHECKSUMS = "SHA256SUMS"
MODEL_FILES = {
  CHECKSUMS,
  "README.md",
  "config.json",
  "model.safetensors",
  "tokenizer_config.json",
  "vocab.txt",
}


@dataclasses.dataclass(frozen=True)
class ExportResult:
  """A finished export; `statement` says whether and how it was checked."""

  output: pathlib.Path
  compared: bool
  summary: str


def export_model(
  params: Mapping[str, Any],
  model: pretrain.Model,
  tokenizer: Tokenizer,
  output: pathlib.Path,
  *,
  origin: model_card.ModelOrigin,
  roles: Sequence[str] = (),
  dtype: str = "float32",
) -> ExportResult:
  """Writes a folder for each role, with the SHA-256 of each file in it.

  Args:
    params: the model's parameters, f32 arrays of numpy or jax.
    model: ELECTRA's pair or BERT; its `roles` give names and sizes.
    tokenizer: the one that the model was trained with.
    output: the folder to make; an export that stands there is replaced once
      the new one is whole and checked.
    about: what the model cards say.
    roles: the networks to write; none: all that the model has.
    dtype: of the written weights, "float32" or "bfloat16".

  Raises:
    InputError: `output` holds other things than an export; another vocabulary
      than the model's; a backbone that Hugging Face does not know.
    NonFiniteError: a NaN or infinite weight.
    DiskError: a file could not be written.
    TrueNegsError: transformers does not come to our logits.
  """
  if dtype not in hf_names.DTYPES:
    known = ", ".join(hf_names.DTYPES)
    raise InputError(f"dtype {dtype!r} is unknown; known: {known}.")
  roles = roles or tuple(model.roles)
  output = check_replaceable(output, roles)
  params = jax.device_get(params)
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
        (folder / "README.md").write_text(card, encoding="utf-8")
        write_checksums(folder)
    compared, statement = torch_parity.compare(
      partial, params, model, roles=roles, dtype=dtype
    )
  return ExportResult(output, compared, statement)


def check_finite(params: Mapping[str, Any]) -> None:
  """NonFiniteError where a parameter, an array of numpy, is not finite."""
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    if not np.isfinite(x).all():
      name = jax.tree_util.keystr(path, simple=True, separator="/")
      raise NonFiniteError(
        f"{name} holds {np.count_nonzero(~np.isfinite(x))} values that are not"
        " finite; nothing was exported. Export an earlier step: --step=N."
      )


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


def _others(output: pathlib.Path) -> list[str]:
  """Names of what stands there and is of no export."""
  if not output.is_dir():
    return ["it is a file"]
  return [path.name for path in output.iterdir() if not _is_ours(path)]


def _is_ours(path: pathlib.Path) -> bool:
  """Whether this, in the folder of an export, is of an export."""
  if path.is_symlink() or path.name not in hf_names.NETWORKS:
    return path.name == CHECKSUMS  # where older ones had it
  return path.is_dir() and {x.name for x in path.iterdir()} <= MODEL_FILES
