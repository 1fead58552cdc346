"""A fine-tuned model as one folder that Hugging Face's transformers loads.

result = export_task(params, model, tokenizer, output, task=task, details=text)

AutoModelForSequenceClassification or AutoModelForQuestionAnswering gives the
logits that were trained; scores come in the task's own units. A linear head,
which transformers does not have, lies beside the encoder: head.safetensors.
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
  details: str,
) -> pretrained.ExportResult:
  """Writes a folder with the model, its vocabulary, a card and checksums.

  Args:
    params: the model's parameters, f32 arrays of numpy or jax.
    model: what they are of.
    tokenizer: the one that the model was trained with.
    output: the folder to make, which is not there yet.
    task: whose labels and scale the files have.
    details: lines of a list, "* ...", for the README.md: how it was made.

  Raises:
    InputError: `unsupported_reason` names one; `output` exists; another
      vocabulary than the model's.
    NonFiniteError: a NaN or infinite weight.
    DiskError: a file could not be written.
    TrueNegsError: transformers does not come to our logits.
  """
  if said := unsupported_reason(model):
    raise InputError(said)
  if output.exists():
    raise InputError(
      f"output {output} is there already; move it away or give another folder."
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
      text = model_card.task_card(unscaled, model, tokenizer, task, details)
      (partial / "README.md").write_text(text, encoding="utf-8")
      pretrained.write_checksums(partial)
    compared, statement = torch_parity.compare_task(
      partial, params, model, scale=_scale(task)
    )
  return pretrained.ExportResult(output, compared, statement)


def unsupported_reason(model: finetune.DownstreamModel) -> str:
  """Why transformers has no counterpart of a model; "" where it has one."""
  if not hf_folder.has_counterpart(model):
    return (
      f"backbone {model.backbone!r} has no counterpart in Hugging Face's"
      " transformers, so the model is not exported."
    )
  if model.head == "joint":
    return (
      "head 'joint' has no counterpart in Hugging Face's transformers, so the"
      " model is not exported; one of --config.finetune.head=spans is."
    )
  return ""


def unscale_head(
  params: Mapping[str, Any], task: task_lib.Task
) -> dict[str, Any]:
  """The parameters with a last layer that gives a score as the task has it."""
  offset, scale = _scale(task)
  output = dict(params["task_head"]["output"])
  output["kernel"] = output["kernel"] * np.float32(scale)
  output["bias"] = output["bias"] * np.float32(scale) + np.float32(offset)
  return {**params, "task_head": {**params["task_head"], "output": output}}


def _scale(task: task_lib.Task) -> tuple[float, float]:
  """(offset, scale) of what the model gives."""
  return task.scale if task.kind == task_lib.SCORE else (0.0, 1.0)


def _fields(
  model: finetune.DownstreamModel, task: task_lib.Task
) -> dict[str, Any]:
  """The fields of `config.json` that belong to a task."""
  if task.kind == task_lib.SPANS:
    return {}
  labels = task.labels or ("score",)
  regression = task.kind == task_lib.SCORE
  return {
    "problem_type": "regression"
    if regression
    else "single_label_classification",
    "num_labels": len(labels),
    "id2label": {str(i): label for i, label in enumerate(labels)},
    "label2id": {label: i for i, label in enumerate(labels)},
    "classifier_dropout": model.head_dropout,
  }
