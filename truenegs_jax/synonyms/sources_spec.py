"""The language of `config.negatives.sources`.

  wordnet pos=nv | pairs path=ppdb.tsv  the pairs of either
  vectors path=glove.txt & wordnet      those of both; `&` binds tighter
  table path=saved.npz                  those of a saved table
  model top=10 every=1000               the embeddings that are being trained

A part is a source's name and its options, `name=value`: the keyword-only
parameters of its function, converted as they are annotated. In a path a space,
`|` or `&` is written `?`.
"""

import dataclasses
import glob
import inspect
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.synonyms.sources import SOURCES, find_file, source
from truenegs_jax.synonyms.table import HEADER, SynonymTable, load_table

Value = str | int | float | bool
Pair = tuple[str, str]

PATHS = ("path", "folder")  # options that name a place on the disk
IN_PATHS = "(in a path a space, | or & is written ?, without quotes)"
KINDS = {
  str: "a word",
  int: "a whole number",
  float: "a number",
  bool: "true or false",
}


@dataclasses.dataclass(frozen=True)
class Source:
  """A name in `sources.SOURCES` and the options that were given."""

  name: str
  options: Mapping[str, Value]

  @property
  def paths(self) -> dict[str, str]:
    """The options that name a place, as written."""
    return {key: str(self.options[key]) for key in PATHS if key in self.options}


@dataclasses.dataclass(frozen=True)
class ModelTable:
  """The source "model": nearest words by the embeddings as they are trained.

  Attributes:
    top: the most neighbours of a word.
    threshold: the least cosine of a neighbour, -1 to 1.
    every: steps after which the table is made anew.
  """

  top: int = 10
  threshold: float = 0.5
  every: int = 1000

  def __post_init__(self):
    if self.top < 1 or self.every < 1 or not -1 <= self.threshold <= 1:
      raise _wrong(
        f"{_text('model', vars(self))}: top and every must be at least 1,"
        " threshold from -1 to 1."
      )


@dataclasses.dataclass(frozen=True)
class Spec:
  """What an expression asks for.

  Attributes:
    union: the parts between `|`, each with those between its `&`.
    model: the source "model", which stands alone; then `union` is empty.
  """

  union: tuple[tuple[Source, ...], ...]
  model: ModelTable | None = None

  @property
  def identity(self) -> str:
    """The expression in one way of writing, of a path its last part alone."""
    if self.model:
      return _text("model", vars(self.model))
    parts = [[_text(s.name, s.options) for s in both] for both in self.union]
    return " | ".join(" & ".join(part) for part in parts)

  @property
  def sources(self) -> tuple[Source, ...]:
    """All sources, in the order of the expression."""
    return tuple(source for both in self.union for source in both)

  @property
  def paths(self) -> tuple[str, ...]:
    """The places that are named, as written."""
    return tuple(path for s in self.sources for path in s.paths.values())


@source("table")
def saved_table(tokens: Sequence[str], *, path: str) -> Iterator[Pair]:
  """Yields the pairs of a table that was saved for the same vocabulary.

  Raises:
    InputError: there is no such file.
    DataError: as `load_table`, but that without tokens any vocabulary will do.
  """
  find_file(path, "a table, saved by python -m truenegs_jax.synonyms --output")
  if not tokens:
    table_lib.read(path, HEADER)
    return iter(())
  return _pairs(load_table(path, tokens), tokens)


def _pairs(table: SynonymTable, tokens: Sequence[str]) -> Iterator[Pair]:
  for key in table.keys_Q.tolist():
    word, synonym = divmod(key, len(tokens))
    if word != synonym:
      yield tokens[word], tokens[synonym]


def parse(text: str) -> Spec:
  """Takes an expression apart; no file is looked at.

  Raises:
    InputError: an empty part, brackets, an unknown source or option, one that
      is missing, given twice or of an impossible value.
  """
  if not isinstance(text, str):
    raise _wrong(f"{text!r} is no text; give sources such as 'wordnet'.")
  parts = [
    [_parse_part(part, text) for part in both.split("&")]
    for both in text.split("|")
  ]
  models = [s for both in parts for s in both if s.name == "model"]
  if not models:
    return Spec(tuple(map(tuple, parts)))
  if parts != [models[:1]]:
    raise _wrong(
      f"{text!r}: the source model changes with the training and stands alone."
    )
  return Spec((), ModelTable(**dict(models[0].options)))  # type: ignore


def check(spec: Spec, *, wordnet_dir: str = "") -> None:
  """Has every source refuse its options, as far as no vocabulary is needed.

  Of files it is seen that they are there and how they begin.

  Args:
    wordnet_dir: as of `pairs_of`.

  Raises:
    InputError, DataError: as the sources.
  """
  for of in spec.sources:
    SOURCES[of.name]((), **located(of, wordnet_dir=wordnet_dir))


def located(of: Source, *, wordnet_dir: str = "") -> dict[str, Value]:
  """The options of a source as its function takes them: see `locate`."""
  places = {key: str(locate(path)) for key, path in of.paths.items()}
  if of.name == "wordnet":
    places.setdefault("folder", wordnet_dir)
  return {**of.options, **places}


def pairs_of(
  spec: Spec, tokens: Sequence[str], *, wordnet_dir: str = ""
) -> Iterator[Pair]:
  """Yields the pairs of an expression, none for the source "model".

  Args:
    tokens: the vocabulary, token `i` at position `i`.
    wordnet_dir: `folder` of the source "wordnet" where that is not given.

  Raises:
    InputError, DataError: as the sources.
  """

  def pairs(of: Source) -> Iterable[Pair]:
    return SOURCES[of.name](tokens, **located(of, wordnet_dir=wordnet_dir))

  for first, *others in spec.union:
    if others:
      sets = [set(pairs(other)) for other in others]
      yield from set(pairs(first)).intersection(*sets)
    else:
      yield from pairs(first)


def locate(path: str) -> pathlib.Path:
  """The place that a path of an expression names; there may be nothing.

  Raises:
    InputError: its `?` stand for more than one.
  """
  place = os.path.expanduser(path)
  pattern = "[ |&?]".join(map(glob.escape, place.split("?")))
  found = [place] if os.path.exists(place) else sorted(glob.glob(pattern))
  if len(found) > 1:
    raise _wrong(f"{path!r} may be {found[0]!r} or {found[1]!r}; rename one.")
  return pathlib.Path(*found or [place])


def _parse_part(part: str, text: str) -> Source:
  words = part.split()
  if not words:
    raise _wrong(
      f"{text!r} has an empty part; give sources parted by | or &, such as"
      " 'wordnet | pairs path=ppdb.tsv'."
    )
  name, *given = words
  if name.startswith("("):
    raise _wrong(
      f"{text!r}: there are no brackets; & binds tighter than |, so write"
      " 'a & c | b & c' for '(a | b) & c'."
    )
  if name not in (*SOURCES, "model"):
    known = ", ".join(sorted([*SOURCES, "model"]))
    raise _wrong(f"there is no source {name!r}; known: {known} {IN_PATHS}.")
  parameters = _parameters(name)
  options: dict[str, Value] = {}
  for word in given:
    key, _, value = word.partition("=")
    if key in options:
      raise _wrong(f"{part.strip()!r}: {key}= is given twice.")
    if key not in parameters:
      raise _wrong(
        f"{part.strip()!r}: {word!r} is no option of {name}; known:"
        f" {', '.join(f'{p}=' for p in parameters)} {IN_PATHS}."
      )
    options[key] = _value(word, value, parameters[key].annotation)
  for key, parameter in parameters.items():
    if parameter.default is parameter.empty and key not in options:
      raise _wrong(f"{part.strip()!r}: {name} needs {key}=...")
  return Source(name, options)


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
  """The options of a source: those that a word can give."""
  parameters = inspect.signature(SOURCES.get(name, ModelTable)).parameters
  return {
    key: parameter
    for key, parameter in parameters.items()
    if parameter.annotation in KINDS
  }


def _value(word: str, value: str, kind: type) -> Value:
  if value[:1] in ("'", '"'):
    raise _wrong(f"{word!r}: leave out the quotes {IN_PATHS}.")
  booleans = {"true": True, "false": False}
  try:
    converted = booleans[value] if kind is bool else kind(value)
    if not value or kind is float and not math.isfinite(converted):
      raise ValueError
  except (KeyError, ValueError):
    raise _wrong(f"{word!r}: give {KINDS[kind]}.") from None
  return converted


def _text(name: str, options: Mapping[str, Value]) -> str:
  """A part in one way of writing: without defaults, in order of the names."""
  words = [name]
  for key, value in sorted(options.items()):
    if value == _parameters(name)[key].default:
      continue
    if key in PATHS:
      value = pathlib.PurePath(str(value)).name
    elif isinstance(value, bool):
      value = str(value).lower()
    words.append(f"{key}={value}")
  return " ".join(words)


def _wrong(message: str) -> InputError:
  return InputError(f"negatives.sources: {message}")
