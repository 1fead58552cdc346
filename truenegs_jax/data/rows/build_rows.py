"""Builds the chunks of rows: corpus -> `.rows.unfinished`.

  built = build_share(folder, corpus, tokenizer, options, num_workers=4)
  manifest = merge_chunks.merge(folder, built)

Whatever stops a preparation, be it SIGKILL, costs the chunks that were in work:
the same call goes on with the others. When all are there, `merge_chunks` makes
the rows of them.

Who may write is decided by locks that the system releases however a process
ends.
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

ONLY_JOB = (0, 1)  # the share of one who does it all


@contextlib.contextmanager
def folder_lock(
  folder: pathlib.Path, name: str = "lock", *, shared: bool = False
) -> Iterator[None]:
  """Waits until no other process holds this lock of `folder`.

  Args:
    shared: others may hold it, too, if they share it.
  """
  try:
    import fcntl
  except ImportError as error:
    raise InputError(
      "Rows cannot be prepared on Windows, which lacks the locks: prepare them"
      " under Linux or macOS, or WSL, and give data.rows."
    ) from error
  kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
  path = folder.with_name(f".{folder.name}.{name}")
  with disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a+")  # NFS shares a lock only of what is readable
  with file:
    with disk_errors(path):
      try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
      except BlockingIOError:
        print(f"Another process prepares {folder}; waiting.", file=sys.stderr)
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
  share: tuple[int, int] = ONLY_JOB,
  progress: Callable[..., object] = lambda *_: None,
) -> chunks.ChunkSet:
  """Builds the chunks that are still missing beside `folder`.

  Args:
    corpus: read once, and its first documents twice.
    backend: of the `Encoder`; it does not change the rows.
    num_workers: processes; nor do they. Above 1, a script that calls this
      needs `if __name__ == "__main__"`.
    share: (i, n): only the chunks k with k % n == i. When n such calls have
      returned, at the same time or not, all chunks are there.
    progress: called after every chunk with the bytes of text so far, the share
      that is done (None where not known), and words for a person.

  Raises:
    DataError: no text, it changed, or something else is at `folder`.
    DiskError: cannot be written.
  """
  temporary = open_unfinished(folder, options, share=share)
  try:
    by = chunks.choose_held_out_unit(corpus, options)
    spec = chunks.ChunkSpec(temporary, tokenizer, options, backend, by)
    built = _build_missing(spec, corpus, num_workers, share, progress)
    if corpus.identity() != options.sources:
      raise DataError(
        f"data.sources: {corpus.names()} changed while it was read: give the"
        " same command again when nothing writes to it any more."
      )
  except DataError as error:
    # A mended text is another text, which these chunks are of no use for; but
    # a disk or a net that failed us may be back the next time.
    failed = isinstance(error.__cause__, OSError) or not corpus.is_local()
    if share == ONLY_JOB and not failed:
      shutil.rmtree(temporary, ignore_errors=True)
    raise
  return built


def unfinished_folder(folder: pathlib.Path) -> pathlib.Path:
  """Where the chunks of rows are kept until the rows are complete."""
  return folder.with_name(f".{folder.name}.unfinished")


def open_unfinished(
  folder: pathlib.Path, options: RowsOptions, *, share: tuple[int, int]
) -> pathlib.Path:
  """Makes the unfinished folder, or finds that of an earlier call.

  What was begun with other options is removed; not by a share of several,
  which others may be at work beside.

  Raises:
    DataError: something else is at `folder`, or other shares are of other
      options or another text.
    DiskError: cannot be written.
  """
  if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
    raise DataError(
      f"data.rows: {folder} exists and is not empty: remove it or choose"
      " another folder."
    )
  temporary = unfinished_folder(folder)
  path, content = temporary / "fingerprint", rows_fingerprint(options)
  with folder_lock(folder, "begin.lock"), disk_errors(temporary):
    earlier = path.read_text(encoding="utf-8") if path.exists() else ""
    if earlier and earlier != content and share != ONLY_JOB:
      raise DataError(
        f"data.rows: {temporary} holds shares of other options or of another"
        " text (a copy made without its times counts as one): give all jobs the"
        " same, or remove it."
      )
    if earlier != content:
      shutil.rmtree(temporary, ignore_errors=True)
      temporary.mkdir(parents=True)
      path.write_text(content, encoding="utf-8")
  return temporary


def _build_missing(
  spec: chunks.ChunkSpec,
  corpus: Corpus,
  num_workers: int,
  share: tuple[int, int],
  progress: Callable[..., object],
) -> chunks.ChunkSet:
  meter = Meter()
  index, count = share
  num_chunks = num_rows = 0

  def missing() -> Iterator[chunks.Chunk]:
    nonlocal num_chunks
    for chunk in chunks.cut_corpus(corpus, spec.options, meter, by=spec.by):
      num_chunks = chunk.number + 1
      path = chunks.chunk_path(spec.folder, chunk.number)
      if chunk.number % count == index and not path.exists():
        yield chunk
      else:
        show()

  def show() -> None:
    documents, size = sum(meter.part_documents), sum(meter.part_bytes)
    detail = f"{documents:,} documents, {num_rows:,} rows"
    progress(size, meter.fraction_read, detail)

  builder = functools.partial(chunks.ChunkBuilder, spec)
  for rows in worker_pool.map_in_order(
    builder, missing(), num_workers=num_workers
  ):
    num_rows += rows
    show()
  show()
  return chunks.ChunkSet(spec, corpus, meter, num_chunks)
