"""Reads the tasks of a config: GLUE's, SQuAD, one of the user's own."""

import collections
import pathlib
import shlex
from collections.abc import Mapping

from ml_collections import ConfigDict

from truenegs_jax.data.compression import MAGIC
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.errors import DataError, InputError
from truenegs_jax.evals import scoring
from truenegs_jax.finetune import recipe
from truenegs_jax.finetune.material import Material, Split, of_examples
from truenegs_jax.tasks import answers, encode, glue, own, squad, windows
from truenegs_jax.tasks.examples import SPANS, Example, Task

SPLITS = ("train", "dev", "dev_mismatched", "test", "test_mismatched")


def gather(c: ConfigDict, name: str, tokenizer: Tokenizer) -> Material:
  """Reads a task and cuts it to ids.

  Raises:
    InputError, DataError: as the readers of tasks/.
  """
  if name == recipe.SQUAD:
    return _squad(c, tokenizer)
  task, examples, notes = _own(c) if name == recipe.OWN else _glue(c, name)
  sizes = {split: len(rows) for split, rows in examples.items()}
  examples["train"] = examples["train"][: c.finetune.rows or None]
  notes += _shortened(c, task, sizes)
  cut = lambda rows, **more: encode.encode(
    rows, task, tokenizer, length=c.length, **more
  )
  train = cut(examples.pop("train"), swap=task.doubled)
  splits = {
    split: of_examples(task, rows, cut(rows))
    for split, rows in examples.items()
  }
  if train.num_cut:
    share = train.num_cut / len(train.tokens)
    notes.append(f"{share:.1%} of the training rows are cut to {c.length}")
  return Material(task, train, splits, tuple(notes))


def files_of(c: ConfigDict, name: str) -> dict[str, str]:
  """Split -> the file that `finetune.files` names for a task."""
  found = {}
  try:
    words = shlex.split(c.finetune.files)
  except ValueError as e:
    raise InputError(f"finetune.files={c.finetune.files!r}: {e}.") from e
  for word in words:
    place, equals, path = word.partition("=")
    task, _, split = place.rpartition(".")
    if not equals or not path or split not in SPLITS:
      raise InputError(
        f"finetune.files: {word!r} is not of the form SPLIT=FILE or"
        f" TASK.SPLIT=FILE; splits are {', '.join(SPLITS)}."
      )
    if task in ("", name):
      found[split] = path
  return found


def _glue(
  c: ConfigDict, name: str
) -> tuple[Task, dict[str, list[Example]], list[str]]:
  task, files = glue.TASKS[name], files_of(c, name)
  examples, notes = {}, []
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


def _own(c: ConfigDict) -> tuple[Task, dict[str, list[Example]], list[str]]:
  f, files = c.finetune, files_of(c, recipe.OWN)
  columns = own.parse_columns(f.text, f.label)
  given = own.parse_labels(f.labels)
  own.check_options(kind=f.kind, labels=given, metric=f.metric)
  if not {"train", "dev"} <= files.keys():
    raise InputError(
      f"finetune.files={f.files!r}: name what to train on and what to judge by:"
      " --config.finetune.files='train=FILE dev=FILE'."
    )
  read = lambda split, **more: own.read(
    files[split], split, columns, kind=f.kind, **more
  )
  train = read("train", labels=given)
  task = own.make_task(train, kind=f.kind, labels=given, metric=f.metric)
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
  if 0 < c.finetune.epochs != task.epochs > 0:
    notes.append(f"{c.finetune.epochs:g} epochs, not {task.epochs:g}")
  return notes


SQUAD_TASK = Task(
  name=recipe.SQUAD,
  title="SQuAD v1.1",
  kind=SPANS,
  metrics=("em", "f1"),
  epochs=2.0,
  official={"train": 87_599, "dev": 10_570},
)


def _squad(c: ConfigDict, tokenizer: Tokenizer) -> Material:
  f, moved = c.finetune, collections.Counter[str]()
  found = {split: _questions(c, split, moved) for split in ("train", "dev")}
  notes = [f"{count:,} {name}" for name, count in moved.items()]
  sizes = {split: len(questions) for split, questions in found.items()}
  found["train"] = found["train"][: f.rows or None]
  notes += _shortened(c, SQUAD_TASK, sizes)
  cut = lambda split, **more: windows.make_windows(
    found[split],
    tokenizer,
    length=c.length,
    stride=f.stride,
    question_length=f.question_length,
    **more,
  )
  train, dev = cut("train", train=True), cut("dev", train=False)
  keys = tuple(q.key for q in found["dev"])
  golds = tuple(tuple(text for text, _ in q.answers) for q in found["dev"])

  def answers_of(outputs):
    # Logits of all places as [n, 2], or the candidates of the joint head.
    pairs = [x if isinstance(x, tuple) else tuple(x.T) for x in outputs]
    best = answers.best_answers(
      dev, pairs, num_best=f.num_best, max_answer=f.max_answer
    )
    return [best[key][0][0] for key in keys]

  def scores(said):
    by_key = dict(zip(keys, golds, strict=True))
    return scoring.squad_scores(dict(zip(keys, said, strict=True)), by_key)

  split = Split(dev.encoded, keys, golds, answers_of, scores)
  return Material(SQUAD_TASK, train.encoded, {"dev": split}, tuple(notes))


def _questions(
  c: ConfigDict, split: str, moved: collections.Counter[str]
) -> list[squad.Question]:
  """Of a file that is named, the usual one of a folder, or the hub."""
  file = files_of(c, recipe.SQUAD).get(split)
  if file or not c.finetune.data.startswith("hf:"):
    path = file or _find_squad(c.finetune.data, split)
    return squad.read_squad(path, oddities=moved)
  names = {"train": "train", "dev": "validation"}
  return squad.read_squad(c.finetune.data, split=names[split], oddities=moved)


def _find_squad(where: str, split: str) -> str:
  """The official file, as it is or compressed."""
  path = pathlib.Path(where).expanduser() / f"{split}-v1.1.json"
  for suffix in ("", *MAGIC):
    found = path.with_name(path.name + suffix)
    if found.exists():
      return str(found)
  raise DataError(
    f"{path}: there is no such file, nor one with {' '.join(MAGIC)}. Give"
    " --config.finetune.data=FOLDER of SQuAD's files, the files themselves,"
    " --config.finetune.files='train=FILE dev=FILE', or hf:rajpurkar/squad."
  )
