"""Compares our logits with those of the exported model in transformers."""

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

# Relative to max(1, largest logit), with both sides in f32. Rounding causes up
# to 2e-5 in 24 layers with large weights, a misplaced tensor 1e-2 and more.
TOLERANCE = 1e-4

Logits = Mapping[str, np.ndarray]  # by field of transformers' outputs


def compare(
  folder: pathlib.Path,
  params: Mapping[str, Any],
  model: pretrain.Model,
  *,
  roles: Sequence[str] = (),
  dtype: str = "float32",
) -> tuple[bool, str]:
  """Compares a pre-trained model's logits with those of its export.

  Logits are compared at every position of padded rows, and for BERT with a
  pooler also those of the next-sentence classifier.

  Args:
    folder: holds a folder for each role.
    params: the exported parameters, f32 numpy arrays.
    model: the model that the parameters belong to.
    roles: the networks to compare; empty means all of the model.
    dtype: of the exported weights; the comparison is in f32.

  Returns:
    Whether PyTorch is installed, so that both were compared, and a sentence
    about the result for the user.

  Raises:
    TrueNegsError: a tensor is missing or unexpected, or logits differ by more
      than 1e-4 * max(1, largest logit).
    NonFiniteError: our logits are not finite.
  """
  try:
    torch, transformers = _import_torch()
  except ImportError as e:
    return False, _not_compared(e)
  roles = roles or tuple(model.roles)
  type_ = hf_names.DTYPES[dtype]
  params = jax.tree.map(lambda x: x.astype(type_).astype(np.float32), params)
  inputs = _random_inputs(next(iter(model.roles.values())))
  lines, expected = [], our_logits(params, model, inputs)
  for role in roles:
    network = _load(folder / role, model, role, torch, transformers)
    output = _run(network, inputs, torch)
    fields = expected[role]
    names = {x: role if len(fields) == 1 else f"{role} {x}" for x in fields}
    lines += _compare_fields(fields, output, inputs, names)
  return True, _summary(transformers, " and ".join(roles), lines)


def compare_task(
  folder: pathlib.Path,
  params: Mapping[str, Any],
  model: finetune.DownstreamModel,
  *,
  scale: tuple[float, float] = (0.0, 1.0),
) -> tuple[bool, str]:
  """Compares a fine-tuned model's logits with those of its export.

  Args:
    folder: the folder of the export.
    params: the trained parameters, f32 numpy arrays.
    model: the model that the parameters belong to.
    scale: (offset, scale); the export computes offset + scale * our output.

  Returns and raises as `compare`.
  """
  try:
    torch, transformers = _import_torch()
  except ImportError as e:
    return False, _not_compared(e)
  inputs = _random_inputs(model.config)
  network = _load(folder, model, model.role, torch, transformers)
  output = _run(network, inputs, torch)
  if model.head == "linear":
    head = safetensors.numpy.load_file(folder / hf_folder.HEAD)
    first_BxD = output.last_hidden_state[:, 0].numpy()
    logits_BxC = first_BxD @ head["classifier.weight"].T
    output = {"logits": torch.tensor(logits_BxC + head["classifier.bias"])}
  offset, factor = scale
  expected = {
    name: offset + factor * x
    for name, x in our_task_logits(params, model, inputs).items()
  }
  names = {name: name for name in expected}
  lines = _compare_fields(expected, output, inputs, names)
  architecture = hf_names.architecture(model, model.role)
  return True, _summary(transformers, architecture, lines)


def our_task_logits(
  params: Mapping[str, Any],
  model: finetune.DownstreamModel,
  inputs: Mapping[str, np.ndarray],
) -> Logits:
  """Returns f32 logits of a task head, classes `[B, C]` or spans `[B, L]`."""
  config = dataclasses.replace(model.config, dtype="float32")
  is_spans = model.head == "spans"
  compute_logits = jax.jit(
    lambda params, inputs: model.clone(config=config).apply(
      {"params": params},
      inputs,
      None,
      method="span_logits" if is_spans else "class_logits",
    )
  )
  with jax.default_matmul_precision("highest"):  # GPUs and TPUs round more
    logits = jax.device_get(compute_logits(params, inputs))
  if is_spans:
    return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
  return {"logits": logits}


def _import_torch() -> tuple[Any, Any]:
  import torch
  import transformers

  transformers.utils.logging.disable_progress_bar()
  return torch, transformers


def _not_compared(error: ImportError) -> str:
  return (
    f"not compared with transformers: {error.name or 'PyTorch'} is not"
    " installed. Install it: pip install 'truenegs_jax[torch]'."
  )


def _summary(transformers: Any, network: str, lines: list[str]) -> str:
  return (
    f"transformers {transformers.__version__} loads {network} and computes our"
    f" logits. Largest difference: {', '.join(lines)}."
  )


def our_logits(
  params: Mapping[str, Any],
  model: pretrain.Model,
  inputs: Mapping[str, np.ndarray],
) -> dict[str, Logits]:
  """Returns the f32 logits of every network at every position, by role."""
  configs: dict[str, Any] = {
    name: dataclasses.replace(config, dtype="float32")
    for name, config in vars(model).items()
    if isinstance(config, EncoderConfig)
  }
  f32_model = model.clone(**configs)
  rows, length = inputs["tokens"].shape
  positions_BxL = jnp.broadcast_to(jnp.arange(length), (rows, length))

  @jax.jit
  def logits(params, inputs):
    bound = f32_model.bind({"params": params})
    predicted_BxLxV = bound.generate_logits(inputs, positions_BxL, None)
    if isinstance(f32_model, pretrain.ElectraPair):
      return {
        "discriminator": {"logits": bound.detect_logits(inputs, None)},
        "generator": {"logits": predicted_BxLxV},
      }
    if not f32_model.pooler:
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


def _compare_fields(
  expected: Logits,
  output: Any,
  inputs: Mapping[str, np.ndarray],
  names: Mapping[str, str],
) -> list[str]:
  """Describes the largest difference of each field of a network's output.

  Args:
    names: field -> its name in messages.
  """
  lines, real_BxL = [], inputs["documents"] != 0
  for field, logits in expected.items():
    # Token logits `[B, L, ...]` without padding; class logits `[B, C]` as is.
    selected = real_BxL if logits.shape[:2] == real_BxL.shape else ...
    ours, theirs = logits[selected], output[field].numpy()[selected]
    if not np.isfinite(ours).all():
      raise NonFiniteError(
        f"The logits of {names[field]} are not finite, although the weights"
        " are: the run diverged. Nothing was exported. Try a lower"
        " --config.optim.lr."
      )
    largest = np.abs(theirs).max()
    difference = np.abs(theirs - ours).max()
    if not difference <= TOLERANCE * max(1.0, largest):  # NaN too
      raise TrueNegsError(
        f"The logits of {names[field]} in transformers differ from ours by"
        f" {difference:.2g} (largest logit {largest:.3g}). Nothing was"
        " exported. This is a defect. Please report it."
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
  network, info = getattr(transformers, name).from_pretrained(
    folder,
    **{"add_pooling_layer": False} if name == "BertModel" else {},
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


def _run(network: Any, inputs: Mapping[str, np.ndarray], torch: Any) -> Any:
  """Returns the output of a network of transformers."""
  with torch.no_grad():
    return network(
      input_ids=torch.tensor(inputs["tokens"]),
      token_type_ids=torch.tensor(inputs["types"]),
      attention_mask=torch.tensor(inputs["documents"]),
    )


def _random_inputs(config: EncoderConfig) -> dict[str, np.ndarray]:
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
