"""Files of every format give clean documents, or one message."""

import errno
import io
import itertools
import re
import shutil
import subprocess
import tracemalloc

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from support.texts import COMPRESSORS, FORMATTERS, to_jsonl, to_parquet
from truenegs_jax.data import documents
from truenegs_jax.data.sources import open_corpus
from truenegs_jax.runtime.errors import DataError, DiskError, UnavailableError

TEXTS = ["one\ntwo, 2", 'say "x"\u2028y', "é 語 𝄞", "a\tb", " c ", "NA", "None"]


def read(tmp_path, name, data, options="") -> list[str]:
  (tmp_path / name).write_bytes(data)
  return list(open_corpus(f"{tmp_path / name} {options}"))


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


@pytest.mark.parametrize("rule", ["block", "record", "file"])
def test_random_texts_give_the_documents_of_a_reference(tmp_path, rule):
  rng = np.random.default_rng(0)
  alphabet = ["a b", "語", " ", "\n", "\n", "\r", "\r\n", "\n\n", "\u3000"]
  path = tmp_path / "t.txt"
  for _ in range(60):
    text = "a" + "".join(rng.choice([*alphabet, "\u2028"], 40))
    path.write_bytes(f"\ufeff{text}".encode())
    expected = blocks(text)
    if rule == "record":
      expected = [line for block in expected for line in block.split("\n")]
    elif rule == "file":
      expected = ["\n".join(expected)]
    assert list(open_corpus(f"{path} document={rule}")) == expected


def test_joined_documents_are_cut_at_the_largest_size(tmp_path, monkeypatch):
  monkeypatch.setattr(documents, "MAX_CHARS", 20)
  texts = read(tmp_path, "t.txt", b"one two\n" * 9, "document=file")
  assert texts == ["one two\none two"] * 4 + ["one two"]


@pytest.mark.parametrize(
  ("suffix", "compression"),
  [
    case
    for case in itertools.product(FORMATTERS, COMPRESSORS)
    if case[0] != ".parquet" or not case[1]  # has a compression of its own
  ],
)
def test_formats_and_compressions_give_equal_documents(
  tmp_path, suffix, compression
):
  rng = np.random.default_rng(0)
  texts = TEXTS + ["".join(rng.choice(list('ab ",é\n'), 50)) for _ in range(40)]
  texts = ["x" + text for text in texts] + ["NA"]
  pack = COMPRESSORS[compression]
  data = pack(FORMATTERS[suffix](texts))
  name = f"t{suffix}{compression}"
  expected = blocks("\n\n".join(texts))
  assert read(tmp_path, name, data, "document=block") == expected
  if suffix == ".txt" and compression:  # several streams
    data += pack(b"") + pack(b"\n\nmore")
    if compression != ".bz2":  # pyarrow refuses empty streams of bz2
      assert read(tmp_path, name, data) == [*expected, "more"]


@pytest.mark.parametrize("compression", [".bz2", ".gz", ".xz", ".zst"])
def test_files_that_are_cut_off_are_refused(tmp_path, compression):
  rng = np.random.default_rng(0)
  packed = COMPRESSORS[compression](rng.bytes(150_000).hex().encode())
  for cut in np.linspace(8, len(packed) - 1, 12).astype(int):
    with pytest.raises(DataError, match=r"t.txt\.\w+: .*damaged or cut off"):
      read(tmp_path, f"t.txt{compression}", packed[:cut])
  for name in (f"p.txt{compression}", f"p.jsonl{compression}"):
    with pytest.raises(DataError, match=f"or it is none.*remove {compression}"):
      read(tmp_path, name, b"just text, not compressed")


@pytest.mark.parametrize("suffix", FORMATTERS)
def test_records_are_divided_and_joined(tmp_path, suffix):
  name = f"t{suffix}"
  data = FORMATTERS[suffix](["\na\r\nb\n \n\nc\n", "d"])
  by_rule = {
    "document=block": ["a\nb", "c", "d"],
    "document=record": ["a\nb\nc", "d"],
    "document=file": ["a\nb\nc\nd"],
  }
  default = "document=record"
  if suffix == ".txt":
    by_rule[default] = ["a", "b", "c", "d"]
    default = "document=block"
  by_rule[""] = by_rule[default]
  for rule, expected in by_rule.items():
    assert read(tmp_path, name, data, rule) == expected
  rng = np.random.default_rng(0)
  texts = ["é" * n + " x" for n in rng.integers(1, 15, 60)]
  data = FORMATTERS[suffix](texts)
  joined = read(tmp_path, name, data, "document=join chars=16")
  assert "\n".join(joined) == "\n".join(texts)
  for document in joined[:-1]:
    *first, _ = document.split("\n")
    assert sum(map(len, first)) < 16 <= len(document.replace("\n", ""))


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path, suffix):
  data = COMPRESSORS[suffix](b"one\n" + b"word " * 10_000_000)
  path = tmp_path / f"t.txt{suffix}"
  path.write_bytes(data)
  del data
  tracemalloc.start()
  with pytest.raises(DataError, match=":2: a line of more than 1,000,000"):
    list(open_corpus(str(path)))
  assert tracemalloc.get_traced_memory()[1] < 20_000_000
  tracemalloc.stop()


# Bad input.


CATEGORIES = pyarrow.array(["a", "a"]).dictionary_encode()


def parquet_of(**columns) -> bytes:
  file = io.BytesIO()
  parquet.write_table(pyarrow.table(columns), file)
  return file.getvalue()


LATIN1 = pyarrow.array([b"good", b"b\xe9d"]).view(pyarrow.string())
ENGLISH = "The shop’s “bread” — and café – was good. " * 3
GERMAN = "Das Haus auf dem Hügel wurde von einem Bauern gebaut. " * 3
POLISH = "Był sobie człowiek, który mówił o żółwiach. " * 3
LINES = "The house on the hill was built by a farmer.\n" * 4
NO_ENCODING = r"t.txt:1: byte 0x.. .*cannot be known.*iconv -f ENCODING"
# Name, content, and the words of the message.
BAD = [
  ("t.txt", b"", "t.txt' has no text"),
  ("t.jsonl", b'{"text": ""}\n{"text": null}', "has no text"),
  ("t.jsonl", b'{"text": "a"}\n{"text": "b\n', r":2: not JSON: .* column 10"),
  ("t.jsonl", b'{"text": "a"}\n{"text": 3}', r":2: .* holds int, not text"),
  ("t.json", b'[{"text": "a"}]', r":1: list, not .* `jq -c '.\[\]'`"),
  ("t.jsonl", b'\n{"text": "a\\ud800b"}', r":2: U.D800 is half of a surrog"),
  ("t.jsonl", b'{"text": "a\\u0000b"}', r"t.jsonl:1: NUL in the text"),
  ("t.jsonl", to_jsonl(["x" * 1_000_001]), r":1: a line of more than 1,000,0"),
  ("t.csv", b'text\n"a\nb"\n"c', r"t.csv:4: unbalanced quotes"),
  ("t.csv", b"id,text\n1,a,b\n", r"t.csv:2: 3 fields, but 2 in the first"),
  ("t.tsv", b"id\ttext\n1\n", r"t.tsv:2: 1 fields, but 2 in the first"),
  ("t.csv", b"id;text\n0;a\n", r"t.csv:1: .* divided by semicolons"),
  ("t.tsv", b"id,text\n1,a\n", r"t.tsv:1: no column 'text'. Columns: 'id,tex"),
  ("t.csv", b"text\nNow it is b\xe9d\n", r"t.csv:2: byte 0xe9.* -f CP1252"),
  ("t.txt", ENGLISH.encode("cp1252").decode("latin1").encode(), "U.0092.*1252"),
  ("t.txt", POLISH.encode("cp1250"), NO_ENCODING),
  ("t.txt", "Un caràttere di stampa.".encode("mac_roman"), NO_ENCODING),
  ("t.txt", b"one\n\nb\xffd\n" + LINES.encode(), "t.txt:3: byte 0xff"),
  ("t.txt", "été\nà b".encode() + b"\xe9d\n", "t.txt:2: .* Repair the line"),
  ("t.txt", b"good\n\nb\x00d\n", "t.txt:3: NUL in the text"),
  ("t.jsonl", LINES.encode("utf-16-le"), "UTF-16 without its mark"),
  ("t.txt", b"PK\3\4" + bytes(99), "it is a zip archive.*`unzip "),
  ("t.txt", bytes(range(256)) * 3, "it is binary data"),
  ("t.parquet", to_parquet(TEXTS)[:-9], "t.parquet' cannot be read"),
  ("t.parquet.zst", COMPRESSORS[".zst"](to_parquet(TEXTS)), "`zstd -d /.*zst`"),
  ("t.parquet", parquet_of(a=["x"], b=[1]), "no column 'text'. Columns: 'a', "),
  ("t.parquet", parquet_of(text=[None, ""]), "t.parquet' has no text"),
  ("t.parquet", parquet_of(text=LATIN1), "cannot be read .*Invalid UTF8"),
  ("t.parquet", parquet_of(text=["a", "b\0"]), ":2: NUL in the text"),
]


@pytest.mark.parametrize(
  "name, data, message", BAD, ids=[f"{n}-{m}" for n, _, m in BAD]
)
def test_bad_text_is_refused_with_its_place(tmp_path, name, data, message):
  with pytest.raises(DataError, match=message) as error:
    read(tmp_path, name, data)
  assert name in str(error.value) and len(str(error.value)) < 600


@pytest.mark.skipif(not shutil.which("iconv"), reason="needs iconv")
@pytest.mark.parametrize("code", ["cp1252", "latin1", "utf-16", "utf-32"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_advice_of_iconv_helps(tmp_path, code, suffix):
  text = GERMAN if code == "latin1" else ENGLISH
  data = COMPRESSORS[suffix](text.encode(code))
  with pytest.raises(DataError, match="iconv") as error:
    read(tmp_path, f"my t.txt{suffix}", data)
  [command] = re.findall("`(.*iconv.*)`", str(error.value))
  subprocess.run(command, shell=True, check=True, cwd=tmp_path)
  assert list(open_corpus(f"{tmp_path}/NEW.txt")) == [text]


@pytest.mark.skipif(not shutil.which("zstd"), reason="needs zstd")
def test_a_file_of_zstd_with_a_long_window_says_how_to_unpack_it(tmp_path):
  path = tmp_path / "t.txt"
  command = ["zstd", "-q", "--long=31", "-o", f"{path}.zst"]
  subprocess.run(command, input=b"text", check=True)
  with pytest.raises(DataError, match="zstd --long") as error:
    list(open_corpus(f"{path}.zst"))
  [command] = re.findall("`(.*)`", str(error.value))
  subprocess.run(command, shell=True, check=True)
  assert next(iter(open_corpus(str(path)))) == "text"


@pytest.mark.parametrize(
  "name, data, expected",
  [
    ("t.jsonl", b'{"x": "\xff", "text": "a"}', ["a"]),
    ("t.parquet", parquet_of(text=CATEGORIES), ["a", "a"]),
    ("t.tsv", b'id\ttext\n1\t"a\r\n\n2\tb"', ['"a', 'b"']),
  ],
)
def test_bad_text_of_other_columns_categories_and_quotes_are_read(
  tmp_path, name, data, expected
):
  assert read(tmp_path, name, data) == expected


@pytest.mark.parametrize("suffix", ["", " [train]"])
def test_a_damaged_data_set_in_a_folder_with_brackets_is_not_on_the_hub(
  tmp_path, suffix
):
  folder = tmp_path / "saved [1]"
  folder.mkdir()
  with pytest.raises(DataError) as error:
    with documents.dataset_errors(f"hf:{folder}{suffix}"):
      raise ValueError("damaged")
  assert not isinstance(error.value, UnavailableError)


@pytest.mark.parametrize(
  "error", [MemoryError(), OSError(errno.ENOSPC, "full")]
)
def test_a_machine_without_room_is_no_lack_of_internet(error):
  with pytest.raises((MemoryError, DiskError), match="^$|HF_HOME"):
    with documents.dataset_errors("hf:user/set [train]"):
      raise error
