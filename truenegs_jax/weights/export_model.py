"""Exports a model to folders that transformers loads.

result = export_task(params, model, tokenizer, output, task=task, origin=origin)
result = export_weights("google-bert/bert-base-uncased", output)
"""

import dataclasses
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.models import encoder, finetune, pretrain
from truenegs_jax.runtime.errors import (
  InputError,
  NonFiniteError,
  TrueNegsError,
)
from truenegs_jax.runtime.files import (
  CHECKSUMS,
  atomic_folder,
  disk_errors,
  sync,
)
from truenegs_jax.runtime.paths import is_bucket, open_path
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import (
  arrays,
  hf_config,
  hf_folder,
  hf_names,
  load,
  model_card,
)
from truenegs_jax.weights.find import Weights, split_init

# Of f32 logits, relative to max(1, largest). Rounding causes up to 2e-5 in 24
# layers with large weights, a misplaced tensor 1e-2 and more.
TOLERANCE = 1e-4
Arrays = Mapping[str, np.ndarray]
INPUT_NAMES = {  # of a batch -> of transformers
  "tokens": "input_ids",
  "types": "token_type_ids",
  "documents": "attention_mask",
}
MODEL_FILES = {
  model_card.CARD,
  CHECKSUMS,
  "config.json",
  "model.safetensors",
  "tokenizer.json",
  "tokenizer_config.json",
  "vocab.txt",
}


@dataclasses.dataclass(frozen=True)
class ExportResult:
  """A finished export."""

  output: pathlib.Path
  # For the user: transformers computed our logits, or why it was not checked.
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
    params: f32 arrays of numpy or jax.
    output: the folder to create. An older export there is replaced after the
      new one is complete and checked.
    origin: where the weights come from, for the model cards.
    roles: the networks to write; empty means all.
  """
  roles = roles or tuple(model.roles)
  output = check_replaceable(open_path("output", output), roles)
  params = jax.device_get(params)
  _check_finite(params)
  with atomic_folder(output) as partial:
    folders = {role: partial / role for role in roles}
    for role, folder in folders.items():
      for part, name in hf_names.list_classes(model, role):
        network = (params, model, role, tokenizer)
        card = model_card.pretrained_card(*network, origin, name)
        path = folder / part
        _write_folder(output, path, network, card, class_name=name)
    summary = compare_logits(folders, params, model)
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
  the trained logits, with scores in the task's units. `output` must not exist.
  """
  if output.exists() and not is_bucket(output):
    raise InputError(
      f"output='{output}' exists. Move it away or choose another folder."
    )
  params = _unscale(jax.device_get(params), task)
  _check_finite(params)
  role = model.role
  card = model_card.task_card(params, model, tokenizer, task, origin)
  fields = _task_fields(model, task)
  with atomic_folder(output) as partial:
    network = (params, model, role, tokenizer)
    _write_folder(output, partial, network, card, extra_fields=fields)
    summary = compare_logits({role: partial}, params, model)
  return ExportResult(output, summary)


def _unscale(params: Mapping[str, Any], task: task_lib.Task) -> dict[str, Any]:
  """Returns parameters of scores, for those of (score - offset) / scale."""
  if task.kind != task_lib.SCORE:
    return dict(params)
  offset, scale = map(np.float32, task.scale)
  head = params["task_head"]
  output = {name: x * scale for name, x in head["output"].items()}
  output["bias"] += offset
  return {**params, "task_head": {**head, "output": output}}


def export_weights(
  init: str, output: pathlib.Path, *, report: Callable[[str], object] = print
) -> ExportResult:
  """Converts weights of any size, in any format of `config.init`.

  `report` receives lines about downloads and about heads drawn at random.
  """
  # Checked first, as reading the weights may take long.
  output = check_replaceable(output)
  for location in split_init(init):
    path = open_path("init", location).resolve()
    if path.exists() and (path == output or output in path.parents):
      raise InputError(
        f"output='{output}' holds the weights to convert. Choose another"
        " --output."
      )
  weights = Weights(init, report)
  model, matched = load.match_own_model(weights, report)
  for line in matched.left_out_lines():
    report(line)
  # A report would name a generator that is not written.
  params = load.load_params(matched, report=lambda line: None)
  random_modules = {}
  for role, network in matched.networks.items():
    random_modules[role] = names = matched.missing_modules(role)
    if names:
      report(f"init: NOT in {network.location}, so DRAWN AT RANDOM: {names}.")
  name = model_card.hide_folders(init)
  origin = model_card.ModelOrigin(
    {"Training": f"* Converted, not trained, by truenegs_jax from: `{name}`"},
    limits=["The licence of the original applies."],
    random_modules=random_modules,
  )
  return export_model(
    model,
    params,
    matched.tokenizer,
    output,
    origin=origin,
    roles=tuple(matched.networks),
  )


def _task_fields(
  model: finetune.DownstreamModel, task: task_lib.Task
) -> dict[str, Any]:
  fields: dict[str, Any] = {"classifier_dropout": model.head_dropout}
  if model.backbone == "modern":
    fields["classifier_pooling"] = model.pooling
  if task.kind == task_lib.SPANS:
    return fields if model.backbone == "modern" else {}
  is_score = task.kind == task_lib.SCORE
  return {
    "problem_type": "regression" if is_score else "single_label_classification",
    **hf_config.label_fields(task.labels or ("score",)),
    **fields,
  }


def _check_finite(params: Mapping[str, Any]) -> None:
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
  """Returns the resolved `output` if `roles` may be written there."""
  with disk_errors(output):
    output = output.expanduser().resolve()
    if not output.exists():
      return output
    if not output.is_dir():
      raise InputError(f"output='{output}' is a file. Choose another --output.")
    other = [
      x.name
      for x in sorted(output.iterdir())
      if x.name not in roles or not _is_export(x)
    ]
  if other:
    raise InputError(
      f"output='{output}' holds what this export does not replace:"
      f" {', '.join(other[:5])}. Move it away or choose another --output."
    )
  return output


def _is_export(path: pathlib.Path) -> bool:
  """Whether a folder, which is no link, has only files of an export."""
  if path.resolve() != path or not path.is_dir():
    return False
  others = [x for x in path.iterdir() if x.name not in MODEL_FILES]
  return all(x.name == hf_names.DETECTOR and _is_export(x) for x in others)


def _write_folder(
  output: pathlib.Path,
  folder: pathlib.Path,
  network: tuple[Any, ...],
  card: str,
  **fields: Any,
) -> None:
  """Writes arguments of `hf_folder.write_model` with card and checksums."""
  with disk_errors(output, safetensors.SafetensorError):
    folder.mkdir(exist_ok=True)
    hf_folder.write_model(folder, *network, **fields)
    (folder / model_card.CARD).write_text(card, encoding="utf-8")
    write_checksums(folder)


def write_checksums(folder: pathlib.Path) -> None:
  """Flushes all files to disk and writes SHA256SUMS of all but the card."""
  lines = []
  for path in sorted(x for x in folder.iterdir() if x.is_file()):
    sync(path)
    if path.name != model_card.CARD:
      lines.append(f"{hf_folder.hash_file(path)}  {path.name}\n")
  sums = folder / CHECKSUMS
  sums.write_text("".join(lines), encoding="utf-8")
  sync(sums)


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
      f" To compare, run {arrays.torch_command()} and export again."
    )
  inputs = _random_inputs(next(iter(model.roles.values())))
  expected = _compute_logits(params, model, inputs)
  is_real_BxL = inputs["documents"] != 0
  lines: list[str] = []
  classes: list[str] = []
  for role, folder in folders.items():
    names = dict(INPUT_NAMES)
    if "embeddings/type" not in hf_names.name_table(model, role):
      del names["types"]
    tensors = {x: torch.tensor(inputs[name]) for name, x in names.items()}
    for part, class_name in hf_names.list_classes(model, role):
      classes.append(class_name)
      network = _load(folder / part, class_name)
      with torch.no_grad():
        output = network(**tensors)
      fields = [field for field in expected[role] if field in output]
      for field in fields:
        name = part or (role if len(fields) == 1 else f"{role} {field}")
        ours = expected[role][field]
        theirs = output[field].numpy()
        if ours.shape[:2] == is_real_BxL.shape:  # class logits: [B, C]
          ours = ours[is_real_BxL]
          theirs = theirs[is_real_BxL]
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
    raise _defect(
      f"The logits of {name} in transformers differ from ours by"
      f" {difference:.2g} (largest logit {largest:.3g})."
    )
  return f"{name} {difference:.1e} (largest {largest:.3g})"


def _load(folder: pathlib.Path, name: str) -> Any:
  """Loads a class of transformers, whose tensors must be those of the file."""
  import torch
  import transformers

  network, info = getattr(transformers, name).from_pretrained(
    folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
  )
  wrong = sorted({*info["missing_keys"], *info["unexpected_keys"]})
  if wrong:
    raise _defect(
      f"transformers {transformers.__version__} misses or does not know these"
      f" tensors of {name}: {', '.join(wrong[:5])}."
    )
  return network.eval()


def _defect(problem: str) -> TrueNegsError:
  text = "Nothing was exported. This is a defect. Please report it."
  return TrueNegsError(f"{problem} {text}")


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
