"""Computes confidence intervals of shares."""

import numpy as np
from scipy import special


def wilson(
  p: float | np.ndarray, n: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns low and high of Wilson's (1927) 95 % interval, of the shape of `p`.

  `p` is a share among `n` independent trials:

    (p + z^2 / 2n ± z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
  """
  p, n = np.asarray(p, np.float64), np.asarray(n, np.float64)
  z = special.ndtri(0.975)
  center = p + z**2 / (2 * n)
  half = z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
  return (center - half) / (1 + z**2 / n), (center + half) / (1 + z**2 / n)
