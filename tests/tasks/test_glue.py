"""Tests reading of GLUE's files, the settings of each task, and submissions."""

import collections

import datasets
import numpy as np
import pytest

from support.texts import COMPRESSORS
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import DataError, DiskError
from truenegs_jax.tasks import records
from truenegs_jax.tasks.batches import encode
from truenegs_jax.tasks.records import write_submission
from truenegs_jax.tasks.task import SCORE, SQUAD, TASKS

NLI = "index,promptID,pairID,genre,bp1,bp2,p1,p2,sentence1,sentence2"
MRPC = "#1 ID,#2 ID,#1 String,#2 String"
STS = "index,genre,filename,year,old_index,source1,source2,sentence1,sentence2"
QQP = "id,qid1,qid2,question1,question2,is_duplicate"
# First line of train and dev, and of test; CoLA's train and dev have none.
HEADERS = {
  "cola": ("", "index,sentence"),
  "sst2": ("sentence,label", "index,sentence"),
  "mrpc": (f"\ufeffQuality,{MRPC}", f"index,{MRPC}"),
  "stsb": (f"{STS},score", STS),
  "qqp": (QQP, "id,question1,question2"),
  "mnli": (f"{NLI},label1,gold_label", NLI),
  "qnli": ("index,question,sentence,label", "index,question,sentence"),
  "rte": ("index,sentence1,sentence2,label", "index,sentence1,sentence2"),
}
# Indices of the columns of the texts, and of the label's column.
COLUMNS = {
  "cola": ((3,), 1),
  "sst2": ((0,), 1),
  "mrpc": ((3, 4), 0),
  "stsb": ((7, 8), 9),
  "qqp": ((3, 4), 5),
  "mnli": ((8, 9), 11),
  "qnli": ((1, 2), 3),
  "rte": ((1, 2), 3),
}
# Columns of the texts in test files, where they differ.
TEST_COLUMNS = {"cola": (1,), "sst2": (1,), "qqp": (1, 2)}
# Labels in GLUE's files -> their ids in ELECTRA's code, or scaled scores.
LABELS = {name: {"0": 0, "1": 1} for name in ("cola", "sst2", "mrpc", "qqp")}
LABELS["mnli"] = {"contradiction": 0, "entailment": 1, "neutral": 2}
LABELS["qnli"] = LABELS["rte"] = {"entailment": 0, "not_entailment": 1}
LABELS["stsb"] = {"0.000": 0.0, "2.5": 0.5, "5.000": 1.0}
TEXTS = ['say "x', "é\u2028y", '"q" 1', " c "]
WORDS = ["the", "swan", "is", "##s", "mute", "white", *"abcdefghi", ",", "."]
TOKENIZER = make_tokenizer([*SPECIALS, *WORDS], lowercase=True)


def write_split(root, name, split, *, suffix="", extra=()):
  """Writes a file in GLUE's layout; returns its path, texts and labels."""
  is_test = split.startswith("test")
  header = HEADERS[name][is_test].split(",") if HEADERS[name][is_test] else []
  texts, label = COLUMNS[name]
  texts = TEST_COLUMNS.get(name, texts) if is_test else texts
  rows, expected = [], []
  for i, target in enumerate(LABELS[name]):
    row = [f"-{i}" for _ in header or range(4)]
    pair = [TEXTS[i + k] for k in range(len(texts))]
    for column, text in zip(texts, pair, strict=True):
      row[column] = text
    if is_test:
      row[0] = str(90 - i)
    else:
      row[label] = target
    rows.append(row)
    expected.append((*pair, None if is_test else target))
  lines = ["\t".join(row) for row in ([header] if header else []) + rows]
  file = {"dev": "dev_matched", "test": "test_matched"}.get(split, split)
  file = file if name == "mnli" else split
  path = root / TASKS[name].title / f"{file}.tsv{suffix}"
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(COMPRESSORS[suffix]("\n".join([*lines, *extra]).encode()))
  return path, expected


@pytest.mark.parametrize("name", LABELS)
def test_reads_every_file_of_every_task(tmp_path, name):
  suffix = ".xz" if name == "mnli" else ""
  task = TASKS[name]
  for split in task.split_sizes:
    path, expected = write_split(tmp_path, name, split, suffix=suffix)
    examples, num_skipped = records.read_split(task, split, str(tmp_path))
    triples = [(x.first, x.second, x.gold) for x in examples]
    if task.kind == SCORE and not split.startswith("test"):
      expected = [(a, b, float(score)) for a, b, score in expected]
    if len(expected[0]) == 2:
      expected = [(a, None, label) for a, label in expected]
    assert triples == expected and not num_skipped
    has_header = bool(HEADERS[name][split.startswith("test")])
    assert examples[1].location == f"{path}:{2 + has_header}"
    keys = ["90", "89"] if split.startswith("test") else ["0", "1"]
    assert [x.key for x in examples[:2]] == keys
    assert examples == records.read_split(task, split, "", file=str(path))[0]
    if not split.startswith("test"):
      label_N = encode(examples, task, TOKENIZER, length=16).targets["label"]
      assert label_N.tolist() == list(LABELS[name].values())
      is_score = task.kind == SCORE
      assert label_N.dtype == (np.float32 if is_score else np.int32)


def test_the_settings_of_each_task_match_electra():
  order = ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
  assert list(TASKS) == [*order, SQUAD]
  ten_epochs = {name for name, task in TASKS.items() if task.epochs == 10}
  assert ten_epochs == {"stsb", "rte"}
  both_orders = {name for name, task in TASKS.items() if task.both_orders}
  assert both_orders == {"mrpc", "stsb"}
  metrics = {name: TASKS[name].metrics[0] for name in order}
  assert metrics.pop("cola") == "matthews"
  assert metrics.pop("stsb") == "spearman"
  assert set(metrics.values()) == {"accuracy"}


# The hub's copy: columns of the texts, and classes in its own order.
HUB = {
  "cola": (["sentence"], ["unacceptable", "acceptable"]),
  "mrpc": (["sentence1", "sentence2"], ["not_equivalent", "equivalent"]),
  "mnli": (
    ["premise", "hypothesis"],
    ["entailment", "neutral", "contradiction"],
  ),
  "stsb": (["sentence1", "sentence2"], None),
}


def test_a_data_set_of_several_labels_is_refused(tmp_path):
  columns = {"sentence": ["p"], "label": [["0", "1"]]}
  data = datasets.DatasetDict(train=datasets.Dataset.from_dict(columns))
  data.save_to_disk(str(tmp_path / "saved"))
  with pytest.raises(DataError, match=r"record 1: .*holds \['0', '1'\], not a"):
    records.read_split(TASKS["sst2"], "train", f"hf:{tmp_path}/saved")


@pytest.mark.parametrize("name", HUB)
def test_reads_the_hubs_copy(tmp_path, name):
  texts, names = HUB[name]
  task = TASKS[name]
  label = datasets.ClassLabel(names=names) if names else "float32"
  features = {c: datasets.Value("string") for c in texts} | {
    "label": label if names else datasets.Value("float32"),
    "idx": datasets.Value("int32"),
  }

  def make_split(label_ids):
    columns = {c: list("pqr") for c in texts}
    columns |= {"label": label_ids, "idx": [7, 8, 9]}
    return datasets.Dataset.from_dict(columns, datasets.Features(features))

  suffix = "_matched" if name == "mnli" else ""
  datasets.DatasetDict(
    {
      f"validation{suffix}": make_split([0, 1, 1]),
      f"test{suffix}": make_split([-1] * 3),
    }
  ).save_to_disk(str(tmp_path / name))
  for where in (tmp_path, tmp_path / name):
    examples = records.read_split(task, "dev", f"hf:{where}")[0]
    expected = {"cola": ["0", "1", "1"], "mrpc": ["0", "1", "1"]}
    expected["mnli"] = ["entailment", "neutral", "neutral"]
    assert [x.gold for x in examples] == expected.get(name, [0.0, 1.0, 1.0])
    assert [x.first for x in examples] == list("pqr")
    second = list("pqr") if len(texts) == 2 else [None] * 3
    assert [x.second for x in examples] == second
    test = records.read_split(task, "test", f"hf:{where}")[0]
    assert [(x.key, x.gold) for x in test] == [(k, None) for k in "789"]
    file = f"hf:{where} split=test{suffix}"
    assert test == records.read_split(task, "test", "nowhere", file=file)[0]


def test_uneven_rows_of_qqp_are_skipped_and_counted(tmp_path):
  extra = ["5\t6", "9\t1\t2\tq\t\t1"]
  write_split(tmp_path, "qqp", "train", extra=extra)
  examples, num_skipped = records.read_split(
    TASKS["qqp"], "train", str(tmp_path)
  )
  assert (len(examples), num_skipped, examples[-1].second) == (3, 1, "")


@pytest.mark.parametrize(
  ("name", "split", "row", "message"),
  [
    ("rte", "dev", "7\ta\t \tentailment", "v.tsv:4: .*'sentence2' is empty"),
    ("rte", "dev", "7\ta\tb\tmaybe", "dev.tsv:4: label 'maybe' is unknown"),
    ("stsb", "dev", "7" + 6 * "\t-" + "\ta\tb\tx", ":5: .*'x', not a finite"),
    ("qqp", "test", "5\t6", "QQP/test.tsv:4: 2 fields, but 3 columns"),
    *(
      ("rte", "test", f"{x}\ta\tb", f"test.tsv:4: index '{x}' .*each once")
      for x in ("90", "x7", "-1", "089")
    ),
  ],
)
def test_rejects_bad_rows_and_names_their_line(
  tmp_path, name, split, row, message
):
  write_split(tmp_path, name, split, extra=[row])
  with pytest.raises(DataError, match=message):
    records.read_split(TASKS[name], split, str(tmp_path))


def test_missing_files_and_columns_are_explained(tmp_path):
  write_split(tmp_path, "mnli", "dev_mismatched")
  message = r"MNLI/dev_matched.tsv: .*\.gz.*contains MNLI/.*save_to"
  with pytest.raises(DataError, match=message):
    records.read_split(TASKS["mnli"], "dev", str(tmp_path))
  write_split(tmp_path, "rte", "dev")
  with pytest.raises(DataError, match="no column 'question'. .*'sentence1'"):
    records.read_split(TASKS["qnli"], "dev", "", file=f"{tmp_path}/RTE/dev.tsv")


# Counts of labels or rows; a parser of quotes would lose some of them.
REAL = {
  ("cola", "train", ""): {"1": 6023, "0": 2528},
  ("cola", "dev", ""): {"1": 721, "0": 322},
  ("sst2", "train", ""): {"1": 37569, "0": 29780},
  ("sst2", "dev", ""): {"1": 444, "0": 428},
  ("mrpc", "train", ""): {"1": 2474, "0": 1194},
  ("mrpc", "dev", ""): {"1": 279, "0": 129},
  ("stsb", "train", ""): 5749,
  ("stsb", "dev", ""): 1500,
  ("qqp", "train", "QQP/train.sample9k.tsv.xz"): 8999,
  ("qqp", "dev", "QQP/dev.sample1k-from-train.tsv.xz"): 1000,
  ("mnli", "train", "MNLI/train.sample10k.tsv.xz"): 9999,
  ("mnli", "dev", ""): dict(entailment=3479, neutral=3123, contradiction=3213),
  ("qnli", "train", "QNLI/train.sample10k.tsv.xz"): 9999,
  ("qnli", "dev", ""): {"not_entailment": 2761, "entailment": 2702},
  ("rte", "train", ""): {"entailment": 1249, "not_entailment": 1241},
  ("rte", "dev", ""): {"entailment": 146, "not_entailment": 131},
}


@pytest.mark.parametrize(("name", "split", "file"), REAL)
def test_real_files_have_the_published_counts(real_data, name, split, file):
  root, counts = real_data / "glue", REAL[name, split, file]
  task = TASKS[name]
  examples, num_skipped = records.read_split(
    task, split, str(root), file=str(root / file) if file else ""
  )
  if isinstance(counts, dict):
    assert collections.Counter(x.gold for x in examples) == counts
    counts = sum(counts.values())
  assert (len(examples), num_skipped) == (counts, 0)
  if not file:
    assert task.split_sizes[split] == counts


@pytest.mark.parametrize(
  ("name", "split", "file", "predicted", "expected"),
  [
    ("sst2", "test", "SST-2", [1, 0, 1], ["1", "0", "1"]),
    ("stsb", "test", "STS-B", [5.2, -1, 0.12345], ["5.000", "0.000", "0.123"]),
    ("mnli", "test", "MNLI-m", [0, 1, 2], list(LABELS["mnli"])),
    ("mnli", "test_mismatched", "MNLI-mm", [0, 1, 2], list(LABELS["mnli"])),
    ("rte", "test", "RTE", [0, 1, 0], ["entailment", "not_entailment"] * 2),
  ],
)
def test_submissions_have_glues_format(
  tmp_path, name, split, file, predicted, expected
):
  keys = ["10", "9", "0"]  # in another order than the file's
  labels = TASKS[name].labels
  answers = [labels[i] if labels else i for i in predicted]
  path = write_submission(tmp_path, TASKS[name], split, keys, answers)
  assert path == tmp_path / f"{file}.tsv"
  lines = [f"{k}\t{a}" for k, a in zip(keys, expected, strict=False)][::-1]
  assert path.read_text().split("\n") == ["index\tprediction", *lines, ""]
  assert list(tmp_path.iterdir()) == [path]
  with pytest.raises(DiskError, match="missing/.*.tsv' could not be written"):
    write_submission(tmp_path / "missing", TASKS[name], split, keys, answers)
