"""Saves figures, and draws panels side by side."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

from truenegs_jax.runtime.files import atomic_file, disk_errors


@contextlib.contextmanager
def panels(path: pathlib.Path, count: int) -> Iterator[list[Any]]:
  """Yields the axes of `count` panels, which are saved as PNG and PDF.

  Raises:
    DiskError: a file cannot be written.
  """
  from matplotlib.figure import Figure  # slow to import

  figure = Figure(figsize=(4.5 * count, 3.2), layout="constrained")
  axes = [*figure.subplots(1, count, squeeze=False)[0]]
  yield axes
  for axis in axes:
    axis.grid(alpha=0.3)
  for suffix in (".png", ".pdf"):
    save_figure(figure, path.with_suffix(suffix))


def save_figure(figure: Any, path: pathlib.Path) -> None:
  """Writes a figure in the format of the path's suffix.

  The same figure gives the same bytes.

  Raises:
    DiskError: the file cannot be written.
  """
  with disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
  kind = path.suffix.removeprefix(".")
  metadata = {"CreationDate": None} if kind == "pdf" else {}
  with atomic_file(path) as file:
    figure.savefig(file, dpi=300, format=kind, metadata=metadata)
