"""Builds a range of the chunks of a corpus, and their shards.

chunk_set, starts = find_chunks(spec, corpus)  # after counting its units
build_range(spec, corpus, Meter(), start=starts[32], stop=64)
"""

import functools
import itertools
from collections.abc import Callable, Iterator

from truenegs_jax.data.corpus.corpus import Corpus, Meter
from truenegs_jax.data.rows import (
  chunks,
  count_units,
  worker_pool,
  write_shards,
)


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


def build_range(
  spec: chunks.ChunkSpec,
  corpus: Corpus,
  meter: Meter,
  *,
  start: chunks.ChunkStart | None = None,
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

  def has_full_shard() -> bool:
    members = write_shards.shard_chunks(shard, num_chunks)
    return len(members) == write_shards.SHARD_CHUNKS and all(
      write_shards.is_built(spec, number) for number in members
    )

  make_builder = functools.partial(chunks.ChunkBuilder, spec)
  shard = first // write_shards.SHARD_CHUNKS
  for rows in worker_pool.map_in_order(
    make_builder, missing_chunks(), num_workers=num_workers
  ):
    num_rows += rows
    show_progress()
    while has_full_shard():
      write_shards.write_shard(
        spec, write_shards.shard_chunks(shard, num_chunks)
      )
      shard += 1
  while members := write_shards.shard_chunks(shard, num_chunks):
    write_shards.write_shard(spec, members)
    shard += 1
  show_progress()
  return num_chunks
