"""Judges a run by its held-out metrics, for its terminal and its page."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

MIN_ERRORS = 3.0  # standard errors by which a metric must beat guessing
RULE = f"Better means by more than {MIN_ERRORS:g} standard errors."
YES, NO = "yes", "no"


@dataclasses.dataclass(frozen=True)
class Detection:
  """Held-out metrics of a discriminator; losses in nats."""

  loss: float
  loss_error: float  # of the difference from base_rate_entropy
  base_rate: float  # share of replaced tokens
  base_rate_entropy: float
  auc: float
  auc_error: float
  tokens: int


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Held-out metrics of a finished run; losses in nats."""

  mlm: float  # all slots, corrected or not
  mlm_error: float
  mlm_hidden: float  # only slots with [MASK] in the input
  mlm_hidden_error: float
  uniform_entropy: float
  unigram_entropy: float  # of the training rows: lowest loss without context
  slots: int
  detection: Detection | None  # None: BERT has no discriminator

  @property
  def answers(self) -> dict[str, str]:
    """Whether each metric beats guessing without context: YES, or why not.

    A generator that guesses draws tokens that are easy to detect without any
    context, so detection does not count then.
    """
    guess, d = self.unigram_entropy, self.detection
    gains = {"mlm": (guess - self.mlm, self.mlm_error)}
    gains["mlm_hidden"] = guess - self.mlm_hidden, self.mlm_hidden_error
    if d:
      gains["detection.loss"] = d.base_rate_entropy - d.loss, d.loss_error
      gains["detection.auc"] = d.auc - 0.5, d.auc_error
    answers: dict[str, str] = {}
    for name, (gain, error) in gains.items():
      answer = YES if gain > MIN_ERRORS * error else NO
      if math.isinf(error):
        answer = "unknown: one batch"
      elif (
        answer == YES and "detection" in name and answers["mlm_hidden"] == NO
      ):
        answer = "no: the generator guesses"
      answers[name] = answer
    return answers

  @property
  def passed(self) -> bool:
    """Whether all metrics are better than guessing without context."""
    return {*self.answers.values()} == {YES}

  @property
  def summary(self) -> str:
    """Whether the model has learned."""
    failed = [f"{name} ({x})" for name, x in self.answers.items() if x != YES]
    if not failed:
      return "This run shows that the model learned: all metrics beat guessing."
    return (
      f"This run does not show that the model learned: {', '.join(failed)}."
    )

  @property
  def rows(self) -> list[dict[str, str]]:
    """A table that compares each metric with guessing."""
    v, unigram = self, f"unigram entropy {self.unigram_entropy:.3f}"
    mlm, hidden = f"MLM loss, {v.slots:,} slots", "MLM loss, slots with [MASK]"
    rows = [
      (mlm, format_estimate(v.mlm, v.mlm_error, 3), unigram),
      (hidden, format_estimate(v.mlm_hidden, v.mlm_hidden_error, 3), unigram),
    ]
    if d := v.detection:
      name = f"detection loss, {d.tokens:,} tokens"
      guess = f"base-rate entropy {d.base_rate_entropy:.4f}"
      guess += f" ({d.base_rate:.1%} replaced)"
      rows += [(name, format_estimate(d.loss, d.loss_error, 4), guess)]
      rows += [("detection AUC", format_estimate(d.auc, d.auc_error, 4), "0.5")]
    names = "metric", "model", "guessing without context", "better"
    return [
      dict(zip(names, (*row, answer), strict=True))
      for row, answer in zip(rows, v.answers.values(), strict=True)
    ]


def format_estimate(
  value: float, error: float, digits: int, *, sign: str = ""
) -> str:
  """Returns a value with its standard error, unless that is unknown: inf."""
  text = f"{value:{sign}.{digits}f}"
  return text if math.isinf(error) else f"{text} ± {error:.{digits}f}"


def read_verdict(saved: Mapping[str, Any]) -> Verdict:
  """Returns a verdict that was saved in results.json."""

  def read(kind: Any, values: Mapping[str, Any]) -> Any:
    fields = {x.name: values[x.name] for x in dataclasses.fields(kind)}
    return kind(**{k: math.inf if x is None else x for k, x in fields.items()})

  detection = saved["detection"] and read(Detection, saved["detection"])
  return dataclasses.replace(read(Verdict, saved), detection=detection)
