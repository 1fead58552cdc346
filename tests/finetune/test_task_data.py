"""From the files that a config names to rows, answers and scores."""

import json

import datasets
import numpy as np
import pytest

from truenegs_jax.configs import finetune_glue, finetune_own, finetune_squad
from truenegs_jax.data.tokens.tokenizer import make_tokenizer
from truenegs_jax.finetune import task_data
from truenegs_jax.finetune.config_checks import FinetuneOptions
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.tasks.glue import TASKS
from truenegs_jax.tasks.squad_windows import NO_ANSWER

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
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


def gather(c, name, tokenizer):
  return task_data.read_task_data(
    FinetuneOptions.from_config(c), name, tokenizer
  )


def check_files(c):
  task_data.check_files(FinetuneOptions.from_config(c))


def files_of(c, name):
  return task_data.parse_files(FinetuneOptions.from_config(c), name)


def glue_config(folder, name="mrpc", **more):
  """The config of a task whose two files are written."""
  c = finetune_glue.get_config(name)
  for split in ("train", "dev"):
    path = folder / TASKS[name].title / f"{split}.tsv"
    path.parent.mkdir(exist_ok=True)
    lines = ["\t".join(row) for row in (COLUMNS[name], *ROWS[name])]
    path.write_text("\n".join(lines))
  c.finetune.data = str(folder)
  c.finetune.update(more)
  return c


def texts(encoded) -> list[str]:
  return [TOKENIZER.decode(row) for row in encoded.tokens]


@pytest.mark.parametrize("name", ROWS)
def test_mrpc_and_stsb_alone_train_on_their_pairs_both_ways(tmp_path, name):
  data = gather(glue_config(tmp_path, name), name, TOKENIZER)
  once = ["[CLS] a b [SEP] c [SEP]", "[CLS] d [SEP] e f [SEP]"]
  once += ["[CLS] g [SEP] h [SEP]"]
  twice = ["[CLS] c [SEP] a b [SEP]", "[CLS] e f [SEP] d [SEP]"]
  twice += ["[CLS] h [SEP] g [SEP]"]
  twice = [] if name == "rte" else twice
  assert texts(data.train) == once + twice
  label_N = data.train.targets["label"]
  assert label_N[3:].tolist() == label_N[: len(twice)].tolist()
  assert texts(data.dev.encoded) == once and len(data.dev.keys) == 3


def test_answers_of_stsb_are_in_its_own_units(tmp_path):
  dev = gather(glue_config(tmp_path, "stsb"), "stsb", TOKENIZER).dev
  scaled_N = dev.encoded.targets["label"]
  np.testing.assert_allclose(scaled_N, [0, 0.76, 1])
  said = dev.decode_answers(list(scaled_N[:, None]))
  assert said == pytest.approx([0.0, 3.8, 5.0])
  assert dev.golds == (0.0, 3.8, 5.0)
  assert dev.score(said) == pytest.approx({"spearman": 100, "pearson": 100})
  assert dev.score(said[::-1])["spearman"] == pytest.approx(-100)


def test_answers_of_classes_are_their_names(tmp_path):
  dev = gather(glue_config(tmp_path), "mrpc", TOKENIZER).dev
  logits = list(np.array([[0.0, 1.0], [2.0, 1.0], [-2.0, -1.0]]))
  assert dev.decode_answers(logits) == ["1", "0", "1"] == list(dev.golds)
  assert dev.score(["1", "1", "1"])["accuracy"] == pytest.approx(200 / 3)


def test_fewer_rows_and_other_epochs_are_noted(tmp_path):
  c = glue_config(tmp_path, rows=2, epochs=1.0)
  c.length = 6
  data = gather(c, "mrpc", TOKENIZER)
  assert len(data.train.tokens) == 4 and len(data.dev.keys) == 3
  assert texts(data.train)[1] == "[CLS] d [SEP] e f [SEP]"
  assert data.notes == (
    "2 of 3,668 rows of train",
    "3 of 408 rows of dev",
    "rows of at most 6 tokens, not 128",
    "1 epochs, not 3",
  )
  c.length, c.finetune.epochs = 5, 0.0
  cut = gather(c, "mrpc", TOKENIZER)
  assert cut.train.num_cut == 4 and len(cut.notes) == 3


# --- questions

LONG = " ".join(LETTERS) + " " + " ".join(LETTERS[::-1])
CONTEXTS = {"q0": ("a b c d e f", "b c d"), "q1": (LONG, "t s r")}
CONTEXTS["q2"] = ("f e d c b a", "f e")


def write_squad(path, moved=0) -> str:
  """A question on each of CONTEXTS."""
  paragraphs = []
  for key, (context, answer) in CONTEXTS.items():
    start = context.index(answer) + moved
    answers = [{"text": answer, "answer_start": start}]
    qas = [{"id": key, "question": "z z ?", "answers": answers}]
    paragraphs.append({"context": context, "qas": qas})
  path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
  return str(path)


def squad_config(folder, **more):
  c = finetune_squad.get_config()
  for split, moved in (("train", 1), ("dev", 0)):
    write_squad(folder / f"{split}-v1.1.json", moved)
  c.length, c.finetune.data = 24, str(folder)
  c.finetune.stride, c.finetune.question_length = 8, 2
  c.finetune.update(more)
  return c


def as_logits(start, end, size):
  logits = np.zeros((size, 2), np.float32)
  logits[start, 0] = logits[end, 1] = 5
  return logits


def as_beam(start, end, size):
  """Three starts, the right one last, and three ends for each."""
  starts_S = np.array([1, size - 2, start], np.int32)
  ends_SxE = np.stack([starts_S, starts_S, starts_S], 1)
  ends_SxE[2] = [size - 2, end, start]
  scores_SxE = np.zeros((3, 3), np.float32)
  scores_SxE[2, 1] = 5
  return starts_S, ends_SxE, scores_SxE


@pytest.mark.parametrize("outputs_of", [as_logits, as_beam])
def test_right_spans_of_windows_score_100_and_turned_ones_do_not(
  tmp_path, outputs_of
):
  data = gather(squad_config(tmp_path), "squad", TOKENIZER)
  assert texts(data.train) == texts(data.dev.encoded)  # so spans are the same
  assert texts(data.train)[0] == "[CLS] z z [SEP] a b c d e f [SEP]"
  # Of the long one every 8 pieces, each of 24 less those around it.
  assert len(data.train.tokens) == 2 + 1 + -(-(len(LONG.split()) - 19) // 8)
  spans = list(
    zip(*(data.train.targets[x] for x in ("start", "end")), strict=True)
  )
  sizes = data.dev.encoded.lengths_N
  right = [outputs_of(*x, n) for x, n in zip(spans, sizes, strict=True)]
  said = data.dev.decode_answers(right)
  assert said == [answer for _, answer in CONTEXTS.values()]
  assert data.dev.score(said) == {"em": 100, "f1": 100}
  turned = [outputs_of(*x[::-1], n) for x, n in zip(spans, sizes, strict=True)]
  assert data.dev.score(data.dev.decode_answers(turned))["em"] < 50


def test_few_candidates_may_hold_no_answer(tmp_path):
  turned_of = lambda data: data.dev.decode_answers(
    [as_logits(7, 6, n) for n in data.dev.encoded.lengths_N]
  )
  data = gather(squad_config(tmp_path), "squad", TOKENIZER)
  assert NO_ANSWER not in turned_of(data)
  data = gather(squad_config(tmp_path, num_best=1), "squad", TOKENIZER)
  assert turned_of(data) == [NO_ANSWER] * 3


def test_some_questions_are_the_first_ones_with_all_their_windows(tmp_path):
  data = gather(squad_config(tmp_path), "squad", TOKENIZER)
  c = squad_config(tmp_path, rows=2)
  some = gather(c, "squad", TOKENIZER)
  assert texts(some.train) == texts(data.train)[:-1]
  assert some.dev.keys == tuple(CONTEXTS)
  moved, *sizes = some.notes
  assert moved.startswith("3 answers that stand elsewhere")
  assert sizes == [
    "2 of 87,599 rows of train",
    "3 of 10,570 rows of dev",
    "rows of at most 24 tokens, not 512",
  ]
  assert data.notes[1].startswith("3 of 87,599")


def test_named_files_of_questions_stand_for_the_usual_ones(tmp_path):
  c = squad_config(tmp_path)
  for split in ("train", "dev"):
    (tmp_path / f"{split}-v1.1.json").unlink()
  with pytest.raises(
    DataError, match=r"train-v1.1.json: .* \.gz.*hf:rajpurkar"
  ):
    gather(c, "squad", TOKENIZER)
  rows = {"id": ["q9"], "context": ["a b"], "question": ["z ?"]}
  rows["answers"] = [{"text": ["b"], "answer_start": [2]}]
  datasets.disable_progress_bars()
  set_ = datasets.Dataset.from_dict(rows)
  datasets.DatasetDict(validation=set_).save_to_disk(str(tmp_path / "set"))
  train = write_squad(tmp_path / "x.json")
  c.finetune.files = f"train={train} dev=hf:{tmp_path}/set"
  assert gather(c, "squad", TOKENIZER).dev.golds == (("b",),)


# --- finetune.files


def test_files_are_those_of_a_task_or_of_all():
  c = finetune_glue.get_config("mrpc,rte")
  assert files_of(c, "mrpc") == {}
  c.finetune.files = "dev=x.tsv mrpc.train='a b.tsv' rte.train=hf:a/b:rte:train"
  check_files(c)
  assert files_of(c, "mrpc") == {"dev": "x.tsv", "train": "a b.tsv"}
  assert files_of(c, "rte") == {"dev": "x.tsv", "train": "hf:a/b:rte:train"}
  c.finetune.files, c.finetune.predict_test = "rte.test=a=b.tsv", True
  check_files(c)
  assert files_of(c, "rte") == {"test": "a=b.tsv"}


@pytest.mark.parametrize(
  ("files", "message"),
  [
    ("mrpcc.dev=/nope", "'mrpcc.dev=...': 'mrpcc' is not fine.*mrpc, rte"),
    ("cola.dev=x", "'cola' is not fine-tuned"),
    ("mrpc.dev_mismatched=x", "mrpc has train, dev, test, not 'dev_mism"),
    ("trian=x", "'trian=...': mrpc has train, .*not 'trian'"),
    ("mrpc.test=x", "'mrpc.test=...': .*predict_test=True"),
    ("dev=x mrpc.dev=y", "two files for dev of mrpc: 'x' and 'y'"),
    ("dev", "'dev' is not of the form SPLIT=FILE"),
    ("mrpc.dev=", "'mrpc.dev=' is not of the form"),
    ("=x", "'=x' is not of the form"),
    ("dev='x", "No closing quotation"),
  ],
)
def test_files_that_would_be_ignored_are_refused(tmp_path, files, message):
  c = glue_config(tmp_path, files=files, tasks="mrpc,rte")
  for read in (check_files, lambda c: gather(c, "mrpc", TOKENIZER)):
    with pytest.raises(InputError, match=f"finetune.files.*{message}"):
      read(c)


def test_splits_are_those_of_each_task():
  c = finetune_squad.get_config()
  c.finetune.files, c.finetune.predict_test = "test=x.json", True
  with pytest.raises(InputError, match="squad has train, dev, not 'test'"):
    check_files(c)
  c.finetune.files = ""
  with pytest.raises(InputError, match="predict_test=True: squad has no test"):
    check_files(c)
  c = finetune_own.get_config()
  c.finetune.files, c.finetune.predict_test = "own.test=x.csv", True
  check_files(c)
  c = finetune_glue.get_config("mnli")
  c.finetune.files = "dev_mismatched=x.tsv"
  check_files(c)
  c.finetune.data = "hf:nyu-mll/glue:train"  # the dev set would be the same
  with pytest.raises(InputError, match="finetune.data='hf:nyu-mll/glue:train'"):
    check_files(c)
