"""Shares of things that stand in sequences, with 95 % intervals.

N things, whatever is counted, in T sequences.
"""

import dataclasses

import numpy as np
from scipy import special


@dataclasses.dataclass(frozen=True)
class Rate:
  """`hits` of `of`, and where the true share lies with 95 % confidence."""

  rate: float  # 0 where `of` is 0
  low: float
  high: float
  hits: int
  of: int


def rate(
  hit_N: np.ndarray, sequence_N: np.ndarray, weight_N: np.ndarray | None = None
) -> Rate:
  """The share of hits and a 95 % interval that knows of sequences.

  What stands in one sequence is alike, so N slots say less than N independent
  ones. The interval is Wilson's (1927) for the number of independent slots that
  would say as much, as Franco, Little, Louis & Slud (2019, Journal of Survey
  Statistics and Methodology 7) recommend for clustered samples:

    p = sum x_t / sum n_t           x_t hits among n_t things in sequence t
    var p = T / (T - 1) * sum (x_t - p n_t)^2 / (sum n_t)^2
    n = min(p (1 - p) / var p, sum n_t) * (z / t)^2
    (p + z^2 / 2n ± z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

  var p is that of a ratio of sums over clusters (Cochran 1977, section 6), and
  (z / t)^2 pays for its being an estimate, t being Student's quantile of T - 1
  degrees of freedom (Korn & Graubard 1998, Survey Methodology 24). Where there
  is nothing to estimate it from (no hit, nothing but hits, one sequence), n is
  that of the worst case, all of a sequence alike: (sum n_t)^2 / sum n_t^2.

  Args:
    hit_N: bool.
    sequence_N: int, where each thing stands.
    weight_N: what each counts for; None: 1.
  """
  if not len(hit_N):
    return Rate(rate=0.0, low=0.0, high=1.0, hits=0, of=0)
  weight_N = np.ones(len(hit_N)) if weight_N is None else weight_N
  _, sequence_N = np.unique(sequence_N, return_inverse=True)
  of_T = np.bincount(sequence_N, weight_N)
  hits_T = np.bincount(sequence_N, weight_N * hit_N)
  hits, of = hits_T.sum(), of_T.sum()
  share = float(hits / of)
  low, high = _wilson(share, _independent(hits_T, of_T))
  return Rate(
    rate=share,
    low=min(max(low, 0.0), share),  # by 1e-18 beyond it where nothing was hit
    high=max(min(high, 1.0), share),
    hits=round(hits),
    of=round(of),
  )


def percents(value: Rate) -> tuple[str, str]:
  """A share and its interval, in percent; dashes where nothing was counted."""
  if not value.of:
    return "-", "-"
  return f"{value.rate:.2%}", f"{value.low:.2%} to {value.high:.2%}"


def _independent(hits_T: np.ndarray, of_T: np.ndarray) -> float:
  """How many independent things would say as much; see `rate`."""
  hits, of, clusters = hits_T.sum(), of_T.sum(), len(of_T)
  if 0 < hits < of and clusters > 1:
    p = hits / of
    spread = np.sum((hits_T - p * of_T) ** 2) * clusters / (clusters - 1)
    size = p * (1 - p) / max(spread / of**2, p * (1 - p) / of)
  else:
    size = min(of**2 / np.sum(of_T**2), of)
  t = special.stdtrit(max(clusters - 1, 1), 0.975)
  return float(size * (special.ndtri(0.975) / t) ** 2)


def _wilson(p: float, n: float) -> tuple[float, float]:
  """Wilson's 95 % interval of a share of n independent trials."""
  z = special.ndtri(0.975)
  middle = p + z**2 / (2 * n)
  half = z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
  low, high = np.array([middle - half, middle + half]) / (1 + z**2 / n)
  return float(low), float(high)
