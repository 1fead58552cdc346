"""Reads records of tasks from .tsv, .csv or .jsonl files, or from data sets.

for record in read_file("train.tsv.xz"):  # or read_dataset("hf:NAME", ...)
  record.text("sentence"), record.label("label", CLASSES)
"""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from truenegs_jax.data.corpus import files, hub_datasets
from truenegs_jax.data.corpus.hub_datasets import HUB, DatasetSpec
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.data.corpus.readers import (
  read_csv_rows,
  read_objects,
  read_records,
)
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.tasks.task import SCORE, SPANS, Example, Task

BATCH_RECORDS = 1000
Rows = Iterator[tuple[int, list[str]]]


GLUE_FIX = (
  "Pass the folder that contains {title}/, an unpacked archive of GLUE"
  " (https://gluebenchmark.com/tasks), the file itself, or hf:nyu-mll/glue."
  ' Without internet, run load_dataset("nyu-mll/glue", "{name}")'
  '.save_to_disk("FOLDER/{name}") on another machine, copy FOLDER here and pass'
  " hf:FOLDER."
)
SQUAD_FIX = (
  "Set --config.finetune.data=FOLDER with SQuAD's files"
  " (https://rajpurkar.github.io/SQuAD-explorer/dataset/{file}),"
  " --config.finetune.files='train=FILE dev=FILE' or"
  " --config.finetune.data=hf:rajpurkar/squad."
)


def official_path(task: Task, split: str, folder: str) -> pathlib.Path:
  """Returns the path of a published file, which may be compressed."""
  root = pathlib.Path(folder).expanduser()
  if task.kind == SPANS:
    return root / f"{split}-v1.1.json"
  is_matched = task.name == "mnli" and split in ("dev", "test")
  return root / task.title / f"{split}{'_matched' * is_matched}.tsv"


def find_official(task: Task, split: str, folder: str) -> pathlib.Path:
  """Returns the published file of a split; DataError if there is none."""
  path = official_path(task, split, folder)
  if existing := files.find_existing(path, or_compressed=True):
    return existing
  fix = SQUAD_FIX if task.kind == SPANS else GLUE_FIX
  raise DataError(
    f"{path}: there is no such file, also not with"
    f" {' '.join(files.COMPRESSIONS)}."
    f" {fix.format(title=task.title, name=task.name, file=path.name)}"
  )


class Record(NamedTuple):
  """A row of a table, or a JSON object.

  Attributes:
    location: file and line, "train.tsv:17", for messages.
    fields: values by the name of their column.
  """

  location: str
  fields: dict[str, Any]

  def value(self, column: str) -> Any:
    """Returns the value in a column; DataError if there is no such column."""
    if column not in self.fields:
      columns = ", ".join(map(repr, itertools.islice(self.fields, 20)))
      raise DataError(
        f"{self.location}: no column {column!r}. Columns: {columns or 'none'}."
      )
    return self.fields[column]

  def text(self, column: str, *, may_be_empty: bool = False) -> str:
    """Returns the text in a column; DataError if it is missing or blank."""
    text = self.value(column)
    if not isinstance(text, str):
      raise DataError(
        f"{self.location}: column {column!r} holds {text!r}, not a text."
      )
    if not may_be_empty and not text.strip():
      raise DataError(
        f"{self.location}: the text in column {column!r} is empty. Add it or"
        " remove the row."
      )
    return text

  def label(
    self, column: str, kind: str, *, labels: Sequence[str] = ()
  ) -> str | float:
    """Returns the class in a column, or a finite number if `kind` is SCORE.

    `labels` are the allowed classes; empty allows any name. Raises DataError
    for another value.
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
      value = int(value)  # 1 and 1.0 are the same class
    is_label = not isinstance(value, list | dict | None) and value == value
    if not is_label or not str(value):
      raise DataError(
        f"{self.location}: column {column!r} holds {value!r}, not a label."
      )
    if labels and str(value) not in labels:
      raise DataError(
        f"{self.location}: label {str(value)!r} is unknown. Labels are"
        f" {', '.join(map(repr, labels[:20]))}. Fix the label or remove the"
        " row."
      )
    return str(value)


def read_file(
  path: str | pathlib.Path,
  *,
  columns: Sequence[str] = (),
  skipped: list[str] | None = None,
) -> Iterator[Record]:
  """Reads the records of a .tsv, .csv or .jsonl file, plain or compressed.

  In .tsv and .txt quotes are ordinary characters; a .csv file may quote its
  fields (RFC 4180). Blank lines are skipped.

  Args:
    columns: names of the columns, if the first line does not hold them.
    skipped: receives the locations of rows with a wrong number of fields, which
      are left out; None refuses such a row.
  """
  existing = files.find_existing(path)
  if existing is None:
    raise DataError(f"{path}: there is no such file.")
  file = files.stat_file(existing)
  if file.suffix in (".jsonl", ".json"):
    records: Iterator[Record] = (
      Record(f"{file.path}:{number}", fields)
      for number, fields in read_objects(file, ReadState())
    )
  elif file.suffix in (".tsv", ".txt", ".csv"):
    if file.suffix == ".csv":
      rows = read_csv_rows(file, ReadState())
    else:
      lines = enumerate(read_records(file, ReadState()), start=1)
      rows = ((i, line.removesuffix("\n").split("\t")) for i, line in lines)
    records = _table_records(file, rows, list(columns), skipped)
  else:
    raise DataError(
      f"{path}: unknown format. Files of tasks are .tsv, .csv or .jsonl, each"
      f" also with {' '.join(files.COMPRESSIONS)}. Rename or convert the file."
    )
  first = next(records, None)
  if first is None:
    raise DataError(f"{file.path}: the file has no records.")
  yield first
  yield from records


def _table_records(
  file: files.File, rows: Rows, columns: list[str], skipped: list[str] | None
) -> Iterator[Record]:
  for number, row in rows:
    row, location = row or [""], f"{file.path}:{number}"  # [] of a blank line
    if row == [""] and len(columns) != 1:
      continue
    if not columns:
      columns = row
      if len(set(columns)) < len(columns):
        raise DataError(
          f"{location}: two columns have the same name. The first line names"
          f" {', '.join(map(repr, columns))}. Rename one of them."
        )
    elif len(row) == len(columns):
      yield Record(location, dict(zip(columns, row, strict=True)))
    elif skipped is not None:
      skipped.append(location)
    else:
      raise DataError(
        f"{location}: {len(row)} fields, but {len(columns)} columns"
        f" ({', '.join(columns[:20])}). Fix or remove the row."
      )


def read_dataset(
  where: str | DatasetSpec, *, split: str, config: str = ""
) -> Iterator[Record]:
  """Reads the records of a split with all columns; classes become names.

  Args:
    where: a data set, as for `hub_datasets.parse_dataset`.
    split: the split if `where` names none: "train", "dev" (the hub's
      "validation"), "test", ...
    config: the config if `where` names none; empty for the default.
  """
  if isinstance(where, str):
    where = hub_datasets.parse_dataset(where, key="finetune")
  spec = dataclasses.replace(
    where,
    split=where.split or split.replace("dev", "validation"),
    config=where.config or config,
  )
  dataset = hub_datasets.open_dataset(spec)
  location, number = f"{HUB}{spec.name} [{dataset.spec.split}]", 0
  with spec.errors():
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
        yield Record(f"{location}: record {number}", fields)
  if not number:
    raise DataError(f"{location}: the split has no records.")


def read_examples(where: str, split: str, task: Task) -> list[Example]:
  """Reads the labeled texts of your own task, in order.

  Args:
    where: a file, or a data set, "hf:NAME split=S" for example.
    split: "train", "dev" or "test", which may lack labels.
    task: if it has no labels, any class is read.
  """
  is_hub = where.startswith(HUB)
  records = read_dataset(where, split=split) if is_hub else read_file(where)
  examples = []
  for number, record in enumerate(records):
    first, second, *_ = (*map(record.text, task.columns), None)
    column, label = task.label_column, None
    if split != "test" or record.fields.get(column) not in (None, ""):
      label = record.label(column, task.kind, labels=task.labels)
    examples.append(Example(str(number), first, second, label, record.location))
  return examples
