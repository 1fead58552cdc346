"""Errors that end a run, each class with its own exit code.

Every other exception is a bug and keeps its traceback. All messages (errors,
warnings, progress, help of flags) have one style: PROBLEM with its value. WHY,
or what is allowed. WHAT TO TYPE. Short sentences, config keys and flags as they
are typed, strings and paths in single quotes, thousands with commas.
"""

from collections.abc import Iterable

# Exit codes of runs that were stopped after saving a checkpoint.
SAVED_RESTART = 75  # by SIGTERM; EX_TEMPFAIL: run the same command again
SAVED_INTERRUPT = 130  # by Ctrl-C
MAX_MESSAGE = 6000  # characters that are printed
# Of a process that hangs; jax's own after a lost process.
HANGS = 134


class TrueNegsError(Exception):
  """Base class: the run cannot continue, and its user can fix the cause."""

  exit_code = 1


class InputError(TrueNegsError, ValueError):
  """Unusable flag, config value, vocabulary or resource."""

  exit_code = 2


class DataError(TrueNegsError):
  """Empty, damaged or unexpected corpus or rows folder."""

  exit_code = 3


class UnavailableError(DataError):
  """Data neither on this machine nor on the hub, or a hub out of reach."""


class CheckpointError(TrueNegsError):
  """Missing or damaged checkpoint, or one of another run."""

  exit_code = 4


class DamagedStepError(CheckpointError):
  """Checkpoint that cannot be restored; another step of the run may do."""


class DiskError(TrueNegsError):
  """File that cannot be written: full disk, no permission."""

  exit_code = 5


class NonFiniteError(TrueNegsError):
  """NaN or infinite losses or gradients, in more steps than allowed."""

  exit_code = 6


class OutOfMemoryError(TrueNegsError):
  """Memory of this machine or of a device that ran out."""

  exit_code = 7


def explain(
  error: Exception, *, memory: str = "Use a machine with more memory."
) -> TrueNegsError | None:
  """Returns the error to print for an exception; None for a bug.

  `memory` says what to do if memory ran out.
  """
  if isinstance(error, TrueNegsError):
    return error
  if not is_out_of_memory(error):
    return None
  reason = str(error).partition("\n")[0][:150].rstrip(".") or "on the host"
  return OutOfMemoryError(
    f"Memory ran out ({reason}). All that was saved is intact. {memory}"
  )


def is_out_of_memory(error: Exception) -> bool:
  """Whether memory ran out, of Python, a device (of jax) or a new thread."""
  words = "RESOURCE_EXHAUSTED", "can't start new thread"
  return isinstance(error, MemoryError) or any(x in str(error) for x in words)


def one_of(name: str, value: str, choices: Iterable[str]) -> None:
  """Raises InputError, with all choices, unless `value` is one of them."""
  *others, last = names = tuple(choices)
  if value not in names:
    listed = f"{', '.join(others)} or {last}" if others else last
    raise InputError(f"{name}={value!r} is unknown. Choose {listed}.")


def printable(error: Exception) -> str:
  """Returns an error's message with control characters escaped.

  Text from a file in the message then cannot send commands to the terminal. A
  message that such a text makes very long loses its middle.
  """
  message = "".join(
    char if char.isprintable() or char == "\n" else repr(char)[1:-1]
    for char in " ".join(map(str, error.args))
  )
  if len(message) <= MAX_MESSAGE:
    return message
  return f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
