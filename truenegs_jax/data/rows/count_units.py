"""Counts the documents of a corpus unit by unit, before jobs build its rows.

  sizes = count_units(folder, corpus, job=(0, 4), progress=print)

A count is a file, so it is made once, by any job. With all counts, a job knows
where its chunks begin and reads only their files.
"""

import collections
import pathlib
from collections.abc import Callable

import numpy as np

from truenegs_jax.data.corpus.corpus import Corpus, Sizes
from truenegs_jax.data.rows import store
from truenegs_jax.data.rows.locks import try_lock

Unit = tuple[int, int]  # of a corpus: the part and its unit


def list_units(corpus: Corpus) -> list[Unit]:
  """Returns the units of all parts."""
  return [
    (part, unit)
    for part in range(len(corpus.parts))
    for unit in range(corpus.parts[part].num_units)
  ]


def count_units(
  folder: pathlib.Path,
  corpus: Corpus,
  job: tuple[int, int],
  progress: Callable[[int, float, str], object],
) -> None:
  """Counts all units, together with the other jobs that do the same now.

  A job begins with its share of the units, and then counts those that no other
  job has begun.

  Args:
    folder: of the counts.
    job: (i, n), see `build_rows.build_chunks`.
    progress: called after each unit with the bytes of text that this job
      counted, the fraction done, and a text for the user.

  Raises:
    DataError: text cannot be read or is refused.
    DiskError: a file cannot be written.
  """
  units = list_units(corpus)
  first = len(units) * job[0] // job[1]
  units = units[first:] + units[:first]
  num_bytes = 0
  for wait in (False, True):  # at last for the units of other jobs
    for done, unit in enumerate(units, start=1):
      if not count_path(folder, unit).exists():
        lock = count_path(folder, unit).with_suffix(".lock")
        with try_lock(lock, wait=wait) as is_held:
          if is_held:
            num_bytes += count_unit(folder, corpus, unit)
      progress(num_bytes, done / len(units), "counting documents")


def count_unit(folder: pathlib.Path, corpus: Corpus, unit: Unit) -> int:
  """Stores the count of a unit, unless it is stored; returns bytes of text."""
  path = count_path(folder, unit)
  if path.exists():
    return 0
  sizes_Dx2, oddities = corpus.count(*unit)
  counts = np.array(list(oddities.values()), np.int64)
  names = np.array(list(oddities), np.str_)
  arrays = {"sizes": sizes_Dx2, "names": names, "counts": counts}
  store.write_arrays(path, arrays)
  return int(sizes_Dx2[:, 0].sum())


def read_counts(
  folder: pathlib.Path, corpus: Corpus
) -> tuple[Sizes, collections.Counter[str]]:
  """Returns the sizes of all documents, and the oddities of their text.

  Raises:
    DiskError: a count is missing or damaged, and so removed.
  """
  sizes: list[list[np.ndarray]] = [[] for _ in corpus.parts]
  oddities = collections.Counter[str]()
  for part, unit in list_units(corpus):
    arrays = store.read_arrays(count_path(folder, (part, unit)))
    sizes[part].append(arrays["sizes"])
    names, counts = arrays["names"], arrays["counts"]
    oddities.update(dict(zip(names.tolist(), counts.tolist(), strict=True)))
  return sizes, oddities


def count_path(folder: pathlib.Path, unit: Unit) -> pathlib.Path:
  """Returns the file of a count."""
  return folder / "count-{:03d}-{:06d}.npz".format(*unit)
