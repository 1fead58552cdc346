"""Saves transformed sets, one JSON object per line as TextFlint does.

A folder has `original.jsonl` and `transformed.jsonl`, whose lines correspond,
and `set.json` with all else of the set and its counts.
"""

import json
import pathlib
from typing import Any

from truenegs_jax.robustness.transformation import TransformedSet
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import atomic_file, atomic_folder, disk_errors
from truenegs_jax.tasks import records
from truenegs_jax.tasks.records import Record
from truenegs_jax.tasks.squad import Question, parse_question
from truenegs_jax.tasks.task import Example

FIELDS = ("name", "title", "resources", "seed", "refused")
ORIGINAL, TRANSFORMED, HEADER = (
  "original.jsonl",
  "transformed.jsonl",
  "set.json",
)


def save_set(result: TransformedSet, folder: pathlib.Path) -> None:
  """Writes a set into a folder, which is replaced.

  Raises:
    DiskError: it cannot be written.
  """
  header = {field: getattr(result, field) for field in FIELDS}
  header |= {"tried": result.tried, "changed": len(result.original)}
  with disk_errors(folder):
    folder.parent.mkdir(parents=True, exist_ok=True)
  with atomic_folder(folder) as partial:
    for name, lines in (
      (ORIGINAL, map(_to_json, result.original)),
      (TRANSFORMED, map(_to_json, result.transformed)),
      (HEADER, [json.dumps(header, indent=2)]),
    ):
      with atomic_file(partial / name) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


def load_set(folder: pathlib.Path) -> TransformedSet:
  """Reads a set that `save_set` wrote.

  Raises:
    DataError: a file is missing or damaged, or the two do not correspond.
  """
  try:
    header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
    fields = {field: header[field] for field in FIELDS}
    changed = header["changed"]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise DataError(
      f"'{folder / HEADER}' is missing or damaged ({error}). Remove the folder,"
      " and run the same command again."
    ) from error
  original, transformed = (
    _read_examples(folder / name) if changed else []
    for name in (ORIGINAL, TRANSFORMED)
  )
  keys, others = ([x.key for x in part] for part in (original, transformed))
  if keys != others or len(keys) != changed:
    raise DataError(
      f"'{folder}': {ORIGINAL} and {TRANSFORMED} have {len(keys):,} and"
      f" {len(others):,} examples, or in another order, not the {changed:,} of"
      f" {HEADER}. Remove the folder, and run the same command again."
    )
  return TransformedSet(**fields, original=original, transformed=transformed)


def read_question(record: Record) -> Question:
  """Returns the question of an object in TextFlint's form.

  Raises:
    DataError: see `read_squad`; or there is no context.
  """
  key = str(record.value("sample_id"))
  context = record.text("context")
  return parse_question(record.location, context, {**record.fields, "id": key})


def _read_examples(path: pathlib.Path) -> list[Question | Example]:
  return [
    read_question(record) if "question" in record.fields else _text(record)
    for record in records.read_file(path)
  ]


def _text(record: Record) -> Example:
  return Example(
    key=str(record.value("sample_id")),
    first=record.text("first"),
    second=record.text("second") if record.value("second") else None,
    label=record.value("label"),
    location=record.location,
  )


def _to_json(example: Question | Example) -> str:
  if isinstance(example, Example):
    fields: dict[str, Any] = {"first": example.first, "second": example.second}
    fields |= {"label": example.label}
  else:
    fields = {"context": example.context, "question": example.text}
    pairs = example.answers
    fields["answers"] = [{"text": t, "answer_start": i} for t, i in pairs]
    fields |= {"title": "", "is_impossible": False}
  return json.dumps({**fields, "sample_id": example.key}, ensure_ascii=False)
