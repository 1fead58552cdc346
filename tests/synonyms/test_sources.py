"""Tests common properties of all sources."""

import itertools
import re

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


# Files that are refused: when the source is called with their path, and when
# the pairs are found. Messages begin with "file.txt".
WORDS = ["[PAD]", "big", "large", "home", "house", "cat", "dog"]
AT_THE_CALL = [(name, "", "") for name in ("vectors", "pairs", "omw", "table")]
AT_THE_CALL += [
  ("vectors", "some words", ":1: 'words' are not finite numbers"),
  ("vectors", "1 3\ncat 1 2\n", ":2: 2 numbers after the word, not 3"),
  ("pairs", "word", ": the file has no entries"),
  ("pairs", "\n\n", ": the file has no entries .*has the formats"),
  ("pairs", "a\tb\tc", ":1: 3 columns"),
  ("pairs", "UTF-8\nbig|2\n-|large\n", ":2: 'big|2' is not a word"),
  ("pairs", "UTF-9\nbig|1\n-|large\n", ":1: the encoding 'UTF-9' is wrong"),
  ("pairs", "UTF-8\nbig|0\n", ": the file has no entries"),
  ("omw", "house home", ":1: .* not a line of the Open"),
  ("omw", "# a\n\n02958343-n\tfra:lemma\n", ":3: .* not a line of the Open"),
  ("omw", "# a\n\nvoiture\tauto\n", ":3: .* not a line of the Open"),
  ("table", "PK cut off", "' cannot be read as a synonym table"),
]
LATER = [
  ("pairs", "big\tlarge\nhome\thouse\t0.5\n", ":2: 3 columns"),
  ("pairs", "[J] ||| big ||| large\n[J] ||| big\n", ":2: 2 columns"),
  ("pairs", "big\tvery large\nhome\tthe_house\n", ": no pair has two words"),
  ("vectors", "Katze 1 2\n", ": no word of .* has a vector"),
  ("vectors", "dog 1 2\ncat 1", ":2: 1 numbers after the word, not 2"),
  ("vectors", "2 2\ndog 1 2\ncat 1 two", ":3: '1 two' are not finite numbers"),
  ("vectors", "dog 1 2\ncat 1 1e999\n", ":2: '1 1e999' are not finite"),
]
OTHER_FORMATS = (
  "UTF-8\n2\nbig|6\nlarge|24\n",  # index of MyThes
  '"big","very large"\n"home","house"\n',
  '{"big": ["large"]}\n',
  "big 0.1 0.2\nlarge 0.3 0.4\n",  # word vectors
  "big\nlarge\n",
)
LATER += [
  ("pairs", content.replace("\n", end), ": .*sources.md has the formats")
  for content in OTHER_FORMATS
  for end in ("\n", "\r\n")
]


@pytest.mark.parametrize(
  "name, content, message, read",
  [(*row, callable) for row in AT_THE_CALL] + [(*row, list) for row in LATER],
)
def test_damaged_and_other_files_are_refused(
  tmp_path, name, content, message, read
):
  path = tmp_path / "file.txt"
  path.write_text(content, newline="")
  message = re.escape(str(path)) + message.replace("|", "[|]")
  with pytest.raises(DataError, match=message):
    read(sources.SOURCES[name](Vocabulary(WORDS), path=str(path)))
