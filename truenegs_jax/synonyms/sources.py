"""Sources of synonym pairs, and expressions that combine them.

  wordnet pos=nv | pairs path=ppdb.tsv  the pairs of either
  vectors path=glove.txt & wordnet      the pairs of both; `&` binds tighter
  table path=saved.npz                  the pairs of a saved table
  model top=10 every=1000               the embeddings of the model in training

A source is a function `fn(vocabulary, **options)` that yields `(word, synonym)`
pairs: predicting `synonym` where `word` is gold counts as correct. Both are
different whole-word tokens of the vocabulary, compared with the entries of
files by `Vocabulary.match`, in the same order on every call. A call checks
options and files; the pairs are found on iteration. To add a source, write its
function here and list it in SOURCES.

Options are written `name=value`: the keyword-only parameters of the function,
converted by their annotations. In a path, write `?` for a space, `|` or `&`.
"""

import dataclasses
import glob
import inspect
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from truenegs_jax.data.corpus.files import File, stat_file
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import lexicons, table
from truenegs_jax.synonyms import wordnet as wordnet_lib
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import Vocabulary
from truenegs_jax.synonyms.word_vectors import find_neighbours

Value = str | int | float | bool
Pairs = Iterable[tuple[str, str]]

PATHS = ("path", "folder")  # options that are paths
PATH_HINT = (
  "In a path, write ? for a space, | or &, without quotes or brackets."
)
KINDS = {str: "a word", int: "a whole number", float: "a number"}
KINDS[bool] = "true or false"


def wordnet(
  vocabulary: Vocabulary,
  *,
  folder: str = "",
  pos: str = "nvar",
  inflections: bool = False,
) -> Pairs:
  """Yields each token with the other tokens of its WordNet synsets.

  The synonyms of a token are the lemma names of all its synsets in any part of
  speech (paper, section "Hard Correction") that are tokens.
  """
  pos = wordnet_lib.parse_parts_of_speech(pos)
  wordnet_lib.find_wordnet(folder)

  def find() -> Pairs:
    with wordnet_lib.session(folder) as reader:
      yield from wordnet_lib.find_pairs(
        vocabulary, reader, pos=pos, inflections=inflections
      )

  return find()


def vectors(
  vocabulary: Vocabulary,
  *,
  path: str,
  top: int = 10,
  threshold: float = -1.0,
  symbols: bool = False,
) -> Pairs:
  """Yields each token with the tokens whose word vectors are nearest.

  The paper's footnote 9 uses the 10 nearest by GloVe 6B with 50 dimensions.
  """
  return find_neighbours(
    vocabulary,
    _find_file("vectors", path),
    top=top,
    threshold=threshold,
    symbols=symbols,
  )


def pairs(vocabulary: Vocabulary, *, path: str) -> Pairs:
  """Yields the pairs of a file of synonyms or paraphrases, such as PPDB's."""
  file = _find_file("pairs", path)
  _, all_pairs = lexicons.peek(lexicons.read_pairs(file), file)
  return lexicons.select_pairs(all_pairs, vocabulary, file)


def omw(
  vocabulary: Vocabulary,
  *,
  path: str = "",
  language: str = "",
  pos: str = "nvar",
) -> Pairs:
  """Yields each token with the other tokens of its synsets in another language.

  Without `path`, the file is that of `language` in NLTK's package `omw-1.4`.
  """
  pos = wordnet_lib.parse_parts_of_speech(pos)
  file = _find_file("omw", path or str(wordnet_lib.find_omw(language)))
  _, all_pairs = lexicons.peek(lexicons.read_omw(file, pos=pos), file)
  return lexicons.select_pairs(all_pairs, vocabulary, file)


def saved_table(vocabulary: Vocabulary, *, path: str) -> Pairs:
  """Yields the pairs of a table that was saved for the same vocabulary.

  Without tokens, a table of any vocabulary is accepted.
  """
  _find_file("table", path)
  tokens = vocabulary.tokens
  if not tokens:
    table.read_file(path)
    return iter(())
  keys = SynonymTable.load(path, tokens).keys_Q.tolist()
  ids = (divmod(key, len(tokens)) for key in keys)
  return ((tokens[a], tokens[b]) for a, b in ids if a != b)


SOURCES: dict[str, Callable[..., Pairs]] = {
  "wordnet": wordnet,
  "vectors": vectors,
  "pairs": pairs,
  "omw": omw,
  "table": saved_table,
}


# What the option path= of each source names, and where it comes from.
FILES = {
  "vectors": "word vectors, such as glove.6B.50d.txt from glove.6B.zip of"
  " https://nlp.stanford.edu/projects/glove",
  "pairs": "a thesaurus, such as th_en_US_v2.dat of Debian's mythes-en-us; a"
  " file of http://paraphrase.org; or lines such as `word<TAB>synonym`",
  "omw": "a wordnet, such as wn-data-fra.tab from https://omwn.org",
  "table": "a table saved by `python -m truenegs_jax.synonyms --output`",
}


def _find_file(source: str, path: str) -> File:
  location = os.path.expanduser(path)
  if not os.path.isfile(location):
    raise InputError(
      f"source of synonyms: there is no file {path!r}. Set path= to"
      f" {FILES[source]}."
    )
  return stat_file(pathlib.Path(location))


@dataclasses.dataclass(frozen=True)
class SynonymSource:
  """A source in an expression: its name and the options that are set."""

  name: str
  options: Mapping[str, Value]

  @property
  def paths(self) -> dict[str, str]:
    """The options that are paths, as written."""
    return {key: str(self.options[key]) for key in PATHS if key in self.options}


@dataclasses.dataclass(frozen=True)
class ModelTable:
  """Options of the source "model": nearest words by the embeddings in training.

  Attributes:
    top: maximum number of neighbours of a word, at least 1.
    threshold: minimum cosine of a neighbour, -1 to 1.
    every: number of steps between rebuilds of the table, at least 1.
    symbols: include punctuation, numbers and stop words.
  """

  top: int = 10
  threshold: float = 0.5
  every: int = 1000
  symbols: bool = False


@dataclasses.dataclass(frozen=True)
class Expression:
  """A parsed expression of sources.

  Attributes:
    union: the operands of `|`, each a tuple of the operands of its `&`.
    model: the source "model", which excludes others; then `union` is empty.
  """

  union: tuple[tuple[SynonymSource, ...], ...]
  model: ModelTable | None = None

  @property
  def identity(self) -> str:
    """The expression in canonical form, with file names instead of paths."""
    if self.model:
      return _format_source(SynonymSource("model", vars(self.model)))
    groups = [" & ".join(map(_format_source, group)) for group in self.union]
    return " | ".join(groups)

  @property
  def sources(self) -> tuple[SynonymSource, ...]:
    """All sources, in the order of the expression."""
    return tuple(source for group in self.union for source in group)


def resolve_auto(text: str, language: str) -> str:
  """Returns the default sources of a language for "auto", other text as is."""
  default = "wordnet" if language == "en" else "omw"
  return default if text == "auto" else text


def parse_expression(
  text: str, *, key: str = "negatives.sources", language: str = "en"
) -> Expression:
  """Parses an expression without reading files.

  Errors name `key`, the config key or flag of the expression. `language` is a
  code of ISO 639-1 or "": that of "auto" and of `omw` without a path.

  Raises:
    InputError: the expression has an empty part; a source or option is unknown
      or does not fit the language; an option is missing, repeated or wrong.
  """
  setting = f"{key}={text!r}"
  union = tuple(
    tuple(_parse_source(part, setting, language) for part in group.split("&"))
    for group in resolve_auto(text, language).split("|")
  )
  expression = Expression(union)
  first, *others = expression.sources
  if "model" not in {source.name for source in expression.sources}:
    return expression
  if others:
    raise InputError(
      f"{setting}: the source model changes during training and cannot be"
      " combined. Use it alone."
    )
  options: dict[str, Any] = dict(first.options)
  model = ModelTable(**options)
  if model.top < 1 or model.every < 1 or not -1 <= model.threshold <= 1:
    raise InputError(
      f"{setting} is out of range. Set top and every to 1 or more, and"
      " threshold from -1 to 1."
    )
  return Expression((), model)


def check_sources(expression: Expression, *, wordnet_dir: str = "") -> None:
  """Checks options and beginnings of files of all sources."""
  for source in expression.sources:
    options = resolve_options(source, wordnet_dir=wordnet_dir)
    SOURCES[source.name](Vocabulary(()), **options)


def find_pairs(
  expression: Expression, vocabulary: Vocabulary, *, wordnet_dir: str = ""
) -> Pairs:
  """Yields the pairs of an expression, none for the source "model".

  `wordnet_dir` is the folder of WordNet where the expression sets none.
  """
  for group in expression.union:
    first, *others = (
      SOURCES[s.name](vocabulary, **resolve_options(s, wordnet_dir=wordnet_dir))
      for s in group
    )
    yield from set(first).intersection(*others) if others else first


def resolve_options(
  source: SynonymSource, *, wordnet_dir: str = ""
) -> dict[str, Value]:
  """Returns the arguments of a source's function, with paths that exist."""
  paths = {key: str(resolve_path(path)) for key, path in source.paths.items()}
  if source.name == "wordnet":
    paths.setdefault("folder", wordnet_dir)
  return {**source.options, **paths}


def resolve_path(path: str) -> pathlib.Path:
  """Returns the path that `path` of an expression stands for.

  Raises:
    InputError: several existing files match its `?`.
  """
  literal = os.path.expanduser(path)
  pattern = "[ |&?]".join(map(glob.escape, literal.split("?")))
  matches = sorted(glob.glob(pattern))
  if os.path.exists(literal) or not matches:
    return pathlib.Path(literal)
  if len(matches) > 1:
    raise InputError(
      f"source of synonyms: {path!r} may be {matches[0]!r} or {matches[1]!r}."
      " Rename one of them."
    )
  return pathlib.Path(matches[0])


def _parse_source(part: str, setting: str, language: str) -> SynonymSource:
  """Parses one source; errors begin with `setting`, `key='expression'`."""
  if not part.split():
    raise InputError(
      f"{setting} has an empty part. Separate sources by | or &, such as"
      " 'wordnet | pairs path=ppdb.tsv'."
    )
  name, *words = part.split()
  names = sorted([*SOURCES, "model"])
  if name == "wordnet" and language not in ("", "en"):
    raise InputError(
      f"{setting}: WordNet is English, and data.language={language!r}."
      f" {wordnet_lib.LEXICONS}"
    )
  if name not in names:
    raise InputError(
      f"{setting}: there is no source {name!r}. Choose from {', '.join(names)}."
      f" {PATH_HINT}"
    )
  parameters = _parameters(name)
  options: dict[str, Value] = {}
  for word in words:
    option = word.partition("=")[0]
    if option in options:
      raise InputError(f"{setting} sets {option}= twice. Remove one.")
    if option not in parameters:
      raise InputError(
        f"{setting}: {word!r} is not an option of {name}. Choose from"
        f" {', '.join(f'{p}=' for p in parameters)}. {PATH_HINT}"
      )
    options[option] = _convert(word, parameters[option].annotation, setting)
  for option, parameter in parameters.items():
    if parameter.default is parameter.empty and option not in options:
      raise InputError(
        f"{setting}: {name} needs {option}=. Write '{name} {option}=...'."
      )
  if name == "omw" and language and not {"path", "language"} & options.keys():
    options["language"] = language
  return SynonymSource(name, options)


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
  """Returns the parameters of a source that are options in an expression."""
  parameters = inspect.signature(SOURCES.get(name, ModelTable)).parameters
  return {k: p for k, p in parameters.items() if p.annotation in KINDS}


def _convert(word: str, kind: type, setting: str) -> Value:
  value = word.partition("=")[2]
  try:
    if kind is bool:
      return {"true": True, "false": False}[value]
    converted = kind(value)
    if value and (kind is not float or math.isfinite(converted)):
      return converted
  except (KeyError, ValueError):
    pass
  raise InputError(f"{setting}: {word!r} is wrong. Use {KINDS[kind]}.")


def _format_source(source: SynonymSource) -> str:
  """Formats a source without defaults, options in alphabetical order."""
  words, parameters = [source.name], _parameters(source.name)
  for key, value in sorted(source.options.items()):
    if value != parameters[key].default:
      text = str(value).lower() if isinstance(value, bool) else str(value)
      if key in PATHS:
        text = pathlib.PurePath(text).name
      words.append(f"{key}={text}")
  return " ".join(words)
