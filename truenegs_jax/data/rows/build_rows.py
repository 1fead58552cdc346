"""Builds rows in a folder beside theirs: corpus -> `.FOLDER.unfinished`.

  chunk_set = build_chunks(folder, corpus, tokenizer, options, num_workers=4)
  manifest = write_shards.finish(folder, chunk_set)

If a preparation is stopped, even by SIGKILL, only the chunks in progress are
lost; the same call builds the missing ones.
"""

import contextlib
import pathlib
import shutil
from collections.abc import Callable

from truenegs_jax.data.corpus.corpus import Corpus, Meter
from truenegs_jax.data.rows import (
  build_range,
  chunks,
  count_units,
  store,
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
  engine: Callable[[chunks.ChunkSpec], object] | None = None,
  bucket: str = "",
  progress: Callable[..., object] = lambda *_: None,
) -> write_shards.ChunkSet:
  """Builds the missing chunks and shards of a rows folder.

  Neither `backend`, `num_workers`, `job` nor `engine` change the rows.

  Args:
    corpus: a single job reads it once, and its first documents twice. One of
      several jobs reads its share twice, and at most one unit more.
    backend: of the `Encoder`.
    num_workers: processes. Scripts need `if __name__ == "__main__":` above 1.
    job: (i, n) builds only the i-th of n equal ranges of the shards. The n
      calls may run at the same time.
    engine: builds all shards elsewhere, see `distribute`.
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
    spec = chunks.ChunkSpec(where, tokenizer, options, backend, unit)
    if engine:
      engine(spec)
      chunk_set, _ = build_range.find_chunks(spec, corpus)
    elif job == ONLY_JOB:
      meter = Meter()
      count = build_range.build_range(
        spec, corpus, meter, num_workers=num_workers, progress=progress
      )
      chunk_set = write_shards.ChunkSet(spec, corpus, meter, count)
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
  temporary = store.unfinished_folder(folder)
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


def _build_share(
  spec: chunks.ChunkSpec,
  corpus: Corpus,
  num_workers: int,
  job: tuple[int, int],
  progress: Callable[..., object],
) -> write_shards.ChunkSet:
  """Builds the range of shards of one of several jobs."""
  count_units.count_units(spec.folder, corpus, job, progress)
  chunk_set, starts = build_range.find_chunks(spec, corpus)
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
    build_range.build_range(
      spec,
      corpus,
      Meter(),
      start=starts[first],
      stop=stop,
      num_workers=num_workers,
      progress=progress,
    )
  return chunk_set
