"""The synonym table of a run: its workdir's, the cache's, or a new one."""

import hashlib
import json
import os
import pathlib
from collections.abc import Iterator

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.objectives.options import needs_table
from truenegs_jax.runtime import cache, errors
from truenegs_jax.synonyms import sources_spec, stop_words, table, wordnet
from truenegs_jax.workdir import files
from truenegs_jax.workdir.files import has_checkpoint

# Options of a table as negatives.* and `SynonymTable.options` name them.
OPTIONS = ("keep_stop_words", "symmetric", "include_self")

# Raise it when a source comes to yield other pairs of the same files.
RECIPE = 1


def wanted(c: ConfigDict) -> bool:
  """Whether a run asks anything of its table."""
  return needs_table(c.negatives)


def check_paths(c: ConfigDict) -> None:
  """Refuses a config whose table cannot be made, before anything is.

  Every source checks its options, that its files are there and how they begin.

  Raises:
    InputError, DataError: as the sources and `stop_words.load`.
  """
  if wanted(c):
    asked = sources_spec.parse(c.negatives.sources)
    sources_spec.check(asked, wordnet_dir=c.data.wordnet_dir)
    stop_words.load(c.negatives.stop_words)


def find_or_build(
  c: ConfigDict, workdir: pathlib.Path, tokenizer: Tokenizer, console: Console
) -> table.SynonymTable | None:
  """The table of a resumed run, else the cache's, else a new one for the cache.

  One of another vocabulary or other options is passed over, not overwritten:
  whether the workdir's run may go on is for its checkpoints to say.

  Returns:
    The table; None where the model's own embeddings are the source.

  Raises:
    InputError, DataError: as the sources and `stop_words.load`.
  """
  n = c.negatives
  asked = sources_spec.parse(n.sources)
  if asked.model:
    return None
  # Only a checkpoint's table is surely that of the run, whatever files became.
  if has_checkpoint(workdir):
    if found := _load(workdir / files.SYNONYMS, c, tokenizer, console):
      return found
  cached = cache.folder() / "synonyms" / _name(c, tokenizer)
  if found := _load(cached, c, tokenizer, console):
    return found
  with console.status("looking up synonyms ..."):
    built = table.build_table(
      sources_spec.pairs_of(
        asked, tokenizer.vocab, wordnet_dir=c.data.wordnet_dir
      ),
      tokenizer.vocab,
      source=asked.identity,
      stop_words=stop_words.load(n.stop_words),
      **{name: n[name] for name in OPTIONS},
    )
  table.save_table(built, cached)
  return built


def _is_asked(found: table.SynonymTable, c: ConfigDict) -> bool:
  n = c.negatives
  options = {name: n[name] for name in OPTIONS}
  # What a checkpoint was made with needs no file any more.
  if not n.stop_words or os.path.exists(os.path.expanduser(n.stop_words)):
    words = stop_words.load(n.stop_words)
    options["stop_words"] = stop_words.fingerprint(words)
  asked = sources_spec.parse(n.sources).identity
  return found.source == asked and options.items() <= found.options.items()


def _name(c: ConfigDict, tokenizer: Tokenizer) -> str:
  """A file name for the cache that says all that the table depends on."""
  n = c.negatives
  asked = sources_spec.parse(n.sources)
  depends = [
    RECIPE,
    asked.identity,
    [n[name] for name in OPTIONS],
    sorted(stop_words.load(n.stop_words)),
    [_state(file) for file in _files(c)],
  ]
  digest = hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:16]
  names = "-".join(dict.fromkeys(source.name for source in asked.sources))
  vocabulary = table.vocabulary_fingerprint(tokenizer.vocab)
  return f"{names}-{vocabulary}-{digest}.npz"


def _files(c: ConfigDict) -> Iterator[pathlib.Path]:
  """The files that the pairs are read from."""
  for source in sources_spec.parse(c.negatives.sources).sources:
    options = sources_spec.located(source, wordnet_dir=c.data.wordnet_dir)
    if source.name == "wordnet":
      yield from wordnet.files(str(options["folder"]))
    else:
      yield from (pathlib.Path(str(options[key])) for key in source.paths)


def _state(file: pathlib.Path) -> list[str | int]:
  """What changes with a file; of one that is not there, its place alone."""
  stats = file.stat() if file.exists() else None
  return [
    str(file.resolve()),
    *([stats.st_size, stats.st_mtime_ns] if stats else []),
  ]


def _load(
  path: pathlib.Path, c: ConfigDict, tokenizer: Tokenizer, console: Console
) -> table.SynonymTable | None:
  """A saved table, if it is there, whole and what the config asks for."""
  if not path.exists():
    return None
  try:
    found = table.load_table(path, tokenizer.vocab)
  except errors.DataError as e:
    console.print(f"not used: {e}", soft_wrap=True)
    return None
  return found if _is_asked(found, c) else None
