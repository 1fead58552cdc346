"""Sets to score on: our own, which are saved, and those of others.

  AddSent, AddOneSent   SQuAD's JSON; variants of question ID are "ID-..."
  TextFlint, our own    ori_X.json and trans_X.json, JSON lines in one order
  PAWS, HANS            TSV

or data sets with such columns as hf:NAME. A question of AddSent counts by its
worst variant (https://arxiv.org/abs/1707.07328); HANS has neutral and
contradiction in one class (https://arxiv.org/abs/1902.01007).
"""

import dataclasses
import itertools
import json
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import atomic_file, disk_errors
from truenegs_jax.tasks import records, squad
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks.task import NLI, PAIR, SPANS, Example, Question, Task

ORIGINAL = "original"  # the sides of a set
TRANSFORMED = "transformed"
# Columns of texts and labels besides those of the task's own files.
PAIRS = (("premise", "hypothesis"), PAIR, ("question1", "question2"))
SINGLE = (("sentence",), ("x",))
LABELS = ("gold_label", "label", "y")
KEYS = ("sample_id", "pairID", "idx", "id")
NON_ENTAILMENT = "non-entailment"  # of HANS
NLI_MERGED = dict.fromkeys(("neutral", "contradiction"), NON_ENTAILMENT)
TEXTFLINT = ("ori_", "trans_")  # begin the names of its files


@dataclasses.dataclass(frozen=True)
class EvalSet:
  """Transformed examples, with what they are scored against."""

  name: str  # in the config and in results
  title: str  # in tables
  original: Sequence[Any]  # N examples before the change, or none
  transformed: Sequence[Any]  # the N changed ones, unless there are `variants`
  about: Mapping[str, Any]  # source, or seed, resources and counts; for JSON
  # For each original, the indices of its variants in `transformed`; the worst
  # counts, or the original again if there are none. Empty if each example
  # stands for itself.
  variants: Sequence[Sequence[int]] = ()
  # Classes of the model -> class of the set.
  merged: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def sides(self) -> dict[str, Sequence[Any]]:
    """Both sequences of examples, by name."""
    return {ORIGINAL: self.original, TRANSFORMED: self.transformed}

  @property
  def size(self) -> int:
    """Number of scored questions."""
    return len(self.variants or self.transformed)


def save_set(examples: EvalSet, folder: pathlib.Path) -> None:
  """Writes the two files of a transformed set, as TextFlint does."""
  with disk_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
  for start, rows in zip(TEXTFLINT, examples.sides.values(), strict=True):
    with atomic_file(folder / f"{start}{examples.name}.json") as file:
      file.writelines(f"{line}\n".encode() for line in map(_to_json, rows))


def _to_json(example: Question | Example) -> str:
  fields: dict[str, Any]
  if isinstance(example, Question):
    fields = {
      "context": example.context,
      "question": example.text,
      "answers": [{"text": t, "answer_start": i} for t, i in example.answers],
      "title": "",
      "is_impossible": False,
    }
  else:
    columns = ("sentence",) if example.second is None else PAIR
    fields = dict(zip(columns, example.texts, strict=True))
    fields["label"] = example.gold
  fields["sample_id"] = example.key
  return json.dumps(fields, ensure_ascii=False)


def find_name(where: str) -> str:
  """Returns the name of a published set without TextFlint's marks.

  "trans_AddSentDiverse_300.json" is AddSentDiverse, "hf:NAME/adv_glue" is
  adv_glue.
  """
  name = pathlib.PurePath(where.removeprefix(records.HUB)).name
  return re.sub(r"^(ori|trans)_|(_\d+)?\.\w+(\.\w+)?$", "", name)


def read_published(name: str, where: str, task: Task) -> EvalSet:
  """Reads a published set (a file or hf:NAME) for a model of a task."""
  path = pathlib.Path(where).expanduser()
  original: Sequence[Any] = []
  variants: Sequence[Sequence[int]] = []
  if path.name.startswith(TEXTFLINT):
    original, transformed = _read_pair(path, task)
  elif task.kind == SPANS:
    questions = squad.read_squad(where, split="dev")
    original, transformed, variants = _group_variants(questions)
  elif where.startswith(records.HUB):
    transformed = _to_examples(records.read_dataset(where, split="dev"), task)
  else:
    transformed = _to_examples(records.read_file(where), task)
  is_hans = any(x.gold == NON_ENTAILMENT for x in transformed)
  merged = NLI_MERGED if is_hans and task.labels == NLI else {}
  about = {"source": where}
  return EvalSet(name, name, original, transformed, about, variants, merged)


def _read_pair(path: pathlib.Path, task: Task) -> list[list[Any]]:
  """Reads the samples of both of TextFlint's files, of which `path` is one."""
  rest = path.name.partition("_")[2]
  pair = [path.with_name(f"{start}{rest}") for start in TEXTFLINT]
  sides = [_to_examples(records.read_file(x), task) for x in pair]
  keys = itertools.zip_longest(*([x.key for x in rows] for rows in sides))
  for line, (key, other) in enumerate(keys, start=1):
    if key != other:
      raise DataError(
        f"{pair[1]}: sample {line} has the id {other!r}, but {pair[0].name} has"
        f" {key!r} there. Use the two files of one run."
      )
  return sides


def _group_variants(
  questions: Sequence[Question],
) -> tuple[list[Question], list[Question], list[list[int]]]:
  """Returns originals, their variants, and the indices of each one's."""
  base = {q.key: q.key.partition("-")[0] for q in questions}
  variants = {
    key: list[int]() for key, x in base.items() if x not in base or x == key
  }
  transformed = [q for q in questions if q.key not in variants]
  if not transformed:
    return [], list(questions), []
  for i, question in enumerate(transformed):
    variants[base[question.key]].append(i)
  original = [q for q in questions if q.key in variants]
  return original, transformed, list(variants.values())


def _to_examples(rows: Iterable[records.Record], task: Task) -> list[Any]:
  """Converts records of questions or of labeled texts."""
  examples: list[Question | Example] = []
  for number, row in enumerate(rows):
    present = [x for x in KEYS if x in row.fields]
    key = str(row.fields[present[0]] if present else number) or str(number)
    if task.kind == SPANS:
      fields = {**row.fields, "id": key}
      context = row.text("context")
      examples.append(squad.parse_question(row.location, context, fields))
    else:
      examples.append(_read_text(key, row, task))
  return examples


def _read_text(key: str, row: records.Record, task: Task) -> Example:
  """Reads a labeled text from the first columns of texts that are there."""
  choices = (task.columns, *(PAIRS if len(task.columns) > 1 else SINGLE))
  present = [x for x in choices if set(x) <= row.fields.keys()]
  first, *others = map(row.text, (present or choices)[0])
  second = others[0] if others else None
  names = (task.label_column, *LABELS)
  column = next((x for x in names if x in row.fields), "label")
  labels = task.labels
  value = row.value(column)
  if labels == NLI:
    labels = (*labels, NON_ENTAILMENT)
  elif value == NON_ENTAILMENT and set(labels) == set(task_lib.ENTAILMENT):
    value = "not_entailment"
  elif str(value) not in labels:
    value = task_lib.HUB_LABELS.get(str(value), value)
  row = row._replace(fields=row.fields | {column: value})
  label = row.label(column, task.kind, labels=labels)
  return Example(key, first, second, label, row.location)
