"""The steps of a preparation, for an engine that runs them on many machines.

  count every unit -> build every shard

A step is a list of items, made when the step before it is done, and a function
of one item. Both are pickled. Steps exchange nothing but files in the store of
unfinished rows, so an item can be repeated, even at the same time, on any
machine that has the store and the text.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from truenegs_jax.data.corpus.corpus import Corpus, Meter
from truenegs_jax.data.rows import build_range, count_units, write_shards
from truenegs_jax.data.rows.chunks import ChunkSpec, ChunkStart


class Step(NamedTuple):
  """A function of items that are independent of each other."""

  name: str
  list_items: Callable[[], Sequence[Any]]
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

  def list_units(self) -> list[count_units.Unit]:
    """Returns the units that are not counted."""
    return [
      unit
      for unit in count_units.list_units(self.corpus)
      if not count_units.count_path(self.spec.folder, unit).exists()
    ]

  def count_unit(self, unit: count_units.Unit) -> None:
    """Counts the documents of a unit."""
    count_units.count_unit(self.spec.folder, self.corpus, unit)

  def list_shards(self) -> list[ShardItem]:
    """Returns the shards that are not written."""
    chunk_set, starts = build_range.find_chunks(self.spec, self.corpus)
    return [
      ShardItem(starts[shard * write_shards.SHARD_CHUNKS], len(starts))
      for shard in range(chunk_set.num_shards)
      if not write_shards.is_written(self.spec, shard)
    ]

  def build_shard(self, item: ShardItem) -> None:
    """Builds the missing chunks of a shard, and writes it."""
    first = item.start.number if item.start else 0
    stop = min(first + write_shards.SHARD_CHUNKS, item.num_chunks)
    build_range.build_range(
      self.spec, self.corpus, Meter(), start=item.start, stop=stop
    )
