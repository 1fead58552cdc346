"""Reads JSON that may be damaged, or written to do harm.

  with read_file(path, CheckpointError, "Restore the file.") as saved:
    steps = saved["steps"]

Whatever is wrong with the file, in its text or in the values that the body
takes from it, is one error with one message.
"""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from truenegs_jax.runtime.errors import TrueNegsError, printable

READ_ERRORS = (
  ArithmeticError,
  AttributeError,
  LookupError,
  OSError,
  TypeError,
  ValueError,
)


@contextlib.contextmanager
def read_file(
  path: pathlib.Path, error: type[TrueNegsError], fix: str
) -> Iterator[dict[str, Any]]:
  """Yields the JSON object of a file to a body that takes values from it.

  Raises `error`, with a message that ends with `fix`, if the file cannot be
  read, or the body misses a value or finds one of another type.
  """
  try:
    yield parse(path.read_bytes())
  except TrueNegsError:
    raise
  except READ_ERRORS as e:
    message = f"'{path}' cannot be read ({describe(e)}). {fix}"
    raise error(printable(ValueError(message))) from e


def parse(text: bytes | str, kind: type = dict) -> Any:
  """Parses JSON of a program: a value that can be written again.

  Raises:
    ValueError: the text is damaged or nested too deep, a name is repeated, a
      string has half of a surrogate pair, or a number is not finite.
  """
  value = parse_loosely(text, kind, hook=_unique)
  json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
  return value


def parse_loosely(
  text: bytes | str,
  kind: type = dict,
  *,
  hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
  """Parses JSON of a text to learn from, whose values are checked on use.

  `hook` makes objects of their names and values. Raises ValueError if the text
  is not UTF-8 or not JSON, is nested too deep, or is of another kind.
  """
  try:
    if isinstance(text, bytes):
      text = text.decode("utf-8-sig")
    value = json.loads(text, object_pairs_hook=hook)
  except UnicodeDecodeError as e:
    raise ValueError(f"byte {e.start:,} is not UTF-8") from e
  except json.JSONDecodeError as e:
    raise ValueError(f"not JSON: {e}") from e
  except RecursionError as e:
    raise ValueError("nested too deep") from e
  if not isinstance(value, kind):
    raise ValueError(f"{type(value).__name__}, not a JSON object")
  return value


def describe(error: Exception) -> str:
  """Returns the reason of one of READ_ERRORS in words for users."""
  if isinstance(error, OSError):
    return error.strerror or str(error)
  if isinstance(error, KeyError):
    return f"it has no {str(error)[:100]}"
  if isinstance(error, TypeError | AttributeError | IndexError):
    return "a value is of another type"
  return str(error)[:300].rstrip(".")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """Returns an object; ValueError if it has a name twice."""
  fields = dict(pairs)
  if len(fields) < len(pairs):
    raise ValueError("a name is repeated")
  return fields
