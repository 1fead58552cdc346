"""Tests `truenegs synonyms` on a vocabulary of a dozen words."""

import io
import json

import nltk
import pytest
from absl import flags
from rich.console import Console

from support.mini_wordnet import write_wordnet
from support.tokenizer_files import write_vocabulary
from truenegs_jax.config import flags as flags_lib
from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.synonyms import command

WORDS = ("in", "house", "houses", "home", "firm", "stay", "remain")
TOKENS = (*SPECIALS, *WORDS, "##s", "h", "s")
PAIRS = "house\thome\nhouse\tfirm\nhouses\thouse\nstay\tremain\nin\thome\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  """The working directory, with a vocabulary, a file of pairs, a WordNet."""
  write_vocabulary(TOKENS, tmp_path / "vocab.txt")
  (tmp_path / "a.tsv").write_text(PAIRS)
  write_wordnet(tmp_path / "corpora" / "wordnet")
  monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
  monkeypatch.chdir(tmp_path)
  return tmp_path


def run_main(*argv, vocab="vocab.txt", sources="pairs path=a.tsv"):
  """Runs the command, by default on a.tsv, and returns its output."""
  values = flags.FlagValues()
  command.define_flags(values)
  given = {"vocab": vocab, "sources": sources}
  texts = [f"--{name}={text}" for name, text in given.items() if text]
  (_, *words), _ = flags_lib.parse_flags(["", *texts, *argv], values)
  console = Console(file=io.StringIO(), width=80, markup=False)
  command.run(words, values, console)
  return console.file.getvalue()


def test_words_are_looked_up_in_wordnet_without_a_vocabulary():
  words = ("house", "in", "houses", "huose")
  assert run_main(*words, vocab="", sources="").splitlines() == [
    "house (4): business firm, firm, home, lodge",
    "in (2): Hoosier State, Indiana",
    "houses (5): business firm, firm, home, house, lodge",
    "huose (0): none",
  ]


def test_a_run_has_its_table(folder):
  assert "saved as 'run/syn" in run_main("--output=run/synonyms.safetensors")
  write_vocabulary(TOKENS, folder / "run" / "vocab.txt")
  config = {"data": {"lowercase": False, "accents": "auto", "language": "en"}}
  (folder / "run" / "config.json").write_text(json.dumps(config))
  options = {"vocab": "run", "sources": ""}
  assert run_main("house", **options) == "house (2): home, firm\n"
  assert "with a list 3 tokens: 20.00%" in run_main(**options)
  # The run keeps capitals, unless a flag says otherwise.
  assert "House: no word" in run_main("House", **options)
  assert "house (2)" in run_main("House", "--lowercase", **options)
  (folder / "b.tsv").write_text("house\tfirm\n")
  options["sources"] = "pairs path=b.tsv"
  assert run_main("house", **options) == "house (1): firm\n"
