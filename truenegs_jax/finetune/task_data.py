"""Tasks from their files to rows of ids, and from outputs to scores.

data = gather(recipe, "mrpc", tokenizer)
data.dev.score(data.dev.decode_answers(outputs))["accuracy"]
"""

import collections
import dataclasses
import functools
import os
import pathlib
import shlex
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from truenegs_jax.data.corpus.files import COMPRESSIONS, find_existing
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.finetune.config_checks import OWN, SQUAD, FinetuneOptions
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.tasks import (
  batches,
  glue,
  records,
  scoring,
  squad,
  squad_windows,
  user_task,
)
from truenegs_jax.tasks.task import CLASSES, SCORE, EncodedRows, Example, Task

CONSTANT = 0.01  # of the gold scores' range: less than that tells nothing apart
Rows = tuple[Task, dict[str, list[Any]], list[str]]  # with notes
USUAL_LENGTH = dict.fromkeys(glue.TASKS, 128) | {SQUAD: 512}
SPLITS = {
  name: tuple(task.split_sizes) for name, task in glue.TASKS.items()
} | {
  SQUAD: tuple(squad.TASK.split_sizes),
  OWN: ("train", "dev", "test"),
}


@dataclasses.dataclass(frozen=True)
class EvalSplit:
  """Rows to answer.

  Attributes:
    encoded: the rows, as ids.
    keys: of each example, whose number may be smaller: a long context has
      several rows.
    golds: what is right: a class by name, a score, or texts; empty where nobody
      here knows.
    decode_answers: outputs of the rows -> an answer for each key.
    score: answers -> value by metric, in percent.
  """

  encoded: EncodedRows
  keys: tuple[str, ...]
  golds: tuple[Any, ...]
  decode_answers: Callable[[Sequence[Any]], list[Any]]
  score: Callable[[Sequence[Any]], dict[str, float]]

  def find_failure(self, answers_Q: Sequence[Any]) -> str:
    """Why these answers show that nothing was learned, or ""."""
    texts = isinstance(self.golds[0], tuple)  # the answers of several people
    golds = [gold[0] for gold in self.golds] if texts else self.golds
    return find_failure(golds, answers_Q)

  def to_json(self, answers_Q: Sequence[Any]) -> dict[str, Any]:
    """Answers with their keys and golds, in JSON's types."""
    return {
      "keys": list(self.keys),
      "golds": list(self.golds),
      "answers": list(answers_Q),
    }


@dataclasses.dataclass(frozen=True)
class TaskData:
  """The rows of a task: to train on, and to answer.

  Attributes:
    splits: "dev", and maybe "dev_mismatched", "test", ...
    notes: in what these are not the task as it was published.
  """

  task: Task
  train: EncodedRows
  splits: Mapping[str, EvalSplit]
  notes: tuple[str, ...]

  @property
  def dev(self) -> EvalSplit:
    """The split that the task is judged by."""
    return self.splits["dev"]

  def fingerprints(self) -> dict[str, str]:
    """8 hex digits over what is trained on, and over each split."""
    train = [*self.train.tokens, *self.train.targets.values()]
    by_split = {"train": _crc(x.tobytes() for x in train)}
    for name, split in self.splits.items():
      rows = [x.tobytes() for x in split.encoded.tokens]
      by_split[name] = _crc([*rows, repr((split.keys, split.golds)).encode()])
    return by_split

  @property
  def num_outputs(self) -> int:
    """Numbers that the head gives a row, or a place."""
    return max(1, len(self.task.labels))


def read_task_data(
  recipe: FinetuneOptions, name: str, tokenizer: Tokenizer
) -> TaskData:
  """Reads a task and cuts it to ids.

  Raises:
    InputError, DataError: as `check_files`, and the readers of tasks/.
  """
  check_files(recipe)
  files = parse_files(recipe, name)
  if name == SQUAD:
    task, rows, notes = _read_squad(recipe, files)
  elif name == OWN:
    task, rows, notes = _read_own(recipe, files)
  else:
    task, rows, notes = _read_glue(recipe, glue.TASKS[name], files)
  sizes = {split: len(examples) for split, examples in rows.items()}
  rows["train"] = rows["train"][: recipe.rows or None]
  notes += _shortened(recipe, task, sizes)
  if name == SQUAD:
    train, splits = _cut_questions(recipe, rows, tokenizer)
  else:
    train, splits = _cut_examples(recipe.length, task, rows, tokenizer)
  return TaskData(task, train, splits, tuple(notes))


def check_files(recipe: FinetuneOptions) -> None:
  """Refuses files that would be ignored; nothing is read.

  Raises:
    InputError: names what is not SPLIT=FILE or TASK.SPLIT=FILE, a task that is
      not fine-tuned, a split that it lacks, a test set that is not answered or
      not there, a split named twice, or `finetune.data` with a split in it.
  """
  names, data = recipe.tasks, recipe.data
  if data and names == (OWN,):
    raise InputError(
      f"finetune.data={data!r} is of GLUE and SQuAD; the files of a task of"
      " your own are named by --config.finetune.files='train=FILE dev=FILE'."
    )
  if data.startswith(records.HUB) and records.parse_dataset_name(data).split:
    raise InputError(
      f"finetune.data={data!r}: name a data set with all of its splits,"
      " hf:NAME, or files by --config.finetune.files='train=hf:NAME:SPLIT"
      " dev=hf:NAME:SPLIT'."
    )
  for task, split, _ in _words(recipe.files):
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
    if split.startswith("test") and not recipe.predict_test:
      raise InputError(
        f"{word}: test sets are answered with"
        " --config.finetune.predict_test=True alone."
      )
  for name in names:
    parse_files(recipe, name)
    if recipe.predict_test and "test" not in SPLITS[name]:
      raise InputError(
        f"finetune.predict_test=True: {name} has no test set that is public."
      )


def parse_files(recipe: FinetuneOptions, name: str) -> dict[str, str]:
  """Split -> the file that `finetune.files` names for a task.

  Raises:
    InputError: what is neither SPLIT=FILE nor TASK.SPLIT=FILE, or said twice.
  """
  paths: dict[str, str] = {}
  for task, split, path in _words(recipe.files):
    if task in ("", name):
      if split in paths:
        raise InputError(
          f"finetune.files: two files for {split} of {name}: {paths[split]!r}"
          f" and {path!r}; give one."
        )
      paths[split] = path
  return paths


def _words(files: str) -> list[tuple[str, str, str]]:
  """Task or "", split and file, of each word of `finetune.files`."""
  try:
    words = shlex.split(files)
  except ValueError as e:
    raise InputError(f"finetune.files={files!r}: {e}.") from e
  parsed = []
  for word in words:
    place, _, path = word.partition("=")
    task, _, split = place.rpartition(".")
    if not path or not split:
      raise InputError(
        f"finetune.files: {word!r} is not of the form SPLIT=FILE or"
        " TASK.SPLIT=FILE."
      )
    parsed.append((task, split, path))
  return parsed


def _read_glue(
  recipe: FinetuneOptions, task: Task, files: Mapping[str, str]
) -> Rows:
  examples: dict[str, list[Example]] = {}
  notes = []
  for split in task.split_sizes:
    file = files.get(split, "")
    if split.startswith("test") and not recipe.predict_test:
      continue
    if split == "dev_mismatched" and not file:  # an extra one
      if glue.is_missing(task, split, recipe.data):
        continue
    examples[split], num_skipped = glue.read_split(
      task, split, recipe.data, file=file
    )
    if num_skipped:
      notes.append(f"{num_skipped} lines of {split} are no rows")
  return task, examples, notes


def _read_squad(recipe: FinetuneOptions, files: Mapping[str, str]) -> Rows:
  moved, questions = collections.Counter[str](), {}
  for split in squad.TASK.split_sizes:
    where = files.get(split) or recipe.data
    if split not in files and not where.startswith(records.HUB):
      where = _official_file(where, split)
    questions[split] = squad.read_squad(where, split=split, anomalies=moved)
  notes = [f"{count:,} {name}" for name, count in moved.items()]
  return squad.TASK, questions, notes


def _official_file(folder: str, split: str) -> str:
  """A file of SQuAD, as it is or compressed."""
  path = pathlib.Path(os.path.expanduser(folder), f"{split}-v1.1.json")
  if there := find_existing(path, or_compressed=True):
    return str(there)
  raise DataError(
    f"{path}: there is no such file, nor one with {' '.join(COMPRESSIONS)}."
    " Set --config.finetune.data=FOLDER of SQuAD's files, the files themselves,"
    " --config.finetune.files='train=FILE dev=FILE', or hf:rajpurkar/squad."
  )


def _read_own(recipe: FinetuneOptions, files: Mapping[str, str]) -> Rows:
  kind, metric = recipe.kind, recipe.metric
  columns = user_task.parse_columns(recipe.text, recipe.label)
  given = user_task.parse_labels(recipe.labels)
  user_task.check_options(kind=kind, labels=given, metric=metric)
  if not {"train", "dev"} <= files.keys():
    raise InputError(
      f"finetune.files={recipe.files!r}: name what to train on and what to"
      " judge by: --config.finetune.files='train=FILE dev=FILE'."
    )
  if recipe.predict_test and "test" not in files:
    raise InputError(
      "finetune.predict_test wants a test set: --config.finetune.files="
      "'... test=FILE'."
    )

  def read(split: str, labels: Sequence[str]) -> list[Example]:
    return user_task.read_examples(
      files[split], split, columns, kind=kind, labels=labels
    )

  train = read("train", given)
  task = user_task.make_task(train, kind=kind, labels=given, metric=metric)
  others = ("dev", "test") if recipe.predict_test else ("dev",)
  examples = {split: read(split, task.labels) for split in others}
  return task, {"train": train, **examples}, []


def _shortened(
  recipe: FinetuneOptions, task: Task, sizes: Mapping[str, int]
) -> list[str]:
  """How far the data and the passes over them are from the published task."""
  notes = []
  for split, size in sizes.items():
    published = max(task.split_sizes.get(split, size), size)
    used = min(size, recipe.rows or size) if split == "train" else size
    if used != published:
      notes.append(f"{used:,} of {published:,} rows of {split}")
  usual = USUAL_LENGTH.get(task.name, recipe.length)
  if recipe.length != usual:
    notes.append(f"rows of at most {recipe.length} tokens, not {usual}")
  if 0 < recipe.epochs != task.epochs > 0:
    notes.append(f"{recipe.epochs:g} epochs, not {task.epochs:g}")
  return notes


def _cut_examples(
  length: int,
  task: Task,
  rows: Mapping[str, Sequence[Example]],
  tokenizer: Tokenizer,
) -> tuple[EncodedRows, dict[str, EvalSplit]]:
  """Rows to train on, and the other splits."""

  def cut(split: str, *, both_orders: bool = False) -> EncodedRows:
    return batches.encode(
      rows[split], task, tokenizer, length=length, both_orders=both_orders
    )

  return cut("train", both_orders=task.both_orders), {
    split: _split_of_examples(task, examples, cut(split))
    for split, examples in rows.items()
    if split != "train"
  }


def _split_of_examples(
  task: Task, rows: Sequence[Example], encoded: EncodedRows
) -> EvalSplit:
  """A split of a task of classes or scores; a test set has no golds."""
  known = bool(rows) and rows[0].label is not None
  golds = tuple(row.label for row in rows) if known else ()
  offset, scale = task.scale
  ids = {label: i for i, label in enumerate(task.labels)}

  def answers(outputs: Sequence[np.ndarray]) -> list[Any]:
    if task.kind == CLASSES:
      return [task.labels[int(x_C.argmax())] for x_C in outputs]
    return [float(offset + scale * x_C[0]) for x_C in outputs]

  def numbers(values: Sequence[Any]) -> np.ndarray:
    if task.kind == SCORE:
      return np.array(values, np.float64)
    return np.array([ids[label] for label in values], np.int64)

  def scores(answers_Q: Sequence[Any]) -> dict[str, float]:
    gold_N, answer_N = numbers(golds), numbers(answers_Q)
    return {m: scoring.METRICS[m](gold_N, answer_N) for m in task.metrics}

  keys = tuple(row.key for row in rows)
  return EvalSplit(encoded, keys, golds, answers, scores)


def _cut_questions(
  recipe: FinetuneOptions,
  questions: Mapping[str, list[squad.Question]],
  tokenizer: Tokenizer,
) -> tuple[EncodedRows, dict[str, EvalSplit]]:
  """Windows to train on, and the dev set."""
  train, dev = (
    squad_windows.make_windows(
      questions[split],
      tokenizer,
      train=split == "train",
      length=recipe.length,
      stride=recipe.stride,
      question_length=recipe.question_length,
    )
    for split in ("train", "dev")
  )
  golds = {q.key: tuple(text for text, _ in q.answers) for q in dev.questions}

  def answers(outputs: Sequence[Any]) -> list[str]:
    # Logits of all places as [n, 2], or the candidates of the joint head.
    pairs = [x if isinstance(x, tuple) else tuple(x.T) for x in outputs]
    best = squad_windows.best_answers(
      dev, pairs, num_best=recipe.num_best, max_answer=recipe.max_answer
    )
    return [best[key][0][0] for key in golds]

  def scores(answers_Q: Sequence[str]) -> dict[str, float]:
    return scoring.squad_scores(dict(zip(golds, answers_Q, strict=True)), golds)

  split = EvalSplit(
    dev.encoded, tuple(golds), tuple(golds.values()), answers, scores
  )
  return train.encoded, {"dev": split}


def find_failure(gold_N: ArrayLike, predicted_N: ArrayLike) -> str:
  """Why a run counts as failed, or "": it learned nothing, or broke.

  Args:
    gold_N, predicted_N: classes (int), answers (str) or scores (float).
  """
  gold_N, predicted_N = np.asarray(gold_N), np.asarray(predicted_N)
  is_score = predicted_N.dtype.kind == "f"
  if is_score and not np.isfinite(predicted_N).all():
    return "scores are not finite"
  if is_score and np.ptp(predicted_N) < CONSTANT * np.ptp(gold_N):
    return f"all scores lie within {CONSTANT:.0%} of the gold scores' range"
  if len(set(predicted_N.tolist())) == 1 < len(set(gold_N.tolist())):
    return f"all {len(predicted_N)} predictions are {predicted_N[0].item()!r}"
  return ""


def _crc(chunks: Iterable[bytes]) -> str:
  """CRC-32 of the chunks one after the other, 8 hex digits."""
  return f"{functools.reduce(lambda crc, x: zlib.crc32(x, crc), chunks, 0):08x}"
