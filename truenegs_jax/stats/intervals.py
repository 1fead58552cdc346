"""Estimates shares and means with 95 % confidence intervals.

Axes: N trials, T clusters of trials.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np
from scipy import special

UPPER = 0.975  # level of the upper bound of an interval
Z = float(special.ndtri(UPPER))


def t_quantile(count: int) -> float:
  """Returns Student's quantile of `count` values; finite for a single one."""
  return float(special.stdtrit(max(count - 1, 1), UPPER))


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
  """Returns the mean and half its interval (Student's t); NaN for one value."""
  mean, size = statistics.fmean(values), len(values)
  if size < 2:
    return mean, math.nan
  return mean, t_quantile(size) * statistics.stdev(values) / math.sqrt(size)


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

  Wilson's (1927) interval for the effective number n of independent trials is
  what Franco, Little, Louis & Slud (2019, Journal of Survey Statistics and
  Methodology 7) recommend for clustered samples:

    (p + z^2 / 2n ± z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    p = sum x_t / sum n_t            x_t hits among n_t trials in cluster t
    var p = T / (T - 1) * sum (x_t - p n_t)^2 / (sum n_t)^2
    n = min(p (1 - p) / var p, sum n_t) (z / t)^2

  var p is the variance of a ratio of sums over clusters (Cochran 1977, section
  6), and (z / t)^2 allows for its estimate (Korn & Graubard 1998, Survey
  Methodology 24). If there is nothing to estimate it from (no hit, only hits,
  or one cluster), n assumes the worst case, that all trials of a cluster are
  equal: (sum n_t)^2 / sum n_t^2.

  Args:
    hit_N: bool, results of the trials.
    cluster_N: int, their clusters, in any order.
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
  n = size * (Z / t_quantile(clusters)) ** 2
  center, scale = p + Z**2 / (2 * n), 1 + Z**2 / n
  half = Z * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
  return Rate(
    rate=p,
    # Without hits it is off by 1e-18.
    low=min(max(float((center - half) / scale), 0.0), p),
    high=max(min(float((center + half) / scale), 1.0), p),
    hits=int(hits),
    total=int(total),
  )
