"""Published sets are read in their own forms, and refused with file and id."""

import dataclasses
import json

import datasets
import pytest

from truenegs_jax.robustness.eval_set import (
  EvalSet,
  find_name,
  read_published,
  save_set,
)
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.tasks.task import (
  CLASSES,
  SQUAD,
  TASKS,
  Example,
  Question,
  define_own_task,
)

MNLI, QQP, SST2 = (TASKS[name] for name in ("mnli", "qqp", "sst2"))


def read(path, task=TASKS[SQUAD], name="set"):
  return read_published(name, str(path), task)


def write_squad(path, questions, context="Denver won. Champ lost."):
  """Writes questions by id: text of the answer and answer_start."""
  qas = [
    {
      "id": key,
      "question": "Who won?",
      "answers": [{"text": text, "answer_start": start}],
    }
    for key, (text, start) in questions.items()
  ]
  paragraphs = [{"context": context, "qas": qas}]
  path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}, indent=1))
  return path


def write_lines(path, rows):
  path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
  return path


def write_tsv(path, *rows):
  path.write_text("".join("\t".join(row) + "\n" for row in rows))
  return path


def textflint_row(key, context="Denver won.", start=0):
  answers = [{"text": "Denver", "answer_start": start}]
  return {
    "context": context,
    "question": "Who won?",
    "answers": answers,
    "title": "t",
    "is_impossible": False,
    "sample_id": key,
  }


def test_variants_of_addsent_are_grouped_by_their_question(tmp_path):
  keys = ("a", "a-high-conf-turk0", "b", "a-high-conf-turk1", "c-1")
  path = write_squad(tmp_path / "x.json", dict.fromkeys(keys, ("Denver", 0)))
  result = read(path)
  assert [q.key for q in result.original] == ["a", "b", "c-1"]
  assert [q.key for q in result.transformed] == [keys[1], keys[3]]
  assert result.variants == [[0, 1], [], []]


def test_a_squad_file_without_variants_has_no_originals(tmp_path):
  path = write_squad(tmp_path / "x.json", {"a-1": ("Denver", 3)})
  result = read(path)
  assert not result.original
  assert not result.variants and result.size == 1
  assert result.transformed[0].answers == (("Denver", 0),)  # moved


def test_textflint_files_of_other_names_are_read_alone(tmp_path):
  rows = [textflint_row(3), textflint_row(5, "Oh, Denver won.", 4)]
  result = read(write_lines(tmp_path / "X.json", rows))
  assert [q.key for q in result.transformed] == ["3", "5"]
  assert not result.original and not result.variants
  assert result.transformed[1].answers == (("Denver", 4),)


@pytest.mark.parametrize("prefix", ["ori", "trans"])
def test_textflint_pairs_are_read_from_either_file(tmp_path, prefix):
  write_lines(tmp_path / "ori_X_2.json", [textflint_row(3), textflint_row(5)])
  changed = [textflint_row(k, "Oh, Denver won.", 4) for k in (3, 5)]
  write_lines(tmp_path / "trans_X_2.json", changed)
  result = read(tmp_path / f"{prefix}_X_2.json")
  assert [q.key for q in result.original] == ["3", "5"]
  assert result.original[0].context == "Denver won."
  assert result.transformed[1].answers == (("Denver", 4),)
  assert result.size == 2


@pytest.mark.parametrize(
  ("where", "name"),
  [
    ("sets/trans_AddSentDiverse_300.json", "AddSentDiverse"),
    ("sets/ori_add_sentence.json", "add_sentence"),
    ("sample1k-HCVerifyAll.json.xz", "sample1k-HCVerifyAll"),
    ("hf:AI-Secure/adv_glue", "adv_glue"),
  ],
)
def test_published_sets_have_the_names_of_their_files(where, name):
  assert find_name(where) == name


def test_paws_and_hans_are_tsv(tmp_path):
  paws = write_tsv(
    tmp_path / "dev.tsv",
    ("id", "sentence1", "sentence2", "label"),
    ("1", "A to B.", "B to A.", "0"),
  )
  [example] = read(paws, QQP).transformed
  assert (example.first, example.second) == ("A to B.", "B to A.")
  assert (example.key, example.gold) == ("1", "0")
  hans = write_tsv(
    tmp_path / "hans.tsv",
    ("gold_label", "sentence1", "sentence2", "pairID", "heuristic"),
    ("non-entailment", "A.", "B.", "ex0", "lexical_overlap"),
    ("entailment", "A.", "B.", "ex1", "lexical_overlap"),
  )
  result = read(hans, MNLI)
  assert [x.gold for x in result.transformed] == [
    "non-entailment",
    "entailment",
  ]
  assert set(result.merged) == {"neutral", "contradiction"}
  assert read(hans, TASKS["rte"]).transformed[0].gold == "not_entailment"


def test_your_own_task_is_read_from_its_own_columns(tmp_path):
  """A label is also found in the column that the task trained on."""
  path = write_tsv(tmp_path / "x.tsv", ("query", "intent"), ("Play it.", "b"))
  task = define_own_task(
    text="query", label="intent", kind=CLASSES, labels="a,b"
  )
  [example] = read(path, task).transformed
  assert (example.first, example.gold) == ("Play it.", "b")


QUESTION = Question("q\u2028", "Who?", "“Ann”\nwon.", (("Ann", 1),), "")
MOVED = dataclasses.replace(QUESTION, context="So Ann", answers=(("Ann", 3),))
PAIR = Example("1", "a", "b", "neutral", "")
SINGLE = Example("3", "a", None, "0", "")
SCORED = Example("2", "a", "b", 3.5, "")
STSB = TASKS["stsb"]


@pytest.mark.parametrize(
  ("task", "original", "transformed"),
  [
    (TASKS[SQUAD], [QUESTION], [MOVED]),
    (MNLI, [PAIR], [dataclasses.replace(PAIR, second="c")]),
    (SST2, [SINGLE], [dataclasses.replace(SINGLE, first="c")]),
    (STSB, [SCORED], [dataclasses.replace(SCORED, second="c")]),
  ],
)
def test_saved_sets_are_read_as_written(tmp_path, task, original, transformed):
  saved = EvalSet("swap", "Swap", original, transformed, {})
  for _ in range(2):  # the second replaces the first
    save_set(saved, tmp_path / "sets")
  result = read(tmp_path / "sets/trans_swap.json", task)
  for side, rows in result.sides.items():
    rows = [dataclasses.replace(x, location="") for x in rows]
    assert rows == saved.sides[side]


TITLES = ("id", "sentence1", "sentence2", "label")


@pytest.mark.parametrize(
  ("task", "rows", "message"),
  [
    (SST2, (("id", "text"), ("1", "a")), r"x\.tsv:2: no column 'sentence'"),
    (MNLI, (TITLES, ("1", "a", "b", "1")), r"x\.tsv:2: .*'1', not a known"),
  ],
)
def test_wrong_tables_are_refused_with_their_line(
  tmp_path, task, rows, message
):
  with pytest.raises(DataError, match=message):
    read(write_tsv(tmp_path / "x.tsv", *rows), task)


ROW = textflint_row(3)


@pytest.mark.parametrize(
  ("rows", "message"),
  [
    (
      [{**ROW, "answers": []}, ROW],
      r"trans_A\.json:1, question 3: .*no answer",
    ),
    (
      [ROW],
      r"trans_A\.json: sample 2 has the id None, but ori_A\.json has '4'",
    ),
    ([textflint_row(4), ROW], "sample 1 has the id '4', but .* has '3' there"),
    ([{**ROW, "context": "x"}], r"trans_A\.json:1, .*'Denver' does not occur"),
  ],
)
def test_wrong_pairs_are_refused_with_their_sample(tmp_path, rows, message):
  write_lines(tmp_path / "ori_A.json", [ROW, textflint_row(4)])
  path = write_lines(tmp_path / "trans_A.json", rows)
  with pytest.raises(DataError, match=message):
    read(path)


def test_sets_of_other_tasks_and_missing_files_are_refused(tmp_path):
  path = write_squad(tmp_path / "x.json", {"a": ("Denver", 0)})
  with pytest.raises(DataError, match=r"x\.json"):
    read(path, QQP)
  with pytest.raises(DataError, match=r"x\.json: .*question a: .*not occur"):
    read(write_squad(path, {"a": ("Paris", 0)}))
  with pytest.raises(DataError, match="there is no such file"):
    read(tmp_path / "missing.tsv", QQP)


def test_data_sets_are_read_by_name(tmp_path):
  def save(name, **columns):
    rows = datasets.Dataset.from_dict(columns)
    datasets.DatasetDict(validation=rows).save_to_disk(tmp_path / name)
    return f"hf:{tmp_path / name}"

  answers = {"text": ["Denver"], "answer_start": [0]}
  where = save(
    "AddSent",
    id=["a", "a-high-conf"],
    context=["Denver won."] * 2,
    question=["Who won?"] * 2,
    answers=[answers] * 2,
  )
  result = read(where)
  assert result.variants == [[0]]
  assert [q.key for q in result.original] == ["a"]
  where = save(
    "hans", premise=["A."], hypothesis=["B."], label=["non-entailment"]
  )
  assert set(read(where, MNLI).merged) == {"neutral", "contradiction"}
  with pytest.raises(DataError, match="hans.*not in the form of SQuAD"):
    read(where)
