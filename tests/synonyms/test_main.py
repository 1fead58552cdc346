"""Tests `truenegs synonyms` on a vocabulary of a dozen words."""

import io

import nltk
import pytest
from absl import flags
from rich.console import Console
from tests.support.tokenizer_files import write_vocabulary

from support.mini_wordnet import write_wordnet
from truenegs_jax.config import flags as flags_lib
from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.runtime.errors import DataError, DiskError, InputError
from truenegs_jax.synonyms import __main__ as synonyms_main

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


def run_main(*argv, vocab="vocab.txt", sources="pairs path=a.tsv"):
  """Runs the command, by default on a.tsv, and returns its output."""
  values = flags.FlagValues()
  synonyms_main.define_flags(values)
  given = {"vocab": vocab, "sources": sources}
  texts = [f"--{name}={text}" for name, text in given.items() if text]
  _, *words = flags_lib.parse_flags(["", *texts, *argv], values)
  screen = io.StringIO()
  console = Console(file=screen, width=80, markup=False)
  synonyms_main.run(words, values, console)
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


def test_words_are_looked_up_in_wordnet_without_a_vocabulary(
  folder, monkeypatch
):
  write_wordnet(folder / "w" / "corpora" / "wordnet")
  monkeypatch.setattr(nltk.data, "path", [str(folder / "w")])
  words = ("house", "in", "houses", "category", "huose")
  assert run_main(*words, vocab="", sources="").splitlines() == [
    "house (3): firm, home, lodge (business firm)",
    "in: a stop word, for which nothing counts (Hoosier State, Indiana)",
    "houses (4): firm, home, house, lodge (business firm)",
    "category: no synonyms in WordNet",
    "huose: not in WordNet",
    synonyms_main.LEGEND,
  ]
  with pytest.raises(InputError, match="There is no WordNet.* wordnet"):
    run_main("house", vocab="", sources="wordnet folder=v")


def test_words_that_do_not_count_are_in_parentheses(folder):
  write_wordnet(folder / "w")
  words = ("house", "home", "took")
  lines = run_main(*words, sources="wordnet folder=w senses=1").splitlines()
  assert lines[:3] == [
    "house (1): firm (business firm, home, lodge)",
    "home: nothing that counts (house)",
    "took: not in the vocabulary (assume, take)",
  ]
  assert "with a list" not in "".join(lines)


def test_a_run_has_its_table(folder):
  assert "saved as 'run/syn" in run_main("--output=run/synonyms.safetensors")
  write_vocabulary(TOKENS, folder / "run" / "vocab.txt")
  options = {"vocab": "run", "sources": ""}
  assert run_main("house", **options) == "house (2): home, firm\n"
  assert "with a list 3 tokens: 20.00%" in run_main(**options)
  (folder / "b.tsv").write_text("house\tfirm\n")
  options["sources"] = "pairs path=b.tsv"
  assert run_main("house", **options) == "house (1): firm\n"


def test_words_have_their_list_or_the_reason_for_none():
  source = "pairs path=a.tsv"
  assert run_main("House", "in", "home", "hs", "##s").splitlines() == [
    "house (2): home, firm",
    "in: a stop word, for which nothing counts",
    f"home: not in {source}",
    "hs: not in the vocabulary",
    f"##s: not in {source}",
  ]


@pytest.mark.parametrize(
  "flag_texts, error, message",
  [
    (["--vocab=", "house"], InputError, "Set --vocab=FILE, or only name"),
    (["--vocab=", "--sources=auto"], InputError, "Set --vocab=FILE"),
    (
      ["--sources=table", "--output=t.safetensors"],
      InputError,
      "no file ''. Set",
    ),
    (["--output=t"], InputError, "--output='t': suffix=''"),
    (["--sources=model top=3"], InputError, "model top=3': the source"),
    (
      ["--sources=table path=vocab.txt"],
      DataError,
      "cannot be read as a synonym",
    ),
    (["--output=a.tsv/t.safetensors"], DiskError, "could not be written"),
  ],
)
def test_invalid_flags_are_refused_before_saving(
  folder, flag_texts, error, message
):
  with pytest.raises(error, match=message):
    run_main(*flag_texts)
  assert not list(folder.glob("t*"))
