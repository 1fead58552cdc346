"""Tests reading of tasks into rows, decoding and scoring of answers."""

import dataclasses
import gzip

import datasets
import numpy as np
import pytest

from support.texts import write_lines
from truenegs_jax.configs import (
  finetune_glue,
  finetune_ner,
  finetune_own,
  finetune_squad,
)
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.finetune import task_data
from truenegs_jax.finetune.task_data import parse_options
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.tasks import batches
from truenegs_jax.tasks.task import TASKS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = make_tokenizer([*SPECIALS, *LETTERS, "?"], lowercase=True)
MRPC = [("1", "a b", "c"), ("0", "d", "e f"), ("1", "g", "h")]
STSB = [("0.000", "a b", "c"), ("3.8", "d", "e f"), ("5.000", "g", "h")]
COLUMNS = {
  "mrpc": ("Quality", "#1 String", "#2 String"),
  "stsb": ("score", "sentence1", "sentence2"),
  "rte": ("label", "sentence1", "sentence2"),
}
RTE = [("entailment", *texts) for _, *texts in MRPC]
ROWS = {"mrpc": MRPC, "stsb": STSB, "rte": RTE}


def read_data(c, name):
  options = parse_options(c.to_dict())
  return task_data.read_task_data(options, name, TOKENIZER)


def glue_config(folder, name="mrpc", **more):
  """Writes the two files of a task and returns a config for it."""
  c = finetune_glue.get_config(name)
  for split in ("train", "dev"):
    path = folder / TASKS[name].title / f"{split}.tsv"
    path.parent.mkdir(exist_ok=True)
    lines = ["\t".join(row) for row in (COLUMNS[name], *ROWS[name])]
    path.write_text("\n".join(lines))
  c.finetune.data = str(folder)
  c.finetune.update(more)
  return c


def decode_rows(encoded) -> list[str]:
  return [TOKENIZER.decode(row) for row in encoded.tokens]


@pytest.mark.parametrize(
  ("name", "described"),
  [
    ("mrpc", ["rows by class: '0' 2, '1' 4", "F1 is that of '1'"]),
    ("stsb", []),
    ("rte", ["rows by class: 'entailment' 3, 'not_entailment' 0"]),
  ],
)
def test_rows_of_pairs_and_their_description(tmp_path, name, described):
  data = read_data(glue_config(tmp_path, name), name)
  pairs = ["[CLS] a b [SEP] c [SEP]", "[CLS] d [SEP] e f [SEP]"]
  pairs += ["[CLS] g [SEP] h [SEP]"]
  swapped = ["[CLS] c [SEP] a b [SEP]", "[CLS] e f [SEP] d [SEP]"]
  swapped += ["[CLS] h [SEP] g [SEP]"]
  swapped = [] if name == "rte" else swapped
  assert decode_rows(data.train) == pairs + swapped
  label_N = data.train.targets["label"]
  assert label_N[3:].tolist() == label_N[: len(swapped)].tolist()
  assert decode_rows(data.dev.encoded) == pairs and len(data.dev.examples) == 3
  texts = [f"{TASKS[name].title}: {len(label_N)} training rows"]
  texts += ["0 of them truncated", "3 dev examples"]
  assert data.describe() == texts + described


def test_answers_to_stsb_are_unscaled(tmp_path):
  dev = read_data(glue_config(tmp_path, "stsb"), "stsb").dev
  scaled_N = dev.encoded.targets["label"]
  np.testing.assert_allclose(scaled_N, [0, 0.76, 1])
  answers = dev.decode_answers(list(scaled_N[:, None]))
  assert answers == pytest.approx([0.0, 3.8, 5.0])
  assert dev.golds == (0.0, 3.8, 5.0)
  assert dev.score(answers) == pytest.approx({"spearman": 100, "pearson": 100})
  assert dev.score(answers[::-1])["spearman"] == pytest.approx(-100)
  task = dataclasses.replace(dev.task, scale=(1.0, 4.0))
  dev = dataclasses.replace(dev, task=task)
  assert dev.decode_answers([np.array([0.5])]) == [3.0]


def test_answers_of_classes_are_names(tmp_path):
  c = glue_config(tmp_path, rows=2)
  data = read_data(c, "mrpc")
  assert len(data.train.tokens) == 4  # of two pairs, in both orders
  logits = list(np.array([[0.0, 1.0], [2.0, 1.0], [-2.0, -1.0]]))
  assert data.dev.decode_answers(logits) == ["1", "0", "1"]
  assert data.dev.golds == ("1", "0", "1")
  assert data.dev.score(["1", "1", "1"])["accuracy"] == pytest.approx(200 / 3)


def test_fingerprints_tell_rows_labels_and_golds(tmp_path, monkeypatch):
  seen = set()
  for rows in (MRPC, [("0", "a b", "c"), *MRPC[1:]], MRPC[:2], MRPC[::-1]):
    monkeypatch.setitem(ROWS, "mrpc", rows)
    seen |= {*read_data(glue_config(tmp_path), "mrpc").fingerprints().values()}
  assert len(seen) == 8


@pytest.mark.parametrize(
  "gold, predicted, reason",
  [
    ([0, 1, 1], [1, 1, 1], "all 3 predictions are 1"),
    ([0, 1, 1], [1, 0, 0], ""),  # wrong, but not constant
    ([0.0, 5.0], [1.0, np.inf], "finite"),
    ([0.0, 500.0, 2.0], [2.5, 5.5, 2.5], "range"),
    ([0.0, 5.0, 2.0], [2.5, 2.6, 2.5], ""),
    ([("a",), ("b", "c")], ["the", "the"], "'the'"),
  ],
)
def test_runs_with_constant_predictions_failed(gold, predicted, reason):
  failure = task_data.find_failure(gold, predicted)
  assert (reason in failure) if reason else not failure


def test_questions_are_read_from_files_and_data_sets(tmp_path):
  rows = {"id": ["q8", "q9"], "context": ["a b", "b"], "question": ["z"] * 2}
  rows["answers"] = [{"text": ["b"], "answer_start": [i]} for i in (2, 0)]
  split = datasets.Dataset.from_dict(rows)
  datasets.DatasetDict(validation=split).save_to_disk(str(tmp_path / "set"))
  split.to_json(str(tmp_path / "train-v1.1.json"))
  c = finetune_squad.get_config()
  c.length = 24
  c.finetune.data = str(tmp_path)
  c.finetune.dev = f"hf:{tmp_path}/set"
  c.finetune.rows = 1
  data = read_data(c, "squad")
  assert decode_rows(data.train) == ["[CLS] z [SEP] a b [SEP]"]
  assert data.train.targets["start"].tolist() == [4]
  assert data.dev.golds == (("b",), ("b",))
  logits = np.zeros((2, 6, 2))
  logits[0, 3, 0] = logits[0, 4, 1] = logits[1, 3] = 5
  answers = data.dev.decode_answers(list(logits))
  assert answers == ["a b", "b"]
  assert data.dev.score(answers) == pytest.approx({"em": 100, "f1": 100})


@pytest.mark.parametrize(
  ("kind", "labels", "outputs"),
  [
    ("classes", ["x", "y", "x"], np.eye(2)[[0, 0, 1]]),
    ("score", [0.0, 2.0, 1.0], np.zeros((3, 1))),
    ("tags", [["B-x"], ["O"], ["B-x"]], np.zeros((3, 9, 3))),
  ],
)
def test_partly_labelled_test_sets_have_answers_but_no_golds(
  tmp_path, kind, labels, outputs
):
  c = (finetune_ner if kind == "tags" else finetune_own).get_config()
  c.length = 16
  c.finetune.kind = kind
  c.finetune.text = "text"
  c.finetune.label = "label"
  text = ["a"] if kind == "tags" else "a b"
  rows = [{"text": text, "label": label} for label in labels]
  without = {"text": text, "label": None}
  for split, written in {
    "train": rows,
    "dev": rows,
    "test": [rows[0], without, rows[2]],
  }.items():
    path = write_lines(tmp_path / f"{split}.jsonl", written)
    c.finetune[split] = str(path)
  test = read_data(c, "own").splits["test"]
  assert test.golds == ()
  [batch] = batches.batches_in_order(test.encoded, batch_size=3, limit=16)
  assert not {"label", "tags"} & batch.keys()
  assert len(test.decode_answers([*outputs])) == 3


# --- files of a split


def test_a_test_file_brings_no_other_test_set():
  c = finetune_glue.get_config()
  c.finetune.update({"tasks": "mnli", "test": "x.tsv"})
  options = parse_options(c.to_dict())
  splits = options.list_splits(options.find_task("mnli"))
  assert splits == ["train", "dev", "test", "dev_mismatched"]


def test_own_files_of_mnli_need_no_published_ones(tmp_path):
  columns = "index\tsentence1\tsentence2\tgold_label\n"
  for split in ("train", "dev"):
    text = f"{columns}0\ta\tb\tneutral\n".encode()
    (tmp_path / f"{split}.tsv.gz").write_bytes(gzip.compress(text))
  c = finetune_glue.get_config()
  files = {x: f"{tmp_path}/{x}.tsv" for x in ("train", "dev")}
  c.finetune.update({"tasks": "mnli", **files})
  assert [*read_data(c, "mnli").splits] == ["dev"]
  (tmp_path / "dev.tsv.gz").unlink()
  with pytest.raises(
    DataError, match="dev.tsv: .*Correct --config.finetune.dev"
  ):
    read_data(c, "mnli")


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"dev": "x.tsv", "tasks": "mrpc,rte"},
      "of one task, .*'mrpc,rte' names 2",
    ),
    ({"test": "x.json", "tasks": "squad"}, "SQuAD v1.1 has no such"),
    # Training would be on the rows of dev.
    ({"data": "hf:a/b split=train"}, "finetune.data='hf:a/b split=train'"),
  ],
)
def test_files_that_do_not_suit_the_tasks_are_refused(changes, message):
  c = finetune_glue.get_config()
  c.finetune.update(changes)
  with pytest.raises(InputError, match=message):
    task_data.check_files(parse_options(c.to_dict()))
