"""Sets to score on: our own, which are saved, and those of others.

  AddSent, AddOneSent   SQuAD's JSON; variants of question ID are "ID-..."
  TextFlint, our own    ori_X.json and trans_X.json, JSON lines in one order

or data sets of SQuAD's columns as hf:NAME. A question of AddSent counts by its
worst variant (https://arxiv.org/abs/1707.07328).
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
  # The N changed ones, unless there are `variants`.
  transformed: Sequence[Question]
  about: Mapping[str, Any]  # source, or seed, resources and counts; for JSON
  # For each original, the indices of its variants in `transformed`; the worst
  # counts, or the original again if there are none. Empty if each question
  # stands for itself.
  variants: Sequence[Sequence[int]] = ()

  @property
  def sides(self) -> dict[str, Sequence[Question]]:
    """The questions of both sides, if there are any, by name."""
    sides = {ORIGINAL: self.original, TRANSFORMED: self.transformed}
    return {side: questions for side, questions in sides.items() if questions}

  @property
  def size(self) -> int:
    """Number of scored questions."""
    return len(self.variants or self.transformed)


def save_set(x: EvalSet, folder: pathlib.Path) -> None:
  """Writes the two files of a transformed set, as TextFlint does."""
  with disk_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
  for start, questions in zip(
    TEXTFLINT, (x.original, x.transformed), strict=True
  ):
    with atomic_file(folder / f"{start}{x.name}.json") as file:
      for question in questions:
        line = json.dumps(_to_json(question), ensure_ascii=False)
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
  variants: Sequence[Sequence[int]] = []
  path = pathlib.Path(where).expanduser()
  if path.name.startswith(TEXTFLINT):
    original, transformed = _read_pair(path)
  else:
    questions = squad.read_squad(where, split="dev")
    original, transformed, variants = _group_variants(questions)
  about = {"source": where}
  return EvalSet(name, name, original, transformed, about, variants)


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
