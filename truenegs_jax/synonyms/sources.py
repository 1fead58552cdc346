"""Where synonyms come from: named sources, and expressions over them.

  wordnet pos=nv | pairs path=ppdb.tsv  the pairs of either
  vectors path=glove.txt & wordnet      those of both; `&` binds tighter
  table path=saved.npz                  those of a saved table
  model top=10 every=1000               the embeddings that are being trained

A source is a function `fn(tokens, **options)` that yields `(word, synonym)`
pairs: if a model that should say `word` says `synonym`, it is not wrong. Both
are whole-word tokens of the vocabulary and differ; the order is the same on
every call. Options and files are checked when it is called, the rest is done
when pairs are requested. To add a source, write it here and name it in SOURCES.

In an expression, options are written `name=value`: the keyword-only parameters
of the function, converted as they are annotated. In a path a space, `|` or `&`
is written `?`.
"""

import contextlib
import dataclasses
import glob
import inspect
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from truenegs_jax.data.corpus.files import File, stat_file
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import lexicons, table
from truenegs_jax.synonyms import wordnet as wordnet_lib
from truenegs_jax.synonyms.stop_words import is_word
from truenegs_jax.synonyms.word_vectors import find_neighbours

Value = str | int | float | bool
Pairs = Iterable[tuple[str, str]]

PATHS = ("path", "folder")  # options that name a place on the disk
IN_PATHS = "(in a path a space, | or & is written ?, without quotes)"
KINDS = {
  str: "a word",
  int: "a whole number",
  float: "a number",
  bool: "true or false",
}


def wordnet(
  tokens: Sequence[str],
  *,
  folder: str = "",
  pos: str = "nvar",
  inflections: bool = False,
  reader: Any = None,
) -> Iterator[tuple[str, str]]:
  """Yields each token with the other tokens of its WordNet synsets.

  The synonyms of a token are the lemma names of all its synsets, whatever the
  part of speech (paper, section "Hard Correction"), as far as they are tokens.

  Args:
    tokens: the vocabulary, token `i` at position `i`.
    folder: where WordNet is, see `open_wordnet`.
    pos: parts of speech: n, v, a (with s), r, or several such as "nv".
    inflections: also the inflected forms of the lemmas (homes for house).
    reader: a WordNet opened by `open_wordnet`; None opens the one of `folder`.

  Yields:
    (word, synonym), in the order of `tokens`, synonyms sorted.

  Raises:
    InputError: as `parts_of_speech` and `find_wordnet`, at once.
    DataError: as `open_wordnet` and `wordnet.pairs`.
  """
  pos = wordnet_lib.parse_parts_of_speech(pos)
  if reader is None:
    wordnet_lib.find_wordnet(folder)

  def look_up() -> Iterator[tuple[str, str]]:
    given = contextlib.nullcontext(reader)
    with given if reader is not None else wordnet_lib.session(folder) as opened:
      yield from wordnet_lib.find_pairs(
        list(filter(is_word, tokens)), opened, pos=pos, inflections=inflections
      )

  return look_up()


def vectors(
  tokens: Sequence[str],
  *,
  path: str,
  top: int = 10,
  threshold: float = -1.0,
  among: str = "vocabulary",
) -> Iterator[tuple[str, str]]:
  """Yields each token with the tokens whose word vectors are most like its own.

  The paper's footnote 9 takes 10 by the vectors GloVe 6B of 50 dimensions. For
  arguments, order and errors see `word_vectors.neighbours`.
  """
  file = find_file(
    path,
    "word vectors, such as glove.6B.50d.txt from glove.6B.zip of"
    " https://nlp.stanford.edu/projects/glove",
  )
  words = filter(is_word, tokens)
  return find_neighbours(words, file, top=top, threshold=threshold, among=among)


def pairs(tokens: Sequence[str], *, path: str) -> Iterator[tuple[str, str]]:
  """Yields the pairs of a file of synonyms or paraphrases, such as PPDB's.

  For formats, order and errors see `lexicons.read_pairs`.
  """
  file = find_file(path, "pairs of words, such as lines of `word<TAB>synonym`")
  words = filter(is_word, tokens)
  return lexicons.select_pairs(words, lexicons.read_pairs(file), file)


def omw(
  tokens: Sequence[str], *, path: str, pos: str = "nvar"
) -> Iterator[tuple[str, str]]:
  """Yields each token with those of its synsets in a WordNet of its language.

  For the format, order and errors see `lexicons.read_omw`; `pos` is as in the
  source "wordnet".
  """
  pos = wordnet_lib.parse_parts_of_speech(pos)
  file = find_file(
    path,
    "the Open Multilingual WordNet, such as wn-data-fra.tab from"
    " https://omwn.org",
  )
  words = filter(is_word, tokens)
  return lexicons.select_pairs(words, lexicons.read_omw(file, pos=pos), file)


def saved_table(
  tokens: Sequence[str], *, path: str
) -> Iterator[tuple[str, str]]:
  """Yields the pairs of a table that was saved for the same vocabulary.

  Raises:
    InputError: there is no such file.
    DataError: as `load_table`; without tokens any vocabulary is accepted.
  """
  find_file(path, "a table, saved by python -m truenegs_jax.synonyms --output")
  if not tokens:
    table.check_file(path)
    return iter(())
  keys = table.load_table(path, tokens).keys_Q.tolist()
  ids = (divmod(key, len(tokens)) for key in keys)
  return ((tokens[a], tokens[b]) for a, b in ids if a != b)


SOURCES: dict[str, Callable[..., Pairs]] = {
  "wordnet": wordnet,
  "vectors": vectors,
  "pairs": pairs,
  "omw": omw,
  "table": saved_table,
}


def find_file(path: str, content: str) -> File:
  """The file that an option `path` names.

  Args:
    content: what the file should hold, for the error.

  Raises:
    InputError: there is no such file.
    DataError: it is of a kind that is not read, see `files.describe`.
  """
  location = os.path.expanduser(path)
  if not os.path.isfile(location):
    raise InputError(
      f"source of synonyms: there is no file {path!r}; give, by path=, a file"
      f" of {content}."
    )
  return stat_file(pathlib.Path(location))


@dataclasses.dataclass(frozen=True)
class Source:
  """A name in `SOURCES` and the options that were given."""

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
    top: the most neighbours of a word, at least 1.
    threshold: the least cosine of a neighbour, -1 to 1.
    every: steps after which the table is made anew, at least 1.
  """

  top: int = 10
  threshold: float = 0.5
  every: int = 1000


@dataclasses.dataclass(frozen=True)
class Expression:
  """A parsed expression.

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


def parse_expression(
  text: str, *, key: str = "negatives.sources"
) -> Expression:
  """Parses an expression; no file is looked at.

  Args:
    key: the config key or flag that it is the value of, for errors.

  Raises:
    InputError: an empty part, brackets, an unknown source or option, one that
      is missing, given twice or of an impossible value.
  """
  if not isinstance(text, str):
    raise InputError(
      f"{key}: {text!r} is no text; give sources such as 'wordnet'."
    )
  union = tuple(
    tuple(_parse_source(part, text, key) for part in both.split("&"))
    for both in text.split("|")
  )
  models = [s for both in union for s in both if s.name == "model"]
  if not models:
    return Expression(union)
  if union != ((models[0],),):
    raise InputError(
      f"{key}: {text!r}: the source model changes with the training and stands"
      " alone."
    )
  options: dict[str, Any] = dict(models[0].options)
  model = ModelTable(**options)
  if model.top < 1 or model.every < 1 or not -1 <= model.threshold <= 1:
    raise InputError(
      f"{key}: {text!r}: top and every must be at least 1, threshold from -1"
      " to 1."
    )
  return Expression((), model)


def check_sources(spec: Expression, *, wordnet_dir: str = "") -> None:
  """Lets every source refuse its options, as far as no vocabulary is needed.

  Of files it is checked that they exist and how they begin.

  Args:
    wordnet_dir: as of `find_pairs`.

  Raises:
    InputError, DataError: as the sources.
  """
  for one in spec.sources:
    SOURCES[one.name]((), **resolve_options(one, wordnet_dir=wordnet_dir))


def find_pairs(
  spec: Expression, tokens: Sequence[str], *, wordnet_dir: str = ""
) -> Pairs:
  """Yields the pairs of an expression, none for the source "model".

  Args:
    tokens: the vocabulary, token `i` at position `i`.
    wordnet_dir: `folder` of the source "wordnet" where that is not given.

  Raises:
    InputError, DataError: as the sources.
  """
  for both in spec.union:
    first, *others = (
      SOURCES[one.name](tokens, **resolve_options(one, wordnet_dir=wordnet_dir))
      for one in both
    )
    yield from set(first).intersection(*others) if others else first


def resolve_options(one: Source, *, wordnet_dir: str = "") -> dict[str, Value]:
  """The options of a source as its function takes them: see `resolve_path`."""
  places = {key: str(resolve_path(path)) for key, path in one.paths.items()}
  if one.name == "wordnet":
    places.setdefault("folder", wordnet_dir)
  return {**one.options, **places}


def resolve_path(path: str) -> pathlib.Path:
  """The place that a path of an expression names; nothing need be there.

  Raises:
    InputError: its `?` stand for more than one.
  """
  place = os.path.expanduser(path)
  pattern = "[ |&?]".join(map(glob.escape, place.split("?")))
  matches = [place] if os.path.exists(place) else sorted(glob.glob(pattern))
  if len(matches) > 1:
    raise InputError(
      f"source of synonyms: {path!r} may be {matches[0]!r} or {matches[1]!r};"
      " rename one."
    )
  return pathlib.Path(*matches or [place])


def _parse_source(part: str, text: str, key: str) -> Source:
  """One part of the expression `text`."""
  if not part.split():
    raise InputError(
      f"{key}: {text!r} has an empty part; give sources separated by | or &,"
      " such as 'wordnet | pairs path=ppdb.tsv'."
    )
  name, *words = part.split()
  if name.startswith("("):
    raise InputError(
      f"{key}: {text!r}: there are no brackets; & binds tighter than |, so"
      " write 'a & c | b & c' for '(a | b) & c'."
    )
  if name not in (*SOURCES, "model"):
    known = ", ".join(sorted([*SOURCES, "model"]))
    raise InputError(
      f"{key}: there is no source {name!r}; known: {known} {IN_PATHS}."
    )
  parameters = _parameters(name)
  options: dict[str, Value] = {}
  for word in words:
    option, _, value = word.partition("=")
    if option in options:
      raise InputError(f"{key}: {part.strip()!r}: {option}= is given twice.")
    if option not in parameters:
      raise InputError(
        f"{key}: {part.strip()!r}: {word!r} is no option of {name}; known:"
        f" {', '.join(f'{p}=' for p in parameters)} {IN_PATHS}."
      )
    options[option] = _convert(word, value, parameters[option].annotation, key)
  for option, parameter in parameters.items():
    if parameter.default is parameter.empty and option not in options:
      raise InputError(f"{key}: {part.strip()!r}: {name} needs {option}=...")
  return Source(name, options)


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
  """The options of a source that can be given in an expression."""
  parameters = inspect.signature(SOURCES.get(name, ModelTable)).parameters
  return {k: p for k, p in parameters.items() if p.annotation in KINDS}


def _convert(word: str, value: str, kind: type, key: str) -> Value:
  if value[:1] in ("'", '"'):
    raise InputError(f"{key}: {word!r}: leave out the quotes {IN_PATHS}.")
  booleans = {"true": True, "false": False}
  try:
    converted = booleans[value] if kind is bool else kind(value)
    if not value or kind is float and not math.isfinite(converted):
      raise ValueError
  except (KeyError, ValueError):
    raise InputError(f"{key}: {word!r}: give {KINDS[kind]}.") from None
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
