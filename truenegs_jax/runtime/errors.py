"""The errors that end a run, each with the exit code a launcher sees.

A message names the value, the rule and the way out. Everything else that is
raised is a defect of ours and keeps its traceback.
"""

from collections.abc import Iterable


class TrueNegsError(Exception):
  """A run cannot go on for a reason that its user can mend."""

  exit_code = 1


class InputError(TrueNegsError, ValueError):
  """A flag, a config value, a vocabulary or a resource is unusable."""

  exit_code = 2


class DataError(TrueNegsError):
  """A corpus or a rows folder is empty, damaged or not what was asked for."""

  exit_code = 3


class UnavailableError(DataError):
  """A corpus is not on this machine: no such file, or no way to the hub."""


class CheckpointError(TrueNegsError):
  """A checkpoint is missing, damaged or of another run."""

  exit_code = 4


class DiskError(TrueNegsError):
  """A file could not be written: full disk, no permission."""

  exit_code = 5


class NonFiniteError(TrueNegsError):
  """Gradients were NaN or infinite more often than the config allows."""

  exit_code = 6


def one_of(name: str, value: str, known: Iterable[str]) -> None:
  """InputError where a value is not among the known ones, which it lists."""
  if value not in (names := tuple(known)):
    raise InputError(f"{name} {value!r} is unknown; known: {', '.join(names)}.")


def printable(error: Exception) -> str:
  """The message of an error; what a file says cannot command a terminal."""
  show = lambda c: c if c.isprintable() or c == "\n" else repr(c)[1:-1]
  return "".join(map(show, " ".join(map(str, error.args))))


SAVED_RESTART = 75  # EX_TEMPFAIL: SIGTERM, saved, wants the same command again.
SAVED_INTERRUPT = 130  # Ctrl-C, saved.
