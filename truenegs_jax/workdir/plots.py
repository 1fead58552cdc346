"""Draws figures of panels side by side."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

from truenegs_jax.runtime.files import atomic_file, disk_errors


@contextlib.contextmanager
def panels(
  path: pathlib.Path, count: int, title: str = ""
) -> Iterator[list[Any]]:
  """Yields the axes of `count` panels, which are saved as a PNG file.

  Raises:
    DiskError: the file cannot be written.
  """
  from matplotlib.figure import Figure  # slow to import

  figure = Figure(figsize=(4.5 * count, 3.2))
  axes = [*figure.subplots(1, count, squeeze=False)[0]]
  yield axes
  for axis in axes:
    axis.grid(alpha=0.3)
  figure.suptitle(title)
  figure.tight_layout()
  with disk_errors(path):
    path.parent.mkdir(exist_ok=True)
  with atomic_file(path) as file:
    figure.savefig(file, dpi=110, format="png")
