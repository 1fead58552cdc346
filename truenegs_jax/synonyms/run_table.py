"""Builds or loads the synonym table of a run, and says how much it covers."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime import cache, progress
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.files import short_sha256
from truenegs_jax.synonyms import sources as sources_lib
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.table import SynonymTable, vocabulary_fingerprint
from truenegs_jax.synonyms.vocabulary import (
  NUMBERS,
  STOP_WORDS,
  Vocabulary,
  fingerprint,
  may_have_synonyms,
)

SWITCHES = ("keep_stop_words", "symmetric", "include_self")

# Part of the name in the cache. Increase it when the code of a source changes
# so that it yields other pairs from the same files.
RECIPE = 2

# Share of a text's words below which a warning is due. English has 76 to 82 %
# with WordNet; French has 20 to 22 % with it, and 42 to 44 % with a thesaurus.
MIN_SHARE = 0.3
NUM_EXAMPLES = 8

# Languages and their files in NLTK's package `stopwords`.
NLTK_NAMES = """
ar arabic az azerbaijani be belarusian bn bengali ca catalan da danish de german
el greek es spanish eu basque fi finnish fr french he hebrew hu hungarian
id indonesian it italian kk kazakh nb norwegian ne nepali nl dutch no norwegian
pt portuguese ro romanian ru russian sl slovene sq albanian sv swedish ta tamil
tg tajik tr turkish zh chinese
"""
NLTK_FILES = dict(zip(*[iter(NLTK_NAMES.split())] * 2, strict=True))


@dataclasses.dataclass(frozen=True)
class TableRequest:
  """Settings that, with the vocabulary, determine a synonym table."""

  sources: str  # expression of sources
  key: str = "negatives.sources"  # config key of `sources`, for errors
  language: str = "en"  # ISO 639-1; "" for no default sources and stop words
  wordnet_dir: str = ""  # of WordNet where the expression sets none
  stop_words: str = ""  # file; "" for the language's own
  keep_stop_words: bool = False
  symmetric: bool = False
  include_self: bool = False

  @functools.cached_property
  def expression(self) -> sources_lib.Expression:
    """The parsed sources; raises InputError if they are malformed."""
    return sources_lib.parse_expression(
      self.sources,
      key=self.key,
      language=self.language,
      wordnet_dir=self.wordnet_dir,
    )

  @property
  def switches(self) -> dict[str, bool]:
    """The options of `SynonymTable.from_pairs` that are on or off."""
    return {name: getattr(self, name) for name in SWITCHES}

  def load_stop_words(self) -> frozenset[str]:
    """Returns the words without lists."""
    return load_stop_words(
      self.stop_words, language=self.language, optional=self.keep_stop_words
    )

  @property
  def no_neighbours(self) -> frozenset[str]:
    """The words that have no nearest neighbours by vectors, and are none."""
    numbers = NUMBERS if self.language == "en" else frozenset[str]()
    return numbers if self.keep_stop_words else numbers | self.load_stop_words()


def load_stop_words(
  path: str, *, language: str = "en", optional: bool = False
) -> frozenset[str]:
  """Returns stop words in lower case, each also without its accents.

  Args:
    path: UTF-8 text with one word per line; "" for the words of the language.
    language: code of ISO 639-1; "" for no words.
    optional: return no words if the language has none.
  """
  if not path and language == "en":
    return STOP_WORDS
  if not path and (optional or not language):
    return frozenset()
  file = os.path.expanduser(path or _find_stop_words(language))
  try:
    text = pathlib.Path(file).read_text(encoding="utf-8-sig")
  except (OSError, ValueError) as e:  # ValueError: not UTF-8, or "\0" in a path
    raise InputError(
      f"negatives.stop_words={path!r} cannot be read ({e}). Pass a UTF-8 file"
      " with one word per line."
    ) from e
  words = frozenset(line.strip().lower() for line in text.splitlines()) - {""}
  if not words:
    raise InputError(
      f"negatives.stop_words={path!r} contains no word. To use no stop words,"
      " set negatives.keep_stop_words=True."
    )
  decomposed = (unicodedata.normalize("NFD", word) for word in words)
  return words | {
    "".join(c for c in word if unicodedata.category(c) != "Mn")
    for word in decomposed
  }


def _find_stop_words(language: str) -> pathlib.Path:
  """Finds NLTK's stop words of a language."""
  name = NLTK_FILES.get(language, "")
  if name and (file := wordnet.find_file("stopwords", name)):
    return file
  fix = "Run `python -m nltk.downloader stopwords`. Or set" if name else "Set"
  raise InputError(
    f"There are no stop words for data.language={language!r}. {fix}"
    " --config.negatives.stop_words=FILE, with one word per line, or"
    " --config.negatives.keep_stop_words=True to use none."
  )


def build_table(
  tokenizer: Tokenizer,
  sources: str = "wordnet",
  *,
  language: str = "en",
  keep_stop_words: bool = False,
  symmetric: bool = False,
  include_self: bool = False,
  report: Callable[[str], object] = print,
) -> SynonymTable:
  """Builds the table of a vocabulary from WordNet or other sources.

  >>> tokenizer = load_tokenizer("rows/vocab.txt", lowercase=True)
  >>> table = build_table(tokenizer, "pairs path=pairs.tsv")
  >>> table.synonyms("main")
  ['primary']

  Args:
    tokenizer: its vocabulary, and how it writes words.
    sources: an expression, like `config.negatives.sources`.
    language: of the vocabulary, a code of ISO 639-1.
    keep_stop_words: give stop words lists, too.
    symmetric: add the reverse of every pair.
    include_self: add each word that has a list to its own list.
    report: receives lines about what the sources lose.

  Raises:
    InputError, DataError: malformed sources; a file or WordNet is missing.
  """
  request = TableRequest(
    sources,
    key="sources",
    language=language,
    keep_stop_words=keep_stop_words,
    symmetric=symmetric,
    include_self=include_self,
  )
  return build(request, tokenizer, report)


def build(
  request: TableRequest, tokenizer: Tokenizer, report: Callable[[str], object]
) -> SynonymTable:
  """Builds the table of a request; reports what its sources lose."""
  tokens = tokenizer.vocab
  vocabulary = Vocabulary(
    tokens, tokenizer.normalize, request.no_neighbours, report
  )
  return SynonymTable.from_pairs(
    sources_lib.find_pairs(request.expression, vocabulary),
    tokens,
    source=request.expression.identity,
    stop_words=request.load_stop_words(),
    **request.switches,
  )


def check_request(request: TableRequest) -> None:
  """Checks sources, files and stop words without building the table."""
  sources_lib.check_sources(request.expression)
  request.load_stop_words()


def find_or_build(
  request: TableRequest,
  tokenizer: Tokenizer,
  *,
  saved: pathlib.Path | None,
  console: Console,
) -> SynonymTable | None:
  """Returns a run's saved table, else the cached one, else a new one.

  `saved` is the file of the table that a resumed run was trained with, valid
  even if the files that it was built from have changed; None for new runs. A
  table of another vocabulary or other options is ignored: checkpoints decide
  whether the run may be resumed. None if the source is "model".
  """
  if request.expression.model:
    return None
  tokens = tokenizer.vocab
  if saved and (loaded := _load(saved, request, tokens, console)):
    return loaded
  cached = cache.folder() / "synonyms" / _cache_name(request, tokenizer)
  if loaded := _load(cached, request, tokens, console):
    return loaded
  with progress.working(console, "Looking up synonyms"):
    report = functools.partial(console.print, "note:", soft_wrap=True)
    built = build(request, tokenizer, report)
  built.save(cached)
  return built


def _load(
  path: pathlib.Path,
  request: TableRequest,
  tokens: Sequence[str],
  console: Console,
) -> SynonymTable | None:
  """Returns a saved table if it exists, is undamaged and fits the request."""
  if not path.exists():
    return None
  try:
    loaded = SynonymTable.load(path, tokens)
  except DataError as e:
    console.print(f"warning: not used: {e}", soft_wrap=True)
    return None
  options: dict[str, str | bool] = {**request.switches}
  # Not compared if a resumed run has lost its stop words.
  with contextlib.suppress(InputError, DataError):
    options["stop_words"] = fingerprint(request.load_stop_words())
  has_options = options.items() <= loaded.options.items()
  has_source = loaded.source == request.expression.identity
  return loaded if has_options and has_source else None


def _cache_name(request: TableRequest, tokenizer: Tokenizer) -> str:
  """Returns a file name with a hash of everything the table depends on."""
  files: list[pathlib.Path] = []
  for source in request.expression.sources:
    if source.name == "wordnet":
      files += wordnet.list_files(source.options["folder"])
    elif source.name == "omw" and not source.paths:
      files.append(wordnet.find_omw(source.options["language"]))
    else:
      files += map(pathlib.Path, source.paths.values())
  states = [
    [str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns]
    for file in files
    if file.exists()
  ]
  dependencies = [
    RECIPE,
    tokenizer.fingerprint,
    request.expression.identity,
    list(request.switches.values()),
    sorted(request.load_stop_words()),
    states,
  ]
  names = dict.fromkeys(source.name for source in request.expression.sources)
  vocabulary = vocabulary_fingerprint(tokenizer.vocab)
  digest = short_sha256(json.dumps(dependencies))
  return f"{'-'.join(names)}-{vocabulary}-{digest}.npz"


def describe_text(
  request: TableRequest,
  table: SynonymTable,
  tokens: Sequence[str],
  counts_V: np.ndarray,
) -> tuple[str, str]:
  """Describes how many of a text's words have synonyms.

  `counts_V` are the occurrences of the `tokens` of the table's vocabulary in
  the text. Returns the line of a report, and a warning, "" for none.
  """
  try:
    stops = request.load_stop_words()
  except (InputError, DataError):  # lost since the table was built
    stops = STOP_WORDS
  has_letter_V = [any(map(str.isalpha, token)) for token in tokens]
  counts_V = counts_V * has_letter_V
  counts_V *= may_have_synonyms(tokens, stop_words=stops)
  uncovered_V = np.where(table.lengths_V > 0, 0, counts_V)
  order = np.argsort(-uncovered_V, kind="stable")[:NUM_EXAMPLES]
  num_words = counts_V.sum()
  share = (num_words - uncovered_V.sum()) / num_words if num_words else 1.0
  examples = ", ".join(tokens[i] for i in order if uncovered_V[i]) or "none"
  line = (
    f"{share:.1%} of its tokens have synonyms (not counted: stop words,"
    f" symbols, ## pieces); frequent ones without: {examples}"
  )
  if share >= MIN_SHARE:
    return line, ""
  return line, (
    f"{request.key}={request.sources!r} has synonyms for only"
    f" {share:.1%} of the text's tokens, none for {examples}. Corrections will"
    " be rare. Use sources, such as 'pairs path=FILE', and a vocabulary of the"
    " text's language."
  )
