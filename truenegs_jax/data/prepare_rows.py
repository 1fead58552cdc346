"""Prepares rows: text -> vocabulary -> rows folder.

  folder, tokenizer = prepare("texts/*.txt", length=128, vocab="vocab.txt")

Rows that an earlier call prepared from the same text and options are reused,
and a preparation that was stopped is resumed.
"""

import dataclasses
import functools
import pathlib
import shutil
from typing import Any

from rich.console import Console

from truenegs_jax.config.sections import Data
from truenegs_jax.data import engines, layouts, shards, steps
from truenegs_jax.data import rows as folder_lib
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data import vocabulary as vocabulary_lib
from truenegs_jax.data.corpus import language as language_lib
from truenegs_jax.data.corpus.corpus import Corpus, ReadCounts
from truenegs_jax.data.corpus.readers import WordNetReader
from truenegs_jax.data.corpus.sources_spec import open_corpus
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.runtime import cache, errors, progress
from truenegs_jax.runtime.files import lock_folder
from truenegs_jax.runtime.paths import is_bucket, open_path


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


def make_plan(
  data: Data, length: int, reader: WordNetReader | None = None
) -> steps.Plan:
  """Checks options and chooses the folder; reads no text, writes nothing.

  The source "wordnet" needs `reader`; `data.wordnet_dir` is not read.
  """
  layouts.check_layout(data.layout, length=length, overflow=data.overflow)
  named = open_path("data.rows", data.rows).resolve() if data.rows else None
  open_text = functools.partial(
    open_corpus,
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
    if not named or not (named / folder_lib.MANIFEST).exists():
      raise
    message = f"{errors.printable(error)}\nUsing the rows in '{named}'."
    progress.log_console().print(message, soft_wrap=True)
    identity = folder_lib.read_manifest(named)["options"]["sources"]
  given = None
  vocabulary = f"train:{data.vocab_size}"
  lowercase = data.lowercase
  strip_accents = tokenizer_lib.ACCENTS[data.accents]
  if strip_accents is None:
    strip_accents = lowercase
  if data.vocab != "train":
    given = tokenizer_lib.build_tokenizer(data, data.vocab)
    vocabulary = given.fingerprint
    lowercase = given.lowercase
    strip_accents = given.strip_accents
    if given.definition and data.tokenizer != "fast":
      raise errors.InputError(
        f"data.tokenizer={data.tokenizer!r} encodes with BERT's WordPiece, but"
        f" data.vocab={data.vocab!r} is another tokenizer. Set"
        " --config.data.tokenizer=fast."
      )
    if lowercase and not given.definition:
      _warn_of_capitals(given)
  options = folder_lib.RowsOptions(
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
  default = cache.folder().resolve() / "rows"
  return steps.Plan(
    named or default / folder_lib.rows_fingerprint(options),
    options,
    corpus,
    given,
    data=data,
    num_workers=data.workers or engines.available_cores(),
    open_corpus=open_text,
  )


def _warn_of_capitals(tokenizer: Tokenizer) -> None:
  """Warns of a vocabulary that is likely to be for text with capitals."""
  num_cased = sum(x != x.lower() and x[0] != "[" for x in tokenizer.vocab)
  if num_cased > len(tokenizer.vocab) / 10:
    progress.log_console().print(
      f"warning: data.vocab has {num_cased:,} entries with capitals, which"
      " text loses. For a cased one, set --config.data.lowercase=False.",
      soft_wrap=True,
    )


def execute_plan(plan: steps.Plan) -> tuple[pathlib.Path, Tokenizer]:
  """Returns the rows folder of a plan, which it prepares, and its tokenizer."""
  folder = plan.folder
  is_found = plan.is_prepared()
  local = shards.local_folder(folder)
  if plan.corpus and not is_found:
    if plan.num_workers > 1:
      # A worker that ran this would wait for the lock of its parent.
      engines.check_main_guard()
    with lock_folder(local):
      if not plan.is_prepared():  # no other process did it meanwhile
        _finish(folder, _build(plan, plan.corpus))
  elif (unfinished := shards.unfinished_folder(folder)).exists():
    with lock_folder(local):  # a process was killed after renaming
      shutil.rmtree(unfinished, ignore_errors=True)
  folder_lib.check_options(folder, plan.options)
  if is_found:  # raises what a preparation would that `options` do not show
    manifest = folder_lib.read_manifest(folder)
    say = functools.partial(progress.log_console().print, soft_wrap=True)
    language_lib.check_language(manifest["languages"], plan.data.language, say)
    parts = plan.corpus.parts if plan.corpus else ()
    for part, entry in zip(parts, manifest["parts"], strict=False):
      part.check_records(entry["records"])
  return folder, folder_lib.load_vocabulary(folder)


def _build(plan: steps.Plan, corpus: Corpus) -> shards.ShardSet:
  console = progress.log_console()
  say = functools.partial(console.print, soft_wrap=True)
  say(f"Preparing {corpus} in '{plan.folder}'")
  if not corpus.is_local():
    say("Reading from the Hugging Face hub or a bucket")
  with progress.working(console, "Checking the language of the text"):
    excerpts = language_lib.sample_corpus(corpus)
    languages = language_lib.measure_languages(excerpts)
    language_lib.check_language(languages, plan.data.language, say)
  tokenizer = plan.tokenizer or _find_or_train_vocabulary(plan, corpus, console)
  with progress.working(console, "Building rows") as show:

    def show_size(size: int, done: float | None, note: str) -> None:
      show(done, f"{size / 1e6:,.1f} MB, {note}")

    shard_set = steps.build_shards(plan, corpus, tokenizer, show_size)
  return dataclasses.replace(shard_set, languages=languages)


def _find_or_train_vocabulary(
  plan: steps.Plan, corpus: Corpus, console: Console
) -> Tokenizer:
  """Returns the vocabulary of the text, also one that was trained before."""
  names = "lowercase", "strip_accents"
  options = {name: getattr(plan.options, name) for name in names}
  temporary = steps.open_unfinished(plan)
  path = temporary / "vocab.txt"
  if path.exists():
    return tokenizer_lib.load_tokenizer(str(path), **options)
  read_counts = ReadCounts()
  try:
    with progress.working(console, "Training the vocabulary") as show:
      vocab = vocabulary_lib.train_vocabulary(
        (document.text for document in corpus.read(read_counts)),
        size=plan.data.vocab_size,
        progress=lambda note: show(
          # Merging pieces, after all text is read, takes an unknown time.
          None if read_counts.fraction_read == 1 else read_counts.fraction_read,
          f"{read_counts.num_bytes / 1e6:,.1f} MB, {note}",
        ),
        **options,
      )
  except (errors.InputError, errors.DataError):
    shutil.rmtree(temporary, ignore_errors=True)
    raise
  console.print(f"Trained a vocabulary of {len(vocab):,} entries")
  tokenizer = tokenizer_lib.make_tokenizer(vocab, **options)
  tokenizer_lib.write_tokenizer(tokenizer, temporary)
  return tokenizer


def _finish(folder: pathlib.Path, shard_set: shards.ShardSet) -> None:
  """Writes the manifest; prints the number of rows, the parts and repairs."""
  console = progress.log_console()
  if is_bucket(folder):
    console.print(f"Copying the rows to '{folder}'", soft_wrap=True)
  manifest = shards.finish(folder, shard_set)
  splits = manifest["splits"]
  parts = manifest["parts"]
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
      share = entry["text_bytes"] / total
      passes = entry["passes"]
      repeats = f", read up to {passes} times" if passes > 1 else ""
      lines.append(f"  {share:6.1%} of the text: {part.name}{repeats}")
  lines += [f"  {n:,} {name}" for name, n in manifest["repairs"].items()]
  console.print("\n".join(lines), soft_wrap=True)
