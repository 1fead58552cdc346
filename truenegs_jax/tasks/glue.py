"""Reads GLUE's tasks and writes submissions.

  examples, _ = read_split(TASKS["mrpc"], "train", "glue_data")
  examples, _ = read_split(TASKS["mrpc"], "dev", "hf:nyu-mll/glue")

Splits are train, dev and test. MNLI also has dev_mismatched and
test_mismatched; its dev and test are the matched ones.
"""

import dataclasses
import pathlib
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from truenegs_jax.data.corpus import hub_datasets
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.tasks import records
from truenegs_jax.tasks.task import HUB_LABELS, PAIR, SCORE, Example, Task

# CoLA's train and dev files have no header.
COLA_COLUMNS = ("source", "label", "mark", "sentence")
# Columns of the texts on the hub, where they differ; the label is in "label".
HUB_TEXTS = {"mrpc": PAIR, "mnli": ("premise", "hypothesis")}
MNLI_SUBMISSIONS = {"test": "MNLI-m", "test_mismatched": "MNLI-mm"}


def read_split(
  task: Task, split: str, where: str, *, file: str = ""
) -> tuple[list[Example], int]:
  """Reads the examples of a split.

  Args:
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
  is_test, is_qqp = split.startswith("test"), task.name == "qqp"
  texts, label = task.columns, task.label_column
  index = "id" if is_qqp else "index"
  # GLUE rejects a submission without all rows of the test set.
  skipped: list[str] | None = [] if is_qqp and not is_test else None
  if (source := file or where).startswith(records.HUB):
    texts, label, index = HUB_TEXTS.get(task.name, texts), "label", "idx"
    rows = _read_hub(task, split, source)
  else:
    rows = records.read_file(
      file or records.find_official(task, split, where),
      columns=() if task.name != "cola" or is_test else COLA_COLUMNS,
      skipped=skipped,
    )
  examples = dict[str, Example]()
  for number, record in enumerate(rows):
    # ELECTRA's code also keeps QQP's few empty questions.
    pair = [record.text(c, may_be_empty=is_qqp) for c in texts]
    first, second, *_ = (*pair, None)
    key = str(record.value(index) if is_test else number)
    target: str | float | None = None
    if is_test:
      _check_index(key, record.location, examples)
    else:
      target = record.label(label, task.kind, labels=task.labels)
    low, high = task.scale[0], sum(task.scale)
    if isinstance(target, float) and not low <= target <= high:
      raise DataError(
        f"{record.location}: score {target} is out of range. Scores of"
        f" {task.title} are {low:g} to {high:g}."
      )
    examples[key] = Example(key, first, second, target, record.location)
  return list(examples.values()), len(skipped or ())


def _check_index(key: str, location: str, known: Collection[str]) -> None:
  if not key.isdecimal() or str(int(key)) in known:
    raise DataError(
      f"{location}: index {key!r} is not a number or is repeated. GLUE numbers"
      " the rows of a test set, each once. Use the official file."
    )


def _read_hub(task: Task, split: str, where: str) -> Iterator[records.Record]:
  dataset = hub_datasets.parse_dataset(where, key="finetune")
  folder = pathlib.Path(dataset.name).expanduser()
  saved = next(filter(hub_datasets.is_saved, (folder / task.name, folder)), "")
  if saved:
    dataset = dataclasses.replace(dataset, name=str(saved))
  for record in records.read_dataset(
    dataset,
    config="" if saved else task.name,
    split=records.official_path(task, split, "").stem,
  ):
    label = record.value("label")
    fields = record.fields | {"label": HUB_LABELS.get(label, label)}
    yield record._replace(fields=fields)


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
