"""Compares our logits with those of the exported model in transformers."""

import pathlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truenegs_jax.models import encoder, finetune, pretrain
from truenegs_jax.runtime.errors import NonFiniteError, TrueNegsError
from truenegs_jax.weights import arrays, hf_names

# Relative to max(1, largest logit), with both sides in f32. Rounding causes up
# to 2e-5 in 24 layers with large weights, a misplaced tensor 1e-2 and more.
TOLERANCE = 1e-4

Arrays = Mapping[str, np.ndarray]


def compare(
  folders: Mapping[str, pathlib.Path],
  params: Mapping[str, Any],
  model: hf_names.Model,
  *,
  scale: tuple[float, float] = (0.0, 1.0),
) -> str:
  """Compares a model's logits with those of its export.

  Logits of tokens are compared at every position that is not padding. BERT with
  a pooler also has logits of the next-sentence classifier.

  Args:
    folders: role -> folder of the exported network, for the roles to compare.
    params: the parameters of `model`, f32 numpy arrays.
    scale: (offset, scale); the export computes offset + scale * our logits.

  Returns:
    A sentence for the user: transformers computes our logits, or nothing was
    compared because PyTorch is not installed.

  Raises:
    TrueNegsError: a tensor is missing or unexpected, or logits differ.
    NonFiniteError: our logits are not finite.
  """
  try:
    import torch
    import transformers
  except ImportError as e:
    return (
      f"Not compared with transformers: {e.name or 'PyTorch'} is not installed."
      f" To compare, run {arrays.torch_command()} and export again."
    )
  transformers.utils.logging.disable_progress_bar()
  offset, factor = scale
  inputs = _random_inputs(next(iter(model.roles.values())))
  is_real_BxL = inputs["documents"] != 0
  lines, expected = [], _compute_logits(params, model, inputs)
  for role, folder in folders.items():
    network = _load(folder, model, role, torch, transformers)
    with torch.no_grad():
      output = network(
        input_ids=torch.tensor(inputs["tokens"]),
        token_type_ids=torch.tensor(inputs["types"]),
        attention_mask=torch.tensor(inputs["documents"]),
      )
    for field, logits in expected[role].items():
      name = role if len(expected[role]) == 1 else f"{role} {field}"
      ours, theirs = offset + factor * logits, output[field].numpy()
      # Class logits `[B, C]` have no padding.
      if ours.shape[:2] == is_real_BxL.shape:
        ours, theirs = ours[is_real_BxL], theirs[is_real_BxL]
      lines.append(_compare_logits(name, ours, theirs))
  names = [hf_names.architecture(model, role) for role in folders]
  return (
    f"transformers {transformers.__version__} loads {' and '.join(names)} and"
    f" computes our logits. Largest difference: {', '.join(lines)}."
  )


def _compute_logits(
  params: Mapping[str, Any], model: hf_names.Model, inputs: Arrays
) -> dict[str, Arrays]:
  """Returns f32 logits by role and by field of transformers' outputs.

  A fine-tuned model has class logits `[B, C]` or span logits `[B, L]`, a
  pre-trained one logits at every position.
  """
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
      return {
        "discriminator": {"logits": bound.detect_logits(inputs, None)},
        "generator": {"logits": predicted_BxLxV},
      }
    if not bound.pooler:
      return {"bert": {"logits": predicted_BxLxV}}
    next_Bx2 = bound.pooled(bound.encode(inputs, None))
    return {
      "bert": {
        "prediction_logits": predicted_BxLxV,
        "seq_relationship_logits": next_Bx2,
      }
    }

  with jax.default_matmul_precision("highest"):  # GPUs and TPUs round more
    return jax.device_get(compute(params, inputs))


def _compare_logits(name: str, ours: np.ndarray, theirs: np.ndarray) -> str:
  """Describes the largest difference between our logits and PyTorch's."""
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
      f" {difference:.2g} (largest logit {largest:.3g}). Nothing was exported."
      " This is a defect. Please report it."
    )
  return f"{name} {difference:.1e} (largest {largest:.3g})"


def _load(
  folder: pathlib.Path,
  model: hf_names.Model,
  role: str,
  torch: ModuleType,
  transformers: ModuleType,
) -> Any:
  name = hf_names.architecture(model, role)
  network, info = getattr(transformers, name).from_pretrained(
    folder,
    dtype=torch.float32,
    local_files_only=True,
    output_loading_info=True,
  )
  wrong = sorted({*info["missing_keys"], *info["unexpected_keys"]})
  if wrong:
    raise TrueNegsError(
      f"transformers {transformers.__version__} misses or does not know these"
      f" tensors of {role}: {', '.join(wrong[:5])}. Nothing was exported. This"
      " is a defect. Please report it."
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
