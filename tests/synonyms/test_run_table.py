"""Tests that a run gets the table of its config, which is built only once."""

import dataclasses
import io
import os

import pytest
from rich.console import Console

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import run_table, sources
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.synonyms.table import SynonymTable

WORDS = ("primary", "main", "chief", "stay")
TOKENS = ("[PAD]", "[UNK]", *WORDS)
TOKENIZER = Tokenizer(TOKENS, True, True, pad=0, unk=1, cls=0, sep=0, mask=0)
PAIRS = [("primary", "main"), ("main", "primary"), ("stay", "chief")]
SWITCHES = ("keep_stop_words", "symmetric", "include_self")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  return tmp_path / "cache" / "synonyms"


@pytest.fixture
def built(monkeypatch):
  """The expressions of all tables that were built."""
  identities = []
  find_pairs = sources.find_pairs

  def record(expression, vocabulary):
    identities.append(expression.identity)
    return find_pairs(expression, vocabulary)

  monkeypatch.setattr(sources, "find_pairs", record)
  return identities


def write_vectors(path, *rows):
  lines = [f"{word} {x} {y}" for word, (x, y) in zip(WORDS, rows, strict=True)]
  path.write_text("\n".join(lines) + "\n")
  return path


def save_pairs(path, pairs, *, source="example"):
  """Saves and returns a table, for use as the source `table`."""
  table = SynonymTable.from_pairs(pairs, TOKENS, source=source)
  table.save(path)
  return table


def load_or_build(request, saved=None, tokenizer=TOKENIZER, file=None):
  console = Console(file=file or io.StringIO())
  return run_table.find_or_build(
    request, tokenizer, saved=saved, console=console
  )


def table_pairs(table):
  """Returns the pairs of a table, as words."""
  keys = (divmod(key, table.vocab_size) for key in table.keys_Q.tolist())
  return {(TOKENS[a], TOKENS[b]) for a, b in keys}


def test_a_resumed_run_keeps_its_table_if_source_files_change(tmp_path):
  path = write_vectors(tmp_path / "v.txt", (1, 0), (2, 1), (3, 1), (0, 1))
  request = TableRequest(f"vectors path={path} top=10")
  first = load_or_build(request)
  saved = tmp_path / "synonyms.npz"
  first.save(saved)
  write_vectors(path, (1, 0), (0, 0), (3, 1), (0, 1))  # none for "main" now
  second = load_or_build(request)
  assert second.num_rows == 3 != first.num_rows
  path.unlink()
  assert load_or_build(request, saved).fingerprint == first.fingerprint


def test_a_resumed_run_needs_a_table_of_the_same_options(tmp_path):
  path, words = tmp_path / "t.npz", tmp_path / "words.txt"
  save_pairs(path, PAIRS)
  words.write_text("stay\n")
  request = TableRequest(f"table path={path}", stop_words=str(words))
  first = load_or_build(request)
  saved = tmp_path / "synonyms.npz"
  first.save(saved)
  path.unlink()  # so that nothing can be built
  assert load_or_build(request, saved).fingerprint == first.fingerprint
  changes = dict.fromkeys(SWITCHES, True) | {"stop_words": ""}
  for name, value in changes.items():
    with pytest.raises(InputError, match="no file '.*npz'"):
      load_or_build(dataclasses.replace(request, **{name: value}), saved)
  other = dataclasses.replace(request, sources=f"table path={path}2")
  with pytest.raises(InputError, match="no file '.*npz2'"):
    load_or_build(other, saved)
  # A file may be in another folder, and the list of stop words may be missing.
  words.unlink()
  moved = dataclasses.replace(request, sources="table path=elsewhere/t.npz")
  assert load_or_build(moved, saved).fingerprint == first.fingerprint


def test_the_table_is_built_again_for_another_wordnet(tmp_path, monkeypatch):
  folders = []

  def wordnet(vocabulary, *, folder: str = ""):
    folders.append(folder)
    return PAIRS

  def count_reads(root):
    request = TableRequest("wordnet", wordnet_dir=str(tmp_path / root))
    load_or_build(request)
    return len(folders)

  monkeypatch.setitem(sources.SOURCES, "wordnet", wordnet)
  names = ("data.noun", "index.noun", "noun.exc")
  for root in "xy":
    (tmp_path / root).mkdir()
    for name in names:
      (tmp_path / root / name).touch()
      os.utime(tmp_path / root / name, ns=(0, 0))
  assert [count_reads(root) for root in "xxyx"] == [1, 1, 2, 2]
  for i, name in enumerate(names):
    (tmp_path / "x" / name).write_text("changed")
    assert [count_reads("x"), count_reads("x")] == [3 + i, 3 + i]
  (tmp_path / "z").mkdir()
  for i in range(2):
    (tmp_path / "z/wordnet.zip").write_text("changed" * i)
    assert [count_reads("z"), count_reads("z")] == [6 + i, 6 + i]
  monkeypatch.setattr(run_table, "RECIPE", -1)
  assert count_reads("z") == 8


def test_a_table_is_built_once_for_each_request(tmp_path, built, cache):
  path, words = tmp_path / "t.npz", tmp_path / "words.txt"
  save_pairs(path, PAIRS)
  words.write_text("stay\n")
  request = TableRequest(f"table path={path}", stop_words=str(words))
  first = load_or_build(request)
  assert table_pairs(first) == set(PAIRS[:2])
  assert load_or_build(request).fingerprint == first.fingerprint
  assert built == [first.source] == ["table path=t.npz"]

  words.write_text("primary\n")
  assert table_pairs(load_or_build(request)) == set(PAIRS[1:])
  symmetric, naive = (
    load_or_build(dataclasses.replace(request, **{name: True}))
    for name in SWITCHES[1:]
  )
  assert table_pairs(symmetric) == {*PAIRS[1:], ("chief", "stay")}
  assert table_pairs(naive) == {*PAIRS[1:], ("main", "main"), ("stay", "stay")}
  kept = load_or_build(dataclasses.replace(request, keep_stop_words=True))
  assert table_pairs(kept) == set(PAIRS)
  save_pairs(path, PAIRS[2:])
  os.utime(path, ns=(0, 0))
  assert table_pairs(load_or_build(request)) == set(PAIRS[2:])
  assert len(built) == 6 == len(list(cache.glob("table-*.npz")))
  twice = f"{request.sources} | {request.sources}"
  load_or_build(dataclasses.replace(request, sources=twice))
  assert len(built) == 7 == len(list(cache.iterdir()))


def test_files_of_equal_name_size_and_mtime_have_different_tables(tmp_path):
  tables = []
  for name, row in (("x", (9, 1)), ("y", (1, 9))):
    (tmp_path / name).mkdir()
    path = write_vectors(tmp_path / name / "v.txt", (1, 0), row, (2, 1), (0, 1))
    os.utime(path, ns=(0, 0))
    request = TableRequest(f"vectors path={path} top=1")
    tables.append(load_or_build(request))
  assert tables[0].fingerprint != tables[1].fingerprint
  larger = dataclasses.replace(TOKENIZER, vocab=(*TOKENS, "more"))
  table = load_or_build(request, tokenizer=larger)
  assert table.vocab_size == len(TOKENS) + 1


def test_a_damaged_cached_table_is_reported_and_built_again(
  tmp_path, built, cache
):
  save_pairs(tmp_path / "t.npz", PAIRS)
  request = TableRequest(f"table path={tmp_path}/t.npz")
  first = load_or_build(request)
  [cached] = cache.iterdir()
  cached.write_bytes(b"PK cut off")
  printed = io.StringIO()
  assert load_or_build(request, file=printed).fingerprint == first.fingerprint
  assert "warning: not used: " in printed.getvalue()
  assert cached.name in printed.getvalue() and len(built) == 2
