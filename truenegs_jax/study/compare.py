"""Compares the scores of an arm of a study with those of the baseline.

Axes: N examples, T tasks, S seeds of the pre-training.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from truenegs_jax.stats import intervals

Key = tuple[str, str]  # task and metric


@dataclasses.dataclass(frozen=True)
class Score:
  """A score of one run."""

  arm: str
  seed: int  # of the pre-training
  # Of fine-tuning, title of a robustness set, tables.CORRECTIONS or .HELD_OUT,
  # or another name, whose metrics get a table of their own.
  task: str
  finetune_seed: int | None  # None for what is measured without fine-tuning
  metric: str  # in the task's results; of a robustness set "em original", ...
  value: float  # in percent, except for losses and other metrics
  # Scores of the examples with the mean `value`, in the same order for all arms
  # and seeds; None if there are none.
  correct_N: np.ndarray | None = dataclasses.field(default=None, compare=False)
  failure: str = ""  # why the run failed, if it has a score nevertheless

  @property
  def key(self) -> Key:
    """The task and the metric."""
    return self.task, self.metric


# Scores of an arm, by pre-training seed and by task and metric: those of the
# fine-tunings, or a single one.
Runs = Mapping[int, Mapping[Key, Sequence[Score]]]


def group_runs(scores: Iterable[Score], arm: str, keys: Sequence[Key]) -> Runs:
  """Returns an arm's scores of these keys, for the seeds that have all keys."""
  by_seed: dict[int, dict[Key, list[Score]]] = {}
  for x in scores:
    if x.arm == arm and x.key in keys:
      by_seed.setdefault(x.seed, {}).setdefault(x.key, []).append(x)
  return {n: x for n, x in sorted(by_seed.items()) if len(x) == len(set(keys))}


class Difference(NamedTuple):
  """Difference `value` of an arm from the baseline, in the scores' unit."""

  value: float
  seeds: int  # that both arms have
  half_width: float | None  # of the 95 % interval; None for one seed


def mean_of_runs(runs: Runs) -> float:
  """Returns the mean over seeds, of the mean over tasks and fine-tunings."""
  return float(np.mean([_mean(x) for by in runs.values() for x in by.values()]))


def compare_runs(ours: Runs, theirs: Runs) -> Difference | None:
  """Compares an arm with the baseline, with pre-training seeds as the unit.

  The difference is the mean over the seeds, of the mean over tasks, of the
  difference between the means over fine-tunings. It varies with the seeds and
  their fine-tunings, and with the examples, which all seeds share:

    var = A + B     A = variance of the seeds' differences / n
                    B = (variance of the examples' means - interaction / n) / N

  With few seeds A is uncertain, so its quantile is Student's t of n - 1 degrees
  of freedom; that of B is the normal distribution's z:

    half width = sqrt(A + B) ((A sqrt(t) + B sqrt(z)) / (A + B))^2

  With B = 0 this is the paired t interval. By simulation, it covers 93 to 97 %
  (tests/study/test_compare.py).

  Both must have the same tasks. None if they have no seed in common.
  """
  seeds = sorted(ours.keys() & theirs.keys())
  if not seeds:
    return None
  count = len(seeds)
  tasks = ours[seeds[0]]
  # For each task, the runs of both arms by seed.
  pairs_T = [[(ours[n][k], theirs[n][k]) for n in seeds] for k in tasks]
  difference_TxS = [[_mean(a) - _mean(b) for a, b in x] for x in pairs_T]
  difference_S = np.mean(difference_TxS, 0)
  value = float(difference_S.mean())
  if count < 2:
    return Difference(value, count, None)
  a = float(difference_S.var(ddof=1)) / count
  b = max(sum(map(_example_variance, pairs_T)), 0.0) / len(tasks) ** 2
  t = intervals.t_quantile(count)
  mean_root = (a * math.sqrt(t) + b * math.sqrt(intervals.Z)) / (a + b or 1)
  return Difference(value, count, math.sqrt(a + b) * mean_root**2)


def _mean(scores: Sequence[Score]) -> float:
  return float(np.mean([x.value for x in scores]))


def _example_variance(
  pairs_S: Sequence[tuple[Sequence[Score], Sequence[Score]]],
) -> float:
  """Estimates B for one task, maybe below 0; 0 without examples' scores."""
  runs = [x for pair in pairs_S for scores in pair for x in scores]
  if not has_examples(runs):
    return 0.0
  difference_SxN = np.array([_mean_N(a) - _mean_N(b) for a, b in pairs_S])
  seeds, size = difference_SxN.shape
  mean_N = difference_SxN.mean(0)
  rest_SxN = difference_SxN - mean_N
  rest_SxN -= rest_SxN.mean(1, keepdims=True)
  interaction = np.sum(rest_SxN**2) / ((seeds - 1) * max(size - 1, 1))
  return float(mean_N.var(ddof=1) - interaction / seeds) / size


def has_examples(scores: Iterable[Score]) -> bool:
  """Returns whether all scores of a task have those of as many examples."""
  sizes = {None if x.correct_N is None else len(x.correct_N) for x in scores}
  return len(sizes) == 1 and None not in sizes


def _mean_N(scores: Sequence[Score]) -> np.ndarray:
  return np.mean([x.correct_N for x in scores if x.correct_N is not None], 0)
