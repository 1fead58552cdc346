"""Exports a model to folders that transformers loads.

result = export_model(model, params, tokenizer, "my_electra")
result = export_task(params, model, tokenizer, output, task=task, origin=origin)
result = export_weights("google-bert/bert-base-uncased", output)
"""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import safetensors

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.runtime.errors import InputError, NonFiniteError
from truenegs_jax.runtime.files import atomic_folder, disk_errors
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import (
  fit,
  hf_folder,
  hf_names,
  load,
  model_card,
  torch_parity,
)
from truenegs_jax.weights.find import Weights

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
  """
  roles = roles or tuple(model.roles)
  output = check_replaceable(pathlib.Path(output), roles)
  params = pretrain.fold_temperature(jax.device_get(params), model)
  model = model.clone(temperature=1.0)
  _check_finite(params)
  with atomic_folder(output) as partial:
    folders = {role: partial / role for role in roles}
    with disk_errors(output, safetensors.SafetensorError):
      for role, folder in folders.items():
        folder.mkdir()
        hf_folder.write_model(folder, params, model, role, tokenizer)
        card = model_card.pretrained_card(
          params, model, role, tokenizer, origin
        )
        (folder / model_card.CARD).write_text(card, encoding="utf-8")
        write_checksums(folder)
    summary = torch_parity.compare(folders, params, model)
  return ExportResult(output, summary)


def export_task(
  params: Mapping[str, Any],
  model: finetune.DownstreamModel,
  tokenizer: Tokenizer,
  output: pathlib.Path,
  *,
  task: task_lib.Task,
  origin: model_card.ModelOrigin,
) -> ExportResult:
  """Writes a fine-tuned model to a folder, with model card and checksums.

  AutoModelForSequenceClassification or AutoModelForQuestionAnswering computes
  the trained logits, with scores in the task's units.

  Args:
    params: the model's parameters, f32 arrays of numpy or jax.
    output: the folder to create; it must not exist.
    task: gives the labels and the scale of scores.
    origin: where the weights come from, for the model card.
  """
  if output.exists():
    raise InputError(
      f"output='{output}' exists. Move it away or choose another folder."
    )
  params = jax.device_get(params)
  _check_finite(params)
  unscaled = unscale_head(params, task)
  with atomic_folder(output) as partial:
    with disk_errors(output, safetensors.SafetensorError):
      hf_folder.write_model(
        partial,
        unscaled,
        model,
        model.role,
        tokenizer,
        extra_fields=_task_fields(model, task),
      )
      card = model_card.task_card(unscaled, model, tokenizer, task, origin)
      (partial / model_card.CARD).write_text(card, encoding="utf-8")
      write_checksums(partial)
    summary = torch_parity.compare(
      {model.role: partial}, params, model, scale=_score_scale(task)
    )
  return ExportResult(output, summary)


def export_weights(
  init: str,
  output: pathlib.Path,
  *,
  report: Callable[[str], object] = print,
) -> ExportResult:
  """Converts weights of any size without training.

  Args:
    init: a value of `config.init`. Export a run with
      `export_run.export_workdir`, whose model card says more.
    output: the folder to create. An older export there is replaced.
    report: receives lines about downloads and about heads drawn at random.
  """
  # Checked first, as reading the weights may take long.
  _check_apart(init, check_replaceable(output))
  weights = Weights(init, report)
  model, tokenizer, fitted = load.fit_own_model(weights, report)
  # A report would name a generator that is not written.
  params = load.load_params(fitted, report=lambda line: None)
  origin = model_card.ModelOrigin(
    {
      "Training": "* Converted, not trained, by truenegs_jax from:"
      f" `{model_card.hide_folders(init)}`"
    },
    metadata={
      **model_card.read_metadata(init),
      "base_model": model_card.find_models(init),
    },
    random_modules=_find_random_modules(fitted, report),
  )
  return export_model(
    model,
    params,
    tokenizer,
    output,
    origin=origin,
    roles=tuple(weights.networks),
  )


def _check_apart(init: str, output: pathlib.Path) -> None:
  """Refuses an output that contains, or is inside, the weights."""
  for location in map(str.strip, (init, *init.split(","))):
    path = pathlib.Path(os.path.realpath(os.path.expanduser(location)))
    overlaps = output in (path, *path.parents) or path in output.parents
    if location and path.exists() and overlaps:
      raise InputError(
        f"output='{output}' overlaps with the weights to convert, '{path}'."
        " Choose another --output."
      )


def _find_random_modules(
  fitted: fit.Fit, report: Callable[[str], object]
) -> dict[str, str]:
  """Reports and returns Hugging Face's names of missing modules, by role."""
  random_modules = {}
  for role, network in fitted.networks.items():
    table = hf_names.name_table(fitted.model, role)
    missing = table.keys() & fitted.missing
    modules = {table[path].rpartition(".")[0] for path in missing}
    random_modules[role] = listed = ", ".join(sorted(modules))
    if listed:
      report(f"init: NOT in {network.location}, so DRAWN AT RANDOM: {listed}.")
  return random_modules


def unscale_head(
  params: Mapping[str, Any], task: task_lib.Task
) -> dict[str, Any]:
  """Returns the parameters with a last layer that computes unscaled scores.

  Training uses (score - offset) / scale.
  """
  offset, scale = _score_scale(task)
  output = dict(params["task_head"]["output"])
  output["kernel"] = output["kernel"] * np.float32(scale)
  output["bias"] = output["bias"] * np.float32(scale) + np.float32(offset)
  return {**params, "task_head": {**params["task_head"], "output": output}}


def _score_scale(task: task_lib.Task) -> tuple[float, float]:
  """Returns (offset, scale) of the model's outputs."""
  return task.scale if task.kind == task_lib.SCORE else (0.0, 1.0)


def _task_fields(
  model: finetune.DownstreamModel, task: task_lib.Task
) -> dict[str, Any]:
  """Returns the fields of `config.json` for a task."""
  if task.kind == task_lib.SPANS:
    return {}
  labels = task.labels or ("score",)
  is_score = task.kind == task_lib.SCORE
  return {
    "problem_type": "regression" if is_score else "single_label_classification",
    "num_labels": len(labels),
    "id2label": {str(i): label for i, label in enumerate(labels)},
    "label2id": {label: i for i, label in enumerate(labels)},
    "classifier_dropout": model.head_dropout,
  }


def _check_finite(params: Mapping[str, Any]) -> None:
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
  """

  def is_export(path: pathlib.Path) -> bool:
    if path.is_symlink() or not path.is_dir():
      return False
    return {x.name for x in path.iterdir()} <= MODEL_FILES

  with disk_errors(output):
    output = pathlib.Path(os.path.realpath(os.path.expanduser(output)))
    if not output.exists():
      return output
    if not output.is_dir():
      raise InputError(f"output='{output}' is a file. Choose another --output.")
    paths = sorted(output.iterdir())
    other = [x.name for x in paths if x.name not in roles or not is_export(x)]
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
