"""Prepares rows: text -> vocabulary -> rows folder.

  folder, tokenizer = prepare("texts/*.txt", length=128, vocab="vocab.txt")

Rows that an earlier call prepared from the same text and options are reused,
and a preparation that was stopped is resumed.
"""

import dataclasses
import functools
import pathlib
import shutil
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

from truenegs_jax.config.sections import Data
from truenegs_jax.data.corpus import language
from truenegs_jax.data.corpus.corpus import Corpus, Meter
from truenegs_jax.data.corpus.readers import WordNetReader
from truenegs_jax.data.corpus.sources_spec import open_corpus
from truenegs_jax.data.rows import layouts, shards, steps, store, worker_pool
from truenegs_jax.data.rows.rows_folder import (
  MANIFEST,
  RowsOptions,
  check_options,
  load_vocabulary,
  read_manifest,
  rows_fingerprint,
)
from truenegs_jax.data.tokens import tokenizer as tokenizer_lib
from truenegs_jax.data.tokens import train_vocabulary
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime import cache, progress
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  UnavailableError,
  printable,
)
from truenegs_jax.runtime.files import check_local, lock_folder


@dataclasses.dataclass(frozen=True)
class Plan:
  """A rows folder and how to prepare it."""

  folder: pathlib.Path  # where the rows are or will be
  options: RowsOptions
  corpus: Corpus | None  # None if the rows exist, but their text is missing
  open_corpus: Callable[[], Corpus]  # picklable
  tokenizer: Tokenizer | None  # None if the vocabulary is trained
  num_workers: int  # 1 or more
  data: Data
  # (i, n) does one n-th of the work. Jobs may run at the same time, on several
  # machines with a common file system.
  job: tuple[int, int] = steps.ONLY_JOB
  # Builds the rows on machines that share the text and the folder; None for
  # this process and its workers.
  engine: steps.Engine | None = None
  # URL of a folder that these machines share instead; the rows are copied from
  # it at the end.
  bucket: str = ""

  def is_prepared(self) -> bool:
    """Returns whether the rows exist."""
    return (self.folder / MANIFEST).exists()  # written last


def prepare(
  sources: str, *, length: int, **data: Any
) -> tuple[pathlib.Path, Tokenizer]:
  """Prepares rows, unless they exist, without a check of the language.

  Args:
    length: tokens per row.
    data: other keys of a config's section `data`; one worker by default.

  Returns:
    The rows folder and its tokenizer (`vocab.txt` in the folder).

  Raises:
    InputError: an option or the vocabulary is invalid.
    DataError: the text is unusable, or the folder has rows of other options.
    DiskError: a file cannot be written.
  """
  data = {"sources": sources, "language": "", "workers": 1, **data}
  return execute_plan(make_plan(Data(**data), length))


def make_plan(
  data: Data, length: int, *, reader: WordNetReader | None = None
) -> Plan:
  """Checks options and chooses the folder; reads no text, writes nothing.

  `reader` is needed by the source "wordnet".
  """
  layouts.check_layout(data.layout, length=length, overflow=data.overflow)
  check_local("data.rows", data.rows)
  named = None
  if data.rows:
    named = pathlib.Path(data.rows).expanduser().resolve()
  open_text = functools.partial(
    open_corpus,
    data.sources,
    errors=data.errors,
    stopping=data.stopping,
    reader=reader,
  )
  corpus: Corpus | None = None
  try:
    corpus = open_text()
    identity = corpus.identity()
  except UnavailableError as error:
    if not named or not (named / MANIFEST).exists():
      raise
    message = f"{printable(error)}\nUsing the rows in '{named}'."
    progress.log_console().print(message, soft_wrap=True)
    identity = read_manifest(named)["options"]["sources"]
  strip_accents = tokenizer_lib.ACCENTS[data.accents]
  if strip_accents is None:
    strip_accents = data.lowercase
  normalizer = {"lowercase": data.lowercase, "strip_accents": strip_accents}
  tokenizer, vocabulary = None, f"train:{data.vocab_size}"
  if data.vocab != "train":
    tokenizer = tokenizer_lib.load_tokenizer(data.vocab, **normalizer)
    vocabulary = tokenizer.fingerprint
  rows_options = RowsOptions(
    sources=identity,
    vocabulary=vocabulary,
    **normalizer,
    length=length,
    layout=data.layout,
    overflow=data.overflow,
    held_out=data.held_out,
    seed=data.seed,
  )
  fingerprint = rows_fingerprint(rows_options)
  folder = named or cache.folder().resolve() / "rows" / fingerprint
  num_workers = data.workers or worker_pool.available_cores()
  return Plan(
    folder, rows_options, corpus, open_text, tokenizer, num_workers, data
  )


def execute_plan(plan: Plan) -> tuple[pathlib.Path, Tokenizer]:
  """Returns the rows folder of a plan, which it prepares, and its tokenizer."""
  result = execute_job(plan)
  assert result is not None, "other jobs have shards to build"
  return result


def execute_job(plan: Plan) -> tuple[pathlib.Path, Tokenizer] | None:
  """Prepares the part of the rows that is `plan.job`, unless they exist.

  Returns:
    The rows folder and its tokenizer, or None while other jobs have shards to
    build. The rows are the same as those of one process.
  """
  is_only = plan.job == steps.ONLY_JOB
  if plan.corpus and not plan.is_prepared():
    if plan.num_workers > 1:
      # A worker that ran this would wait for the lock of its parent.
      worker_pool.check_main_guard()
    with lock_folder(plan.folder, shared=not is_only):
      if not plan.is_prepared():  # no other process did it meanwhile
        shard_set = _build(plan, plan.corpus)
        if is_only:
          _finish(plan, shard_set)
    if not plan.is_prepared():
      if not shard_set.is_complete():
        return None
      with lock_folder(plan.folder):  # waits for the other jobs
        if not plan.is_prepared():
          _finish(plan, shard_set)
  elif (unfinished := store.unfinished_folder(plan.folder)).exists():
    with lock_folder(plan.folder):  # a process was killed after renaming
      shutil.rmtree(unfinished, ignore_errors=True)
  check_options(plan.folder, plan.options)
  return plan.folder, load_vocabulary(plan.folder)


def _build(plan: Plan, corpus: Corpus) -> shards.ShardSet:
  console = progress.log_console()
  say = functools.partial(console.print, soft_wrap=True)
  say(f"Preparing {corpus} in '{plan.folder}'")
  if not corpus.is_local():
    say("Reading from the Hugging Face hub or a bucket")
  with progress.working(console, "Checking the language of the text"):
    excerpts = language.sample_corpus(corpus)
    language.check_language(excerpts, plan.data.language, say)
  tokenizer = plan.tokenizer or _find_or_train_vocabulary(plan, corpus, console)
  with progress.working(console, "Building rows") as show:
    return steps.build_shards(
      plan.folder,
      corpus,
      tokenizer,
      plan.options,
      backend=plan.data.tokenizer,
      num_workers=plan.num_workers,
      job=plan.job,
      engine=plan.engine,
      open_corpus=plan.open_corpus,
      bucket=plan.bucket,
      progress=_text_progress(show),
    )


def _find_or_train_vocabulary(
  plan: Plan, corpus: Corpus, console: Console
) -> Tokenizer:
  """Returns the vocabulary of the text, which the first of all jobs trains."""
  options = {
    "lowercase": plan.options.lowercase,
    "strip_accents": plan.options.strip_accents,
  }
  with lock_folder(plan.folder, "vocabulary.lock"):
    temporary = steps.open_unfinished(plan.folder, plan.options, job=plan.job)
    path = temporary / "vocab.txt"
    if path.exists():
      return tokenizer_lib.load_tokenizer(str(path), **options)
    meter = Meter()
    try:
      with progress.working(console, "Training the vocabulary") as show:
        show_text = _text_progress(show)

        def show_progress(
          size: int, note: str, *, at_once: bool = False
        ) -> None:
          # Merging pieces, after all text is read, takes an unknown time.
          done = None if meter.fraction_read == 1 else meter.fraction_read
          show_text(size, done, note, at_once=at_once)

        vocab = train_vocabulary.train_vocabulary(
          (document.text for document in corpus.read(meter)),
          size=plan.data.vocab_size,
          progress=show_progress,
          **options,
        )
    except (InputError, DataError):
      shutil.rmtree(temporary, ignore_errors=True)
      raise
    console.print(f"Trained a vocabulary of {len(vocab):,} entries")
    tokenizer_lib.write_vocabulary(vocab, path)
    return tokenizer_lib.load_tokenizer(str(path), **options)


def _text_progress(show: Callable[..., None]) -> Callable[..., None]:
  """Shows size and rate of the text that was read: "35.6 MB, 9.8 MB/s"."""
  start = time.monotonic()

  def show_text(
    size: int, done: float | None, note: str, *, at_once: bool = False
  ) -> None:
    rate = size / 1e6 / max(time.monotonic() - start, 1e-9)
    text = f"{size / 1e6:,.1f} MB, {rate:.1f} MB/s, {note}"
    show(done, text, at_once=at_once)

  return show_text


def _finish(plan: Plan, shard_set: shards.ShardSet) -> None:
  """Writes the manifest; prints the number of rows, the parts and repairs."""
  manifest = shards.finish(plan.folder, shard_set)
  splits, parts = manifest["splits"], manifest["parts"]
  lines = [
    f"{splits['train']['rows']:,} rows of {manifest['options']['length']}"
    f" tokens to train on ({splits['train']['padding_share']:.1%} padding),"
    f" {splits['held_out']['rows']:,} held out"
  ]
  if lost_share := manifest["lost_share"]:
    lines.append(f"  {lost_share:.1%} of the tokens are lost (data.overflow)")
  total = max(1, sum(part["text_bytes"] for part in parts))
  for entry, part in zip(parts, shard_set.corpus.parts, strict=True):
    if len(parts) > 1:
      share, passes = entry["text_bytes"] / total, entry["passes"]
      repeats = f", read up to {passes} times" if passes > 1 else ""
      lines.append(f"  {share:6.1%} of the text: {part.name}{repeats}")
  lines += [f"  {n:,} {name}" for name, n in manifest["repairs"].items()]
  progress.log_console().print("\n".join(lines), soft_wrap=True)
