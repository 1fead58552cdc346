"""Did it learn? Held-out losses against what guessing without context gives."""

import dataclasses
import math

import numpy as np
from rich.table import Table
from rich.text import Text

from truenegs_jax.train import metrics

MIN_ERRORS = 3.0  # standard errors that the AUC must lie above 0.5


@dataclasses.dataclass(frozen=True)
class Detection:
  """Held-out figures of a discriminator; the loss in nats."""

  loss: float
  loss_error: float
  base_rate: float  # share of replaced tokens
  base_rate_entropy: float
  auc: float
  auc_error: float
  tokens: int

  @property
  def learned(self) -> bool:
    """It tells replaced from original tokens better than chance."""
    return self.auc > 0.5 + MIN_ERRORS * self.auc_error


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Held-out figures of a finished run; losses in nats.

  `unigram_entropy` is that of the training rows' token frequencies: the best
  that a model blind to context could do.
  """

  mlm: float  # all slots, corrected or not
  mlm_error: float
  mlm_hidden: float  # the slots behind [MASK] only
  mlm_hidden_error: float
  uniform_entropy: float
  unigram_entropy: float
  slots: int
  detection: Detection | None  # None: BERT has no discriminator

  @property
  def mlm_learned(self) -> bool:
    """The masked language model uses context."""
    return max(self.mlm, self.mlm_hidden) < self.unigram_entropy

  @property
  def passed(self) -> bool:
    """All networks learned."""
    return self.mlm_learned and (
      self.detection is None or self.detection.learned
    )


def compute_verdict(
  held_out: list[metrics.Terms], unigram_V: np.ndarray
) -> Verdict:
  """Weighs the held-out batches of the last evaluation.

  Args:
    held_out: terms of each batch, as the objective gave them.
    unigram_V: how often each token occurs in the training rows; what is never
      masked ([CLS], [SEP], [MASK], padding) counts 0.

  The MLM loss is that of all slots, corrected ones included: dropping the slots
  that were judged right would flatter it. So do the slots that stay visible,
  which can be copied; those behind [MASK] must beat the unigram entropy too.
  """
  total = metrics.merge_terms(held_out)
  mlm_name = "mlm_uncorrected" if "mlm_uncorrected" in total else "mlm"
  mlm, mlm_error = _with_error(held_out, mlm_name)
  hidden, hidden_error = _with_error(held_out, "mlm_hidden")
  return Verdict(
    mlm=mlm,
    mlm_error=mlm_error,
    mlm_hidden=hidden,
    mlm_hidden_error=hidden_error,
    uniform_entropy=math.log(len(unigram_V)),
    unigram_entropy=metrics.entropy(unigram_V),
    slots=int(total[mlm_name][1]),
    detection=_judge_detection(held_out) if "detect" in total else None,
  )


def verdict_table(v: Verdict) -> Table:
  """The verdict as a person reads it."""
  t = Table(title="On held-out rows", title_justify="left")
  for name in ("", "model", "against", "better"):
    t.add_column(name, overflow="fold")
  t.add_row(
    f"MLM loss, {v.slots:,} slots",
    f"{v.mlm:.3f} ± {v.mlm_error:.3f}",
    f"uniform {v.uniform_entropy:.3f}, unigram entropy {v.unigram_entropy:.3f}",
    _answer(passed=v.mlm < v.unigram_entropy),
  )
  t.add_row(
    "MLM loss, slots behind [MASK]",
    f"{v.mlm_hidden:.3f} ± {v.mlm_hidden_error:.3f}",
    f"unigram entropy {v.unigram_entropy:.3f}",
    _answer(passed=v.mlm_hidden < v.unigram_entropy),
  )
  if v.detection is not None:
    _add_detection(t, v.detection)
  return t


def _judge_detection(held_out: list[metrics.Terms]) -> Detection:
  total = metrics.merge_terms(held_out)
  loss, loss_error = _with_error(held_out, "detect")
  auc, auc_error = _with_error(held_out, "auc")
  base_rate = metrics.compute_ratios(total)["replaced"]
  return Detection(
    loss=loss,
    loss_error=loss_error,
    base_rate=base_rate,
    base_rate_entropy=metrics.entropy(np.array([base_rate, 1 - base_rate])),
    auc=auc,
    auc_error=auc_error,
    tokens=int(total["detect"][1]),
  )


def _with_error(
  held_out: list[metrics.Terms], name: str
) -> tuple[float, float]:
  return metrics.jackknife(
    held_out, lambda terms: metrics.compute_ratios(terms)[name]
  )


def _add_detection(t: Table, d: Detection) -> None:
  t.add_row(
    f"detection loss, {d.tokens:,} tokens",
    f"{d.loss:.4f} ± {d.loss_error:.4f}",
    f"base-rate entropy {d.base_rate_entropy:.4f} ({d.base_rate:.1%} replaced)",
    _answer(passed=d.loss < d.base_rate_entropy),
  )
  t.add_row(
    "detection AUC",
    f"{d.auc:.4f} ± {d.auc_error:.4f}",
    f"chance 0.5, by {MIN_ERRORS:g} standard errors",
    _answer(passed=d.learned),
  )


def _answer(*, passed: bool) -> Text:
  return Text("yes", "green") if passed else Text("no", "red")
