"""Builds rows: corpus -> pieces, in any order -> shards and a manifest.

The writing half of `rows`, which says what a rows folder holds.

  write_rows("rows", open_corpus("texts/*.txt"), tokenizer, options)

Beside the folder grows `.rows.unfinished` with the pieces that are done. What
stops a preparation, be it SIGKILL, costs the pieces that were in work: the same
call goes on with the others. When all are there they become the folder, in one
rename.
"""

import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from truenegs_jax.data.corpus.corpus import Corpus, Meter
from truenegs_jax.data.rows import chunks, locks, merge_chunks, worker_pool
from truenegs_jax.data.rows.rows_folder import RowsOptions, rows_fingerprint
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import disk_errors

ALL = (0, 1)  # the share of one who does it all


@dataclasses.dataclass(frozen=True)
class Progress:
  """How far a preparation has come; `done` is a share, None if not known."""

  documents: int
  text_bytes: int
  rows: int
  done: float | None

  @property
  def detail(self) -> str:
    """What else a person would like to know."""
    return f"{self.documents:,} documents, {self.rows:,} rows"


def write_rows(
  folder: str | pathlib.Path,
  corpus: Corpus,
  tokenizer: Tokenizer,
  options: RowsOptions,
  **how: Any,
) -> dict[str, Any]:
  """Builds rows and puts them at `folder` in one rename, whole or not at all.

  Args:
    **how: what `build_share` takes beside these.

  Returns:
    The manifest.

  Raises:
    DataError: no text, it changed, or something else is at `folder`.
    DiskError: cannot be written.
  """
  folder = pathlib.Path(folder)
  built = build_share(folder, corpus, tokenizer, options, **how)
  return merge_chunks.merge(folder, built)


def build_share(
  folder: pathlib.Path,
  corpus: Corpus,
  tokenizer: Tokenizer,
  options: RowsOptions,
  *,
  backend: str = "fast",
  num_workers: int = 1,
  share: tuple[int, int] = ALL,
  progress: Callable[[Progress], None] = lambda _: None,
) -> merge_chunks.Built:
  """Builds the pieces that are still missing beside `folder`.

  Args:
    corpus: read once, and its first documents twice.
    backend: of the `Encoder`; it does not change the rows.
    num_workers: processes; nor do they. Above 1, a script that calls this
      needs `if __name__ == "__main__"`.
    share: (i, n): only the pieces k with k % n == i. When n such calls have
      returned, at the same time or not, all pieces are there.

  Raises:
    DataError: no text, it changed, or something else is at `folder`.
    DiskError: cannot be written.
  """
  temporary = begin(folder, options, share=share)
  try:
    by = chunks.held_out_by(corpus, options)
    job = chunks.Job(temporary, tokenizer, options, backend, by)
    built = _build_missing(job, corpus, num_workers, share, progress)
    if corpus.state() != options.sources:
      raise DataError(
        f"data.sources: {corpus.names()} changed while it was read: give the"
        " same command again when nothing writes to it any more."
      )
  except DataError as error:
    # A mended text is another text, which these pieces are of no use for; but
    # a disk or a net that failed us may be back the next time.
    failed = isinstance(error.__cause__, OSError) or not corpus.is_local()
    if share == ALL and not failed:
      shutil.rmtree(temporary, ignore_errors=True)
    raise
  return built


def unfinished(folder: pathlib.Path) -> pathlib.Path:
  """Where the pieces of rows are kept until the rows are whole."""
  return folder.with_name(f".{folder.name}.unfinished")


def begin(
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
  temporary = unfinished(folder)
  path, content = temporary / "fingerprint", rows_fingerprint(options)
  with locks.alone(folder, "begin.lock"), disk_errors(temporary):
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    if found and found != content and share != ALL:
      raise DataError(
        f"data.rows: {temporary} holds shares of other options or of another"
        " text (a copy made without its times counts as one): give all jobs the"
        " same, or remove it."
      )
    if found != content:
      shutil.rmtree(temporary, ignore_errors=True)
      temporary.mkdir(parents=True)
      path.write_text(content, encoding="utf-8")
  return temporary


def _build_missing(
  job: chunks.Job,
  corpus: Corpus,
  num_workers: int,
  share: tuple[int, int],
  progress: Callable[[Progress], None],
) -> merge_chunks.Built:
  meter = Meter()
  index, count = share
  num_pieces = num_rows = 0

  def missing() -> Iterator[chunks.Piece]:
    nonlocal num_pieces
    for piece in chunks.cut(corpus, job.options, meter, by=job.by):
      num_pieces = piece.number + 1
      path = chunks.path_of(job.folder, piece.number)
      if piece.number % count == index and not path.exists():
        yield piece
      else:
        show()

  def show() -> None:
    documents, size = sum(meter.part_documents), sum(meter.part_bytes)
    progress(Progress(documents, size, num_rows, meter.done))

  for rows in worker_pool.build_pieces(job, missing(), num_workers=num_workers):
    num_rows += rows
    show()
  show()
  return merge_chunks.Built(job, corpus, meter, num_pieces)
