"""Reads the eight GLUE tasks of the paper's table 3 and writes submissions.

  task = TASKS["mrpc"]
  examples, _ = read_split(task, "train", "glue_data")
  examples, _ = read_split(task, "dev", "hf:nyu-mll/glue")

Class ids are equal to those in ELECTRA's code. Splits are train, dev and test.
MNLI also has dev_mismatched and test_mismatched; its dev and test are the
matched ones. Wang et al. 2019, https://openreview.net/forum?id=rJ4km2R5t7.
"""

import dataclasses
import os
import pathlib
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from truenegs_jax.data.corpus import hub_datasets
from truenegs_jax.data.corpus.files import find_existing
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.tasks import records
from truenegs_jax.tasks.task import CLASSES, SCORE, Example, Task

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
NLI = ("contradiction", "entailment", "neutral")
SPLITS = ("train", "dev", "test", "dev_mismatched", "test_mismatched")
# CoLA's train and dev files have no header.
COLA_COLUMNS = ("source", "label", "mark", "sentence")


def _make_task(
  title: str,
  labels: tuple[str, ...],
  metrics: tuple[str, ...],
  sizes: tuple[int, ...],
  *,
  epochs: float = 3.0,
  both_orders: bool = False,
) -> Task:
  """Makes a task; `sizes` are the numbers of rows of its SPLITS, in order."""
  return Task(
    title.lower().replace("-", ""),
    title,
    CLASSES if labels else SCORE,
    labels,
    metrics,
    epochs,
    both_orders,
    scale=(0.0, 1.0 if labels else 5.0),
    split_sizes=dict(zip(SPLITS, sizes, strict=False)),
  )


# In the order of table 3. QQP's train file has 3 more lines, not valid rows.
_TASKS = (
  _make_task("CoLA", BINARY, ("matthews",), (8_551, 1_043, 1_063)),
  _make_task("SST-2", BINARY, ("accuracy",), (67_349, 872, 1_821)),
  _make_task(
    "MRPC", BINARY, ("accuracy", "f1"), (3_668, 408, 1_725), both_orders=True
  ),
  _make_task(
    "STS-B",
    (),
    ("spearman", "pearson"),
    (5_749, 1_500, 1_379),
    epochs=10.0,
    both_orders=True,
  ),
  _make_task("QQP", BINARY, ("accuracy", "f1"), (363_846, 40_430, 390_965)),
  _make_task("MNLI", NLI, ("accuracy",), (392_702, 9_815, 9_796, 9_832, 9_847)),
  _make_task("QNLI", ENTAILMENT, ("accuracy",), (104_743, 5_463, 5_463)),
  _make_task(
    "RTE", ENTAILMENT, ("accuracy",), (2_490, 277, 3_000), epochs=10.0
  ),
)
TASKS = {task.name: task for task in _TASKS}

PAIR = ("sentence1", "sentence2")
# Columns of the texts and of the label in the official files.
COLUMNS = {
  "cola": (("sentence",), "label"),
  "sst2": (("sentence",), "label"),
  "mrpc": (("#1 String", "#2 String"), "Quality"),
  "stsb": (PAIR, "score"),
  "qqp": (("question1", "question2"), "is_duplicate"),
  "mnli": (PAIR, "gold_label"),
  "qnli": (("question", "sentence"), "label"),
  "rte": (PAIR, "label"),
}
# Columns of the texts on the hub, where they differ; the label is in "label".
HUB_TEXTS = {"mrpc": PAIR, "mnli": ("premise", "hypothesis")}
HUB_NAMES_0 = ("unacceptable", "negative", "not_equivalent", "not_duplicate")
HUB_NAMES_1 = ("acceptable", "positive", "equivalent", "duplicate")
HUB_LABELS = dict.fromkeys(HUB_NAMES_0, "0") | dict.fromkeys(HUB_NAMES_1, "1")
NO_FILE = (
  "Pass the folder that contains {task.title}/, an unpacked archive of GLUE"
  " (https://gluebenchmark.com/tasks), the file itself, or hf:nyu-mll/glue."
  ' Without internet, run load_dataset("nyu-mll/glue", "{task.name}")'
  '.save_to_disk("FOLDER/{task.name}") on another machine, copy FOLDER here and'
  " pass hf:FOLDER."
)
MNLI_SUBMISSIONS = {"test": "MNLI-m", "test_mismatched": "MNLI-mm"}


def read_split(
  task: Task, split: str, where: str, *, file: str = ""
) -> tuple[list[Example], int]:
  """Reads the examples of a split.

  Args:
    task: one of TASKS.
    where: a folder that contains CoLA/, SST-2/, MRPC/, STS-B/, QQP/, MNLI/,
      QNLI/ and RTE/ with the official files, plain or compressed; or hf:NAME,
      the hub's copy ("nyu-mll/glue"); or hf:FOLDER, a folder written by
      `save_to_disk`, or one with a folder of that kind for each task.
    file: read instead of the official file, with the same columns; or a data
      set, "hf:NAME split=S" for example, with the columns of the hub.

  Returns:
    The examples in the order of the file, of which those of test splits have no
    labels and GLUE's indices as keys; and the number of lines of QQP's train or
    dev file that were skipped for a wrong number of fields, as by ELECTRA.
  """
  is_test = split.startswith("test")
  # GLUE rejects a submission without all rows of the test set.
  skipped: list[str] | None = [] if task.name == "qqp" and not is_test else None
  texts, label = COLUMNS[task.name]
  index = "id" if task.name == "qqp" else "index"
  if (source := file or where).startswith(records.HUB):
    texts, label, index = HUB_TEXTS.get(task.name, texts), "label", "idx"
    rows = _read_hub(task, split, source)
  else:
    has_header = task.name != "cola" or is_test
    official = official_path(task, split, where)
    rows = records.read_file(
      file or records.find_official_file(official, NO_FILE.format(task=task)),
      columns=() if has_header else COLA_COLUMNS,
      skipped=skipped,
    )
  examples = dict[str, Example]()
  for number, record in enumerate(rows):
    # ELECTRA's code also keeps QQP's few empty questions.
    may_be_empty = task.name == "qqp"
    pair = [record.text(c, may_be_empty=may_be_empty) for c in texts]
    first, second, *_ = (*pair, None)
    key = str(record.value(index) if is_test else number)
    if is_test:
      _check_index(key, record.location, examples)
    target: str | float | None = None
    if not is_test:
      target = record.label(label, task.kind, labels=task.labels)
      low, high = task.scale[0], sum(task.scale)
      if isinstance(target, float) and not low <= target <= high:
        raise DataError(
          f"{record.location}: score {target} is out of range. Scores of"
          f" {task.title} are {low:g} to {high:g}."
        )
    examples[key] = Example(key, first, second, target, record.location)
  return list(examples.values()), len(skipped or ())


def is_missing(task: Task, split: str, where: str) -> bool:
  """Whether a folder has no official file of a split; False for hf:NAME."""
  if where.startswith(records.HUB):
    return False
  path = official_path(task, split, where)
  return find_existing(path, or_compressed=True) is None


def _check_index(key: str, location: str, known: Collection[str]) -> None:
  if not key.isdecimal() or str(int(key)) in known:
    raise DataError(
      f"{location}: index {key!r} is not a number or is repeated. GLUE numbers"
      " the rows of a test set, each once. Use the official file."
    )


def _read_hub(task: Task, split: str, where: str) -> Iterator[records.Record]:
  dataset = hub_datasets.parse_dataset(where, key="finetune")
  config = task.name
  if hub_datasets.is_folder(dataset.name):
    folder = pathlib.Path(dataset.name).expanduser()
    if hub_datasets.is_saved(folder / task.name):
      folder /= task.name
    dataset = dataclasses.replace(dataset, name=str(folder))
    config = "" if hub_datasets.is_saved(folder) else config
  split = _file_name(task, split)
  for record in records.read_dataset(dataset, config=config, split=split):
    label = record.value("label")
    fields = record.fields | {"label": HUB_LABELS.get(label, label)}
    yield record._replace(fields=fields)


def official_path(task: Task, split: str, where: str) -> pathlib.Path:
  """Returns the path of an official file, which may be compressed."""
  folder = pathlib.Path(os.path.expanduser(where), task.title)
  return folder / f"{_file_name(task, split)}.tsv"


def _file_name(task: Task, split: str) -> str:
  if task.name == "mnli" and split in ("dev", "test"):
    return f"{split}_matched"
  return split


def write_submission(
  folder: pathlib.Path,
  task: Task,
  split: str,
  keys: Sequence[str],
  answers: Sequence[str | float],
) -> pathlib.Path:
  """Writes the answers to a test split, sorted by GLUE's index; atomic.

  Args:
    split: "test" or "test_mismatched".
    keys: GLUE's index of each row.
    answers: class names, or scores in the units of the task; these are clipped
      to the task's range and rounded to three decimals.

  Returns:
    The path of the file, such as FOLDER/MNLI-mm.tsv.
  """
  rows: dict[str, str] = {}
  for key, answer in zip(keys, answers, strict=True):
    _check_index(key, f"{task.title}, {split}", rows)
    rows[key] = str(answer)
    if task.kind == SCORE:
      if not np.isfinite(answer):
        raise DataError(
          f"{task.title}: the model predicted a score of {answer}. Use"
          " another seed or a lower learning rate."
        )
      low, high = task.scale[0], sum(task.scale)
      rows[key] = f"{np.clip(answer, low, high):.3f}"
  title = MNLI_SUBMISSIONS[split] if task.name == "mnli" else task.title
  path = folder / f"{title}.tsv"
  ordered = sorted(rows.items(), key=lambda item: int(item[0]))
  lines = [f"{index}\t{answer}\n" for index, answer in ordered]
  with atomic_file(path) as file:
    file.write(("index\tprediction\n" + "".join(lines)).encode())
  return path
