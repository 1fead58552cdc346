"""Sets to score on: our own, which are saved, and those of others.

TextFlint's sets and ours are two files, ori_X.json and trans_X.json: JSON lines
in one order. Any other file or data set of SQuAD's form has no originals.
"""

import dataclasses
import itertools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import atomic_file, disk_errors
from truenegs_jax.tasks import records, squad
from truenegs_jax.tasks.task import Question

ORIGINAL = "original"  # the sides of a set
TRANSFORMED = "transformed"
TEXTFLINT = ("ori_", "trans_")  # begin the names of its files


@dataclasses.dataclass(frozen=True)
class EvalSet:
  """Transformed questions, with what they are scored against."""

  name: str  # in the config and in results
  title: str  # in tables
  original: Sequence[Question]  # N before the change, or none
  transformed: Sequence[Question]  # the N changed ones
  about: Mapping[str, Any]  # source, or seed, resources and counts; for JSON

  @property
  def sides(self) -> dict[str, Sequence[Question]]:
    """The questions of both sides, if there are any, by name."""
    sides = {ORIGINAL: self.original, TRANSFORMED: self.transformed}
    return {side: questions for side, questions in sides.items() if questions}


def save_set(x: EvalSet, folder: pathlib.Path) -> None:
  """Writes the two files of a transformed set, as TextFlint does."""
  with disk_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
  for start, questions in zip(
    TEXTFLINT, (x.original, x.transformed), strict=True
  ):
    with atomic_file(folder / f"{start}{x.name}.json") as file:
      for question in questions:
        line = json.dumps(_to_json(question))  # may have lone surrogates
        file.write(f"{line}\n".encode())


def _to_json(question: Question) -> dict[str, Any]:
  return {
    "context": question.context,
    "question": question.text,
    "answers": [{"text": t, "answer_start": i} for t, i in question.answers],
    "title": "",
    "is_impossible": False,
    "sample_id": question.key,
  }


def find_name(where: str) -> str:
  """Returns the name of a published set without TextFlint's marks.

  "trans_AddSentDiverse_300.json" is AddSentDiverse, "hf:NAME/adversarial_qa" is
  adversarial_qa.
  """
  name = pathlib.PurePath(where.removeprefix(records.HUB)).name
  return re.sub(r"^(ori|trans)_|(_\d+)?\.\w+(\.\w+)?$", "", name)


def read_published(name: str, where: str) -> EvalSet:
  """Reads a published set, a file or hf:NAME."""
  original: Sequence[Question] = []
  path = pathlib.Path(where).expanduser()
  if path.name.startswith(TEXTFLINT):
    original, transformed = _read_pair(path)
  else:
    transformed = squad.read_squad(where, split="dev")
  return EvalSet(name, name, original, transformed, {"source": where})


def _read_pair(path: pathlib.Path) -> list[list[Question]]:
  """Reads the questions of both TextFlint's files, of which `path` is one."""
  rest = path.name.partition("_")[2]
  pair = [path.with_name(f"{start}{rest}") for start in TEXTFLINT]
  sides = [squad.read_squad(str(x)) for x in pair]
  keys = itertools.zip_longest(*([x.key for x in rows] for rows in sides))
  for line, (key, other) in enumerate(keys, start=1):
    if key != other:
      raise DataError(
        f"{pair[1]}: sample {line} has the id {other!r}, but {pair[0].name} has"
        f" {key!r} there. Use the two files of one run."
      )
  return sides
