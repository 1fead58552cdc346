"""Reads a config of fine-tuning, and its tasks into rows; scores answers.

options = parse_options(c.to_dict())
data = read_task_data(options, "mrpc", tokenizer)
data.dev.score(data.dev.decode_answers(outputs))  # {"accuracy": ...}
"""

import dataclasses
import functools
import itertools
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.config.grammar import parse_names
from truenegs_jax.config.sections import INIT_SKIPS, PretrainConfig
from truenegs_jax.config.tables import Finetune
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.finetune.results import find_size
from truenegs_jax.models import layers
from truenegs_jax.runtime.errors import DataError, InputError, one_of
from truenegs_jax.runtime.text import COMPRESSIONS
from truenegs_jax.tasks import batches, entities, records, scoring, squad, tags
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks.task import (
  CLASSES,
  OWN,
  SPANS,
  SQUAD,
  TAGS,
  TASKS,
  EncodedRows,
  Task,
)
from truenegs_jax.train import loggers, sharding

# Of ELECTRA's paper (Clark et al. 2020), by size of the network.
LEARNING_RATES = {"small": 3e-4, "base": 1e-4, "large": 5e-5}
LAYER_DECAYS = {"small": 0.8, "base": 0.8, "large": 0.9}
MOST_CLASSES = 50  # to show
CONSTANT = 0.01  # share of the gold scores' range; a smaller range is constant
# Class name, answer text, score, or the tags of a sentence.
Answer = str | float | Sequence[str]


class FinetuneOptions(PretrainConfig):
  """A config of fine-tuning; keys that it lacks have their defaults."""

  finetune: Finetune = Finetune()

  @property
  def mesh_spec(self) -> sharding.MeshSpec:
    """The axes of the mesh, and what is split over them."""
    return sharding.get_mesh_spec(self.mesh.preset, self.mesh.model)

  @property
  def files(self) -> dict[str, str]:
    """The files that are set, by split; they are those of the only task."""
    o = self.finetune
    splits = {"train": o.train, "dev": o.dev, "test": o.test}
    return {split: file for split, file in splits.items() if file}

  @property
  def task_names(self) -> tuple[str, ...]:
    """The names in `tasks`."""
    return parse_names(self.finetune.tasks, key="finetune.tasks")

  @property
  def all_seeds(self) -> Sequence[int]:
    """The seeds of the runs of each task."""
    return range(self.seed, self.seed + self.finetune.seeds)

  def find_task(self, name: str) -> Task:
    """Returns a published task, or the user's own without its file's values."""
    if name != OWN:
      return TASKS[name]
    o = self.finetune
    return task_lib.define_own_task(
      text=o.text, label=o.label, kind=o.kind, labels=o.labels, metric=o.metric
    )

  def list_splits(self, task: Task) -> list[str]:
    """Returns the names of a task's splits, test sets only if they are used."""
    return [
      x
      for x in task.splits
      if not x.startswith("test")
      or self.finetune.predict_test
      or x in self.files
    ]

  def find_source(self, task: Task, split: str) -> tuple[str, bool]:
    """Returns where a split is, and whether it exists there or on the hub."""
    file = self.files.get(split)
    where = file or self.finetune.data
    if where.startswith(records.HUB):
      return where, True
    path = os.path.expanduser(where)
    if not file:
      path = str(records.official_path(task, split, path))
    paths = [f"{path}{suffix}" for suffix in ("", *COMPRESSIONS)]
    existing = next(filter(os.path.exists, paths), None)
    return existing or path, existing is not None

  def peak_rate(self, width: int) -> float:
    """Returns the head's highest learning rate for a network of that width."""
    return self.optim.lr or LEARNING_RATES[find_size(width)]

  def decay(self, width: int) -> float:
    """Returns the factor of the learning rate from a layer to the one below."""
    return self.finetune.layer_decay or LAYER_DECAYS[find_size(width)]


def parse_options(values: Mapping[str, Any]) -> FinetuneOptions:
  """Reads the values of a config; InputError for values that do not fit."""
  options = FinetuneOptions.read(values)
  one_of("model.remat", options.model.remat, layers.REMAT)
  loggers.check_writers(options.log.writers)
  parse_names(options.init_skip, key="init_skip", choices=INIT_SKIPS)
  tasks = options.task_names
  glue = [name for name in TASKS if name != SQUAD]
  groups = (glue, (SQUAD,), (OWN,))
  if not tasks or not any(set(tasks) <= {*group} for group in groups):
    raise InputError(
      f"finetune.tasks={options.finetune.tasks!r} must name tasks of GLUE"
      f" ({', '.join(glue)}), or {SQUAD}, or {OWN}."
    )
  sharding.check_batch_size(
    options.batch_size, options.optim.accumulation, options.mesh_spec
  )
  return options


def check_files(options: FinetuneOptions) -> None:
  """Refuses files that do not suit the tasks; reads none of them."""
  o = options.finetune
  tasks = [options.find_task(name) for name in options.task_names]
  is_hub = o.data.startswith(records.HUB)
  if is_hub and records.parse_dataset(o.data)[1]["split"]:
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
  for split, file in options.files.items():
    if split not in tasks[0].splits:
      raise InputError(
        f"finetune.{split}={file!r}: {tasks[0].title} has no such split. Leave"
        " it out, or set --config.finetune.dev=FILE to score its examples."
      )
  for split in options.list_splits(tasks[0]):
    if tasks[0].name == OWN and split not in options.files:
      raise InputError(
        f"finetune.{split} names no file for the {split} split of your own"
        f" task. Set --config.finetune.{split}=FILE."
      )


@dataclasses.dataclass(frozen=True)
class EvalSplit:
  """A split to evaluate on, with Q examples."""

  task: Task  # with labels in the order of the model's outputs
  examples: Sequence[Any]  # Example; of SPANS Question, of TAGS Sentence
  encoded: EncodedRows  # more than Q rows if contexts have several windows
  windows: squad.Windows | None = None  # of the questions

  @functools.cached_property
  def golds(self) -> tuple[Answer | tuple[str, ...], ...]:
    """Class, score, answer texts or tags of each example, if all are public."""
    golds = tuple(x.gold for x in self.examples)
    return () if None in golds else golds

  def decode_answers(self, outputs: Sequence[Any]) -> Sequence[Answer]:
    """Returns the answers to the examples, given the outputs for the rows."""
    if self.windows:
      return squad.best_answers(self.windows, outputs)
    if self.task.kind == TAGS:
      return tags.decode_tags(self.encoded, outputs, self.task.labels)
    if self.task.kind == CLASSES:
      return [self.task.labels[int(x_C.argmax())] for x_C in outputs]
    offset, scale = self.task.scale
    return [float(offset + scale * x_C[0]) for x_C in outputs]

  def score(self, answers_Q: Sequence[Answer]) -> dict[str, float]:
    """Returns the value of each metric, in percent."""
    metrics = self.task.metrics
    labels = self.task.labels
    return scoring.score_answers(metrics, self.golds, answers_Q, labels)


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
  if task.kind == TAGS:
    encoded = tags.encode(examples, tokenizer, task.labels, length=length)
    return EvalSplit(task, examples, encoded)
  if task.kind != SPANS:
    both = train and task.both_orders
    encoded = batches.encode(
      examples, task, tokenizer, length=length, both_orders=both
    )
    return EvalSplit(task, examples, encoded)
  windows = squad.make_windows(
    examples,
    tokenizer,
    train=train,
    length=length,
    stride=options.finetune.stride,
  )
  return EvalSplit(task, examples, windows.encoded, windows)


@dataclasses.dataclass(frozen=True)
class TaskData:
  """The rows of a task."""

  task: Task
  train: EncodedRows
  splits: Mapping[str, EvalSplit]  # "dev", "dev_mismatched", "test", ...
  scheme: str = ""  # of the training file's tags

  @property
  def dev(self) -> EvalSplit:
    """The dev set, whose scores count."""
    return self.splits["dev"]

  def describe(self) -> list[str]:
    """Describes rows, classes with their rows, and which class F1 is of."""
    texts = [
      f"{self.task.title}: {len(self.train.tokens):,} training rows",
      f"{self.train.num_cut:,} of them truncated",
      f"{len(self.dev.examples):,} dev examples",
    ]
    labels = self.task.labels
    if self.scheme:
      texts.append(f"tags in {self.scheme}")
    if labels:
      counted = "words by tag" if self.train.tags else "rows by class"
      values = self.train.tags or [self.train.targets["label"]]
      counts_C = np.bincount(np.concatenate(values), minlength=len(labels))
      pairs = zip(labels, counts_C.tolist(), strict=True)
      listed = [f"{label!r} {count:,}" for label, count in pairs]
      texts.append(f"{counted}: {', '.join(listed[:MOST_CLASSES])}")
    if len(labels) == 2 and "f1" in self.task.metrics:
      texts.append(f"F1 is that of {labels[1]!r}")
    return texts

  def fingerprints(self) -> dict[str, str]:
    """Returns fingerprints of the rows that runs are compared by."""
    train = [
      *self.train.tokens,
      *self.train.targets.values(),
      *self.train.tags,
    ]
    keys = tuple(x.key for x in self.dev.examples)
    golds = repr((keys, self.dev.golds)).encode()
    return {
      "train": fingerprint(x.tobytes() for x in train),
      "dev": fingerprint([*map(bytes, self.dev.encoded.tokens), golds]),
    }


def fingerprint(chunks: Iterable[bytes]) -> str:
  """Returns the CRC-32 of the concatenated chunks, 8 hex digits."""
  crc = 0
  for chunk in chunks:
    crc = zlib.crc32(chunk, crc)
  return f"{crc:08x}"


def read_task_data(
  options: FinetuneOptions, name: str, tokenizer: Tokenizer
) -> TaskData:
  """Reads a task and encodes it."""
  task = options.find_task(name)
  splits: dict[str, EvalSplit] = {}
  scheme = ""
  for split in options.list_splits(task):
    if split == "dev_mismatched" and (
      "dev" in options.files or not options.find_source(task, split)[1]
    ):
      continue
    examples = read_split(options, task, split)
    if split != "train":
      splits[split] = encode_split(options, task, examples, tokenizer)
      continue
    if task.kind == TAGS:
      task = task_lib.fit_tags(task, examples)
      scheme = entities.name_scheme((x.tags, x.location) for x in examples)
    elif name == OWN:
      names = records.read_class_names(
        options.finetune.train, split, task.label_column
      )
      task = task_lib.fit_own_task(task, examples, names=names)
    examples = examples[: options.finetune.rows or None]
    train = encode_split(options, task, examples, tokenizer, train=True)
  return TaskData(task, train.encoded, splits, scheme)


def read_split(
  options: FinetuneOptions, task: Task, split: str, *, section: str = "finetune"
) -> list[Any]:
  """Reads the examples of a split, those of `EvalSplit`.

  `section` of the config has the key `data`, for messages.
  """
  where, exists = options.find_source(task, split)
  if not exists:
    fix = (
      f"Set --config.{section}.data to the folder of the published files, to"
      " hf:nyu-mll/glue or to hf:rajpurkar/squad; without internet, to"
      " hf:FOLDER with a copy that save_to_disk wrote."
    )
    if split in options.files:
      key = split if section == "finetune" else "data"
      fix = f"Correct --config.{section}.{key}."
    raise DataError(
      f"{where}: there is no such file, also not with {' '.join(COMPRESSIONS)}."
      f" {fix}"
    )
  if task.kind == SPANS:
    return squad.read_squad(where, split=split)
  if task.kind == TAGS:
    return tags.read_sentences(where, split=split, task=task)
  return records.read_split(task, split, where)


def find_failure(golds: Sequence[Any], answers: Sequence[Any]) -> str:
  """Returns why answers are useless (not finite or constant), else ""."""
  if isinstance(answers[0], list):  # tags
    golds = [*itertools.chain.from_iterable(golds)]
    answers = [*itertools.chain.from_iterable(answers)]
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
