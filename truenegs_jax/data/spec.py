"""The language of `config.data.sources`.

A part is `WHERE [key=value ...]`. A path may hold spaces and signs of equality:
only what stands at the end and has a known key is taken for an option.
"""

import dataclasses
import math
import os
import re

from truenegs_jax.data import documents
from truenegs_jax.data.sources import SOURCES, formats
from truenegs_jax.errors import InputError

KEYS = (
  "weight",
  "document",
  "format",
  "column",
  "split",
  "config",
  "revision",
  "streaming",
)
HUB = "hf:"
OPTION = re.compile(r"(?:^|\s)(\w+)=(\S*)$")
LIKE_AN_OPTION = re.compile(r"(?:^|\s)(\w+)=\S*(?=\s|$)")


@dataclasses.dataclass(frozen=True)
class Asked:
  """What a spec asks for.

  Attributes:
    where: the part without its keys.
    source: the named source that `where` names, such as "hf"; "" for files.
    weight: None where not given.
    options: the other keys that were given.
  """

  where: str
  source: str
  weight: float | None
  options: dict[str, str]


def parse_spec(spec: str) -> list[Asked]:
  """Takes a spec apart.

  Raises:
    InputError: an empty part, a key given twice, an impossible value.
  """
  asked = []
  for number, text in enumerate(spec.split(","), start=1):
    if not text.strip():
      raise InputError(
        f"data.sources={spec!r}: part {number} is empty; give names or paths"
        f" separated by commas, such as {'wordnet'!r} or 'texts/*.txt'."
      )
    asked.append(_parse_part(text.strip()))
  return asked


def _parse_part(text: str) -> Asked:
  where, options = text, {}
  while (match := OPTION.search(where)) and match[1] in KEYS:
    if os.path.lexists(os.path.expanduser(where)):
      break  # a path with such a name
    key, value = match.groups()
    if key in options:
      raise wrong(text, f"{key}= is given twice.")
    if not value:
      raise wrong(text, f"{key}= has no value.")
    options[key] = value
    where = where[: match.start()].rstrip()
  if where in ("", HUB):
    raise wrong(text, "it has keys and no name or path before them.")
  for key, known in (
    ("document", documents.RULES),
    ("streaming", ("true", "false")),
    ("format", tuple(sorted(set(formats().values())))),
  ):
    if options.get(key, known[0]) not in known:
      raise wrong(
        text, f"{key}={options[key]}: give one of {', '.join(known)}."
      )
  named = where in SOURCES and not SOURCES[where].suffixes and where != "hf"
  source = "hf" if where.startswith(HUB) else where if named else ""
  return Asked(where, source, _weight(text, options), options)


def _weight(text: str, options: dict[str, str]) -> float | None:
  if "weight" not in options:
    return None
  value = options.pop("weight")
  try:
    weight = float(value)
  except ValueError:
    weight = math.nan
  if not 0 < weight < math.inf:
    raise wrong(text, f"weight={value}: give a number above 0, such as 2.5.")
  return weight


def wrong(part: str, message: str) -> InputError:
  """The error of a part that cannot be."""
  return InputError(f"data.sources: part {part!r}: {message}")


def unknown_key(asked: Asked) -> InputError:
  """The error of a part whose path is not there and looks like keys."""
  names = [match[1] for match in LIKE_AN_OPTION.finditer(asked.where)]
  unknown = next((name for name in names if name not in KEYS), names[0])
  return wrong(
    asked.where,
    f"nothing has this name, and if {unknown}= is meant as a key, it is none:"
    f" the keys, which come last, are {', '.join(KEYS)}.",
  )
