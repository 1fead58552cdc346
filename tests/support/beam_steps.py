"""Steps for tests of engines; workers import this module."""

import functools
import os
import pathlib
import time

from truenegs_jax.data import shards
from truenegs_jax.data.corpus import sources_spec
from truenegs_jax.data.engines import Step
from truenegs_jax.runtime.errors import DataError

NUM_UNITS, NUM_RANGES = 24, 6


def make_steps(folder: pathlib.Path, write=None) -> list[Step]:
  """Returns three steps; the second and third list files of those before."""
  write = write or write_item
  return [
    Step("units", list_units, functools.partial(write, folder, "unit")),
    Step(
      "ranges",
      functools.partial(list_files, folder, "unit", NUM_UNITS),
      functools.partial(write_item, folder, "range"),
    ),
    Step(
      "shards",
      functools.partial(list_files, folder, "range", NUM_RANGES),
      functools.partial(write_item, folder, "shard"),
    ),
  ]


def list_units() -> range:
  return range(NUM_UNITS)


def list_files(folder, kind, num_expected) -> range:
  """Lists a quarter of the expected files, all of which have to exist."""
  num_files = len(list(folder.glob(f"{kind}-*")))
  if num_files != num_expected:
    raise AssertionError(f"{num_files} of {num_expected} {kind} files.")
  return range(num_files // 4)


def write_item(folder, kind, item) -> None:
  """Writes the process that was first, and counts calls."""
  with (folder / f"calls-{kind}-{item}").open("a") as f:
    f.write(".")
  path = folder / f"{kind}-{item}"
  if not path.exists():
    time.sleep(0.01)
    path.write_text(str(os.getpid()))


def raise_error(folder, kind, item) -> None:
  if item == 5:
    raise DataError(f"{kind} {item} of '{folder}' is 'damagéd'.")
  write_item(folder, kind, item)


SMALL = [
  (shards, "CHUNK_CHARACTERS", 6000),
  (shards, "SHARD_CHUNKS", 2),
  (sources_spec, "UNIT_BYTES", 4000),
]
