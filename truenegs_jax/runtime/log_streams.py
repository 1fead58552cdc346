"""Keeps a run going while the disk of its log is full."""

import io
import sys

from truenegs_jax.runtime.files import FULL_DISK


class _LossyFile(io.FileIO):
  """A file that drops what does not fit on its disk."""

  def write(self, data, /):
    try:
      return super().write(data)
    except OSError as e:
      if e.errno not in FULL_DISK:
        raise
      return len(data)


def drop_what_does_not_fit() -> None:
  """Replaces stdout and stderr, unless they are terminals."""
  for name in ("stdout", "stderr"):
    stream = getattr(sys, name)
    if stream is not None and not stream.isatty():
      stream.flush()
      raw = _LossyFile(stream.fileno(), "wb", closefd=False)
      lines = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
      )
      setattr(sys, name, lines)
