"""Reads labeled texts: GLUE's tasks, your own, and records of any columns.

  examples = read_split(TASKS["mrpc"], "train", "glue_data/MRPC/train.tsv")
  examples = read_split(TASKS["mrpc"], "dev", "hf:nyu-mll/glue")
  for record in read_file("train.tsv.xz"):  # or read_dataset("hf:NAME", ...)
    record.text("sentence"), record.label("label", CLASSES)

Splits are train, dev and test. MNLI also has dev_mismatched and
test_mismatched; its dev and test are the matched ones.
"""

import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from truenegs_jax.config import grammar
from truenegs_jax.data import documents
from truenegs_jax.data.documents import HUB
from truenegs_jax.runtime import text as text_lib
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks.task import OWN, PAIR, SCORE, SPANS, Example, Task

BATCH_RECORDS = 1000
# CoLA's train and dev files have no header.
COLA_COLUMNS = ("source", "label", "mark", "sentence")
# Columns of the texts on the hub, where they differ; the label is in "label".
HUB_TEXTS = {"mrpc": PAIR, "mnli": ("premise", "hypothesis")}
MNLI_SUBMISSIONS = {"test": "MNLI-m", "test_mismatched": "MNLI-mm"}


class Record(NamedTuple):
  """A row of a table, or a JSON object."""

  location: str  # file and line, "train.tsv:17", for messages
  fields: dict[str, Any]  # values by the name of their column

  def value(self, column: str) -> Any:
    """Returns the value in a column; DataError if there is no such column."""
    if column not in self.fields:
      names = [*self.fields]
      text_lib.check_column(self.location, names, column, advice="Rename one.")
    return self.fields[column]

  def text(self, column: str, *, may_be_empty: bool = False) -> str:
    """Returns the text in a column; DataError if it is missing or blank."""
    text = self.value(column)
    if isinstance(text, str) and (may_be_empty or text.strip()):
      return text
    raise self._refuse(column, "a text")

  def strings(self, column: str) -> tuple[str, ...]:
    """Returns the words or tags in a column; DataError if it has none."""
    values = self.value(column)
    if isinstance(values, list) and values:
      if all(isinstance(x, str) for x in values):
        return tuple(values)
    raise self._refuse(column, "a list of texts")

  def label(
    self, column: str, kind: str, *, labels: Sequence[str] = ()
  ) -> str | float:
    """Returns a class, or for SCORE a finite number; DataError for others."""
    value = self.value(column)
    if kind == SCORE:
      try:
        score = math.nan if isinstance(value, bool) else float(value)
      except (TypeError, ValueError, OverflowError):
        score = math.nan
      if not math.isfinite(score):
        raise self._refuse(column, "a finite number")
      return score
    if isinstance(value, float) and value.is_integer():
      value = int(value)  # 1 and 1.0 are the same class
    is_label = not isinstance(value, list | dict | None) and value == value
    if not is_label or not str(value):
      raise self._refuse(column, "a label")
    if labels and str(value) not in labels:
      names = ", ".join(map(repr, labels[:20]))
      raise self._refuse(column, f"a known label: {names}")
    return str(value)

  def _refuse(self, column: str, wanted: str) -> DataError:
    return DataError(
      f"{self.location}: column {column!r} holds {self.fields[column]!r:.80},"
      f" not {wanted}. Correct it or remove the row."
    )


def read_file(
  path: str | pathlib.Path,
  *,
  columns: Sequence[str] = (),
  skip_uneven: bool = False,
) -> Iterator[Record]:
  """Reads the records of a .tsv, .csv or .jsonl file, plain or compressed.

  In .tsv and .txt quotes are ordinary characters; a .csv file may quote its
  fields (RFC 4180). Blank lines are skipped, except in a file of one column.

  Args:
    columns: names of the columns, if the first line does not hold them.
    skip_uneven: leaves out rows with a wrong number of fields, which are
      refused otherwise.
  """
  suffix, _ = text_lib.split_suffixes(path)
  file = str(path)
  records: Iterator[Record]
  if suffix in (".jsonl", ".json"):
    rows = text_lib.read_objects(file)
    records = (Record(f"{file}:{number}", fields) for number, fields in rows)
  elif suffix in (".csv", ".tsv", ".txt"):
    records = _read_table(file, columns, skip_uneven=skip_uneven)
  else:
    raise DataError(
      f"{path}: unknown format. Files of tasks are .tsv, .csv or .jsonl, each"
      f" also with {' '.join(text_lib.COMPRESSIONS)}; or what hf:FOLDER holds."
    )
  first = next(records, None)
  if first is None:
    raise DataError(f"{file}: the file has no records.")
  yield first
  yield from records


def _read_table(
  file: str, columns: Sequence[str], *, skip_uneven: bool
) -> Iterator[Record]:
  """Yields the rows of a table."""
  is_csv = text_lib.split_suffixes(file)[0] == ".csv"
  read = text_lib.read_csv if is_csv else text_lib.read_tsv
  for number, row in read(file):
    location = f"{file}:{number}"
    is_blank = not any(row) and len(row) < 2
    if is_blank and len(columns) != 1:
      continue
    if not columns:
      columns = row
      for name in filter(None, columns):
        text_lib.check_column(location, columns, name, advice="Rename one.")
    elif len(row or [""]) == len(columns):
      yield Record(location, dict(zip(columns, row or [""], strict=True)))
    elif not skip_uneven:
      raise DataError(
        f"{location}: {len(row)} fields, but {len(columns)} columns"
        f" ({', '.join(columns[:20])}). Fix or remove the row."
      )


def parse_dataset(where: str) -> tuple[str, dict[str, Any]]:
  """Parses "hf:NAME config=C split=S revision=R"; options are "" if not set."""
  item = grammar.parse_item(where, key="finetune")
  defaults = {"split": "", "config": "", "revision": ""}
  return item.name, item.convert(defaults, subject=f"finetune: {item.name!r}")


def read_dataset(where: str, *, split: str) -> Iterator[Record]:
  """Reads the records of a data set with all columns; classes become names.

  `split` ("dev" is the hub's "validation") counts if `where` names none.
  """
  return _read_records(_open_dataset(where, split))


def _read_records(dataset: documents.HubDataset) -> Iterator[Record]:
  number = 0
  with documents.dataset_errors(dataset.name):
    records = dataset.load()
    for batch in records.iter(batch_size=BATCH_RECORDS):
      for column, feature in records.features.items():
        batch[column] = [_name_classes(x, feature) for x in batch[column]]
      for values in zip(*batch.values(), strict=True):
        number += 1
        fields = dict(zip(batch, values, strict=True))
        yield Record(f"{dataset.name}: record {number}", fields)
  if not number:
    raise DataError(f"{dataset.name}: the split has no records.")


def _name_classes(value: Any, feature: Any) -> Any:
  """Returns the names of a ClassLabel's numbers, also in a list of them."""
  item = getattr(feature, "feature", None)
  if item is not None and isinstance(value, list):
    return [_name_classes(x, item) for x in value]
  if names := getattr(feature, "names", None):
    return None if value is None or value < 0 else names[value]
  return value


def _open_dataset(where: str, split: str) -> documents.HubDataset:
  name, options = parse_dataset(where)
  options["split"] = options["split"] or split.replace("dev", "validation")
  return documents.open_dataset(name, **options)


def read_class_names(where: str, split: str, column: str) -> tuple[str, ...]:
  """Returns the names of a ClassLabel of `datasets` in its order, if it is."""
  if not where.startswith(HUB):
    return ()
  dataset = _open_dataset(where, split)
  with documents.dataset_errors(dataset.name):
    feature = (dataset.load().features or {}).get(column)
  return tuple(getattr(feature, "names", None) or ())


def official_path(task: Task, split: str, folder: str) -> pathlib.Path:
  """Returns the path of a published file, which may be compressed."""
  root = pathlib.Path(folder).expanduser()
  if task.kind == SPANS:
    return root / f"{split}-v1.1.json"
  if task.name == "mnli" and split in ("dev", "test"):
    split = f"{split}_matched"
  return root / task.title / f"{split}.tsv"


def read_split(task: Task, split: str, where: str) -> list[Example]:
  """Reads the examples of a split of GLUE, or of your own task.

  Test splits of GLUE have no labels; your own may lack them. If your own task
  has no labels yet, any class is read.

  Args:
    where: a file, plain or compressed; or hf:NAME, for GLUE the hub's copy
      ("nyu-mll/glue"); or hf:FOLDER, a folder written by `save_to_disk`, for
      GLUE also one with a folder of that kind for each task. "hf:NAME split=S"
      is another split.
  """
  is_own = task.name == OWN
  is_test = split.startswith("test")
  is_qqp = task.name == "qqp"
  texts = task.columns
  label = task.label_column
  index = "id" if is_qqp else "index"
  if where.startswith(HUB) and not is_own:
    texts = HUB_TEXTS.get(task.name, texts)
    label = "label"
    index = "idx"
    rows = _read_hub(task, split, where)
  elif where.startswith(HUB):
    rows = read_dataset(where, split=split)
  else:
    rows = read_file(
      where,
      columns=() if task.name != "cola" or is_test else COLA_COLUMNS,
      # As ELECTRA does: 3 lines of the train file are no rows. GLUE rejects a
      # submission without all rows of the test set.
      skip_uneven=is_qqp and not is_test,
    )
  examples = []
  for number, record in enumerate(rows):
    # ELECTRA's code also keeps QQP's few empty questions.
    first, *others = (record.text(c, may_be_empty=is_qqp) for c in texts)
    second = others[0] if others else None
    key = str(record.value(index) if is_test and not is_own else number)
    gold: str | float | None = None
    if not is_test or is_own and record.fields.get(label) not in (None, ""):
      gold = record.label(label, task.kind, labels=task.labels)
    examples.append(Example(key, first, second, gold, record.location))
  return examples


def _read_hub(task: Task, split: str, where: str) -> Iterator[Record]:
  name, options = parse_dataset(where)
  folder = pathlib.Path(name.removeprefix(HUB)).expanduser()
  saved = next(filter(documents.find_saved, (folder / task.name, folder)), None)
  if saved:
    name = f"{HUB}{saved}"
  elif not options["config"]:
    options["config"] = task.name
  published = official_path(task, split, "").stem.replace("dev", "validation")
  options["split"] = options["split"] or published
  for record in _read_records(documents.open_dataset(name, **options)):
    label = record.value("label")
    if str(label) not in task.labels:
      label = task_lib.HUB_LABELS.get(str(label), label)
    fields = record.fields | {"label": label}
    yield record._replace(fields=fields)


def write_submission(
  folder: pathlib.Path,
  task: Task,
  split: str,
  keys: Sequence[str],
  answers: Sequence[str | float],
) -> pathlib.Path:
  """Writes the answers to a test split, sorted by GLUE's index; atomic.

  Scores are clipped to the task's range and rounded to three decimals. Returns
  the path of the file, such as FOLDER/MNLI-mm.tsv.
  """
  if task.kind == SCORE:
    low = task.scale[0]
    high = sum(task.scale)
    answers = [f"{np.clip(x, low, high):.3f}" for x in answers]
  title = MNLI_SUBMISSIONS[split] if task.name == "mnli" else task.title
  path = folder / f"{title}.tsv"
  rows = sorted(zip(keys, answers, strict=True), key=lambda row: int(row[0]))
  lines = [f"{index}\t{answer}\n" for index, answer in rows]
  with atomic_file(path) as file:
    file.write(("index\tprediction\n" + "".join(lines)).encode())
  return path
