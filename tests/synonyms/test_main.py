"""Tests `truenegs synonyms` on a vocabulary of a dozen words."""

import io

import numpy as np
import pytest
from absl import flags
from rich.console import Console

from support.mini_wordnet import write_wordnet
from truenegs_jax.data.tokens.tokenizer import SPECIALS, write_vocabulary
from truenegs_jax.runtime.errors import DataError, DiskError, InputError
from truenegs_jax.synonyms import __main__ as synonyms_main
from truenegs_jax.synonyms.table import SynonymTable

WORDS = ("in", "house", "houses", "home", "firm", "stay", "remain")
TOKENS = (*SPECIALS, *WORDS, "##s", "h", "s")
PAIRS_A = [
  ("house", "home"),
  ("house", "firm"),
  ("houses", "house"),
  ("stay", "remain"),
  ("in", "home"),
]


@pytest.fixture(autouse=True)
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
  return screen.getvalue()


def test_coverage_of_a_text_is_shown(folder):
  (folder / "text.txt").write_text("In houses hs\nstay home, home.\n\nstay\n")
  output = run_main("--text=text.txt")
  assert "50.0% of its tokens have synonyms" in output  # in, h, ##s not counted
  assert "frequent ones without: home, h" in output and "warning" not in output
  (folder / "text.txt").write_text("home home home stay\n")
  assert "warning     --sources='pairs path=a.tsv'" in run_main(
    "--text=text.txt"
  )


def test_coverage_of_wordnet_is_shown(folder):
  write_wordnet(folder / "w")
  output = run_main("--sources=wordnet", "--wordnet_dir=w")
  assert "in WordNet  7 tokens have a synset: 46.67%" in output
  assert "in WordNet" not in run_main()


@pytest.mark.parametrize("name", ["new/t.npz", "t.safetensors"])
def test_output_has_the_options_of_the_flags(folder, name):
  (folder / "words.txt").write_text("Stay\n")
  switches = ("--stop_words=words.txt", "--symmetric", "--include_self")
  run_main(f"--output={name}", *switches)
  loaded = SynonymTable.load(name, TOKENS)
  options = {"stop_words": {"stay"}, "symmetric": True, "include_self": True}
  expected = SynonymTable.from_pairs(
    PAIRS_A, TOKENS, source="pairs path=a.tsv", **options
  )
  np.testing.assert_array_equal(loaded.keys_Q, expected.keys_Q)
  assert loaded.source == expected.source
  assert loaded.options == expected.options


def test_words_have_their_list_or_the_reason_for_none():
  lines = run_main("--word=House,in,home,hs,##s").splitlines()
  assert (
    "house (2): home, firm" in lines and "hs: not in the vocabulary" in lines
  )
  for word in ("in", "home", "##s"):
    assert any(line.startswith(f"{word}: none; a stop word") for line in lines)
  lines = run_main("--word=in,home,s", "--keep_stop_words", "--symmetric")
  assert {"in (1): home", "home (2): in, house"} < set(lines.splitlines())


@pytest.mark.parametrize(
  "flag_texts, error, message",
  [
    (["--vocab="], InputError, "--vocab is missing"),
    (["--sources=table", "--output=t.npz"], InputError, "no file ''. Set"),
    (["--output=t"], InputError, "--output='t': suffix=''"),
    (["--sources=model top=3"], InputError, "model top=3': the source"),
    (
      ["--sources=table path=vocab.txt"],
      DataError,
      "cannot be read as a synonym",
    ),
    (["--output=a.tsv/t.npz"], DiskError, "could not be written"),
  ],
)
def test_invalid_flags_are_refused_before_saving(
  folder, flag_texts, error, message
):
  with pytest.raises(error, match=message):
    run_main(*flag_texts)
  assert not list(folder.glob("t*"))
