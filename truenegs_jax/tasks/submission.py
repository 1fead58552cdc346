"""GLUE's submission files: what a model says of the test sets.

  write_submission(folder, task, "test", keys, answers)

A zip of the files is handed in at https://gluebenchmark.com. It must hold two
more, WNLI.tsv and AX.tsv, which are none of the paper's tasks.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from truenegs_jax.errors import DataError, disk_errors
from truenegs_jax.tasks.examples import SCORE, Task

MNLI_FILES = {"test": "MNLI-m", "test_mismatched": "MNLI-mm"}


def write_submission(
  folder: pathlib.Path,
  task: Task,
  split: str,
  keys: Sequence[str],
  answers: Sequence[str | float],
) -> pathlib.Path:
  """Writes the file of a test split, by GLUE's indices; it appears whole.

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
  rows = {}
  for key, answer in zip(keys, answers, strict=True):
    if not key.isdecimal() or int(key) in rows:
      raise DataError(
        f"{task.title}, {split}: index {key!r}; GLUE's test files number their"
        " rows, each once: take the official file."
      )
    rows[int(key)] = _as_text(answer, task)
  title = MNLI_FILES[split] if task.name == "mnli" else task.title
  path = folder / f"{title}.tsv"
  lines = [f"{index}\t{answer}\n" for index, answer in sorted(rows.items())]
  whole = path.with_suffix(".tmp")
  with disk_errors(path):
    whole.write_text("index\tprediction\n" + "".join(lines), encoding="utf-8")
    whole.replace(path)
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
