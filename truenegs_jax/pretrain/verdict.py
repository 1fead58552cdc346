"""Compares held-out losses of a run with guessing without context."""

import dataclasses
import math

import numpy as np
from rich.table import Table
from rich.text import Text

from truenegs_jax.train import metrics

MIN_ERRORS = 3.0  # how many standard errors the AUC must be above 0.5


@dataclasses.dataclass(frozen=True)
class Detection:
  """Held-out metrics of a discriminator; losses in nats."""

  loss: float
  loss_error: float
  base_rate: float  # share of replaced tokens
  base_rate_entropy: float
  auc: float
  auc_error: float
  tokens: int

  @property
  def learned(self) -> bool:
    """Whether replaced tokens are detected better than by chance."""
    return self.auc > 0.5 + MIN_ERRORS * self.auc_error


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Held-out metrics of a finished run; losses in nats.

  `unigram_entropy` is the entropy of the token frequencies of the training
  rows, the lowest loss of a model without context.
  """

  mlm: float  # all slots, corrected or not
  mlm_error: float
  mlm_hidden: float  # only slots with [MASK] in the input
  mlm_hidden_error: float
  uniform_entropy: float
  unigram_entropy: float
  slots: int
  detection: Detection | None  # None: BERT has no discriminator

  @property
  def passed(self) -> bool:
    """Whether all networks are better than guessing without context."""
    mlm_learned = max(self.mlm, self.mlm_hidden) < self.unigram_entropy
    return mlm_learned and (not self.detection or self.detection.learned)


def compute_verdict(
  held_out: list[metrics.Terms], unigram_V: np.ndarray
) -> Verdict:
  """Computes the verdict from the last evaluation.

  Corrected slots count: without these right predictions the loss would be too
  low. Visible slots lower it as well, so the loss of slots with [MASK] must be
  below the unigram entropy, too.

  Args:
    held_out: terms of each held-out batch.
    unigram_V: counts of the tokens in the training rows; 0 for tokens that are
      never masked ([CLS], [SEP], [MASK], padding).
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
    detection=_compute_detection(held_out) if "detect" in total else None,
  )


def verdict_table(v: Verdict) -> Table:
  """Makes a table that compares each metric with guessing."""
  table = Table(title="Held-out rows", title_justify="left")
  for name in ("metric", "model", "guessing without context", "better"):
    table.add_column(name, overflow="fold")

  def add_row(metric: str, model: str, guess: str, *, better: bool) -> None:
    answer = Text("yes", "green") if better else Text("no", "red")
    table.add_row(metric, model, guess, answer)

  unigram = f"unigram entropy {v.unigram_entropy:.3f}"
  add_row(
    f"MLM loss, {v.slots:,} slots",
    _format(v.mlm, v.mlm_error, digits=3),
    f"uniform {v.uniform_entropy:.3f}, {unigram}",
    better=v.mlm < v.unigram_entropy,
  )
  add_row(
    "MLM loss, slots with [MASK]",
    _format(v.mlm_hidden, v.mlm_hidden_error, digits=3),
    unigram,
    better=v.mlm_hidden < v.unigram_entropy,
  )
  if d := v.detection:
    replaced = f"{d.base_rate:.1%} replaced"
    add_row(
      f"detection loss, {d.tokens:,} tokens",
      _format(d.loss, d.loss_error, digits=4),
      f"base-rate entropy {d.base_rate_entropy:.4f} ({replaced})",
      better=d.loss < d.base_rate_entropy,
    )
    add_row(
      "detection AUC",
      _format(d.auc, d.auc_error, digits=4),
      f"0.5, plus {MIN_ERRORS:g} standard errors",
      better=d.learned,
    )
  return table


def _format(value: float, error: float, *, digits: int) -> str:
  """Returns a metric with its standard error; a single batch has none."""
  text = f"{value:.{digits}f}"
  if math.isinf(error):
    return f"{text} (one batch: no error)"
  return f"{text} ± {error:.{digits}f}"


def _compute_detection(held_out: list[metrics.Terms]) -> Detection:
  total = metrics.merge_terms(held_out)
  base_rate = metrics.compute_ratios(total)["replaced"]
  loss, loss_error = _with_error(held_out, "detect")
  auc, auc_error = _with_error(held_out, "auc")
  return Detection(
    loss=loss,
    loss_error=loss_error,
    base_rate=base_rate,
    base_rate_entropy=metrics.entropy(np.array([base_rate, 1 - base_rate])),
    auc=auc,
    auc_error=auc_error,
    tokens=int(total["detect"][1]),
  )


def _with_error(batches: list[metrics.Terms], name: str) -> tuple[float, float]:
  return metrics.jackknife(batches, lambda x: metrics.compute_ratios(x)[name])
