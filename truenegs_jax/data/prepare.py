"""Prepares rows: text -> vocabulary -> rows folder.

  folder, tokenizer = prepare("texts/*.txt", length=128, vocab="vocab.txt")

Rows that an earlier call prepared from the same text and options are reused,
and a preparation that was stopped is resumed, even after SIGKILL.
"""

import collections
import dataclasses
import functools
import json
import multiprocessing
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from truenegs_jax.config.sections import REQUIRED, Data
from truenegs_jax.data import build, rows, sources, tokenizer_files, vocabulary
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data.build import BuildSpec, RowsOptions
from truenegs_jax.data.sources import Corpus
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.runtime import errors, files, progress
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.paths import cache_folder, is_bucket, open_path
from truenegs_jax.runtime.text import is_url

RECORDS = "unfinished-"  # and what decides the rows: a folder beside them
STARTED = "started"  # file in it, as a bucket has no empty folders
# Shards, and temporary files of a process that was killed.
REMOVABLE = re.compile(rf"{rows.SHARD_NAME.pattern}|\..*\.[0-9a-f]{{16}}")
RECORDS_NAME = re.compile(f"{RECORDS}[0-9a-f]{{16}}")
Shards = list[tuple[str, int]]  # names, and how many leading rows of each
Records = dict[str, dict[str, int]]  # bytes and crc32 by name of file


@dataclasses.dataclass(frozen=True)
class Plan:
  """A rows folder and how to prepare it. Only `options` decide the rows."""

  folder: pathlib.Path  # where the rows are or will be
  options: RowsOptions
  corpus: Corpus | None  # None if the rows exist, but not their text
  tokenizer: Tokenizer | None  # None to train one
  data: Data  # of the config
  open_corpus: Callable[[], Corpus]  # on machines of a runner; picklable
  runner: str = ""  # of Beam, instead of this process and its workers
  beam: tuple[str, ...] = ()  # options of the runner

  def is_prepared(self) -> bool:
    """Returns whether the rows exist."""
    return (self.folder / rows.MANIFEST).exists()  # written last


def prepare(
  sources: str, *, length: int, **data: Any
) -> tuple[pathlib.Path, Tokenizer]:
  """Prepares rows, unless they exist; returns their folder and tokenizer.

  Args:
    length: tokens per row.
    data: other keys of a config's section `data`; one worker by default, since
      scripts need `if __name__ == "__main__":` for more.
  """
  data = {"sources": sources, "workers": 1, **data}
  return execute_plan(make_plan(Data(**data), length))


def make_plan(
  data: Data, length: int, open_wordnet: Callable[[], Any] | None = None
) -> Plan:
  """Checks options and chooses the folder; reads no text, writes nothing.

  `open_wordnet` opens WordNet for the source "wordnet".
  """
  if data.sources == REQUIRED:
    raise InputError(
      "data.sources is not set: this config trains on your own text. Set"
      " --config.data.sources='texts/*.txt', for example: files, folders, globs"
      " or hf:NAME, separated by commas."
    )
  named = open_path("data.rows", data.rows).resolve() if data.rows else None
  open_text = functools.partial(
    sources.open_corpus, data.sources, open_wordnet=open_wordnet
  )
  corpus: Corpus | None = None
  try:
    corpus = open_text()
    identity = corpus.identity()
  except errors.UnavailableError as error:
    if not named or not (named / rows.MANIFEST).exists():
      raise
    progress.say(f"{errors.printable(error)}\nUsing the rows in '{named}'.")
    identity = rows.read_manifest(named)["options"]["sources"]
  given = None
  words = f"train:{data.vocab_size}"
  lowercase = data.lowercase
  strip_accents = tokenizer_lib.ACCENTS[data.accents]
  if strip_accents is None:
    strip_accents = lowercase
  if data.vocab != "train":
    given = tokenizer_files.build_tokenizer(data, data.vocab)
    words = given.fingerprint
    lowercase = given.lowercase
    strip_accents = given.strip_accents
    _warn_of_capitals(given)
  options = RowsOptions(
    sources=identity,
    vocabulary=words,
    length=length,
    lowercase=lowercase,
    strip_accents=strip_accents,
    layout=data.layout,
    held_out=data.held_out,
  )
  folder = named or cache_folder().resolve() / "rows" / _fingerprint(options)
  return Plan(folder, options, corpus, given, data, open_text)


def _warn_of_capitals(tokenizer: Tokenizer) -> None:
  """Warns if text loses the capitals that a tenth of a vocabulary has."""
  num_cased = sum(x != x.lower() for x in tokenizer.vocab)
  is_cased = num_cased > len(tokenizer.vocab) / 10
  if is_cased and tokenizer.lowercase and not tokenizer.definition:
    progress.say(
      f"warning: {num_cased:,} entries of data.vocab have capitals, but text"
      " loses them. If it is a cased one, set --config.data.lowercase=False."
    )


def execute_plan(plan: Plan) -> tuple[pathlib.Path, Tokenizer]:
  """Returns the rows folder of a plan, which it prepares, and its tokenizer."""
  folder = plan.folder
  if plan.corpus and not plan.is_prepared():
    is_child = multiprocessing.current_process().name.startswith("SpawnProcess")
    if is_child and plan.data.workers != 1:
      # It may be a worker, which would wait for the lock of its parent.
      raise InputError(
        "Rows are not prepared in a child process. If this is a script, put the"
        " call under `if __name__ == '__main__':`."
      )
    lock = folder
    if is_bucket(folder):
      lock = cache_folder().resolve() / "rows" / rows.hash_json(str(folder))
    with files.lock_folder(lock):
      if not plan.is_prepared():  # no other process did it meanwhile
        _prepare(plan, plan.corpus)
  manifest = rows.read_manifest(folder)
  _check_options(folder, manifest["options"], plan.options)
  return folder, rows.load_vocabulary(folder)


def _check_options(
  folder: pathlib.Path, saved: dict[str, Any], options: RowsOptions
) -> None:
  """Raises DataError if a rows folder was prepared with other options."""
  new = dataclasses.asdict(options)
  lines = [
    f"\n  {key}: {str(saved.get(key)):.300} in the folder,"
    f" {str(value):.300} now"
    for key, value in new.items()
    if value != saved.get(key)
  ]
  if lines:
    raise DataError(
      f"data.rows='{folder}' was prepared with other options:{''.join(lines)}\n"
      "Remove the folder, or set --config.data.rows to another one."
    )


def _check_place(folder: pathlib.Path, corpus: Corpus) -> None:
  """Raises InputError if the rows would become a part of their own text."""
  for part in corpus.parts:
    if not part.paths:  # no files
      continue
    where = part.spec.where
    if not is_url(where):
      where = os.path.realpath(os.path.expanduser(where))
    above = where.partition("**")[0].rstrip("/")
    names = rows.MANIFEST, *rows.OTHER_FILES, "train-00000-0000.tokens.npy"
    is_matched = any(
      pathlib.PurePath(str(folder), name).match(where) for name in names
    )
    if f"{folder}/".startswith(f"{above}/") or is_matched:
      raise InputError(
        f"data.rows: '{folder}' is in {part.spec.where!r} of data.sources, so"
        " its files would be read as text. Set --config.data.rows to a folder"
        " elsewhere."
      )


def _prepare(plan: Plan, corpus: Corpus) -> None:
  _check_place(plan.folder, corpus)
  progress.say(f"Preparing {corpus} in '{plan.folder}'")
  records = _open_records(plan)
  spec = BuildSpec(
    plan.folder,
    records,
    plan.tokenizer or _find_or_train_vocabulary(plan, corpus, records),
    plan.options,
    build.choose_held_out(corpus, plan.options.held_out),
    build.choose_slice_size(corpus),
    plan.data.tokenizer,
  )
  _build(plan, corpus, spec)
  try:
    corpus.check_unchanged(plan.options.sources)
    manifest = _write_manifest(spec, corpus)
  except errors.UnavailableError:  # the text may still be the same
    raise
  except DataError:  # the shards are useless for another text
    for path in records.iterdir():
      if path.name != STARTED:
        path.unlink()
    raise
  files.remove_folder(records)
  splits = manifest["splits"]
  progress.say(
    f"{splits['train']['rows']:,} rows of {plan.options.length} tokens to train"
    f" on ({splits['train']['padding_share']:.1%} padding),"
    f" {splits['held_out']['rows']:,} held out"
  )


def _build(plan: Plan, corpus: Corpus, spec: BuildSpec) -> None:
  if plan.runner:
    build.build_on_beam(
      spec, corpus, plan.open_corpus, runner=plan.runner, options=plan.beam
    )
    return
  with progress.working(progress.log_console(), "Building rows") as show:

    def show_size(size: int) -> None:
      share = min(1.0, size / corpus.num_bytes) if corpus.num_bytes else None
      show(share, f"{size / 1e6:,.1f} MB")

    workers = plan.data.workers or build.available_cores()
    build.build_here(spec, corpus, num_workers=workers, progress=show_size)


def _open_records(plan: Plan) -> pathlib.Path:
  """Returns the folder of the records of these options, which it creates.

  Removes those of other options, whose shards are replaced from now on.
  Raises DataError for a folder with files of others.
  """
  folder = plan.folder
  records = folder / f"{RECORDS}{_fingerprint(plan.options)}"
  with files.disk_errors(folder):
    names = [x.name for x in folder.iterdir()] if folder.is_dir() else []
    is_own = any(map(RECORDS_NAME.fullmatch, names))
    if folder.is_file() or (names and not is_own):
      raise DataError(
        f"data.rows: '{folder}' exists and is not empty. Remove it, or set"
        " --config.data.rows to another folder."
      )
    records.mkdir(parents=True, exist_ok=True)
    (records / STARTED).write_text("")
  for name in names:
    if RECORDS_NAME.fullmatch(name) and name != records.name:
      files.remove_folder(folder / name)
  return records


def _find_or_train_vocabulary(
  plan: Plan, corpus: Corpus, folder: pathlib.Path
) -> Tokenizer:
  """Returns the vocabulary of the text, also one that was trained before."""
  options: dict[str, Any] = {
    "lowercase": plan.options.lowercase,
    "strip_accents": plan.options.strip_accents,
  }
  path = folder / tokenizer_lib.VOCABULARY
  if path.exists():
    return tokenizer_files.load_tokenizer(str(path), **options)
  console = progress.log_console()
  with progress.working(console, "Training the vocabulary") as show:
    vocab = vocabulary.train_vocabulary(
      corpus,
      size=plan.data.vocab_size,
      progress=lambda note: show(None, note),
      **options,
    )
  progress.say(f"Trained a vocabulary of {len(vocab):,} entries")
  tokenizer = tokenizer_lib.make_tokenizer(vocab, **options)
  tokenizer_files.write_tokenizer(tokenizer, folder)
  return tokenizer


def _write_manifest(spec: BuildSpec, corpus: Corpus) -> dict[str, Any]:
  """Completes a folder of shards; returns its manifest, which it writes last.

  Raises DataError if there are no rows.
  """
  records: Records = {}
  parts, shards_by_part = _sum_units(spec, corpus, records)
  shards: dict[str, Shards] = {split: [] for split in rows.SPLITS}
  for split, by_part in shards_by_part.items():
    for part, listed in zip(parts, by_part, strict=True):
      passes = part["passes"] if split == "train" else 1.0
      shards[split] += _repeat(listed, passes)
  if not any(shards.values()):
    raise DataError(
      f"data.sources: {corpus} gives 0 rows. It contains only blank or control"
      " characters. Add text."
    )
  tokenizer = spec.tokenizer
  splits = {}
  for split, listed in shards.items():
    counts_V = _count_tokens(spec, split, listed)
    num_rows = sum(count for _, count in listed)
    size = max(1, num_rows * spec.options.length)
    share = float(1 - counts_V.sum() / size) if listed else 0.0
    entry = {"rows": num_rows, "padding_share": round(share, 6)}
    splits[split] = {**entry, "shards": listed}
    if split == "train":  # of all that can be masked, as [UNK]
      counts_V[[tokenizer.cls, tokenizer.sep, tokenizer.mask]] = 0
      data = build.save_array(counts_V)
      path = spec.folder / rows.UNIGRAMS
      records[rows.UNIGRAMS] = build.write_file(path, data)
  tokenizer_files.write_tokenizer(tokenizer, spec.folder)
  for name, text in tokenizer.files.items():
    records[name] = rows.data_record(text.encode())
  names = ("fingerprint", "lowercase", "strip_accents", "pad")
  saved = {name: getattr(tokenizer, name) for name in names}
  manifest: dict[str, Any] = {
    "version": rows.VERSION,
    "tokenizer": {"size": len(tokenizer.vocab), **saved},
    "splits": splits,
    "files": dict(sorted(records.items())),
  }
  # Covers the content only, so a copied text gives the same fingerprint.
  manifest["fingerprint"] = rows.hash_json(manifest)
  manifest["options"] = dataclasses.asdict(spec.options)
  manifest["parts"] = parts
  for path in spec.folder.iterdir():
    if REMOVABLE.fullmatch(path.name) and path.name not in records:
      path.unlink()
  content = {**manifest, "checksum": rows.hash_json(manifest)}
  text = json.dumps(content, indent=1) + "\n"
  build.write_file(spec.folder / rows.MANIFEST, text.encode())
  return manifest


def _sum_units(
  spec: BuildSpec, corpus: Corpus, files: Records
) -> tuple[list[dict[str, Any]], dict[str, list[Shards]]]:
  """Returns counts of each part, and the shards of each split and part.

  Adds the records of their files. Raises DataError for a part without text.
  """
  parts: list[dict[str, Any]] = [
    {"documents": 0, "text_bytes": 0} for _ in corpus.parts
  ]
  shards: dict[str, list[Shards]] = {
    split: [[] for _ in corpus.parts] for split in rows.SPLITS
  }
  for unit in corpus.units:
    name = build.unit_name(corpus, unit)
    record = spec.read_record(name)
    part = parts[unit[0]]
    part["documents"] += record["documents"]
    part["text_bytes"] += record["text_bytes"]
    for number in range(record["slices"]):
      shard = build.slice_name(name, number)
      about = spec.read_record(shard)
      for split, by_part in shards.items():
        if count := about[split]["rows"]:
          by_part[unit[0]].append((shard, count))
          for field in rows.FIELDS:
            file = rows.shard_name(split, shard, field)
            files[file] = about["files"][file]
  passes = corpus.passes([part["text_bytes"] for part in parts])
  for part, times in zip(parts, passes, strict=True):
    part["passes"] = round(times, 6)
  return parts, shards


def _repeat(shards: Shards, passes: float) -> Shards:
  """Lists shards as often as they are read; the last time the first rows."""
  num_whole = int(passes)
  listed = shards * num_whole
  left = round((passes - num_whole) * sum(count for _, count in shards))
  for name, count in shards:
    if left > 0:
      listed.append((name, min(count, left)))
      left -= count
  return listed


def _count_tokens(spec: BuildSpec, split: str, shards: Shards) -> np.ndarray:
  """Counts the entries of the vocabulary in the listed rows, int64 [V].

  Of some rows of a shard, they are a share of those of all of its rows.
  """
  num_rows = collections.Counter[str]()
  for name, count in shards:
    num_rows[name] += count
  total_V = np.zeros(len(spec.tokenizer.vocab), np.int64)
  for name, count in num_rows.items():
    record = spec.read_record(name)[split]
    share = count / record["rows"]
    total_V += np.rint(share * np.array(record["counts"])).astype(np.int64)
  return total_V


def _fingerprint(options: RowsOptions) -> str:
  """Returns 16 hex digits of a hash of everything that decides the rows."""
  values = {"version": rows.VERSION, **dataclasses.asdict(options)}
  return rows.hash_json(values)
