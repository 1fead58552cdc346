"""`python -m truenegs_jax.synonyms`, on a vocabulary of a dozen words."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from truenegs_jax.data.tokens.tokenizer import SPECIALS, write_vocabulary
from truenegs_jax.synonyms import table

ROOT = pathlib.Path(__file__).parents[2]
TOKENS = (*SPECIALS, *"in house houses home firm stay remain ##s h s".split())
A = [
  ("house", "home"),
  ("house", "firm"),
  ("houses", "house"),
  ("stay", "remain"),
  ("in", "home"),
]
C = [(a, b) for a in TOKENS[6:12] for b in TOKENS[6:12] if a != b]
B = [("house", "home"), ("home", "house"), ("remain", "stay")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("verb")
  write_vocabulary(TOKENS, folder / "vocab.txt")
  for name, pairs in (("a", A), ("b", B), ("c", C)):
    lines = "".join(f"{word}\t{synonym}\n" for word, synonym in pairs)
    (folder / f"{name}.tsv").write_text(lines)
  return folder


def run(folder, *flags):
  """Exit code, output and errors of the verb."""
  done = subprocess.run(
    [sys.executable, "-m", "truenegs_jax.synonyms", *flags],
    cwd=folder,
    env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"},
    capture_output=True,
    text=True,
    timeout=120,
  )
  return done.returncode, done.stdout, done.stderr


def verb(folder, *flags):
  """The output of the verb, unless told otherwise of the pairs of a.tsv."""
  code, output, errors = run(
    folder, "--vocab=vocab.txt", "--sources=pairs path=a.tsv", *flags
  )
  assert (code, errors) == (0, "")
  shown = [x for x in output.splitlines() if not x.startswith("saved as ")]
  assert max(map(len, shown)) <= 80 and "\x1b" not in output
  return output


def rows(output, first):
  """The lines of a bordered row whose first cell starts with `first`."""
  lines, found = output.splitlines(), []
  for line in lines:
    cells = [cell.strip() for cell in line.split("│")[1:-1]]
    if cells and cells[0].startswith(first):
      found = [[cell] for cell in cells]
    elif found and cells and not cells[0]:
      for cell, more in zip(found, cells, strict=True):
        cell.append(more)
    elif found:
      break
  return [" ".join(filter(None, cell)) for cell in found]


def test_counts_and_sizes_are_told_without_other_flags(folder):
  output = verb(folder)
  assert f"{len(TOKENS)} tokens, 9 of them whole words" in output
  built = table.build_table(A, TOKENS, source="a")
  assert "3 tokens: 20.00% of the vocabulary, 33.33% of the words" in output
  assert "4; a list has 1.3 (median 1, most 2: house)" in output
  assert "auto takes bits" in output and built.fingerprint in output


def test_output_is_the_table_of_the_flags(folder, tmp_path):
  (tmp_path / "words.txt").write_text("Stay\n")
  verb(
    folder,
    f"--output={tmp_path}/new/t.npz",
    f"--stop_words={tmp_path}/words.txt",
    "--symmetric",
    "--include_self",
  )
  loaded = table.load_table(tmp_path / "new" / "t.npz", TOKENS)
  expected = table.build_table(
    A,
    TOKENS,
    source="pairs path=a.tsv",
    stop_words={"stay"},
    symmetric=True,
    include_self=True,
  )
  np.testing.assert_array_equal(loaded.keys_Q, expected.keys_Q)
  assert loaded.source == expected.source
  assert loaded.options == expected.options


@pytest.fixture
def saved(tmp_path):
  """The path of a table with options of its own, and the table."""
  made = table.build_table(
    A,
    TOKENS,
    source="wordnet pos=n",
    stop_words={"stay"},
    include_self=True,
  )
  table.save_table(made, tmp_path / "saved.npz")
  return tmp_path / "saved.npz", made


def test_a_saved_table_is_taken_as_it_is(folder, tmp_path, saved):
  path, made = saved
  asked = f"table path={path}"
  output = verb(
    folder,
    f"--sources={asked}",
    f"--output={tmp_path}/copy.npz",
    f"--compare={asked}; {asked} | {asked}",
    "--word=in,stay",
  )
  assert "wordnet pos=n" in output and made.fingerprint in output
  assert "include_self true" in output and "keep_stop_words false" in output
  copy = table.load_table(tmp_path / "copy.npz", TOKENS)
  assert (copy.source, copy.options) == (made.source, made.options)
  np.testing.assert_array_equal(copy.keys_Q, made.keys_Q)
  assert rows(output, "in (2)") == ["in (2)", "in, home"]
  # Which stop words it was made with is not known by their names.
  assert "the sources list no token" in rows(output, "stay (0)")[1]
  assert rows(output, "B:")[2:5] == [str(made.num_pairs)] * 2 + ["1.000"]
  assert rows(output, "C:")[2:4] == ["3", "3"]  # another of its pairs


@pytest.mark.parametrize(
  "flag, pairs",
  [
    ("--nokeep_stop_words", {("house", "home"), ("house", "firm")}),
    ("--symmetric", {("house", "home"), ("home", "house"), ("home", "in")}),
  ],
)
def test_a_flag_makes_another_table_of_a_saved_one(
  folder, tmp_path, saved, flag, pairs
):
  path, made = saved
  verb(folder, f"--sources=table path={path}", f"--output={tmp_path}/t", flag)
  built = table.load_table(tmp_path / "t", TOKENS)
  keys = (divmod(key, len(TOKENS)) for key in built.keys_Q.tolist())
  found = {(TOKENS[a], TOKENS[b]) for a, b in keys}
  assert pairs < found and ("house", "house") not in found
  assert ("in", "home") not in found
  assert built.source == "table path=saved.npz" != made.source


def test_words_are_shown_with_their_lists_or_the_reason_for_none(folder):
  output = verb(folder, "--word=House,in,home,hs,##s")
  assert rows(output, "house (2)") == ["house (2)", "home, firm", "houses"]
  assert "a stop word: --keep_stop_words" in rows(output, "in (0)")[1]
  assert "the sources list no token" in rows(output, "home (0)")[1]
  assert rows(output, "home (0)")[2] == "in, house"
  assert "not in the vocabulary; it is h ##s" in rows(output, "hs")[1]
  assert "a piece of words" in rows(output, "##s (0)")[1]
  output = verb(folder, "--word=in,home,s", "--keep_stop_words", "--symmetric")
  assert "the sources list no token" in rows(output, "s (0)")[1]
  assert rows(output, "in (1)") == ["in (1)", "home"]
  assert rows(output, "home (2)") == ["home (2)", "in, house"]


def test_other_sources_are_compared_pair_by_pair(folder):
  flag = "--compare=pairs path=b.tsv; pairs path=a.tsv & pairs path=b.tsv"
  output = verb(folder, flag)
  b = ["3", "3", "1", "0.167", "25.0%", "33.3%"]
  assert rows(output, "B:")[1:] == b
  assert rows(output, "C:")[1:] == ["1", "1", "1", "0.250", "25.0%", "100.0%"]
  [only_a] = [x for x in output.splitlines() if "│ A  │ B " in x]
  assert "house → firm, houses → house" in only_a and "home" not in only_a
  [only_b] = [x for x in output.splitlines() if "│ B  │ A " in x]
  assert "home → house, remain → stay" in only_b
  assert "(nothing)" in [x for x in output.splitlines() if "│ C  │ A " in x][0]


def test_examples_are_the_same_on_every_call(folder):
  one, two = (verb(folder, "--compare=pairs path=c.tsv") for _ in range(2))
  assert one.count(" → ") == 8  # of 26; all of A's are there, too
  assert one.partition("compared")[2] == two.partition("compared")[2]


@pytest.mark.parametrize(
  "flags, code, words",
  [
    (["--sources=wordnet"], 2, "--vocab is missing"),
    (["--vocab=absent.txt"], 2, "absent.txt"),
    (["--vocab=vocab.txt", "--sources=thesaurus"], 2, "no source 'thesaurus'"),
    (
      ["--vocab=vocab.txt", "--sources=model top=3"],
      2,
      "model top=3: the sour",
    ),
    (
      ["--vocab=vocab.txt", "--sources=table path=no"],
      2,
      "there is no file 'no'",
    ),
    (
      ["--vocab=vocab.txt", "--sources=table path=vocab.txt"],
      3,
      "vocab.txt is not a whole synonym table",
    ),
    (
      ["--vocab=vocab.txt", "--compare=vectors path=a.tsv"],
      3,
      "a.tsv:1: 0 numbers",
    ),
    (["--vocab=vocab.txt", "--stop_words=no"], 2, "negatives.stop_words=no"),
    (["--nosuch"], 2, "nosuch"),
    (["word"], 2, "not understood: word"),
  ],
)
def test_what_cannot_be_is_one_line_and_an_exit_code(
  folder, flags, code, words
):
  found, output, errors = run(folder, *flags)
  assert (found, output) == (code, "")
  assert errors.startswith("error: ") and words in errors
  assert "Traceback" not in errors


def test_nothing_is_saved_when_an_expression_is_wrong(folder, tmp_path):
  code, _, errors = run(
    folder,
    "--vocab=vocab.txt",
    "--sources=pairs path=a.tsv",
    f"--output={tmp_path}/t.npz",
    "--compare=table",
  )
  assert code == 2 and "table needs path=" in errors
  assert not list(tmp_path.iterdir())


def test_a_table_that_cannot_be_written_is_a_disk_error(folder, tmp_path):
  (tmp_path / "file").touch()
  code, _, errors = run(
    folder,
    "--vocab=vocab.txt",
    "--sources=pairs path=a.tsv",
    f"--output={tmp_path}/file/t.npz",
  )
  assert code == 5 and "could not be written" in errors
