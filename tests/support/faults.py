"""Faults of tests, and how many: few in all runs, all in make test-faults."""

import contextlib
import resource

import pytest


def tries(few: int, count: int) -> list:
  """Returns 0, 1, ..., count - 1, all but the first `few` marked faults."""
  return [
    pytest.param(i, marks=[pytest.mark.faults] * (i >= few))
    for i in range(count)
  ]


@contextlib.contextmanager
def full_disk(num_bytes=0):
  """Lets this process write no file beyond a size; Python ignores SIGXFSZ."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
