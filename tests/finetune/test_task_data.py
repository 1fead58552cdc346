"""Tests reading of tasks into rows, and decoding and scoring of answers."""

import json

import datasets
import numpy as np
import pytest

from truenegs_jax.configs import finetune_glue, finetune_own, finetune_squad
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.finetune import task_data
from truenegs_jax.finetune.options import parse_options
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.tasks import squad
from truenegs_jax.tasks.squad import NO_ANSWER
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


def check_files(c):
  task_data.check_files(parse_options(c.to_dict()))


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


@pytest.mark.parametrize("name", ROWS)
def test_only_mrpc_and_stsb_train_on_both_orders(tmp_path, name):
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


def test_answers_to_stsb_are_unscaled(tmp_path):
  dev = read_data(glue_config(tmp_path, "stsb"), "stsb").dev
  scaled_N = dev.encoded.targets["label"]
  np.testing.assert_allclose(scaled_N, [0, 0.76, 1])
  answers = dev.decode_answers(list(scaled_N[:, None]))
  assert answers == pytest.approx([0.0, 3.8, 5.0])
  assert dev.golds == (0.0, 3.8, 5.0)
  assert dev.score(answers) == pytest.approx({"spearman": 100, "pearson": 100})
  assert dev.score(answers[::-1])["spearman"] == pytest.approx(-100)


def test_answers_of_classes_are_names(tmp_path):
  dev = read_data(glue_config(tmp_path), "mrpc").dev
  logits = list(np.array([[0.0, 1.0], [2.0, 1.0], [-2.0, -1.0]]))
  assert dev.decode_answers(logits) == ["1", "0", "1"] == list(dev.golds)
  assert dev.score(["1", "1", "1"])["accuracy"] == pytest.approx(200 / 3)


def test_notes_fewer_rows_shorter_rows_and_other_epochs(tmp_path):
  c = glue_config(tmp_path, rows=2, epochs=1.0)
  c.length = 6
  data = read_data(c, "mrpc")
  assert len(data.train.tokens) == 4 and len(data.dev.examples) == 3
  assert decode_rows(data.train)[1] == "[CLS] d [SEP] e f [SEP]"
  assert data.notes == (
    "2 of 3,668 rows of train",
    "3 of 408 rows of dev",
    "rows of at most 6 tokens, not 128",
    "epochs: 1, not 3",
  )
  c.length, c.finetune.epochs = 5, 0.0
  shorter = read_data(c, "mrpc")
  assert shorter.train.num_cut == 4 and len(shorter.notes) == 3


def test_classes_are_shown_with_their_rows(tmp_path):
  data = read_data(glue_config(tmp_path), "mrpc")
  assert data.describe_classes() == [
    "rows by class: '0' 2, '1' 4",  # in both orders
    "F1 is that of '1'",
  ]
  assert read_data(glue_config(tmp_path, "rte"), "rte").describe_classes() == [
    "rows by class: 'entailment' 3, 'not_entailment' 0"
  ]
  assert not read_data(glue_config(tmp_path, "stsb"), "stsb").describe_classes()


# --- questions

LONG = " ".join(LETTERS) + " " + " ".join(LETTERS[::-1])
CONTEXTS = {"q0": ("a b c d e f", "b c d"), "q1": (LONG, "t s r")}
CONTEXTS["q2"] = ("f e d c b a", "f e")


def write_squad(path, shift=0) -> str:
  """Writes a question on each of CONTEXTS."""
  paragraphs = []
  for key, (context, answer) in CONTEXTS.items():
    start = context.index(answer) + shift
    answers = [{"text": answer, "answer_start": start}]
    qas = [{"id": key, "question": "z z ?", "answers": answers}]
    paragraphs.append({"context": context, "qas": qas})
  path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
  return str(path)


def squad_config(folder, **more):
  c = finetune_squad.get_config()
  for split, shift in (("train", 1), ("dev", 0)):
    write_squad(folder / f"{split}-v1.1.json", shift)
  c.length, c.finetune.data = 24, str(folder)
  c.finetune.stride, c.finetune.question_length = 8, 2
  c.finetune.update(more)
  return c


def make_logits(start, end, size):
  logits = np.zeros((size, 2), np.float32)
  logits[start, 0] = logits[end, 1] = 5
  return logits


def test_correct_spans_score_100_and_reversed_ones_do_not(tmp_path):
  data = read_data(squad_config(tmp_path), "squad")
  rows = decode_rows(data.train)
  assert rows == decode_rows(data.dev.encoded)  # so spans are equal
  assert rows[0] == "[CLS] z z [SEP] a b c d e f [SEP]"
  # A row has room for 19 pieces of the long context, and its stride is 8.
  assert len(data.train.tokens) == 2 + 1 + -(-(len(LONG.split()) - 19) // 8)
  targets = data.train.targets
  spans = list(zip(targets["start"], targets["end"], strict=True))
  sizes = data.dev.encoded.lengths_N
  correct = [make_logits(*x, n) for x, n in zip(spans, sizes, strict=True)]
  answers = data.dev.decode_answers(correct)
  assert answers == [answer for _, answer in CONTEXTS.values()]
  assert data.dev.score(answers) == {"em": 100, "f1": 100}
  cases = zip(spans, sizes, strict=True)
  swapped = [make_logits(end, start, n) for (start, end), n in cases]
  assert data.dev.score(data.dev.decode_answers(swapped))["em"] < 50


@pytest.mark.parametrize("num_best", [20, 1])
def test_few_candidates_may_contain_no_answer(tmp_path, num_best):
  dev = read_data(squad_config(tmp_path), "squad").dev
  logits = [make_logits(7, 6, n) for n in dev.encoded.lengths_N]
  answers = squad.best_answers(dev.windows, logits, num_best=num_best)
  if num_best == 1:
    assert answers == [NO_ANSWER] * 3
  else:
    assert NO_ANSWER not in answers


def test_fewer_questions_keep_all_their_windows(tmp_path):
  data = read_data(squad_config(tmp_path), "squad")
  c = squad_config(tmp_path, rows=2)
  fewer = read_data(c, "squad")
  assert decode_rows(fewer.train) == decode_rows(data.train)[:-1]
  assert [x.key for x in fewer.dev.examples] == [*CONTEXTS]
  moved, *sizes = fewer.notes
  assert moved.startswith("3 answers that are not at")
  assert sizes == [
    "2 of 87,599 rows of train",
    "3 of 10,570 rows of dev",
    "rows of at most 24 tokens, not 512",
  ]
  assert data.notes[1].startswith("3 of 87,599")


def test_named_files_replace_the_official_ones(tmp_path):
  c = squad_config(tmp_path)
  for split in ("train", "dev"):
    (tmp_path / f"{split}-v1.1.json").unlink()
  message = r"train-v1.1.json: .* \.gz.*hf:rajpurkar"
  with pytest.raises(DataError, match=message):
    read_data(c, "squad")
  rows = {"id": ["q9"], "context": ["a b"], "question": ["z ?"]}
  rows["answers"] = [{"text": ["b"], "answer_start": [2]}]
  datasets.disable_progress_bars()
  set_ = datasets.Dataset.from_dict(rows)
  datasets.DatasetDict(validation=set_).save_to_disk(str(tmp_path / "set"))
  train = write_squad(tmp_path / "x.json")
  c.finetune.train, c.finetune.dev = train, f"hf:{tmp_path}/set"
  assert read_data(c, "squad").dev.golds == (("b",),)


# --- files of a split


def refuse(c, match):
  with pytest.raises(InputError, match=match):
    check_files(c)


def test_files_are_those_of_a_single_task(tmp_path):
  c = glue_config(tmp_path, dev="x.tsv", tasks="mrpc,rte")
  refuse(c, "finetune.dev is the file of one task, .*'mrpc,rte' names 2")
  c.finetune.tasks, c.finetune.train = "mrpc", "hf:a/b split=train"
  check_files(c)
  text = task_data.describe_task(parse_options(c.to_dict()), "mrpc")
  assert "train: hf:a/b split=train; dev: x.tsv (missing)" in text


def test_files_that_would_not_be_used_are_refused(tmp_path):
  c = glue_config(tmp_path, test="x.tsv")
  refuse(c, "finetune.test='x.tsv' would not be used.*predict_test=True")
  c.finetune.predict_test = True
  check_files(c)
  c = finetune_squad.get_config()
  c.finetune.test, c.finetune.predict_test = "x.json", True
  refuse(c, "finetune.test='x.json' would not be used.*SQuAD")


def test_an_own_task_needs_its_files():
  c = finetune_own.get_config()
  c.finetune.text, c.finetune.predict_test = "text", True
  c.finetune.train = "y.csv"
  refuse(c, "finetune.dev names no file")
  c.finetune.dev = "z.csv"
  refuse(c, "finetune.test names no file.*--config.finetune.test=FILE")
  c.finetune.test = "x.csv"
  check_files(c)


def test_a_data_set_of_all_splits_names_none():
  c = finetune_glue.get_config("mnli")
  c.finetune.data = (
    "hf:nyu-mll/glue split=train"  # the dev set would be the same
  )
  refuse(c, "finetune.data='hf:nyu-mll/glue split=train'")


@pytest.mark.parametrize("name", ["squad", "mnli"])
def test_a_dry_run_names_the_test_set_of_a_task_that_has_one(name):
  module = finetune_squad if name == "squad" else finetune_glue
  c = module.get_config()
  c.finetune.tasks, c.finetune.predict_test = name, True
  text = task_data.describe_task(parse_options(c.to_dict()), name)
  assert "train: " in text and "dev: " in text
  assert ("test: " in text) == (name == "mnli")
