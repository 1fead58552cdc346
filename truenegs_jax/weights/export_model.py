"""Exports a model to folders that transformers loads.

line = export_task(params, model, tokenizer, output, task=task, about=text)
line = export_weights("google-bert/bert-base-uncased", output)
"""

import importlib
import json
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data import tokenizer_files
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.models import encoder, finetune, pretrain
from truenegs_jax.runtime.errors import (
  InputError,
  NonFiniteError,
  TrueNegsError,
)
from truenegs_jax.runtime.files import CHECKSUMS, atomic_folder, disk_errors
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import (
  find,
  hf_config,
  hf_folder,
  hf_names,
  load,
  match,
)

# Of f32 logits, relative to max(1, largest). Rounding causes up to 2e-5 in 24
# layers with large weights, a misplaced tensor 1e-2 and more.
TOLERANCE = 1e-4
Arrays = Mapping[str, np.ndarray]
DEFECT = "Nothing was exported. This is a defect. Please report it."
MODEL_FILES = {
  *(hf_folder.CARD, CHECKSUMS, hf_folder.CONFIG, hf_folder.WEIGHTS),
  *(*tokenizer_files.FILES, tokenizer_lib.CONFIG),
}
_CARD = """\
---
{metadata}
---

# {name}

{use}

```python
from transformers import AutoTokenizer, {name}

folder = "."  # the folder of this file, or the model's name on the hub
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {name}.from_pretrained(folder)
outputs = model(**tokenizer("A sentence.", return_tensors="pt"))
```

{about}

Written by truenegs_jax {version}, which filtered no text and measured no bias.
"""
_USE = "A model for transformers 4.57 and 5."
_USES = {  # of pre-trained networks, by class
  "ElectraForPreTraining": "The network to fine-tune. It detects replaced"
  " tokens: `outputs.logits` is above 0\nfor them.",
  hf_names.DETECTOR_CLASS: "Detects replaced tokens, with the probability"
  " `outputs.logits.softmax(-1)[..., 1]`.\n\n**To fine-tune, use the folder"
  " above.** The names of this head equal those of a\nclassifier of texts, so"
  " its two labels would load in silence as one.",
}


def export_model(
  model: pretrain.Model,
  params: Mapping[str, Any],
  tokenizer: Tokenizer,
  output: str | pathlib.Path,
  *,
  about: str = "",
  language: str = "",
  roles: Sequence[str] = (),
) -> str:
  """Writes a folder for each role, with model card and SHA-256 checksums.

  >>> model, params, tokenizer = load("runs/demo")
  >>> line = export_model(model, params, tokenizer, "my_electra")
  >>> line.partition(".")[0]
  "Exported to 'my_electra'"

  Args:
    model: ELECTRA's pair or BERT.
    params: f32 arrays of numpy or jax.
    output: the folder to create. An older export there is replaced after the
      new one is complete and checked.
    about: Markdown for the model cards, such as training and evaluation.
    language: ISO 639-1, for the hub; "" if unknown.
    roles: the networks to write; empty means all.

  Returns a line for the user: where the export is, and that transformers
  computed our logits, or why that was not checked.
  """
  roles = roles or tuple(model.roles)
  resolved = check_replaceable(open_path("output", output), roles)
  params = jax.device_get(params)
  _check_finite(params)
  with atomic_folder(resolved) as partial:
    folders = {role: partial / role for role in roles}
    for role, folder in folders.items():
      for part, name in hf_names.list_classes(model, role):
        with disk_errors(resolved, safetensors.SafetensorError):
          (folder / part).mkdir(exist_ok=True)
          write_model(
            folder / part, params, model, role, tokenizer, class_name=name
          )
          use = _USES.get(name, _USE)
          _finish_folder(folder / part, name, about, use, language)
    summary = compare_logits(folders, params, model)
  return f"Exported to '{output}'. {summary}"


def export_task(
  params: Mapping[str, Any],
  model: finetune.DownstreamModel,
  tokenizer: Tokenizer,
  output: pathlib.Path,
  *,
  task: task_lib.Task,
  about: str,
) -> str:
  """Writes a fine-tuned model to a folder, with model card and checksums.

  AutoModelForSequenceClassification, AutoModelForQuestionAnswering or
  AutoModelForTokenClassification computes the trained logits, with scores in
  the task's units. Returns a line for the user, as `export_model` does.
  """
  params = dict(jax.device_get(params))
  if task.kind == task_lib.SCORE:  # the head's are (score - offset) / scale
    offset, scale = map(np.float32, task.scale)
    last = {x: y * scale for x, y in params["task_head"]["output"].items()}
    last["bias"] += offset
    params["task_head"] = {**params["task_head"], "output": last}
  _check_finite(params)
  role = model.role
  fields = _task_fields(model, task)
  with atomic_folder(output) as partial:
    with disk_errors(output, safetensors.SafetensorError):
      write_model(partial, params, model, role, tokenizer, extra_fields=fields)
      _finish_folder(partial, hf_names.architecture(model, role), about)
    summary = compare_logits({role: partial}, params, model)
  return f"Exported to '{output}'. {summary}"


def export_weights(init: str, output: pathlib.Path) -> str:
  """Converts weights of any size, in any format of `config.init`.

  Prints lines about downloads and about heads drawn at random. Returns a line
  for the user, as `export_model` does.
  """
  # Checked first, as reading the weights may take long.
  resolved = check_replaceable(output)
  for location in find.split_init(init):
    path = open_path("init", location).resolve()
    if path.exists() and (path == resolved or resolved in path.parents):
      raise InputError(
        f"output='{output}' holds the weights to convert. Choose another"
        " --output."
      )
  loaded, matched = load.load_own_model(find.Weights(init))
  name = find.hide_folders(init)
  about = f"Converted, not trained, from `{name}`, whose license applies."
  roles = [*matched.networks]
  others = tuple(x for x in loaded.model.roles if x not in roles)
  missing = [x for x in matched.missing if not x.startswith(others)]
  load.report_missing(matched, missing, print)
  if missing:
    about += (
      "\n\n**NOT ALL WEIGHTS ARE TRAINED. THE ORIGINAL LACKS THESE, SO THEY ARE"
      f" DRAWN AT RANDOM: `{load.list_modules(missing)}`.** Train them first."
    )
  return export_model(*loaded, output, about=about, roles=roles)


def _task_fields(
  model: finetune.DownstreamModel, task: task_lib.Task
) -> dict[str, Any]:
  fields: dict[str, Any] = {}
  if model.backbone == "modern" or task.kind != task_lib.SPANS:
    fields["classifier_dropout"] = model.head_dropout
  if model.backbone == "modern":
    fields["classifier_pooling"] = model.pooling
  if task.kind == task_lib.SCORE:
    fields["problem_type"] = "regression"
    fields |= hf_config.label_fields(["score"])
  if task.kind == task_lib.CLASSES:
    fields["problem_type"] = "single_label_classification"
    fields |= hf_config.label_fields(task.labels)
  if task.kind == task_lib.TAGS:
    fields |= hf_config.label_fields(task.labels)
  return fields


def _check_finite(params: Mapping[str, Any]) -> None:
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    if not np.isfinite(x).all():
      name = jax.tree_util.keystr(path, simple=True, separator="/")
      raise NonFiniteError(
        f"{name} holds {np.count_nonzero(~np.isfinite(x)):,} values that are"
        " not finite. Nothing was exported."
      )


def check_replaceable(
  output: pathlib.Path, roles: Collection[str] = tuple(hf_names.NETWORKS)
) -> pathlib.Path:
  """Returns the resolved `output` if `roles` may be written there."""
  with disk_errors(output):
    output = output.expanduser().resolve()
    if not output.exists():
      return output
    if not output.is_dir():
      raise InputError(f"output='{output}' is a file. Choose another --output.")
    for path in sorted(output.iterdir()):
      if path.name not in roles or not _is_export(path):
        raise InputError(
          f"output='{output}' holds what this export does not replace:"
          f" {path.name}. Move it away or choose another --output."
        )
  return output


def _is_export(path: pathlib.Path) -> bool:
  """Whether a folder, which is no link, has only files of an export."""
  if path.resolve() != path or not path.is_dir():
    return False
  others = [x for x in path.iterdir() if x.name not in MODEL_FILES]
  return all(x.name == hf_names.DETECTOR and _is_export(x) for x in others)


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
  match.check_tokenizer(model, tokenizer)
  path = folder / hf_folder.WEIGHTS
  tensors = hf_names.to_huggingface(params, model, role)
  fields = hf_config.make_fields(model, role, pad=tokenizer.pad)
  fields |= extra_fields or {}
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
  tokenizer_files.write_tokenizer(tokenizer, folder)
  length = model.roles[role].max_positions
  files = hf_config.tokenizer_files(tokenizer, family, length)
  for name, value in {hf_folder.CONFIG: fields, **files}.items():
    text = json.dumps(value, indent=2) + "\n"
    (folder / name).write_text(text, encoding="utf-8")


def _finish_folder(
  folder: pathlib.Path,
  class_name: str,
  about: str,
  use: str = _USE,
  language: str = "",
) -> None:
  """Writes the model card, and then SHA256SUMS; flushes all files to disk."""
  import huggingface_hub  # slow to import

  metadata = huggingface_hub.ModelCardData(
    language=language or None,
    license="unknown",
    library_name="transformers",
    tags=[class_name.partition("For")[0].lower(), "truenegs_jax"],
  )
  card = _CARD.format(
    metadata=metadata.to_yaml(),
    name=class_name,
    use=use,
    about=about,
    version=importlib.import_module("truenegs_jax").__version__,
  )
  (folder / hf_folder.CARD).write_text(card, encoding="utf-8")
  hf_folder.write_checksums(folder)


def compare_logits(
  folders: Mapping[str, pathlib.Path],
  params: Mapping[str, Any],
  model: hf_names.Model,
) -> str:
  """Compares a model's logits with those of its export in transformers.

  `folders` are those of the networks, by role. Returns a sentence:
  transformers computes our logits, or PyTorch is missing.
  Raises NonFiniteError for our logits, TrueNegsError for theirs or a tensor.
  """
  try:
    import torch
    import transformers
  except ImportError as e:
    return (
      f"Not compared with transformers: {e.name or 'PyTorch'} is not installed."
      f" To compare, run {hf_folder.INSTALL_TORCH} and export again."
    )
  inputs = _random_inputs(next(iter(model.roles.values())))
  expected = _compute_logits(params, model, inputs)
  is_real_BxL = inputs["documents"] != 0
  lines: list[str] = []
  classes: list[str] = []
  for role, folder in folders.items():
    tensors = {
      "input_ids": torch.tensor(inputs["tokens"]),
      "attention_mask": torch.tensor(inputs["documents"]),
    }
    if "embeddings/type" in hf_names.name_table(model, role):
      tensors["token_type_ids"] = torch.tensor(inputs["types"])
    for part, class_name in hf_names.list_classes(model, role):
      classes.append(class_name)
      network = _load(folder / part, class_name)
      with torch.no_grad():
        output = network(**tensors)
      fields = [x for x in expected[role] if x in output]
      for field in fields:
        ours = expected[role][field]
        theirs = output[field].numpy()
        if ours.shape[:2] == is_real_BxL.shape:  # class logits: [B, C]
          ours = ours[is_real_BxL]
          theirs = theirs[is_real_BxL]
        name = part or (role if len(fields) == 1 else f"{role} {field}")
        lines.append(_compare(name, ours, theirs))
  return (
    f"transformers {transformers.__version__} loads {' and '.join(classes)} and"
    f" computes our logits. Largest difference: {', '.join(lines)}."
  )


def _compute_logits(
  params: Mapping[str, Any], model: hf_names.Model, inputs: Arrays
) -> dict[str, Arrays]:
  """Returns f32 logits by role and by field of transformers' outputs."""
  f32_model = encoder.replace_configs(model, dtype="float32")
  rows, length = inputs["tokens"].shape
  positions_BxL = jnp.broadcast_to(jnp.arange(length), (rows, length))

  @jax.jit
  def compute(params, inputs):
    bound = f32_model.bind({"params": params})
    if isinstance(bound, finetune.DownstreamModel):
      logits = bound.logits(inputs, None)
      if bound.head != "spans":
        return {bound.role: {"logits": logits}}
      starts_BxL, ends_BxL = jnp.moveaxis(logits, 2, 0)
      return {bound.role: {"start_logits": starts_BxL, "end_logits": ends_BxL}}
    predicted_BxLxV = bound.generate_logits(inputs, positions_BxL, None)
    if isinstance(bound, pretrain.ElectraPair):
      hidden_BxLxD = bound.encode(inputs, None)
      logits = bound.detect(hidden_BxLxD)
      if bound.backbone == "modern":  # those of two labels
        logits = jnp.stack([0 * logits, logits], axis=-1)
      return {
        "discriminator": {"last_hidden_state": hidden_BxLxD, "logits": logits},
        "generator": {"logits": predicted_BxLxV},
      }
    if not bound.pooler:
      return {"bert": {"logits": predicted_BxLxV}}
    both = {"prediction_logits": predicted_BxLxV}
    both["seq_relationship_logits"] = bound.pooled(bound.encode(inputs, None))
    return {"bert": both}

  with jax.default_matmul_precision("highest"):  # GPUs and TPUs round more
    return jax.device_get(compute(params, inputs))


def _compare(name: str, ours: np.ndarray, theirs: np.ndarray) -> str:
  """Describes the difference of logits; raises an error for a large one."""
  if not np.isfinite(ours).all():
    raise NonFiniteError(
      f"The logits of {name} are not finite, although the weights are: the run"
      " diverged. Nothing was exported. Use a lower --config.optim.lr."
    )
  largest = np.abs(theirs).max()
  difference = np.abs(theirs - ours).max()
  if not difference <= TOLERANCE * max(1.0, largest):  # NaN too
    raise TrueNegsError(
      f"The logits of {name} in transformers differ from ours by"
      f" {difference:.2g} (largest {largest:.3g}). {DEFECT}"
    )
  return f"{name} {difference:.1e} (largest {largest:.3g})"


def _load(folder: pathlib.Path, name: str) -> Any:
  """Loads a class of transformers, whose tensors must be those of the file."""
  import torch
  import transformers

  network, info = getattr(transformers, name).from_pretrained(
    folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
  )
  if wrong := sorted({*info["missing_keys"], *info["unexpected_keys"]}):
    raise TrueNegsError(
      f"transformers {transformers.__version__} misses or does not know these"
      f" tensors of {name}: {', '.join(wrong[:5])}. {DEFECT}"
    )
  return network.eval()


def _random_inputs(config: encoder.EncoderConfig) -> dict[str, np.ndarray]:
  """Returns four random rows, three of them padded, with both token types."""
  length = min(64, config.max_positions)
  rng = np.random.default_rng(0)
  ends_Bx1 = np.array([[length], [length - 1], [length // 2], [1]])
  shape = len(ends_Bx1), length
  return {
    "tokens": rng.integers(0, config.vocab_size, shape, dtype=np.int32),
    "types": rng.integers(0, config.type_vocab_size, shape, dtype=np.int32),
    "documents": (np.arange(length)[None] < ends_Bx1).astype(np.int32),
  }
