"""Estimates shares and means with 95 % confidence intervals.

Axes: N trials, T clusters of trials, P windows.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np
from scipy import special

UPPER = 0.975  # level of the upper bound of an interval
Z = special.ndtri(UPPER)


def t_quantile(count: int | np.ndarray) -> np.ndarray:
  """Returns Student's quantile for a variance estimated from `count` values.

  It is finite for one value, whose variance nobody can estimate.
  """
  return special.stdtrit(np.maximum(np.asarray(count) - 1, 1), UPPER)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
  """Returns the mean and half its interval (Student's t); NaN for one value."""
  mean, size = statistics.fmean(values), len(values)
  if size < 2:
    return mean, math.nan
  t = float(t_quantile(size))
  return mean, t * statistics.stdev(values) / math.sqrt(size)


def jackknife_error(left_out_N: Sequence[float]) -> float:
  """Returns the standard error of a statistic; inf if N is 1.

  `left_out_N` are its values without each of N independent samples (Efron &
  Tibshirani 1993, chapter 11).
  """
  size = len(left_out_N)
  if size < 2:
    return math.inf
  spread = np.sum((np.array(left_out_N) - np.mean(left_out_N)) ** 2)
  return math.sqrt((size - 1) / size * float(spread))


def jackknife_values(value: float, left_out_N: Sequence[float]) -> np.ndarray:
  """Returns values whose mean is the statistic and whose variance is its own.

  They are Tukey's (1958) pseudo-values, shifted to the mean. `left_out_N` are
  values of the statistic without each of the N samples.
  """
  rest_N = np.array(left_out_N)
  return value + (len(rest_N) - 1) * (rest_N.mean() - rest_N)


def wilson(
  p: float | np.ndarray, n: float | np.ndarray, clusters: int | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns low and high of Wilson's (1927) interval, of the shape of `p`.

  `p` is a share among `n` trials that carry as much information as the trials
  of so many clusters:

    (p + z^2 / 2n ± z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

  Since n is estimated from the variance between clusters, it is reduced by
  (z / t)^2 (Korn & Graubard 1998, Survey Methodology 24).
  """
  n = np.asarray(n, np.float64) * (Z / t_quantile(clusters)) ** 2
  p = np.asarray(p, np.float64)
  center = p + Z**2 / (2 * n)
  half = Z * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
  return (center - half) / (1 + Z**2 / n), (center + half) / (1 + Z**2 / n)


@dataclasses.dataclass(frozen=True)
class Rate:
  """A share with its 95 % confidence interval."""

  rate: float  # hits / total, or 0
  low: float
  high: float
  hits: int
  total: int


def estimate_rate(hit_N: np.ndarray, cluster_N: np.ndarray) -> Rate:
  """Estimates a share of trials that are similar within a cluster.

  Wilson's interval for the effective number of independent trials is what
  Franco, Little, Louis & Slud (2019, Journal of Survey Statistics and
  Methodology 7) recommend for clustered samples:

    p = sum x_t / sum n_t            x_t hits among n_t trials in cluster t
    var p = T / (T - 1) * sum (x_t - p n_t)^2 / (sum n_t)^2
    n = min(p (1 - p) / var p, sum n_t)

  var p is the variance of a ratio of sums over clusters (Cochran 1977, section
  6). If there is nothing to estimate it from (no hit, only hits, or one
  cluster), n assumes the worst case, that all trials of a cluster are equal:
  (sum n_t)^2 / sum n_t^2.

  Trials have results `hit_N` (bool) and clusters `cluster_N` (int, in any
  order).
  """
  if not len(hit_N):
    return Rate(rate=0.0, low=0.0, high=1.0, hits=0, total=0)
  _, cluster_N = np.unique(cluster_N, return_inverse=True)
  totals_T = np.bincount(cluster_N)
  hits_T = np.bincount(cluster_N, hit_N)
  hits, total, clusters = hits_T.sum(), totals_T.sum(), len(totals_T)
  p = float(hits / total)
  if 0 < hits < total and clusters > 1:
    spread = np.sum((hits_T - p * totals_T) ** 2) * clusters / (clusters - 1)
    size = p * (1 - p) / max(spread / total**2, p * (1 - p) / total)
  else:
    size = min(total**2 / np.sum(totals_T**2), total)
  low, high = wilson(p, size, clusters)
  return Rate(
    rate=p,
    low=min(max(float(low), 0.0), p),  # without hits it is off by 1e-18
    high=max(min(float(high), 1.0), p),
    hits=int(hits),
    total=int(total),
  )


def running_rate(
  share_N: np.ndarray, ends_P: np.ndarray, window: int
) -> np.ndarray:
  """Returns running means of a share, low and high of their intervals, [3, P].

  Slots of one of the N records depend on each other, records hardly. So the
  variance v of the mean p of a window's records comes from their spread, and p
  is that of p (1 - p) / v trials. If all records of a window are equal, mostly
  0, each has the trials of an average record of the run; the interval is NaN if
  all of the run are equal. Rates are NaN before the first window is full, or
  half of a run that is shorter.

  Args:
    share_N: share of each record; NaN counts as 0.
    ends_P: end of each window, exclusive.
    window: number of records of a window.
  """
  share_N = np.nan_to_num(share_N)
  starts_P = np.maximum(ends_P - window, 0)
  count_P = ends_P - starts_P

  def mean(values_N: np.ndarray) -> np.ndarray:
    sums = np.concatenate([[0.0], np.cumsum(values_N)])
    return np.maximum(sums[ends_P] - sums[starts_P], 0.0) / count_P

  mean_P = mean(share_N)
  spread_P = mean(share_N**2) - mean_P**2
  variance_P = spread_P / np.maximum(count_P - 1, 1)
  is_known_P = (variance_P > 1e-9 * mean_P**2) & (count_P > 1)
  trials_P = mean_P * (1 - mean_P) / np.where(is_known_P, variance_P, 1.0)
  p, v = share_N.mean(), share_N.var()
  usual = p * (1 - p) / v if v else np.nan  # of one record
  trials_P = np.where(is_known_P, trials_P, usual * count_P)
  low_P, high_P = wilson(mean_P, trials_P, count_P)
  low_P = np.where(mean_P > 0, low_P, 0.0)  # without hits it is off by 1e-18
  is_full_P = count_P >= min(window, -(-len(share_N) // 2))
  return np.where(is_full_P, [mean_P, low_P, high_P], np.nan)
