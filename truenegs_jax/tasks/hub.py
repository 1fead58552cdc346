"""The records of a data set of `datasets`, all columns of them.

for record in read_dataset("hf:nyu-mll/glue:mrpc:train", split="train"): ...
"""

from collections.abc import Iterator
from typing import NamedTuple

from truenegs_jax.data import hub
from truenegs_jax.errors import DataError, InputError
from truenegs_jax.tasks.records import Record

HUB = "hf:"
FORMS = "hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT"
BATCH_RECORDS = 1000
TASKS = hub.Asker(
  "finetune",
  "hf:NAME:SPLIT",
  "give its files, or a folder with the Parquet files that the hub keeps of it",
  f"{FORMS} chooses among what is there",
)


class Place(NamedTuple):
  """A data set, on the hub or a folder; "" for what is left open."""

  name: str
  config: str
  split: str


def parse(where: str) -> Place:
  """Takes hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT apart.

  Raises:
    InputError: it has none of these forms.
  """
  name = where.removeprefix(HUB)
  if name and hub.is_folder(name):  # whatever is in its name
    return Place(name, "", "")
  parts = name.split(":")
  if len(parts) > 3 or not all(parts):
    raise InputError(f"{where!r} is not of the form {FORMS}.")
  name, *config, split = parts if len(parts) > 1 else (name, "")
  return Place(name, "".join(config), split)


def read_dataset(
  where: str | Place, *, split: str, config: str = ""
) -> Iterator[Record]:
  """The records of a split, all columns; classes by their names.

  Args:
    where: as `parse` has it; a folder is one that `save_to_disk` wrote, or of
      data files.
    split: what is meant where none is named: "train", "dev" (the "validation"
      of the hub), "test", ...
    config: likewise; empty for the only one or the default.

  Raises:
    DataError: no such folder or split, no record, or damaged.
    AbsentError: it cannot be loaded from the hub.
    InputError: as `parse`.
  """
  asked = parse(where) if isinstance(where, str) else where
  dataset = hub.open_dataset(
    asked.name,
    TASKS,
    column="",
    split=asked.split or split.replace("dev", "validation"),
    config=asked.config or config,
  )
  place, number = f"{HUB}{dataset.name} [{dataset.split}]", 0
  with dataset.errors():
    records = dataset.records()
    for batch in records.iter(batch_size=BATCH_RECORDS):
      for column, feature in records.features.items():
        if names := getattr(feature, "names", None):
          batch[column] = [
            None if i is None or i < 0 else names[i] for i in batch[column]
          ]
      for values in zip(*batch.values(), strict=True):
        number += 1
        fields = dict(zip(batch, values, strict=True))
        yield Record(f"{place}: record {number}", fields)
  if not number:
    raise DataError(f"{place}: the split holds no record.")
