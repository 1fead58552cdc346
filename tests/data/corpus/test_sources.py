"""Tests all sources: documents, determinism, bad text and data sets."""

import contextlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
import types

import datasets
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from support.texts import COMPRESSORS, FORMATTERS, to_jsonl, to_parquet
from truenegs_jax.data.corpus import documents, readers
from truenegs_jax.data.corpus.corpus import ReadCounts
from truenegs_jax.data.corpus.readers import SUFFIXES, TEXT, ReadState
from truenegs_jax.data.corpus.sources_spec import open_corpus
from truenegs_jax.runtime.errors import DataError, InputError, UnavailableError

TEXTS = ["one\ntwo, 2", 'say "x"\u2028y', "é 語 𝄞", "a\tb", " c ", "last"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """Keeps converted data sets out of the user's cache."""
  monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def save(texts, folder) -> str:
  datasets.disable_progress_bars()
  table = {"id": range(len(texts)), "text": texts}
  datasets.Dataset.from_dict(table).save_to_disk(str(folder))
  return f"hf:{folder}"


def texts_of(tmp_path, data, name="t.txt", options="", **errors) -> list[str]:
  (tmp_path / name).write_bytes(data)
  return list(open_corpus(f"{tmp_path / name} {options}", **errors))


def repairs_of(spec, **errors) -> dict[str, int]:
  read_counts = ReadCounts()
  assert list(open_corpus(spec, **errors).read(read_counts))
  return dict(read_counts.repairs)


# Forming documents.


def blocks(text: str) -> list[str]:
  """Reference: runs of lines that are not blank."""
  result, block = [], []
  for line in [*re.split("\r\n|\r|\n", text), ""]:
    if line.strip():
      block.append(line)
    elif block:
      result.append("\n".join(block))
      block = []
  return result


@pytest.mark.parametrize("rule", documents.RULES)
@pytest.mark.parametrize("limit", [8, 20, 1_000_000])
def test_documents_do_not_depend_on_runs_of_lines(monkeypatch, rule, limit):
  monkeypatch.setattr(readers, "MAX_DOCUMENT_BYTES", limit)
  rng = np.random.default_rng(0)
  for _ in range(150):
    lines = rng.choice(["", " ", "\u3000", "a b", "é", "語"], rng.integers(25))
    runs, start = [], 0
    while start < len(lines):
      stop = start + rng.integers(1, 6)
      runs.append("".join(line + "\n" for line in lines[start:stop]))
      start = stop
    expected = blocks("\n".join(lines))
    if rule == "record":
      expected = [line for block in expected for line in block.split("\n")]
    elif rule == "file":
      expected = ["\n".join(expected)] if expected else []
    state, single = ReadState(), ReadState()
    formed = list(documents.from_lines(runs, rule, state))
    assert formed == list(documents.from_lines(["".join(runs)], rule, single))
    assert state.repairs == single.repairs
    assert "\n".join(formed) == "\n".join(expected)
    assert all(documents.num_bytes(d) <= limit for d in formed)
    if limit > 100:
      assert formed == expected
    cuts = state.repairs[readers.LONG_DOCUMENTS]
    assert len(formed) == len(expected) + cuts


@pytest.mark.parametrize("suffix", FORMATTERS)
def test_long_documents_are_cut_at_line_ends(tmp_path, suffix):
  line = "x" * 99_999
  text = "x" + "\n".join([line] * 25)  # the first ten lines are 1 MB
  name = f"t{suffix}"
  texts = texts_of(tmp_path, FORMATTERS[suffix]([text, "é" * 3]), name)
  assert [d.count("\n") + 1 for d in texts] == [10, 10, 5, 1]
  assert "\n".join(texts[:3]) == text
  assert repairs_of(str(tmp_path / name)) == {readers.LONG_DOCUMENTS: 2}


@pytest.mark.parametrize("rule", ["block", "file"])
def test_lines_that_repairs_made_long_are_documents(rule):
  line = "\ufffd" * readers.MAX_LINE_BYTES
  state = ReadState("replace")
  texts = documents.from_lines(itertools.repeat(line + "\n", 9), rule, state)
  assert list(texts) == [line] * 9
  assert state.repairs == {readers.LONG_DOCUMENTS: 8}


@pytest.mark.parametrize("suffix", FORMATTERS)
@pytest.mark.parametrize(
  "rule, expected",
  [
    ("block", ["a\nb", "c", "d"]),
    ("record", ["a\nb\nc", "d"]),
    ("file", ["a\nb\nc\nd"]),
  ],
)
def test_document_rules(tmp_path, suffix, rule, expected):
  data = FORMATTERS[suffix](["\na\r\nb\n \n\nc\n", "d"])
  if suffix == ".txt" and rule == "record":
    expected = ["a", "b", "c", "d"]
  name = f"t{suffix}"
  assert texts_of(tmp_path, data, name, f"document={rule}") == expected
  default = "block" if suffix == ".txt" else "record"
  if rule == default:
    assert list(open_corpus(str(tmp_path / name))) == expected


def write_records(folder, suffix: str, texts) -> str:
  """Writes records in a format; returns the part."""
  if suffix == "saved":
    return save(texts, folder / suffix)
  path = folder / f"t{suffix}"
  path.write_bytes(FORMATTERS[suffix](texts))
  return str(path)


RECORDS = (".jsonl", ".csv", ".parquet", "saved")


@pytest.mark.parametrize("limit", [40, 1_000_000])
@pytest.mark.parametrize("suffix", [".txt", *RECORDS])
def test_records_are_joined_until_they_are_long(
  tmp_path, monkeypatch, suffix, limit
):
  monkeypatch.setattr(readers, "MAX_DOCUMENT_BYTES", limit)
  rng = np.random.default_rng(0)
  texts = ["é" * n + " x" for n in rng.integers(1, 15, 60)]
  texts[7:9] = "", "a\n\nb" if suffix in RECORDS else "a\nb"
  spec = write_records(tmp_path, suffix, texts)
  spec += " document=join chars=16"
  expected = [text.replace("\n\n", "\n") for text in texts if text]
  documents_of_pass = list(open_corpus(spec))
  assert documents_of_pass == list(open_corpus(spec))
  assert "\n".join(documents_of_pass) == "\n".join(expected)
  num_cuts, texts_left = 0, iter(expected)
  for number, document in enumerate(documents_of_pass, start=1):
    sizes = []
    while sum(sizes) + len(sizes) - 1 < len(document):
      sizes.append(len(next(texts_left)))
    assert sum(sizes[:-1]) < 16 and len(document.encode()) <= limit
    num_cuts += sum(sizes) < 16 and number < len(documents_of_pass)
  assert repairs_of(spec).get(readers.LONG_DOCUMENTS, 0) == num_cuts
  assert (num_cuts > 0) == (limit < 100)


@pytest.mark.parametrize("suffix", [".txt", *RECORDS])
def test_short_lines_are_left_out_and_counted(tmp_path, suffix):
  texts = ["History\na long line", "See also", "ééééé", "four\nlines"]
  spec = write_records(tmp_path, suffix, texts)
  expected = ["History\na long line", "See also", "ééééé", "lines"]
  for rule in ("", " document=join chars=1"):
    assert list(open_corpus(f"{spec} min_chars=5{rule}")) == expected
  assert list(open_corpus(f"{spec} min_chars=10")) == ["a long line"]
  counted = {"lines under 10 characters, left out": 5}
  assert repairs_of(f"{spec} min_chars=10") == counted
  with pytest.raises(DataError, match="no text.* shorter than min_chars"):
    list(open_corpus(f"{spec} min_chars=50"))


# Formats.


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("suffix", FORMATTERS)
def test_formats_and_compressions_give_equal_documents(
  tmp_path, suffix, compression
):
  rng = np.random.default_rng(0)
  texts = TEXTS + ["".join(rng.choice(list('ab ",é\n'), 50)) for _ in range(40)]
  texts = ["x" + text for text in texts]
  data = COMPRESSORS[compression](FORMATTERS[suffix](texts))
  expected = blocks("\n\n".join(texts))
  name = f"t{suffix}{compression}"
  if suffix != ".parquet" or not compression:
    assert texts_of(tmp_path, data, name, "document=block") == expected


def test_data_sets_give_the_same_documents_as_files(tmp_path):
  assert list(open_corpus(save(TEXTS, tmp_path / "saved"))) == TEXTS
  dictionary = datasets.DatasetDict(
    train=datasets.Dataset.from_dict({"text": TEXTS}),
    test=datasets.Dataset.from_dict({"text": TEXTS[:2]}),
  )
  dictionary.save_to_disk(str(tmp_path / "splits"))
  assert list(open_corpus(f"hf:{tmp_path}/splits")) == TEXTS
  assert list(open_corpus(f"hf:{tmp_path}/splits split=test")) == TEXTS[:2]
  options = ("", "split=test", "column=text document=block")
  corpora = [open_corpus(f"hf:{tmp_path}/splits {x}") for x in options]
  identities = [json.dumps(corpus.identity()) for corpus in corpora]
  assert len(set(identities)) == 3
  (path,) = (tmp_path / "splits" / "train").glob("*.arrow")
  os.utime(path, ns=(1, 1))
  changed = open_corpus(f"hf:{tmp_path}/splits").identity()
  assert json.dumps(changed) != identities[0]
  (tmp_path / "data").mkdir()
  files = {"train-0": TEXTS[:4], "train-1": TEXTS[4:], "test-1": TEXTS[:1]}
  for name, texts in files.items():
    (tmp_path / "data" / f"{name}.jsonl").write_bytes(to_jsonl(texts))
  for streaming in ("true", "false"):
    spec = f"hf:{tmp_path}/data streaming={streaming}"
    assert list(open_corpus(spec)) == TEXTS
    assert list(open_corpus(spec + " split=test")) == TEXTS[:1]


class FakeWordNet:
  """Two lexicographer files of 100 nouns each, interleaved."""

  def all_synsets(self, pos):
    return [self.synset(i) for i in range(200)] if pos == "n" else []

  def synset(self, i):
    examples = [f"an  example\tof {i}"] if i % 3 == 0 else []
    return types.SimpleNamespace(
      lexname=lambda: ("noun.plant", "noun.act")[i % 2],
      offset=lambda: i,
      definition=lambda: f"definition {i}",
      examples=lambda: examples,
    )

  def open(self, name):
    return contextlib.closing(io.StringIO(name))


@pytest.mark.parametrize("name", ["hf", "wordnet", *SUFFIXES])
def test_sources_are_deterministic_and_yield_clean_documents(tmp_path, name):
  texts = [*TEXTS, "", " \n", "a\r\n \n\nb"]
  spec = name
  if name == "hf":
    spec = save(texts, tmp_path / "saved")
  elif name in SUFFIXES:
    form = {".json": to_jsonl, **FORMATTERS}[name]
    (tmp_path / f"t{name}").write_bytes(form(texts))
    spec = str(tmp_path / f"t{name}")
  corpus = open_corpus(spec, reader=FakeWordNet())
  read_counts = ReadCounts()
  first, second = (
    list(corpus.read(read_counts)),
    list(corpus.read(ReadCounts())),
  )
  assert first == second and first and read_counts.fraction_read == 1.0
  assert [d.number for d in first] == list(range(len(first)))
  for text in corpus:
    assert isinstance(text, str) and "\0" not in text and "\r" not in text
    assert all(line.strip() for line in text.split("\n"))
    text.encode()
  identity = corpus.identity()
  assert identity == corpus.identity() == json.loads(json.dumps(identity))
  if name == "wordnet":
    numbers = [
      [int(line.split()[1]) for line in d.text.split("\n") if line[0] == "d"]
      for d in first
    ]
    # Runs of 64 within a lexicographer file.
    acts, plants = list(range(1, 200, 2)), list(range(0, 200, 2))
    assert numbers == [acts[:64], acts[64:], plants[:64], plants[64:]]
    assert "definition 3\nan example of 3\ndefinition 5" in first[0].text
  else:
    num_blank = 0 if SUFFIXES.get(name) == TEXT else 2
    assert read_counts.repairs[readers.BLANK_DOCUMENTS] == num_blank


@pytest.mark.slow
def test_real_wordnet(tmp_path, real_data):
  pytest.importorskip("nltk")
  from truenegs_jax.synonyms.wordnet import open_wordnet

  archive = real_data / "wordnet" / "wordnet-3.0-nltk-layout.tar.xz"
  with tarfile.open(archive) as file:
    file.extractall(tmp_path, filter="data")
  corpus = open_corpus("wordnet", reader=open_wordnet(str(tmp_path)))
  texts = list(corpus)
  readers.read_wordnet.cache_clear()  # half a gigabyte of NLTK
  lines = [line for text in texts for line in text.split("\n")]
  assert (len(texts), len(lines)) == (1862, 165_998)
  assert "stout-bodied insect with large membranous wings" in "\n".join(lines)
  # Published runs find their rows by this value.
  (identity,) = corpus.identity()
  assert identity == {"source": "wordnet", "sha256": "9c33953116f661f9"}


# Bad input.


def parquet_of(**columns) -> bytes:
  file = io.BytesIO()
  parquet.write_table(pyarrow.table(columns), file)
  return file.getvalue()


@pytest.mark.parametrize("indices", [[1], [0] * 1000 + [1], [1] * 1000])
def test_long_records_of_parquet_are_refused(tmp_path, indices):
  texts = pyarrow.array(["a", "x" * 20_000_000])
  column = pyarrow.DictionaryArray.from_arrays(indices, texts)
  file = io.BytesIO()  # 20 GB for 1,000 records
  options = {"compression": "zstd", "store_schema": False}
  parquet.write_table(pyarrow.table({"text": column}), file, **options)
  before = pyarrow.total_allocated_bytes()
  with pytest.raises(DataError, match="a record of more than 16,000,000 bytes"):
    texts_of(tmp_path, file.getvalue(), "t.parquet")
  assert pyarrow.default_memory_pool().max_memory() - before < 200_000_000


LATIN1 = pyarrow.array([b"good", b"b\xe9d"]).view(pyarrow.string())
HALVES = b'{"text": "a\\udc00\\ud800b"}'
DEEP = b"[" * 200_000 + b"]" * 200_000
BAD = [
  ("t.txt", b"", "t.txt' has no text"),
  ("t.txt.gz", b"", "t.txt.gz' has no text"),
  ("t.jsonl", b'{"text": ""}\n{"text": null}', "has no text"),
  ("t.jsonl", b'{"text": "a"}\n{"text": "b\n', r":2: not JSON: .* column 10"),
  ("t.jsonl", b'{"text": "a"}\n{"text": 3}', r":2: .* holds int, not text"),
  ("t.jsonl", b'{"text": ["a"]}', r":1: the column holds list, not text"),
  ("t.jsonl", b'{"text": "a"}\n{"id": 3, "Text": 4}', r":2: no .*id, Text"),
  ("t.jsonl", b"{}", r"t.jsonl:1: no column 'text'. Columns: none"),
  ("t.jsonl", b'[{"text": "a"}]', r":1: list, not a JSON object"),
  ("t.jsonl", DEEP, r"t.jsonl:1: nested too deep"),
  ("t.jsonl", b'{"text": ' + b"1" * 5000 + b"}", r":1: .*4300 digits"),
  ("t.jsonl", b'\n{"text": "a\\ud800b"}', r":2: half of a surrogate pair"),
  ("t.jsonl", b'{"text": "a\\u0000b"}', r"t.jsonl:1: NUL in the text"),
  ("t.jsonl", b'{"text": "\xe9"}', r"t.jsonl:1: byte 0xe9"),
  ("t.jsonl", to_jsonl(["x" * 1_000_001]), r":1: a line of more than 1,000,0"),
  ("t.json", b'{\n"text": "a"\n}', r"t.json:1: .* one JSON object per line"),
  ("t.csv", b"", "t.csv' has no text"),
  ("t.csv", b"id,Text\n1,a\n", r"t.csv:1: no column 'text'. Columns: id, Text"),
  ("t.csv", b"text,text\n1,a\n", r"t.csv:1: 2 columns 'text'. Columns: text, "),
  ("t.csv", b'text\n"a\nb"\n"c', r"t.csv:4: unbalanced quotes"),
  ("t.csv", b'text\n"a"b\n', r"t.csv:2: unbalanced quotes"),
  ("t.csv", b"id,text\n1,a\n2\n", r"t.csv:3: 1 fields, but 2 in the first"),
  ("t.csv", b"id,text\n1,a,b\n", r"t.csv:2: 3 fields, but 2 in the first"),
  ("t.csv", b"text\n\xe9\n", r"t.csv:2: byte 0xe9.* -f LATIN1"),
  ("t.txt", "a".encode("utf-16"), r"t.txt:1: byte 0xff.* -f UTF-16"),
  ("t.tsv", b"id,text\n1,a\n", r"t.tsv:1: no column 'text'. Columns: id,text"),
  ("t.parquet", b"", "t.parquet: not a Parquet file"),
  ("t.parquet", b"just text", "t.parquet: not a Parquet file"),
  ("t.parquet", to_parquet(TEXTS)[:-9], "not a Parquet file"),
  ("t.parquet", parquet_of(a=["x"], b=[1]), r"no column 'text'. Columns: a, b"),
  ("t.parquet", parquet_of(text=[1], b=["x"]), "holds int64, not text"),
  ("t.parquet", parquet_of(text=[b"a"]), r"holds binary, not text"),
  ("t.parquet", parquet_of(text=[None, ""]), "t.parquet' has no text"),
  ("t.parquet", parquet_of(text=LATIN1), "record 2: byte 0xe9 is not"),
  ("t.parquet", parquet_of(text=["a", "b\0"]), "record 2: NUL in the text"),
  ("t.parquet.gz", COMPRESSORS[".gz"](to_parquet(TEXTS)), "Unpack it"),
]


@pytest.mark.parametrize(
  "name, data, message", BAD, ids=[f"{n}-{m}" for n, _, m in BAD]
)
def test_bad_text_is_refused_with_its_position(tmp_path, name, data, message):
  with pytest.raises(DataError, match=message) as error:
    texts_of(tmp_path, data, name)
  assert name in str(error.value) and len(str(error.value)) < 700


@pytest.mark.parametrize(
  "name, data, expected, repair, count",
  [
    ("t.txt", b"a\xe9\n\nb", ["a\ufffd", "b"], "NOT_UTF8", 1),
    ("t.txt", b"a\0\0\n\nb", ["a\ufffd\ufffd", "b"], "NUL", 2),
    ("t.csv", b"text\na\xff\n", ["a\ufffd"], "NOT_UTF8", 1),
    ("t.jsonl", HALVES, ["a\ufffd\ufffdb"], "SURROGATES", 2),
    ("t.jsonl", b'{"text": "a\\u0000b"}', ["a\ufffdb"], "NUL", 1),
    ("t.jsonl", to_jsonl([" ", None, "", "a"]), ["a"], "BLANK_DOCUMENTS", 2),
    ("t.parquet", to_parquet(["a", None]), ["a"], "NULL_VALUES", 1),
    ("t.parquet", parquet_of(text=LATIN1), ["good", "b\ufffdd"], "NOT_UTF8", 1),
  ],
)
def test_bad_text_is_replaced_and_counted(
  tmp_path, name, data, expected, repair, count
):
  assert texts_of(tmp_path, data, name, errors="replace") == expected
  repairs = repairs_of(str(tmp_path / name), errors="replace")
  assert repairs[getattr(readers, repair)] == count


def test_empty_files_beside_others_are_counted(tmp_path):
  for name, text in (("a.txt", "a"), ("b.txt", "\n"), ("c.txt", "c")):
    (tmp_path / name).write_text(text)
  assert list(open_corpus(str(tmp_path))) == ["a", "c"]
  assert repairs_of(str(tmp_path)) == {readers.EMPTY_FILES: 1}


def test_a_file_whose_name_is_no_utf8_is_refused(tmp_path):
  (tmp_path / "\udcff.txt").write_text("one")
  with pytest.raises(InputError, match="is not named in UTF-8"):
    open_corpus(str(tmp_path))


# Data sets.


@pytest.mark.parametrize(
  "where, options, error, message",
  [
    ("splits", "split=dev", DataError, "'dev'. Choose one of train, test"),
    ("splits", "column=id", DataError, "'id' holds int64, not text"),
    ("splits", "column=x", DataError, "no column 'x'. Columns: id, text"),
    ("saved", "split=test", DataError, "no split 'test'"),
    ("saved", "document=file", InputError, "does not apply.* block, record or"),
    ("data", "split=test", DataError, "no split 'test'. Choose one of train"),
    ("data/t.jsonl", "", DataError, "neither a folder nor a name .*remove hf:"),
    ("no/such/folder", "", DataError, "neither a folder nor a name on"),
    ("none", "", DataError, "cannot be read"),
  ],
)
def test_options_of_data_sets_are_checked_when_opened(
  tmp_path, where, options, error, message
):
  save(TEXTS, tmp_path / "saved")
  split = datasets.Dataset.from_dict({"id": range(2), "text": TEXTS[:2]})
  splits = datasets.DatasetDict(train=split, test=split)
  splits.save_to_disk(str(tmp_path / "splits"))
  for name in ("data", "none"):
    (tmp_path / name).mkdir()
  (tmp_path / "data" / "t.jsonl").write_bytes(to_jsonl(TEXTS))
  with pytest.raises(error, match=message):
    open_corpus(f"hf:{tmp_path}/{where} {options}")


def test_errors_of_the_hub_have_hints(monkeypatch):
  def refuse(*args, **options):
    raise ConnectionError("no route")

  monkeypatch.setattr(datasets, "load_dataset_builder", refuse)
  message = "hf:owner/set.*no route.*Without internet"
  with pytest.raises(UnavailableError, match=message):
    open_corpus("hf:owner/set")


@pytest.mark.parametrize("streaming", ["true", "false"])
def test_data_sets_of_the_hub_are_identified_by_their_commit(
  tmp_path, monkeypatch, streaming
):
  (tmp_path / "train.jsonl").write_bytes(to_jsonl(TEXTS))
  load_builder, calls = datasets.load_dataset_builder, []

  def load(name, config, *, revision):
    calls.append((name, config, revision))
    return load_builder(str(tmp_path))

  monkeypatch.setattr(datasets, "load_dataset_builder", load)
  spec = f"hf:owner/set config=en revision=abc streaming={streaming}"
  corpus = open_corpus(spec)
  assert calls == [("owner/set", "en", "abc")]
  assert not corpus.is_local() and list(corpus) == TEXTS
  assert str(corpus) == "hf:owner/set"
  (identity,) = corpus.identity()
  assert identity["revision"] and identity["dataset"] == "owner/set"


def test_reading_text_imports_no_large_library(tmp_path):
  (tmp_path / "t.txt").write_text("text")
  code = (
    "import sys; from truenegs_jax.data.corpus.sources_spec import open_corpus;"
    f" list(open_corpus({str(tmp_path / 't.txt')!r}));"
    " print(sorted({'datasets', 'pyarrow', 'nltk'} & set(sys.modules)))"
  )
  process = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert process.stdout == "[]\n" and not process.stderr
