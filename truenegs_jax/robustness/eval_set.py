"""A set to score on: transformed examples and, if it has any, originals.

Transformed sets are saved in a folder, one JSON object per line as TextFlint
does: `original.jsonl` and `transformed.jsonl`, whose lines correspond, and
`set.json` with the title, the seed, what was used and the counts.
`published_sets.read_saved` reads them.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from truenegs_jax.runtime.files import atomic_file, atomic_folder, disk_errors
from truenegs_jax.tasks import glue
from truenegs_jax.tasks.squad import Question
from truenegs_jax.tasks.task import Example

ORIGINAL, TRANSFORMED = "original", "transformed"  # the sides of a set
HEADER = "set.json"


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
  """Writes a transformed set into a folder, which is replaced.

  Raises:
    DiskError: it cannot be written.
  """
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
