"""GLUE: the eight tasks of the paper's table 3.

  task = TASKS["mrpc"]
  read(task, "train", "glue_data").examples
  read(task, "dev", "hf:nyu-mll/glue").examples

Classes have the ids of ELECTRA's released code. Splits are train, dev, test;
MNLI's dev and test are the matched ones, beside dev_mismatched and
test_mismatched. Wang et al. 2019, https://openreview.net/forum?id=rJ4km2R5t7.
"""

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from truenegs_jax.data.corpus import hub_datasets
from truenegs_jax.data.corpus.files import COMPRESSIONS, find_existing
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.tasks.records import (
  HUB,
  Record,
  parse_dataset_name,
  read_dataset,
  read_file,
)
from truenegs_jax.tasks.task import CLASSES, SCORE, Example, Task

SAME = ("0", "1")
ENTAILS = ("entailment", "not_entailment")
NLI = ("contradiction", "entailment", "neutral")
SPLITS = ("train", "dev", "test", "dev_mismatched", "test_mismatched")
COLA_COLUMNS = ("source", "label", "mark", "sentence")  # of train and dev


def _task(
  title: str,
  labels: tuple[str, ...],
  metrics: tuple[str, ...],
  rows: tuple[int, ...],
  *,
  epochs: float = 3.0,
  both_orders: bool = False,
) -> Task:
  """A task, with the rows of each of SPLITS that it has."""
  return Task(
    title.lower().replace("-", ""),
    title,
    CLASSES if labels else SCORE,
    labels,
    metrics,
    epochs,
    both_orders,
    scale=(0.0, 1.0 if labels else 5.0),
    split_sizes=dict(zip(SPLITS, rows, strict=False)),
  )


# In the order of the table. QQP's train has 3 more lines that are no rows.
_ALL = (
  _task("CoLA", SAME, ("matthews",), (8_551, 1_043, 1_063)),
  _task("SST-2", SAME, ("accuracy",), (67_349, 872, 1_821)),
  _task(
    "MRPC", SAME, ("accuracy", "f1"), (3_668, 408, 1_725), both_orders=True
  ),
  _task(
    "STS-B",
    (),
    ("spearman", "pearson"),
    (5_749, 1_500, 1_379),
    epochs=10.0,
    both_orders=True,
  ),
  _task("QQP", SAME, ("accuracy", "f1"), (363_846, 40_430, 390_965)),
  _task("MNLI", NLI, ("accuracy",), (392_702, 9_815, 9_796, 9_832, 9_847)),
  _task("QNLI", ENTAILS, ("accuracy",), (104_743, 5_463, 5_463)),
  _task("RTE", ENTAILS, ("accuracy",), (2_490, 277, 3_000), epochs=10.0),
)
TASKS = {task.name: task for task in _ALL}

# Columns of the texts and of the label, in the files and on the hub, where the
# label is always "label".
COLUMNS = {
  "cola": (("sentence",), "label"),
  "sst2": (("sentence",), "label"),
  "mrpc": (("#1 String", "#2 String"), "Quality"),
  "stsb": (("sentence1", "sentence2"), "score"),
  "qqp": (("question1", "question2"), "is_duplicate"),
  "mnli": (("sentence1", "sentence2"), "gold_label"),
  "qnli": (("question", "sentence"), "label"),
  "rte": (("sentence1", "sentence2"), "label"),
}
HUB_TEXTS = {
  "mrpc": ("sentence1", "sentence2"),
  "mnli": ("premise", "hypothesis"),
}
NO = ("unacceptable", "negative", "not_equivalent", "not_duplicate")
YES = ("acceptable", "positive", "equivalent", "duplicate")
HUB_LABELS = dict.fromkeys(NO, "0") | dict.fromkeys(YES, "1")


class SplitExamples(NamedTuple):
  """A split.

  Attributes:
    examples: in the order of the file.
    skipped: lines of QQP's train or dev with another number of fields, left
      out as ELECTRA's released code leaves them out.
  """

  examples: list[Example]
  skipped: int


def read_split(
  task: Task, split: str, where: str, *, file: str = ""
) -> SplitExamples:
  """The examples of a split.

  Args:
    task: of TASKS.
    where: a folder with CoLA/, SST-2/, MRPC/, STS-B/, QQP/, MNLI/, QNLI/, RTE/
      and in them the official files, plain or compressed; or hf:NAME, the hub's
      copy ("nyu-mll/glue"); or hf:FOLDER with copies of its configs, each in a
      folder of its name, or of one that `save_to_disk` wrote.
    file: read in place of the official one; its columns are the same, or with
      hf:NAME, as `parse_dataset_name` has it, those of the hub.

  Returns:
    The labels of test splits are None, and their keys GLUE's own indices.

  Raises:
    InputError: no such split.
    DataError: no such file or column; by line: another number of fields (but
      in QQP), an empty text (but in QQP, which has some), an unknown label,
      in a test split an index that is no number or stands there twice.
    UnavailableError: the hub's copy cannot be loaded.
  """
  if split not in task.split_sizes:
    raise InputError(
      f"{task.title} has no split {split!r}; there are:"
      f" {', '.join(task.split_sizes)}."
    )
  is_test = split.startswith("test")
  # A row that is not predicted makes GLUE refuse all of a test set.
  uneven: list[str] | None = [] if task.name == "qqp" and not is_test else None
  texts, label = COLUMNS[task.name]
  index = "id" if task.name == "qqp" else "index"
  if (source := file or where).startswith(HUB):
    texts, label, index = HUB_TEXTS.get(task.name, texts), "label", "idx"
    records = _hub_records(task, split, source)
  else:
    headless = task.name == "cola" and not is_test
    records = read_file(
      file or _find(task, split, where),
      columns=COLA_COLUMNS if headless else (),
      uneven=uneven,
    )
  examples, indices = [], set[int]()
  for number, record in enumerate(records):
    # ELECTRA's code, too, has QQP's few empty questions.
    first, *second = [
      record.text(c, may_be_empty=task.name == "qqp") for c in texts
    ]
    key = str(record.value(index) if is_test else number)
    if is_test:  # GLUE takes answers by their index
      _add_index(key, record.location, indices)
    answer = None if is_test else _label(record, label, task)
    examples.append(
      Example(key, first, next(iter(second), None), answer, record.location)
    )
  return SplitExamples(examples, len(uneven or ()))


def is_missing(task: Task, split: str, where: str) -> bool:
  """Whether a folder has no official file of a split; a data set has all."""
  if where.startswith(HUB):
    return False
  return find_existing(_usual(task, split, where), or_compressed=True) is None


def _add_index(key: str, place: str, known: set[int]) -> int:
  """Takes note of GLUE's index of a row of a test set.

  Raises:
    DataError: it is no number, or stands there twice.
  """
  number = int(key) if key.isdecimal() else None
  if number is None or number in known:
    raise DataError(
      f"{place}: index {key!r}; GLUE's test files number their rows, each once:"
      " take the official file."
    )
  known.add(number)
  return number


def _label(record: Record, column: str, task: Task) -> str | float:
  label = record.label(column, task.kind, known=task.labels)
  if isinstance(label, float) and not 0 <= label <= task.scale[1]:
    raise DataError(
      f"{record.location}: score {label}; those of {task.title} are 0 to"
      f" {task.scale[1]:g}."
    )
  return label


def _hub_records(task: Task, split: str, where: str) -> Iterator[Record]:
  place, config = parse_dataset_name(where), task.name
  if hub_datasets.is_folder(place.name):
    folder = pathlib.Path(place.name).expanduser()
    if hub_datasets.is_saved(folder / task.name):
      folder /= task.name
    place = place._replace(name=str(folder))
    config = "" if hub_datasets.is_saved(folder) else config
  split = _file_name(task, split)
  for record in read_dataset(place, config=config, split=split):
    label = record.value("label")
    yield record._replace(
      fields=record.fields | {"label": HUB_LABELS.get(label, label)}
    )


def _find(task: Task, split: str, where: str) -> pathlib.Path:
  """The official file, as it is or compressed."""
  path = _usual(task, split, where)
  if there := find_existing(path, or_compressed=True):
    return there
  held = sorted(p.name for p in path.parent.glob("*.tsv*"))
  raise DataError(
    f"{path}: there is no such file, nor one with {' '.join(COMPRESSIONS)}"
    f" ({path.parent} holds {', '.join(held) or 'no .tsv'}). Give the folder"
    f" that holds {task.title}/ as GLUE's archives are unpacked, the file"
    " itself, or hf:nyu-mll/glue; for a machine without internet,"
    f' load_dataset("nyu-mll/glue", "{task.name}").save_to_disk("FOLDER/'
    f'{task.name}") makes on another what is given as hf:FOLDER.'
  )


def _usual(task: Task, split: str, where: str) -> pathlib.Path:
  folder = pathlib.Path(os.path.expanduser(where), task.title)
  return folder / f"{_file_name(task, split)}.tsv"


def _file_name(task: Task, split: str) -> str:
  if task.name == "mnli" and split in ("dev", "test"):
    return f"{split}_matched"
  return split


MNLI_FILES = {"test": "MNLI-m", "test_mismatched": "MNLI-mm"}


def write_submission(
  folder: pathlib.Path,
  task: Task,
  split: str,
  keys: Sequence[str],
  answers: Sequence[str | float],
) -> pathlib.Path:
  """Writes the file of a test split, by GLUE's indices; complete or not at all.

  Args:
    folder: one that is there.
    split: "test" or "test_mismatched".
    keys: GLUE's index of each row.
    answers: classes by name, or scores in the task's own units, which are cut
      to its range and have three decimals.

  Returns:
    Its path, such as FOLDER/MNLI-mm.tsv.

  Raises:
    DataError: indices that are no numbers or not unique, or no finite score.
    DiskError: it cannot be written.
  """
  rows, indices = [], set[int]()
  for key, answer in zip(keys, answers, strict=True):
    number = _add_index(key, f"{task.title}, {split}", indices)
    rows.append((number, _as_text(answer, task)))
  title = MNLI_FILES[split] if task.name == "mnli" else task.title
  path = folder / f"{title}.tsv"
  lines = [f"{index}\t{answer}\n" for index, answer in sorted(rows)]
  with atomic_file(path) as file:
    file.write(("index\tprediction\n" + "".join(lines)).encode())
  return path


def _as_text(answer: str | float, task: Task) -> str:
  if task.kind != SCORE:
    return str(answer)
  if not np.isfinite(answer):
    raise DataError(
      f"{task.title}: a score of {answer} was predicted: this model is broken;"
      " fine-tune with another seed or a lower rate."
    )
  offset, scale = task.scale
  return f"{np.clip(answer, offset, offset + scale):.3f}"
