"""Builds rows in a folder beside theirs: corpus -> `.FOLDER.unfinished`.

  chunk_set = build_chunks(folder, corpus, tokenizer, options, num_workers=4)
  manifest = write_shards.finish(folder, chunk_set)

If a preparation is stopped, even by SIGKILL, only the chunks in progress are
lost; the same call builds the missing ones.
"""

import contextlib
import functools
import itertools
import pathlib
import shutil
from collections.abc import Callable, Iterator

from truenegs_jax.data.corpus.corpus import Corpus, Meter
from truenegs_jax.data.rows import (
  chunks,
  count_units,
  worker_pool,
  write_shards,
)
from truenegs_jax.data.rows.locks import folder_lock
from truenegs_jax.data.rows.rows_folder import RowsOptions, rows_fingerprint
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import disk_errors

ONLY_JOB = (0, 1)
UNFINISHED_VERSION = 2  # of the files in an unfinished folder


def build_chunks(
  folder: pathlib.Path,
  corpus: Corpus,
  tokenizer: Tokenizer,
  options: RowsOptions,
  *,
  backend: str = "fast",
  num_workers: int = 1,
  job: tuple[int, int] = ONLY_JOB,
  progress: Callable[..., object] = lambda *_: None,
) -> write_shards.ChunkSet:
  """Builds the missing chunks and shards of a rows folder.

  Neither `backend`, `num_workers` nor `job` change the rows.

  Args:
    corpus: a single job reads it once, and its first documents twice. One of
      several jobs reads its share twice, and at most one unit more.
    backend: of the `Encoder`.
    num_workers: processes. Scripts need `if __name__ == "__main__":` above 1.
    job: (i, n) builds only the i-th of n equal ranges of the shards. The n
      calls may run at the same time.
    progress: called after each chunk with the bytes of text so far, the
      fraction done (None if unknown), and a text for the user.

  Raises:
    DataError: the text is unusable, changed meanwhile, or `folder` exists.
    DiskError: a file cannot be written.
  """
  temporary = open_unfinished(folder, options, job=job)
  try:
    unit = chunks.choose_held_out_unit(corpus, options)
    spec = chunks.ChunkSpec(temporary, tokenizer, options, backend, unit)
    if job == ONLY_JOB:
      meter = Meter()
      count = _build_range(
        spec, corpus, meter, num_workers=num_workers, progress=progress
      )
      chunk_set = write_shards.ChunkSet(spec, corpus, meter, count)
    else:
      chunk_set = _build_share(spec, corpus, num_workers, job, progress)
    check_unchanged(corpus, options)
  except DataError as error:
    # The chunks are useless for repaired text, but not if a disk or a network
    # works again.
    may_recover = isinstance(error.__cause__, OSError) or not corpus.is_local()
    if job == ONLY_JOB and not may_recover:
      shutil.rmtree(temporary, ignore_errors=True)
    raise
  return chunk_set


def check_unchanged(corpus: Corpus, options: RowsOptions) -> None:
  """Raises DataError if the text is not that of the options anymore."""
  if corpus.identity() != options.sources:
    raise DataError(
      f"data.sources: {corpus} changed while it was read. Run the same command"
      " again when nothing writes to it anymore."
    )


def unfinished_folder(folder: pathlib.Path) -> pathlib.Path:
  """Returns the folder that stores chunks until the rows are complete."""
  return folder.with_name(f".{folder.name}.unfinished")


def measure_unfinished(folder: pathlib.Path) -> tuple[int, int]:
  """Returns the number of chunks that are built, and their bytes."""
  temporary = unfinished_folder(folder)
  single = {*temporary.glob("chunk-*.npz")}
  written = {*temporary.glob("shard-*.json")}
  files = [*single, *temporary.glob("rows/*.npy")]
  size = 0
  for path in files:
    with contextlib.suppress(FileNotFoundError):  # its shard is written now
      size += path.stat().st_size
  return len(single) + len(written) * write_shards.SHARD_CHUNKS, size


def open_unfinished(
  folder: pathlib.Path, options: RowsOptions, *, job: tuple[int, int]
) -> pathlib.Path:
  """Creates the unfinished folder, or returns that of an earlier call.

  A folder of other options is removed first, unless other jobs may use it.

  Raises:
    DataError: `folder` exists, or other jobs have other options or text.
    DiskError: a file cannot be written.
  """
  if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
    raise DataError(
      f"data.rows='{folder}' exists and is not empty. Remove it, or set"
      " --config.data.rows to another folder."
    )
  temporary = unfinished_folder(folder)
  path = temporary / "fingerprint"
  fingerprint = f"{UNFINISHED_VERSION} {rows_fingerprint(options)}"
  with folder_lock(folder, "begin.lock"), disk_errors(temporary):
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
  spec: chunks.ChunkSpec, corpus: Corpus
) -> tuple[write_shards.ChunkSet, list[chunks.ChunkStart | None]]:
  """Returns the chunks of a corpus whose units are counted, and their starts.

  Raises:
    DataError: a part has no document.
    DiskError: a count is damaged.
  """
  sizes, oddities = count_units.read_counts(spec.folder, corpus)
  starts = chunks.find_starts(
    corpus,
    spec.options,
    meter := Meter(),
    sizes,
    held_out_unit=spec.held_out_unit,
  )
  meter.oddities.update(oddities)
  return write_shards.ChunkSet(spec, corpus, meter, len(starts)), starts


def build_shard(
  spec: chunks.ChunkSpec,
  corpus: Corpus,
  start: chunks.ChunkStart | None,
  num_chunks: int,
) -> None:
  """Builds the shard that begins at `start`, except its existing chunks.

  Args:
    num_chunks: of the corpus.
  """
  first = start.number if start else 0
  stop = min(first + write_shards.SHARD_CHUNKS, num_chunks)
  _build_range(spec, corpus, Meter(), start=start, stop=stop)


def _build_share(
  spec: chunks.ChunkSpec,
  corpus: Corpus,
  num_workers: int,
  job: tuple[int, int],
  progress: Callable[..., object],
) -> write_shards.ChunkSet:
  """Builds the range of shards of one of several jobs."""
  count_units.count_units(
    spec.folder, corpus, job, lambda done: progress(0, done, "counting")
  )
  chunk_set, starts = find_chunks(spec, corpus)
  first, stop = (
    min(
      chunk_set.num_shards * i // job[1] * write_shards.SHARD_CHUNKS,
      len(starts),
    )
    for i in (job[0], job[0] + 1)
  )
  while first < stop and write_shards.is_written(
    spec, first // write_shards.SHARD_CHUNKS
  ):
    first += write_shards.SHARD_CHUNKS
  if first < stop:
    _build_range(
      spec,
      corpus,
      Meter(),
      start=starts[first],
      stop=stop,
      num_workers=num_workers,
      progress=progress,
    )
  return chunk_set


def _build_range(
  spec: chunks.ChunkSpec,
  corpus: Corpus,
  meter: Meter,
  *,
  start: chunks.ChunkStart | None = None,
  stop: int | None = None,
  num_workers: int = 1,
  progress: Callable[..., object] = lambda *_: None,
) -> int:
  """Builds the missing chunks and shards of a range of chunks.

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

  make_builder = functools.partial(chunks.ChunkBuilder, spec)
  shard = first // write_shards.SHARD_CHUNKS
  for rows in worker_pool.map_in_order(
    make_builder, missing_chunks(), num_workers=num_workers
  ):
    num_rows += rows
    show_progress()
    while all(
      write_shards.is_built(spec, k) for k in write_shards.shard_chunks(shard)
    ):
      write_shards.write_shard(spec, write_shards.shard_chunks(shard))
      shard += 1
  while members := write_shards.shard_chunks(shard, num_chunks):
    write_shards.write_shard(spec, members)
    shard += 1
  show_progress()
  return num_chunks
