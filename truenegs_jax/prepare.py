"""Text -> vocabulary -> rows on disk. A verb, and what `main` calls.

  python -m truenegs_jax.prepare --config=configs/electra_small.py

The same text and options find the rows that an earlier run wrote.
"""

import contextlib
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import rich.console
from absl import flags

from truenegs_jax import cache, config_flag
from truenegs_jax.data import sources as sources_lib
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data.build import Progress, write_rows
from truenegs_jax.data.rows import (
  RowsOptions,
  read_manifest,
  rows_fingerprint,
)
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.errors import DataError, DiskError, TrueNegsError

LINE_SECS = 10.0  # between progress lines where there is no terminal


def prepare(
  sources: str,
  *,
  length: int,
  vocab: str = "train",
  vocab_size: int = 8192,
  lowercase: bool = True,
  layout: str = "electra",
  overflow: str = "carry",
  held_out: float = 0.01,
  seed: int = 0,
  rows: str = "",
  resources: Mapping[str, Any] | None = None,
) -> tuple[pathlib.Path, Tokenizer]:
  """Makes the rows folder of these options, or finds it made.

  Args:
    sources: names, paths or globs, separated by commas.
    length: tokens of a row.
    vocab: "train", or what `load_tokenizer` takes.
    vocab_size: entries at most, where the vocabulary is trained.
    rows: the folder; empty for one in the cache named by the options. A whole
      folder named here serves without its text, too.
    resources: what sources need, such as `{"reader": open_wordnet()}`.

  Returns:
    The rows folder and its tokenizer (`vocab.txt` in the folder).

  Raises:
    InputError: an option or the vocabulary is unusable.
    DataError: unusable text, or `rows` holds the rows of other options.
    DiskError: cannot be written.
  """
  named = pathlib.Path(rows).expanduser() if rows else None
  documents = _documents(sources, resources or {}, named)
  given = None
  if vocab != "train":
    given = tokenizer_lib.load_tokenizer(vocab, lowercase=lowercase)
  options = RowsOptions(
    sources=documents.state() if documents else _options_of(named)["sources"],
    vocabulary=given.fingerprint if given else f"train:{vocab_size}",
    lowercase=lowercase,
    length=length,
    layout=layout,
    overflow=overflow,
    held_out=held_out,
    seed=seed,
  )
  folder = named or cache.folder() / "rows" / rows_fingerprint(options)
  if documents and not _is_whole(folder):
    with _only_process(folder):
      if not _is_whole(folder):  # another process made it while we waited
        _build(folder, documents, given, options, vocab_size)
  _check_same(folder, options)
  return folder, tokenizer_lib.load_tokenizer(str(folder), lowercase=lowercase)


def _is_whole(folder: pathlib.Path) -> bool:
  return (folder / "manifest.json").exists()  # written last, then renamed


def _options_of(folder: pathlib.Path | None) -> dict[str, Any]:
  return read_manifest(folder)["options"] if folder else {}


def _documents(
  sources: str, resources: Mapping[str, Any], named: pathlib.Path | None
) -> sources_lib.Documents | None:
  """The documents; None where rows came to this machine without the text."""
  try:
    return sources_lib.documents(sources, **resources)
  except DataError as error:
    if not named or not _is_whole(named):
      raise
    print(f"{error}\nTaking the rows in {named} as they are.", file=sys.stderr)
    return None


def _build(
  folder: pathlib.Path,
  documents: sources_lib.Documents,
  tokenizer: Tokenizer | None,
  options: RowsOptions,
  vocab_size: int,
) -> None:
  console = rich.console.Console(stderr=True)
  console.print(f"Preparing {documents.names()} -> {folder}", soft_wrap=True)
  if tokenizer is None:
    with console.status("Training the vocabulary"):
      vocab = tokenizer_lib.train_vocabulary(
        documents, size=vocab_size, lowercase=options.lowercase
      )
    console.print(f"Trained a vocabulary of {len(vocab):,} entries.")
    tokenizer = tokenizer_lib.make_tokenizer(vocab, lowercase=options.lowercase)
  with _progress(console) as show:
    manifest = write_rows(folder, documents, tokenizer, options, progress=show)
  splits = manifest["splits"]
  console.print(
    f"{splits['train']['rows']:,} rows of {options.length} tokens to train on"
    f" ({splits['train']['padding_share']:.1%} padding),"
    f" {splits['held_out']['rows']:,} held out."
  )


@contextlib.contextmanager
def _progress(
  console: rich.console.Console,
) -> Iterator[Callable[[Progress], None]]:
  """Yields what shows progress: one live line, or a line now and then."""
  start = last = time.monotonic()
  with console.status("Building rows") as status:

    def show(progress: Progress) -> None:
      nonlocal last
      now = time.monotonic()
      rate = progress.text_bytes / 1e6 / max(now - start, 1e-9)
      line = (
        f"{progress.documents:,} documents, {progress.rows:,} rows,"
        f" {rate:.1f} MB/s"
      )
      if console.is_terminal:
        status.update(line)
      elif now - last >= LINE_SECS:
        last = now
        console.print(line)

    yield show


@contextlib.contextmanager
def _only_process(folder: pathlib.Path) -> Iterator[None]:
  """Holds a lock that the system releases however this process ends."""
  import fcntl  # not on Windows, which only reads rows

  path = folder.with_name(f".{folder.name}.lock")
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a")
  except OSError as error:
    raise DiskError(
      f"data.rows: {path.parent} cannot be written ({error.strerror}): name"
      " another folder with --config.data.rows or TRUENEGS_CACHE."
    ) from error
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      print(f"Another process prepares {folder}; waiting.", file=sys.stderr)
      fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _check_same(folder: pathlib.Path, options: RowsOptions) -> None:
  found = _options_of(folder)
  wanted = json.loads(json.dumps(dataclasses.asdict(options)))
  differences = [
    f"  {key}: {found.get(key)} there, {wanted[key]} asked for"
    for key in wanted
    if found.get(key) != wanted[key]
  ]
  if differences:
    raise DataError(
      f"data.rows: {folder} holds other rows:\n"
      + "\n".join(differences)
      + "\nRemove the folder, name another one, or leave data.rows empty."
    )


def _arguments(config: Any) -> dict[str, Any]:
  """The arguments of `prepare` in a config."""
  data = config.data
  resources = {}
  if "wordnet" in sources_lib.source_parts(data.sources):
    from truenegs_jax.synonyms.sources import open_wordnet  # imports NLTK

    resources["reader"] = open_wordnet(data.wordnet_dir)
  names = "sources vocab vocab_size lowercase layout overflow held_out rows"
  return {
    **{name: data[name] for name in names.split()},
    "length": config.length,
    "seed": data.seed,
    "resources": resources,
  }


def prepare_config(config: Any) -> tuple[pathlib.Path, Tokenizer]:
  """`prepare` with the `data` section and length of a ConfigDict."""
  return prepare(**_arguments(config))


def main(argv: list[str]) -> None:
  """The verb: prepares what --config describes and prints the folder."""
  del argv
  try:
    folder, _ = prepare_config(flags.FLAGS["config"].value)
  except TrueNegsError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
  print(folder)


if __name__ == "__main__":
  config_flag.define()
  config_flag.run(main)
