"""Parses config values that hold a list: `NAME option=value ..., NAME ...`.

  wiki/*.txt.xz weight=3, hf:NAME weight=1     sources of text
  vectors path=glove.txt top=10, wordnet       sources of synonyms
  cola, rte                                    names only

Items are divided by commas and their words by spaces. Words before the first
option=value are the name. Quotes, single or double, protect commas and spaces.
"""

import re
import string
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from truenegs_jax.config.keys import did_you_mean
from truenegs_jax.runtime.errors import InputError, one_of

_QUOTED = r"""'[^']*'|"[^"]*\""""
_OPTION = re.compile(r"(\w[\w.+-]*)=(.*)", re.DOTALL)
_TRUTH = {"true": True, "false": False}
_KINDS = {bool: "true or false", int: "a whole number"}


class Item(NamedTuple):
  """An item of a list: a name, or "", and its options in their order."""

  name: str
  options: dict[str, str]

  def convert(
    self, defaults: Mapping[str, Any], *, subject: str
  ) -> dict[str, Any]:
    """Returns all options with the types of their defaults.

    Args:
      defaults: a value for each option that the item may have.
      subject: begins messages, such as "data.sources: part 'a.txt'".

    Raises:
      InputError: an option is unknown, or its value has another type.
    """
    values = dict(defaults)
    for option, text in self.options.items():
      if option not in defaults:
        names = [f"{name}=" for name in defaults]
        hint = did_you_mean(f"{option}=", names, "")
        raise InputError(
          f"{subject}: there is no option {option}=.{hint} The options are"
          f" {', '.join(defaults) or 'none'}."
        )
      kind = type(defaults[option])
      try:
        values[option] = _TRUTH[text.lower()] if kind is bool else kind(text)
      except (KeyError, ValueError) as e:
        words = _KINDS.get(kind, "a number")
        raise InputError(f"{subject}: {option}={text} must be {words}.") from e
    return values


def split(text: str, separators: str, *, key: str) -> list[str]:
  """Splits at separators outside quotes; InputError for an unpaired quote."""
  if re.search("['\"]", re.sub(_QUOTED, "", text)):
    raise InputError(f"{key}={text!r} has a quote without its partner.")
  items = [""]
  for token in re.findall(rf"{_QUOTED}|.", text, re.DOTALL):
    if token in separators:
      items.append("")
    else:
      items[-1] += token
  return [item.strip() for item in items]


def parse_item(text: str, *, key: str) -> Item:
  """Parses one item; InputError for a repeated option or a word after one."""
  names = list[str]()
  options = dict[str, str]()
  for word in filter(None, split(text, string.whitespace, key=key)):
    option = _OPTION.fullmatch(word)
    if options and (not option or option[1] in options):
      raise InputError(
        f"{key}: {word!r} in {text!r} follows an option, or is there twice. Put"
        " values with spaces in quotes."
      )
    if option:
      options[option[1]] = _unquote(option[2])
    else:
      names.append(_unquote(word))
  return Item(" ".join(names), options)


def parse_items(text: str, *, key: str) -> list[Item]:
  """Parses the items of a list; an empty text has none."""
  parts = split(text, ",", key=key)
  return [parse_item(part, key=key) for part in parts if part]


def parse_names(
  text: str, *, key: str, choices: Iterable[str] = ()
) -> tuple[str, ...]:
  """Parses names divided by commas, each once; InputError for other items."""
  items = parse_items(text, key=key)
  for item in items:
    if item.options:
      raise InputError(f"{key}={text!r} takes names only, divided by commas.")
    if choices:
      one_of(key, item.name, choices)
  return tuple(dict.fromkeys(item.name for item in items))


def _unquote(text: str) -> str:
  """Removes the quotes around parts of a word."""
  return re.sub(_QUOTED, lambda match: match[0][1:-1], text)


def quote(value: str) -> str:
  """Quotes a value so that it is parsed as one word."""
  if re.fullmatch(r"[^\s'\",=]+", value):
    return value
  if "'" in value and '"' not in value:
    return f'"{value}"'
  in_quotes = value.replace("'", """'"'"'""")  # as a shell has it
  return f"'{in_quotes}'"


def format_item(name: str, options: Iterable[tuple[str, Any]]) -> str:
  """Writes an item that `parse_item` reads back."""
  words = [f"{option}={quote(str(value))}" for option, value in options]
  if name:
    words.insert(0, quote(name))
  return " ".join(words)
