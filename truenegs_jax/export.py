"""Turns a checkpoint into folders that Hugging Face's transformers loads.

  python -m truenegs_jax.export --workdir=runs/electra_demo
      [--step=N] [--output=FOLDER] [--dtype=float32|bfloat16]

ELECTRA gives `discriminator/`, the one to fine-tune, and `generator/`, which
fills masks; BERT gives `bert/`. The output stands under its name only when it
is whole and, where PyTorch is installed, transformers has loaded every model
and come to our logits.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import safetensors

from truenegs_jax import huggingface, model_card, parity, saved, tensor_names
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.errors import (
  DiskError,
  InputError,
  NonFiniteError,
  TrueNegsError,
)
from truenegs_jax.models import pretrain

CHECKSUMS = "SHA256SUMS"
MODEL_FILES = (
  "README.md",
  "config.json",
  "model.safetensors",
  "tokenizer_config.json",
  "vocab.txt",
)


@dataclasses.dataclass(frozen=True)
class Exported:
  """A finished export; `statement` says whether and how it was checked."""

  output: pathlib.Path
  compared: bool
  statement: str


def export_model(
  params: Mapping[str, Any],
  model: pretrain.Model,
  tokenizer: Tokenizer,
  output: pathlib.Path,
  *,
  about: model_card.About,
  dtype: str = "float32",
) -> Exported:
  """Writes a folder for each of the model's roles, and `output/SHA256SUMS`.

  Args:
    params: the model's parameters, f32 arrays of numpy or jax.
    model: ELECTRA's pair or BERT; its `roles` give names and sizes.
    tokenizer: the one that the model was trained with.
    output: the folder to make; an export that stands there is replaced once
      the new one is whole and checked.
    about: what the model cards say.
    dtype: of the written weights, "float32" or "bfloat16".

  Raises:
    InputError: `output` holds other things than an export; another vocabulary
      than the model's; a backbone that Hugging Face does not know.
    NonFiniteError: a NaN or infinite weight.
    DiskError: a file could not be written.
    TrueNegsError: transformers does not come to our logits.
  """
  if dtype not in tensor_names.DTYPES:
    known = ", ".join(tensor_names.DTYPES)
    raise InputError(f"dtype {dtype!r} is unknown; known: {known}.")
  output = output.expanduser().resolve()
  _check_replaceable(output)
  params = jax.device_get(params)
  _check_finite(params)
  partial = output.with_name(f".{output.name}.partial")
  try:
    with _disk_errors(output):
      shutil.rmtree(partial, ignore_errors=True)
      for role in model.roles:
        folder = partial / role
        folder.mkdir(parents=True)
        huggingface.write_model(
          folder, params, model, role, tokenizer, dtype=dtype
        )
        card = model_card.text(params, model, role, tokenizer, about)
        (folder / "README.md").write_text(card, encoding="utf-8")
      _write_checksums(partial)
    compared, statement = parity.compare(partial, params, model, dtype=dtype)
    with _disk_errors(output):
      _replace(output, partial)
  finally:
    shutil.rmtree(partial, ignore_errors=True)
  return Exported(output, compared, statement)


def export_workdir(
  workdir: pathlib.Path,
  *,
  step: int | None = None,
  output: pathlib.Path | None = None,
  dtype: str = "float32",
) -> Exported:
  """Exports a saved step of a run, by default the newest.

  Args:
    workdir: a folder that `truenegs_jax.main` made; a run may be using it.
    step: a saved step. Its export goes to `workdir/export-<step>`, the
      newest one's to `workdir/export`, unless `output` is given.
    output, dtype: as in `export_model`.

  Raises:
    InputError, CheckpointError: no such run, no such step, another vocabulary.
    NonFiniteError, DiskError, TrueNegsError: as `export_model`.
  """
  name = "export" if step is None else f"export-{step}"
  with saved.open_run(workdir) as checkpoints:
    found = saved.describe(
      checkpoints, checkpoints.steps()[-1] if step is None else step
    )
    params = saved.read_params(checkpoints, found.model, found.step)
  return export_model(
    params,
    found.model,
    found.tokenizer,
    workdir / name if output is None else output,
    about=model_card.about_run(workdir, found.config.to_dict(), found.step),
    dtype=dtype,
  )


def main(argv: Sequence[str] | None = None) -> int:
  """The verb; returns the exit code of `truenegs_jax.errors`."""
  # argparse, not absl: its flags are global, and `main` imports this module.
  parser = argparse.ArgumentParser(
    prog="python -m truenegs_jax.export",
    description="Exports a run's checkpoint for Hugging Face transformers.",
    allow_abbrev=False,
  )
  parser.add_argument("--workdir", type=pathlib.Path, required=True)
  parser.add_argument("--step", type=int, help="a saved step; default: newest")
  parser.add_argument("--output", type=pathlib.Path)
  parser.add_argument(
    "--dtype", choices=tuple(tensor_names.DTYPES), default="float32"
  )
  flags = parser.parse_args(argv)
  try:
    exported = export_workdir(
      flags.workdir, step=flags.step, output=flags.output, dtype=flags.dtype
    )
  except TrueNegsError as e:
    print(f"error: {e}", file=sys.stderr)
    return e.exit_code
  print(f"exported to {exported.output}\n{exported.statement}")
  return 0


def _check_finite(params: Mapping[str, Any]) -> None:
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    if not np.isfinite(x).all():
      name = jax.tree_util.keystr(path, simple=True, separator="/")
      raise NonFiniteError(
        f"{name} holds {np.count_nonzero(~np.isfinite(x))} values that are not"
        " finite; nothing was exported. Export an earlier step: --step=N."
      )


def _check_replaceable(output: pathlib.Path) -> None:
  """Refuses to put an export where something else stands."""
  if not output.exists():
    return
  ours = {
    CHECKSUMS,
    *(
      f"{role}/{file}" for role in tensor_names.NETWORKS for file in MODEL_FILES
    ),
  }
  if output.is_dir():
    found = {
      path.relative_to(output).as_posix()
      for path in output.rglob("*")
      if not path.is_dir() or path.is_symlink()
    }
    other = sorted(found - ours)
  else:
    other = ["it is a file"]
  if other:
    raise InputError(
      f"output {output} holds what no export wrote: {', '.join(other[:5])};"
      " move that away or give another --output."
    )


def _write_checksums(folder: pathlib.Path) -> None:
  """Writes SHA256SUMS, once all that it lists has reached the disk."""
  lines = []
  for path in sorted(folder.glob("*/*")):
    with path.open("rb") as file:
      digest = hashlib.file_digest(file, "sha256").hexdigest()
      os.fsync(file.fileno())
    lines.append(f"{digest}  {path.relative_to(folder).as_posix()}\n")
  with (folder / CHECKSUMS).open("w", encoding="utf-8") as file:
    file.writelines(lines)
    file.flush()
    os.fsync(file.fileno())


def _replace(output: pathlib.Path, partial: pathlib.Path) -> None:
  """Puts the new export in the place of the old one, if there is one."""
  old = output.with_name(f".{output.name}.old")
  shutil.rmtree(old, ignore_errors=True)
  if output.exists():
    output.rename(old)  # no folder can be renamed onto a full one
  partial.rename(output)
  shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _disk_errors(output: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except (OSError, safetensors.SafetensorError) as e:
    raise DiskError(
      f"{output} could not be written: {e}\nWhat stood there before is intact;"
      " free some space or give another --output."
    ) from e


if __name__ == "__main__":
  sys.exit(main())
