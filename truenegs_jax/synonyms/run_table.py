"""Loads the synonym table of a run from workdir or cache, or builds it."""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime import cache, errors, progress
from truenegs_jax.runtime.files import short_sha256
from truenegs_jax.synonyms import languages, table, wordnet
from truenegs_jax.synonyms import sources as sources_lib
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import NUMBERS, Vocabulary, fingerprint

SWITCHES = ("keep_stop_words", "symmetric", "include_self")

# Part of the name in the cache. Increase it when the code of a source changes
# so that it yields other pairs from the same files.
RECIPE = 2


@dataclasses.dataclass(frozen=True)
class TableRequest:
  """Settings that, with the vocabulary, determine a synonym table.

  Attributes:
    sources: expression of sources, see `synonyms.sources`.
    key: config key of `sources`, for errors.
    wordnet_dir: folder of WordNet where the expression sets none.
    language: of the text, a code of ISO 639-1; "" for no default sources and
      stop words.
    stop_words: path of a list of stop words; "" for those of the language.
    keep_stop_words, symmetric, include_self: see `SynonymTable.from_pairs`.
  """

  sources: str
  key: str = "negatives.sources"
  language: str = "en"
  wordnet_dir: str = ""
  stop_words: str = ""
  keep_stop_words: bool = False
  symmetric: bool = False
  include_self: bool = False

  @property
  def expression(self) -> sources_lib.Expression:
    """The parsed sources; raises InputError if they are malformed."""
    return sources_lib.parse_expression(
      self.sources, key=self.key, language=self.language
    )

  @property
  def switches(self) -> dict[str, bool]:
    """The switches, named as in `SynonymTable.options`."""
    return {name: getattr(self, name) for name in SWITCHES}

  def load_stop_words(self) -> frozenset[str]:
    """Returns the words without lists; see `load_stop_words`."""
    return languages.load_stop_words(
      self.stop_words, language=self.language, optional=self.keep_stop_words
    )

  @property
  def wordnet_options(self) -> dict[str, str] | None:
    """Folder and pos of the first source "wordnet"; None without one."""
    for source in self.expression.sources:
      if source.name == "wordnet":
        folder = self.wordnet_dir
        options = sources_lib.resolve_options(source, wordnet_dir=folder)
        pos = str(options.get("pos", wordnet.PARTS_OF_SPEECH))
        pos = wordnet.parse_parts_of_speech(pos)
        return {"folder": str(options["folder"]), "pos": pos}
    return None

  @property
  def no_neighbours(self) -> frozenset[str]:
    """The words that are no nearest neighbours, see `Vocabulary`."""
    numbers = NUMBERS if self.language == "en" else frozenset[str]()
    return numbers if self.keep_stop_words else numbers | self.load_stop_words()


def build_table(
  tokenizer: Tokenizer,
  sources: str = "wordnet",
  *,
  language: str = "en",
  keep_stop_words: bool = False,
  symmetric: bool = False,
  include_self: bool = False,
  report: Callable[[str], object] = print,
) -> table.SynonymTable:
  """Builds the table of a vocabulary from WordNet or other sources.

  >>> tokenizer = load_tokenizer("rows/vocab.txt", lowercase=True)
  >>> table = build_table(tokenizer, "pairs path=pairs.tsv")
  >>> table.synonyms("main")
  ['primary']

  Args:
    tokenizer: its vocabulary, and how it writes words.
    sources: an expression, as `config.negatives.sources`: "wordnet pos=nv",
      "vectors path=glove.txt & wordnet", ...
    language: of the vocabulary, a code of ISO 639-1: its stop words have no
      lists.
    keep_stop_words, symmetric, include_self: see `SynonymTable.from_pairs`.
    report: receives lines about what the sources lose.

  Raises:
    InputError, DataError: malformed sources; a file or WordNet is missing; see
      `check_request`.
  """
  request = TableRequest(
    sources,
    key="sources",
    language=language,
    keep_stop_words=keep_stop_words,
    symmetric=symmetric,
    include_self=include_self,
  )
  pairs = find_pairs(request, tokenizer, report)
  return build(request, pairs, tokenizer.vocab)


def check_request(request: TableRequest) -> None:
  """Checks sources and stop words without building the table.

  Raises:
    InputError, DataError: see `check_sources` and `load_stop_words`.
  """
  sources_lib.check_sources(request.expression, wordnet_dir=request.wordnet_dir)
  request.load_stop_words()


def find_or_build(
  request: TableRequest,
  tokenizer: Tokenizer,
  *,
  saved: pathlib.Path | None,
  console: Console,
) -> SynonymTable | None:
  """Returns a run's saved table, else the cached one, else a new one.

  New tables are cached. A saved table of another vocabulary or other options is
  ignored, not overwritten: checkpoints decide whether the run may be resumed.

  `saved` is the file of the table that a resumed run was trained with, valid
  even if the files that it was built from have changed; None for new runs. The
  result is None if the source is the model's own embeddings.

  Raises:
    InputError, DataError: see `sources.find_pairs` and `load_stop_words`.
  """
  expression, tokens = request.expression, tokenizer.vocab
  if expression.model:
    return None
  if saved and (loaded := _load(saved, request, tokens, console)):
    return loaded
  cached = cache.folder() / "synonyms" / _cache_name(request, tokenizer)
  if loaded := _load(cached, request, tokens, console):
    return loaded
  with progress.working(console, "Looking up synonyms"):
    report = functools.partial(console.print, "note:", soft_wrap=True)
    built = build(request, find_pairs(request, tokenizer, report), tokens)
  built.save(cached)
  return built


def find_pairs(
  request: TableRequest,
  tokenizer: Tokenizer,
  report: Callable[[str], object],
) -> sources_lib.Pairs:
  """Yields the pairs of a request's sources; reports what they lose."""
  vocabulary = Vocabulary(
    tokenizer.vocab,
    tokenizer.normalize,
    request.no_neighbours,
    report,
  )
  return sources_lib.find_pairs(
    request.expression, vocabulary, wordnet_dir=request.wordnet_dir
  )


def build(
  request: TableRequest, pairs: sources_lib.Pairs, tokens: Sequence[str]
) -> SynonymTable:
  """Builds the table of pairs with the options of a request."""
  return SynonymTable.from_pairs(
    pairs,
    tokens,
    source=request.expression.identity,
    stop_words=request.load_stop_words(),
    **request.switches,
  )


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
  except errors.DataError as e:
    console.print(f"warning: not used: {e}", soft_wrap=True)
    return None
  options: dict[str, str | bool] = {**request.switches}
  # Not compared if a resumed run has lost its stop words.
  with contextlib.suppress(errors.InputError, errors.DataError):
    words = request.load_stop_words()
    options["stop_words"] = fingerprint(words)
  fits = options.items() <= loaded.options.items()
  fits &= loaded.source == request.expression.identity
  return loaded if fits else None


def _cache_name(request: TableRequest, tokenizer: Tokenizer) -> str:
  """Returns a file name with a hash of everything the table depends on."""
  expression = request.expression
  dependencies = [
    RECIPE,
    tokenizer.fingerprint,
    expression.identity,
    list(request.switches.values()),
    sorted(request.load_stop_words()),
    [file_state(file) for file in _source_files(request)],
  ]
  digest = short_sha256(json.dumps(dependencies))
  names = "-".join(dict.fromkeys(source.name for source in expression.sources))
  return f"{names}-{table.vocabulary_fingerprint(tokenizer.vocab)}-{digest}.npz"


def _source_files(request: TableRequest) -> Iterator[pathlib.Path]:
  """Yields the files that the pairs are read from."""
  for source in request.expression.sources:
    options = sources_lib.resolve_options(
      source, wordnet_dir=request.wordnet_dir
    )
    if source.name == "wordnet":
      yield from wordnet.list_files(str(options["folder"]))
    elif source.name == "omw" and not source.paths:
      yield languages.find_omw(str(options.get("language", "")))
    else:
      yield from (pathlib.Path(str(options[key])) for key in source.paths)


def file_state(file: pathlib.Path) -> list[str | int]:
  """Returns path, size and mtime of a file; only the path if it is missing."""
  path = str(file.resolve())
  if not file.exists():
    return [path]
  return [path, file.stat().st_size, file.stat().st_mtime_ns]
