"""Reads tasks into rows of token ids, and turns model outputs into scores.

data = read_task_data(options, "mrpc", tokenizer)
data.dev.score(data.dev.decode_answers(outputs))["accuracy"]
"""

import dataclasses
import os
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from truenegs_jax.data.corpus import hub_datasets
from truenegs_jax.data.corpus.files import COMPRESSIONS, find_existing
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.finetune.config_checks import OWN, SQUAD, FinetuneOptions
from truenegs_jax.finetune.eval_splits import (
  EvalSplit,
  encode_split,
  make_windows,
)
from truenegs_jax.finetune.results import fingerprint
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.tasks import (
  batches,
  glue,
  records,
  squad,
  user_task,
)
from truenegs_jax.tasks.task import (
  SPANS,
  EncodedRows,
  Example,
  Task,
)

Rows = tuple[Task, dict[str, list[Any]], list[str]]  # examples by split; notes
GLUE_LENGTH, SQUAD_LENGTH = 128, 512  # tokens of a row, as in ELECTRA's paper


@dataclasses.dataclass(frozen=True)
class TaskData:
  """The rows of a task.

  Attributes:
    splits: the splits to evaluate on: "dev", "dev_mismatched", "test", ...
    notes: how the data differ from the published task.
  """

  task: Task
  train: EncodedRows
  splits: Mapping[str, EvalSplit]
  notes: tuple[str, ...]

  @property
  def dev(self) -> EvalSplit:
    """The dev set, whose scores count."""
    return self.splits["dev"]

  def fingerprints(self) -> dict[str, str]:
    """Returns fingerprints of the training rows and of each split, by name."""
    train = [*self.train.tokens, *self.train.targets.values()]
    by_split = {"train": fingerprint(x.tobytes() for x in train)}
    for name, split in self.splits.items():
      rows = [x.tobytes() for x in split.encoded.tokens]
      golds = repr((split.keys, split.golds)).encode()
      by_split[name] = fingerprint([*rows, golds])
    return by_split

  @property
  def num_outputs(self) -> int:
    """Number of outputs of the head, per row or per position."""
    return max(1, len(self.task.labels))


def read_task_data(
  options: FinetuneOptions, name: str, tokenizer: Tokenizer
) -> TaskData:
  """Reads a task and encodes it.

  Raises:
    InputError, DataError: as in `check_files` and the readers of tasks/.
  """
  check_files(options)
  files = parse_files(options, name)
  if name == SQUAD:
    task, rows, notes = _read_squad(options, files)
  elif name == OWN:
    task, rows, notes = _read_own(options, files)
  else:
    task, rows, notes = _read_glue(options, glue.TASKS[name], files)
  sizes = {split: len(examples) for split, examples in rows.items()}
  rows["train"] = rows["train"][: options.rows or None]
  notes += _deviations(options, task, sizes)
  examples = rows.pop("train")
  if task.kind == SPANS:
    train = make_windows(options, examples, tokenizer, train=True).encoded
  else:
    train = batches.encode(
      examples,
      task,
      tokenizer,
      length=options.length,
      both_orders=task.both_orders,
    )
  splits = {
    split: encode_split(options, task, examples, tokenizer)
    for split, examples in rows.items()
  }
  return TaskData(task, train, splits, tuple(notes))


def check_files(options: FinetuneOptions) -> None:
  """Refuses files that would not be used; reads none of them.

  Raises:
    InputError: an entry of `finetune.files` is not SPLIT=FILE or
      TASK.SPLIT=FILE, is repeated, or names an unknown task or split; there is
      a test set without `predict_test` or the other way round; `finetune.data`
      names a split; options of the user's own task do not fit.
  """
  names, data = options.tasks, options.data
  if data and names == (OWN,):
    raise InputError(
      f"finetune.data={data!r} is only for GLUE and SQuAD. For your own task,"
      " set --config.finetune.files='train=FILE dev=FILE'."
    )
  if data.startswith(records.HUB) and records.parse_dataset_name(data).split:
    raise InputError(
      f"finetune.data={data!r} names a split. Set"
      " --config.finetune.data=hf:NAME or"
      " --config.finetune.files='train=hf:NAME:SPLIT dev=hf:NAME:SPLIT'."
    )
  for task, split, _ in _split_entries(options.files):
    key = f"{task}.{split}" if task else split
    entry = f"finetune.files: '{key}=...'"
    if task and task not in names:
      raise InputError(
        f"{entry}: the task {task!r} is not fine-tuned. Tasks are"
        f" {', '.join(names)}."
      )
    for name in [task] if task else names:
      if split not in _splits(name):
        raise InputError(
          f"{entry}: {name} has no split {split!r}. Splits are"
          f" {', '.join(_splits(name))}. For a file of one task, write"
          " TASK.SPLIT=FILE."
        )
    if split.startswith("test") and not options.predict_test:
      raise InputError(
        f"{entry}: test sets are not used by default. Set"
        " --config.finetune.predict_test=True."
      )
  for name in names:
    files = parse_files(options, name)
    if name == OWN:
      _check_own(options, files)
    if options.predict_test and "test" not in _splits(name):
      raise InputError(
        f"finetune.predict_test=True, but {name} has no public test set. Remove"
        " --config.finetune.predict_test."
      )


def find_published_task(name: str) -> Task | None:
  """Returns the task of a name; None for the user's own."""
  return squad.TASK if name == SQUAD else glue.TASKS.get(name)


def _splits(name: str) -> tuple[str, ...]:
  """Returns the names of a task's splits."""
  task = find_published_task(name)
  return tuple(task.split_sizes) if task else ("train", "dev", "test")


def _check_own(options: FinetuneOptions, files: Mapping[str, str]) -> None:
  """Refuses options of the user's own task that do not fit."""
  user_task.parse_columns(options.text, options.label)
  labels = user_task.parse_labels(options.labels)
  user_task.check_options(
    kind=options.kind, labels=labels, metric=options.metric
  )
  if not {"train", "dev"} <= files.keys():
    raise InputError(
      f"finetune.files={options.files!r} must name a training and a dev file."
      " Set --config.finetune.files='train=FILE dev=FILE'."
    )
  if options.predict_test and "test" not in files:
    raise InputError(
      "finetune.predict_test=True needs a test file. Set"
      " --config.finetune.files='train=FILE dev=FILE test=FILE'."
    )


def parse_files(options: FinetuneOptions, name: str) -> dict[str, str]:
  """Parses `finetune.files` for a task: file by split; see `check_files`."""
  paths: dict[str, str] = {}
  for task, split, path in _split_entries(options.files):
    if task in ("", name):
      if split in paths:
        raise InputError(
          f"finetune.files: two files for {split} of {name}, {paths[split]!r}"
          f" and {path!r}. Remove one."
        )
      paths[split] = path
  return paths


def _split_entries(files: str) -> list[tuple[str, str, str]]:
  """Splits `finetune.files` into entries of task (or ""), split and file."""
  try:
    entries = shlex.split(files)
  except ValueError as e:
    raise InputError(f"finetune.files={files!r}: {e}.") from e
  parsed = []
  for entry in entries:
    key, _, path = entry.partition("=")
    task, _, split = key.rpartition(".")
    if not path or not split:
      raise InputError(
        f"finetune.files: {entry!r} is not of the form SPLIT=FILE or"
        " TASK.SPLIT=FILE."
      )
    parsed.append((task, split, path))
  return parsed


def _read_glue(
  options: FinetuneOptions, task: Task, files: Mapping[str, str]
) -> Rows:
  examples: dict[str, list[Example]] = {}
  notes = []
  for split in task.split_sizes:
    file = files.get(split, "")
    if split.startswith("test") and not options.predict_test:
      continue
    is_optional = split == "dev_mismatched" and not file
    if is_optional and glue.is_missing(task, split, options.data):
      continue
    examples[split], num_skipped = glue.read_split(
      task, split, options.data, file=file
    )
    if num_skipped:
      notes.append(f"{num_skipped} lines of {split} are no rows")
  return task, examples, notes


def _read_squad(options: FinetuneOptions, files: Mapping[str, str]) -> Rows:
  moved, questions = list[str](), {}
  for split in squad.TASK.split_sizes:
    where = _locate_questions(options, files, split)
    questions[split] = squad.read_squad(where, split=split, moved=moved)
  notes = [f"{len(moved):,} {squad.MOVED}"] if moved else []
  return squad.TASK, questions, notes


def _locate_questions(
  options: FinetuneOptions, files: Mapping[str, str], split: str
) -> str:
  where = files.get(split) or options.data
  if split in files or where.startswith(records.HUB):
    return where
  return _official_file(where, split)


def read_dev(options: FinetuneOptions, task: Task) -> list[Any]:
  """Reads the dev set of a task, without its training set.

  Args:
    task: for the user's own task, with the labels of its training set.

  Raises:
    InputError, DataError: as in `read_task_data`.
  """
  files = parse_files(options, task.name)
  if task.kind == SPANS:
    where = _locate_questions(options, files, "dev")
    return squad.read_squad(where, split="dev")
  if task.name in glue.TASKS:
    file = files.get("dev", "")
    return glue.read_split(task, "dev", options.data, file=file).examples
  columns = user_task.parse_columns(options.text, options.label)
  return user_task.read_examples(
    files["dev"], "dev", columns, kind=task.kind, labels=task.labels
  )


def find_split(options: FinetuneOptions, name: str, split: str) -> str:
  """Describes where a split of a task is, for a dry run; reads none of it."""
  where = parse_files(options, name).get(split) or options.data
  if where.startswith(records.HUB):
    dataset = records.parse_dataset_name(where)
    is_local = hub_datasets.is_folder(dataset.name)
    return where if is_local else f"{where} (on the hub)"
  path = pathlib.Path(os.path.expanduser(where))
  is_official = where == options.data
  if is_official and name == SQUAD:
    path = _official_path(where, split)
  elif is_official:
    path = glue.official_path(glue.TASKS[name], split, where)
  existing = find_existing(path, or_compressed=is_official)
  return str(existing) if existing else f"{path} (missing)"


def _official_path(folder: str, split: str) -> pathlib.Path:
  return pathlib.Path(os.path.expanduser(folder), f"{split}-v1.1.json")


def _official_file(folder: str, split: str) -> str:
  """Returns the path of an official file of SQuAD, which may be compressed."""
  path = _official_path(folder, split)
  if existing := find_existing(path, or_compressed=True):
    return str(existing)
  raise DataError(
    f"{path}: there is no such file, also not with {' '.join(COMPRESSIONS)}."
    " Set --config.finetune.data=FOLDER with SQuAD's files"
    f" (https://rajpurkar.github.io/SQuAD-explorer/dataset/{path.name}),"
    " --config.finetune.files='train=FILE dev=FILE' or"
    " --config.finetune.data=hf:rajpurkar/squad."
  )


def _read_own(options: FinetuneOptions, files: Mapping[str, str]) -> Rows:
  kind, metric = options.kind, options.metric
  columns = user_task.parse_columns(options.text, options.label)
  labels = user_task.parse_labels(options.labels)

  def read(split: str, labels: Sequence[str]) -> list[Example]:
    return user_task.read_examples(
      files[split], split, columns, kind=kind, labels=labels
    )

  train = read("train", labels)
  task = user_task.make_task(train, kind=kind, labels=labels, metric=metric)
  splits = ("dev", "test") if options.predict_test else ("dev",)
  examples = {split: read(split, task.labels) for split in splits}
  return task, {"train": train, **examples}, []


def _deviations(
  options: FinetuneOptions, task: Task, sizes: Mapping[str, int]
) -> list[str]:
  """Notes how rows, length and epochs differ from the published task."""
  notes = []
  for split, size in sizes.items():
    published = max(task.split_sizes.get(split, size), size)
    used = min(size, options.rows or size) if split == "train" else size
    if used != published:
      notes.append(f"{used:,} of {published:,} rows of {split}")
  usual = SQUAD_LENGTH if task.name == SQUAD else GLUE_LENGTH
  usual = options.length if task.name == OWN else usual
  if options.length != usual:
    notes.append(f"rows of at most {options.length} tokens, not {usual}")
  if 0 < options.epochs != task.epochs > 0:
    notes.append(f"{options.epochs:g} epochs, not {task.epochs:g}")
  return notes
