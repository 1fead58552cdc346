"""Builds rows in a folder beside theirs: corpus -> `.FOLDER.unfinished`.

  chunk_set = build_chunks(folder, corpus, tokenizer, options, num_workers=4)
  manifest = write_shards.finish(folder, chunk_set)

If a preparation is stopped, even by SIGKILL, only the chunks in progress are
lost; the same call builds the missing ones.

A single job reads the corpus once. Several jobs, or the workers of an engine,
first count the documents of every unit of the corpus. The counts are files;
with all of them, each knows where its chunks begin and reads only their files.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from truenegs_jax.data.corpus.corpus import Corpus, Meter, Sizes
from truenegs_jax.data.rows import chunks, store, worker_pool, write_shards
from truenegs_jax.data.rows.chunks import ChunkSpec, ChunkStart
from truenegs_jax.data.rows.rows_folder import RowsOptions, rows_fingerprint
from truenegs_jax.data.rows.write_shards import ChunkSet
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import disk_errors, lock_folder
from truenegs_jax.runtime.locks import lock_file

ONLY_JOB = (0, 1)
UNFINISHED_VERSION = 2  # of the files in an unfinished folder
Unit = tuple[int, int]  # of a corpus: the part and its unit


def build_chunks(
  folder: pathlib.Path,
  corpus: Corpus,
  tokenizer: Tokenizer,
  options: RowsOptions,
  *,
  backend: str = "fast",
  num_workers: int = 1,
  job: tuple[int, int] = ONLY_JOB,
  engine: "Engine | None" = None,
  open_corpus: Callable[[], Corpus] | None = None,
  bucket: str = "",
  progress: Callable[..., object] = lambda *_: None,
) -> ChunkSet:
  """Builds the missing chunks and shards of a rows folder.

  Neither `backend`, `num_workers`, `job` nor `engine` change the rows.

  Args:
    backend: of the `Encoder`.
    num_workers: processes. Scripts need `if __name__ == "__main__":` above 1.
    job: (i, n) builds only the i-th of n equal ranges of the shards. The n
      calls may run at the same time.
    engine: builds all shards elsewhere, by the steps of a `Preparation`.
    open_corpus: opens the corpus there.
    bucket: URL of a folder in which the engine stores them meanwhile; empty to
      store them beside `folder`.
    progress: called after each chunk with the bytes of text so far, the
      fraction done (None if unknown), and a text for the user.

  Raises:
    DataError: the text is unusable, changed meanwhile, or `folder` exists.
    DiskError: a file cannot be written.
  """
  temporary = open_unfinished(folder, options, job=job)
  try:
    unit = chunks.choose_held_out_unit(corpus, options)
    where = temporary
    if bucket:
      name = f"{UNFINISHED_VERSION}-{rows_fingerprint(options)}"
      where = store.open_bucket(bucket, name)
    spec = ChunkSpec(where, tokenizer, options, unit, backend)
    if engine:
      assert open_corpus
      engine(Preparation(spec, open_corpus).steps())
      chunk_set, _ = find_chunks(spec, corpus)
    elif job == ONLY_JOB:
      meter = Meter()
      count = build_range(
        spec, corpus, meter, num_workers=num_workers, progress=progress
      )
      chunk_set = ChunkSet(spec, corpus, meter, count)
    else:
      chunk_set = _build_share(spec, corpus, num_workers, job, progress)
    corpus.check_unchanged(options.sources)
  except DataError as error:
    # The chunks are useless for repaired text, but not if a disk or a network
    # works again. An error of an engine does not tell its cause.
    may_recover = isinstance(error.__cause__, OSError) or not corpus.is_local()
    if job == ONLY_JOB and not (may_recover or engine):
      store.remove_store(temporary)
    raise
  return chunk_set


def measure_unfinished(folder: pathlib.Path) -> tuple[int, int]:
  """Returns the number of chunks that are built, and their bytes."""
  temporary = store.unfinished_folder(folder)
  single = [*temporary.glob("chunk-*.npz")]
  written = [*temporary.glob("shard-*.json")]
  size = 0
  for path in (*single, *temporary.glob("rows/*.npy")):
    with contextlib.suppress(FileNotFoundError):  # its shard is written now
      size += path.stat().st_size
  return len(single) + len(written) * write_shards.SHARD_CHUNKS, size


def open_unfinished(
  folder: pathlib.Path, options: RowsOptions, *, job: tuple[int, int]
) -> pathlib.Path:
  """Creates the unfinished folder, or returns that of an earlier call.

  A folder of other options is removed first, unless other jobs may use it.
  """
  if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
    raise DataError(
      f"data.rows='{folder}' exists and is not empty. Remove it, or set"
      " --config.data.rows to another folder."
    )
  temporary = store.unfinished_folder(folder)
  path = temporary / "fingerprint"
  fingerprint = f"{UNFINISHED_VERSION} {rows_fingerprint(options)}"
  with lock_folder(folder, "begin.lock"), disk_errors(temporary):
    earlier = path.read_text(encoding="utf-8") if path.exists() else ""
    if earlier and earlier != fingerprint and job != ONLY_JOB:
      raise DataError(
        f"data.rows: '{temporary}' belongs to jobs with other options or"
        " another text (or a copy of the text with other file times). Use the"
        " same for all jobs, or remove the folder."
      )
    if earlier != fingerprint:
      shutil.rmtree(temporary, ignore_errors=True)
      temporary.mkdir(parents=True)
      path.write_text(fingerprint, encoding="utf-8")
  return temporary


def find_chunks(
  spec: ChunkSpec, corpus: Corpus
) -> tuple[ChunkSet, list[ChunkStart | None]]:
  """Returns the chunks of a counted corpus, and their starts."""
  sizes, repairs = _read_counts(spec.folder, corpus)
  meter = Meter()
  starts: list[ChunkStart | None] = [None]
  for chunk in chunks.cut_corpus(
    corpus, spec.options, meter, held_out_unit=spec.held_out_unit, sizes=sizes
  ):
    starts.append(ChunkStart(chunk.number + 1, meter.position()))
  starts.pop()
  meter.repairs.update(repairs)
  return ChunkSet(spec, corpus, meter, len(starts)), starts


def build_range(
  spec: ChunkSpec,
  corpus: Corpus,
  meter: Meter,
  *,
  start: ChunkStart | None = None,
  stop: int | None = None,
  num_workers: int = 1,
  progress: Callable[..., object] = lambda *_: None,
) -> int:
  """Builds the missing chunks of a range, and their shards.

  Args:
    meter: counts the text that is read.
    start: of the first chunk, which begins a shard; None for the first.
    stop: the chunk after the last, which begins a shard or is the number of all
      chunks; None to read the corpus to its end.

  Returns:
    The number of the chunk after the last.
  """
  first = start.number if start else 0
  first_bytes = sum(start.position.part_bytes) if start else 0
  num_chunks, num_rows = first, 0
  shard = first // write_shards.SHARD_CHUNKS

  def missing_chunks() -> Iterator[chunks.Chunk]:
    nonlocal num_chunks
    cut = chunks.cut_corpus(
      corpus, spec.options, meter, held_out_unit=spec.held_out_unit, start=start
    )
    for chunk in itertools.islice(cut, stop and stop - first):
      num_chunks = chunk.number + 1
      if write_shards.is_built(spec, chunk.number):
        show_progress()
      else:
        yield chunk

  def show_progress() -> None:
    documents = sum(meter.part_documents)
    size = sum(meter.part_bytes) - first_bytes
    fraction = meter.fraction_read
    if stop:
      fraction = (num_chunks - first) / (stop - first)
    progress(size, fraction, f"{documents:,} documents, {num_rows:,} rows")

  def write_complete_shards(*, is_end: bool) -> None:
    nonlocal shard
    while members := write_shards.shard_chunks(shard, num_chunks):
      is_full = len(members) == write_shards.SHARD_CHUNKS
      if not is_end and not (
        is_full and all(write_shards.is_built(spec, x) for x in members)
      ):
        break
      write_shards.write_shard(spec, members)
      shard += 1

  make_builder = functools.partial(chunks.ChunkBuilder, spec)
  for rows in worker_pool.map_in_order(
    make_builder, missing_chunks(), num_workers=num_workers
  ):
    num_rows += rows
    show_progress()
    write_complete_shards(is_end=False)
  write_complete_shards(is_end=True)
  show_progress()
  return num_chunks


class Step(NamedTuple):
  """A function of items that are independent of each other.

  Both are pickled. Steps exchange nothing but files in the store of unfinished
  rows, so an item can be repeated, even at the same time, on any machine that
  has the store and the text.
  """

  name: str
  list_items: Callable[[], Sequence[Any]]  # when the step before it is done
  function: Callable[[Any], object]


Engine = Callable[[Sequence[Step]], object]  # runs one step after another


class ShardItem(NamedTuple):
  """A shard that is not written."""

  start: ChunkStart | None
  num_chunks: int  # of the corpus


@dataclasses.dataclass(frozen=True)
class Preparation:
  """A preparation in an unfinished folder, and how to open its text."""

  spec: ChunkSpec
  open_corpus: Callable[[], Corpus]

  @functools.cached_property
  def corpus(self) -> Corpus:
    """The corpus, opened once per process; DataError if it changed."""
    corpus = self.open_corpus()
    corpus.check_unchanged(self.spec.options.sources)
    return corpus

  def steps(self) -> list[Step]:
    """Returns all steps."""
    return [
      Step("Count documents", self.list_units, self.count_unit),
      Step("Build shards", self.list_shards, self.build_shard),
    ]

  def list_units(self) -> list[Unit]:
    """Returns the units that are not counted."""
    return [
      unit
      for unit in _list_units(self.corpus)
      if not _count_path(self.spec.folder, unit).exists()
    ]

  def count_unit(self, unit: Unit) -> None:
    """Counts the documents of a unit."""
    _count_unit(self.spec.folder, self.corpus, unit)

  def list_shards(self) -> list[ShardItem]:
    """Returns the shards that are not written."""
    chunk_set, starts = find_chunks(self.spec, self.corpus)
    return [
      ShardItem(starts[shard * write_shards.SHARD_CHUNKS], len(starts))
      for shard in range(chunk_set.num_shards)
      if not write_shards.is_written(self.spec, shard)
    ]

  def build_shard(self, item: ShardItem) -> None:
    """Builds the missing chunks of a shard, and writes it."""
    first = item.start.number if item.start else 0
    stop = min(first + write_shards.SHARD_CHUNKS, item.num_chunks)
    build_range(self.spec, self.corpus, Meter(), start=item.start, stop=stop)


def _build_share(
  spec: ChunkSpec,
  corpus: Corpus,
  num_workers: int,
  job: tuple[int, int],
  progress: Callable[..., object],
) -> ChunkSet:
  """Builds the range of shards of one of several jobs."""
  _count_units(spec.folder, corpus, job, progress)
  chunk_set, starts = find_chunks(spec, corpus)
  index, num_jobs = job
  shard = chunk_set.num_shards * index // num_jobs
  end = chunk_set.num_shards * (index + 1) // num_jobs
  while shard < end and write_shards.is_written(spec, shard):
    shard += 1
  if shard < end:
    build_range(
      spec,
      corpus,
      Meter(),
      start=starts[shard * write_shards.SHARD_CHUNKS],
      stop=min(end * write_shards.SHARD_CHUNKS, len(starts)),
      num_workers=num_workers,
      progress=progress,
    )
  return chunk_set


def _list_units(corpus: Corpus) -> list[Unit]:
  return [
    (part, unit)
    for part in range(len(corpus.parts))
    for unit in range(corpus.parts[part].num_units)
  ]


def _count_units(
  folder: pathlib.Path,
  corpus: Corpus,
  job: tuple[int, int],
  progress: Callable[[int, float, str], object],
) -> None:
  """Counts all units, together with the other jobs that do the same now.

  A job begins with its share of the units, and then counts those that no other
  job has begun.
  """
  units = _list_units(corpus)
  first = len(units) * job[0] // job[1]
  units = units[first:] + units[:first]
  num_bytes = 0
  for wait in (False, True):  # at last for the units of other jobs
    for done, unit in enumerate(units, start=1):
      if not _count_path(folder, unit).exists():
        lock = _count_path(folder, unit).with_suffix(".lock")
        with lock_file(lock, wait=wait) as locked:
          if locked:
            num_bytes += _count_unit(folder, corpus, unit)
      progress(num_bytes, done / len(units), "counting documents")


def _count_unit(folder: pathlib.Path, corpus: Corpus, unit: Unit) -> int:
  """Stores the count of a unit, unless it is stored; returns bytes of text."""
  path = _count_path(folder, unit)
  if path.exists():
    return 0
  sizes_Dx2, repairs = corpus.count(*unit)
  counts = np.array(list(repairs.values()), np.int64)
  names = np.array(list(repairs), np.str_)
  arrays = {"sizes": sizes_Dx2, "names": names, "counts": counts}
  store.write_arrays(path, arrays)
  return int(sizes_Dx2[:, 0].sum())


def _read_counts(
  folder: pathlib.Path, corpus: Corpus
) -> tuple[Sizes, collections.Counter[str]]:
  """Returns the sizes of all documents, and the repairs of their text."""
  sizes: list[list[np.ndarray]] = [[] for _ in corpus.parts]
  repairs = collections.Counter[str]()
  for part, unit in _list_units(corpus):
    arrays = store.read_arrays(_count_path(folder, (part, unit)))
    sizes[part].append(arrays["sizes"])
    names, counts = arrays["names"], arrays["counts"]
    repairs.update(dict(zip(names.tolist(), counts.tolist(), strict=True)))
  return sizes, repairs


def _count_path(folder: pathlib.Path, unit: Unit) -> pathlib.Path:
  return folder / "count-{:03d}-{:06d}.npz".format(*unit)
