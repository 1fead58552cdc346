"""Losses of the paper for PyTorch, as sums with counts.

  synonyms = Synonyms(table).to(device)
  total, count = mlm_loss(logits_BxLxV, labels_BxL, synonyms)
  (total / count.clamp(min=1)).backward()

Labels of -100 are no slots, as `DataCollatorForLanguageModeling` writes them.
The letters B and L stand for any axes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from truenegs_jax.config.smoothing import check_smoothing
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import continues_word

IGNORED = -100
NORM_FLOOR = 1e-8  # a shorter vector is orthogonal to all others


class Synonyms(nn.Module):
  """A table whose buffers move and are saved with a model."""

  def __init__(self, table: SynonymTable):
    super().__init__()
    self.ids_VxS = nn.Buffer(torch.from_numpy(table.build_ids()))
    self.rates_VxS = nn.Buffer(torch.from_numpy(table.build_rates()))
    self.continues_V = nn.Buffer(torch.tensor(continues_word(table.tokens)))

  def forward(self, gold_BxL: Tensor, predicted_BxL: Tensor) -> Tensor:
    """True where the prediction is not the gold token but a synonym of it."""
    listed_BxL = (self.ids_VxS[gold_BxL] == predicted_BxL[..., None]).any(-1)
    return listed_BxL & (predicted_BxL != gold_BxL)

  def is_word_end(self, tokens_BxL: Tensor) -> Tensor:
    """True `[B, L]` unless a `##` piece comes next."""
    continues_BxL = self.continues_V[tokens_BxL[..., 1:]]
    return functional.pad(~continues_BxL, (0, 1), value=True)


def mlm_loss(
  logits_BxLxV: Tensor,
  labels_BxL: Tensor,
  synonyms: Synonyms | None = None,
  *,
  hard_correction: bool = True,
  smoothing: float = 0.0,
  smoothing_by: str = "uniform",
  input_ids_BxL: "Tensor | None" = None,  # quoted for mocks of torch
) -> tuple[Tensor, Tensor]:
  """Sums the loss over the slots that hard correction keeps: (sum, count).

  This is equation 2 of Zhang et al. 2023: a slot whose likeliest token is a
  synonym of the gold token has no loss, and is not counted.

  Args:
    logits_BxLxV: of any float type.
    labels_BxL: the gold tokens of the slots, elsewhere -100.
    synonyms: on the device of the logits; None for the plain loss.
    smoothing: share of the target that the synonyms get.
    smoothing_by: "uniform", "model", "balanced" or "set".
    input_ids_BxL: the masked rows. With them, words that continue in `##`
      pieces have the plain loss, as in runs (`strict_subword`).
  """
  if (smoothing or synonyms is not None) and not isinstance(synonyms, Synonyms):
    raise InputError(f"synonyms={synonyms} is no module. Pass Synonyms(table).")
  size = logits_BxLxV.shape[-1] if synonyms is None else len(synonyms.ids_VxS)
  if logits_BxLxV.shape != (*labels_BxL.shape, size):
    raise InputError(
      f"logits have shape {tuple(logits_BxLxV.shape)} instead of"
      f" {(*labels_BxL.shape, size)}. They need the axes of labels, and the"
      " tokens of the table: build it with the model's tokenizer."
    )
  logits_BxLxV, kept_BxL = logits_BxLxV.float(), labels_BxL != IGNORED
  loss_BxL = functional.cross_entropy(
    logits_BxLxV.flatten(0, -2), labels_BxL.flatten(), reduction="none"
  ).view(labels_BxL.shape)
  if synonyms is not None:
    gold_BxL = labels_BxL.clamp(min=0)
    open_BxL = kept_BxL  # may be corrected
    if input_ids_BxL is not None:
      tokens_BxL = torch.where(kept_BxL, labels_BxL, input_ids_BxL)
      open_BxL = synonyms.is_word_end(tokens_BxL)
    if smoothing:
      check_smoothing(smoothing, smoothing_by)
      change_BxL = _change(logits_BxLxV, gold_BxL, synonyms, smoothing_by)
      loss_BxL = loss_BxL + torch.where(open_BxL, smoothing * change_BxL, 0.0)
    if hard_correction:
      false_BxL = synonyms(gold_BxL, logits_BxLxV.argmax(dim=-1))
      kept_BxL = kept_BxL & ~(false_BxL & open_BxL)
  return torch.where(kept_BxL, loss_BxL, 0.0).sum(), kept_BxL.sum().float()


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
  # Refuses another table and wrong options before the first step.
  ids_VxS = getattr(synonyms, "ids_VxS", torch.zeros(1, 1))
  labels_1 = torch.full_like(ids_VxS[:1, 0], IGNORED, dtype=torch.long)
  mlm_loss(ids_VxS.new_zeros(1, len(ids_VxS)), labels_1, synonyms, **options)
  inputs = dict[str, Any]()

  def read_input(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
    inputs["input_ids_BxL"] = kwargs["input_ids"]

  if strict_subword:
    model.register_forward_pre_hook(read_input, with_kwargs=True)

  def compute_loss(
    outputs: Any, labels: Tensor, num_items_in_batch: Any = None
  ) -> Tensor:
    logits = outputs["logits"]
    if torch.is_grad_enabled():
      table = synonyms.to(logits.device)
      total, count = mlm_loss(logits, labels, table, **inputs, **options)
    else:
      total, count = mlm_loss(logits, labels)
    num = (labels != IGNORED).sum()
    items = num if num_items_in_batch is None else num_items_in_batch
    return total / count.clamp(min=1) * (num / max(items, 1))

  return compute_loss


def soft_loss(
  logits_BxLxV: Tensor,
  labels_BxL: Tensor,
  word_VxE: Tensor,
  *,
  soft_prediction: str = "predicted",
) -> tuple[Tensor, Tensor]:
  """Sums 1 - cos(gold, prediction) over all slots (equation 3): (sum, count).

  Args:
    logits_BxLxV, labels_BxL: of `mlm_loss`.
    word_VxE: the embeddings, such as `model.get_input_embeddings().weight`.
    soft_prediction: "predicted" compares with the likeliest token, and its
      gradient reaches the embeddings only; "expected" with the mean direction
      by probability, and its gradient reaches the logits only.
  """
  one_of("soft_prediction", soft_prediction, ("predicted", "expected"))
  logits_BxLxV, word_VxE = logits_BxLxV.float(), word_VxE.float()
  if soft_prediction == "expected":
    word_VxE = functional.normalize(word_VxE.detach(), eps=1e-30)
    b_BxLxE = logits_BxLxV.softmax(dim=-1) @ word_VxE
  else:
    b_BxLxE = word_VxE[logits_BxLxV.argmax(dim=-1)]
  a_BxLxE = word_VxE[labels_BxL.clamp(min=0)]
  squares_BxL = a_BxLxE.square().sum(dim=-1) * b_BxLxE.square().sum(dim=-1)
  is_long_BxL = squares_BxL > NORM_FLOOR**2
  norms_BxL = torch.where(is_long_BxL, squares_BxL, torch.inf).sqrt()
  loss_BxL = 1.0 - (a_BxLxE * b_BxLxE).sum(dim=-1) / norms_BxL
  # Rounding would leave a small loss for a correct prediction.
  wrong_BxL = (a_BxLxE != b_BxLxE).any(dim=-1)
  kept_BxL = labels_BxL != IGNORED
  total = torch.where(kept_BxL & wrong_BxL, loss_BxL, 0.0).sum()
  return total, kept_BxL.sum().float()


def detection_labels(
  tokens_BxL: Tensor,
  corrupted_BxL: Tensor,
  synonyms: Synonyms,
  *,
  discriminator_label: float = 1.0,
  discriminator_ignore: bool = False,
  strict_subword: bool = True,
) -> Tensor:
  """Returns the targets of ELECTRA's discriminator, f32 `[B, L]`.

  Original tokens have 0, replaced ones 1. Synonyms of the original token have
  `discriminator_label`, or with `discriminator_ignore` -100, for no loss.
  """
  label = float(IGNORED) if discriminator_ignore else discriminator_label
  spared_BxL = synonyms(tokens_BxL, corrupted_BxL)
  if strict_subword:
    spared_BxL = spared_BxL & synonyms.is_word_end(tokens_BxL)
  return torch.where(spared_BxL, label, (tokens_BxL != corrupted_BxL).float())


def _change(z_BxLxV: Tensor, gold_BxL: Tensor, table: Synonyms, by: str) -> Any:
  """Returns what smoothing by a share of 1 adds: see `objectives.smoothing`."""
  ids_BxLxS, gold_BxLx1 = table.ids_VxS[gold_BxL].long(), gold_BxL[..., None]
  listed_BxLxS = (ids_BxLxS >= 0) & (ids_BxLxS != gold_BxLx1)
  ids_BxLxS = torch.where(listed_BxLxS, ids_BxLxS, gold_BxLx1)
  z_BxLxS = z_BxLxV.gather(-1, torch.cat([gold_BxLx1, ids_BxLxS], dim=-1))
  margin_BxLxS = z_BxLxS[..., :1] - z_BxLxS[..., 1:]
  if by in ("model", "set"):
    rest_BxLxS = (-margin_BxLxS).masked_fill(~listed_BxLxS, -torch.inf)
    # With the gold token's own margin, 0.
    return -functional.pad(rest_BxLxS, (1, 0)).logsumexp(dim=-1)
  if by == "uniform":
    margin_BxLxS = torch.where(listed_BxLxS, margin_BxLxS, 0.0)
    return margin_BxLxS.sum(dim=-1) / listed_BxLxS.sum(dim=-1).clamp(min=1)
  rates_BxLxS = table.rates_VxS[gold_BxL]
  return (rates_BxLxS * functional.logsigmoid(margin_BxLxS)).sum(dim=-1)
