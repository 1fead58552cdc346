"""Prepares rows: text -> vocabulary -> rows folder.

  folder, tokenizer = prepare("texts/*.txt", length=128, vocab="vocab.txt")

Rows that an earlier call prepared from the same text and options are reused,
and a preparation that was stopped is resumed, even after SIGKILL.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from truenegs_jax.config.sections import Data
from truenegs_jax.data import build, layouts, rows, sources
from truenegs_jax.data import manifest as manifest_lib
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data.build import BuildSpec, RowsOptions
from truenegs_jax.data.sources import Corpus
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.runtime import cache, errors, files, progress
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.paths import is_bucket, open_path

MARKER = "fingerprint"  # of the options, beside the records
CGROUP_QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")


@dataclasses.dataclass(frozen=True)
class Plan:
  """A rows folder and how to prepare it. Only `options` decide the rows."""

  folder: pathlib.Path  # where the rows are or will be
  options: RowsOptions
  corpus: Corpus | None  # None if the rows exist, but not their text
  tokenizer: Tokenizer | None  # None to train one
  data: Data  # of the config
  # Processes; scripts need `if __name__ == "__main__":` above 1.
  num_workers: int
  open_corpus: Callable[[], Corpus]  # on machines of a runner; picklable
  runner: str = ""  # of Beam, instead of this process and its workers
  beam: tuple[str, ...] = ()  # options of the runner

  def is_prepared(self) -> bool:
    """Returns whether the rows exist."""
    return (self.folder / rows.MANIFEST).exists()  # written last

  @property
  def store(self) -> pathlib.Path:
    """The folder in which the rows are built."""
    if is_bucket(self.folder):
      return self.folder
    return self.folder.with_name(f".{self.folder.name}.unfinished")


def prepare(
  sources: str, *, length: int, **data: Any
) -> tuple[pathlib.Path, Tokenizer]:
  """Prepares rows, unless they exist; returns their folder and tokenizer.

  The language is not checked.

  Args:
    length: tokens per row.
    data: other keys of a config's section `data`; one worker by default.
  """
  data = {"sources": sources, "language": "", "workers": 1, **data}
  return execute_plan(make_plan(Data(**data), length))


def make_plan(data: Data, length: int, reader: Any = None) -> Plan:
  """Checks options and chooses the folder; reads no text, writes nothing.

  The source "wordnet" needs a `reader`; `data.wordnet_dir` is not read.
  """
  layouts.check_layout(data.layout, length=length, overflow=data.overflow)
  named = open_path("data.rows", data.rows).resolve() if data.rows else None
  open_text = functools.partial(
    sources.open_corpus,
    data.sources,
    errors=data.errors,
    stopping=data.stopping,
    expect=data.expect,
    reader=reader,
  )
  corpus: Corpus | None = None
  try:
    corpus = open_text()
    identity = corpus.identity()
  except errors.UnavailableError as error:
    if not named or not (named / rows.MANIFEST).exists():
      raise
    _say(f"{errors.printable(error)}\nUsing the rows in '{named}'.")
    identity = rows.read_manifest(named)["options"]["sources"]
  given = None
  vocabulary = f"train:{data.vocab_size}"
  lowercase = data.lowercase
  strip_accents = tokenizer_lib.ACCENTS[data.accents]
  if strip_accents is None:
    strip_accents = lowercase
  if data.vocab != "train":
    given = _open_vocabulary(data)
    vocabulary = given.fingerprint
    lowercase = given.lowercase
    strip_accents = given.strip_accents
  options = RowsOptions(
    sources=identity,
    vocabulary=vocabulary,
    length=length,
    lowercase=lowercase,
    strip_accents=strip_accents,
    layout=data.layout,
    overflow=data.overflow,
    held_out=data.held_out,
    seed=data.seed,
  )
  default = cache.folder().resolve() / "rows" / _fingerprint(options)
  return Plan(
    named or default,
    options,
    corpus,
    given,
    data,
    data.workers or _available_cores(),
    open_text,
  )


def _open_vocabulary(data: Data) -> Tokenizer:
  """Loads `data.vocab`; warns of one that is likely to be for capitals."""
  tokenizer = tokenizer_lib.build_tokenizer(data, data.vocab)
  if tokenizer.definition:
    if data.tokenizer != "fast":
      raise errors.InputError(
        f"data.tokenizer={data.tokenizer!r} encodes with BERT's WordPiece, but"
        f" data.vocab={data.vocab!r} is another tokenizer. Set"
        " --config.data.tokenizer=fast."
      )
  elif tokenizer.lowercase:
    num_cased = sum(x != x.lower() and x[0] != "[" for x in tokenizer.vocab)
    if num_cased > len(tokenizer.vocab) / 10:
      _say(
        f"warning: data.vocab has {num_cased:,} entries with capitals, which"
        " text loses. For a cased one, set --config.data.lowercase=False."
      )
  return tokenizer


def execute_plan(plan: Plan) -> tuple[pathlib.Path, Tokenizer]:
  """Returns the rows folder of a plan, which it prepares, and its tokenizer."""
  folder = plan.folder
  is_found = plan.is_prepared()
  if plan.corpus and not is_found:
    if plan.num_workers > 1 or plan.runner:
      # A worker that ran this would wait for the lock of its parent.
      _check_main_guard()
    lock = folder
    if is_bucket(folder):
      name = files.short_sha256(str(folder))
      lock = cache.folder().resolve() / "rows" / name
    with files.lock_folder(lock):
      if not plan.is_prepared():  # no other process did it meanwhile
        _prepare(plan, plan.corpus)
  manifest_lib.check_options(folder, plan.options)
  if is_found:  # raises what a preparation would that `options` do not show
    manifest = rows.read_manifest(folder)
    sources.check_language(manifest["languages"], plan.data.language, _say)
    parts = plan.corpus.parts if plan.corpus else ()
    for part, entry in zip(parts, manifest["parts"], strict=False):
      if entry["records"] is not None:
        part.check_records(entry["records"])
  return folder, rows.load_vocabulary(folder)


def _prepare(plan: Plan, corpus: Corpus) -> None:
  console = progress.log_console()
  _say(f"Preparing {corpus} in '{plan.folder}'")
  if not corpus.is_local():
    _say("Reading from the Hugging Face hub or a bucket")
  with progress.working(console, "Checking the language of the text"):
    languages = sources.sample_languages(corpus)
    sources.check_language(languages, plan.data.language, _say)
  _open_store(plan)
  try:
    spec = BuildSpec(
      plan.store,
      plan.tokenizer or _find_or_train_vocabulary(plan, corpus),
      plan.options,
      build.choose_held_out(corpus, plan.options),
      build.choose_slice_size(corpus.num_bytes),
      plan.data.tokenizer,
    )
    _build(plan, corpus, spec)
    corpus.check_unchanged(plan.options.sources)
    manifest = manifest_lib.write_manifest(spec, corpus, languages)
  except DataError as error:
    # The shards are useless for repaired text, but not if a disk or a network
    # works again. An error of a runner does not tell its cause.
    may_recover = isinstance(error.__cause__, OSError) or not corpus.is_local()
    if not (may_recover or plan.runner):
      _discard(plan.store)
    raise
  if plan.store != plan.folder:
    with files.disk_errors(plan.folder):
      files.sync(plan.store)
      os.replace(plan.store, plan.folder)
      files.sync(plan.folder.parent)
  files.remove_folder(plan.folder / build.RECORDS)
  _say(_describe(manifest))


def _build(plan: Plan, corpus: Corpus, spec: BuildSpec) -> None:
  if plan.runner:
    units = [
      (index, unit)
      for index, part in enumerate(corpus.parts)
      for unit in range(part.num_units)
    ]
    build.build_on_beam(
      spec, plan.open_corpus, units, runner=plan.runner, options=plan.beam
    )
    return
  with progress.working(progress.log_console(), "Building rows") as show:

    def show_size(size: int) -> None:
      done = None
      if corpus.num_bytes:
        done = min(1.0, size / corpus.num_bytes)
      show(done, f"{size / 1e6:,.1f} MB")

    workers = plan.num_workers
    build.build_here(spec, corpus, num_workers=workers, progress=show_size)


def _open_store(plan: Plan) -> None:
  """Creates the folder of unfinished rows, if it is none of these options."""
  store = plan.store
  marker = store / build.RECORDS / MARKER
  fingerprint = _fingerprint(plan.options)
  with files.disk_errors(store):
    if store != plan.folder:
      _check_unused(plan.folder)
    if not marker.exists():
      _check_unused(store, build.RECORDS)
    elif marker.read_text(encoding="utf-8") != fingerprint:
      _discard(store)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text(fingerprint)  # in part, it is one of other options


def _check_unused(path: pathlib.Path, *names: str) -> None:
  """Raises DataError for a folder with other files than these."""
  is_used = path.is_file()
  if path.is_dir():
    is_used = any(x.name not in names for x in path.iterdir())
  if is_used:
    raise DataError(
      f"data.rows: '{path}' exists and is not empty. Remove it, or set"
      " --config.data.rows to another folder."
    )


def _discard(store: pathlib.Path) -> None:
  """Removes unfinished rows, and nothing else in a bucket."""
  if is_bucket(store):
    for path in store.iterdir():
      if rows.is_shard_name(path.name):
        path.unlink()
    files.remove_folder(store / build.RECORDS)
  else:
    files.remove_folder(store)


def _find_or_train_vocabulary(plan: Plan, corpus: Corpus) -> Tokenizer:
  """Returns the vocabulary of the text, also one that was trained before."""
  from truenegs_jax.data.vocabulary import train_vocabulary

  options: dict[str, Any] = {
    "lowercase": plan.options.lowercase,
    "strip_accents": plan.options.strip_accents,
  }
  folder = plan.store / build.RECORDS
  path = folder / tokenizer_lib.VOCABULARY
  if path.exists():
    return tokenizer_lib.load_tokenizer(str(path), **options)
  console = progress.log_console()
  num_chars = 0

  def read() -> Iterator[str]:
    nonlocal num_chars
    for text in corpus:
      num_chars += len(text)
      yield text

  with progress.working(console, "Training the vocabulary") as show:

    def show_note(note: str) -> None:
      done = None
      if corpus.num_bytes and num_chars < corpus.num_bytes:
        done = num_chars / corpus.num_bytes
      show(done, f"{num_chars / 1e6:,.1f} MB, {note}")

    size = plan.data.vocab_size
    try:
      vocab = train_vocabulary(read(), size=size, progress=show_note, **options)
    except InputError:
      _discard(plan.store)
      raise
  _say(f"Trained a vocabulary of {len(vocab):,} entries")
  tokenizer = tokenizer_lib.make_tokenizer(vocab, **options)
  manifest_lib.write_vocabulary(tokenizer, folder)
  return tokenizer


def _describe(manifest: dict[str, Any]) -> str:
  """Describes rows: their number, and the repairs of the text."""
  splits = manifest["splits"]
  lines = [
    f"{splits['train']['rows']:,} rows of {manifest['options']['length']}"
    f" tokens to train on ({splits['train']['padding_share']:.1%} padding),"
    f" {splits['held_out']['rows']:,} held out"
  ]
  if lost_share := manifest["lost_share"]:
    lines.append(f"  {lost_share:.1%} of the tokens are lost (data.overflow)")
  lines += [f"  {n:,} {name}" for name, n in manifest["repairs"].items()]
  return "\n".join(lines)


def _say(text: str) -> None:
  progress.log_console().print(text, soft_wrap=True)


def _fingerprint(options: RowsOptions) -> str:
  """Returns 16 hex digits of a hash of everything that decides the rows."""
  values = {"version": rows.VERSION, **dataclasses.asdict(options)}
  return rows.hash_json(values)


def _check_main_guard() -> None:
  """Raises InputError in a worker that runs the script of its parent again."""
  if multiprocessing.current_process().name != "MainProcess":
    raise InputError(
      "Rows cannot be prepared in a child process with several workers. If this"
      " is a script without `if __name__ == '__main__':` around the call, add"
      " it. Otherwise set num_workers=1."
    )


def _available_cores() -> int:
  """Counts the cores that `taskset`, Slurm or a container allow."""
  cores = len(os.sched_getaffinity(0))
  with contextlib.suppress(OSError, ValueError):  # there may be no quota
    quota, period = CGROUP_QUOTA.read_text().split()
    cores = min(cores, max(1, int(quota) // int(period)))
  return cores
