"""The records of a task: of a .tsv, .csv or .jsonl file, or of a data set.

for record in read_file("train.tsv.xz"):  # or read_dataset("hf:NAME", ...)
  record.text("sentence"), record.label("label", CLASSES)
"""

import csv as csv_lib
import io
import itertools
import json
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from truenegs_jax.data.corpus import hub_datasets
from truenegs_jax.data.corpus.files import (
  COMPRESSIONS,
  File,
  find_existing,
  stat_file,
)
from truenegs_jax.data.corpus.lines import read_text
from truenegs_jax.data.corpus.read_state import MAX_RECORD_BYTES, ReadState
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.tasks.task import SCORE

Rows = Iterator[tuple[int, list[str]]]


class Record(NamedTuple):
  """A row of a table, or an object of JSON.

  Attributes:
    location: file and line, "train.tsv:17", for messages.
    fields: by the name of their column.
  """

  location: str
  fields: dict[str, Any]

  def value(self, column: str) -> Any:
    """The value in a column.

    Raises:
      DataError: there is no such column.
    """
    if column not in self.fields:
      known = ", ".join(map(repr, itertools.islice(self.fields, 20)))
      raise DataError(
        f"{self.location}: no column {column!r}; there are: {known or 'none'}."
      )
    return self.fields[column]

  def text(self, column: str, *, may_be_empty: bool = False) -> str:
    """A text.

    Raises:
      DataError: no such column, no text, or nothing but white space.
    """
    text = self.value(column)
    if not isinstance(text, str):
      raise DataError(
        f"{self.location}: column {column!r} holds {text!r}, not a text."
      )
    if not may_be_empty and not text.strip():
      raise DataError(
        f"{self.location}: the text in column {column!r} is empty: leave the"
        " row out, or write what is missing."
      )
    return text

  def label(
    self, column: str, kind: str, *, known: Sequence[str] = ()
  ) -> str | float:
    """The name of a class, or with kind SCORE a number.

    Args:
      known: the classes that there are; empty where any name is good.

    Raises:
      DataError: no such column, no label, not a finite number, another class.
    """
    value = self.value(column)
    if kind == SCORE:
      try:
        score = math.nan if isinstance(value, bool) else float(value)
      except (TypeError, ValueError, OverflowError):
        score = math.nan
      if not math.isfinite(score):
        raise DataError(
          f"{self.location}: column {column!r} holds {value!r}, not a finite"
          " number such as 3.5."
        )
      return score
    if isinstance(value, float) and value.is_integer():
      value = int(value)  # beside 1, 1.0 is no class of its own
    is_label = not isinstance(value, list | dict | None) and value == value
    if not is_label or not str(value):
      raise DataError(
        f"{self.location}: column {column!r} holds {value!r}, not a label."
      )
    if known and str(value) not in known:
      raise DataError(
        f"{self.location}: label {str(value)!r} is none of"
        f" {', '.join(map(repr, known[:20]))}: fix it, or leave the row out."
      )
    return str(value)


def read_file(
  path: str | pathlib.Path,
  *,
  columns: Sequence[str] = (),
  uneven: list[str] | None = None,
) -> Iterator[Record]:
  """The records of a .tsv, .csv or .jsonl file, plain or compressed.

  Fields of .tsv are parted by tabs and a quote is a quote, as GLUE has it; in
  .csv a field may stand in quotes (RFC 4180); .jsonl has an object a line.
  Blank lines between are no records.

  Args:
    columns: names, where the first line of a table does not hold them.
    uneven: takes the places of rows with another number of fields than there
      are columns, which are then left out; None refuses such a row.

  Raises:
    DataError: no such file or another kind; no record; by line: not UTF-8,
      wrong quotes, no JSON, another number of fields.
  """
  there = find_existing(path)
  if there is None:
    raise DataError(f"{path}: there is no such file.")
  file = stat_file(there)
  if file.suffix in (".jsonl", ".json"):
    records = _objects(file)
  elif file.suffix in (".tsv", ".csv"):
    rows = _csv_rows(file) if file.suffix == ".csv" else _tsv_rows(file)
    records = _table(file, rows, list(columns), uneven)
  else:
    raise DataError(
      f"{path}: a file of a task is .tsv, .csv or .jsonl, each also with"
      f" {' '.join(COMPRESSIONS)}: rename or convert it."
    )
  is_empty = True
  for record in records:
    is_empty = False
    yield record
  if is_empty:
    raise DataError(f"{file.path}: the file holds no record.")


def _lines(file: File) -> Iterator[str]:
  # Not `splitlines`, to which U+2028 in a text is the end of a line.
  for run in read_text(file, ReadState(hint=""), records=True):
    yield from io.StringIO(run, newline="\n")


def _tsv_rows(file: File) -> Rows:
  for number, line in enumerate(_lines(file), start=1):
    yield number, line.removesuffix("\n").split("\t")


def _csv_rows(file: File) -> Rows:
  csv_lib.field_size_limit(MAX_RECORD_BYTES)  # of the process; was 131,072
  rows = csv_lib.reader(_lines(file), strict=True)
  next_line = 1
  try:
    for row in rows:
      yield next_line, row or [""]
      next_line = rows.line_num + 1
  except csv_lib.Error as error:
    raise DataError(
      f"{file.path}:{next_line}: a record begins here whose quotes do not match"
      f" ({error}): double a quote within quotes, or save it as .tsv, where a"
      " quote is a quote."
    ) from error


def _table(
  file: File, rows: Rows, names: list[str], uneven: list[str] | None
) -> Iterator[Record]:
  for number, row in rows:
    place = f"{file.path}:{number}"
    if row == [""] and len(names) != 1:
      continue
    if not names:
      names = row
      if len(set(names)) < len(names):
        raise DataError(
          f"{place}: two columns have one name; the first line must name each:"
          f" {', '.join(map(repr, names))}."
        )
    elif len(row) == len(names):
      yield Record(place, dict(zip(names, row, strict=True)))
    elif uneven is not None:
      uneven.append(place)
    else:
      raise DataError(
        f"{place}: {len(row)} fields, but {len(names)} columns"
        f" ({', '.join(names[:20])}): mend the row, or leave it out."
      )


def _objects(file: File) -> Iterator[Record]:
  for number, line in enumerate(_lines(file), start=1):
    if line.isspace():
      continue
    place = f"{file.path}:{number}"
    try:
      record = json.loads(line)
    except (ValueError, RecursionError) as error:
      raise DataError(f"{place}: no JSON on one line: {error}.") from error
    if not isinstance(record, dict):
      raise DataError(
        f"{place}: {type(record).__name__}, not a JSON object: a file holds one"
        " object a line (`jq -c '.[]'` makes such of an array)."
      )
    yield Record(place, record)


HUB = "hf:"
FORMS = "hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT"
BATCH_RECORDS = 1000
ASKER = hub_datasets.ErrorContext(
  "finetune",
  "hf:NAME:SPLIT",
  "give its files, or a folder with the Parquet files that the hub keeps of it",
  f"{FORMS} chooses among what is there",
)


class DatasetName(NamedTuple):
  """A data set, on the hub or a folder; "" for what is left open."""

  name: str
  config: str
  split: str


def parse_dataset_name(where: str) -> DatasetName:
  """Takes hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT apart.

  Raises:
    InputError: it has none of these forms.
  """
  name = where.removeprefix(HUB)
  if name and hub_datasets.is_folder(name):  # whatever is in its name
    return DatasetName(name, "", "")
  parts = name.split(":")
  if len(parts) > 3 or not all(parts):
    raise InputError(f"{where!r} is not of the form {FORMS}.")
  name, *config, split = parts if len(parts) > 1 else (name, "")
  return DatasetName(name, "".join(config), split)


def read_dataset(
  where: str | DatasetName, *, split: str, config: str = ""
) -> Iterator[Record]:
  """The records of a split, all columns; classes by their names.

  Args:
    where: as `parse_dataset_name` has it; a folder is one that
      `save_to_disk` wrote, or of data files.
    split: what is meant where none is named: "train", "dev" (the "validation"
      of the hub), "test", ...
    config: likewise; empty for the only one or the default.

  Raises:
    DataError: no such folder or split, no record, or damaged.
    UnavailableError: it cannot be loaded from the hub.
    InputError: as `parse_dataset_name`.
  """
  wanted = parse_dataset_name(where) if isinstance(where, str) else where
  dataset = hub_datasets.open_dataset(
    wanted.name,
    ASKER,
    column="",
    split=wanted.split or split.replace("dev", "validation"),
    config=wanted.config or config,
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
