"""Builds the chunks of a rows folder: corpus -> `.FOLDER.unfinished`.

  chunk_set = build_chunks(folder, corpus, tokenizer, options, num_workers=4)
  manifest = merge_chunks.merge(folder, chunk_set)

If a preparation is stopped, even by SIGKILL, only the chunks in progress are
lost; the same call builds the missing ones. File locks keep several processes
apart. The system releases them however a process ends.
"""

import contextlib
import functools
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator

from truenegs_jax.data.corpus.corpus import Corpus, Meter
from truenegs_jax.data.rows import chunks, worker_pool
from truenegs_jax.data.rows.rows_folder import RowsOptions, rows_fingerprint
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.files import disk_errors

ONLY_JOB = (0, 1)


@contextlib.contextmanager
def folder_lock(
  folder: pathlib.Path, name: str = "lock", *, shared: bool = False
) -> Iterator[None]:
  """Holds a lock of `folder`, after waiting for other processes to release it.

  With `shared`, several processes may hold it at once.
  """
  try:
    import fcntl
  except ImportError as error:
    raise InputError(
      "Rows cannot be prepared on Windows, which has no file locks. Prepare"
      " them on Linux, macOS or WSL and set --config.data.rows=FOLDER."
    ) from error
  kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
  path = folder.with_name(f".{folder.name}.{name}")
  with disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a+")  # a shared lock on NFS needs a readable file
  with file:
    with disk_errors(path):
      try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
      except BlockingIOError:
        print(f"Waiting for another process at '{folder}'.", file=sys.stderr)
        fcntl.flock(file, kind)
    yield


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
) -> chunks.ChunkSet:
  """Builds the missing chunks of a rows folder.

  Neither `backend`, `num_workers` nor `job` change the rows.

  Args:
    corpus: is read once, and its first documents twice.
    backend: of the `Encoder`.
    num_workers: processes. Scripts need `if __name__ == "__main__":` above 1.
    job: (i, n) builds only the chunks k with k % n == i. The n calls may run at
      the same time.
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
    chunk_set = _build_missing(spec, corpus, num_workers, job, progress)
    if corpus.identity() != options.sources:
      raise DataError(
        f"data.sources: {corpus} changed while it was read. Run the"
        " same command again when nothing writes to it anymore."
      )
  except DataError as error:
    # The chunks are useless for repaired text, but not if a disk or a network
    # works again.
    may_recover = isinstance(error.__cause__, OSError) or not corpus.is_local()
    if job == ONLY_JOB and not may_recover:
      shutil.rmtree(temporary, ignore_errors=True)
    raise
  return chunk_set


def unfinished_folder(folder: pathlib.Path) -> pathlib.Path:
  """Returns the folder that stores chunks until the rows are complete."""
  return folder.with_name(f".{folder.name}.unfinished")


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
  path, fingerprint = temporary / "fingerprint", rows_fingerprint(options)
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


def _build_missing(
  spec: chunks.ChunkSpec,
  corpus: Corpus,
  num_workers: int,
  job: tuple[int, int],
  progress: Callable[..., object],
) -> chunks.ChunkSet:
  meter = Meter()
  index, count = job
  num_chunks = num_rows = 0

  def missing_chunks() -> Iterator[chunks.Chunk]:
    nonlocal num_chunks
    for chunk in chunks.cut_corpus(
      corpus, spec.options, meter, held_out_unit=spec.held_out_unit
    ):
      num_chunks = chunk.number + 1
      path = chunks.chunk_path(spec.folder, chunk.number)
      if chunk.number % count == index and not path.exists():
        yield chunk
      else:
        show_progress()

  def show_progress() -> None:
    documents, size = sum(meter.part_documents), sum(meter.part_bytes)
    detail = f"{documents:,} documents, {num_rows:,} rows"
    progress(size, meter.fraction_read, detail)

  make_builder = functools.partial(chunks.ChunkBuilder, spec)
  for rows in worker_pool.map_in_order(
    make_builder, missing_chunks(), num_workers=num_workers
  ):
    num_rows += rows
    show_progress()
  show_progress()
  return chunks.ChunkSet(spec, corpus, meter, num_chunks)
