"""Every source is deterministic, re-iterable, and refuses bad bytes by name."""

import contextlib
import io
import lzma
import tarfile
import tracemalloc
import types

import numpy as np
import pytest

from truenegs_jax.data import sources
from truenegs_jax.data.sources import SOURCES, documents
from truenegs_jax.errors import DataError, InputError, TrueNegsError


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


@pytest.fixture
def resources(tmp_path):
  (tmp_path / "a.txt").write_text("one\n\ntwo\n")
  return {"reader": FakeWordNet(), "path": str(tmp_path / "a.txt")}


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_every_source_obeys_the_contract(name, resources):
  spec = resources["path"] if name == "text" else name
  found = documents(spec, **resources)
  first, second = list(found), list(found)
  assert first == second and first
  assert all(line.strip() for d in first for line in d.split("\n"))
  assert found.state() == found.state()
  assert list(documents(f"{spec},{spec}", **resources)) == first * 2


def test_wordnet_documents_are_runs_within_a_lexicographer_file():
  found = list(documents("wordnet", reader=FakeWordNet()))
  numbers = [
    [int(line.split()[1]) for line in d.split("\n") if line[0] == "d"]
    for d in found
  ]
  acts, plants = list(range(1, 200, 2)), list(range(0, 200, 2))
  assert numbers == [acts[:64], acts[64:], plants[:64], plants[64:]]
  assert "definition 3\nan example of 3\ndefinition 5" in found[0]


def test_wordnet_without_a_reader_says_what_to_pass():
  with pytest.raises(InputError, match="'wordnet' needs reader"):
    documents("wordnet")


def test_real_wordnet_is_read_whole(tmp_path, real_data):
  pytest.importorskip("nltk")
  from truenegs_jax.synonyms.sources import open_wordnet

  archive = real_data / "wordnet" / "wordnet-3.0-nltk-layout.tar.xz"
  with tarfile.open(archive) as file:
    file.extractall(tmp_path, filter="data")
  found = list(documents("wordnet", reader=open_wordnet(str(tmp_path))))
  sources._wordnet_documents.cache_clear()  # half a gigabyte of NLTK
  lines = [line for d in found for line in d.split("\n")]
  assert (len(found), len(lines)) == (1862, 165_998)
  assert "stout-bodied insect with large membranous wings" in "\n".join(lines)


def text_of(tmp_path, data: bytes) -> list[str]:
  (tmp_path / "t.txt").write_bytes(data)
  return list(documents(str(tmp_path / "t.txt")))


@pytest.mark.parametrize(
  "data, expected",
  [
    (b"a\nb\n\nc", ["a\nb", "c"]),
    (b"a\r\nb\r\n\r\n\r\nc\r\n", ["a\nb", "c"]),
    (b"\xef\xbb\xbfa\n", ["a"]),
    (b"\n\n \t\n\xc2\xa0\na\n\n\n", ["a"]),
    ("a\u2028b\x0cc\n".encode(), ["a\u2028b\x0cc"]),
  ],
)
def test_blank_lines_part_documents(tmp_path, data, expected):
  assert text_of(tmp_path, data) == expected


@pytest.mark.parametrize(
  "data, message",
  [
    (b"good\nb\xe9d\n", r"t.txt:2: byte 0xe9 at byte 6 is not UTF-8.*iconv"),
    (b"good\n\nb\x00d\n", r"t.txt:3: NUL byte at byte 7"),
    ("swan\n".encode("utf-16"), r"t.txt:1: NUL byte"),
    (b"a\n" + b"x" * 1_000_001, r"t.txt:2: a line of more than 1,000,000"),
    (b"\xed\xa0\x80\n", r"t.txt:1: byte 0xed at byte 0"),
    (b"", "no document in .*t.txt"),
    (b"\n \n\r\n", "no document in .*t.txt"),
  ],
)
def test_bad_text_is_refused_by_file_line_and_byte(tmp_path, data, message):
  with pytest.raises(DataError, match=message):
    text_of(tmp_path, data)


def test_a_line_of_just_the_limit_is_read(tmp_path):
  line = b"x" * sources.MAX_LINE_BYTES
  assert text_of(tmp_path, line + b"\r\n") == [line.decode()]


def test_random_bytes_give_documents_or_our_error(tmp_path):
  rng = np.random.default_rng(0)
  alphabet = np.frombuffer(b"ab \n\n\r\t\x00\xc3\xa9\xff\xef\xbb\xbf", np.uint8)
  num_read = 0
  for _ in range(300):
    data = rng.choice(alphabet, rng.integers(0, 12)).tobytes()
    try:
      found = text_of(tmp_path, data)
    except TrueNegsError:
      continue
    num_read += 1
    assert all(line.strip() for d in found for line in d.split("\n"))
  assert num_read > 5


def test_folders_and_globs_are_read_in_order(tmp_path):
  for name in ("b.txt", "a.txt", "sub/c.txt", "._d.txt", "e.md"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(name)
  assert list(documents(str(tmp_path))) == ["a.txt", "b.txt", "sub/c.txt"]
  found = list(documents(f"{tmp_path}/*.txt, {tmp_path}/e.md"))
  assert found == ["a.txt", "b.txt", "e.md"]


@pytest.mark.parametrize("spec", ["", " ", "a,,b", "wordnet,"])
def test_an_empty_part_is_refused(spec):
  with pytest.raises(InputError, match="part [0-9] is empty"):
    documents(spec, reader=FakeWordNet())


def test_a_missing_part_is_named_at_once(tmp_path):
  for part in ("wordnot", f"{tmp_path}/none-*.txt", f"{tmp_path}/none.txt"):
    with pytest.raises(DataError, match=r"no file.*known: .*wordnet"):
      documents(part)
  with pytest.raises(DataError, match="holds no .txt file"):
    documents(str(tmp_path))


def test_the_state_changes_with_the_files(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text("one")
  found = documents(str(path))
  before = found.state()
  path.write_text("other")
  assert found.state() != before


def test_a_large_file_without_blank_lines_is_streamed(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 10_000)
  line = "x" * 99 + "\n"
  (tmp_path / "t.txt").write_text(line * 50_000)
  tracemalloc.start()
  sizes = [len(d) for d in documents(str(tmp_path))]
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert sum(sizes) + len(sizes) == 5_000_000 and max(sizes) < 10_200
  assert peak < 1_000_000


def test_real_text_has_the_documents_it_says(tmp_path, real_data):
  packed = real_data / "corpus" / "wikipedia-en-society.txt.xz"
  (tmp_path / "t.txt").write_bytes(lzma.open(packed).read())
  found = list(documents(str(tmp_path)))
  assert len(found) == 776
  assert sum(d.count("\n") + 1 for d in found) == 14_466


def test_a_name_is_registered_once():
  with pytest.raises(ValueError, match="registered twice"):
    sources.source("text")(lambda: iter(()))
