"""Do our models and those that transformers loads give the same logits?"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from truenegs_jax.models import finetune, pretrain
from truenegs_jax.models.encoder import EncoderConfig
from truenegs_jax.runtime.errors import NonFiniteError, TrueNegsError
from truenegs_jax.weights.formats import hf_folder, hf_names

# Of max(1, largest logit), both sides in f32. Rounding alone reaches 2e-5 in 24
# layers with large weights; a tensor in the wrong place gives 1e-2 and more.
TOLERANCE = 1e-4

Logits = Mapping[str, np.ndarray]  # by the fields of transformers' outputs


def compare(
  folder: pathlib.Path,
  params: Mapping[str, Any],
  model: pretrain.Model,
  *,
  roles: Sequence[str] = (),
  dtype: str = "float32",
) -> tuple[bool, str]:
  """Loads an exported model and compares its logits with ours, rows padded.

  The masked language models' are compared at every position, and BERT's for
  the next sentence too where the model carries them.

  Args:
    folder: holds a folder for each of these roles.
    params: what was exported, f32 arrays of numpy.
    model: what the parameters are of.
    roles: those to compare; none: all that the model has.
    dtype: of the exported weights; the comparison itself is made in f32.

  Returns:
    Whether PyTorch is there, so that the two were compared, and a sentence for
    the user that says so.

  Raises:
    TrueNegsError: a tensor is missing or not expected, or logits differ by more
      than 1e-4 of the largest one (of 1 if that is smaller).
  """
  try:
    torch, transformers = _import_torch()
  except ImportError as e:
    return False, _not_compared(e)
  roles = roles or tuple(model.roles)
  kind = hf_names.DTYPES[dtype]
  params = jax.tree.map(lambda x: x.astype(kind).astype(np.float32), params)
  inputs = _random_inputs(next(iter(model.roles.values())))
  lines, ours = [], our_logits(params, model, inputs)
  for role in roles:
    loaded = _load(folder / role, model, role, torch, transformers)
    output = _run(loaded, inputs, torch)
    names = {
      x: role if len(ours[role]) == 1 else f"{role} {x}" for x in ours[role]
    }
    lines += _differences(ours[role], output, inputs, names)
  return True, (
    f"transformers {transformers.__version__} loads {' and '.join(roles)}"
    f" and comes to our logits; largest difference: {', '.join(lines)}"
  )


def compare_task(
  folder: pathlib.Path,
  params: Mapping[str, Any],
  model: finetune.DownstreamModel,
  *,
  scale: tuple[float, float] = (0.0, 1.0),
) -> tuple[bool, str]:
  """Loads an exported fine-tuned model and compares its logits with ours.

  Args:
    folder: holds the files.
    params: what was exported, f32 arrays of numpy, as they were trained.
    model: what these are of.
    scale: (offset, scale) by which our outputs are the files' logits.

  Returns, raises: as `compare`.
  """
  try:
    torch, transformers = _import_torch()
  except ImportError as e:
    return False, _not_compared(e)
  inputs = _random_inputs(model.config)
  loaded = _load(folder, model, model.role, torch, transformers)
  output = _run(loaded, inputs, torch)
  if model.head == "linear":
    head = safetensors.numpy.load_file(folder / hf_folder.HEAD)
    first_BxD = output.last_hidden_state[:, 0].numpy()
    logits_BxC = first_BxD @ head["classifier.weight"].T
    output = {"logits": torch.tensor(logits_BxC + head["classifier.bias"])}
  offset, factor = scale
  ours = {
    name: offset + factor * x
    for name, x in our_task_logits(params, model, inputs).items()
  }
  lines = _differences(ours, output, inputs, {name: name for name in ours})
  return True, (
    f"transformers {transformers.__version__} loads"
    f" {hf_names.architecture(model, model.role)} and comes to our"
    f" logits; largest difference: {', '.join(lines)}"
  )


def our_task_logits(
  params: Mapping[str, Any],
  model: finetune.DownstreamModel,
  inputs: Mapping[str, np.ndarray],
) -> Logits:
  """The f32 logits of a task's head, of classes `[B, C]` or spans `[B, L]`."""
  config = dataclasses.replace(model.config, dtype="float32")
  spans = model.head == "spans"
  logits = jax.jit(
    lambda params, inputs: model.clone(config=config).apply(
      {"params": params},
      inputs,
      None,
      method="span_logits" if spans else "class_logits",
    )
  )
  with jax.default_matmul_precision("highest"):  # GPUs and TPUs round more
    found = jax.device_get(logits(params, inputs))
  if spans:
    return {"start_logits": found[..., 0], "end_logits": found[..., 1]}
  return {"logits": found}


def _import_torch() -> tuple[Any, Any]:
  import torch
  import transformers

  transformers.utils.logging.disable_progress_bar()
  return torch, transformers


def _not_compared(error: ImportError) -> str:
  return (
    "not compared with transformers:"
    f" {error.name or 'PyTorch'} is not installed."
    ' Exports are, after pip install "truenegs_jax[torch]".'
  )


def our_logits(
  params: Mapping[str, Any],
  model: pretrain.Model,
  inputs: Mapping[str, np.ndarray],
) -> dict[str, Logits]:
  """The f32 logits of every network at every position, by role."""
  configs: dict[str, Any] = {
    name: dataclasses.replace(config, dtype="float32")
    for name, config in vars(model).items()
    if isinstance(config, EncoderConfig)
  }
  exact = model.clone(**configs)
  rows, length = inputs["tokens"].shape
  positions_BxL = jnp.broadcast_to(jnp.arange(length), (rows, length))

  @jax.jit
  def logits(params, inputs):
    bound = exact.bind({"params": params})
    predicted_BxLxV = bound.generate_logits(inputs, positions_BxL, None)
    if isinstance(exact, pretrain.ElectraPair):
      return {
        "discriminator": {"logits": bound.detect_logits(inputs, None)},
        "generator": {"logits": predicted_BxLxV},
      }
    if not exact.pooler:
      return {"bert": {"logits": predicted_BxLxV}}
    next_Bx2 = bound.pooled(bound.encode(inputs, None))
    return {
      "bert": {
        "prediction_logits": predicted_BxLxV,
        "seq_relationship_logits": next_Bx2,
      }
    }

  with jax.default_matmul_precision("highest"):  # GPUs and TPUs round more
    return jax.device_get(logits(params, inputs))


def _differences(
  ours: Logits,
  output: Any,
  inputs: Mapping[str, np.ndarray],
  names: Mapping[str, str],
) -> list[str]:
  """The largest difference of each field of a network's output, in words.

  Args:
    names: of the fields, for messages.
  """
  lines, real_BxL = [], inputs["documents"] != 0
  for field, logits in ours.items():
    # Not of classes `[B, C]`, but of tokens `[B, L, ...]`: without padding.
    real = real_BxL if logits.shape[:2] == real_BxL.shape else ...
    expected, theirs = logits[real], output[field].numpy()[real]
    if not np.isfinite(expected).all():
      raise NonFiniteError(
        f"{names[field]}: the weights are finite but so large that the logits"
        " are not: the run diverged; nothing was exported. Try a lower"
        " optim.lr."
      )
    largest = np.abs(theirs).max()
    difference = np.abs(theirs - expected).max()
    if not difference <= TOLERANCE * max(1.0, largest):  # NaN too
      raise TrueNegsError(
        f"{names[field]}: the logits of transformers differ from ours by"
        f" {difference:.2g} (largest logit {largest:.3g}), so nothing was"
        " exported. This is a defect; please report it."
      )
    lines.append(f"{names[field]} {difference:.1e} (largest {largest:.3g})")
  return lines


def _load(
  folder: pathlib.Path,
  model: hf_names.Model,
  role: str,
  torch: Any,
  transformers: Any,
) -> Any:
  name = hf_names.architecture(model, role)
  loaded, info = getattr(transformers, name).from_pretrained(
    folder,
    **{"add_pooling_layer": False} if name == "BertModel" else {},
    dtype=torch.float32,
    local_files_only=True,
    output_loading_info=True,
  )
  wrong = sorted({*info["missing_keys"], *info["unexpected_keys"]})
  if wrong:
    raise TrueNegsError(
      f"{role}: transformers {transformers.__version__} misses or does not know"
      f" {', '.join(wrong[:5])}, so nothing was exported. This is a defect;"
      " please report it."
    )
  return loaded.eval()


def _run(loaded: Any, inputs: Mapping[str, np.ndarray], torch: Any) -> Any:
  """The output of a network of transformers."""
  with torch.no_grad():
    return loaded(
      input_ids=torch.tensor(inputs["tokens"]),
      token_type_ids=torch.tensor(inputs["types"]),
      attention_mask=torch.tensor(inputs["documents"]),
    )


def _random_inputs(config: EncoderConfig) -> dict[str, np.ndarray]:
  """Four rows, three of them padded, of any tokens and both types."""
  length = min(64, config.max_positions)
  rng = np.random.default_rng(0)
  ends_Bx1 = np.array([[length], [length - 1], [length // 2], [1]])
  shape = len(ends_Bx1), length
  return {
    "tokens": rng.integers(0, config.vocab_size, shape, dtype=np.int32),
    "types": rng.integers(0, config.type_vocab_size, shape, dtype=np.int32),
    "documents": (np.arange(length)[None] < ends_Bx1).astype(np.int32),
  }
