"""Compares two models on the same sets, and states what that supports."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from truenegs_jax.finetune.bootstrap import Comparison, compare_scores
from truenegs_jax.robustness.eval_set import TRANSFORMED
from truenegs_jax.robustness.scores import (
  ACCURACY,
  DROP,
  EXACT,
  Score,
  Scores,
)

LEVEL = 0.05  # of all sets together


@dataclasses.dataclass(frozen=True)
class PairedTest:
  """McNemar's exact test of two models on the same questions.

  Attributes:
    ours, theirs: number of questions that only this model answers right, or in
      more of its runs than the other in its own.
    p: two-sided, of the binomial distribution with probability 1/2.
  """

  ours: int
  theirs: int
  p: float


@dataclasses.dataclass(frozen=True)
class SetComparison:
  """Two models on one set.

  Attributes:
    compared: DROP, or TRANSFORMED if the set has no originals.
    bootstrap: differences of these, one for each metric.
    mcnemar: tests of the answers to each side; none for regression.
  """

  compared: str
  bootstrap: tuple[Comparison, ...]
  mcnemar: Mapping[str, PairedTest]


def compare_sets(ours: Scores, theirs: Scores) -> SetComparison:
  """Compares two models by a paired bootstrap and by McNemar's test."""
  compared = DROP if DROP in next(iter(ours.values())) else TRANSFORMED
  differences = tuple(
    _compare(metric, ours[metric][compared], theirs[metric][compared])
    for metric in ours
  )
  tests = {}
  for metric in {EXACT, ACCURACY} & ours.keys():
    for side, score in ours[metric].items():
      a_SxN, b_SxN = score.question_SxN, theirs[metric][side].question_SxN
      if side != DROP and a_SxN is not None and b_SxN is not None:
        tests[side] = mcnemar(a_SxN, b_SxN)
  return SetComparison(compared, differences, tests)


def _compare(metric: str, ours: Score, theirs: Score) -> Comparison:
  def draw(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([ours.draw(rows), theirs.draw(rows)])

  runs = (len(ours.by_run()), len(theirs.by_run()))
  return compare_scores(metric, draw, ours.size, runs=runs)


def mcnemar(ours_SxN: np.ndarray, theirs_SxN: np.ndarray) -> PairedTest:
  """Tests whether two models answer equally many questions right.

  With several runs, a question counts once, for the model with the greater
  share of right runs: the sign test, which is McNemar's for one run each.

  Args:
    ours_SxN, theirs_SxN: a positive number for each right answer, 0 for others.
  """
  difference_N = ours_SxN.mean(0) - theirs_SxN.mean(0)
  ours = int(np.sum(difference_N > 1e-9))
  theirs = int(np.sum(difference_N < -1e-9))
  p = stats.binomtest(ours, ours + theirs).pvalue if ours + theirs else 1.0
  return PairedTest(ours, theirs, float(p))


def conclude(compared: Sequence[tuple[str, SetComparison]]) -> str:
  """Returns a sentence on the first metric of all sets, given with titles.

  A difference counts if its p-value, over runs if there are several, is below
  LEVEL divided by the number of sets (Bonferroni).
  """
  seen, unseen = list[str](), list[str]()
  scope = "questions and fine-tuning seeds"
  for title, x in compared:
    c = x.bootstrap[0]
    low, high, p = c.low_runs, c.high_runs, c.p_runs
    if p is None:
      low, high, p = c.low, c.high, c.p
      scope = "questions only, as a model has one run"
    interval = f"({low:+.2f} to {high:+.2f}, p = {p:.2g}) on {title}"
    if p < LEVEL / len(compared):
      verb = "loses" if x.compared == DROP else "scores"
      more = "more" if c.difference > 0 else "less"
      amount = f"{abs(c.difference):.2f} points of {c.metric} {more}"
      seen.append(f"{verb} {amount} {interval}")
    else:
      unseen.append(f"{c.difference:+.2f} {interval}")
  parts = []
  if seen:
    parts.append(f"This model {', and '.join(seen)} than the other")
  if unseen:
    difference = "no further difference" if seen else "no difference"
    parts.append(f"{difference} can be seen: {', '.join(unseen)}")
  text = "; ".join(parts)
  return (
    f"{text[:1].upper()}{text[1:]}. Intervals are of 95 % over {scope}, not"
    " over pre-trainings."
  )
