"""Reads JSON that may be damaged, or written to do harm.

  with read_file(path, CheckpointError, "Restore the file.") as saved:
    steps = saved["steps"]

Whatever is wrong with the file, in its text or in the values that the body
takes from it, is one error with one message.
"""

import contextlib
import itertools
import json
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

from truenegs_jax.runtime.errors import TrueNegsError, printable

MAX_DEPTH = 100  # the files of this package and of transformers have up to 8
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
  """Parses JSON of a program: a value that is safe to use and to write again.

  Raises:
    ValueError: the text is damaged or nested too deep, a name is repeated, a
      string has half of a surrogate pair, or a number is not finite.
  """
  value = _decode(text, kind, _STRICT)
  for scalar in _scalars(value):
    if isinstance(scalar, str):
      if re.search("[\ud800-\udfff]", scalar):
        raise ValueError(f"{scalar[:100]!r} has half of a surrogate pair")
    elif scalar is not None and not abs(scalar) <= sys.float_info.max:
      raise ValueError(f"{str(scalar)[:100]} is not a finite number")
  return value


def parse_loosely(text: bytes | str, kind: type = dict) -> Any:
  """Parses JSON of a text to learn from, whose values are checked on use.

  Raises:
    ValueError: the text is not UTF-8 or not JSON, is of another kind, or has
      more than MAX_DEPTH levels. The reason is a phrase.
  """
  value = _decode(text, kind, _LOOSE)
  _scalars(value)
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


def _decode(text: bytes | str, kind: type, decoder: json.JSONDecoder) -> Any:
  try:
    if isinstance(text, bytes):
      text = text.decode("utf-8-sig")
    value = decoder.decode(text)
  except UnicodeDecodeError as e:
    byte = e.object[e.start]
    raise ValueError(f"byte {e.start:,}, 0x{byte:02x}, is not UTF-8") from e
  except json.JSONDecodeError as e:
    line = f"line {e.lineno:,}, " if "\n" in e.doc else ""
    raise ValueError(f"not JSON: {e.msg}, {line}column {e.colno:,}") from e
  except RecursionError as e:
    raise ValueError(f"nested in more than {MAX_DEPTH} levels") from e
  if not isinstance(value, kind):
    raise ValueError(f"{type(value).__name__}, not a JSON object")
  return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """Returns an object; ValueError if it has a name twice."""
  fields: dict[str, Any] = {}
  for name, value in pairs:
    if name in fields:
      raise ValueError(f"the name {name[:100]!r} is repeated")
    fields[name] = value
  return fields


def _scalars(value: Any) -> list[Any]:
  """Returns all names and scalars of a value; ValueError if it is too deep."""
  scalars, level = [], [value]
  for _ in range(MAX_DEPTH + 1):
    scalars += [x for x in level if not isinstance(x, dict | list)]
    objects = [x for x in level if isinstance(x, dict)]
    lists = [x for x in level if isinstance(x, list)]
    level = list(itertools.chain(*objects, *map(dict.values, objects), *lists))
    if not level:
      return scalars
  raise ValueError(f"nested in more than {MAX_DEPTH} levels")


_STRICT = json.JSONDecoder(object_pairs_hook=_unique)
_LOOSE = json.JSONDecoder()
