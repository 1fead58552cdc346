"""The synonym table of a run: its workdir's, the cache's, or a new one."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from truenegs_jax.runtime import cache, errors
from truenegs_jax.runtime.files import short_sha256
from truenegs_jax.synonyms import sources as sources_lib
from truenegs_jax.synonyms import stop_words, table, wordnet

# Options of a table as negatives.* and `SynonymTable.options` name them.
OPTIONS = ("keep_stop_words", "symmetric", "include_self")

# Raise it when a source comes to yield other pairs of the same files.
RECIPE = 1


@dataclasses.dataclass(frozen=True)
class TableRequest:
  """Values that decide a synonym table, beside the vocabulary.

  Attributes:
    sources: expression of sources, see `synonyms.sources`.
    key: config key that `sources` is the value of, for errors.
    wordnet_dir: where WordNet is, if the expression does not say it.
    stop_words: path of a list of stop words; "" for the English ones.
    keep_stop_words, symmetric, include_self: as of `table.build_table`.
  """

  sources: str
  key: str = "negatives.sources"
  wordnet_dir: str = ""
  stop_words: str = ""
  keep_stop_words: bool = False
  symmetric: bool = False
  include_self: bool = False

  @property
  def spec(self) -> sources_lib.Expression:
    """The parsed expression; InputError where it has a mistake."""
    return sources_lib.parse_expression(self.sources, key=self.key)

  @property
  def options(self) -> dict[str, Any]:
    """The switches of the table, as `SynonymTable.options` names them."""
    return {name: getattr(self, name) for name in OPTIONS}


def check_request(request: TableRequest) -> None:
  """Refuses a table that cannot be built, without building it.

  Every source checks its options, that its files exist and how they begin.

  Raises:
    InputError, DataError: as the sources and `stop_words.load`.
  """
  sources_lib.check_sources(request.spec, wordnet_dir=request.wordnet_dir)
  stop_words.load(request.stop_words)


def find_or_build(
  request: TableRequest,
  tokens: Sequence[str],
  *,
  saved: pathlib.Path | None,
  console: Console,
) -> table.SynonymTable | None:
  """Returns a run's saved table, else the cache's, else builds and caches one.

  A saved table of another vocabulary or other options is passed over, not
  overwritten: whether the run may be resumed is for its checkpoints to decide.

  Args:
    tokens: the vocabulary, token `i` at position `i`.
    saved: the table that a resumed run was trained with, whatever has become
      of the files that it was built from; None for a new run.
    console: where a damaged file is reported.

  Returns:
    The table; None where the model's own embeddings are the source.

  Raises:
    InputError, DataError: as the sources and `stop_words.load`.
  """
  spec = request.spec
  if spec.model:
    return None
  if saved and (found := _load(saved, request, tokens, console)):
    return found
  cached = cache.folder() / "synonyms" / _name(request, tokens)
  if found := _load(cached, request, tokens, console):
    return found
  with console.status("looking up synonyms ..."):
    built = table.build_table(
      sources_lib.find_pairs(spec, tokens, wordnet_dir=request.wordnet_dir),
      tokens,
      source=spec.identity,
      stop_words=stop_words.load(request.stop_words),
      **request.options,
    )
  table.save_table(built, cached)
  return built


def _load(
  path: pathlib.Path,
  request: TableRequest,
  tokens: Sequence[str],
  console: Console,
) -> table.SynonymTable | None:
  """A saved table, if it exists, is whole and is the requested one."""
  if not path.exists():
    return None
  try:
    found = table.load_table(path, tokens)
  except errors.DataError as e:
    console.print(f"not used: {e}", soft_wrap=True)
    return None
  options = request.options
  # A checkpoint's table needs no file of stop words any more.
  given = os.path.expanduser(request.stop_words)
  if not given or os.path.exists(given):
    words = stop_words.load(request.stop_words)
    options["stop_words"] = stop_words.fingerprint(words)
  is_same = found.source == request.spec.identity
  return found if is_same and options.items() <= found.options.items() else None


def _name(request: TableRequest, tokens: Sequence[str]) -> str:
  """The file name in the cache: a digest of all that the table depends on."""
  spec = request.spec
  depends = [
    RECIPE,
    spec.identity,
    list(request.options.values()),
    sorted(stop_words.load(request.stop_words)),
    [_state(file) for file in _files(request)],
  ]
  digest = short_sha256(json.dumps(depends))
  names = "-".join(dict.fromkeys(source.name for source in spec.sources))
  return f"{names}-{table.vocabulary_fingerprint(tokens)}-{digest}.npz"


def _files(request: TableRequest) -> Iterator[pathlib.Path]:
  """The files that the pairs are read from."""
  for source in request.spec.sources:
    options = sources_lib.resolve_options(
      source, wordnet_dir=request.wordnet_dir
    )
    if source.name == "wordnet":
      yield from wordnet.list_files(str(options["folder"]))
    else:
      yield from (pathlib.Path(str(options[key])) for key in source.paths)


def _state(file: pathlib.Path) -> list[str | int]:
  """Path, size and time of a file; of a missing one the path alone."""
  place = str(file.resolve())
  if not file.exists():
    return [place]
  return [place, file.stat().st_size, file.stat().st_mtime_ns]
