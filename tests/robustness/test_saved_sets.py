"""Tests saved transformed sets: read again as written, damage is refused."""

import dataclasses
import json

import pytest

from truenegs_jax.robustness import saved_sets
from truenegs_jax.robustness.transformation import TransformedSet
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.tasks.squad import Question
from truenegs_jax.tasks.task import Example

QUESTION = Question("q\u2028", "Who?", "“Ann”\nwon.", (("Ann", 1),), "")
MOVED = dataclasses.replace(QUESTION, context="So Ann", answers=(("Ann", 3),))
TEXTS = [
  Example("1", "a", "b", "yes", ""),
  Example("2", "a", None, 3.5, ""),
  Example("3", "a", None, None, ""),
]
COUNTS = {"the text is blank": 2}


def make_set(original, transformed):
  header = ("typos", "Typos", {"synonyms": "WordNet"}, 3)
  return TransformedSet(*header, original, transformed, COUNTS)


def without_locations(result):
  changes = {
    name: [dataclasses.replace(x, location="") for x in getattr(result, name)]
    for name in ("original", "transformed")
  }
  return dataclasses.replace(result, **changes)


@pytest.mark.parametrize(
  ("original", "transformed"),
  [([QUESTION], [MOVED]), (TEXTS, TEXTS), ([], [])],
  ids=["questions", "texts", "empty"],
)
def test_sets_are_read_as_written(tmp_path, original, transformed):
  result = make_set(original, transformed)
  folder = tmp_path / "sets/typos"
  for _ in range(2):  # the second replaces the first
    saved_sets.save_set(result, folder)
  assert without_locations(saved_sets.load_set(folder)) == result
  header = json.loads((folder / "set.json").read_text())
  assert header["tried"] == len(original) + 2
  assert header["changed"] == len(original)
  assert not list(folder.glob("*.tmp"))


def cut(path):
  path.write_text(path.read_text()[:-9])


def drop_line(path):
  path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def move_answer(path):
  path.write_text(path.read_text().replace("So Ann", "So Bob"))


@pytest.mark.parametrize(
  ("name", "damage", "message"),
  [
    ("set.json", cut, "missing or damaged"),
    ("set.json", lambda path: path.unlink(), "missing or damaged"),
    ("original.jsonl", lambda path: path.unlink(), "there is no such file"),
    ("original.jsonl", drop_line, "1 and 2 examples"),
    ("transformed.jsonl", cut, "transformed.jsonl:2: invalid JSON"),
    ("transformed.jsonl", move_answer, "question b: the answer 'Ann' does not"),
  ],
)
def test_damaged_sets_are_refused(tmp_path, name, damage, message):
  original = [dataclasses.replace(QUESTION, key=key) for key in "ab"]
  transformed = [original[0], dataclasses.replace(MOVED, key="b")]
  saved_sets.save_set(make_set(original, transformed), tmp_path / "set")
  damage(tmp_path / "set" / name)
  with pytest.raises(DataError, match=message):
    saved_sets.load_set(tmp_path / "set")
