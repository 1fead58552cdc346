"""`python -m truenegs_jax.synonyms`, on a vocabulary of a dozen words."""

import io
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from absl import flags
from rich.console import Console

from truenegs_jax.data.tokens.tokenizer import SPECIALS, write_vocabulary
from truenegs_jax.runtime.errors import DataError, DiskError, InputError
from truenegs_jax.synonyms import __main__ as verb_lib
from truenegs_jax.synonyms import table

ROOT = pathlib.Path(__file__).parents[2]
WORDS = ("in", "house", "houses", "home", "firm", "stay", "remain")
TOKENS = (*SPECIALS, *WORDS, "##s", "h", "s")
A = [
  ("house", "home"),
  ("house", "firm"),
  ("houses", "house"),
  ("stay", "remain"),
  ("in", "home"),
]
B = [("house", "home"), ("home", "house"), ("remain", "stay")]
C = [(a, b) for a in WORDS[1:] for b in WORDS[1:] if a != b]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The working directory, with a vocabulary and files of pairs."""
  write_vocabulary(TOKENS, tmp_path / "vocab.txt")
  for name, pairs in (("a", A), ("b", B), ("c", C)):
    lines = "".join(f"{word}\t{synonym}\n" for word, synonym in pairs)
    (tmp_path / f"{name}.tsv").write_text(lines)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def verb(*words):
  """The output of the verb, of the pairs of a.tsv if it is not told."""
  values = flags.FlagValues()
  verb_lib.define(values)
  values(["", "--vocab=vocab.txt", "--sources=pairs path=a.tsv", *words])
  screen = io.StringIO()
  verb_lib.run(values, Console(file=screen, width=80, markup=False))
  output = screen.getvalue()
  shown = [x for x in output.splitlines() if not x.startswith("saved as ")]
  assert max(map(len, shown)) <= 80
  return output


def rows(output, first):
  """The cells of a bordered row whose first cell starts with `first`."""
  cells: list[list[str]] = []
  for line in output.splitlines():
    parts = [cell.strip() for cell in line.split("│")[1:-1]]
    if parts and parts[0].startswith(first):
      cells = [[part] for part in parts]
    elif cells and parts and not parts[0]:
      for cell, more in zip(cells, parts, strict=True):
        cell.append(more)
    elif cells:
      break
  return [" ".join(filter(None, cell)) for cell in cells]


def pairs_of(path):
  keys = table.load_table(path, TOKENS).keys_Q.tolist()
  return {(TOKENS[a], TOKENS[b]) for a, b in (divmod(k, 15) for k in keys)}


def test_counts_and_sizes_are_shown(folder):
  output = verb()
  assert "15 tokens, 9 of them whole words" in output
  assert "3 tokens: 20.00% of the vocabulary, 33.33% of the words" in output
  assert "4; a list has 1.3 (median 1, most 2: house)" in output
  assert "auto takes bits" in output
  assert table.build_table(A, TOKENS, source="a").fingerprint in output


def test_output_is_the_table_of_the_flags(folder):
  (folder / "words.txt").write_text("Stay\n")
  flags = ("--stop_words=words.txt", "--symmetric", "--include_self")
  verb("--output=new/t.npz", *flags)
  loaded = table.load_table("new/t.npz", TOKENS)
  options = {"stop_words": {"stay"}, "symmetric": True, "include_self": True}
  expected = table.build_table(A, TOKENS, source="pairs path=a.tsv", **options)
  np.testing.assert_array_equal(loaded.keys_Q, expected.keys_Q)
  assert loaded.source == expected.source
  assert loaded.options == expected.options


def test_a_saved_table_is_taken_as_it_is_without_such_flags(folder):
  options = {"stop_words": {"stay"}, "include_self": True}
  saved = table.build_table(A, TOKENS, source="wordnet pos=n", **options)
  table.save_table(saved, "saved.npz")
  name = "table path=saved.npz"
  output = verb(
    f"--sources={name}",
    "--output=copy.npz",
    f"--compare={name}; {name} | {name}",
    "--word=in,stay",
  )
  assert "wordnet pos=n" in output and saved.fingerprint in output
  copy = table.load_table("copy.npz", TOKENS)
  assert (copy.source, copy.options) == (saved.source, saved.options)
  np.testing.assert_array_equal(copy.keys_Q, saved.keys_Q)
  assert rows(output, "in (2)") == ["in (2)", "in, home"]
  # Which stop words it was made with is not known by their names.
  assert "the sources list no token" in rows(output, "stay (0)")[1]
  assert rows(output, "B:")[2:5] == [str(saved.num_pairs)] * 2 + ["1.000"]
  assert rows(output, "C:")[2:4] == ["3", "3"]  # another of its pairs
  for flag, more in (
    ("--nokeep_stop_words", {("house", "firm")}),
    ("--symmetric", {("home", "house"), ("home", "in")}),
  ):
    verb(f"--sources={name}", "--output=t", flag)
    assert more | {("house", "home")} < pairs_of("t")
    assert not {("house", "house"), ("in", "home")} & pairs_of("t")
    built = table.load_table("t", TOKENS)
    assert built.source == "table path=saved.npz"


def test_words_are_shown_with_their_lists_or_the_reason_for_none(folder):
  output = verb("--word=House,in,home,hs,##s")
  assert rows(output, "house (2)") == ["house (2)", "home, firm", "houses"]
  assert "a stop word: --keep_stop_words" in rows(output, "in (0)")[1]
  assert "the sources list no token" in rows(output, "home (0)")[1]
  assert rows(output, "home (0)")[2] == "in, house"
  assert "not in the vocabulary; it is h ##s" in rows(output, "hs")[1]
  assert "a piece of words" in rows(output, "##s (0)")[1]
  output = verb("--word=in,home,s", "--keep_stop_words", "--symmetric")
  assert "the sources list no token" in rows(output, "s (0)")[1]
  assert rows(output, "in (1)") == ["in (1)", "home"]
  assert rows(output, "home (2)") == ["home (2)", "in, house"]


def test_other_sources_are_compared_pair_by_pair(folder):
  output = verb(
    "--compare=pairs path=b.tsv; pairs path=a.tsv & pairs path=b.tsv"
  )
  b = ["3", "3", "1", "0.167", "25.0%", "33.3%"]
  assert rows(output, "B:")[1:] == b
  assert rows(output, "C:")[1:] == ["1", "1", "1", "0.250", "25.0%", "100.0%"]
  only_a, only_b, nothing = (
    next(x for x in output.splitlines() if f"│ {one}  │ {other} " in x)
    for one, other in ("AB", "BA", "CA")
  )
  assert "house → firm, houses → house" in only_a and "home" not in only_a
  assert "home → house, remain → stay" in only_b and "(nothing)" in nothing
  one, two = (verb("--compare=pairs path=c.tsv") for _ in range(2))
  assert one.count(" → ") == 8  # of 26, the same on every call
  assert one.partition("compared")[2] == two.partition("compared")[2]


@pytest.mark.parametrize(
  "words, error, message",
  [
    (["--vocab="], InputError, "--vocab is missing"),
    (["--vocab=absent.txt"], InputError, "absent.txt"),
    (["--sources=thesaurus"], InputError, "--sources: .*'thesaurus'"),
    (["--compare=table", "--output=t"], InputError, "--compare: .*needs path="),
    (["--sources=model top=3"], InputError, "model top=3: the source"),
    (["--sources=table path=no"], InputError, "there is no file 'no'"),
    (["--sources=table path=vocab.txt"], DataError, "not a whole synonym"),
    (["--compare=vectors path=a.tsv"], DataError, "a.tsv:1: 0 numbers"),
    (["--stop_words=no"], InputError, "stop_words=no"),
    (["--output=a.tsv/t.npz"], DiskError, "could not be written"),
  ],
)
def test_mistakes_are_refused_before_anything_is_saved(
  folder, words, error, message
):
  with pytest.raises(error, match=message):
    verb(*words)
  assert not (folder / "t").exists()


@pytest.mark.parametrize(
  "words, code, message",
  [
    (["--sources=wordnet"], 2, "--vocab is missing"),
    (["--nosuch"], 2, "nosuch"),
    (["word"], 2, "not understood: word"),
    (["--vocab=vocab.txt", "--sources=table path=a.tsv"], 3, "not a whole"),
  ],
)
def test_an_error_is_one_line_and_an_exit_code(folder, words, code, message):
  done = subprocess.run(
    [sys.executable, "-m", "truenegs_jax.synonyms", *words],
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert (done.returncode, done.stdout) == (code, "")
  assert done.stderr.startswith("error: ") and message in done.stderr
  assert "Traceback" not in done.stderr
