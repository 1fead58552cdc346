"""Tests `python -m truenegs_jax.synonyms` on a vocabulary of a dozen words."""

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
from truenegs_jax.synonyms import __main__ as synonyms_main
from truenegs_jax.synonyms.table import SynonymTable

ROOT = pathlib.Path(__file__).parents[2]
WORDS = ("in", "house", "houses", "home", "firm", "stay", "remain")
TOKENS = (*SPECIALS, *WORDS, "##s", "h", "s")
PAIRS_A = [
  ("house", "home"),
  ("house", "firm"),
  ("houses", "house"),
  ("stay", "remain"),
  ("in", "home"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The working directory, with a vocabulary and files of pairs."""
  write_vocabulary(TOKENS, tmp_path / "vocab.txt")
  lines = "".join(f"{word}\t{synonym}\n" for word, synonym in PAIRS_A)
  (tmp_path / "a.tsv").write_text(lines)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def run_main(*flag_texts):
  """Runs the command, by default on a.tsv, and returns its output."""
  values = flags.FlagValues()
  synonyms_main.define_flags(values)
  values(["", "--vocab=vocab.txt", "--sources=pairs path=a.tsv", *flag_texts])
  screen = io.StringIO()
  synonyms_main.run(values, Console(file=screen, width=80, markup=False))
  output = screen.getvalue()
  unwrapped = ("saved as ", "warning: ")
  lines = [x for x in output.splitlines() if not x.startswith(unwrapped)]
  assert max(map(len, lines)) <= 80
  return output


def parse_row(output, start):
  """Returns the cells of the table row whose first cell begins with `start`."""
  row: list[list[str]] = []  # the lines of each cell
  for line in output.splitlines():
    cells = [cell.strip() for cell in line.split("│")[1:-1]]
    if cells and cells[0].startswith(start):
      row = [[cell] for cell in cells]
    elif row and cells and not cells[0]:
      for lines, cell in zip(row, cells, strict=True):
        lines.append(cell)
    elif row:
      break
  return [" ".join(filter(None, lines)) for lines in row]


def load_pairs(path):
  keys = SynonymTable.load(path, TOKENS).keys_Q.tolist()
  return {(TOKENS[a], TOKENS[b]) for a, b in (divmod(k, 15) for k in keys)}


def test_coverage_of_a_text_is_shown(folder):
  (folder / "text.txt").write_text("In houses hs\nstay home, home.\n\nstay\n")
  flat = " ".join(run_main("--text=text.txt").split())
  assert "50.0% of its tokens have synonyms" in flat  # in, h, ##s not counted
  assert "frequent ones without: home, h" in flat and "warning" not in flat
  (folder / "text.txt").write_text("home home home stay\n")
  assert "warning: --sources='pairs path=a.tsv'" in run_main("--text=text.txt")


def test_output_has_the_options_of_the_flags(folder):
  (folder / "words.txt").write_text("Stay\n")
  switches = ("--stop_words=words.txt", "--symmetric", "--include_self")
  run_main("--output=new/t.npz", *switches)
  loaded = SynonymTable.load("new/t.npz", TOKENS)
  options = {"stop_words": {"stay"}, "symmetric": True, "include_self": True}
  expected = SynonymTable.from_pairs(
    PAIRS_A, TOKENS, source="pairs path=a.tsv", **options
  )
  np.testing.assert_array_equal(loaded.keys_Q, expected.keys_Q)
  assert loaded.source == expected.source
  assert loaded.options == expected.options


def test_a_saved_table_changes_only_by_flags(folder):
  options = {"stop_words": {"stay"}, "include_self": True}
  saved = SynonymTable.from_pairs(
    PAIRS_A, TOKENS, source="wordnet pos=n", **options
  )
  saved.save("saved.npz")
  name = "table path=saved.npz"
  output = run_main(
    f"--sources={name}",
    "--output=copy.npz",
    "--word=in,stay",
  )
  assert "wordnet pos=n" in output and saved.fingerprint in output
  copy = SynonymTable.load("copy.npz", TOKENS)
  assert (copy.source, copy.options) == (saved.source, saved.options)
  np.testing.assert_array_equal(copy.keys_Q, saved.keys_Q)
  assert parse_row(output, "in (2)") == ["in (2)", "in, home"]
  # The table has only a hash of its stop words, so the reason is unknown.
  assert "the sources list no token" in parse_row(output, "stay (0)")[1]
  for flag, added in (
    ("--nokeep_stop_words", {("house", "firm")}),
    ("--symmetric", {("home", "house"), ("home", "in")}),
  ):
    run_main(f"--sources={name}", "--output=t", flag)
    assert added | {("house", "home")} < load_pairs("t")
    assert not {("house", "house"), ("in", "home")} & load_pairs("t")
    built = SynonymTable.load("t", TOKENS)
    assert built.source == "table path=saved.npz"


def test_words_have_their_list_or_the_reason_for_none(folder):
  output = run_main("--word=House,in,home,hs,##s")
  assert parse_row(output, "house (2)") == ["house (2)", "home, firm"]
  assert "a stop word: use --keep_stop_words" in parse_row(output, "in (0)")[1]
  assert "the sources list no token" in parse_row(output, "home (0)")[1]
  assert "not in the vocabulary: h ##s" in parse_row(output, "hs")[1]
  assert "a piece of words" in parse_row(output, "##s (0)")[1]
  output = run_main("--word=in,home,s", "--keep_stop_words", "--symmetric")
  assert "the sources list no token" in parse_row(output, "s (0)")[1]
  assert parse_row(output, "in (1)") == ["in (1)", "home"]
  assert parse_row(output, "home (2)") == ["home (2)", "in, house"]


@pytest.mark.parametrize(
  "flag_texts, error, message",
  [
    (["--vocab="], InputError, "--vocab is missing"),
    (["--sources=table", "--output=t"], InputError, "--sources=.*needs path="),
    (["--sources=model top=3"], InputError, "model top=3': the source"),
    (["--sources=table path=vocab.txt"], DataError, "not a complete synonym"),
    (["--output=a.tsv/t.npz"], DiskError, "could not be written"),
  ],
)
def test_invalid_flags_are_refused_before_saving(
  folder, flag_texts, error, message
):
  with pytest.raises(error, match=message):
    run_main(*flag_texts)
  assert not (folder / "t").exists()


def test_the_command_prints_an_error_in_one_line(folder):
  done = subprocess.run(
    [sys.executable, "-m", "truenegs_jax.synonyms", "--vocab=vocab.txt"]
    + ["--sources=table path=a.tsv"],
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert (done.returncode, done.stdout) == (3, "")
  assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
