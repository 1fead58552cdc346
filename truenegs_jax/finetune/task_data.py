"""Reads tasks into rows, answers them with a network, and finds mistakes."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from rich.console import Console
from scipy import special

from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.finetune.options import FinetuneOptions
from truenegs_jax.finetune.results import fingerprint
from truenegs_jax.models import attention, encoder, finetune
from truenegs_jax.runtime import distributed, progress
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.text import find_existing
from truenegs_jax.tasks import batches, records, scoring, squad
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks.task import (
  CLASSES,
  OWN,
  SPANS,
  SQUAD,
  EncodedRows,
  Question,
  Task,
)
from truenegs_jax.train import sharding

GLUE_LENGTH = 128  # tokens of a row in ELECTRA's paper
SQUAD_LENGTH = 512
OWN_SPLITS = ("train", "dev", "test")
MOST_CLASSES = 50  # to show
CONSTANT = 0.01  # share of the gold scores' range; a smaller range is constant
SHOWN = 500  # characters of a text to read
MOST = 100  # mistakes to read; result.json has all answers, without texts
Answer = str | float  # class name, answer text or score


@dataclasses.dataclass(frozen=True)
class EvalSplit:
  """A split to evaluate on, with Q examples."""

  options: FinetuneOptions
  task: Task  # with labels in the order of the model's outputs
  examples: Sequence[Any]  # Example or, of SPANS, Question
  encoded: EncodedRows  # more than Q rows if contexts have several windows
  windows: squad.Windows | None = None  # of the questions

  @functools.cached_property
  def golds(self) -> tuple[Answer | tuple[str, ...], ...]:
    """Class, score or answer texts of each example; empty if not public."""
    return tuple(x.gold for x in self.examples if x.gold is not None)

  def decode_answers(self, outputs: Sequence[Any]) -> Sequence[Answer]:
    """Returns the answers to the examples, given the outputs for the rows."""
    if self.windows:
      return squad.best_answers(self.windows, outputs)
    if self.task.kind == CLASSES:
      return [self.task.labels[int(x_C.argmax())] for x_C in outputs]
    offset, scale = self.task.scale
    return [float(offset + scale * x_C[0]) for x_C in outputs]

  def show_texts(self, number: int) -> str:
    """Returns an example's texts, cut to SHOWN characters each."""
    x = self.examples[number]
    if not isinstance(x, Question):
      texts = (x.first, x.second)
      return "\n".join(text[:SHOWN] for text in texts if text is not None)
    _, start = x.answers[0]
    first = max(min(start - SHOWN // 2, len(x.context) - SHOWN), 0)
    return f"{x.text[:SHOWN]}\n{x.context[first : first + SHOWN]}"

  def score(self, answers_Q: Sequence[Answer]) -> dict[str, float]:
    """Returns the value of each metric, in percent."""
    metrics = self.task.metrics
    labels = self.task.labels
    return scoring.score_answers(metrics, self.golds, answers_Q, labels)

  def to_json(self, answers_Q: Sequence[Answer]) -> dict[str, Any]:
    """Returns answers with their keys and golds, in JSON's types."""
    keys = [x.key for x in self.examples]
    golds = list(self.golds)
    return {"keys": keys, "golds": golds, "answers": list(answers_Q)}


def encode_split(
  options: FinetuneOptions,
  task: Task,
  examples: Sequence[Any],
  tokenizer: Tokenizer,
  *,
  train: bool = False,
) -> EvalSplit:
  """Encodes examples, with `train` as they are trained on."""
  length = options.length
  if task.kind != SPANS:
    both = train and task.both_orders
    encoded = batches.encode(
      examples, task, tokenizer, length=length, both_orders=both
    )
    return EvalSplit(options, task, examples, encoded)
  windows = squad.make_windows(
    examples,
    tokenizer,
    train=train,
    length=length,
    stride=options.finetune.stride,
    question_length=options.finetune.question_length,
  )
  return EvalSplit(options, task, examples, windows.encoded, windows)


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
    note = f"{len(moved):,} answers that are not at answer_start in {split}"
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
    _, chosen = records.parse_dataset(o.data)
    if chosen["split"]:
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
  o = options.finetune
  task = options.find_task(name)
  texts = []
  for split in _list_splits(options, task):
    where, exists = _find_path(options, task, split)
    state = "" if exists else " (missing)"
    texts.append(f"{split}: {where}{state}")
  epochs = o.epochs or task.epochs
  text = f"{epochs:g} epochs"
  if task.split_sizes and "train" not in options.files:
    size = task.split_sizes["train"]
    rows = min(size, o.rows or size) * (1 + task.both_orders)
    steps = batches.num_steps(rows, options.batch_size, epochs)
    least = "at least " if task.kind == SPANS else ""  # several for a context
    text += f" of {least}{rows:,} rows, {steps:,} steps"
  return "; ".join([*texts, text])


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
  o = options.finetune
  notes = []
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


class Predictor:
  """A model's compiled forward pass, for any parameters of that model.

  Its `attention` names the implementation of attention, which `model` has.
  """

  def __init__(self, options: FinetuneOptions, model: finetune.DownstreamModel):
    self.options = options
    self.mesh = sharding.make_mesh(options.mesh_spec)
    implementation, self.attention = attention.choose(
      options.model.attention,
      [model.config],
      self.mesh,
      length=options.length,
      check=True,
    )
    attending = encoder.replace_configs(model, attention=implementation)
    self.model = attending

    def predict_batch(params, inputs):
      return attending.apply({"params": params}, inputs, None, method="logits")

    self.predict_batch = jax.jit(
      predict_batch, out_shardings=sharding.replicated_sharding(self.mesh)
    )

  def answer(
    self,
    params: optax.Params,
    split: EvalSplit,
    *,
    console: Console,
    title: str,
    check: Callable[[], None] = lambda: None,
  ) -> tuple[list[np.ndarray], Sequence[Answer]]:
    """Returns the outputs for the rows of a split, and its answers.

    Calls `check` before each batch.
    """
    o = self.options
    rows = len(split.encoded.tokens)
    by_row: dict[int, np.ndarray] = {}
    with progress.counting(console, title, rows, brief=True) as advance:
      for batch in batches.batches_in_order(
        split.encoded, batch_size=o.batch_size, limit=o.length
      ):
        with distributed.watch_step():
          check()
          inputs = {name: batch[name] for name in batches.INPUTS}
          on_device = sharding.place_batch(inputs, self.mesh)
          output_B = jax.device_get(self.predict_batch(params, on_device))
        pairs = zip(batch["row"].tolist(), output_B, strict=True)
        by_row |= {row: output for row, output in pairs if row >= 0}
        advance(int((batch["row"] >= 0).sum()))
      outputs = [by_row[row] for row in range(rows)]
      return outputs, split.decode_answers(outputs)


def find_failure(golds: Sequence[Any], answers: Sequence[Answer]) -> str:
  """Returns why answers are useless (not finite or constant), else ""."""
  gold_N = np.array([x[0] if isinstance(x, tuple) else x for x in golds])
  predicted_N = np.asarray(answers)
  is_score = predicted_N.dtype.kind == "f"
  if is_score and not np.isfinite(predicted_N).all():
    return "scores are not finite"
  if is_score and np.ptp(predicted_N) < CONSTANT * np.ptp(gold_N):
    return f"all scores lie within {CONSTANT:.0%} of the gold scores' range"
  if len(set(predicted_N.tolist())) == 1 < len(set(gold_N.tolist())):
    return f"all {len(predicted_N)} predictions are {predicted_N[0].item()!r}"
  return ""


def find_mistakes(
  split: EvalSplit, outputs: Sequence[np.ndarray], answers_Q: Sequence[Any]
) -> list[dict[str, Any]]:
  """Returns up to MOST wrong answers, the same in each call.

  They are drawn from the whole split, in its order; of scores, those farthest
  from the gold scores are taken, the farthest first. A class has its
  probability by the outputs for the rows.
  """
  kind = split.task.kind
  golds = list[Any](split.golds)
  if kind == task_lib.SCORE:
    error_Q = np.abs(np.array(answers_Q) - np.array(golds))
    order_Q = np.argsort(-error_Q, kind="stable")
    numbers = order_Q[error_Q[order_Q] != 0][:MOST].tolist()
  else:
    if kind == SPANS:
      is_wrong_Q = scoring.question_scores(golds, answers_Q)["em"] == 0
    else:
      is_wrong_Q = np.array(golds) != np.array(answers_Q)
    wrong = np.flatnonzero(is_wrong_Q)
    drawn = np.random.default_rng(0).permutation(len(wrong))[:MOST]
    numbers = wrong[np.sort(drawn)].tolist()
  mistakes = []
  for number in numbers:
    gold = golds[number]
    text = split.show_texts(number)
    if isinstance(gold, tuple):
      gold = " | ".join(dict.fromkeys(gold))
    key = split.examples[number].key
    answer = answers_Q[number]
    mistake = {"key": key, "text": text, "gold": gold, "answer": answer}
    if kind == CLASSES:
      probabilities_C = special.softmax(np.float64(outputs[number]))
      mistake["probability"] = float(probabilities_C.max())
    mistakes.append(mistake)
  return mistakes
