"""Every source is deterministic, re-iterable, and refuses bad text by place."""

import contextlib
import csv
import io
import json
import lzma
import os
import re
import sys
import tarfile
import tracemalloc
import types

import datasets
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from support.texts import COMPRESSORS, FORMATTERS, corrupt, to_jsonl, to_parquet
from truenegs_jax.data.corpus import (
  documents,
  read_state,
  sources,
)
from truenegs_jax.data.corpus.corpus import Meter
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.data.corpus.sources import SOURCES
from truenegs_jax.data.corpus.sources_spec import open_corpus
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  TrueNegsError,
  UnavailableError,
)

TEXTS = ["one\ntwo, 2", 'say "x"\u2028y', "é 語 𝄞", "a\tb", " c ", "last"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """Keeps what `datasets` converts out of the user's cache."""
  monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def save(texts, folder) -> str:
  datasets.disable_progress_bars()
  table = {"id": range(len(texts)), "text": texts}
  datasets.Dataset.from_dict(table).save_to_disk(str(folder))
  return f"hf:{folder}"


def texts_of(tmp_path, data: bytes, name="t.txt", keys="", **how) -> list[str]:
  (tmp_path / name).write_bytes(data)
  return list(open_corpus(f"{tmp_path / name} {keys}", **how))


def oddities_of(spec, **how) -> dict[str, int]:
  meter = Meter()
  assert list(open_corpus(spec, **how).read(meter))
  return dict(meter.oddities)


# Forming documents.


def blocks(text: str) -> list[str]:
  """By the definition: runs of lines that are not blank."""
  found, block = [], []
  for line in [*re.split("\r\n|\r|\n", text), ""]:
    if line.strip():
      block.append(line)
    elif block:
      found.append("\n".join(block))
      block = []
  return found


@pytest.mark.parametrize("rule", documents.RULES)
@pytest.mark.parametrize("limit", [8, 20, 1_000_000])
def test_documents_of_a_text_do_not_depend_on_its_runs(
  monkeypatch, rule, limit
):
  monkeypatch.setattr(read_state, "MAX_DOCUMENT_BYTES", limit)
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
    reading, whole = ReadState(), ReadState()
    found = list(documents.from_lines(runs, rule, reading))
    assert found == list(documents.from_lines(["".join(runs)], rule, whole))
    assert reading.oddities == whole.oddities
    assert "\n".join(found) == "\n".join(expected)
    assert all(documents.num_bytes(d) <= limit for d in found)
    if limit > 100:
      assert found == expected
    cuts = reading.oddities[read_state.LONG_DOCUMENTS]
    assert len(found) == len(expected) + cuts


@pytest.mark.parametrize("suffix", FORMATTERS)
def test_a_long_document_is_cut_at_a_line(tmp_path, suffix):
  line = "x" * 99_999
  text = "\n".join([line] * 25)
  name = f"t{suffix}"
  found = texts_of(tmp_path, FORMATTERS[suffix]([text, "é" * 3]), name)
  assert [d.count("\n") + 1 for d in found] == [10, 10, 5, 1]
  assert "\n".join(found[:3]) == text
  cuts = oddities_of(str(tmp_path / name))
  assert cuts == {read_state.LONG_DOCUMENTS: 2}


@pytest.mark.parametrize("rule", ["block", "file"])
def test_a_large_file_without_blank_lines_is_streamed(tmp_path, rule):
  (tmp_path / "t.txt").write_text(("x" * 99 + "\n") * 300_000)
  corpus = open_corpus(f"{tmp_path} document={rule}")
  tracemalloc.start()
  sizes = [len(text) for text in corpus]
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert sum(sizes) + len(sizes) == 30_000_000 and max(sizes) <= 1_000_000
  assert peak < 15_000_000


@pytest.mark.parametrize(
  "data, expected",
  [
    (b"a\nb\n\nc", ["a\nb", "c"]),
    (b"a\r\nb\r\n\r\n\r\nc\r\n", ["a\nb", "c"]),
    (b"a\rb\r\rc\r", ["a\nb", "c"]),
    (b"\xef\xbb\xbfa\n", ["a"]),
    (b"\n\n \t\n\xc2\xa0\na\n\n\n", ["a"]),
    ("a\u2028b\x0cc\n".encode(), ["a\u2028b\x0cc"]),
  ],
)
def test_blank_lines_part_documents(tmp_path, data, expected):
  assert texts_of(tmp_path, data) == expected


@pytest.mark.parametrize("suffix", FORMATTERS)
@pytest.mark.parametrize(
  "rule, expected",
  [
    ("block", ["a\nb", "c", "d"]),
    ("record", ["a\nb\nc", "d"]),
    ("file", ["a\nb\nc\nd"]),
  ],
)
def test_what_a_document_is_can_be_chosen(tmp_path, suffix, rule, expected):
  data = FORMATTERS[suffix](["\na\r\nb\n \n\nc\n", "d"])
  if suffix == ".txt" and rule == "record":
    expected = ["a", "b", "c", "d"]
  name = f"t{suffix}"
  assert texts_of(tmp_path, data, name, f"document={rule}") == expected
  default = "block" if suffix == ".txt" else "record"
  if rule == default:
    assert list(open_corpus(str(tmp_path / name))) == expected


# Formats.


@pytest.mark.parametrize("packing", COMPRESSORS)
@pytest.mark.parametrize("suffix", FORMATTERS)
def test_every_format_and_compression_gives_the_same_documents(
  tmp_path, suffix, packing
):
  rng = np.random.default_rng(0)
  texts = TEXTS + ["".join(rng.choice(list('ab ",é\n'), 50)) for _ in range(40)]
  texts = ["x" + text for text in texts]
  data = COMPRESSORS[packing](FORMATTERS[suffix](texts))
  expected = blocks("\n\n".join(texts))
  found = texts_of(tmp_path, data, f"t{suffix}{packing}", "document=block")
  assert found == expected


def test_data_sets_give_the_documents_of_files(tmp_path):
  whole = save(TEXTS, tmp_path / "saved")
  assert list(open_corpus(whole)) == TEXTS
  dictionary = datasets.DatasetDict(
    train=datasets.Dataset.from_dict({"text": TEXTS}),
    test=datasets.Dataset.from_dict({"text": TEXTS[:2]}),
  )
  dictionary.save_to_disk(str(tmp_path / "several"))
  assert list(open_corpus(f"hf:{tmp_path}/several")) == TEXTS
  spec = f"hf:{tmp_path}/several split=test"
  assert list(open_corpus(spec)) == TEXTS[:2]
  keys = ("", "split=test", "column=text document=block")
  states = [
    json.dumps(open_corpus(f"hf:{tmp_path}/several {k}").identity())
    for k in keys
  ]
  assert len(set(states)) == 3
  (path,) = (tmp_path / "several" / "train").glob("*.arrow")
  os.utime(path, ns=(1, 1))
  assert (
    json.dumps(open_corpus(f"hf:{tmp_path}/several").identity()) != states[0]
  )
  (tmp_path / "data").mkdir()
  (tmp_path / "data" / "train-0.jsonl").write_bytes(to_jsonl(TEXTS[:4]))
  (tmp_path / "data" / "train-1.jsonl").write_bytes(to_jsonl(TEXTS[4:]))
  (tmp_path / "data" / "test-1.jsonl").write_bytes(to_jsonl(TEXTS[:1]))
  for streaming in ("true", "false"):
    spec = f"hf:{tmp_path}/data streaming={streaming}"
    assert list(open_corpus(spec)) == TEXTS
    assert list(open_corpus(spec + " split=test")) == TEXTS[:1]


class FakeWordNet:
  """Two lexicographer files of 100 nouns each, in mixed order."""

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


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_every_source_obeys_the_contract(tmp_path, name):
  texts = [*TEXTS, "", " \n", "a\r\n \n\nb"]
  spec = name
  if name == "hf":
    spec = save(texts, tmp_path / "saved")
  elif SOURCES[name].suffixes:
    (tmp_path / "corpus").mkdir()
    for suffix in SOURCES[name].suffixes:
      make = {".json": to_jsonl, **FORMATTERS}[suffix]
      (tmp_path / "corpus" / f"t{suffix}").write_bytes(make(texts))
    spec = str(tmp_path / "corpus")
  corpus = open_corpus(spec, reader=FakeWordNet())
  meter = Meter()
  first, second = list(corpus.read(meter)), list(corpus.read(Meter()))
  assert first == second and first and meter.fraction_read == 1.0
  assert [d.number for d in first] == list(range(len(first)))
  for text in corpus:
    assert isinstance(text, str) and "\0" not in text and "\r" not in text
    assert all(line.strip() for line in text.split("\n"))
    text.encode()
  assert (
    corpus.identity()
    == corpus.identity()
    == json.loads(json.dumps(corpus.identity()))
  )
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
    blank = read_state.BLANK_DOCUMENTS
    assert meter.oddities[blank] == 2 * (name != "text") * (
      1 if name == "hf" else len(SOURCES[name].suffixes)
    )


@pytest.mark.slow
def test_real_wordnet_is_read_whole(tmp_path, real_data):
  pytest.importorskip("nltk")
  from truenegs_jax.synonyms.wordnet import open_wordnet

  archive = real_data / "wordnet" / "wordnet-3.0-nltk-layout.tar.xz"
  with tarfile.open(archive) as file:
    file.extractall(tmp_path, filter="data")
  corpus = open_corpus("wordnet", reader=open_wordnet(str(tmp_path)))
  found = list(corpus)
  sources._wordnet_documents.cache_clear()  # half a gigabyte of NLTK
  lines = [line for d in found for line in d.split("\n")]
  assert (len(found), len(lines)) == (1862, 165_998)
  assert "stout-bodied insect with large membranous wings" in "\n".join(lines)
  # The rows of published runs are found by it.
  assert corpus.identity() == [
    {"source": "wordnet", "sha256": "9c33953116f661f9"}
  ]


def test_real_text_has_the_documents_it_says(real_data):
  packed = real_data / "corpus" / "wikipedia-en-society.txt.xz"
  found = list(open_corpus(str(packed)))
  assert len(found) == 776
  assert sum(d.count("\n") + 1 for d in found) == 14_466
  with lzma.open(packed, "rt", encoding="utf-8") as file:
    assert found == blocks(file.read())


# Bad input.


def parquet_of(**columns) -> bytes:
  file = io.BytesIO()
  parquet.write_table(pyarrow.table(columns), file)
  return file.getvalue()


NOT_UTF8_COLUMN = pyarrow.array([b"good", b"b\xe9d"]).view(pyarrow.string())
DEEP = b"[" * 200_000 + b"]" * 200_000
BAD = [
  ("t.txt", b"", "t.txt: no document in it"),
  ("t.txt.gz", b"", "t.txt.gz: no document in it"),
  ("t.jsonl", b'{"text": ""}\n{"text": null}', "no document in it"),
  ("t.jsonl", b'{"text": "a"}\n{"text": "b\n', r":2: no JSON.*at column 10"),
  ("t.jsonl", b'{"text": "a"}\n{"text": 3}', r":2: .* holds int, not text"),
  ("t.jsonl", b'{"text": ["a"]}', r":1: the column holds list, not text"),
  ("t.jsonl", b'{"text": "a"}\n{"id": 3, "Text": 4}', r":2: no .*id, Text"),
  ("t.jsonl", b"{}", r"t.jsonl:1: no column 'text'; there are: none"),
  ("t.jsonl", b'[{"text": "a"}]', r":1: list, not a JSON object"),
  ("t.jsonl", DEEP, r"t.jsonl:1: JSON that is nested too deeply"),
  ("t.jsonl", b'{"text": ' + b"1" * 5000 + b"}", r":1: .*4300 digits"),
  ("t.jsonl", b'\n{"text": "a\\ud800b"}', r":2: half of a surrogate pair"),
  ("t.jsonl", b'{"text": "a\\u0000b"}', r"t.jsonl:1: NUL in the text"),
  ("t.jsonl", b'{"text": "\xe9"}', r"t.jsonl:1: byte 0xe9 at byte 10"),
  ("t.jsonl", to_jsonl(["x" * 1_000_001]), r":1: a line of more than 1,000,0"),
  ("t.json", b'{\n"text": "a"\n}', r"t.json:1: no JSON object on one line"),
  ("t.csv", b"", "t.csv: no document in it"),
  ("t.csv", b"id,Text\n1,a\n", r"t.csv:1: no column 'text'; .*: id, Text"),
  ("t.csv", b'text\n"a\nb"\n"c', r"t.csv:4: .*quotes do not match"),
  ("t.csv", b'text\n"a"b\n', r"t.csv:2: .*quotes do not match"),
  ("t.csv", b"id,text\n1,a\n2\n", r"t.csv:3: 1 fields, and 2 in the first"),
  ("t.csv", b"id,text\n1,a,b\n", r"t.csv:2: 3 fields, and 2 in the first"),
  ("t.csv", b"text\n\xe9\n", r"t.csv:2: byte 0xe9 at byte 5"),
  ("t.tsv", b"id,text\n1,a\n", r"t.tsv:1: no column 'text'; .*: id,text"),
  ("t.parquet", b"", "t.parquet: no Parquet file"),
  ("t.parquet", b"just text", "t.parquet: no Parquet file"),
  ("t.parquet", to_parquet(TEXTS)[:-9], "no Parquet file, or dam"),
  ("t.parquet", parquet_of(a=["x"], b=[1]), r"no column 'text'; .*: a, b"),
  ("t.parquet", parquet_of(text=[1], b=["x"]), r"holds int64, .* text: b\."),
  ("t.parquet", parquet_of(text=[b"a"]), r"holds binary, not text"),
  ("t.parquet", parquet_of(text=[None, ""]), "t.parquet: no document in it"),
  ("t.parquet", parquet_of(text=NOT_UTF8_COLUMN), "record 2: not UTF-8"),
  ("t.parquet", parquet_of(text=["a", "b\0"]), "record 2: NUL in the text"),
  ("t.parquet.gz", to_parquet(TEXTS), "no .gz file: .*PAR1"),
]


@pytest.mark.parametrize(
  "name, data, message", BAD, ids=[f"{n}-{m}" for n, _, m in BAD]
)
def test_bad_text_is_refused_by_place(tmp_path, name, data, message):
  with pytest.raises(DataError, match=message) as error:
    texts_of(tmp_path, data, name)
  assert name in str(error.value) and len(str(error.value)) < 700


@pytest.mark.parametrize(
  "name, data, expected, oddity, count",
  [
    ("t.txt", b"a\xe9\n\nb", ["a\ufffd", "b"], "NOT_UTF8", 1),
    ("t.txt", b"a\0\0\n\nb", ["a\ufffd\ufffd", "b"], "NUL", 2),
    ("t.csv", b"text\na\xff\n", ["a\ufffd"], "NOT_UTF8", 1),
    ("t.jsonl", b'{"text": "a\\udc00\\ud800b"}', ["a\ufffd\ufffdb"], "SURR", 2),
    ("t.jsonl", b'{"text": "a\\u0000b"}', ["a\ufffdb"], "NUL", 1),
    ("t.jsonl", to_jsonl([" ", None, "", "a"]), ["a"], "BLANK", 2),
    ("t.parquet", to_parquet(["a", None]), ["a"], "NULL_VALUES", 1),
    (
      "t.parquet",
      parquet_of(text=NOT_UTF8_COLUMN),
      ["good", "b\ufffdd"],
      "NOT_UTF8",
      1,
    ),
  ],
)
def test_bad_text_is_replaced_and_counted(
  tmp_path, name, data, expected, oddity, count
):
  assert texts_of(tmp_path, data, name, errors="replace") == expected
  known = {k: v for k, v in vars(read_state).items() if k.isupper()}
  wanted = next(v for k, v in known.items() if k.startswith(oddity))
  found = oddities_of(str(tmp_path / name), errors="replace")
  assert found[wanted] == count


def test_a_long_line_of_a_record_is_cut_when_asked(tmp_path):
  data = to_jsonl(["é " * 600_000 + "\nend"])
  found = texts_of(tmp_path, data, "t.jsonl", errors="replace")
  assert "".join(found).replace("\n", "") == "é " * 600_000 + "end"
  assert all(
    len(line.encode()) <= 10**6 for d in found for line in d.split("\n")
  )
  found = oddities_of(str(tmp_path / "t.jsonl"), errors="replace")
  assert found == {read_state.LONG_LINES: 1, read_state.LONG_DOCUMENTS: 1}


def test_an_empty_file_among_others_is_refused_or_counted(tmp_path):
  for name, text in (("a.txt", "a"), ("b.txt", "\n"), ("c.txt", "c")):
    (tmp_path / name).write_text(text)
  with pytest.raises(DataError, match="b.txt: no document in it"):
    list(open_corpus(str(tmp_path)))
  assert list(open_corpus(str(tmp_path), errors="replace")) == ["a", "c"]
  found = oddities_of(str(tmp_path), errors="replace")
  assert found == {read_state.EMPTY_FILES: 1}


def test_a_quote_that_is_never_closed_does_not_fill_the_memory(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(sources, "MAX_RECORD_BYTES", 10_000)
  data = b'text\n"closed"\n"open\n' + b"line\n" * 100_000
  with pytest.raises(DataError, match=r"t.csv:3: .*field limit \(10000\)"):
    texts_of(tmp_path, data, "t.csv")
  csv.field_size_limit(131_072)


def test_parquet_is_read_in_small_batches(tmp_path):
  texts = [f"{i} " + "x" * 2_000 for i in range(8_000)]
  path = tmp_path / "t.parquet"
  path.write_bytes(to_parquet(texts, row_group_size=8_000, compression="none"))
  pool = pyarrow.default_memory_pool()
  before, most = pool.bytes_allocated(), 0
  for expected, text in zip(texts, open_corpus(str(path)), strict=True):
    assert text == expected
    most = max(most, pool.bytes_allocated() - before)
  assert 0 < most < 8_000_000  # of 16 MB


# Data sets.


@pytest.mark.parametrize(
  "where, keys, kind, message",
  [
    ("several", "split=dev", DataError, "no split 'dev'; .*: train, test"),
    ("several", "column=id", DataError, "'id' holds int64, not text; .*: text"),
    ("several", "column=x", DataError, "no column 'x'; there are: id, text"),
    ("saved", "split=test", DataError, "no split 'test'"),
    ("saved", "config=en", InputError, "leave out config="),
    ("saved", "revision=main", InputError, "revision=main is of the hub"),
    ("saved", "document=file", InputError, "it has records, not files"),
    ("data", "split=test", DataError, "no split 'test'; there are: train"),
    ("data/t.jsonl", "", DataError, "neither a folder nor a name .*without hf"),
    ("no/such/folder", "", DataError, "neither a folder nor a name on"),
    ("none", "", DataError, "cannot be read"),
  ],
)
def test_what_a_data_set_has_not_is_named_at_once(
  tmp_path, where, keys, kind, message
):
  save(TEXTS, tmp_path / "saved")
  table = {"id": range(2), "text": TEXTS[:2]}
  one = datasets.Dataset.from_dict(table)
  datasets.DatasetDict(train=one, test=one).save_to_disk(
    str(tmp_path / "several")
  )
  for name in ("data", "none"):
    (tmp_path / name).mkdir()
  (tmp_path / "data" / "t.jsonl").write_bytes(to_jsonl(TEXTS))
  with pytest.raises(kind, match=message):
    open_corpus(f"hf:{tmp_path}/{where} {keys}")


def test_a_saved_data_set_given_as_a_folder_is_pointed_out(tmp_path):
  save(TEXTS, tmp_path / "a" / "saved")
  for where in (tmp_path, tmp_path / "a" / "saved"):
    with pytest.raises(InputError, match="save_to_disk wrote: .*hf:.*a/saved"):
      open_corpus(str(where))


@pytest.mark.parametrize(
  "error, kind, message",
  [
    (
      ConnectionError("no route"),
      UnavailableError,
      "without internet.*HF_HOME",
    ),
    (
      RuntimeError("Dataset scripts are no longer supported, but found x.py"),
      InputError,
      "add revision=refs/convert/parquet",
    ),
    (
      ValueError("Config name is missing"),
      UnavailableError,
      "missing.*config=",
    ),
  ],
)
def test_an_error_of_the_hub_names_a_way_out(monkeypatch, error, kind, message):
  def refuse(*args, **how):
    raise error

  monkeypatch.setattr(datasets, "load_dataset_builder", refuse)
  with pytest.raises(kind, match="(?i)hf:owner/set.*" + message):
    open_corpus("hf:owner/set")


@pytest.mark.parametrize("streaming", ["true", "false"])
def test_a_name_on_the_hub_is_read_by_its_commit(
  tmp_path, monkeypatch, streaming
):
  (tmp_path / "train.jsonl").write_bytes(to_jsonl(TEXTS))
  build, asked = datasets.load_dataset_builder, []

  def load(name, config, *, revision):
    asked.append((name, config, revision))
    return build(str(tmp_path))

  monkeypatch.setattr(datasets, "load_dataset_builder", load)
  spec = f"hf:owner/set config=en revision=abc streaming={streaming}"
  corpus = open_corpus(spec)
  assert asked == [("owner/set", "en", "abc")]
  assert not corpus.is_local() and list(corpus) == TEXTS
  assert corpus.names() == "hf:owner/set"
  (state,) = corpus.identity()
  assert state["hash"] and state["dataset"] == "owner/set"
  meter = Meter()
  next(corpus.read(meter))
  assert (meter.fraction_read is None) == (streaming == "true")


def test_datasets_is_imported_only_where_it_is_needed(tmp_path):
  (tmp_path / "t.txt").write_text("text")
  code = (
    "import sys; from truenegs_jax.data.corpus.sources_spec import open_corpus;"
    f" list(open_corpus({str(tmp_path / 't.txt')!r}));"
    " print(sorted({'datasets', 'pyarrow', 'nltk'} & set(sys.modules)))"
  )
  import subprocess

  found = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert found.stdout == "[]\n" and not found.stderr


# Whatever there is in a file.

FUZZ_CASES = int(os.environ.get("TRUENEGS_FUZZ", "300"))


def test_whatever_is_in_a_saved_data_set_gives_documents_or_our_error(tmp_path):
  spec = save(TEXTS, tmp_path / "saved")
  files = sorted((tmp_path / "saved").iterdir())
  whole = {path: path.read_bytes() for path in files}
  rng = np.random.default_rng(FUZZ_CASES)
  num_refused = 0
  for case in range(FUZZ_CASES // 3):
    path = files[rng.integers(len(files))]
    data = corrupt(whole[path], rng)
    path.write_bytes(data)
    try:
      found = list(open_corpus(spec))
      assert all(line.strip() for d in found for line in d.split("\n"))
    except TrueNegsError as error:
      assert "hf:" in str(error)
      num_refused += 1
    except Exception as error:
      raise AssertionError(f"case {case}: {path} {data!r}") from error
    path.write_bytes(whole[path])
  assert num_refused > FUZZ_CASES // 30
