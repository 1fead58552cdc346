"""A model as folders that Hugging Face's transformers loads."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import (
  InputError,
  NonFiniteError,
)
from truenegs_jax.weights.export import (
  atomic_folder,
  convert,
  model_card,
  torch_parity,
)
from truenegs_jax.weights.formats import hf_config, hf_names, run_folder
from truenegs_jax.workdir import saved_model


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
  about: model_card.About | model_card.Conversion,
  roles: Sequence[str] = (),
  dtype: str = "float32",
) -> Exported:
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
  output = atomic_folder.check_replaceable(output, roles)
  params = jax.device_get(params)
  check_finite(params)
  with atomic_folder.in_place_of(output) as partial:
    with atomic_folder.disk_errors(output):
      for role in roles:
        folder = partial / role
        folder.mkdir()
        hf_config.write_model(
          folder, params, model, role, tokenizer, dtype=dtype
        )
        card = model_card.text(params, model, role, tokenizer, about)
        (folder / "README.md").write_text(card, encoding="utf-8")
        atomic_folder.write_checksums(folder)
    compared, statement = torch_parity.compare(
      partial, params, model, roles=roles, dtype=dtype
    )
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
  with saved_model.open_run(workdir) as checkpoints:
    found = saved_model.describe(
      checkpoints, checkpoints.steps()[-1] if step is None else step
    )
    params = saved_model.read_params(checkpoints, found.model, found.step)
  return export_model(
    params,
    found.model,
    found.tokenizer,
    workdir / name if output is None else output,
    about=model_card.about_run(workdir, found.config.to_dict(), found.step),
    dtype=dtype,
  )


def export_weights(
  init: str,
  output: pathlib.Path,
  *,
  vocab: str = "",
  dtype: str = "float32",
  say: Callable[[str], Any] = print,
) -> Exported:
  """Converts weights that `config.init` takes; nothing is trained.

  Args:
    init: weights of another make, or of a run of ours, as `export_workdir`.
    output, dtype: as in `export_model`.
    vocab, say: as in `conversion.read`.

  Raises:
    InputError: as `conversion.read` and `export_model`.
    CheckpointError, NonFiniteError, DiskError, TrueNegsError: as above.
  """
  _check_apart(
    init, atomic_folder.check_replaceable(output)
  )  # before a download
  if run := run_folder.locate(pathlib.Path(init).expanduser()):
    if vocab:
      raise InputError(f"init: {init} is a run and has its own vocabulary.")
    workdir, step = run  # it knows more of itself
    return export_workdir(workdir, step=step, output=output, dtype=dtype)
  found = convert.read(init, vocab=vocab, say=say)
  return export_model(
    found.params,
    found.model,
    found.tokenizer,
    output,
    about=found.about,
    roles=found.roles,
    dtype=dtype,
  )


def _check_apart(init: str, output: pathlib.Path) -> None:
  """Refuses to write where weights are read from: they would be replaced."""
  if run_folder.locate(pathlib.Path(init).expanduser()):
    return  # beside its checkpoints, which no export touches
  for part in (init, *init.split(",")):
    place = pathlib.Path(os.path.realpath(os.path.expanduser(part.strip())))
    if not part.strip() or not place.exists():
      continue
    if output in (place, *place.parents) or place in output.parents:
      raise InputError(
        f"output {output} would lie in what is converted, {place}, or replace"
        " it; give another --output."
      )


def check_finite(params: Mapping[str, Any]) -> None:
  """NonFiniteError where a parameter, an array of numpy, is not finite."""
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    if not np.isfinite(x).all():
      name = jax.tree_util.keystr(path, simple=True, separator="/")
      raise NonFiniteError(
        f"{name} holds {np.count_nonzero(~np.isfinite(x))} values that are not"
        " finite; nothing was exported. Export an earlier step: --step=N."
      )
