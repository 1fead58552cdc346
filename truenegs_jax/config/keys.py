"""Describes a key of a config, and reads sections as typed values.

class Masking(Section):
  prob: float = key(0.15, "Share of the tokens that are predicted.", low=TINY)

Masking.read(config.masking).prob
"""

import dataclasses
import difflib
import json
from collections.abc import Collection, Container, Mapping
from typing import Any, Self, dataclass_transform

from truenegs_jax.runtime.errors import InputError, one_of

TINY = 1e-12  # lower bound of numbers that must be above 0
LARGEST = 2**31 - 1  # an int32, the type of jax's integers


@dataclasses.dataclass(frozen=True)
class Key:
  """A key of a config.

  Attributes:
    default: value of configs that do not set it; its type is that of the key.
    meaning: text for help and reference.
    low: least value of a number, or of each of several; None: not a number.
    high: greatest value.
    choices: all values; empty: any value of the right type.
    is_open: whether the user's code may register more choices. The code that
      looks them up refuses others.
    may_change: whether a resume may use another value. Such a key decides what
      is printed or kept, or where files are (which have fingerprints or are not
      read again). Except for rounding it does not change the training: data,
      masks and draws are the same on another mesh.
  """

  default: Any
  meaning: str
  low: float | None = None
  high: float = LARGEST
  choices: tuple[str, ...] = ()
  is_open: bool = False
  may_change: bool = False

  @property
  def kind(self) -> type:
    """Type of a value, or of each of several."""
    is_tuple = isinstance(self.default, tuple)
    values = self.default if is_tuple else (self.default,)
    return type(values[0]) if values else str

  def describe_range(self) -> str:
    """Describes the range, LARGEST left out; "" without a range."""
    if self.low is None:
      return ""
    least = "more than 0" if self.low == TINY else f"at least {self.low:,}"
    most = "" if self.high == LARGEST else f" and at most {self.high:,}"
    return least + most

  def describe(self) -> str:
    """Returns the meaning with the type and the allowed values."""
    kind = type(self.default).__name__
    values = ", ".join(self.choices) or self.describe_range()
    return f"{self.meaning} [{kind}{values and f': {values}'}]"

  def check(self, name: str, value: Any) -> None:
    """Raises InputError for a wrong type or range, or an unknown choice."""
    is_tuple = isinstance(value, tuple)
    kinds = (int, float) if self.kind is float else (self.kind,)
    if is_tuple != isinstance(self.default, tuple) or any(
      type(single) not in kinds for single in (value if is_tuple else (value,))
    ):
      raise InputError(
        f"{name}={value!r} has the wrong type. It must be as {self.default!r}."
      )
    for single in value if is_tuple else (value,):
      if self.low is not None and not self.low <= single <= self.high:  # or NaN
        words = self.describe_range()
        if LARGEST == self.high < single:
          words += f" and at most {LARGEST:,}"
        raise InputError(
          f"{name}={value} is out of range. It must be finite, {words}."
        )
      if self.choices and not self.is_open:
        one_of(name, single, self.choices)


def key(default: Any, meaning: str, **rules: Any) -> Any:
  """Declares a field of a section; `rules` are further fields of `Key`.

  A number is at least 0 unless `low` is given.
  """
  if type(default) in (int, float):
    rules = {"low": 0, **rules}
  described = Key(default, meaning, **rules)
  if isinstance(default, dict):
    return dataclasses.field(
      default_factory=lambda: dict(default), metadata={"key": described}
    )
  return dataclasses.field(default=default, metadata={"key": described})


def free_key(default: Any, meaning: str, **rules: Any) -> Any:
  """Declares a `key` of which a resume may use another value."""
  return key(default, meaning, may_change=True, **rules)


def choice(choices: tuple[str, ...], meaning: str, **rules: Any) -> Any:
  """Declares a `key` with these choices, of which the first is the default."""
  return key(choices[0], meaning, choices=choices, **rules)


def free_choice(choices: tuple[str, ...], meaning: str, **rules: Any) -> Any:
  """Declares a `choice` of which a resume may use another."""
  return choice(choices, meaning, may_change=True, **rules)


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclasses.dataclass(frozen=True)
class Section:
  """Base of the sections of a config, whose fields are keys or sections.

  Its subclasses are frozen dataclasses, too.
  """

  def __init_subclass__(cls, *, kw_only: bool = True) -> None:
    dataclasses.dataclass(frozen=True, kw_only=kw_only)(cls)

  @classmethod
  def list_keys(cls, prefix: str = "") -> dict[str, Key]:
    """Returns the keys by their names, which begin with a prefix."""
    keys = dict[str, Key]()
    for field in dataclasses.fields(cls):
      name = f"{prefix}{field.name}"
      if isinstance(field.default, Section):
        keys |= field.default.list_keys(f"{name}.")
      else:
        keys[name] = field.metadata["key"]
    return keys

  @classmethod
  def read(cls, values: Mapping[str, Any]) -> Self:
    """Returns typed values; takes defaults for keys without a value."""
    given = {
      x.name: x.default.read(values[x.name])
      if isinstance(x.default, Section)
      else values[x.name]
      for x in dataclasses.fields(cls)
      if x.name in values
    }
    return cls(**given)

  def replace(self, changes: Mapping[str, Any]) -> Self:
    """Returns a copy with other values of keys, by names with dots."""
    tree = dataclasses.asdict(self)
    for name, value in changes.items():
      section, _, last = name.rpartition(".")
      (tree[section] if section else tree)[last] = value
    return self.read(tree)

  def to_json(self) -> dict[str, Any]:
    """Returns the values in JSON's types."""
    return json.loads(json.dumps(dataclasses.asdict(self)))


def flatten(
  tree: Mapping[str, Any], prefix: str = "", *, kept: Container[str] = ()
) -> dict[str, Any]:
  """Flattens nested mappings but those in `kept`; joins keys with dots."""
  leaves: dict[str, Any] = {}
  for name, value in tree.items():
    if isinstance(value, Mapping) and f"{prefix}{name}" not in kept:
      leaves |= flatten(value, f"{prefix}{name}.", kept=kept)
    else:
      leaves[f"{prefix}{name}"] = value
  return leaves


def did_you_mean(word: str, names: Collection[str], prefix: str) -> str:
  """Returns " Did you mean ...?" with up to three names that are near, or "".

  A name is near if a part of it is like the last part of the word. Names in the
  word's section displace others.
  """
  section, _, last = word.rpartition(".")
  parts = {part for name in names for part in name.split(".")}
  matches = difflib.get_close_matches(last, parts, n=1, cutoff=0.7)
  near = [name for name in names if {*matches} & {*name.split(".")}]
  near = [name for name in near if name.startswith(f"{section}.")] or near
  listed = " or ".join(f"{prefix}{name}" for name in near[:3])
  return f" Did you mean {listed}?" if near else ""
