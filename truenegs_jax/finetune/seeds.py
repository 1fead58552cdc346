"""Several seeds of one fine-tuning: what is typical, and what went wrong."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from truenegs_jax.errors import InputError
from truenegs_jax.finetune import reference

CONSTANT = 0.01  # of the gold scores' range: less than that tells nothing apart


@dataclasses.dataclass(frozen=True)
class Summary:
  """The scores of all runs of one task, failed ones among them.

  Attributes:
    runs, failed: how many there are, and how many of these failed.
    median, mean, low, high: of all the runs; low to high is their range.
    sd: standard deviation of a run (ddof 1); None for one run.
  """

  runs: int
  failed: int
  median: float
  mean: float
  low: float
  high: float
  sd: float | None


def summarize(
  scores: Sequence[float], failures: Sequence[object] = ()
) -> Summary:
  """What the runs of one task scored; nothing is dropped.

  Args:
    scores: percent, one a run.
    failures: one a run, true (a reason) where it failed; empty: none did.

  Raises:
    InputError: no scores, some that are not finite, or not as many failures.
  """
  if not scores or len(failures) not in (0, len(scores)):
    raise InputError(
      f"{len(scores)} scores and {len(failures)} failures: a summary wants both"
      " of every run, and one run at least."
    )
  if not np.isfinite(scores).all():
    raise InputError(
      f"scores {list(scores)}: each has to be finite; score the predictions of"
      " a failed run as they are."
    )
  return Summary(
    runs=len(scores),
    failed=sum(map(bool, failures)),
    median=statistics.median(scores),
    mean=statistics.fmean(scores),
    low=min(scores),
    high=max(scores),
    sd=statistics.stdev(scores) if len(scores) > 1 else None,
  )


def average(
  scores: Mapping[str, float], tasks: Sequence[str] = reference.GLUE
) -> float | None:
  """The plain mean over tasks, Table 3's "Average"; None if one is lacking."""
  if not all(name in scores for name in tasks):
    return None
  return statistics.fmean(scores[name] for name in tasks)


def failure(gold_N: ArrayLike, predicted_N: ArrayLike) -> str:
  """Why a run counts as failed, or "": it learned nothing, or broke.

  Args:
    gold_N, predicted_N: classes (int), answers (str) or scores (float).
  """
  gold_N, predicted_N = np.asarray(gold_N), np.asarray(predicted_N)
  is_score = predicted_N.dtype.kind == "f"
  if is_score and not np.isfinite(predicted_N).all():
    return "scores are not finite"
  if is_score and np.ptp(predicted_N) < CONSTANT * np.ptp(gold_N):
    return f"all scores lie within {CONSTANT:.0%} of the gold scores' range"
  if len(set(predicted_N.tolist())) == 1 < len(set(gold_N.tolist())):
    return f"all {len(predicted_N)} predictions are {predicted_N[0].item()!r}"
  return ""
