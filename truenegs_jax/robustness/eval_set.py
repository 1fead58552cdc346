"""Sets to score on: our own, saved in a folder, and those of others.

Our transformed sets are saved as one JSON object per line in `original.jsonl`
and `transformed.jsonl`, whose lines correspond, and `set.json` with the title,
the seed, what was used and the counts. Published sets are read as they are:

  AddSent, AddOneSent   SQuAD's JSON; variants of question ID are "ID-..."
  TextFlint             ori_X.json and trans_X.json, JSON lines in one order
  AdvGLUE               JSON: records by task
  PAWS, HANS            TSV

or data sets with such columns as hf:NAME. Jia & Liang 2017
(https://arxiv.org/abs/1707.07328) score a question by its worst variant; McCoy
et al. 2019 (https://arxiv.org/abs/1902.01007) count neutral and contradiction
as non-entailment.
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from truenegs_jax.config import grammar
from truenegs_jax.data.corpus import files
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.files import atomic_file, atomic_folder, disk_errors
from truenegs_jax.tasks import glue, records, squad
from truenegs_jax.tasks.records import Record
from truenegs_jax.tasks.squad import Question
from truenegs_jax.tasks.task import SCORE, SPANS, Example, Task

ORIGINAL, TRANSFORMED = "original", "transformed"  # the sides of a set
HEADER = "set.json"
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
TEXTFLINT = ("ori_", "trans_")  # begin the names of its files


@dataclasses.dataclass(frozen=True)
class EvalSet:
  """Transformed examples, with what they are scored against.

  Attributes:
    name: name in the config and in results.
    title: name in tables.
    original: N examples before the change; empty if the set has none.
    transformed: M examples; the N changed ones, unless there are `variants`.
    about: source, or seed, resources and counts; in JSON's types, for results.
    variants: for each of the N originals, the indices of its variants in
      `transformed`, whose worst counts; if there are none, the original counts
      again. Empty if each example stands for itself.
    merged: classes of the model -> class of the set.
  """

  name: str
  title: str
  original: Sequence[Any]
  transformed: Sequence[Any]
  about: Mapping[str, Any]
  variants: Sequence[Sequence[int]] = ()
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
  """Writes a transformed set into a folder, which is replaced."""
  header = {"title": examples.title, **examples.about}
  files = {HEADER: [json.dumps(header, indent=2)]}
  for side, rows in examples.sides.items():
    files[f"{side}.jsonl"] = [*map(_to_json, rows)]
  with disk_errors(folder):
    folder.parent.mkdir(parents=True, exist_ok=True)
  with atomic_folder(folder) as partial:
    for name, lines in files.items():
      with atomic_file(partial / name) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


def _to_json(example: Question | Example) -> str:
  fields: dict[str, Any]
  if isinstance(example, Question):
    answers = [{"text": t, "answer_start": i} for t, i in example.answers]
    fields = {"context": example.context, "question": example.text}
    fields |= {"answers": answers, "title": "", "is_impossible": False}
  elif example.second is None:
    fields = {"sentence": example.first, "label": example.label}
  else:
    pair = zip(glue.PAIR, (example.first, example.second), strict=True)
    fields = {**dict(pair), "label": example.label}
  return json.dumps({**fields, "sample_id": example.key}, ensure_ascii=False)


def parse_files(text: str) -> dict[str, str]:
  """Parses `robustness.files`, "NAME=FILE NAME='hf:NAME split=S'"."""
  item = grammar.parse_item(text, key="robustness.files")
  if item.name or not all(item.options.values()):
    raise InputError(
      f"robustness.files={text!r} is not of the form NAME=FILE. Set"
      " --config.robustness.files='NAME=FILE NAME=FILE'."
    )
  return item.options


def read_published(
  name: str, where: str, task: Task, columns: Sequence[str]
) -> EvalSet:
  """Reads a published set, in the form that its name and content show.

  Args:
    name: its name in results; of a set of AdvGLUE also "mnli-mm".
    where: a file, a folder sets/NAME or hf:NAME.
    task: the model's task.
    columns: names of the task's columns of texts.

  Raises:
    DataError: it is missing, damaged or for another task. The message names
      file and line or id.
  """
  path = pathlib.Path(where).expanduser()
  if path.is_dir():
    return read_saved(name, path, task, columns)
  moved: list[str] = []
  original: Sequence[Any] = ()
  variants: Sequence[Sequence[int]] = ()
  if path.name.startswith(TEXTFLINT):
    rest = path.name.partition("_")[2]
    pair = [path.with_name(start + rest) for start in TEXTFLINT]
    original, transformed = _read_pair(pair, task, columns, moved)
  else:
    transformed = _read_unpaired(name, where, task, columns, moved)
    if task.kind == SPANS:
      original, transformed, variants = _group_variants(transformed)
  about = {"source": where}
  if moved:
    about["note"] = f"{len(moved):,} {squad.MOVED}, the first in {moved[0]}"
  is_hans = task.labels == glue.NLI and NON_ENTAILMENT in {
    x.label for x in transformed
  }
  merged = NLI_MERGED if is_hans else {}
  return EvalSet(name, name, original, transformed, about, variants, merged)


def read_saved(
  name: str, folder: pathlib.Path, task: Task, columns: Sequence[str]
) -> EvalSet:
  """Reads a set that `save_set` wrote.

  Raises:
    DataError: it is damaged, or its two files do not correspond.
  """
  fix = "Pass a folder sets/NAME, or remove it and run its command again."
  with json_text.read_file(folder / HEADER, DataError, fix) as about:
    title, changed = about.pop("title"), about["changed"]
  pair = [folder / f"{side}.jsonl" for side in (ORIGINAL, TRANSFORMED)]
  rows = _read_pair(pair, task, columns, []) if changed else ([], [])
  return EvalSet(name, title, *rows, about)


def _read_pair(
  pair: Sequence[pathlib.Path],
  task: Task,
  columns: Sequence[str],
  moved: list[str],
) -> tuple[list[Any], list[Any]]:
  """Reads the files of original and of transformed samples."""
  original, transformed = (
    _to_examples(records.read_file(path), task, columns, moved) for path in pair
  )
  keys, others = ([x.key for x in part] for part in (original, transformed))
  if keys != others:
    lines = enumerate(itertools.zip_longest(keys, others), start=1)
    line, ids = next((n, ids) for n, ids in lines if ids[0] != ids[1])
    raise DataError(
      f"{pair[1]}: sample {line} has the id {ids[1]!r}, but {pair[0].name} has"
      f" {ids[0]!r} there. Use the two files of one run."
    )
  return original, transformed


def _read_unpaired(
  name: str,
  where: str,
  task: Task,
  columns: Sequence[str],
  moved: list[str],
) -> list[Any]:
  """Reads a data set or a file in the form that its content shows."""
  rows: Iterable[Record]
  if where.startswith(records.HUB):
    rows = list(records.read_dataset(where, split="dev"))
    is_squad = "context" in rows[0].fields
  elif (path := files.find_existing(where)) is None:
    raise DataError(f"{where}: there is no such file. Check robustness.files.")
  elif files.stat_file(path).suffix == ".json":
    content = squad.load_json(where)
    is_squad = "data" in content
    rows = [] if is_squad else _advglue_records(name, where, content, task)
  else:
    rows, is_squad = records.read_file(path), False
  if is_squad:
    _check_kind(where, task, has_questions=True)
    return squad.read_squad(where, split="dev", moved=moved)
  return _to_examples(rows, task, columns, moved)


def _group_variants(
  questions: Sequence[Question],
) -> tuple[list[Question], list[Question], list[list[int]]]:
  """Returns originals, their variants, and the indices of each one's."""
  keys = {q.key for q in questions}
  base = {q.key: q.key.partition("-")[0] for q in questions}
  transformed = [q for q in questions if base[q.key] in keys - {q.key}]
  if not transformed:
    return [], list(questions), []
  original = [q for q in questions if base[q.key] not in keys - {q.key}]
  variants: dict[str, list[int]] = {q.key: [] for q in original}
  for i, question in enumerate(transformed):
    variants[base[question.key]].append(i)
  return original, transformed, list(variants.values())


def _check_kind(where: str, task: Task, *, has_questions: bool) -> None:
  if has_questions != (task.kind == SPANS):
    kinds = ("labeled texts", "questions on contexts")
    raise DataError(
      f"{where}: {kinds[has_questions]}, but the model's task is {task.title}."
      f" Choose a set of {kinds[not has_questions]}, or another model."
    )


def _advglue_records(
  name: str, where: str, by_task: dict[str, Any], task: Task
) -> Iterator[Record]:
  chosen = name if name in by_task else task.name
  rows = by_task.get(chosen)
  are_rows = isinstance(rows, list) and all(isinstance(x, dict) for x in rows)
  if not (rows and are_rows):
    raise DataError(
      f"{where}: no records of {task.title}. The file has"
      f" {', '.join(list(by_task)[:8]) or 'no sets'}. Name the set, as in"
      " --config.robustness.files=mnli-mm=FILE, or choose another file."
    )
  labels = HUB_CLASSES.get(task.name, task.labels)
  classes = {str(i): label for i, label in enumerate(labels)}
  for number, row in enumerate(rows, start=1):
    label = row.get("label")
    fields = {**row, "label": classes.get(str(label), label)}
    yield Record(f"{where}: {chosen}, record {number}", fields)


def _to_examples(
  rows: Iterable[Record], task: Task, columns: Sequence[str], moved: list[str]
) -> list[Any]:
  """Converts records of questions or of labeled texts; keys are unique."""
  examples: dict[str, Question | Example] = {}
  for number, row in enumerate(rows):
    _check_kind(row.location, task, has_questions="context" in row.fields)
    key = next((str(row.fields[x]) for x in KEYS if x in row.fields), "")
    key = key or str(number)
    if key in examples:
      raise DataError(
        f"{row.location}: the id {key!r} is already in"
        f" {examples[key].location}. Give each row a unique id."
      )
    if task.kind == SPANS:
      fields, context = {**row.fields, "id": key}, row.text("context")
      question = squad.parse_question(row.location, context, fields, moved)
      examples[key] = question
    else:
      examples[key] = _read_text(key, row, task, columns)
  return list(examples.values())


def _read_text(
  key: str, row: Record, task: Task, columns: Sequence[str]
) -> Example:
  choices = (tuple(columns), *(PAIRS if len(columns) > 1 else SINGLE))
  present = [x for x in choices if set(x) <= row.fields.keys()]
  first, second, *_ = (*map(row.text, (present or choices)[0]), None)
  label = _read_label(row, task)
  return Example(key, first, second, label, row.location)


def _read_label(row: Record, task: Task) -> str | float:
  column = next((x for x in LABELS if x in row.fields), LABELS[1])
  if task.kind == SCORE:
    return row.label(column, SCORE)
  value, allowed = str(row.value(column)), task.labels
  if allowed == glue.NLI:
    allowed = (*allowed, NON_ENTAILMENT)
  elif value == NON_ENTAILMENT and set(glue.ENTAILMENT) == set(allowed):
    value = "not_entailment"
  elif value not in allowed:
    value = glue.HUB_LABELS.get(value, value)
  fields = {**row.fields, column: value}
  return row._replace(fields=fields).label(column, task.kind, labels=allowed)
