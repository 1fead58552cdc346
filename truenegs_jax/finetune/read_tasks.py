"""Reads the tasks of a config: GLUE's, SQuAD, one of the user's own."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.finetune import config_checks, task_data
from truenegs_jax.finetune.task_data import Material, Split, of_examples
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import batches, glue, records, user_task
from truenegs_jax.tasks.task import Encoded, Example, Task

Rows = tuple[Task, dict[str, list[Any]], list[str]]  # with notes
USUAL_LENGTH = dict.fromkeys(glue.TASKS, 128) | {config_checks.SQUAD: 512}
SPLITS = {name: tuple(task.official) for name, task in glue.TASKS.items()} | {
  config_checks.SQUAD: tuple(task_data.TASK.official),
  config_checks.OWN: ("train", "dev", "test"),
}


def gather(c: ConfigDict, name: str, tokenizer: Tokenizer) -> Material:
  """Reads a task and cuts it to ids.

  Raises:
    InputError, DataError: as `check_files`, and the readers of tasks/.
  """
  check_files(c)
  files = files_of(c, name)
  if name == config_checks.SQUAD:
    task, rows, notes = task_data.read(c, files)
  elif name == config_checks.OWN:
    task, rows, notes = _own(c, files)
  else:
    task, rows, notes = _glue(c, glue.TASKS[name], files)
  sizes = {split: len(of_split) for split, of_split in rows.items()}
  rows["train"] = rows["train"][: c.finetune.rows or None]
  notes += _shortened(c, task, sizes)
  if name == config_checks.SQUAD:
    train, splits = task_data.cut(c, rows, tokenizer)
  else:
    train, splits = _cut(c, task, rows, tokenizer)
  return Material(task, train, splits, tuple(notes))


def check_files(c: ConfigDict) -> None:
  """Sees that all of `finetune.files` is of use; nothing is read.

  Raises:
    InputError: names what is not SPLIT=FILE or TASK.SPLIT=FILE, a task that is
      not fine-tuned, a split that it lacks, a test set that is not answered or
      not there, a split named twice, or `finetune.data` with a split in it.
  """
  names, f = config_checks.task_names(c), c.finetune
  if f.data and names == (config_checks.OWN,):
    raise InputError(
      f"finetune.data={f.data!r} is of GLUE and SQuAD; the files of a task of"
      " your own are named by --config.finetune.files='train=FILE dev=FILE'."
    )
  if f.data.startswith(records.HUB) and records.parse(f.data).split:
    raise InputError(
      f"finetune.data={f.data!r}: name a data set with all of its splits,"
      " hf:NAME, or files by --config.finetune.files='train=hf:NAME:SPLIT"
      " dev=hf:NAME:SPLIT'."
    )
  for task, split, _ in _words(c):
    word = f"finetune.files: '{task and task + '.'}{split}=...'"
    if task and task not in names:
      raise InputError(
        f"{word}: {task!r} is not fine-tuned; tasks are {', '.join(names)}."
      )
    for name in [task] if task else names:
      if split not in SPLITS[name]:
        raise InputError(
          f"{word}: {name} has {', '.join(SPLITS[name])}, not {split!r}; a file"
          " of one task is TASK.SPLIT=FILE."
        )
    if split.startswith("test") and not f.predict_test:
      raise InputError(
        f"{word}: test sets are answered with"
        " --config.finetune.predict_test=True alone."
      )
  for name in names:
    files_of(c, name)
    if f.predict_test and "test" not in SPLITS[name]:
      raise InputError(
        f"finetune.predict_test=True: {name} has no test set that is public."
      )


def files_of(c: ConfigDict, name: str) -> dict[str, str]:
  """Split -> the file that `finetune.files` names for a task.

  Raises:
    InputError: what is neither SPLIT=FILE nor TASK.SPLIT=FILE, or said twice.
  """
  found: dict[str, str] = {}
  for task, split, path in _words(c):
    if task in ("", name):
      if split in found:
        raise InputError(
          f"finetune.files: two files for {split} of {name}: {found[split]!r}"
          f" and {path!r}; give one."
        )
      found[split] = path
  return found


def _words(c: ConfigDict) -> list[tuple[str, str, str]]:
  """Task or "", split and file."""
  try:
    words = shlex.split(c.finetune.files)
  except ValueError as e:
    raise InputError(f"finetune.files={c.finetune.files!r}: {e}.") from e
  found = []
  for word in words:
    place, _, path = word.partition("=")
    task, _, split = place.rpartition(".")
    if not path or not split:
      raise InputError(
        f"finetune.files: {word!r} is not of the form SPLIT=FILE or"
        " TASK.SPLIT=FILE."
      )
    found.append((task, split, path))
  return found


def _cut(
  c: ConfigDict,
  task: Task,
  rows: Mapping[str, Sequence[Any]],
  tokenizer: Tokenizer,
) -> tuple[Encoded, dict[str, Split]]:
  cut = lambda split, **more: batches.encode(
    rows[split], task, tokenizer, length=c.length, **more
  )
  splits = {
    split: of_examples(task, of_split, cut(split))
    for split, of_split in rows.items()
    if split != "train"
  }
  return cut("train", swap=task.doubled), splits


def _glue(c: ConfigDict, task: Task, files: Mapping[str, str]) -> Rows:
  examples: dict[str, list[Example]] = {}
  notes = []
  for split in task.official:
    if split.startswith("test") and not c.finetune.predict_test:
      continue
    where, file = c.finetune.data, files.get(split, "")
    if (
      split == "dev_mismatched" and not file and glue.lacks(task, split, where)
    ):
      continue  # it is only beside
    found = glue.read(task, split, where, file=file)
    examples[split] = found.examples
    if found.skipped:
      notes.append(f"{found.skipped} lines of {split} are no rows")
  return task, examples, notes


def _own(c: ConfigDict, files: Mapping[str, str]) -> Rows:
  f = c.finetune
  columns = user_task.parse_columns(f.text, f.label)
  given = user_task.parse_labels(f.labels)
  user_task.check_options(kind=f.kind, labels=given, metric=f.metric)
  if not {"train", "dev"} <= files.keys():
    raise InputError(
      f"finetune.files={f.files!r}: name what to train on and what to judge by:"
      " --config.finetune.files='train=FILE dev=FILE'."
    )
  read = lambda split, **more: user_task.read(
    files[split], split, columns, kind=f.kind, **more
  )
  train = read("train", labels=given)
  task = user_task.make_task(train, kind=f.kind, labels=given, metric=f.metric)
  examples = {"train": train, "dev": read("dev", labels=task.labels)}
  if c.finetune.predict_test:
    if "test" not in files:
      raise InputError(
        "finetune.predict_test wants a test set: --config.finetune.files="
        "'... test=FILE'."
      )
    examples["test"] = read("test", labels=task.labels)
  return task, examples, []


def _shortened(
  c: ConfigDict, task: Task, sizes: Mapping[str, int]
) -> list[str]:
  """How far the data and the passes over them are from the published task."""
  notes = []
  for split, size in sizes.items():
    whole = task.official.get(split, size)
    used = min(size, c.finetune.rows or size) if split == "train" else size
    if used != max(whole, size):
      notes.append(f"{used:,} of {max(whole, size):,} rows of {split}")
  usual = USUAL_LENGTH.get(task.name, c.length)
  if c.length != usual:
    notes.append(f"rows of at most {c.length} tokens, not {usual}")
  if 0 < c.finetune.epochs != task.epochs > 0:
    notes.append(f"{c.finetune.epochs:g} epochs, not {task.epochs:g}")
  return notes
