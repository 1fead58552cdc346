"""Reads adversarial sets in the forms in which they are published.

  AddSent, AddOneSent   SQuAD's JSON; variants of question ID are "ID-..."
  TextFlint             ori_X.json and trans_X.json, JSON lines in one order
  AdvGLUE               JSON: records by task
  PAWS, HANS            TSV
  our own               sets/NAME of a workdir

or data sets with such columns as hf:NAME. Jia & Liang 2017
(https://arxiv.org/abs/1707.07328) score a question by its worst variant; McCoy
et al. 2019 (https://arxiv.org/abs/1902.01007) count neutral and contradiction
as non-entailment.
"""

import collections
import json
import pathlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from truenegs_jax.data.corpus import files, lines
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.robustness import saved_sets
from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.tasks import glue, records, squad
from truenegs_jax.tasks.records import Record
from truenegs_jax.tasks.squad import Question
from truenegs_jax.tasks.task import SCORE, SPANS, Example, Task

# The classes by their numbers in AdvGLUE.
HUB_CLASSES = {
  "mnli": ("entailment", "neutral", "contradiction"),
  "qnli": glue.ENTAILMENT,
  "rte": glue.ENTAILMENT,
}
# Columns of texts besides those of the task's own files.
PAIRS = (("premise", "hypothesis"), glue.PAIR, ("question1", "question2"))
SINGLE = (("sentence",), ("x",))
LABELS = ("gold_label", "label", "y")
KEYS = ("sample_id", "pairID", "idx", "id")
NON_ENTAILMENT = "non-entailment"  # of HANS
NLI_MERGED = dict.fromkeys(("neutral", "contradiction"), NON_ENTAILMENT)
TRANSFORMED, ORIGINAL = "trans", "ori"  # in TextFlint's file names


def parse_files(text: str) -> dict[str, str]:
  """Parses `robustness.files`, "NAME=FILE NAME=hf:NAME": file by name."""
  parsed: dict[str, str] = {}
  for entry in shlex.split(text):
    name, _, where = entry.partition("=")
    if not where or not name or "/" in name or name in parsed:
      raise InputError(
        f"robustness.files: {entry!r} is not of the form NAME=FILE, or its name"
        " is repeated. Set --config.robustness.files='NAME=FILE NAME=FILE'."
      )
    parsed[name] = where
  return parsed


def read_published(
  name: str, where: str, task: Task, columns: Sequence[str]
) -> EvalSet:
  """Reads a published set, in the form that its content shows.

  Args:
    name: its name in results; of a set of AdvGLUE also "mnli-mm".
    where: a file, a folder sets/NAME or hf:NAME.
    task: the model's task.
    columns: names of the task's columns of texts.

  Raises:
    DataError: there is no such file; it is damaged or for another task; a
      question has no answer, or one that does not occur in its context; a label
      is unknown. The message names file and line or id.
  """
  path = pathlib.Path(where).expanduser()
  rows: Iterable[Record]
  if where.startswith(records.HUB):
    rows = list(records.read_dataset(where, split="dev"))
    if "context" in rows[0].fields:
      return _read_squad(name, where, task)
  elif path.is_dir():
    result = saved_sets.load_set(path)
    is_question = any(isinstance(x, Question) for x in result.original)
    _check_kind(where, task, has_questions=is_question)
    return EvalSet.from_transformed(name, result)
  elif (file := files.find_existing(path)) is None:
    raise DataError(f"{where}: there is no such file. Check robustness.files.")
  elif files.stat_file(file).suffix not in (".json", ".jsonl"):
    rows = records.read_file(path)
  elif _has_samples(file):
    return _read_textflint(name, path, task, columns)
  else:
    content = squad.load_json(where)
    if isinstance(content, dict) and "data" in content:
      return _read_squad(name, where, task)
    rows = _advglue_records(name, where, content, task)
  examples = _texts(rows, task, columns)
  has_two = task.labels == glue.NLI and NON_ENTAILMENT in {
    x.label for x in examples
  }
  return EvalSet.paired(
    name,
    name,
    (),
    examples,
    merged=NLI_MERGED if has_two else {},
    about={"source": where},
  )


def _has_samples(path: pathlib.Path) -> bool:
  """Whether a JSON file has a sample in each line, as TextFlint's have."""
  reader = lines.read_records(files.stat_file(path), ReadState())
  try:
    first = json.loads(next(reader, ""))
  except (ValueError, RecursionError):
    return False
  if not isinstance(first, dict) or "data" in first:
    return False
  return any(isinstance(x, str) for x in first.values())


def _check_kind(where: str, task: Task, *, has_questions: bool) -> None:
  if has_questions != (task.kind == SPANS):
    kinds = ("labeled texts", "questions on contexts")
    raise DataError(
      f"{where}: {kinds[has_questions]}, but the model's task is {task.title}."
      f" Choose a set of {kinds[not has_questions]}, or another model."
    )


def _read_squad(name: str, where: str, task: Task) -> EvalSet:
  """Reads SQuAD's form, and groups the variants of a question."""
  _check_kind(where, task, has_questions=True)
  moved = collections.Counter[str]()
  questions = squad.read_squad(where, split="dev", anomalies=moved)
  about = {"source": where, "notes": dict(moved)}
  base = {q.key: q.key.partition("-")[0] for q in questions}
  original = [q for q in questions if base[q.key] not in base.keys() - {q.key}]
  if len(original) == len(questions):
    return EvalSet.paired(name, name, (), questions, about=about)
  transformed = [q for q in questions if base[q.key] in base.keys() - {q.key}]
  variants: dict[str, list[int]] = {q.key: [] for q in original}
  for i, question in enumerate(transformed):
    variants[base[question.key]].append(i)
  return EvalSet(
    name, name, original, transformed, list(variants.values()), about=about
  )


def _read_textflint(
  name: str, path: pathlib.Path, task: Task, columns: Sequence[str]
) -> EvalSet:
  """Reads TextFlint's file of transformed samples and the one beside it."""
  pair = [
    path.with_name(path.name.replace(TRANSFORMED, new, 1))
    if TRANSFORMED in path.name
    else path.with_name(path.name.replace(ORIGINAL, new, 1))
    for new in (ORIGINAL, TRANSFORMED)
  ]
  if pair[0] == pair[1]:
    raise DataError(
      f"{path}: TextFlint's pairs are ori_X.json and trans_X.json, but this is"
      " neither. Rename both files."
    )
  original, transformed = (
    _read_lines(file, task, columns) for file in map(str, pair)
  )
  keys, others = ([x.key for x in part] for part in (original, transformed))
  if keys != others:
    both = zip(keys, others, strict=False)
    same = next((i for i, (a, b) in enumerate(both) if a != b), 0)
    raise DataError(
      f"{pair[1]}: {len(others):,} samples, but {pair[0].name} has"
      f" {len(keys):,}, or they are in another order from line {same + 1} on."
      " Use the two files of one run of TextFlint."
    )
  about = {"source": str(path)}
  return EvalSet.paired(name, name, original, transformed, about=about)


def _read_lines(path: str, task: Task, columns: Sequence[str]) -> list[Any]:
  rows = list(records.read_file(path))
  _check_kind(path, task, has_questions="context" in rows[0].fields)
  if task.kind == SPANS:
    return [saved_sets.read_question(row) for row in rows]
  return _texts(rows, task, columns)


def _advglue_records(
  name: str, where: str, content: Any, task: Task
) -> Iterator[Record]:
  by_task = content if isinstance(content, dict) else {}
  chosen = name if name in by_task else task.name
  rows = by_task.get(chosen)
  if not (isinstance(rows, list) and rows and isinstance(rows[0], dict)):
    raise DataError(
      f"{where}: no records of {task.title}. The file has"
      f" {', '.join(list(by_task)[:8]) or 'no sets'}. Name the set, as in"
      " --config.robustness.files=mnli-mm=FILE, or choose another file."
    )
  classes = dict(enumerate(HUB_CLASSES.get(task.name, task.labels)))
  for number, row in enumerate(rows, start=1):
    label = row.get("label")
    fields = {**row, "label": classes.get(label, label)}
    yield Record(f"{where}: {chosen}, record {number}", fields)


def _texts(
  rows: Iterable[Record], task: Task, columns: Sequence[str]
) -> list[Example]:
  """Converts records of labeled texts or pairs; keys are unique."""
  examples: dict[str, Example] = {}
  for number, row in enumerate(rows):
    _check_kind(row.location, task, has_questions="context" in row.fields)
    choices = (tuple(columns), *(PAIRS if len(columns) > 1 else SINGLE))
    present = [x for x in choices if set(x) <= row.fields.keys()]
    texts = [row.text(column) for column in (present or choices)[0]]
    key = next((str(row.fields[x]) for x in KEYS if x in row.fields), "")
    key = key or str(number)
    if key in examples:
      raise DataError(
        f"{row.location}: the id {key!r} is already in"
        f" {examples[key].location}. Give each row a unique id."
      )
    first, second, *_ = (*texts, None)
    label = _read_label(row, task)
    examples[key] = Example(key, str(first), second, label, row.location)
  return list(examples.values())


def _read_label(row: Record, task: Task) -> str | float:
  column = next((x for x in LABELS if x in row.fields), LABELS[1])
  if task.kind == SCORE:
    return row.label(column, SCORE)
  value = str(row.value(column))
  value = glue.HUB_LABELS.get(value, value)
  allowed = task.labels
  if task.labels == glue.NLI:
    allowed = (*allowed, NON_ENTAILMENT)
  elif value == NON_ENTAILMENT and set(glue.ENTAILMENT) == set(allowed):
    value = "not_entailment"
  fields = {**row.fields, column: value}
  return row._replace(fields=fields).label(column, task.kind, labels=allowed)
