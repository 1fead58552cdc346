"""Exports a fine-tuned model to a folder that transformers loads.

result = export_task(params, model, tokenizer, output, task=task, origin=origin)

AutoModelForSequenceClassification or AutoModelForQuestionAnswering computes the
trained logits, with scores in the task's units. A linear head, for which
transformers has no class, is saved next to the encoder as head.safetensors.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import safetensors

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import finetune
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import atomic_folder, disk_errors
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights.export import model_card, pretrained, torch_parity
from truenegs_jax.weights.formats import hf_folder


def export_task(
  params: Mapping[str, Any],
  model: finetune.DownstreamModel,
  tokenizer: Tokenizer,
  output: pathlib.Path,
  *,
  task: task_lib.Task,
  origin: model_card.ModelOrigin,
) -> pretrained.ExportResult:
  """Writes a folder with the model, its vocabulary, a card and checksums.

  Args:
    params: the model's parameters, f32 arrays of numpy or jax.
    output: the folder to create; it must not exist.
    task: gives the labels and the scale of scores.
    origin: where the weights come from, for the model card.

  Raises:
    InputError: transformers does not have the backbone or the head; `output`
      exists; the vocabulary is not the model's.
    NonFiniteError: a weight is NaN or infinite.
    DiskError: a file could not be written.
    TrueNegsError: transformers computes other logits.
  """
  if reason := unsupported_reason(model):
    raise InputError(reason)
  if output.exists():
    raise InputError(
      f"output='{output}' exists. Move it away or choose another folder."
    )
  params = jax.device_get(params)
  pretrained.check_finite(params)
  unscaled = unscale_head(params, task)
  with atomic_folder(output) as partial:
    with disk_errors(output, safetensors.SafetensorError):
      hf_folder.write_model(
        partial,
        unscaled,
        model,
        model.role,
        tokenizer,
        extra_fields=_fields(model, task),
      )
      card = model_card.task_card(unscaled, model, tokenizer, task, origin)
      (partial / model_card.CARD).write_text(card, encoding="utf-8")
      pretrained.write_checksums(partial)
    summary = torch_parity.compare(
      {model.role: partial}, params, model, scale=_scale(task)
    )
  return pretrained.ExportResult(output, summary)


def unsupported_reason(model: finetune.DownstreamModel) -> str:
  """Returns why transformers cannot load a model; "" if it can."""
  if not hf_folder.has_counterpart(model):
    key, fix = f"model.backbone={model.backbone!r}", ""  # that of the weights
  elif model.head == "joint":
    key, fix = "finetune.head='joint'", " Set --config.finetune.head=spans."
  else:
    return ""
  return (
    f"{key} has no counterpart in Hugging Face's transformers, so the model is"
    f" not exported.{fix}"
  )


def unscale_head(
  params: Mapping[str, Any], task: task_lib.Task
) -> dict[str, Any]:
  """Returns the parameters with a last layer that computes unscaled scores.

  Training uses (score - offset) / scale.
  """
  offset, scale = _scale(task)
  output = dict(params["task_head"]["output"])
  output["kernel"] = output["kernel"] * np.float32(scale)
  output["bias"] = output["bias"] * np.float32(scale) + np.float32(offset)
  return {**params, "task_head": {**params["task_head"], "output": output}}


def _scale(task: task_lib.Task) -> tuple[float, float]:
  """Returns (offset, scale) of the model's outputs."""
  return task.scale if task.kind == task_lib.SCORE else (0.0, 1.0)


def _fields(
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
