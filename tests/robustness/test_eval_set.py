"""Published sets are read in their own forms, and refused with file and id."""

import dataclasses

import pytest

from support.texts import write_lines
from truenegs_jax.robustness.eval_set import (
  EvalSet,
  find_name,
  read_published,
  save_set,
)
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.tasks.task import Question


def read(path):
  return read_published("set", str(path))


def textflint_row(key, context="Denver won.", start=0):
  answers = [{"text": "Denver", "answer_start": start}]
  row = {"context": context, "question": "Who won?", "answers": answers}
  return row | {"title": "t", "is_impossible": False, "sample_id": key}


ROW = textflint_row(3)


def test_textflint_pairs_are_read_from_either_file(tmp_path):
  write_lines(tmp_path / "ori_X_2.json", [ROW, textflint_row(5)])
  changed = [textflint_row(k, "Oh, Denver won.", 4) for k in (3, 5)]
  write_lines(tmp_path / "trans_X_2.json", changed)
  for name in ("ori_X_2.json", "trans_X_2.json"):
    result = read(tmp_path / name)
    assert [q.key for q in result.original] == ["3", "5"]
    assert result.original[0].context == "Denver won."
    assert result.transformed[1].answers == (("Denver", 4),)
  alone = read((tmp_path / "trans_X_2.json").rename(tmp_path / "X.json"))
  assert not alone.original and alone.transformed[0].key == "3"


@pytest.mark.parametrize(
  ("where", "name"),
  [
    ("sets/trans_AddSentDiverse_300.json", "AddSentDiverse"),
    ("sample1k-HCVerifyAll.json.xz", "sample1k-HCVerifyAll"),
    ("hf:UCLNLP/adversarial_qa", "adversarial_qa"),
  ],
)
def test_published_sets_have_the_names_of_their_files(where, name):
  assert find_name(where) == name


def test_saved_sets_are_read_as_written(tmp_path):
  question = Question("q\u2028", "Who?", "“Ann”\nwon.", (("Ann", 1),), "")
  moved = dataclasses.replace(question, context="So Ann", answers=(("Ann", 3),))
  saved = EvalSet("swap", "Swap", [question], [moved], {})
  for _ in range(2):  # the second replaces the first
    save_set(saved, tmp_path / "sets")
  result = read(tmp_path / "sets/trans_swap.json")
  for side, questions in result.sides.items():
    read_back = [dataclasses.replace(x, location="") for x in questions]
    assert read_back == saved.sides[side]


@pytest.mark.parametrize(
  ("rows", "message"),
  [
    ([ROW], r"trans_A\.json: sample 2 has the id None, but ori_A\.json has"),
    ([textflint_row(4), ROW], "sample 1 has the id '4', but .* has '3' there"),
    (
      [{**ROW, "context": "x"}, textflint_row(4)],
      r"trans_A\.json:1, .*'Denver' does not occur",
    ),
  ],
)
def test_wrong_pairs_are_refused_with_their_sample(tmp_path, rows, message):
  write_lines(tmp_path / "ori_A.json", [ROW, textflint_row(4)])
  path = write_lines(tmp_path / "trans_A.json", rows)
  with pytest.raises(DataError, match=message):
    read(path)
