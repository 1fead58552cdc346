"""The steps of a preparation: count, build, verify; in `.FOLDER.unfinished`.

  shard_set = build_shards(folder, corpus, tokenizer, options, num_workers=4)
  manifest = shards.finish(folder, shard_set)

If a preparation is stopped, even by SIGKILL, only the shard in progress is
lost; the same call builds the missing ones.

A single job reads the corpus once, as one range of shards. Several jobs, or the
workers of an engine, first count the documents of every unit of the corpus. The
counts are files; with all of them, each knows where its range begins and reads
only its files. `shards.finish` verifies the shards.
"""

import collections
import dataclasses
import functools
import itertools
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from truenegs_jax.data.corpus.corpus import Corpus, Meter
from truenegs_jax.data.rows import shards, store, worker_pool
from truenegs_jax.data.rows.rows_folder import RowsOptions, rows_fingerprint
from truenegs_jax.data.rows.shards import ChunkStart, ShardSet, ShardSpec
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import disk_errors, lock_file, lock_folder

ONLY_JOB = (0, 1)
UNFINISHED_VERSION = 3  # of the files in an unfinished folder
Unit = tuple[int, int]  # of a corpus: the part and its unit
# Called after each chunk with the bytes of text so far, the fraction done (None
# if unknown), and a text for the user.
Progress = Callable[[int, float | None, str], object]


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


class ShardRange(NamedTuple):
  """Consecutive shards."""

  start: ChunkStart = shards.START
  stop: int | None = None  # the chunk after the last; None for the end


@dataclasses.dataclass(frozen=True)
class Preparation:
  """A preparation in a store of unfinished rows, and how to open its text."""

  spec: ShardSpec
  open_corpus: Callable[[], Corpus]

  @functools.cached_property
  def corpus(self) -> Corpus:
    """The corpus, opened once per process; DataError if it changed."""
    corpus = self.open_corpus()
    corpus.check_unchanged(self.spec.options.sources)
    return corpus

  def steps(self) -> list[Step]:
    """Returns the steps before `shards.finish`."""
    return [
      Step("Count documents", self.list_units, self.count_unit),
      Step("Build shards", self.list_shards, self.build_range),
    ]

  def list_units(self) -> list[Unit]:
    """Returns the units that are not counted."""
    units = _list_units(self.corpus)
    return [unit for unit in units if not self._count_path(unit).exists()]

  def count_unit(self, unit: Unit) -> int:
    """Stores the sizes of a unit's documents; returns the bytes of text."""
    sizes_Dx2, repairs = self.corpus.count(*unit)
    counts = np.array(list(repairs.values()), np.int64)
    names = np.array(list(repairs), np.str_)
    arrays = {"sizes": sizes_Dx2, "names": names, "counts": counts}
    store.write_arrays(self._count_path(unit), arrays)
    return int(sizes_Dx2[:, 0].sum())

  def find_shards(self) -> tuple[ShardSet, list[ChunkStart]]:
    """Returns the shards of a counted corpus, and where they start."""
    sizes: list[list[np.ndarray]] = [[] for _ in self.corpus.parts]
    repairs = collections.Counter[str]()
    for unit in _list_units(self.corpus):
      arrays = store.read_arrays(self._count_path(unit))
      sizes[unit[0]].append(arrays["sizes"])
      names, counts = arrays["names"].tolist(), arrays["counts"].tolist()
      repairs.update(dict(zip(names, counts, strict=True)))
    meter, num_chunks = Meter(), 0
    starts = [shards.START]
    for chunk in self.spec.cut(self.corpus, meter, sizes=sizes):
      num_chunks = chunk.number + 1
      if num_chunks % shards.SHARD_CHUNKS == 0:
        starts.append(ChunkStart(num_chunks, tuple(meter.cursors)))
    meter.repairs.update(repairs)
    shard_set = ShardSet(self.spec, self.corpus, meter, num_chunks)
    return shard_set, starts[: shard_set.num_shards]

  def list_shards(self) -> list[ShardRange]:
    """Returns each shard that is not written."""
    shard_set, starts = self.find_shards()
    return [
      ShardRange(start, min(i * shards.SHARD_CHUNKS, shard_set.num_chunks))
      for i, start in enumerate(starts, start=1)
      if not self.spec.is_written(i - 1)
    ]

  def build_range(
    self,
    shard_range: ShardRange,
    num_workers: int = 1,
    progress: Progress = lambda *_: None,
  ) -> ShardSet:
    """Builds the missing shards of a range; `num_workers` encode its chunks.

    Returns:
      The shards up to the end of the range, with the counts of its text.
    """
    start, stop = shard_range
    first, before = start.number, Meter(cursors=[*start.cursors])
    meter, num_chunks, num_rows = Meter(), first, 0

    def missing_chunks() -> Iterator[shards.Chunk]:
      nonlocal num_chunks
      cut = self.spec.cut(self.corpus, meter, start=start)
      for chunk in itertools.islice(cut, stop and stop - first):
        num_chunks = chunk.number + 1
        if self.spec.is_written(chunk.number // shards.SHARD_CHUNKS):
          show_progress()
        else:
          yield chunk

    def show_progress() -> None:
      documents = meter.num_documents - before.num_documents
      size = meter.num_bytes - before.num_bytes
      fraction = meter.fraction_read
      if stop:
        fraction = (num_chunks - first) / (stop - first)
      progress(size, fraction, f"{documents:,} documents, {num_rows:,} rows")

    members: list[shards.ChunkRows] = []
    make_encoder = functools.partial(shards.ChunkEncoder, self.spec)
    for rows in worker_pool.map_in_order(
      make_encoder, missing_chunks(), num_workers=num_workers
    ):
      members.append(rows)
      num_rows += rows.num_rows
      show_progress()
      if (rows.number + 1) % shards.SHARD_CHUNKS == 0:
        shards.write_shard(self.spec, members)
        members = []
    if members:
      shards.write_shard(self.spec, members)
    show_progress()
    return ShardSet(self.spec, self.corpus, meter, num_chunks)

  def build_share(
    self, job: tuple[int, int], num_workers: int, progress: Progress
  ) -> ShardSet:
    """Builds the shards of one of several jobs; returns those of all.

    The jobs count the units together: each begins with its share.
    """
    index, num_jobs = job
    units = _list_units(self.corpus)
    first = len(units) * index // num_jobs
    num_bytes = 0
    for done, unit in enumerate(units[first:] + units[:first], start=1):
      path = self._count_path(unit)
      if not path.exists():
        with lock_file(path.with_suffix(".lock"), wait=True):
          if not path.exists():
            num_bytes += self.count_unit(unit)
      progress(num_bytes, done / len(units), "counting documents")
    shard_set, starts = self.find_shards()
    first = shard_set.num_shards * index // num_jobs
    end = shard_set.num_shards * (index + 1) // num_jobs
    while first < end and self.spec.is_written(first):
      first += 1
    if first < end:
      stop = min(end * shards.SHARD_CHUNKS, shard_set.num_chunks)
      shard_range = ShardRange(starts[first], stop)
      self.build_range(shard_range, num_workers, progress)
    return shard_set

  def _count_path(self, unit: Unit) -> pathlib.Path:
    return self.spec.folder / "count-{:03d}-{:06d}.npz".format(*unit)


def build_shards(
  folder: pathlib.Path,
  corpus: Corpus,
  tokenizer: Tokenizer,
  options: RowsOptions,
  *,
  backend: str = "fast",
  num_workers: int = 1,
  job: tuple[int, int] = ONLY_JOB,
  engine: Engine | None = None,
  open_corpus: Callable[[], Corpus] | None = None,
  bucket: str = "",
  progress: Progress = lambda *_: None,
) -> ShardSet:
  """Builds the missing shards of a rows folder.

  Neither `backend`, `num_workers`, `job` nor `engine` change the rows.

  Args:
    backend: of the `Encoder`.
    num_workers: processes. Scripts need `if __name__ == "__main__":` above 1.
    job: (i, n) builds only the i-th of n equal ranges of the shards. The n
      calls may run at the same time.
    engine: runs the steps elsewhere, where `open_corpus` opens the corpus.
    bucket: URL of a folder in which the engine stores the shards meanwhile;
      empty to store them beside `folder`.
  """
  temporary = open_unfinished(folder, options, job=job)
  try:
    unit = shards.choose_held_out_unit(corpus, options)
    name = f"{UNFINISHED_VERSION}-{rows_fingerprint(options)}"
    where = store.open_bucket(bucket, name) if bucket else temporary
    spec = ShardSpec(where, tokenizer, options, unit, backend)
    preparation = Preparation(spec, lambda: corpus)
    if engine:
      assert open_corpus
      engine(Preparation(spec, open_corpus).steps())
      shard_set, _ = preparation.find_shards()
    elif job == ONLY_JOB:
      shard_set = preparation.build_range(ShardRange(), num_workers, progress)
    else:
      shard_set = preparation.build_share(job, num_workers, progress)
    corpus.check_unchanged(options.sources)
  except DataError as error:
    # The shards are useless for repaired text, but not if a disk or a network
    # works again. An error of an engine does not tell its cause.
    may_recover = isinstance(error.__cause__, OSError) or not corpus.is_local()
    if job == ONLY_JOB and not (may_recover or engine):
      store.remove_store(temporary)
    raise
  return shard_set


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


def _list_units(corpus: Corpus) -> list[Unit]:
  return [
    (part, unit)
    for part in range(len(corpus.parts))
    for unit in range(corpus.parts[part].num_units)
  ]
