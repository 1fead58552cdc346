"""From (sum, count) pairs to the numbers a person reads; numpy only.

Merging steps, micro-batches, devices and held-out batches is one and the same
addition, so a ratio is formed once, here, from merged sums.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

Terms = Mapping[str, tuple[np.ndarray, np.ndarray]]

HISTOGRAM = "detect_histogram"


def merge(many: Iterable[Terms]) -> dict[str, tuple]:
  """Adds the pairs of several batches name by name."""
  total: dict[str, tuple] = {}
  for terms in many:
    for name, (a, b) in terms.items():
      # f64: f32 stops to count by ones at 2^24, a few hundred large batches.
      a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
      before = total.get(name, (0.0, 0.0))
      total[name] = (before[0] + a, before[1] + b)
  return total


def ratios(terms: Terms) -> dict[str, float]:
  """sum / count of every term, 0 for an empty one; `auc` of the histogram."""
  values = {
    name: float(a) / float(b) if float(b) else 0.0
    for name, (a, b) in terms.items()
    if name != HISTOGRAM
  }
  if HISTOGRAM in terms:
    values["auc"] = auc(*terms[HISTOGRAM])
  return values


def auc(positive_C: np.ndarray, negative_C: np.ndarray) -> float:
  """Area under the ROC curve from histograms of the scores; ties count half.

  The chance that a random positive scores above a random negative; 0.5 when
  either side is empty.
  """
  positive_C = np.asarray(positive_C, np.float64)
  negative_C = np.asarray(negative_C, np.float64)
  pairs = positive_C.sum() * negative_C.sum()
  if not pairs:
    return 0.5
  below_C = np.cumsum(negative_C) - negative_C
  return float((positive_C * (below_C + negative_C / 2)).sum() / pairs)


def jackknife(
  batches: list[Terms], statistic: Callable[[Terms], float]
) -> tuple[float, float]:
  """A statistic of all batches and its standard error.

  Each batch is left out in turn (Efron & Tibshirani 1993, chapter 11): tokens
  of one text depend on one another, whole batches of rows hardly do, so this
  does not understate the error as a formula for independent tokens would.
  """
  n = len(batches)
  value = statistic(merge(batches))
  if n < 2:
    return value, math.inf
  left_out = [
    statistic(merge(batches[:i] + batches[i + 1 :])) for i in range(n)
  ]
  spread = float(np.sum((np.array(left_out) - np.mean(left_out)) ** 2))
  return value, math.sqrt((n - 1) / n * spread)


def entropy(counts: np.ndarray) -> float:
  """Entropy in nats of the distribution that counts are proportional to."""
  counts = np.asarray(counts, np.float64)
  p = counts[counts > 0] / counts.sum()
  return float(-(p * np.log(p)).sum())


@dataclasses.dataclass
class Clock:
  """Rate and remaining time, from the steps of this process alone.

  Time before `start` (compiling, restoring) and while `paused` (evaluation)
  does not count, so the estimate is right after a resume.
  """

  total_steps: int
  now: Callable[[], float] = time.perf_counter
  _since: float = 0.0
  _first: int = 0
  _away: float = 0.0

  def start(self, step: int) -> None:
    """Begins to count at `step`."""
    self._first, self._since, self._away = step, self.now(), 0.0

  def running(self) -> float:
    """The time in seconds, which stands still while paused."""
    return self.now() - self._away

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """What happens inside counts neither for the rate nor for the rest."""
    began = self.now()
    yield
    self._away += self.now() - began

  def secs_per_step(self, step: int) -> float:
    """Mean seconds of a step since `start`."""
    done = max(step - self._first, 1)
    return max(self.running() - self._since, 1e-9) / done

  def eta_secs(self, step: int) -> float:
    """Seconds that the remaining steps will take."""
    return (self.total_steps - step) * self.secs_per_step(step)
