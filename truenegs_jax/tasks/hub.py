"""The records of a data set of `datasets`, all columns of them.

  for record in read_dataset("nyu-mll/glue", config="mrpc", split="train"): ...

`datasets` is imported only here among the tasks, and when it is needed.
"""

import contextlib
import logging
import pathlib
from collections.abc import Iterator
from typing import Any

from truenegs_jax.data import hub
from truenegs_jax.errors import AbsentError, DataError, TrueNegsError
from truenegs_jax.tasks.records import Record

HUB = "hf:"
BATCH_RECORDS = 1000


def read_dataset(
  name: str, *, config: str = "", split: str = "train"
) -> Iterator[Record]:
  """The records of a split, all columns; classes by their names.

  Args:
    name: on the Hugging Face hub; or a folder that `save_to_disk` wrote, or
      of data files.
    config: also called subset; empty for the only one or the default.

  Raises:
    DataError: no such folder or split, or damaged.
    AbsentError: it cannot be loaded from the hub.
  """
  with _errors(name):
    records = _load(name, config, split)
    classes = {
      column: feature.names
      for column, feature in records.features.items()
      if hasattr(feature, "int2str")
    }
    number = 0
    for batch in records.iter(batch_size=BATCH_RECORDS):
      for column, names in classes.items():
        batch[column] = [
          None if i is None or i < 0 else names[i] for i in batch[column]
        ]
      for values in zip(*batch.values(), strict=True):
        number += 1
        place = f"{HUB}{name} [{split}]: record {number}"
        yield Record(place, dict(zip(batch, values, strict=True)))
    if not number:
      raise DataError(f"{HUB}{name} [{split}]: the split holds no record.")


def _load(name: str, config: str, split: str) -> Any:
  """A split as `datasets` has it, without bars on our display."""
  import datasets

  datasets.disable_progress_bars()
  datasets.logging.set_verbosity(logging.CRITICAL)
  folder = pathlib.Path(name).expanduser()
  if not hub.is_folder(name) or not hub.is_saved(folder):
    where = str(folder) if hub.is_folder(name) else name
    return datasets.load_dataset(where, config or None, split=split)
  saved = datasets.load_from_disk(str(folder))
  if isinstance(saved, datasets.Dataset):
    saved = {str(saved.split or "train"): saved}
  if split not in saved:
    raise DataError(
      f"{HUB}{name}: no split {split!r}; there are: {', '.join(saved)}."
    )
  return saved[split]


@contextlib.contextmanager
def _errors(name: str) -> Iterator[None]:
  is_local = hub.is_folder(name)
  if not is_local and not hub.HUB_NAME.fullmatch(name):
    raise DataError(
      f"{HUB}{name} is neither a folder nor a name on the Hugging Face hub; a"
      f" file is given without {HUB}."
    )
  try:
    yield
  except TrueNegsError:
    raise
  # Two dozen kinds, of six libraries.
  except Exception as error:
    said = f"{type(error).__name__}: {error}"
    if is_local:
      raise DataError(f"{HUB}{name}: cannot be read ({said}).") from error
    raise AbsentError(
      f"{HUB}{name} cannot be loaded from the Hugging Face hub ({said})."
      f" Without internet, give a copy: files, or {HUB}FOLDER, a data set saved"
      " there with save_to_disk; what an earlier run loaded is found where"
      " HF_HOME says."
    ) from error
