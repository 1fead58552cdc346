"""Parses sources of synonyms, and builds the table of a run.

wordnet senses=1, pairs path=ppdb.tsv  the pairs of either
table path='my tables/t.safetensors'   the pairs of a saved table
model top=10 every=1000                the embeddings of the model in training
teacher path=runs/mine                 a trained model, in context; no table
"""

import dataclasses
import functools
import inspect
import itertools
import os
import pathlib
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from truenegs_jax.config import grammar
from truenegs_jax.config.sections import Data, Negatives
from truenegs_jax.data.tokenizer import Tokenizer, read_tokens
from truenegs_jax.data.words import read_words
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import DataError, InputError, one_of
from truenegs_jax.runtime.text import read_lines
from truenegs_jax.synonyms import vocabulary as vocabulary_lib
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.sources import SOURCES, check_options
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import NUMBERS, STOP_WORDS, Vocabulary
from truenegs_jax.synonyms.wordnet import ALL_SENSES

NO_STOP_WORDS = "none"  # value of negatives.stop_words

# Share of a text's words below which a warning is due. English has 76 to 82 %
# with WordNet; French has 20 to 22 % with it, and 42 to 44 % with a thesaurus.
MIN_SHARE = 0.3
NUM_EXAMPLES = 8

# Languages and their files in NLTK's package `stopwords`.
NLTK_NAMES = """
ar=arabic az=azerbaijani be=belarusian bn=bengali ca=catalan da=danish de=german
el=greek es=spanish eu=basque fi=finnish fr=french he=hebrew hu=hungarian
id=indonesian it=italian kk=kazakh nb=norwegian ne=nepali nl=dutch no=norwegian
pt=portuguese ro=romanian ru=russian sl=slovene sq=albanian sv=swedish ta=tamil
tg=tajik tr=turkish zh=chinese
"""
NLTK_FILES = dict(pair.split("=") for pair in NLTK_NAMES.split())


class Source(NamedTuple):
  """A source of synonyms: its name, all of its options, canonical form."""

  name: str
  options: dict[str, Any]
  identity: str  # has file names for paths, and no defaults


@dataclasses.dataclass(frozen=True)
class ModelTable:
  """Options of the source "model", the nearest words by embeddings."""

  top: int = 10  # maximum number of neighbours of a word
  threshold: float = 0.5  # minimum cosine of a neighbour
  every: int = 1000  # steps between rebuilds of the table


@dataclasses.dataclass(frozen=True)
class TeacherOptions:
  """Options of the source "teacher", a trained masked language model."""

  path: str = ""  # a run, an export or released weights, as `config.init`
  top: int = 64  # maximum number of words that share a target
  temperature: float = 1.0  # divides the logits
  ratio: float = 0.5  # of the gold token's probability, for a synonym


# Sources without pairs.
IN_TRAINING = {"model": ModelTable, "teacher": TeacherOptions}


def resolve_auto(text: str, language: str) -> str:
  """Returns the default sources of a language for "auto", other text as is."""
  default = "wordnet" if language == "en" else "omw"
  return default if text == "auto" else text


@dataclasses.dataclass(frozen=True)
class TableRequest:
  """Settings that, with the vocabulary, determine a synonym table."""

  sources: str = "auto"  # a list, in the grammar of `config.grammar`
  key: str = "negatives.sources"  # config key of `sources`, for errors
  language: str = "en"  # ISO 639-1; "" for no default sources and stop words
  stop_words: str = ""  # file, or NO_STOP_WORDS; "" for the language's own
  symmetric: bool = False  # add the reverse of every pair

  @functools.cached_property
  def parsed(self) -> list[Source]:
    """The sources, whose pairs are joined; reads no file."""
    text = resolve_auto(self.sources, self.language)
    items = grammar.parse_items(text, key=self.key) or [grammar.Item("", {})]
    parsed = [self._parse(item) for item in items]
    alone = [source.name for source in parsed if source.name in IN_TRAINING]
    if len(parsed) > 1 and alone:
      raise InputError(
        f"{self.key}={text!r}: the source {alone[0]} depends on the rows in"
        " training and cannot be combined. Use it alone."
      )
    return parsed

  @property
  def identity(self) -> str:
    """The list in canonical form, with file names for paths."""
    return ", ".join(source.identity for source in self.parsed)

  @functools.cached_property
  def model(self) -> ModelTable | None:
    """The options of the source "model", or None."""
    first = self.parsed[0]
    if first.name != "model":
      return None
    model = ModelTable(**first.options)
    check_options(
      first.identity, model.top, model.every, threshold=model.threshold
    )
    return model

  @functools.cached_property
  def teacher(self) -> TeacherOptions | None:
    """The options of the source "teacher", or None."""
    first = self.parsed[0]
    if first.name != "teacher":
      return None
    teacher = TeacherOptions(**first.options)
    check_options(first.identity, teacher.top)
    if not (teacher.path and teacher.temperature > 0 and teacher.ratio > 0):
      raise InputError(
        f"{self.key}={self.sources!r} needs a path, and temperature and ratio"
        f" above 0. Set --config.{self.key}='teacher path=FOLDER'."
      )
    return teacher

  @property
  def leaves_senses_out(self) -> bool:
    """Whether a source takes only the frequent senses, and so fewer words."""
    senses = [x.options.get("senses", ALL_SENSES) for x in self.parsed]
    return min(senses) < ALL_SENSES

  def load_stop_words(self) -> frozenset[str]:
    """Returns the words without lists, each also without its accents."""
    if self.stop_words == NO_STOP_WORDS:
      return frozenset()
    if self.stop_words:
      lines = _read_file(self.stop_words)
    elif self.language == "en":
      return STOP_WORDS
    elif self.language:
      lines = _read_nltk(self.language)
    else:
      return frozenset()
    words = frozenset(line.strip().lower() for line in lines) - {""}
    decomposed = (unicodedata.normalize("NFD", word) for word in words)
    return words | {
      "".join(c for c in word if unicodedata.category(c) != "Mn")
      for word in decomposed
    }

  @property
  def no_neighbours(self) -> frozenset[str]:
    """The words that have no nearest neighbours by vectors, and are none."""
    numbers = NUMBERS if self.language == "en" else frozenset[str]()
    return numbers | self.load_stop_words()

  def check(self) -> None:
    """Checks sources, files and stop words without building the table."""
    if self.teacher:
      return
    if not self.model:
      self.find_pairs(Vocabulary(()))
    self.load_stop_words()

  def find_pairs(self, vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """Returns the pairs of all sources, none of which is in IN_TRAINING."""
    lists = [SOURCES[x.name](vocabulary, **x.options) for x in self.parsed]
    return itertools.chain(*lists)

  def build(self, tokenizer: Any) -> SynonymTable:
    """Builds the table of a vocabulary."""
    if self.model or self.teacher:
      raise InputError(
        f"{self.key}={self.sources!r}: the source {self.parsed[0].name} has no"
        " pairs but those in training. Use other sources."
      )
    tokens, normalize = read_tokens(tokenizer)
    normalize = functools.cache(normalize)  # a word has many pairs
    return SynonymTable.from_pairs(
      self.find_pairs(Vocabulary(tokens, normalize, self.no_neighbours)),
      tokens,
      source=self.identity,
      stop_words=self.load_stop_words(),
      symmetric=self.symmetric,
    )

  def _parse(self, item: grammar.Item) -> Source:
    """Checks the name of a source, and converts its options."""
    name = item.name
    texts = dict(item.options)
    one_of(f"{self.key}: source", name, [*SOURCES, *IN_TRAINING])
    if name == "wordnet" and self.language not in ("", "en"):
      raise InputError(
        f"{self.key}: WordNet is English, and data.language={self.language!r}."
        f" {wordnet.LEXICONS}"
      )
    if name == "omw" and not {"path", "language"} & texts.keys():
      texts["language"] = self.language
    source = SOURCES.get(name) or IN_TRAINING[name]
    params = inspect.signature(source).parameters
    defaults = {k: p.default for k, p in params.items() if p.default != p.empty}
    item = grammar.Item(name, texts)
    options = item.convert(defaults, subject=f"{self.key}: {name}")
    changes = {k: x for k, x in sorted(options.items()) if x != defaults[k]}
    changes |= {k: "true" for k, x in changes.items() if x is True}
    if "path" in changes:
      options["path"] = os.path.expanduser(changes["path"])
      changes["path"] = pathlib.PurePath(changes["path"]).name
    return Source(name, options, grammar.format_item(name, changes.items()))


def _read_file(path: str) -> list[str]:
  """Reads a file of stop words."""
  path = os.path.expanduser(path)
  if not os.path.isfile(path):
    raise InputError(
      f"negatives.stop_words={path!r} is no file. Set it to a UTF-8 file with"
      " one word per line, or to 'none'."
    )
  return [line for _, line in read_lines(path)]


def _read_nltk(language: str) -> list[str]:
  """Reads a language's stop words in NLTK's package."""
  fix = (
    "If NLTK has a list of data.language, run `python -m nltk.downloader"
    " stopwords`. Or set --config.negatives.stop_words=FILE, with one word per"
    " line, or to none."
  )
  name = NLTK_FILES.get(language, language)
  return wordnet.read_package("stopwords", name, fix).splitlines()


def build_table(
  tokenizer: Any,
  sources: str = "wordnet",
  *,
  language: str = "en",
  stop_words: str = "",
  symmetric: bool = False,
) -> SynonymTable:
  """Builds the table of a vocabulary from WordNet or other sources.

  >>> tokenizer = load_tokenizer("rows/vocab.txt", lowercase=True)
  >>> table = build_table(tokenizer, "pairs path=pairs.tsv")
  >>> table.synonyms("main")
  ['primary']

  Args:
    tokenizer: a `Tokenizer`, or a fast one of transformers: its tokens, and
      how it writes words.
    sources: as in `config.negatives.sources`.
    language: of the vocabulary, a code of ISO 639-1.
    stop_words: as in `config.negatives.stop_words`; they have no lists.
    symmetric: add the reverse of every pair.

  Raises:
    InputError, DataError: malformed sources; a file or WordNet is missing; a
      tokenizer that is not fast.
  """
  request = TableRequest(sources, "sources", language, stop_words, symmetric)
  return request.build(tokenizer)


def load_or_build(
  request: TableRequest,
  tokenizer: Tokenizer,
  *,
  saved: pathlib.Path | None,
  console: Console,
) -> SynonymTable:
  """Returns a run's saved table, else a new one.

  `saved` is the file of the table that a resumed run was trained with, valid
  even if the files that it was built from have changed; None for new runs. A
  table of another vocabulary or other options is ignored: checkpoints decide
  whether the run may be resumed.
  """
  if saved and saved.exists():
    try:
      loaded = SynonymTable.load(saved, tokenizer.vocab)
      if _fits(loaded, request):
        return loaded
    except DataError as e:
      console.print(f"warning: not used: {e}", soft_wrap=True)
  with progress.working(console, "Looking up synonyms"):
    return request.build(tokenizer)


def _fits(table: SynonymTable, request: TableRequest) -> bool:
  """Whether a saved table has the options and the sources of a request."""
  try:
    words = request.load_stop_words()
    stop_words: Any = vocabulary_lib.fingerprint(words)
  except (InputError, DataError):  # lost since the table was built
    stop_words = table.options.get("stop_words")
  options = {"stop_words": stop_words, "symmetric": request.symmetric}
  return table.source == request.identity and table.options == options


def describe_text(
  request: TableRequest, table: SynonymTable, counts_V: np.ndarray
) -> tuple[str, str]:
  """Describes how many of a text's words have synonyms.

  `counts_V` are the occurrences of the tokens in the text. Returns the line of
  a report, and a warning, "" for none.
  """
  try:
    stops = request.load_stop_words()
  except (InputError, DataError):  # lost since the table was built
    stops = STOP_WORDS
  words = read_words(table.tokens)
  has_letter_V = [any(map(str.isalpha, word)) for word in words.words]
  counts_V = counts_V * has_letter_V * (words.classes_V % 2)
  counts_V *= vocabulary_lib.may_have_synonyms(table.tokens, stops)
  uncovered_V = np.where(table.lengths_V > 0, 0, counts_V)
  order = np.argsort(-uncovered_V, kind="stable")[:NUM_EXAMPLES]
  num_words = counts_V.sum()
  share = (num_words - uncovered_V.sum()) / num_words if num_words else 1.0
  names = ", ".join(words.texts[i] for i in order if uncovered_V[i]) or "none"
  line = (
    f"{share:.1%} of its tokens have synonyms (not counted: stop words,"
    f" symbols, pieces); frequent ones without: {names}"
  )
  if share >= MIN_SHARE or request.leaves_senses_out:
    return line, ""
  return line, (
    f"{request.key}={request.sources!r} has synonyms for only"
    f" {share:.1%} of the text's tokens, none for {names}. Corrections will"
    " be rare. Use sources, such as 'pairs path=FILE', and a vocabulary of the"
    " text's language."
  )


def make_request(negatives: Negatives, data: Data) -> TableRequest:
  """Makes the request for the synonym table of a config."""
  return TableRequest(
    sources=negatives.sources,
    language=data.language,
    stop_words=negatives.stop_words,
    symmetric=negatives.smoothing_by == "balanced",
  )
