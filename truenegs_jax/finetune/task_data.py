"""Reads tasks into rows of token ids.

data = read_task_data(options, "mrpc", tokenizer)
data.dev.score(data.dev.decode_answers(outputs))["accuracy"]
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from truenegs_jax.data.corpus import hub_datasets
from truenegs_jax.data.corpus.files import find_existing
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.finetune.evaluate import EvalSplit, encode_split
from truenegs_jax.finetune.options import FinetuneOptions
from truenegs_jax.finetune.results import fingerprint
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import batches, records, squad
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks.task import OWN, SPANS, SQUAD, EncodedRows, Task

GLUE_LENGTH, SQUAD_LENGTH = 128, 512  # tokens of a row in ELECTRA's paper
OWN_SPLITS = ("train", "dev", "test")
MOST_CLASSES = 50  # to show


@dataclasses.dataclass(frozen=True)
class TaskData:
  """The rows of a task."""

  task: Task
  train: EncodedRows
  splits: Mapping[str, EvalSplit]  # "dev", "dev_mismatched", "test", ...
  notes: tuple[str, ...]  # how the data differ from the published task

  @property
  def dev(self) -> EvalSplit:
    """The dev set, whose scores count."""
    return self.splits["dev"]

  def describe_classes(self) -> list[str]:
    """Returns the classes with their training rows, and which one F1 is of."""
    labels = self.task.labels
    if not labels:
      return []
    counts_C = np.bincount(self.train.targets["label"], minlength=len(labels))
    pairs = zip(labels, counts_C.tolist(), strict=True)
    listed = [f"{label!r} {count:,}" for label, count in pairs]
    texts = [f"rows by class: {', '.join(listed[:MOST_CLASSES])}"]
    if len(labels) == 2 and "f1" in self.task.metrics:
      texts.append(f"F1 is that of {labels[1]!r}")
    return texts

  def fingerprints(self) -> dict[str, str]:
    """Returns fingerprints of the training rows and of each split, by name."""
    train = [*self.train.tokens, *self.train.targets.values()]
    by_split = {"train": fingerprint(x.tobytes() for x in train)}
    for name, split in self.splits.items():
      rows = [x.tobytes() for x in split.encoded.tokens]
      keys = tuple(x.key for x in split.examples)
      golds = repr((keys, split.golds)).encode()
      by_split[name] = fingerprint([*rows, golds])
    return by_split


def read_task_data(
  options: FinetuneOptions, name: str, tokenizer: Tokenizer
) -> TaskData:
  """Reads a task and encodes it."""
  task = options.find_task(name)
  splits: dict[str, EvalSplit] = {}
  sizes: dict[str, int] = {}
  notes: list[str] = []
  for split in _list_splits(options, task):
    may_be_missing = split == "dev_mismatched"
    if may_be_missing and not _find_path(options, task, split)[1]:
      continue
    examples, more = read_split(options, task, split)
    sizes[split] = len(examples)
    notes += more
    if split != "train":
      splits[split] = encode_split(options, task, examples, tokenizer)
      continue
    if name == OWN:
      names = records.read_class_names(
        options.finetune.train, split, task.label_column
      )
      task = task_lib.fit_own_task(task, examples, names=names)
    examples = examples[: options.finetune.rows or None]
    rows = encode_split(options, task, examples, tokenizer, train=True)
  notes += _deviations(options, task, sizes)
  return TaskData(task, rows.encoded, splits, tuple(notes))


def read_split(
  options: FinetuneOptions, task: Task, split: str
) -> tuple[list[Any], list[str]]:
  """Reads the examples of a split, and notes what was changed in them."""
  file = options.files.get(split, "")
  if task.name == OWN:
    return records.read_examples(file, split, task), []
  if task.kind == SPANS:
    moved: list[str] = []
    if not (where := file or options.finetune.data).startswith(records.HUB):
      where = file or str(records.find_official(task, split, where))
    questions = squad.read_squad(where, split=split, moved=moved)
    note = f"{len(moved):,} {squad.MOVED} in {split}"
    return questions, [note] if moved else []
  examples, num_skipped = records.read_split(
    task, split, options.finetune.data, file=file
  )
  note = f"{num_skipped} lines of {split} are no rows"
  return examples, [note] if num_skipped else []


def _list_splits(options: FinetuneOptions, task: Task) -> list[str]:
  """Returns the names of a task's splits, test sets only if they are used."""
  splits = task.split_sizes or OWN_SPLITS
  has_test = options.finetune.predict_test
  return [x for x in splits if has_test or not x.startswith("test")]


def check_files(options: FinetuneOptions) -> None:
  """Refuses files that would not be used; reads none of them."""
  o = options.finetune
  tasks = [options.find_task(name) for name in options.task_names]
  if o.data.startswith(records.HUB):
    if hub_datasets.parse_dataset(o.data, key="finetune.data").split:
      raise InputError(
        f"finetune.data={o.data!r} names a split. Set"
        " --config.finetune.data=hf:NAME, or for a single task"
        " --config.finetune.train='hf:NAME split=S' and"
        " --config.finetune.dev='hf:NAME split=S'."
      )
  if options.files and len(tasks) > 1:
    raise InputError(
      f"finetune.{min(options.files)} is the file of one task, but"
      f" finetune.tasks={o.tasks!r} names {len(tasks)}. Put the files of all"
      " into one folder and set --config.finetune.data=FOLDER, or fine-tune"
      " each task into its own workdir."
    )
  splits = _list_splits(options, tasks[0])
  if o.test and "test" not in splits:
    raise InputError(
      f"finetune.test={o.test!r} would not be used. Set"
      " --config.finetune.predict_test=True or remove it; SQuAD has no test set"
      " for everyone."
    )
  for split in splits:
    if tasks[0].name == OWN and split not in options.files:
      raise InputError(
        f"finetune.{split} names no file for the {split} split of your own"
        f" task. Set --config.finetune.{split}=FILE."
      )


def describe_task(options: FinetuneOptions, name: str) -> str:
  """Describes in a dry run the files of a task and, if published, its steps."""
  o, task, texts = options.finetune, options.find_task(name), []
  splits = [x for x in _list_splits(options, task) if "mismatched" not in x]
  for split in splits:
    where, exists = _find_path(options, task, split)
    texts.append(
      f"{split}: {where}" if exists else f"{split}: {where} (missing)"
    )
  epochs = o.epochs or task.epochs
  if not task.split_sizes or "train" in options.files:
    return "; ".join([*texts, f"{epochs:g} epochs"])
  size = task.split_sizes["train"]
  rows = min(size, o.rows or size) * (1 + task.both_orders)
  steps = batches.num_steps(rows, options.batch_size, epochs)
  count = f"{rows:,} rows, {steps:,} steps"
  if task.kind == SPANS:  # a long context has several rows
    count = f"at least {count}"
  texts.append(f"{epochs:g} epochs of {count}")
  return "; ".join(texts)


def _find_path(
  options: FinetuneOptions, task: Task, split: str
) -> tuple[str, bool]:
  """Returns where a split is, and whether it exists there or on the hub."""
  file = options.files.get(split)
  where = file or options.finetune.data
  if where.startswith(records.HUB):
    return where, True
  path = pathlib.Path(where).expanduser()
  if not file:
    path = records.official_path(task, split, where)
  existing = find_existing(path, or_compressed=not file)
  return str(existing or path), existing is not None


def _deviations(
  options: FinetuneOptions, task: Task, sizes: Mapping[str, int]
) -> list[str]:
  """Notes how rows, length and epochs differ from the published task."""
  o, notes = options.finetune, []
  for split, size in sizes.items():
    published = max(task.split_sizes.get(split, size), size)
    used = min(size, o.rows or size) if split == "train" else size
    if used != published:
      notes.append(f"{used:,} of {published:,} rows of {split}")
  if task.name == OWN:
    return notes
  usual = SQUAD_LENGTH if task.name == SQUAD else GLUE_LENGTH
  if options.length != usual:
    notes.append(f"rows of at most {options.length} tokens, not {usual}")
  if o.epochs and o.epochs != task.epochs:
    notes.append(f"epochs: {o.epochs:g}, not {task.epochs:g}")
  return notes
