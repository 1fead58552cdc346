"""Writes rows to the `.npy` shards of a rows folder."""

import contextlib
import itertools
import pathlib
from typing import Any

import numpy as np

from truenegs_jax.data.layouts import Row
from truenegs_jax.data.rows import FIELDS, shard_name
from truenegs_jax.data.tokenizer import Tokenizer

SHARD_TOKENS = 2**27  # 1M rows of 128: few files to map, whatever the corpus
BUFFER_ROWS = 1024


class SplitWriter:
  """Appends the rows of one split to its shards, in bounded memory.

  A context manager: the shards are whole once it is left without an error.

  Attributes:
    shards: how many rows each shard holds.
    counts_V: how often each entry occurs in real tokens, int64.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    split: str,
    tokenizer: Tokenizer,
    length: int,
  ) -> None:
    self._folder, self._split, self._tokenizer = folder, split, tokenizer
    self._length, self._shard_rows = length, max(1, SHARD_TOKENS // length)
    narrow = len(tokenizer.vocab) <= 2**16
    self._dtypes = (np.uint16 if narrow else np.uint32, np.uint8, np.uint8)
    self._buffer: list[Row] = []
    self._files: list[Any] = []
    self.shards: list[int] = []
    self.counts_V = np.zeros(len(tokenizer.vocab), np.int64)

  def add(self, row: Row) -> None:
    """Takes one more row; it may wait in memory for others."""
    self._buffer.append(row)
    if len(self._buffer) == BUFFER_ROWS:
      self._flush()

  def __enter__(self) -> "SplitWriter":
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    try:
      if kind is None:
        self._flush()
        self._end_shard()
    finally:
      for file in self._files:
        with contextlib.suppress(OSError):  # told already, by the first one
          file.close()

  def _flush(self) -> None:
    rows, self._buffer = self._buffer, []
    while rows:
      if not self._files:
        self._begin_shard()
      room = self._shard_rows - self.shards[-1]
      self._append(rows[:room])
      rows = rows[room:]
      if self.shards[-1] == self._shard_rows:
        self._end_shard()

  def _append(self, rows: list[Row]) -> None:
    fills = (self._tokenizer.pad, 0, 0)
    for file, field, dtype, fill in zip(
      self._files, FIELDS, self._dtypes, fills, strict=True
    ):
      array_RxL = np.full((len(rows), self._length), fill, dtype)
      for i, row in enumerate(rows):
        values = getattr(row, field)
        array_RxL[i, : len(values)] = values
      file.write(array_RxL.tobytes())
    ids = np.fromiter(
      itertools.chain.from_iterable(row.tokens for row in rows), np.int64
    )
    self.counts_V += np.bincount(ids, minlength=len(self.counts_V))
    self.shards[-1] += len(rows)

  def _begin_shard(self) -> None:
    names = [shard_name(self._split, len(self.shards), f) for f in FIELDS]
    self._files = [open(self._folder / name, "wb") for name in names]
    self.shards.append(0)
    self._write_headers()

  def _end_shard(self) -> None:
    # numpy pads the header so that the number of rows can be set at the end.
    self._write_headers()
    for file in self._files:
      file.close()
    self._files = []

  def _write_headers(self) -> None:
    for file, dtype in zip(self._files, self._dtypes, strict=False):
      file.seek(0)
      header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": (self.shards[-1], self._length),
      }
      np.lib.format.write_array_header_1_0(file, header)
