"""Builds shards of rows from slices of text, by processes or by Beam.

A corpus has units, and the documents of a unit are cut into slices. A slice
gives the files of a shard, and at the end a record; that of the unit has the
number of its slices. Text and options alone decide all of this, so any process
can build any slice, and what has a record is not built again.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import multiprocessing
import os
import pathlib
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from truenegs_jax.data import layouts, rows
from truenegs_jax.data.encoder import Encoder
from truenegs_jax.data.sources import Corpus, Unit
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.data.vocabulary import batch_texts
from truenegs_jax.runtime.errors import DiskError, InputError
from truenegs_jax.runtime.files import atomic_file, read_json

MIN_SLICE = 2**21  # characters, about 4,000 rows of 128
MAX_SLICE = 2**23
NUM_SLICES = 64  # of a corpus, within these bounds
SLICE_DOCUMENTS = 2**14  # of MIN_SLICE, at most
UNIT_DOCUMENTS = 2**40  # more than a unit has
PHASE = 618_034  # the golden ratio in millionths spreads its multiples evenly
MIN_SLICES = 4  # fewer are faster without processes, which take time to start


@dataclasses.dataclass(frozen=True)
class RowsOptions:
  """Everything that decides the content of a rows folder."""

  # `Corpus.identity()`: names, sizes and times of files, weights.
  sources: list[dict[str, Any]]
  vocabulary: str  # the fingerprint of the tokenizer, or "train:SIZE"
  lowercase: bool
  strip_accents: bool
  length: int
  layout: str = "electra"
  held_out: float = 0.01  # share of the documents to hold out, up to 0.5


class Slice(NamedTuple):
  """Consecutive documents of a unit."""

  name: str  # such as "00003-0007": the numbers of the unit and of the slice
  first: int  # number of its first document in the unit
  texts: list[str]  # of its documents
  num_bytes: int  # of them in UTF-8


@dataclasses.dataclass(frozen=True)
class BuildSpec:
  """How and where to build shards."""

  folder: pathlib.Path  # of the shards, here or in a bucket
  records: pathlib.Path  # folder of records, until all shards are built
  tokenizer: Tokenizer
  options: RowsOptions
  held_out_by: str  # result of `choose_held_out`
  slice_size: int  # in characters
  backend: str  # of the encoder; it does not change the rows

  def has_record(self, name: str) -> bool:
    """Returns whether `read_record` finds a unit or slice."""
    return (self.records / f"{name}.json").exists()

  def write_record(self, name: str, record: Mapping[str, Any]) -> None:
    """Writes the record of a unit or slice that is complete."""
    write_file(self.records / f"{name}.json", json.dumps(record).encode())

  def read_record(self, name: str) -> dict[str, Any]:
    """Reads what `write_record` has written."""
    path = self.records / f"{name}.json"
    fix = f"Remove '{path}' and run the same command again."
    with read_json(path, DiskError, fix, rows.MAX_VALUES) as record:
      return record


def unit_name(corpus: Corpus, unit: Unit) -> str:
  """Returns the name of a unit, such as "00003"."""
  return f"{corpus.units.index(unit):05d}"


def slice_name(unit: str, number: int) -> str:
  """Returns the name of a slice and its shard, such as "00003-0007"."""
  return f"{unit}-{number:04d}"


def choose_slice_size(corpus: Corpus) -> int:
  """Returns the characters of a slice, which depend on the size of the text."""
  num_bytes = corpus.num_bytes
  # That of a data set may be known only once this machine has read it.
  if num_bytes is None or any(part.spec.is_dataset for part in corpus.parts):
    return MAX_SLICE
  return min(max(num_bytes // NUM_SLICES, MIN_SLICE), MAX_SLICE)


def choose_held_out(corpus: Corpus, share: float) -> str:
  """Returns what to hold out: "documents", "rows" or "none".

  It is the last rows of every slice if there are too few documents.
  """
  if not share:
    return "none"
  for number, unit in enumerate(corpus.units):
    for index, _ in enumerate(corpus.read_unit(unit)):
      if _is_held_out(number, index, share):
        return "documents"
  return "rows"


def read_slices(spec: BuildSpec, corpus: Corpus, unit: Unit) -> Iterator[Slice]:
  """Yields the missing slices of a unit; writes its record at the end."""
  name = unit_name(corpus, unit)
  if spec.has_record(name):
    numbers = range(spec.read_record(name)["slices"])
    if all(spec.has_record(slice_name(name, number)) for number in numbers):
      return
  record = {"slices": 0, "documents": 0, "text_bytes": 0}
  most = SLICE_DOCUMENTS * max(1, spec.slice_size // MIN_SLICE)
  for texts in batch_texts(corpus.read_unit(unit), spec.slice_size, most):
    piece = Slice(
      slice_name(name, record["slices"]),
      record["documents"],
      texts,
      sum(len(text.encode()) for text in texts),
    )
    record["slices"] += 1
    record["documents"] += len(texts)
    record["text_bytes"] += piece.num_bytes
    if not spec.has_record(piece.name):
      yield piece
  spec.write_record(name, record)


def write_slice(spec: BuildSpec, encoder: Encoder, piece: Slice) -> None:
  """Writes the files of a shard, and its record at the end."""
  documents: dict[str, list[tuple[int, str]]] = {x: [] for x in rows.SPLITS}
  unit = int(piece.name.partition("-")[0])
  share = spec.options.held_out
  for i, text in enumerate(piece.texts, piece.first):
    split = "train"
    if spec.held_out_by == "documents" and _is_held_out(unit, i, share):
      split = "held_out"
    documents[split].append((unit * UNIT_DOCUMENTS + i, text))
  arrays = {x: _lay_out(spec, encoder, documents[x]) for x in rows.SPLITS}
  if spec.held_out_by == "rows":
    arrays = _hold_out_rows(arrays["train"], share, piece)
  record: dict[str, Any] = {"files": {}}
  for split, fields in arrays.items():
    size = len(spec.tokenizer.vocab)
    counts_V = np.bincount(fields[0].ravel(), minlength=size)
    counts_V[spec.tokenizer.pad] = 0  # text never encodes to it
    record[split] = {"rows": len(fields[0]), "counts": counts_V.tolist()}
    for field, array_RxL in zip(rows.FIELDS, fields, strict=True):
      if len(array_RxL):
        name = rows.shard_name(split, piece.name, field)
        path = spec.folder / name
        record["files"][name] = write_file(path, save_array(array_RxL))
  spec.write_record(piece.name, record)


def save_array(array: np.ndarray) -> bytes:
  """Returns the content of an .npy file."""
  buffer = io.BytesIO()
  np.save(buffer, array)
  return buffer.getvalue()


def write_file(path: pathlib.Path, data: bytes) -> dict[str, int]:
  """Writes a file, also while others do; returns its record."""
  with atomic_file(path, several_writers=True) as file:
    file.write(data)
  return rows.data_record(data)


def _lay_out(
  spec: BuildSpec, encoder: Encoder, documents: list[tuple[int, str]]
) -> layouts.Arrays:
  """Returns the rows of documents."""
  tokenizer = spec.tokenizer
  options = spec.options
  line_end = re.compile(tokenizer.line_end)
  texts = [(number, line_end.split(text)) for number, text in documents]
  tokens_T, lengths_N = encoder.encode([x for _, lines in texts for x in lines])
  lengths = iter(lengths_N.tolist())
  dtype = np.uint16 if len(tokenizer.vocab) <= 2**16 else np.uint32
  ids = (tokenizer.cls, tokenizer.sep, tokenizer.pad)
  return layouts.lay_out(
    [(i, [*itertools.islice(lengths, len(lines))]) for i, lines in texts],
    tokens_T,
    layouts.RowSpec(options.length, *ids, dtype),
    layout=options.layout,
  )


def _is_held_out(unit: int, index: int, share: float) -> bool:
  """Selects a share of the documents of a unit, evenly spaced.

  Units begin at different places, so that small ones give their share.
  """
  size = round(share * 10**6)  # exact for the float 0.1
  place = index * size + unit * PHASE % 10**6
  return (place + size) // 10**6 > place // 10**6


def _hold_out_rows(
  fields: layouts.Arrays, share: float, piece: Slice
) -> dict[str, layouts.Arrays]:
  """Moves the last rows of a slice to the held-out split."""
  count = len(fields[0])
  num_rows = round(share * count)
  if piece.name == "00000-0000":  # it may be small, and the only slice
    num_rows = max(num_rows, min(1, count - 1))
  kept = count - num_rows
  train, held_out = zip(*((x[:kept], x[kept:]) for x in fields), strict=True)
  return {"train": train, "held_out": held_out}


def build_here(
  spec: BuildSpec,
  corpus: Corpus,
  *,
  num_workers: int,
  progress: Callable[[int], object],
) -> None:
  """Builds what is missing; calls `progress` with the bytes of text so far."""
  encoder = Encoder(spec.tokenizer, spec.backend)  # its error is raised once

  def missing_slices() -> Iterator[Slice]:
    num_bytes = 0
    for unit in corpus.units:
      num_read = num_bytes
      for piece in read_slices(spec, corpus, unit):
        num_read += piece.num_bytes
        progress(num_read)
        yield piece
      num_bytes += spec.read_record(unit_name(corpus, unit))["text_bytes"]

  slices = missing_slices()
  first = [*itertools.islice(slices, MIN_SLICES)]
  slices = itertools.chain(first, slices)
  if num_workers > 1 and len(first) == MIN_SLICES:
    _write_in_processes(spec, slices, num_workers)
  else:
    for piece in slices:
      write_slice(spec, encoder, piece)


def available_cores() -> int:
  """Counts the cores that `taskset` or Slurm allow."""
  if hasattr(os, "sched_getaffinity"):  # on Linux
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _write_in_processes(
  spec: BuildSpec, slices: Iterable[Slice], number: int
) -> None:
  """Writes slices in processes, which take turns and share nothing."""
  from multiprocessing import resource_tracker

  # Forking breaks the threads of the caller, such as those of jax.
  context = multiprocessing.get_context("spawn")
  resource_tracker.ensure_running()  # starting it later unblocks SIGINT
  # A terminal sends SIGINT to the workers as well. They inherit its block.
  blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  workers = []
  processes = []
  try:
    for _ in range(number):
      connection, other = context.Pipe()
      process = context.Process(target=_work, args=(spec, other), daemon=True)
      process.start()
      other.close()
      workers.append(connection)
      processes.append(process)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for turn, piece in enumerate(slices):
      _give(workers[turn % number], piece)
    for worker in workers:
      _give(worker, None)
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for process in processes:
      process.kill()
      process.join()


def _give(worker: Any, piece: Slice | None) -> None:
  """Waits for a worker and gives it a slice, if any; raises its error."""
  try:
    error = worker.recv()
    if piece and not error:
      worker.send(piece)
  except (EOFError, OSError) as lost:
    raise InputError(
      "data.workers: a worker process ended early. Its error is printed above."
      " If there is none, it was killed, most often because of too little"
      " memory. Set a smaller --config.data.workers and run the same command"
      " again; it continues."
    ) from lost
  if error:
    raise error


def _work(spec: BuildSpec, connection: Any) -> None:
  """Writes the slices that a process receives; sends None, or an error."""

  def exit_with_parent() -> None:
    """Ends this process at once, or it would write beside the next attempt."""
    if parent := multiprocessing.parent_process():
      parent.join()
      os._exit(1)

  threading.Thread(target=exit_with_parent, daemon=True).start()
  os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per worker
  encoder = Encoder(spec.tokenizer, spec.backend)
  error: Exception | None = None
  with contextlib.suppress(EOFError, OSError):  # the parent has ended
    while True:
      connection.send(error)  # at first, that it is ready
      piece = connection.recv()
      try:
        write_slice(spec, encoder, piece)
      except Exception as failure:
        error = failure


def build_on_beam(
  spec: BuildSpec,
  corpus: Corpus,
  open_corpus: Callable[[], Corpus],
  *,
  runner: str,
  options: Sequence[str],
) -> None:
  """Builds all units on a runner of Beam, whose machines have text and folder.

  They open the corpus themselves.
  """
  try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import create_runner
  except ImportError as error:
    message = f"--runner={runner} needs pip install '.[beam]' in the checkout."
    raise InputError(message) from error
  beam_options = PipelineOptions(list(options), runner=runner)
  with beam.Pipeline(create_runner(runner), beam_options) as pipeline:
    units = pipeline | "List" >> beam.Create(corpus.units) | beam.Reshuffle()
    _ = units | "Build" >> beam.Map(_UnitBuilder(spec, open_corpus))


@dataclasses.dataclass(frozen=True, repr=False)  # Beam takes it as a label
class _UnitBuilder:
  """Builds units in a process that opens the corpus itself, once."""

  spec: BuildSpec
  open_corpus: Callable[[], Corpus]  # picklable

  @functools.cached_property
  def corpus(self) -> Corpus:
    corpus = self.open_corpus()
    corpus.check_unchanged(self.spec.options.sources)
    return corpus

  def __call__(self, unit: Unit) -> None:
    encoder = Encoder(self.spec.tokenizer, self.spec.backend)
    for piece in read_slices(self.spec, self.corpus, unit):
      write_slice(self.spec, encoder, piece)
