"""The synonym table of a run: its workdir's, the cache's, or a new one."""

import hashlib
import json
import pathlib

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax import cache, errors
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.synonyms import spec, stop_words, table
from truenegs_jax.train import startup

# Options of a table as negatives.* and `SynonymTable.options` name them.
OPTIONS = ("keep_stop_words", "symmetric", "include_self")

VECTORS = (
  " of word vectors in GloVe's text format, such as glove.6B.50d.txt of"
  " https://nlp.stanford.edu/projects/glove/"
)


def wanted(c: ConfigDict) -> bool:
  """Whether a run asks anything of its table."""
  n = c.negatives
  return n.hard_correction or n.smoothing > 0 or n.discriminator != "none"


def check_paths(c: ConfigDict) -> None:
  """Refuses a config whose table needs a file that is not there.

  Raises:
    InputError: it names the file and says how to give another.
  """
  if not wanted(c):
    return
  for source in spec.parse(c.negatives.sources).sources:
    for key, path in source.paths.items():
      place = spec.locate(path)
      if not (place.is_dir() if key == "folder" else place.is_file()):
        raise errors.InputError(
          f"negatives.sources: {source.name} {key}={path}: no such"
          f" {'folder' if key == 'folder' else 'file'}; give one"
          f"{VECTORS if source.name == 'vectors' else ''}:"
          f" --config.negatives.sources='{source.name} {key}=...'"
        )
  stop_words.load(c.negatives.stop_words)


def find_or_build(
  c: ConfigDict, workdir: pathlib.Path, tokenizer: Tokenizer, console: Console
) -> table.SynonymTable | None:
  """The workdir's table, else the cache's, else a new one for the cache.

  One of another vocabulary or other options is passed over, not overwritten:
  whether the workdir's run may go on is for its checkpoints to say.

  Returns:
    The table; None where the model's own embeddings are the source.

  Raises:
    InputError, DataError: as the sources and `stop_words.load`.
  """
  n = c.negatives
  asked = spec.parse(n.sources)
  if asked.model:
    return None
  # Of a file that the user names, only a checkpoint's table is surely the one.
  if has_checkpoint(workdir) or not _places(c):
    if found := _load(workdir / startup.SYNONYMS, c, tokenizer, console):
      return found
  cached = cache.folder() / "synonyms" / _name(c, tokenizer)
  if found := _load(cached, c, tokenizer, console):
    return found
  with console.status("looking up synonyms ..."):
    built = table.build_table(
      spec.pairs_of(asked, tokenizer.vocab, wordnet_dir=c.data.wordnet_dir),
      tokenizer.vocab,
      source=asked.identity,
      stop_words=stop_words.load(n.stop_words),
      **{name: n[name] for name in OPTIONS},
    )
  table.save_table(built, cached)
  return built


def has_checkpoint(workdir: pathlib.Path) -> bool:
  """Whether a run would be resumed here."""
  # A step that was not saved to the end has more to its name.
  return any(p.name.isdigit() for p in (workdir / "checkpoints").glob("*"))


def _is_asked(found: table.SynonymTable, c: ConfigDict) -> bool:
  n = c.negatives
  options = {name: n[name] for name in OPTIONS}
  # What a checkpoint was made with needs no file any more.
  if not n.stop_words or pathlib.Path(n.stop_words).expanduser().exists():
    words = sorted(stop_words.load(n.stop_words))
    options["stop_words"] = table.vocabulary_fingerprint(words)
  asked = spec.parse(n.sources).identity
  return found.source == asked and options.items() <= found.options.items()


def _name(c: ConfigDict, tokenizer: Tokenizer) -> str:
  """A file name for the cache that says all that the table depends on."""
  n = c.negatives
  asked = spec.parse(n.sources)
  depends = [
    asked.identity,
    [n[name] for name in OPTIONS],
    sorted(stop_words.load(n.stop_words)),
    [_state(place) for place in _places(c)],
  ]
  digest = hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:16]
  names = "-".join(dict.fromkeys(source.name for source in asked.sources))
  vocabulary = table.vocabulary_fingerprint(tokenizer.vocab)
  return f"{names}-{vocabulary}-{digest}.npz"


def _places(c: ConfigDict) -> list[pathlib.Path]:
  """The files and folders that the user names for the pairs."""
  asked = spec.parse(c.negatives.sources)
  paths = list(asked.paths)
  # A WordNet of the user's own may be another version.
  if c.data.wordnet_dir and "wordnet" in [s.name for s in asked.sources]:
    paths.append(c.data.wordnet_dir)
  return [spec.locate(path) for path in paths]


def _state(place: pathlib.Path) -> list:
  """What changes with a file, or with the data of a folder's WordNet."""
  files = [place, *sorted(place.rglob("data.*"))]
  stats = [file.stat() for file in files if file.exists()]
  return [str(place.resolve()), [(s.st_size, s.st_mtime_ns) for s in stats]]


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
