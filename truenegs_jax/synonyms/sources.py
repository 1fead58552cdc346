"""Sources of synonym pairs, and expressions that combine them.

  wordnet pos=nv | pairs path=ppdb.tsv  the pairs of either
  vectors path=glove.txt & wordnet      the pairs of both; `&` binds tighter
  table path='my tables/saved.npz'      the pairs of a saved table
  model top=10 every=1000               the embeddings of the model in training

A source is a function `fn(vocabulary, **options)` that yields `(word, synonym)`
pairs: predicting `synonym` where `word` is gold counts as correct. Both are
different whole-word tokens of the vocabulary, compared with the entries of
files by `Vocabulary.match`, in the same order on every call. A call checks
options and files; the pairs are found on iteration. To add a source, write its
function here and list it in SOURCES: its parameters with a default are the
options of expressions.
"""

import dataclasses
import inspect
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from truenegs_jax.config import grammar
from truenegs_jax.data.corpus.files import File, stat_file
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import lexicons, table
from truenegs_jax.synonyms import wordnet as wordnet_lib
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import Vocabulary

Pairs = Iterable[tuple[str, str]]

PATHS = ("path", "folder")  # options that are paths


def wordnet(
  vocabulary: Vocabulary,
  *,
  folder: str = "",
  pos: str = "nvar",
  inflections: bool = False,
) -> Pairs:
  """Yields each token with the other tokens of its WordNet synsets.

  By default those of all parts of speech (paper, section "Hard Correction").
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
  path: str = "",
  top: int = 10,
  threshold: float = -1.0,
  symbols: bool = False,
) -> Pairs:
  """Yields each token with the tokens whose word vectors are nearest.

  The paper's footnote 9 uses the 10 nearest by GloVe 6B with 50 dimensions.
  """
  return lexicons.find_neighbours(
    vocabulary,
    _find_file("vectors", path),
    top=top,
    threshold=threshold,
    symbols=symbols,
  )


def pairs(vocabulary: Vocabulary, *, path: str = "") -> Pairs:
  """Yields the pairs of a file of synonyms or paraphrases, such as PPDB's."""
  file = _find_file("pairs", path)
  return lexicons.select_pairs(lexicons.read_pairs(file), vocabulary, file)


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
  all_pairs = lexicons.read_omw(file, pos=pos)
  return lexicons.select_pairs(all_pairs, vocabulary, file)


def saved_table(vocabulary: Vocabulary, *, path: str = "") -> Pairs:
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


def _find_file(source: str, path: str) -> File:
  if not os.path.isfile(path):
    raise InputError(
      f"source of synonyms: there is no file {path!r}. Set path= of {source};"
      " docs/reference/sources.md says which files it reads, and where they"
      " come from."
    )
  return stat_file(pathlib.Path(path))


class Source(NamedTuple):
  """A source in an expression: its name and all of its options."""

  name: str
  options: Mapping[str, Any]

  @property
  def paths(self) -> dict[str, str]:
    """The options that are paths and set."""
    return {key: self.options[key] for key in PATHS if self.options.get(key)}


@dataclasses.dataclass(frozen=True)
class ModelTable:
  """Options of the source "model", the nearest words by embeddings."""

  top: int = 10  # maximum number of neighbours of a word
  threshold: float = 0.5  # minimum cosine of a neighbour
  every: int = 1000  # steps between rebuilds of the table
  symbols: bool = False  # include punctuation, numbers and stop words


class Expression(NamedTuple):
  """A parsed expression of sources.

  Attributes:
    union: the operands of `|`, each a tuple of the operands of its `&`.
    identity: the expression in canonical form, with file names for paths.
    model: the source "model", which excludes others; then `union` is empty.
  """

  union: tuple[tuple[Source, ...], ...]
  identity: str
  model: ModelTable | None = None

  @property
  def sources(self) -> tuple[Source, ...]:
    """All sources, in the order of the expression."""
    return tuple(source for group in self.union for source in group)


def resolve_auto(text: str, language: str) -> str:
  """Returns the default sources of a language for "auto", other text as is."""
  default = "wordnet" if language == "en" else "omw"
  return default if text == "auto" else text


def parse_expression(
  text: str,
  *,
  key: str = "negatives.sources",
  language: str = "en",
  wordnet_dir: str = "",
) -> Expression:
  """Parses an expression without reading files.

  Args:
    text: the expression, or "auto".
    key: config key or flag of the expression, for errors.
    language: code of ISO 639-1, or "", of "auto" and `omw` without a path.
    wordnet_dir: folder of WordNet where the expression sets none.
  """
  defaults = {"language": language, "folder": wordnet_dir}
  union, identities = [], []
  for group in grammar.split(resolve_auto(text, language), "|", key=key):
    parts = [
      _parse_source(part, key, defaults)
      for part in grammar.split(group, "&", key=key)
    ]
    union.append(tuple(source for source, _ in parts))
    identities.append(" & ".join(identity for _, identity in parts))
  expression = Expression(tuple(union), " | ".join(identities))
  first, *others = expression.sources
  if "model" not in {source.name for source in expression.sources}:
    return expression
  if others:
    raise InputError(
      f"{key}={text!r}: the source model changes during training and cannot be"
      " combined. Use it alone."
    )
  model = ModelTable(**first.options)
  if model.top < 1 or model.every < 1 or not -1 <= model.threshold <= 1:
    raise InputError(
      f"{key}={text!r} is out of range. Set top and every to 1 or more, and"
      " threshold from -1 to 1."
    )
  return Expression((), expression.identity, model)


def check_sources(expression: Expression) -> None:
  """Checks options and files of all sources."""
  for source in expression.sources:
    SOURCES[source.name](Vocabulary(()), **source.options)


def find_pairs(expression: Expression, vocabulary: Vocabulary) -> Pairs:
  """Yields the pairs of an expression, none for the source "model"."""
  for group in expression.union:
    first, *others = (
      SOURCES[source.name](vocabulary, **source.options) for source in group
    )
    yield from set(first).intersection(*others) if others else first


def _parse_source(
  part: str, key: str, defaults: Mapping[str, str]
) -> tuple[Source, str]:
  """Parses one source; returns it and its canonical form.

  `defaults` are `language` and `folder`; the folder is not in the form.
  """
  name, texts = grammar.parse_item(part, key=key)
  errors.one_of(f"{key}: source", name, [*SOURCES, "model"])
  if name == "wordnet" and defaults["language"] not in ("", "en"):
    raise InputError(
      f"{key}: WordNet is English, and"
      f" data.language={defaults['language']!r}. {wordnet_lib.LEXICONS}"
    )
  parameters = inspect.signature(SOURCES.get(name, ModelTable)).parameters
  own = {k: p.default for k, p in parameters.items() if p.default != p.empty}
  if name == "omw" and not {"path", "language"} & texts.keys():
    texts["language"] = defaults["language"]
  options = grammar.Item(name, texts).convert(own, subject=f"{key}: {name}")
  changes = {k: x for k, x in sorted(options.items()) if x != own[k]}
  for option in PATHS & changes.keys():
    options[option] = os.path.expanduser(changes[option])
    changes[option] = pathlib.PurePath(changes[option]).name
  if "folder" in options:
    options["folder"] = options["folder"] or defaults["folder"]
  words = (
    (k, str(x).lower() if isinstance(x, bool) else x)
    for k, x in changes.items()
  )
  return Source(name, options), grammar.format_item(name, words)
