"""Parametrizes fault tests: few cases in all runs, all in make test-faults."""

import pytest


def tries(few: int, count: int) -> list:
  """Returns 0, 1, ..., count - 1, all but the first `few` marked faults."""
  return [
    pytest.param(i, marks=[pytest.mark.faults] * (i >= few))
    for i in range(count)
  ]
