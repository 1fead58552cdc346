"""Tests files and data sets of GLUE and of your own task, and submissions."""

import collections
import dataclasses
import json
import math

import datasets
import pytest

from support.texts import COMPRESSORS
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.tasks import records
from truenegs_jax.tasks.records import read_dataset, read_file, read_split
from truenegs_jax.tasks.task import (
  CLASSES,
  SCORE,
  TASKS,
  Example,
  define_own_task,
  fit_own_task,
)

NLI = "index,promptID,pairID,genre,bp1,bp2,p1,p2,sentence1,sentence2"
MRPC = "#1 ID,#2 ID,#1 String,#2 String"
STS = "index,genre,filename,year,old_index,source1,source2,sentence1,sentence2"
QQP = "id,qid1,qid2,question1,question2,is_duplicate"
# Columns of train and dev, which CoLA's files do not name, and of test.
HEADERS = {
  "cola": ("source,label,mark,sentence", "index,sentence"),
  "sst2": ("sentence,label", "index,sentence"),
  "mrpc": (f"\ufeffQuality,{MRPC}", f"index,{MRPC}"),
  "stsb": (f"{STS},score", STS),
  "qqp": (QQP, "id,question1,question2"),
  "mnli": (f"{NLI},label1,gold_label", NLI),
  "qnli": ("index,question,sentence,label", "index,question,sentence"),
  "rte": ("index,sentence1,sentence2,label", "index,sentence1,sentence2"),
}
LABELS = {
  **dict.fromkeys(("cola", "sst2", "mrpc", "qqp"), ("0", "1")),
  **{"mnli": ("contradiction", "entailment", "neutral")},
  **dict.fromkeys(("qnli", "rte"), ("entailment", "not_entailment")),
  **{"stsb": (0.0, 2.5, 5.0)},
}
TEXTS = ['say "x', "é\u2028y", '"q" 1', " c "]


def write_split(root, name, split, *, suffix="", extra=()):
  """Writes a file in GLUE's layout; returns its path, texts and labels."""
  task = TASKS[name]
  is_test = split.startswith("test")
  header = HEADERS[name][is_test].split(",")
  lines = [] if name == "cola" and not is_test else ["\t".join(header)]
  expected = []
  for i, target in enumerate(LABELS[name]):
    pair = TEXTS[i : i + len(task.columns)]
    row = {column.strip("\ufeff"): f"-{i}" for column in header}
    row |= dict(zip(task.columns, pair, strict=True))
    row |= {header[0]: str(90 - i)} if is_test else {task.label_column: target}
    lines.append("\t".join(map(str, row.values())))
    expected.append((*pair, None)[:2] + (None if is_test else target,))
  file = {"dev": "dev_matched", "test": "test_matched"}.get(split, split)
  file = file if name == "mnli" else split
  path = root / task.title / f"{file}.tsv{suffix}"
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(COMPRESSORS[suffix]("\n".join([*lines, *extra]).encode()))
  return str(path), expected


@pytest.mark.parametrize("name", LABELS)
def test_reads_every_file_of_every_task_of_glue(tmp_path, name):
  task = TASKS[name]
  for split in task.splits:
    suffix = ".xz" if name == "mnli" else ""
    path, expected = write_split(tmp_path, name, split, suffix=suffix)
    assert path == f"{records.official_path(task, split, tmp_path)}{suffix}"
    examples = read_split(task, split, path)
    assert [(x.first, x.second, x.gold) for x in examples] == expected
    has_header = name != "cola" or split == "test"
    assert examples[1].location == f"{path}:{2 + has_header}"
    keys = ["90", "89"] if split.startswith("test") else ["0", "1"]
    assert [x.key for x in examples[:2]] == keys


# The hub's copy: columns of the texts, classes in its own order, and golds.
HUB = {
  "cola": (["sentence"], ["unacceptable", "acceptable"], ["0", "1", "1"]),
  "mnli": (
    ["premise", "hypothesis"],
    ["entailment", "neutral", "contradiction"],
    ["entailment", "neutral", "neutral"],
  ),
  "stsb": (["sentence1", "sentence2"], None, [0.0, 1.0, 1.0]),
}


@pytest.mark.parametrize("name", HUB)
def test_reads_the_hubs_copy(tmp_path, name):
  texts, names, golds = HUB[name]
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
  splits = {
    f"validation{suffix}": make_split([0, 1, 1]),
    f"test{suffix}": make_split([-1] * 3),
  }
  datasets.DatasetDict(splits).save_to_disk(str(tmp_path / name))
  for where in (tmp_path, tmp_path / name):
    examples = read_split(task, "dev", f"hf:{where}")
    assert [x.gold for x in examples] == golds
    assert [x.first for x in examples] == list("pqr")
    second = list("pqr") if len(texts) == 2 else [None] * 3
    assert [x.second for x in examples] == second
    test = read_split(task, "test", f"hf:{where}")
    assert [(x.key, x.gold) for x in test] == [(k, None) for k in "789"]


def test_uneven_rows_of_qqp_are_skipped(tmp_path):
  extra = ["5\t6", "9\t1\t2\tq\t\t1"]
  path, _ = write_split(tmp_path, "qqp", "train", extra=extra)
  examples = read_split(TASKS["qqp"], "train", path)
  assert (len(examples), examples[-1].second) == (3, "")


# Counts of labels; a parser of quotes would lose some rows.
REAL = {
  "MRPC/train": {"1": 2474, "0": 1194},
  "MNLI/dev_matched": dict(entailment=3479, neutral=3123, contradiction=3213),
}


@pytest.mark.parametrize("file", REAL)
def test_real_files_have_the_published_counts(real_data, file):
  name = file.partition("/")[0].lower().replace("-", "")
  [path] = real_data.glob(f"glue/{file}.tsv*")
  examples = read_split(TASKS[name], "train", str(path))
  assert collections.Counter(x.gold for x in examples) == REAL[file]


@pytest.mark.parametrize(
  ("name", "split", "file", "answers", "expected"),
  [
    ("sst2", "test", "SST-2", ["1", "0", "1"], ["1", "0", "1"]),
    ("stsb", "test", "STS-B", [5.2, -1, 0.12345], ["5.000", "0.000", "0.123"]),
    ("mnli", "test_mismatched", "MNLI-mm", LABELS["mnli"], LABELS["mnli"]),
  ],
)
def test_submissions_have_glues_format(
  tmp_path, name, split, file, answers, expected
):
  keys = ["10", "9", "0"]  # in another order than the file's
  path = records.write_submission(tmp_path, TASKS[name], split, keys, answers)
  assert path == tmp_path / f"{file}.tsv"
  lines = [f"{k}\t{a}" for k, a in zip(keys, expected, strict=True)][::-1]
  assert path.read_text().split("\n") == ["index\tprediction", *lines, ""]


# --- your own task

PAIRS = define_own_task(text="a, b", label="label", kind=CLASSES)
ONE = define_own_task(text="text", label="label", kind=CLASSES)
ROWS = [
  {"a": 'say "x', "b": "é\u2028y", "label": "no"},
  {"a": '"q" 1', "b": " c ", "label": "yes"},
]


@pytest.fixture
def write(tmp_path):
  def write_file(name, content):
    """Writes a text, or rows in the format of the name; returns the path."""
    path = tmp_path / name
    if not isinstance(content, str):
      table = [list(content[0]), *(list(row.values()) for row in content)]
      if ".jsonl" in name:
        content = "\n".join(map(json.dumps, content)) + "\n\n"
      elif ".csv" in name:
        cells = [[x.replace('"', '""') for x in row] for row in table]
        content = "\r\n".join('"' + '","'.join(row) + '"' for row in cells)
      else:
        content = "\n".join(map("\t".join, table)) + "\n\n"
    pack = COMPRESSORS.get(path.suffix, COMPRESSORS[""])
    path.write_bytes(pack(content.encode()))
    return str(path)

  return write_file


@pytest.mark.parametrize("name", ["x.tsv.xz", "x.csv", "x.jsonl"])
def test_every_format_gives_the_same_records(write, name):
  path = write(name, ROWS)
  first = 1 if name == "x.jsonl" else 2
  assert list(read_file(path)) == [
    (f"{path}:{first + i}", row) for i, row in enumerate(ROWS)
  ]
  assert read_split(PAIRS, "train", path) == [
    Example(str(i), row["a"], row["b"], row["label"], f"{path}:{first + i}")
    for i, row in enumerate(ROWS)
  ]


def test_quotes_are_literal_in_tsv_and_span_lines_in_csv(write):
  quoted = '\ufeffa\tb\n"x\t1\ny"\t2\n'
  records_ = list(read_file(write("x.txt", quoted)))
  assert [r.fields["a"] for r in records_] == ['"x', 'y"']
  path = write("x.csv", '\ufeffa,b\n"x,\ny",1\nz,2\n')
  assert list(read_file(path)) == [
    (f"{path}:2", {"a": "x,\ny", "b": "1"}),
    (f"{path}:4", {"a": "z", "b": "2"}),
  ]


def test_a_task_may_have_the_hubs_names_as_classes(tmp_path):
  names = ["negative", "positive"]
  label = datasets.ClassLabel(names=names)
  features = {"sentence": datasets.Value("string"), "label": label}
  columns = {"sentence": ["p", "q"], "label": [0, 1]}
  split = datasets.Dataset.from_dict(columns, datasets.Features(features))
  datasets.DatasetDict(validation=split).save_to_disk(str(tmp_path))
  own = dataclasses.replace(TASKS["sst2"], name="mine", labels=(*names,))
  for task, golds in ((own, names), (TASKS["sst2"], ["0", "1"])):
    examples = read_split(task, "dev", f"hf:{tmp_path}")
    assert [x.gold for x in examples] == golds


def test_classes_of_a_data_set_become_names(tmp_path):
  features = datasets.Features(
    text=datasets.Value("string"),
    label=datasets.ClassLabel(names=["yes", "no"]),
  )
  splits = datasets.DatasetDict(
    {
      name: datasets.Dataset.from_dict({"text": texts, "label": ids}, features)
      for name, texts, ids in (
        ("train", ["p", "q"], [1, 0]),
        ("validation", ["r"], [-1]),
      )
    }
  )
  splits.save_to_disk(str(tmp_path))
  saved = f"hf:{tmp_path}"
  assert list(read_dataset(saved, split="train")) == [
    (f"{saved} [train]: record 1", {"text": "p", "label": "no"}),
    (f"{saved} [train]: record 2", {"text": "q", "label": "yes"}),
  ]
  (record,) = read_dataset(saved, split="dev")
  assert record.fields["label"] is None
  assert records.read_class_names(saved, "dev", "label") == ("yes", "no")
  examples = read_split(ONE, "dev", f"{saved} split=train")
  assert [x.gold for x in examples] == ["no", "yes"]


@pytest.mark.parametrize(
  ("golds", "metric", "labels"),
  [
    (["b", "a", "b"], "", ("a", "b")),
    (["2", "10", "1"], "", ("1", "2", "10")),
    (["a", "b", "b"], "f1", ("b", "a")),  # F1 is that of the rarer, the second
    (["a", "b", "b", "c"], "f1", ("a", "b", "c")),
  ],
)
def test_classes_are_ordered(golds, metric, labels):
  keys = {"text": "text", "label": "label", "kind": CLASSES, "metric": metric}
  train = [Example("0", "text", None, gold, "x.csv:2") for gold in golds]
  assert fit_own_task(define_own_task(**keys), train).labels == labels
  named = fit_own_task(define_own_task(**keys), train, names=("b", "a"))
  assert named.labels == ("b", "a")
  task = define_own_task(**keys, labels="b,a")
  assert fit_own_task(task, train) == task
  assert task.metrics == (("f1", "accuracy") if metric else ("accuracy",))


def test_scores_are_scaled_by_the_training_file(write):
  task = define_own_task(text="text", label="stars", kind=SCORE)
  path = write("x.csv", "text,stars\na,1\nb,4\nc,1\nd,4e0\n")
  train = read_split(task, "train", path)
  assert [x.gold for x in train] == [1.0, 4.0, 1.0, 4.0]
  fitted = fit_own_task(task, train)
  assert fitted.scale == (2.5, 1.5) and fitted.metrics == ("spearman",)
  equal = [dataclasses.replace(x, gold=0.1) for x in train * 3]
  assert fit_own_task(task, equal).scale == (0.0, 1.0)


def test_equal_numbers_are_one_class_and_only_tests_lack_labels(write):
  rows = [{"text": "a", "label": x} for x in (1, 1.0, 0.0, 0, 0.5)]
  examples = read_split(ONE, "train", write("x.jsonl", rows))
  assert [x.gold for x in examples] == ["1", "1", "0", "0", "0.5"]
  path = write("x.jsonl", '{"text": "a"}\n')
  assert read_split(ONE, "test", path)[0].gold is None
  with pytest.raises(DataError, match="x.jsonl:1: no column 'label'. Col"):
    read_split(ONE, "dev", path)


# --- refusals


@pytest.mark.parametrize(
  ("name", "split", "row", "message"),
  [
    ("rte", "dev", "7\ta\t \tentailment", "v.tsv:4: .*' ', not a text"),
    ("rte", "dev", "7\ta\tb\tmaybe", "dev.tsv:4: .*'maybe', not a known"),
    ("qqp", "test", "5\t6", "QQP/test.tsv:4: 2 fields, but 3 columns"),
  ],
)
def test_bad_rows_of_glue_are_refused(tmp_path, name, split, row, message):
  path, _ = write_split(tmp_path, name, split, extra=[row])
  with pytest.raises(DataError, match=message):
    read_split(TASKS[name], split, path)


@pytest.mark.parametrize(
  ("row", "kind", "message"),
  [
    ({"b": 3}, CLASSES, "column 'b' holds 3, not a text"),
    ({"label": math.nan}, CLASSES, "'label' holds nan, not a label"),
    ({"label": True}, SCORE, "True, not a finite number"),
    ({"label": math.inf}, SCORE, "inf, not a finite number"),
  ],
)
def test_bad_values_are_refused(write, row, kind, message):
  good = {"a": "x", "b": "y", "label": "no" if kind == CLASSES else 1}
  path = write("x.jsonl", [good, good | row])
  task = dataclasses.replace(PAIRS, kind=kind, metrics=())
  with pytest.raises(DataError, match=f"x.jsonl:2: .*{message}"):
    read_split(task, "dev", path)


@pytest.mark.parametrize(
  ("file", "error", "message"),
  [
    ("x.tsv", DataError, "x.tsv: the file has no records"),
    ("x.md", DataError, "x.md: unknown format. .* .tsv, .csv or .jsonl"),
    ("x.csv", DataError, "x.csv:1: 2 columns 'b'. .*'b'. Rename one"),
    ("hf:x spilt=train", InputError, "hf:.*no option spilt=.*mean split="),
  ],
)
def test_bad_files_are_refused(write, tmp_path, file, error, message):
  write("x.tsv", "")
  write("x.md", "a\n")
  write("x.csv", "a,b,b\nswan,0,1\n")
  if not file.startswith("hf:"):
    file = f"{tmp_path}/{file}"
  with pytest.raises(error, match=message):
    read_split(dataclasses.replace(ONE, columns=("a",)), "test", file)


@pytest.mark.parametrize(
  ("more", "message"),
  [
    ({"metric": "pearson"}, "finetune.metric='pearson' is unknown"),
    ({"kind": SCORE, "labels": "a,b"}, "finetune.labels='a,b'"),
    ({"text": "a,b,c"}, "finetune.text="),
    ({"label": "a"}, "finetune.text="),
  ],
)
def test_options_that_do_not_fit_are_refused(more, message):
  with pytest.raises(InputError, match=message):
    define_own_task(**{"text": "a", "label": "l", "kind": CLASSES} | more)


def test_one_class_is_refused():
  one = [Example("0", "a", None, "x", "train.csv:2")]
  with pytest.raises(DataError, match="train.csv:2: 1 classes .*'x'"):
    fit_own_task(ONE, one)
