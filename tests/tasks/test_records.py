"""Tests records of files and data sets, and the user's own task."""

import dataclasses
import json
import math

import datasets
import pytest

from support.texts import COMPRESSORS
from truenegs_jax.runtime.errors import DataError, InputError, UnavailableError
from truenegs_jax.tasks.records import (
  read_class_names,
  read_dataset,
  read_examples,
  read_file,
)
from truenegs_jax.tasks.task import (
  CLASSES,
  SCORE,
  Example,
  define_own_task,
  fit_own_task,
)

PAIRS = define_own_task(text="a, b", label="label", kind=CLASSES)
TEXTS = define_own_task(text="text", label="label", kind=CLASSES)
ROWS = [
  {"a": 'say "x', "b": "é\u2028y", "label": "no"},
  {"a": '"q" 1', "b": " c ", "label": "yes"},
]


def format_rows(name: str, rows) -> str:
  """Formats rows by the extension of a file name."""
  table = [list(rows[0]), *(list(row.values()) for row in rows)]
  if ".jsonl" in name:
    return "\n".join(map(json.dumps, rows)) + "\n\n"
  if ".csv" in name:
    quoted = [['"' + x.replace('"', '""') + '"' for x in row] for row in table]
    return "\r\n".join(map(",".join, quoted))
  return "\n".join("\t".join(map(str, row)) for row in table) + "\n\n"


@pytest.fixture
def write(tmp_path):
  def write_file(name, content):
    path = tmp_path / name
    text = content if isinstance(content, str) else format_rows(name, content)
    data = text.encode(errors="surrogateescape")
    path.write_bytes(COMPRESSORS.get(path.suffix, COMPRESSORS[""])(data))
    return str(path)

  return write_file


@pytest.mark.parametrize(
  "kind, pack", [(".tsv", ""), (".tsv", ".xz"), (".csv", ""), (".jsonl", "")]
)
def test_every_format_gives_the_same_records(write, kind, pack):
  path = write(f"x{kind}{pack}", ROWS)
  first = 1 if kind == ".jsonl" else 2
  assert list(read_file(path)) == [
    (f"{path}:{first + i}", row) for i, row in enumerate(ROWS)
  ]


def test_quotes_are_literal_in_tsv_and_span_lines_in_csv(write):
  quoted = 'a\tb\n"x\t1\ny"\t2\n'
  expected = [{"a": '"x', "b": "1"}, {"a": 'y"', "b": "2"}]
  for name in ("x.tsv", "x.txt"):
    records = list(read_file(write(name, "\ufeff" + quoted)))
    assert [r.fields for r in records] == expected
  path = write("x.csv", '\ufeffa,b\n"x,\ny",1\nz,2\n')
  assert list(read_file(path)) == [
    (f"{path}:2", {"a": "x,\ny", "b": "1"}),
    (f"{path}:4", {"a": "z", "b": "2"}),
  ]


def test_tables_without_a_header_and_with_uneven_rows(write):
  path = write("x.tsv", "1\t2\n3\n\n4\t5\n")
  with pytest.raises(DataError, match=r"x.tsv:2: 1 fields, but 2 columns"):
    list(read_file(path, columns=("p", "q")))
  skipped = []
  records = list(read_file(path, columns=("p", "q"), skipped=skipped))
  assert [r.fields["q"] for r in records] == ["2", "5"]
  assert skipped == [f"{path}:2"]
  # In a table of one column, a blank line is a row without text.
  texts = [r.fields["a"] for r in read_file(write("one.tsv", "a\nx\n\ny\n"))]
  assert texts == ["x", "", "y"]


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("x.tsv", "", "x.tsv: the file has no records"),
    ("x.tsv", "a\tb\ta\n1\t2\t3\n", "x.tsv:1: two columns have the same name"),
    ("x.csv", 'a,b\n1,2\n"3,4\n', "x.csv:3: unbalanced quotes"),
    ("x.jsonl", '{"a": 1}\n{"a": \n', "x.jsonl:2: not JSON"),
    (
      "x.md",
      "a\n",
      r"x.md: unknown format. .* .tsv, .csv or .jsonl",
    ),
  ],
)
def test_rejects_bad_files_and_names_the_line(write, name, content, message):
  with pytest.raises(DataError, match=message):
    list(read_file(write(name, content)))


@pytest.fixture
def saved(tmp_path):
  """Saves a data set with named classes and two splits."""
  features = datasets.Features(
    a=datasets.Value("string"), label=datasets.ClassLabel(names=["no", "yes"])
  )
  splits = {
    name: datasets.Dataset.from_dict({"a": texts, "label": ids}, features)
    for name, texts, ids in (
      ("train", ["p", "q"], [1, 0]),
      ("validation", ["r"], [-1]),
    )
  }
  datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
  return str(tmp_path / "saved")


def test_classes_of_a_data_set_become_names(saved):
  assert list(read_dataset(f"hf:{saved}", split="train")) == [
    (f"hf:{saved} [train]: record 1", {"a": "p", "label": "yes"}),
    (f"hf:{saved} [train]: record 2", {"a": "q", "label": "no"}),
  ]
  (record,) = read_dataset(f"hf:{saved}", split="dev")
  assert record.fields["label"] is None
  names = read_class_names(f"hf:{saved}", "dev", "label")
  assert names == ("no", "yes")
  assert not read_class_names(f"hf:{saved}", "dev", "a")
  task = dataclasses.replace(TEXTS, columns=("a",))
  examples = read_examples(f"hf:{saved} split=train", "dev", task)
  assert [x.gold for x in examples] == ["yes", "no"]
  with pytest.raises(DataError, match="record 1: .*'label' holds None"):
    read_examples(f"hf:{saved}", "dev", task)


def test_rejects_unavailable_data_sets(saved, monkeypatch):
  with pytest.raises(InputError, match="hf:.*no option spilt=.*mean split="):
    list(read_dataset(f"hf:{saved} spilt=train", split="train"))
  with pytest.raises(DataError, match="no split 'x'.* train, valid"):
    list(read_dataset(f"hf:{saved} split=x", split="train"))
  with pytest.raises(DataError, match="neither a folder nor a name"):
    list(read_dataset("hf:data/own/x.tsv", split="train"))
  requests = []

  def refuse(*args, **_):
    requests.append(args)
    raise ConnectionError("no route")

  monkeypatch.setattr(datasets, "load_dataset_builder", refuse)
  where, message = "hf:owner/set config=mini split=test", "no route.*hf:FOLDER"
  with pytest.raises(UnavailableError, match=message) as e:
    read_examples(where, "dev", PAIRS)
  assert requests == [("owner/set", "mini")]
  assert "data." not in str(e.value)  # names no keys of pre-training


def test_errors_while_reading_from_the_hub_name_the_key(
  write, tmp_path, monkeypatch
):
  write("train.jsonl", '{"a": 1}\n{"a')
  loaded = datasets.load_dataset_builder(str(tmp_path))
  monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: loaded)
  with pytest.raises(UnavailableError, match="'hf:owner/set .train.' cannot"):
    list(read_dataset("hf:owner/set", split="train"))


def test_user_task_of_pairs_with_classes(write):
  path = write("train.csv", ROWS)
  train = read_examples(path, "train", PAIRS)
  assert train == [
    Example(str(i), row["a"], row["b"], row["label"], f"{path}:{2 + i}")
    for i, row in enumerate(ROWS)
  ]
  task = fit_own_task(PAIRS, train)
  assert (task.labels, task.metrics) == (("no", "yes"), ("accuracy",))
  task = define_own_task(
    text="a,b", label="label", kind=CLASSES, labels="yes,no", metric="f1"
  )
  assert fit_own_task(task, train) == task
  assert (task.labels, task.metrics) == (("yes", "no"), ("f1", "accuracy"))


@pytest.mark.parametrize(
  ("golds", "metric", "labels"),
  [
    (["b", "a", "b"], "", ("a", "b")),
    (["2", "10", "1"], "", ("1", "2", "10")),
    (["2", "10", "1", "x"], "", ("1", "10", "2", "x")),
    (["a", "b", "b"], "f1", ("b", "a")),  # F1 is that of the rarer, the second
    (["a", "b", "a"], "f1", ("a", "b")),
    (["a", "b"], "f1", ("a", "b")),
    (["a", "b", "b", "c"], "f1", ("a", "b", "c")),
  ],
)
def test_classes_are_ordered(golds, metric, labels):
  task = define_own_task(
    text="text", label="label", kind=CLASSES, metric=metric
  )
  train = [Example("0", "text", None, gold, "x.csv:2") for gold in golds]
  assert fit_own_task(task, train).labels == labels
  assert fit_own_task(task, train, names=("b", "a")).labels == ("b", "a")


def test_a_folder_of_parquet_is_read_by_datasets(tmp_path):
  datasets.Dataset.from_list(ROWS).to_parquet(str(tmp_path / "x.parquet"))
  examples = read_examples(f"hf:{tmp_path}", "train", PAIRS)
  assert [x.gold for x in examples] == ["no", "yes"]
  assert examples[1].location == f"hf:{tmp_path} [train]: record 2"


def test_scores_are_scaled_by_the_training_file(write):
  task = define_own_task(text="text", label="stars", kind=SCORE)
  path = write("x.csv", "text,stars\na,1\nb,4\nc,1\nd,4e0\n")
  train = read_examples(path, "train", task)
  assert [x.gold for x in train] == [1.0, 4.0, 1.0, 4.0]
  assert train[0].second is None
  fitted = fit_own_task(task, train)
  assert fitted.scale == (2.5, 1.5) and fitted.metrics == ("spearman",)
  equal = [dataclasses.replace(x, gold=0.1) for x in train * 3]
  assert fit_own_task(task, equal).scale == (0.0, 1.0)


def test_only_test_files_may_have_no_labels(write):
  path = write("x.jsonl", '{"text": "a"}\n')
  [example] = read_examples(path, "test", TEXTS)
  assert example.gold is None
  labeled = write("y.tsv", "text\tlabel\na\tno\nb\t\n")
  test = read_examples(labeled, "test", TEXTS)
  assert [x.gold for x in test] == ["no", None]
  with pytest.raises(DataError, match="x.jsonl:1: no column 'label'. Col"):
    read_examples(path, "dev", TEXTS)


def test_equal_numbers_are_one_class(write):
  rows = [{"text": "a", "label": x} for x in (1, 1.0, 0.0, 0, 0.5)]
  examples = read_examples(write("x.jsonl", rows), "train", TEXTS)
  assert [x.gold for x in examples] == ["1", "1", "0", "0", "0.5"]


@pytest.mark.parametrize(
  ("row", "kind", "message"),
  [
    ({"a": " "}, CLASSES, "the text in column 'a' is empty"),
    ({"b": 3}, CLASSES, "column 'b' holds 3, not a text"),
    ({"label": "maybe"}, CLASSES, "'maybe' is unknown. Labels are 'no', 'yes'"),
    ({"label": math.nan}, CLASSES, "'label' holds nan, not a label"),
    ({"label": True}, SCORE, "True, not a finite number"),
  ],
)
def test_rejects_bad_rows_and_names_the_line(write, row, kind, message):
  good = {"a": "x", "b": "y", "label": "no" if kind == CLASSES else 1}
  path = write("x.jsonl", [good, good | row])
  labels = ("no", "yes") if kind == CLASSES else ()
  task = dataclasses.replace(PAIRS, kind=kind, labels=labels, metrics=())
  with pytest.raises(DataError, match=f"x.jsonl:2: .*{message}"):
    read_examples(path, "dev", task)


def test_rejects_options_that_do_not_fit():
  one = [Example("0", "a", None, "x", "train.csv:2")]
  with pytest.raises(DataError, match="train.csv:2: 1 classes .*'x'"):
    fit_own_task(TEXTS, one)
  keys = {"text": "a", "label": "l", "kind": CLASSES}
  for more, message in (
    ({"metric": "pearson"}, "metric='pearson' does not fit"),
    ({"kind": SCORE, "labels": "a,b"}, "finetune.labels='a,b'"),
    ({"labels": "a"}, "finetune.labels='a'"),
    ({"text": "a,b,c"}, "finetune.text="),
    ({"text": ""}, "finetune.text="),
    ({"label": ""}, "finetune.text="),
    ({"label": "a"}, "finetune.text="),
  ):
    with pytest.raises(InputError, match=message):
      define_own_task(**keys | more)
