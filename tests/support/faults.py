"""Faults that tests cause in their own process."""

import contextlib
import resource


@contextlib.contextmanager
def full_disk(num_bytes=0):
  """Lets this process write no file beyond a size; Python ignores SIGXFSZ."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
