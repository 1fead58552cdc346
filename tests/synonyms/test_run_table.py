"""The table of a run is the one that its config names, and is built once."""

import dataclasses
import io
import os

import pytest
from rich.console import Console

from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import run_table, sources
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.synonyms.run_table import TableRequest

WORDS = ("primary", "main", "chief", "stay")
TOKENS = ("[PAD]", "[UNK]", *WORDS)
PAIRS = [("primary", "main"), ("main", "primary"), ("stay", "chief")]
SWITCHES = ("keep_stop_words", "symmetric", "include_self")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  return tmp_path / "cache" / "synonyms"


@pytest.fixture
def see_wordnet_in(monkeypatch):
  """Lets the search for WordNet look in these folders alone."""
  import nltk

  return lambda *roots: monkeypatch.setattr(
    nltk.data, "path", [str(root) for root in roots]
  )


@pytest.fixture
def built(monkeypatch):
  """Expressions whose pairs were looked up, one for each table built."""
  calls = []
  pairs_of = sources.find_pairs

  def counted(spec, tokens, **kwargs):
    calls.append(spec.identity)
    return pairs_of(spec, tokens, **kwargs)

  monkeypatch.setattr(sources, "find_pairs", counted)
  return calls


def write_vectors(path, *rows):
  lines = [f"{word} {x} {y}" for word, (x, y) in zip(WORDS, rows, strict=True)]
  path.write_text("\n".join(lines) + "\n")
  return path


def save_pairs(path, pairs, *, source="example"):
  """A table's file, which is a source that can be changed."""
  table = table_lib.build_table(pairs, TOKENS, source=source)
  table_lib.save_table(table, path)
  return table


def find(request, saved=None, tokens=TOKENS, file=None):
  console = Console(file=file or io.StringIO())
  return run_table.find_or_build(request, tokens, saved=saved, console=console)


def listed(table):
  """The pairs of a table, as words."""
  keys = (divmod(key, table.vocab_size) for key in table.keys_Q.tolist())
  return {(TOKENS[a], TOKENS[b]) for a, b in keys}


def test_a_resumed_run_keeps_its_table_whatever_its_files_became(tmp_path):
  path = write_vectors(tmp_path / "v.txt", (1, 0), (2, 1), (3, 1), (0, 1))
  request = TableRequest(f"vectors path={path} top=10")
  first = find(request)
  saved = tmp_path / "synonyms.npz"
  table_lib.save_table(first, saved)
  write_vectors(path, (1, 0), (0, 0), (3, 1), (0, 1))  # "main" has none now
  second = find(request)
  assert second.num_rows == 3 != first.num_rows
  path.unlink()
  assert find(request, saved).fingerprint == first.fingerprint


def test_a_resumed_runs_table_is_that_of_its_options_alone(tmp_path):
  path, words = tmp_path / "t.npz", tmp_path / "words.txt"
  save_pairs(path, PAIRS)
  words.write_text("stay\n")
  request = TableRequest(f"table path={path}", stop_words=str(words))
  first = find(request)
  saved = tmp_path / "synonyms.npz"
  table_lib.save_table(first, saved)
  path.unlink()  # so that nothing can be built
  assert find(request, saved).fingerprint == first.fingerprint
  changes = dict.fromkeys(SWITCHES, True) | {"stop_words": ""}
  for name, value in changes.items():
    with pytest.raises(InputError, match="no file '.*npz'"):
      find(dataclasses.replace(request, **{name: value}), saved)
  other = dataclasses.replace(request, sources=f"table path={path}2")
  with pytest.raises(InputError, match="no file '.*npz2'"):
    find(other, saved)
  # The same name in another folder is the same source; the stop words are gone.
  words.unlink()
  moved = dataclasses.replace(request, sources="table path=elsewhere/t.npz")
  assert find(moved, saved).fingerprint == first.fingerprint


def test_a_resumed_run_needs_no_wordnet(tmp_path, see_wordnet_in):
  see_wordnet_in()
  table = save_pairs(tmp_path / "t.npz", PAIRS, source="wordnet")
  with pytest.raises(InputError, match="There is no WordNet"):
    find(TableRequest("wordnet"))
  resumed = find(TableRequest("wordnet"), tmp_path / "t.npz")
  assert resumed.fingerprint == table.fingerprint


def test_another_wordnet_makes_another_table_wherever_it_is_found(
  tmp_path, monkeypatch, see_wordnet_in
):
  read = []

  def wordnet(tokens, *, folder: str = ""):
    read.append(folder)
    return PAIRS

  def times_read(root, **options):
    see_wordnet_in(tmp_path / root)
    find(TableRequest("wordnet", **options))
    return len(read)

  monkeypatch.setitem(sources.SOURCES, "wordnet", wordnet)
  names = ("data.noun", "index.noun", "noun.exc")
  for root in "xy":
    (tmp_path / root / "corpora/wordnet").mkdir(parents=True)
    for name in names:
      path = tmp_path / root / "corpora/wordnet" / name
      path.touch()
      os.utime(path, ns=(0, 0))
  assert [times_read(root) for root in "xxyx"] == [1, 1, 2, 2]
  for i, name in enumerate(names):
    (tmp_path / "x/corpora/wordnet" / name).write_text("changed")
    assert [times_read("x"), times_read("x")] == [3 + i, 3 + i]
  assert times_read("x", wordnet_dir=str(tmp_path / "y")) == 5  # that of y
  packed = tmp_path / "z/corpora/wordnet.zip"
  packed.parent.mkdir(parents=True)
  for i in range(2):
    packed.write_text("changed" * i)
    assert [times_read("z"), times_read("z")] == [6 + i, 6 + i]
  monkeypatch.setattr(run_table, "RECIPE", -1)
  assert times_read("z") == 8


def test_a_table_is_built_once_and_found_by_all_it_depends_on(
  tmp_path, built, cache
):
  path, words = tmp_path / "t.npz", tmp_path / "words.txt"
  save_pairs(path, PAIRS)
  words.write_text("stay\n")
  request = TableRequest(f"table path={path}", stop_words=str(words))
  first = find(request)
  assert listed(first) == set(PAIRS[:2])
  assert find(request).fingerprint == first.fingerprint
  assert built == [first.source] == ["table path=t.npz"]

  words.write_text("primary\n")
  assert listed(find(request)) == set(PAIRS[1:])
  symmetric, naive = (
    find(dataclasses.replace(request, **{name: True})) for name in SWITCHES[1:]
  )
  assert listed(symmetric) == {*PAIRS[1:], ("chief", "stay")}
  assert listed(naive) == {*PAIRS[1:], ("main", "main"), ("stay", "stay")}
  kept = find(dataclasses.replace(request, keep_stop_words=True))
  assert listed(kept) == set(PAIRS)
  save_pairs(path, PAIRS[2:])
  os.utime(path, ns=(0, 0))
  assert listed(find(request)) == set(PAIRS[2:])
  assert len(built) == 6 == len(list(cache.glob("table-*.npz")))
  find(dataclasses.replace(request, sources=" | ".join([request.sources] * 2)))
  assert len(built) == 7 == len(list(cache.iterdir()))


def test_files_of_one_name_size_and_time_are_told_apart(tmp_path):
  tables = []
  for name, row in (("x", (9, 1)), ("y", (1, 9))):
    (tmp_path / name).mkdir()
    path = write_vectors(tmp_path / name / "v.txt", (1, 0), row, (2, 1), (0, 1))
    os.utime(path, ns=(0, 0))
    request = TableRequest(f"vectors path={path} top=1")
    tables.append(find(request))
  assert tables[0].fingerprint != tables[1].fingerprint
  larger = find(request, tokens=(*TOKENS, "more"))  # of the same files
  assert larger.vocab_size == len(TOKENS) + 1


def test_a_damaged_table_of_the_cache_is_reported_and_built_again(
  tmp_path, built, cache
):
  save_pairs(tmp_path / "t.npz", PAIRS)
  request = TableRequest(f"table path={tmp_path}/t.npz")
  first = find(request)
  [cached] = cache.iterdir()
  cached.write_bytes(b"PK cut off")
  printed = io.StringIO()
  assert find(request, file=printed).fingerprint == first.fingerprint
  assert "not used: " in printed.getvalue()
  assert cached.name in printed.getvalue() and len(built) == 2


def test_the_models_own_table_is_not_built(cache):
  assert find(TableRequest("model top=3")) is None
  assert not cache.exists()


def test_a_table_that_cannot_be_built_is_refused(tmp_path, see_wordnet_in):
  (tmp_path / "here.txt").write_text("primary main\n")
  here = f"pairs path={tmp_path}/here.txt"
  run_table.check_request(TableRequest(here))
  run_table.check_request(TableRequest("model"))
  see_wordnet_in()
  for source, words in (
    (f"{here} & vectors path=no.txt", "no file 'no.txt'.*nlp.stanford.edu"),
    (f"pairs path={tmp_path}", "no file"),
    (f"{here} | wordnet", "no WordNet where NLTK looks"),
    (f"wordnet folder={tmp_path}", "no WordNet in"),
    ("wordnet pos=x", "pos='x'.*nouns"),
    (f"vectors path={tmp_path}/here.txt among=x", "vocabulary or file"),
  ):
    with pytest.raises(InputError, match=words):
      run_table.check_request(TableRequest(source))
  with pytest.raises(InputError, match="no WordNet in '.*/absent'"):
    run_table.check_request(
      TableRequest("wordnet", wordnet_dir=f"{tmp_path}/absent")
    )
  with pytest.raises(DataError, match="here.txt:1: 'main' is not a finite"):
    run_table.check_request(TableRequest(f"vectors path={tmp_path}/here.txt"))
  for words in (f"{tmp_path}/absent", "~nobody/absent"):
    with pytest.raises(InputError, match="negatives.stop_words=.*absent"):
      run_table.check_request(TableRequest(here, stop_words=words))
