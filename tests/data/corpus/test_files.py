"""Tests finding, decompressing and decoding of files."""

import os
import pathlib
import tracemalloc

import numpy as np
import pytest

from support.texts import COMPRESSORS
from truenegs_jax.data.corpus import files, readers
from truenegs_jax.data.corpus.files import File, find_files, read_blocks
from truenegs_jax.data.corpus.readers import ReadState, read_text
from truenegs_jax.runtime.errors import DataError

SUFFIXES = (".txt", ".jsonl")


def write(path: pathlib.Path, data: bytes) -> File:
  path.write_bytes(data)
  return files.stat_file(path)


def content(file: File, size: int = 2**19) -> bytes:
  return b"".join(read_blocks(file, size=size))


def lines_of(file: File, **options) -> list[str]:
  text = "".join(read_text(file, ReadState(**options)))
  assert not text or text.endswith("\n")
  return text.split("\n")[:-1]


def random_text(num_bytes: int, seed: int = 0) -> bytes:
  rng = np.random.default_rng(seed)
  return rng.choice(np.frombuffer(b"abcde \n", np.uint8), num_bytes).tobytes()


# Finding files.


def names(where, root) -> list[str]:
  """Names of the files found, relative to `root`."""
  paths = [file.path for file in find_files(str(where), suffixes=SUFFIXES)]
  return [os.path.relpath(path, root) for path in paths]


def test_folders_give_their_files_of_known_formats_in_order(tmp_path):
  expected = ["B.TXT.XZ", "a/z.txt.gz", "a.b/y.JSONL", "a.txt", "b.txt"]
  expected += ["f.txt.bz2", "sub/deep/er/x.jsonl.zst"]
  others = ["._d.txt", ".git/e.txt", "README.md", "g.csv", "h.gz", "txt"]
  for name in [*reversed(expected), *others]:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("text")
  assert names(tmp_path, tmp_path) == expected
  moved = tmp_path.with_name("zzz")
  tmp_path.rename(moved)
  assert names(moved, moved) == expected
  first_files = find_files(str(moved), suffixes=SUFFIXES)[:3]
  assert [(f.suffix, f.compression) for f in first_files] == [
    (".txt", ".xz"),
    (".txt", ".gz"),
    (".jsonl", ""),
  ]


def test_linked_folders_are_read_once(tmp_path):
  root, other = tmp_path / "corpus", tmp_path / "other"
  for folder in (root / "sub", other):
    folder.mkdir(parents=True)
  (root / "sub" / "a.txt").write_text("a")
  (other / "b.txt").write_text("b")
  (root / "link").symlink_to(other)
  (root / "sub" / "circle").symlink_to(root)
  assert names(root, root) == ["link/b.txt", "sub/a.txt"]


def test_paths_and_globs_find_files_of_any_format(tmp_path):
  folder = tmp_path / "a [1] x=y"
  folder.mkdir()
  for name in ("wiki.tokens", "b.raw", "c[2].txt", ".hidden"):
    (folder / name).write_text("text")
  (folder / "sub").mkdir()
  assert names(folder / "wiki.tokens", folder) == ["wiki.tokens"]
  assert names(folder / "c[2].txt", folder) == ["c[2].txt"]
  assert names(folder / "*", folder) == ["b.raw", "c[2].txt", "wiki.tokens"]
  assert names(f"{folder}/[bw]*", folder) == ["b.raw", "wiki.tokens"]
  assert names(f"{tmp_path}/**/*.raw", folder) == ["b.raw"]
  none = ["none.txt", "none/*.txt", "[q]*", "sub*", "x" * 5000, "a\0b"]
  for where in none:
    assert names(folder / where, folder) == []
  assert names("~nobody_of_this_name/a.txt", folder) == []


@pytest.mark.parametrize(
  "where, message",
  [
    ("/dev/null", "/dev/null is a folder or a device"),
    ("{tmp}/link.txt", "No such file.*link.txt"),
    ("{tmp}/li*", "No such file.*link.txt"),
    ("{tmp}", "No such file.*link.txt"),
    ("{tmp}/empty", r"holds no text file \(.*.jsonl .txt, also compressed"),
  ],
)
def test_unreadable_files_are_refused_when_found(tmp_path, where, message):
  (tmp_path / "link.txt").symlink_to("nowhere")
  (tmp_path / "empty").mkdir()
  with pytest.raises(DataError, match=message):
    find_files(where.format(tmp=tmp_path), suffixes=SUFFIXES)


# Reading bytes.


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_every_compression_is_read(tmp_path, suffix):
  data = random_text(300_000)
  file = write(tmp_path / f"t.txt{suffix}", COMPRESSORS[suffix](data))
  for size in (1_000, 2**19):
    blocks = list(read_blocks(file, size=size))
    assert b"".join(blocks) == data and 0 < max(map(len, blocks)) <= size


@pytest.mark.parametrize("suffix", list(COMPRESSORS)[1:])
def test_files_may_hold_several_streams(tmp_path, suffix):
  pack = COMPRESSORS[suffix]
  parts = [random_text(n, seed=n) for n in (70_000, 0, 10, 200_000)]
  packed = b"".join(map(pack, parts))
  assert content(write(tmp_path / f"a{suffix}", packed)) == b"".join(parts)
  if suffix == ".zst":
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    file = write(tmp_path / "s.zst", skippable + packed)
    assert content(file) == b"".join(parts)
  else:
    padded = pack(parts[0]) + bytes(8) + pack(parts[2]) + bytes(2**20)
    file = write(tmp_path / f"p{suffix}", padded)
    for size in (500, 2**19):
      assert content(file, size=size) == parts[0] + parts[2]


@pytest.mark.parametrize("suffix", list(COMPRESSORS)[1:])
def test_truncated_and_padded_files_are_refused(tmp_path, suffix):
  data = random_text(300_000)
  packed = COMPRESSORS[suffix](data)
  cuts = np.linspace(8, len(packed) - 1, 25).astype(int)
  for damaged in [packed[:cut] for cut in cuts] + [packed + b"garbage!"]:
    file = write(tmp_path / f"t.txt{suffix}", damaged)
    read = b""
    message = r"t\.txt.*damaged or cut off after [0-9,]+ bytes"
    with pytest.raises(DataError, match=message):
      for block in read_blocks(file, size=1000):
        read += block
    assert data.startswith(read)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_wrong_compression_suffix_is_refused(tmp_path, suffix):
  file = write(tmp_path / f"t.txt{suffix}", b"just text")
  with pytest.raises(
    DataError, match=rf"the {suffix} file is damaged.* or it is none"
  ):
    content(file)


def test_errors_of_the_disk_are_told_from_damage(tmp_path):
  file = write(tmp_path / "t.txt", b"text")
  os.remove(file.path)
  with pytest.raises(DataError, match="cannot be read: No such") as error:
    content(file)
  # A preparation then keeps its chunks.
  assert isinstance(error.value.__cause__, OSError)


# Reading lines.


@pytest.mark.parametrize("block", [1, 2, 3, 7, 2**19])
def test_lines_do_not_depend_on_blocks(tmp_path, monkeypatch, block):
  monkeypatch.setattr(files, "BLOCK_BYTES", block)
  rng = np.random.default_rng(0)
  alphabet = ["a", " ", "\n", "\r", "\r\n", "é", "語", "𝄞", "\ufeff", "\u2028"]
  for number in range(60):
    text = "".join(rng.choice(alphabet, rng.integers(0, 30)))
    file = write(tmp_path / f"{number}.txt", text.encode())
    expected = text.removeprefix("\ufeff").replace("\r\n", "\n")
    expected = expected.replace("\r", "\n")
    lines = expected.removesuffix("\n").split("\n") if expected else []
    assert lines_of(file) == lines, repr(text)


BAD = [
  (b"good\nb\xe9d\n", r"t.txt:2: byte 0xe9 is not UTF-8.*iconv", 1),
  (b"a\r\rb\r\n\xc3", r"t.txt:4: byte 0xc3 is not UTF-8", 1),
  (b"\xef\xbb\xbfa\n\xff\xff", r"t.txt:2: byte 0xff", 2),
  (b"\xed\xa0\x80\n", r"t.txt:1: byte 0xed", 3),
  (b"\xef\xbf\xbd\n\xc0\xaf", r"t.txt:2: byte 0xc0", 2),
  (b"good\n\nb\x00d\n", r"t.txt:3: NUL", 1),
  ("swan\n".encode("utf-16-le"), r"t.txt:1: NUL", 5),
]


@pytest.mark.parametrize("data, message, count", BAD)
@pytest.mark.parametrize("block, suffix", [(2, ""), (2**19, ".gz")])
def test_bad_bytes_are_refused_with_their_position_or_replaced(
  tmp_path, monkeypatch, data, message, count, block, suffix
):
  monkeypatch.setattr(files, "BLOCK_BYTES", block)
  file = write(tmp_path / f"t.txt{suffix}", COMPRESSORS[suffix](data))
  message = message.replace("t.txt", f"t.txt{suffix}")
  with pytest.raises(DataError, match=message + r".*\. See there\.$"):
    lines_of(file, hint="See there.")
  state = ReadState("replace")
  text = "".join(read_text(file, state))
  assert sum(state.repairs.values()) == count
  good = "\ufffd" in data.decode(errors="ignore")
  assert text.count("\ufffd") == count + good and "\0" not in text


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_huge_lines_are_refused_before_they_fill_the_memory(tmp_path, suffix):
  data = COMPRESSORS[suffix](b"one\n" + b"x" * 50_000_000)
  file = write(tmp_path / f"t.txt{suffix}", data)
  del data
  tracemalloc.start()
  message = r":2: a line of more than 1,000,000 bytes"
  with pytest.raises(DataError, match=message):
    lines_of(file)
  assert tracemalloc.get_traced_memory()[1] < 8_000_000
  tracemalloc.stop()


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("block", [10, 11, 2**19])
def test_long_lines_are_cut_at_white_space(
  tmp_path, monkeypatch, suffix, block
):
  monkeypatch.setattr(readers, "MAX_LINE_BYTES", 20)
  monkeypatch.setattr(files, "BLOCK_BYTES", block)
  text = f"short\n{'seven77 ' * 6}\n{'語' * 15}\n12345678901234567890"
  file = write(tmp_path / f"t.txt{suffix}", COMPRESSORS[suffix](text.encode()))
  state = ReadState("replace")
  lines = "".join(read_text(file, state)).split("\n")[:-1]
  assert lines == [
    "short",
    *["seven77 seven77 "] * 3,
    *["語" * 6, "語" * 6, "語" * 3],
    "12345678901234567890",
  ]
  assert state.repairs == {readers.LONG_LINES: 4}


def test_records_may_be_longer_than_lines_but_are_never_cut(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(readers, "MAX_RECORD_BYTES", 2_000_000)
  file = write(tmp_path / "t.jsonl", b"x" * 1_500_000)
  assert sum(map(len, read_text(file, ReadState(), records=True))) == 1_500_001
  file = write(tmp_path / "t.jsonl", b"x" * 2_000_001)
  for errors in ("strict", "replace"):
    with pytest.raises(DataError, match=":1: a record of more than 2,000,000"):
      list(read_text(file, ReadState(errors), records=True))
