"""The synonym table of a run: its workdir's, the cache's, or a new one."""

import hashlib
import pathlib
from collections.abc import Iterator

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax import cache, errors
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.synonyms import sources, table
from truenegs_jax.train import startup


def find_or_build(
  c: ConfigDict, workdir: pathlib.Path, tokenizer: Tokenizer, console: Console
) -> table.SynonymTable:
  """The workdir's table, else the cache's, else a new one for the cache.

  One of another vocabulary or other options is passed over, not overwritten:
  whether the workdir's run may go on is for its checkpoints to say.
  """
  n = c.negatives
  cached = cache.folder() / "synonyms" / _name(c, tokenizer)
  places = [cached]
  named = n.vectors if n.sources == "vectors" else c.data.wordnet_dir
  # Of a file that the user names, only a checkpoint's table is surely the one.
  if not named or has_checkpoint(workdir):
    places.insert(0, workdir / startup.SYNONYMS)
  for path in places:
    found = _load(path, tokenizer, console)
    if (
      found is not None
      and found.source == n.sources
      and found.options["keep_stop_words"] == n.keep_stop_words
    ):
      return found
  with console.status("looking up synonyms ..."):
    built = table.build_table(
      _pairs(c, tokenizer),
      tokenizer.vocab,
      source=n.sources,
      keep_stop_words=n.keep_stop_words,
    )
  cached.parent.mkdir(parents=True, exist_ok=True)
  table.save_table(built, cached)
  return built


def has_checkpoint(workdir: pathlib.Path) -> bool:
  """Whether a run would be resumed here."""
  # A step that was not saved to the end has more to its name.
  return any(p.name.isdigit() for p in (workdir / "checkpoints").glob("*"))


def _pairs(c: ConfigDict, tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
  pairs = sources.synonym_source(c.negatives.sources)
  if c.negatives.sources == "vectors":
    yield from pairs(tokenizer.vocab, path=c.negatives.vectors)
    return
  reader = sources.open_wordnet(c.data.wordnet_dir)
  yield from pairs(tokenizer.vocab, reader=reader)
  sources.close_wordnet(reader)


def _name(c: ConfigDict, tokenizer: Tokenizer) -> str:
  """A file name for the cache that says all that the table depends on."""
  n = c.negatives
  # A WordNet of the user's own may be another version: it has its own name.
  of = c.data.wordnet_dir
  if n.sources == "vectors":
    path = pathlib.Path(n.vectors).expanduser().resolve()
    stat = path.stat() if path.is_file() else None
    of = f"{path} {stat and (stat.st_size, stat.st_mtime_ns)}"
  stop = "-stop" if n.keep_stop_words else ""
  vocabulary = table.vocabulary_fingerprint(tokenizer.vocab)
  digest = hashlib.sha256(of.encode()).hexdigest()[:8]
  return f"{n.sources}{stop}-{vocabulary}-{digest}.npz"


def _load(
  path: pathlib.Path, tokenizer: Tokenizer, console: Console
) -> table.SynonymTable | None:
  if not path.exists():
    return None
  try:
    return table.load_table(path, tokenizer.vocab)
  except errors.DataError as e:
    console.print(f"not used: {e}", soft_wrap=True)
    return None
