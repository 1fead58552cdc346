"""Tests common properties of all sources."""

import itertools

import pytest

from support.mini_wordnet import write_wordnet
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import sources
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import Vocabulary

NAMES = sorted(sources.SOURCES)

# Every source declares all of SYNONYMS (words, pieces, special tokens, phrases)
# to be synonyms of each other.

VOCABULARY = ["[PAD]", "you", "House", "home", "firm", "[house]", "house"]
VOCABULARY += ["##house", "Home"]
SYNONYMS = ["home", "house", "firm", "House", "[house]", "##house"]
SYNONYMS += ["business_firm", "hut", "Home"]


def make_options(name, folder):
  """Returns options of a source, with files written into `folder`."""
  path = folder / "example"
  if name == "wordnet":
    return {"folder": str(write_wordnet(folder / "wordnet"))}
  if name == "pairs":
    pairs = itertools.permutations(SYNONYMS, 2)
    path.write_text("".join(f"[NN] ||| {a} ||| {b}\n" for a, b in pairs))
  elif name == "omw":
    lines = [f"00000001-n\tlemma\t{w}\n" for w in SYNONYMS]
    path.write_text("# example\n" + "".join(lines))
  elif name == "vectors":
    path.write_text("".join(f"{w} 1 {i}\n" for i, w in enumerate(SYNONYMS)))
  elif name == "table":
    pairs = itertools.permutations(SYNONYMS, 2)
    pairs = [(a, b) for a, b in pairs if a.lower() != b.lower()]
    path = path.with_suffix(".safetensors")
    SynonymTable.from_pairs(pairs, VOCABULARY, source="x").save(path)
  else:
    pytest.fail(f"Write an example for the source {name}.")
  return {"path": str(path)}


@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_ordered_unique_and_of_different_words(name, tmp_path):
  options = make_options(name, tmp_path)
  vocabulary = Vocabulary(VOCABULARY)
  pairs = list(sources.SOURCES[name](vocabulary, **options))
  assert pairs == list(sources.SOURCES[name](vocabulary, **options))
  assert len(set(pairs)) == len(pairs)
  assert {("home", "firm"), ("home", "house")} & set(pairs)
  for word, synonym in pairs:
    assert {word, synonym} <= {"House", "home", "firm", "house", "Home"}
    assert word.lower() != synonym.lower()
  ids = [VOCABULARY.index(word) for word, _ in pairs]
  assert ids == sorted(ids)


@pytest.mark.parametrize(
  "name, changes, message",
  [
    ("wordnet", {"senses": 0}, "senses=0 .*Set 1 or more"),
    ("wordnet", {"senses": -2}, "senses=-2 "),
    ("wordnet", {"folder": "~nobody/w"}, "no WordNet in '~nobody/w'"),
    ("vectors", {"top": 0}, "top=0 .*top to 1 or more"),
    ("vectors", {"threshold": float("nan")}, "threshold=nan "),
    ("vectors", {"path": "a\0b"}, "no file 'a.x00b'"),
    ("pairs", {"path": "nowhere"}, "no file 'nowhere'"),
    ("omw", {"path": "/"}, "no file '/'"),
    ("table", {"path": ""}, "no file ''"),
  ],
)
def test_invalid_options_are_refused_at_the_call(
  tmp_path, name, changes, message
):
  options = make_options(name, tmp_path)
  sources.SOURCES[name](Vocabulary(()), **options)
  with pytest.raises(InputError, match=message):
    sources.SOURCES[name](Vocabulary(()), **options | changes)


@pytest.mark.parametrize(
  "name, content",
  [(name, "") for name in ("vectors", "pairs", "omw", "table")]
  + [("vectors", "some words"), ("pairs", "word"), ("pairs", "a\tb\tc")]
  + [("omw", "house home"), ("table", "PK cut off")],
)
def test_files_of_another_format_are_refused_at_the_call(
  tmp_path, content, name
):
  path = tmp_path / "file.txt"
  path.write_text(content)
  with pytest.raises(DataError, match="file.txt"):
    sources.SOURCES[name](Vocabulary(()), path=str(path))
