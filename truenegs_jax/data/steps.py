"""The steps of a preparation: count, build, verify; in `.FOLDER.unfinished`.

  shard_set = build_shards(plan, corpus, tokenizer)
  manifest = shards.finish(plan.folder, shard_set)

If a preparation is stopped, even by SIGKILL, only the shard in progress is
lost; the same call builds the missing ones. This process and its workers read
the corpus once, as one range of shards. An engine's workers first count the
documents of every unit of the corpus, in files; so each knows where its range
begins and reads only its files.
"""

import collections
import dataclasses
import functools
import io
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator

import numpy as np

from truenegs_jax.config.sections import Data
from truenegs_jax.data import engines, shards
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.corpus.corpus import Corpus, Cursor, ReadCounts, Unit
from truenegs_jax.data.engines import Engine, Step
from truenegs_jax.data.rows import RowsOptions, rows_fingerprint
from truenegs_jax.data.shards import ChunkRange, ShardSet, ShardSpec
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError, DiskError, InputError
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.runtime.paths import is_bucket, open_path

UNFINISHED_VERSION = 5  # of the files in an unfinished folder
# Called after each chunk with the bytes of text so far, the fraction done (None
# if unknown), and a text for the user.
Progress = Callable[[int, float | None, str], object]


@dataclasses.dataclass(frozen=True)
class Plan:
  """A rows folder and how to prepare it. Only `options` decide the rows."""

  folder: pathlib.Path  # where the rows are or will be
  options: RowsOptions
  corpus: Corpus | None = None  # None if the rows exist, but not their text
  tokenizer: Tokenizer | None = None  # None to train one
  data: Data = Data()  # of the config
  # Processes; scripts need `if __name__ == "__main__":` above 1.
  num_workers: int = 1
  # Builds the rows on machines that share the text, which `open_corpus` opens
  # there, and the folder; None for this process and its workers.
  engine: Engine | None = None
  open_corpus: Callable[[], Corpus] | None = None  # picklable
  # URL of a folder that these machines share instead; the rows are copied from
  # it at the end.
  bucket: str = ""

  def is_prepared(self) -> bool:
    """Returns whether the rows exist."""
    return (self.folder / rows_folder.MANIFEST).exists()  # written last


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

  def list_units(self) -> list[Unit]:
    """Returns the units that are not counted."""
    units = self.corpus.list_units()
    return [unit for unit in units if not self._count_path(unit).exists()]

  def count_unit(self, unit: Unit) -> int:
    """Stores the sizes of a unit's documents; returns the bytes of text."""
    sizes_Dx2, state = self.corpus.count(unit)
    counts = np.array(json.dumps([state.num_records, state.repairs]))
    buffer = io.BytesIO()
    np.savez(buffer, sizes=sizes_Dx2, counts=counts)
    shards.write_file(self._count_path(unit), buffer.getbuffer())
    return int(sizes_Dx2[:, 0].sum())

  def find_shards(self) -> tuple[ShardSet, list[ChunkRange]]:
    """Returns the shards of a counted corpus, and their chunks."""
    sizes = {}
    repairs = collections.Counter[str]()
    num_records = [0] * len(self.corpus.parts)
    for unit in self.corpus.list_units():
      arrays = read_arrays(self._count_path(unit), "sizes", "counts")
      sizes[unit] = arrays["sizes"]
      number, repairs_of_unit = json.loads(str(arrays["counts"]))
      num_records[unit[0]] += number
      repairs.update(repairs_of_unit)
    read_counts = ReadCounts()
    num_chunks = 0
    starts: list[tuple[Cursor, ...]] = [()]
    for chunk in self.spec.cut(self.corpus, read_counts, sizes=sizes):
      num_chunks = chunk.number + 1
      if num_chunks % shards.SHARD_CHUNKS == 0:
        starts.append(tuple(read_counts.cursors))
    read_counts.repairs.update(repairs)
    for index, cursor in enumerate(read_counts.cursors):
      if cursor.repeat:
        read_counts.num_records[index] = num_records[index]
        self.corpus.parts[index].check_records(num_records[index])
    firsts = range(0, num_chunks, shards.SHARD_CHUNKS)
    ranges = [
      ChunkRange(first, min(first + shards.SHARD_CHUNKS, num_chunks), cursors)
      for first, cursors in zip(firsts, starts, strict=False)
    ]
    return ShardSet(self.spec, self.corpus, read_counts, len(ranges)), ranges

  def list_shards(self) -> list[ChunkRange]:
    """Returns the chunks of each shard that is not written."""
    _, ranges = self.find_shards()
    return [x for i, x in enumerate(ranges) if not self.spec.is_written(i)]

  def build_range(
    self,
    chunks: ChunkRange = shards.ALL,
    num_workers: int = 1,
    progress: Progress = lambda *_: None,
  ) -> ShardSet:
    """Builds the missing shards of a range; returns those up to its end."""
    read_counts = ReadCounts()
    before = ReadCounts(cursors=[*chunks.cursors])
    num_chunks = chunks.start
    num_rows = 0

    def missing_chunks() -> Iterator[shards.Chunk]:
      nonlocal num_chunks
      for chunk in self.spec.cut(self.corpus, read_counts, chunks):
        num_chunks = chunk.number + 1
        show_progress()
        if not self.spec.is_written(chunk.number // shards.SHARD_CHUNKS):
          yield chunk

    def show_progress() -> None:
      documents = read_counts.num_documents - before.num_documents
      fraction = read_counts.fraction_read
      if chunks.stop:
        fraction = (num_chunks - chunks.start) / (chunks.stop - chunks.start)
      note = f"{documents:,} documents, {num_rows:,} rows"
      progress(read_counts.num_bytes - before.num_bytes, fraction, note)

    members: list[shards.ChunkRows] = []
    make_encoder = functools.partial(shards.ChunkEncoder, self.spec)
    for rows in engines.map_in_order(
      make_encoder, missing_chunks(), num_workers=num_workers
    ):
      members.append(rows)
      num_rows += sum(len(tokens) for tokens, *_ in rows.splits.values())
      if (rows.number + 1) % shards.SHARD_CHUNKS == 0:
        shards.write_shard(self.spec, members)
        members = []
    if members:
      shards.write_shard(self.spec, members)
    show_progress()
    num_shards = -(-num_chunks // shards.SHARD_CHUNKS)
    return ShardSet(self.spec, self.corpus, read_counts, num_shards)

  def _count_path(self, unit: Unit) -> pathlib.Path:
    return self.spec.folder / "count-{:03d}-{:06d}.npz".format(*unit)


def build_shards(
  plan: Plan,
  corpus: Corpus,
  tokenizer: Tokenizer,
  progress: Progress = lambda *_: None,
) -> ShardSet:
  """Builds the missing shards of a rows folder."""
  temporary = open_unfinished(plan)
  options = plan.options
  num_workers = plan.num_workers
  try:
    unit = shards.choose_held_out_unit(corpus, options)
    where = temporary
    if plan.bucket:
      name = f"{UNFINISHED_VERSION}-{rows_fingerprint(options)}"
      where = open_path("--store", plan.bucket) / f"truenegs-{name}"
      if not is_bucket(where):
        raise InputError(
          f"--store={plan.bucket!r} is no URL such as gs://bucket/folder."
        )
      (where / "probe").write_bytes(b"")  # fails now, not after hours
    spec = ShardSpec(where, tokenizer, options, unit, plan.data.tokenizer)
    preparation = Preparation(spec, lambda: corpus)
    if plan.engine:
      assert plan.open_corpus
      remote = Preparation(spec, plan.open_corpus)
      count = Step("Count documents", remote.list_units, remote.count_unit)
      build = Step("Build shards", remote.list_shards, remote.build_range)
      plan.engine([count, build])
      shard_set, _ = preparation.find_shards()
    else:
      shard_set = preparation.build_range(shards.ALL, num_workers, progress)
    corpus.check_unchanged(options.sources)
  except DataError as error:
    # The shards are useless for repaired text, but not if a disk or a network
    # works again. An error of an engine does not tell its cause.
    may_recover = isinstance(error.__cause__, OSError) or not corpus.is_local()
    if not (may_recover or plan.engine):
      shards.remove_store(temporary)
    raise
  return shard_set


def open_unfinished(plan: Plan) -> pathlib.Path:
  """Creates the unfinished folder, if it is none of an earlier such call."""
  folder = plan.folder
  names = [x.name for x in folder.iterdir()] if folder.is_dir() else []
  # A preparation that was stopped leaves shards in a bucket.
  is_own = is_bucket(folder) and any(map(rows_folder.is_shard_name, names))
  if folder.is_file() or (names and not is_own):
    raise DataError(
      f"data.rows='{folder}' exists and is not empty. Remove it, or set"
      " --config.data.rows to another folder."
    )
  temporary = shards.unfinished_folder(folder)
  path = temporary / "fingerprint"
  fingerprint = f"{UNFINISHED_VERSION} {rows_fingerprint(plan.options)}"
  with disk_errors(temporary):
    earlier = path.read_text(encoding="utf-8") if path.exists() else ""
    if earlier != fingerprint:
      shutil.rmtree(temporary, ignore_errors=True)
      temporary.mkdir(parents=True)
      path.write_text(fingerprint, encoding="utf-8")
  return temporary


def read_arrays(path: pathlib.Path, *names: str) -> dict[str, np.ndarray]:
  """Returns saved arrays; DiskError if the file is damaged, and so removed."""
  data = path.read_bytes()
  try:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
      return {name: arrays[name] for name in names}
  except Exception as error:  # numpy, zipfile and zlib raise unrelated types
    path.unlink(missing_ok=True)
    raise DiskError(
      f"{path}: damaged ({error}). Run the same command again to count again."
    ) from error
