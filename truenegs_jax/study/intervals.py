"""Estimates differences between arms, with pre-training seeds as the unit.

An arm is compared with the baseline seed by seed and example by example. The
difference is the mean over the seeds, of the mean over tasks, of the difference
between the means over fine-tunings. It varies with the seeds, nested in which
are the fine-tunings, and with the examples, which all seeds share:

  var = A + B        A = variance of the seeds' differences / n
                     B = (variance of the examples' means - interaction / n) / N

These are the variances that a bootstrap over seeds, fine-tunings and examples
draws (Owen 2007, Annals of Applied Statistics 1), without its biases: it
multiplies A by (n - 1) / n, and counts in B the noise of single answers again.
With few seeds A is uncertain, so its quantile is Student's t of n - 1 degrees
of freedom; that of B is the normal distribution's z. The root of the sum's
quantile is the mean of theirs, weighted by variance:

  half width = sqrt(A + B) ((A sqrt(t) + B sqrt(z)) / (A + B))^2

With B = 0 this is the paired t interval. Without the roots it is Cochran's for
the Behrens-Fisher problem (Cochran & Cox 1950, section 4.14), which is somewhat
too wide between; Satterthwaite's degrees of freedom are too many with 2 or 3
seeds, where they cover 89 and 92 %. By simulation (benchmarks/coverage.py), it
covers 92.8 to 97.3 % with 2 seeds and 94 to 97.2 % with 3 to 10, each with a
standard error of 0.4. A plain bootstrap covers 82 to 99.7 % with 2 seeds, and
90 to 99 % with 10.

Axes: S seeds, T tasks, N examples, F fine-tunings.
"""

import bisect
import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from scipy import optimize, special, stats

from truenegs_jax.study.records import Key, Score

UPPER = 0.975  # level of the upper bound of an interval
POWER = 0.8
Z_DETECTABLE = float(special.ndtri(UPPER) + special.ndtri(POWER))
MAX_SEEDS = 1_000  # more are not proposed

Runs = Mapping[int, Mapping[Key, Sequence[Score]]]  # of an arm, by seed
Pair = tuple[Sequence[Score], Sequence[Score]]  # an arm's and the baseline's


@dataclasses.dataclass(frozen=True)
class Difference:
  """Difference of an arm from the baseline, in the unit of the scores.

  Attributes:
    value: the difference.
    seeds: number of seeds that both arms have.
    seed_variance: A, of the mean over these seeds; NaN for one seed.
    finetune_variance: the part of it that more fine-tunings would reduce; None
      if no seed has several.
    example_variance: B; 0 for one seed or without scores of examples.
  """

  value: float
  seeds: int
  seed_variance: float
  finetune_variance: float | None
  example_variance: float

  @property
  def half_width(self) -> float | None:
    """Half the 95 % interval, whose middle is the value; None for one seed."""
    if self.seeds < 2:
      return None
    return self._weigh(_t_quantile(self.seeds), special.ndtri(UPPER))

  @property
  def detectable(self) -> float:
    """Difference whose interval excludes 0 in 80 % of such studies.

    At least two seeds are needed, here and in `seeds_needed`.
    """
    return self._weigh(_t_detectable(self.seeds), Z_DETECTABLE)

  def seeds_needed(self, difference: float) -> int | None:
    """Returns with how many seeds a difference would be detectable.

    None if the examples' variance forbids it, or if more than MAX_SEEDS would
    be needed.
    """
    total = self.seed_variance * self.seeds
    counts = range(2, MAX_SEEDS + 1)

    def is_enough(seeds: int) -> bool:
      variance = total / seeds
      x = dataclasses.replace(self, seeds=seeds, seed_variance=variance)
      return x.detectable <= difference

    index = bisect.bisect_left(counts, True, key=is_enough)
    return counts[index] if index < len(counts) else None

  def _weigh(self, t: float, z: float) -> float:
    """Returns the standard error times a mean of two quantiles."""
    a, b = self.seed_variance, self.example_variance
    mean_root = (a * math.sqrt(t) + b * math.sqrt(z)) / (a + b or 1)
    return math.sqrt(a + b) * mean_root**2


def _t_quantile(seeds: int) -> float:
  return float(special.stdtrit(seeds - 1, UPPER))


@functools.cache
def _t_detectable(seeds: int) -> float:
  """Returns the noncentrality at which the t test has the power POWER."""
  quantile = _t_quantile(seeds)

  def lack(shift: float) -> float:
    return float(stats.nct.sf(quantile, seeds - 1, shift)) - POWER

  return float(optimize.brentq(lack, 0.0, 2 * (quantile + 2)))


def group_runs(
  scores: Iterable[Score], arm: str, keys: Collection[Key]
) -> Runs:
  """Returns an arm's scores of these keys, for the seeds that have all keys."""
  by_seed: dict[int, dict[Key, list[Score]]] = {}
  for x in scores:
    if x.arm == arm and x.key in keys:
      by_seed.setdefault(x.seed, {}).setdefault(x.key, []).append(x)
  return {n: x for n, x in sorted(by_seed.items()) if len(x) == len(set(keys))}


def mean(runs: Runs) -> float:
  """Returns the mean over seeds, of the mean over keys and fine-tunings."""
  return float(np.mean([_mean(x) for by in runs.values() for x in by.values()]))


def compare(ours: Runs, theirs: Runs) -> Difference | None:
  """Compares an arm with the baseline; None if they have no seed in common.

  Scores of both are of the same keys, see `group_runs`.
  """
  seeds = sorted(ours.keys() & theirs.keys())
  if not seeds:
    return None
  keys = ours[seeds[0]]
  # For each key, the runs of both arms by seed.
  pairs_T = [[(ours[n][k], theirs[n][k]) for n in seeds] for k in keys]
  difference_TxS = [[_mean(a) - _mean(b) for a, b in x] for x in pairs_T]
  difference_S = np.mean(difference_TxS, 0)
  squared, count = len(keys) ** 2, len(seeds)
  tuned = [x for x in map(_finetune_variance, pairs_T) if x is not None]
  return Difference(
    value=float(difference_S.mean()),
    seeds=count,
    seed_variance=float(difference_S.var(ddof=1)) / count
    if count > 1
    else math.nan,
    finetune_variance=sum(tuned) / squared if len(tuned) == len(keys) else None,
    example_variance=max(sum(map(_example_variance, pairs_T)), 0.0) / squared,
  )


def _mean(scores: Sequence[Score]) -> float:
  return float(np.mean([x.value for x in scores]))


def _finetune_variance(pairs_S: Sequence[Pair]) -> float | None:
  """Returns the variance of the mean over seeds that fine-tunings cause."""
  values = [[x.value for x in runs] for pair in pairs_S for runs in pair]
  if min(map(len, values)) < 2:
    return None
  variances = [np.var(x, ddof=1) / len(x) for x in values]
  return float(sum(variances)) / len(pairs_S) ** 2


def _example_variance(pairs_S: Sequence[Pair]) -> float:
  """Estimates B for one key, not truncated at 0; 0 without examples' scores."""
  runs = [x for pair in pairs_S for scores in pair for x in scores]
  if len(pairs_S) < 2 or not has_examples(runs):
    return 0.0
  difference_SxN = np.array(
    [_mean_example(a) - _mean_example(b) for a, b in pairs_S]
  )
  seeds, size = difference_SxN.shape
  mean_N = difference_SxN.mean(0)
  rest_SxN = difference_SxN - mean_N
  rest_SxN -= rest_SxN.mean(1, keepdims=True)
  interaction = np.sum(rest_SxN**2) / ((seeds - 1) * max(size - 1, 1))
  return float(mean_N.var(ddof=1) - interaction / seeds) / size


def has_examples(scores: Iterable[Score]) -> bool:
  """Returns whether all scores of a key have those of as many examples."""
  sizes = {None if x.correct_N is None else len(x.correct_N) for x in scores}
  return len(sizes) == 1 and None not in sizes


def _mean_example(scores: Sequence[Score]) -> np.ndarray:
  return np.mean([x.correct_N for x in scores if x.correct_N is not None], 0)
