"""Losses of the paper for PyTorch, as sums with counts.

  synonyms = Synonyms(table, tokenizer).to(device)
  total, count = mlm_loss(logits_BxKxV, labels_BxK, synonyms)
  (total / count.clamp(min=1)).backward()

Labels of -100 are no slots, as `DataCollatorForLanguageModeling` writes them;
so K may be all positions, L. The letters B and K stand for any axes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from truenegs_jax.config import losses as checks
from truenegs_jax.data.words import read_words
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms.table import SynonymTable

IGNORED = -100
NORM_FLOOR = 1e-8  # a shorter vector is orthogonal to all others


class Synonyms(nn.Module):
  """A table whose buffers move and are saved with a model.

  A table of other tokens than the model's `tokenizer` is refused; without it,
  only sizes are compared.
  """

  def __init__(self, table: SynonymTable, tokenizer: Any = None):
    super().__init__()
    self.size = table.vocab_size
    words = read_words(table.tokens)
    arrays = table.arrays(rates=True, tokenizer=tokenizer)
    self.ids_VxS = _pad(arrays["ids_VxS"], -1)
    self.rates_VxS = _pad(arrays["rates_VxS"], 0.0)
    self.edges_V = _pad(words.edges_V, 0)
    self.marks_spaces = words.marks_spaces

  def forward(self, gold_BxK: Tensor, predicted_BxK: Tensor) -> Tensor:
    """True where the prediction is not the gold token but a synonym of it."""
    listed_BxK = (self.ids_VxS[gold_BxK] == predicted_BxK[..., None]).any(-1)
    return listed_BxK & (predicted_BxK != gold_BxK)

  def is_whole_word(
    self, tokens_BxL: Tensor, labels_BxL: "Tensor | None" = None
  ) -> Tensor:
    """True `[B, L]` where a token is no piece of a longer word.

    With `labels_BxL`, these stand in the place of masked tokens.
    """
    if labels_BxL is not None:
      is_slot_BxL = labels_BxL != IGNORED
      tokens_BxL = torch.where(is_slot_BxL, labels_BxL, tokens_BxL)
    edges_BxL = self.edges_V[tokens_BxL]
    first_BxJ = edges_BxL[..., :-1]  # J = L - 1
    second_BxJ = edges_BxL[..., 1:]
    joined_BxJ = (first_BxJ >= 2) & (second_BxJ % 2 == 1)
    split_BxL = functional.pad(joined_BxJ, (0, 1))
    return ~(split_BxL | functional.pad(joined_BxJ, (1, 0)))


def mlm_loss(
  logits_BxKxV: Tensor,
  labels_BxK: Tensor,
  synonyms: Synonyms | None = None,
  *,
  words_BxK: "Tensor | None" = None,  # quoted for mocks of torch
  hard_correction: bool = True,
  smoothing: float = 0.0,
  smoothing_by: str = "uniform",
) -> tuple[Tensor, Tensor]:
  """Sums the loss over the slots that hard correction keeps: (sum, count).

  This is equation 2 of Zhang et al. 2023: a slot whose likeliest token is a
  synonym of the gold token has no loss, and is not counted.

  Args:
    logits_BxKxV: floats of all tokens, and of up to 127 that pad the model.
    labels_BxK: the gold tokens of the slots, elsewhere -100.
    synonyms: on the device of the logits; None for the plain loss.
    words_BxK: `synonyms.is_whole_word(input_ids, labels)`. Other slots,
      of pieces of words, have the plain loss, as in runs.
    smoothing: share of the target that the synonyms get.
    smoothing_by: "uniform", "model", "balanced" or "set".
  """
  if (smoothing or synonyms is not None) and not isinstance(synonyms, Synonyms):
    raise InputError(f"synonyms={synonyms} is no module. Pass Synonyms(table).")
  *shape, size = logits_BxKxV.shape
  for name, x in (("labels", labels_BxK), ("words", words_BxK)):
    if x is not None and x.shape != (*shape,):
      raise InputError(
        f"{name}_BxK has the shape {(*x.shape,)}, but logits_BxKxV"
        f" {(*shape, size)}. Pass {(*shape,)}."
      )
  logits_BxKxV = logits_BxKxV.float()
  kept_BxK = labels_BxK != IGNORED
  loss_BxK = functional.cross_entropy(
    logits_BxKxV.flatten(0, -2), labels_BxK.flatten(), reduction="none"
  ).view(labels_BxK.shape)
  if synonyms is not None:
    checks.check_entries(size, synonyms.size)
    gold_BxK = labels_BxK.clamp(min=0)
    open_BxK = kept_BxK if words_BxK is None else words_BxK  # may be corrected
    if smoothing:
      checks.check_smoothing(smoothing, smoothing_by)
      change_BxK = _change(logits_BxKxV, gold_BxK, synonyms, smoothing_by)
      loss_BxK = loss_BxK + torch.where(open_BxK, smoothing * change_BxK, 0.0)
    if hard_correction:
      false_BxK = synonyms(gold_BxK, logits_BxKxV.argmax(dim=-1))
      kept_BxK = kept_BxK & ~(false_BxK & open_BxK)
  return torch.where(kept_BxK, loss_BxK, 0.0).sum(), kept_BxK.sum().float()


def make_trainer_loss(
  model: nn.Module,
  synonyms: Synonyms,
  *,
  strict_subword: bool = True,
  **options: Any,
) -> Callable[..., Tensor]:
  """Makes a `compute_loss_func` for transformers' `Trainer` from `mlm_loss`.

  `num_items_in_batch` counts the masked tokens of all micro-batches of a step;
  how many are kept, their predictions decide. So each micro-batch is divided by
  its own kept slots, and weighs as much as its share of the masked tokens. This
  is the mean over the kept slots, with gradient accumulation nearly.

  Without gradients, as in `evaluate`, it is the plain cross-entropy, by which
  runs with and without corrections can be compared. The `options` are those of
  `mlm_loss`. For `strict_subword`, a hook reads the `input_ids` of the model.
  """
  inputs = list[Tensor]()

  def read_input(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
    inputs[:] = [kwargs["input_ids"]]

  strict_subword |= synonyms.marks_spaces
  if strict_subword:
    model.register_forward_pre_hook(read_input, with_kwargs=True)

  def compute_loss(
    outputs: Any, labels: Tensor, num_items_in_batch: Any = None
  ) -> Tensor:
    logits = outputs["logits"]
    items = num_items_in_batch
    if torch.is_tensor(items) and items.numel() > 1:
      raise InputError(
        f"num_items_in_batch is of {items.numel()} GPUs in one process, which"
        " divide the batch. Start `torchrun --nproc_per_node=NUMBER SCRIPT`, or"
        " set CUDA_VISIBLE_DEVICES=0."
      )
    if torch.is_grad_enabled():
      table = synonyms.to(logits.device)
      ends = table.is_whole_word(inputs[0], labels) if strict_subword else None
      total, count = mlm_loss(logits, labels, table, words_BxK=ends, **options)
    else:
      total, count = mlm_loss(logits, labels)
    num = (labels != IGNORED).sum()
    items = num if items is None else items
    return total / count.clamp(min=1) * (num / max(items, 1))

  return compute_loss


def soft_loss(
  logits_BxKxV: Tensor, labels_BxK: Tensor, word_VxE: Tensor
) -> tuple[Tensor, Tensor]:
  """Sums 1 - cos(gold, prediction) over all slots (equation 3): (sum, count).

  Args:
    logits_BxKxV, labels_BxK: of `mlm_loss`.
    word_VxE: the embeddings, such as `model.get_input_embeddings().weight`,
      which alone receive the gradient.
  """
  word_VxE = word_VxE.float()
  b_BxKxE = word_VxE[logits_BxKxV.argmax(dim=-1)]
  a_BxKxE = word_VxE[labels_BxK.clamp(min=0)]
  squares_BxK = a_BxKxE.square().sum(dim=-1) * b_BxKxE.square().sum(dim=-1)
  is_long_BxK = squares_BxK > NORM_FLOOR**2
  norms_BxK = torch.where(is_long_BxK, squares_BxK, torch.inf).sqrt()
  loss_BxK = 1.0 - (a_BxKxE * b_BxKxE).sum(dim=-1) / norms_BxK
  # Rounding would leave a small loss for a correct prediction.
  wrong_BxK = (a_BxKxE != b_BxKxE).any(dim=-1)
  kept_BxK = labels_BxK != IGNORED
  total = torch.where(kept_BxK & wrong_BxK, loss_BxK, 0.0).sum()
  return total, kept_BxK.sum().float()


def detection_labels(
  tokens_BxL: Tensor,
  corrupted_BxL: Tensor,
  synonyms: Synonyms,
  *,
  discriminator_label: float = 1.0,
  strict_subword: bool = True,
) -> Tensor:
  """Returns the targets of ELECTRA's discriminator, f32 `[B, L]`.

  Original tokens have 0, replaced ones 1. Synonyms of the original token have
  `discriminator_label`, or if that is below 0, -100 for no loss.
  """
  label = discriminator_label if discriminator_label >= 0 else float(IGNORED)
  spared_BxL = synonyms(tokens_BxL, corrupted_BxL)
  if strict_subword or synonyms.marks_spaces:
    spared_BxL = spared_BxL & synonyms.is_whole_word(tokens_BxL)
  return torch.where(spared_BxL, label, (tokens_BxL != corrupted_BxL).float())


def _pad(array: np.ndarray, value: float) -> Tensor:
  """Returns a buffer with rows for ids that pad the vocabulary."""
  widths = (0, 0) * (array.ndim - 1) + (0, checks.PADDING)
  return nn.Buffer(functional.pad(torch.from_numpy(array), widths, value=value))


def _change(z_BxKxV: Tensor, gold_BxK: Tensor, table: Synonyms, by: str) -> Any:
  """Returns what smoothing by a share of 1 adds: see `mlm.smoothing_change`."""
  ids_BxKxS = table.ids_VxS[gold_BxK].long()
  gold_BxKx1 = gold_BxK[..., None]
  listed_BxKxS = (ids_BxKxS >= 0) & (ids_BxKxS != gold_BxKx1)
  ids_BxKxS = torch.where(listed_BxKxS, ids_BxKxS, gold_BxKx1)
  z_BxKxS = z_BxKxV.gather(-1, torch.cat([gold_BxKx1, ids_BxKxS], dim=-1))
  margin_BxKxS = z_BxKxS[..., :1] - z_BxKxS[..., 1:]
  if by in ("model", "set"):
    rest_BxKxS = (-margin_BxKxS).masked_fill(~listed_BxKxS, -torch.inf)
    # With the gold token's own margin, 0.
    return -functional.pad(rest_BxKxS, (1, 0)).logsumexp(dim=-1)
  if by == "uniform":
    margin_BxKxS = torch.where(listed_BxKxS, margin_BxKxS, 0.0)
    return margin_BxKxS.sum(dim=-1) / listed_BxKxS.sum(dim=-1).clamp(min=1)
  rates_BxKxS = table.rates_VxS[gold_BxK]
  return (rates_BxKxS * functional.logsigmoid(margin_BxKxS)).sum(dim=-1)
