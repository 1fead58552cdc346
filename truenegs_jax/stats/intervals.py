"""Estimates shares, means and differences with 95 % confidence intervals.

Axes: N trials or examples, T clusters of trials, R resamples, S runs.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

UPPER = 0.975  # level of the upper bound of an interval
Z = 1.959963984540054  # the normal distribution's quantile
DRAWN_AT_ONCE = 2**19  # examples; a few arrays of 4 MB
# Indices of examples in R resamples, int [R, N] -> scores of S runs, [S, R].
Scorer = Callable[[np.ndarray], np.ndarray]


def t_quantile(count: int) -> float:
  """Returns Student's quantile of `count` values; finite for a single one."""
  from scipy import special  # slow to import

  return float(special.stdtrit(max(count - 1, 1), UPPER))


def jackknife_error(left_out_N: Sequence[float]) -> float:
  """Returns the standard error of a statistic; inf if N is 1.

  Its values are those without each of N samples (Efron & Tibshirani 1993,
  chapter 11).
  """
  size = len(left_out_N)
  if size < 2:
    return math.inf
  spread = np.sum((np.array(left_out_N) - np.mean(left_out_N)) ** 2)
  return math.sqrt((size - 1) / size * float(spread))


def jackknife_values(value: float, left_out_N: Sequence[float]) -> np.ndarray:
  """Returns Tukey's (1958) pseudo-values, shifted to the mean `value`."""
  rest_N = np.array(left_out_N)
  return value + (len(rest_N) - 1) * (rest_N.mean() - rest_N)


def estimate_mean(values_N: Sequence[float]) -> tuple[float, float]:
  """Returns a mean and the half width of its t interval; inf if N is 1."""
  count = len(values_N)
  mean = float(np.mean(values_N))
  if count < 2:
    return mean, math.inf
  error = float(np.std(values_N, ddof=1)) / math.sqrt(count)
  return mean, t_quantile(count) * error


@dataclasses.dataclass(frozen=True)
class Rate:
  """A share with its 95 % confidence interval."""

  rate: float  # hits / total, or 0
  low: float
  high: float
  hits: int
  total: int


def estimate_rate(hit_N: np.ndarray, cluster_N: np.ndarray) -> Rate:
  """Estimates a share of trials, `hit_N`, that are similar within a cluster.

  The interval is Wilson's (1927) for the effective number n of independent
  trials, as Franco, Little, Louis & Slud (2019, Journal of Survey Statistics
  and Methodology 7) recommend:

    (p + z^2 / 2n ± z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    p = sum x_t / sum n_t            x_t hits among n_t trials in cluster t
    var p = T / (T - 1) * sum (x_t - p n_t)^2 / (sum n_t)^2
    n = min(p (1 - p) / var p, sum n_t) (z / t)^2

  var p is that of a ratio of sums over clusters, and (z / t)^2 allows for its
  estimate (Korn & Graubard 1998, Survey Methodology 24). If there is nothing to
  estimate it from (no hit, only hits, or one cluster), n assumes that all
  trials of a cluster are equal: (sum n_t)^2 / sum n_t^2.
  """
  if not len(hit_N):
    return Rate(rate=0.0, low=0.0, high=1.0, hits=0, total=0)
  _, cluster_N = np.unique(cluster_N, return_inverse=True)
  totals_T = np.bincount(cluster_N)
  hits_T = np.bincount(cluster_N, hit_N)
  hits = hits_T.sum()
  total = totals_T.sum()
  clusters = len(totals_T)
  p = float(hits / total)
  if 0 < hits < total and clusters > 1:
    spread = np.sum((hits_T - p * totals_T) ** 2) * clusters / (clusters - 1)
    size = p * (1 - p) / max(spread / total**2, p * (1 - p) / total)
  else:
    size = min(total**2 / np.sum(totals_T**2), total)
  n = size * (Z / t_quantile(clusters)) ** 2
  center = p + Z**2 / (2 * n)
  scale = 1 + Z**2 / n
  half = Z * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
  # Without hits, `low` is off by 1e-18.
  low = min(max(float((center - half) / scale), 0.0), p)
  high = max(min(float((center + half) / scale), 1.0), p)
  return Rate(p, low, high, hits=int(hits), total=int(total))


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Difference of two models' scores; all values in percent."""

  metric: str
  ours: float  # mean over its runs
  theirs: float
  difference: float  # ours - theirs
  low: float  # 95 % interval for other examples and these runs
  high: float
  p: float
  # For other runs, too; None if a model has only one.
  low_runs: float | None = None
  high_runs: float | None = None
  p_runs: float | None = None


def compare_scores(
  metric: str,
  score: Scorer,
  size: int,
  *,
  runs: tuple[int, int],
  resamples: int = 10_000,
) -> Comparison:
  """Compares two models by a paired bootstrap.

  A resample draws N of the N examples with replacement, the same for all runs
  of both models, and averages the score over runs. The interval contains the
  differences from the 2.5th to the 97.5th percentile, and p = 2 (1 + min(n_low,
  n_high)) / (resamples + 1), at most 1, where n_low resamples have a difference
  <= 0 and n_high one >= 0.

  The interval over runs is for other examples and for other, independent runs
  of these two models:

    var = A + A' + B     A = variance of a model's scores / S
                         B = variance of the resampled difference
                             - sum of the models' interactions / S

  A has the interaction of runs with examples: the variance between runs of what
  a resample changes in a score. The half width is Student's quantile times the
  root of the variance, with Satterthwaite's (1946) degrees of freedom,
  var^2 / (A^2 / (S - 1) + A'^2 / (S' - 1) + B^2 / (N - 1)); p agrees with it.

  Args:
    score: scores of the runs of both models, ours first.
    size, runs: N, and S of each model.
  """
  rng = np.random.default_rng(0).spawn(1)[0]  # the same draws for all models
  at_once = max(1, DRAWN_AT_ONCE // size)
  counts = [min(at_once, resamples - i) for i in range(0, resamples, at_once)]
  drawn = (rng.integers(size, size=(n, size)) for n in counts)
  score_SxR = np.concatenate([*map(score, drawn)], 1)
  ours_SxR, theirs_SxR = np.split(score_SxR, [runs[0]])
  # Rounded, since the order of runs changes the mean by about 1e-14.
  difference_R = np.round(ours_SxR.mean(0) - theirs_SxR.mean(0), 9)
  low, high = np.percentile(difference_R, (2.5, 97.5)).tolist()
  tail = min(np.sum(difference_R <= 0), np.sum(difference_R >= 0))
  observed_S = score(np.arange(size)[None])[:, 0]
  ours, theirs = (float(x.mean()) for x in np.split(observed_S, [runs[0]]))
  difference = ours - theirs
  p = min(1.0, 2 * (1 + int(tail)) / (resamples + 1))
  values = metric, ours, theirs, difference, low, high, p
  if min(runs) < 2:
    return Comparison(*values)
  from scipy import special

  error, freedom = _find_error(observed_S, score_SxR, size, runs)
  half = float(special.stdtrit(freedom, UPPER)) * error
  t = round(abs(difference), 9) / (error or 1e-9)
  p_runs = float(2 * special.stdtr(freedom, -t))
  return Comparison(*values, difference - half, difference + half, p_runs)


def _find_error(
  observed_S: np.ndarray,
  score_SxR: np.ndarray,
  size: int,
  runs: tuple[int, int],
) -> tuple[float, float]:
  """Returns the standard error over runs, and its degrees of freedom."""
  change_SxR = score_SxR - score_SxR.mean(1, keepdims=True)
  models, changes = (np.split(x, [runs[0]]) for x in (observed_S, change_SxR))
  b = np.var(changes[0].mean(0) - changes[1].mean(0))
  b -= sum(x.var(0, ddof=1).mean() / len(x) for x in changes)
  terms = [(x.var(ddof=1) / len(x), len(x) - 1) for x in models]
  terms.append((max(b, 0.0), max(size - 1, 1)))
  variance = sum(x for x, _ in terms)
  spread = sum(x**2 / freedom for x, freedom in terms)
  return math.sqrt(variance), variance**2 / spread if spread else 1.0
