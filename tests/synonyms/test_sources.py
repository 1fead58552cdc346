"""Tests sources of pairs: their rules, the formats of files, and refusals."""

import gzip
import itertools
import lzma
import math
import re

import nltk
import numpy as np
import pytest

from support.mini_wordnet import write_wordnet
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import sources
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import Vocabulary


@pytest.fixture
def write(tmp_path):
  def write_file(content, name="file.txt"):
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    return str(tmp_path / name)

  return write_file


def read(path, tokens, source="pairs", normalize=str, **options):
  vocabulary = Vocabulary(tokens, normalize, no_neighbours={"the"})
  return list(sources.SOURCES[source](vocabulary, path=path, **options))


def format_tsv(pairs):
  return "".join(f"{word}\t{synonym}\n" for word, synonym in pairs)


# Rules of all sources. Every one declares all of SYNONYMS (words, pieces,
# special tokens, phrases) to be synonyms of each other.

VOCABULARY = ["[PAD]", "you", "House", "home", "firm", "[house]", "house"]
VOCABULARY += ["##house", "Home"]
SYNONYMS = ["home", "house", "firm", "House", "[house]", "##house"]
SYNONYMS += ["business_firm", "hut", "Home"]


@pytest.fixture
def example(tmp_path, monkeypatch):
  """Returns a function that writes a source's file and returns its options."""
  monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
  pairs = list(itertools.permutations(SYNONYMS, 2))

  def make(name):
    path = tmp_path / f"example.{name}"
    if name == "wordnet":
      write_wordnet(tmp_path / "corpora" / "wordnet")
      return {}
    if name == "table":
      path = tmp_path / "example.safetensors"
      different = [(a, b) for a, b in pairs if a.lower() != b.lower()]
      SynonymTable.from_pairs(different, VOCABULARY, source="x").save(path)
      return {"path": str(path)}
    text = {
      "pairs": "".join(f"[NN] ||| {a} ||| {b}\n" for a, b in pairs),
      "omw": "".join(f"00000001-n\tlemma\t{w}\n" for w in SYNONYMS),
      "vectors": "".join(f"{w} 1 {i}\n" for i, w in enumerate(SYNONYMS)),
    }
    path.write_text(text[name])
    return {"path": str(path)}

  return make


@pytest.mark.parametrize("name", sorted(sources.SOURCES))
def test_pairs_are_ordered_unique_and_of_different_words(name, example):
  options = example(name)
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
    ("wordnet", {"senses": 0}, "senses=0' is out of range.*1 or more"),
    ("vectors", {"threshold": float("nan")}, "threshold=nan"),
    ("vectors", {"path": "a\0b"}, "no file 'a.x00b'"),
  ],
)
def test_invalid_options_are_refused_at_the_call(
  example, name, changes, message
):
  options = example(name)
  sources.SOURCES[name](Vocabulary(()), **options)
  with pytest.raises(InputError, match=message):
    sources.SOURCES[name](Vocabulary(()), **options | changes)


# Files that are refused: when the source is called with their path, and when
# the pairs are found. Messages begin with "file.txt".
WORDS = ["[PAD]", "big", "large", "home", "house", "cat", "dog"]
AT_THE_CALL = [(name, "", "") for name in ("vectors", "pairs", "omw", "table")]
AT_THE_CALL += [
  ("vectors", "1 3\ncat 1 2\n", ":2: 2 numbers after the word, not 3"),
  ("pairs", "UTF-8\nbig|2\n-|large\n", ":2: 'big|2' is not a word"),
  ("pairs", "UTF-9\nbig|1\n-|large\n", ":1: the encoding 'UTF-9' is wrong"),
  ("omw", "# a\n\n02958343-n\tfra:lemma\n", ":3: .* not a line of the Open"),
  ("table", "PK cut off", "' cannot be read as a synonym table"),
]
LATER = [
  ("pairs", "[J] ||| big ||| large\n[J] ||| big\n", ":2: 2 columns"),
  ("pairs", "big\tvery large\nhome\tthe_house\n", ": no pair has two words"),
  ("pairs", "big 0.1 0.2\nlarge 0.3 0.4\r\n", ".*sources.md"),  # word vectors
  ("vectors", "Katze 1 2\n", ": no word of .* has a vector"),
  ("vectors", "dog 1 2\ncat 1 1e999\n", ":2: '1 1e999' are not finite"),
]


@pytest.mark.parametrize(
  "name, content, message, read",
  [(*row, callable) for row in AT_THE_CALL] + [(*row, list) for row in LATER],
)
def test_damaged_and_other_files_are_refused(
  write, name, content, message, read
):
  path = write(content)
  message = re.escape(path) + message.replace("|", "[|]")
  with pytest.raises(DataError, match=message):
    read(sources.SOURCES[name](Vocabulary(WORDS), path=path))


# Pairs, lists, PPDB, MyThes and Open Multilingual WordNet.

TOKENS = ["[PAD]", "big", "large", "house", "home", "villa", "été", "Rome"]
TOKENS += ["rome", ".", "##home"]
PAIRS = [("big", "large"), ("house", "home"), ("house", "villa")]
PAIRS += [("home", "house"), ("été", ".")]
DROPPED = [("big", "very large"), ("summer_house", "villa"), ("big", "huge")]
DROPPED += [("##home", "[PAD]"), ("home", "##home"), ("Rome", "rome")]
DROPPED += [("HOUSE", "Villa"), ("house", "house"), ("été", "ete")]
EXPECTED = sorted(PAIRS, key=lambda pair: (TOKENS.index(pair[0]), pair[1]))


def format_lists(pairs):
  lists = {}
  for word, synonym in pairs:
    if " " not in word + synonym:
      lists.setdefault(word, []).append(synonym)
  return "".join(f"{w} {' '.join(names)}\n" for w, names in lists.items())


def format_ppdb(pairs):
  fields = "PPDB2.0Score=3.1 Agigasim=0.2 ||| 0-0 ||| Equivalence"
  return "".join(f"[NN] ||| {a} ||| {b} ||| {fields}\n" for a, b in pairs)


@pytest.mark.parametrize("format", [format_tsv, format_lists, format_ppdb])
def test_every_format_yields_the_pairs_of_the_vocabulary(write, format):
  content = format((PAIRS + DROPPED)[::-1])
  compressed = gzip.compress(content.encode())
  assert read(write(compressed, "x.gz"), TOKENS) == EXPECTED
  with pytest.raises(DataError, match="damaged or cut off"):
    read(write(compressed[:-10], "x.gz"), TOKENS)
  for variant in (
    content,
    content.replace("\n", "\r\n"),
    "\n \n" + content.replace("\n", "\n\n"),
    "\ufeff" + content.removesuffix("\n"),
  ):
    assert read(write(variant), TOKENS) == EXPECTED


FRENCH = """# WOLF\tfra\thttp://wolf.example.org\tCeCILL-C
02958343-n\tfra:lemma\tvoiture
02958343-n\tfra:lemma\tvéhicule à moteur
02958343-n\tfra:lemma\tauto
02958343-n\tfra:def\t0\tun véhicule

00774344-r\tfra:lemma\tauto
00774344-r\tfra:lemma\tseul
01835496-v\tlemma\taller
01835496-v\tlemma\tse_déplacer
01835496-v\tfra:lemma:root\tété
00217728-a\tfra:lemma\tbeau
00217728-a\tfra:lemma\tÉlégant
"""


def test_words_that_share_a_synset_are_synonyms(write):
  tokens = ["voiture", "auto", "seul", "aller", "été", "beau", "élégant"]
  assert read(write(FRENCH), tokens, "omw") == [
    ("voiture", "auto"),
    ("auto", "seul"),
    ("auto", "voiture"),
    ("seul", "auto"),
    ("beau", "élégant"),
    ("élégant", "beau"),
  ]


def test_words_with_accents_stand_for_no_stop_word(write):
  path = write("vrai\tsûr\nvrai\tRéel\nvrai\tsur\nréel\tsûr\n")
  tokens = ["vrai", "reel", "sur"]
  stripped = make_tokenizer([*SPECIALS, *tokens], lowercase=True)
  vocabulary = Vocabulary(tokens, stripped.normalize, no_neighbours={"sur"})
  pairs = sources.pairs(vocabulary, path=path)
  assert list(pairs) == [("vrai", "reel"), ("vrai", "sur")]


MYTHES = """big|2
(adj)|large|very large|House (generic term)|home (antonym)|été (similar term)
(adv)|été (coll.)|. (ugs., derb)|Rome (Hauptform) (Oberbegriff) (ugs.)
rome|1
-|Rome|house|||
(antonyms)|0
villa|1
(Antónimo)|big|home
home|1
(noun)|HOUSE (Hauptform)
"""


@pytest.mark.parametrize("encoding", ["UTF-8", "microsoft-cp1252"])
def test_mythes_is_read_in_its_encoding(write, encoding):
  codec = encoding.removeprefix("microsoft-")
  content = f"{encoding}\n{MYTHES}".encode(codec)
  expected = [("Rome", "house"), ("big", "."), ("big", "large"), ("big", "été")]
  expected += [("home", "house"), ("rome", "house")]
  assert sorted(read(write(content), TOKENS)) == expected
  crlf = content.replace(b"\n", b"\r\n")
  assert sorted(read(write(crlf), TOKENS)) == expected
  assert sorted(read(write(lzma.compress(content), "x.xz"), TOKENS)) == expected


# Word vectors.

NEAR_TOKENS = ["[PAD]", "[UNK]", "cat", "dog", "##cat", "car", "van", "."]
NEAR_TOKENS += ["the"]
LINES = (
  "the 0.1 -0.2\ncat 1 0.1\nunseen x y\ncar -1 2e0\ndog 1 0.2\n"
  "van -1 2.5\n##cat 1 0.1\n[UNK] 1 0.1\n. 5 -7\n"
)
# By the angles, in degrees: the -63, . -54, cat 6, dog 11, van 112, car 117.
NEIGHBOURS = {
  "cat": "dog . the van car",
  "dog": "cat . the van car",
  "car": "van dog cat . the",
  "van": "car dog cat . the",
  ".": "the cat dog van car",
  "the": ". cat dog van car",
}


def read_near(path, tokens=NEAR_TOKENS, **options):
  return read(path, tokens, "vectors", **options)


def list_pairs(neighbours, top=10):
  pairs = []
  for word, names in neighbours.items():
    pairs += [(word, name) for name in names.split()[:top]]
  return pairs


def rank_by_loop(vectors_GxD, top, threshold=-1):
  """Ranks neighbours by computing one cosine at a time."""
  ranked = []
  vectors_GxD = vectors_GxD.astype(float)
  for i, a_D in enumerate(vectors_GxD):
    scores = []
    for j, b_D in enumerate(vectors_GxD):
      norms = math.sqrt(math.fsum(a_D**2)) * math.sqrt(math.fsum(b_D**2))
      scores.append((-round(math.fsum(a_D * b_D) / norms, 9), j))
    best = sorted(s for s in scores if s[1] != i)[:top]
    ranked.append([j for s, j in best if -s >= threshold])
  return ranked


def tied_vectors(rng):
  """Draws vectors of few directions, many of which are equal, and copies."""
  vectors_GxD = rng.integers(-2, 3, (60, 3)).astype(float)
  vectors_GxD[~vectors_GxD.any(axis=1)] = 1
  vectors_GxD[1::3] = vectors_GxD[::3] * 2.0 ** rng.integers(-9, 9, (20, 1))
  return vectors_GxD


def close_vectors(rng):
  """Draws vectors whose cosines differ by 1e-8, too little for float32."""
  return rng.normal(size=50) + 1e-4 * rng.normal(size=(60, 50))


@pytest.mark.parametrize("make", [tied_vectors, close_vectors])
@pytest.mark.parametrize("top, threshold", [(1, -1), (7, 0.2), (99, -1)])
def test_neighbours_equal_a_double_loop(make, top, threshold):
  vectors_GxD = np.float32(make(np.random.default_rng(top)))
  options = {"top": top, "threshold": threshold}
  expected = rank_by_loop(vectors_GxD, **options)
  for cells in (1, 61, 7 * 60, 10**6):
    ranked = sources.rank_neighbours(vectors_GxD, cells=cells, **options)
    assert [list(row) for row in ranked] == expected


def test_pairs_are_whole_word_tokens_nearest_first(write):
  path = write(LINES)
  assert read_near(path) == list_pairs(NEIGHBOURS)
  assert read_near(path, top=2) == list_pairs(NEIGHBOURS, top=2)
  # `top` counts useful neighbours only.
  numbers = "20 1 0.12\n1990s 1 0.11\n½ 1 0.11\n"
  expected = {"cat": "dog van car", "dog": "cat van car"}
  expected |= {"car": "van dog cat", "van": "car dog cat"}
  tokens = [*NEAR_TOKENS, "20", "1990s", "½"]
  pairs = read_near(write(numbers + LINES), tokens, content_words=True, top=3)
  assert pairs == list_pairs(expected)


def test_only_the_first_vector_of_a_word_counts(write):
  later = LINES + "cat -1 2\ndog oh no\nthe 0 0\n"
  assert read_near(write(later)) == list_pairs(NEIGHBOURS)
  earlier = read_near(write("cat -1 2\n" + LINES))
  assert [b for a, b in earlier if a == "cat"][:2] == ["car", "van"]
  without_cat = read_near(write("cat 0 -0.0\n" + LINES))  # a zero vector
  assert {w for pair in without_cat for w in pair} == set(NEIGHBOURS) - {"cat"}


@pytest.mark.parametrize(
  "content",
  [
    "\ufeff" + LINES.replace("\n", "\r\n").removesuffix("\n"),
    "a\u0085b 1 2\nc\u2028 1 2\n\u00a0 1 2\n\x1c 1 2\n" + LINES,
    f"9 2\ncat . . 5 5\n3 . 5 5\nthe @ 5 5\n{LINES}",  # phrases
  ],
)
def test_variants_of_the_format_yield_the_same_pairs(write, content):
  assert read_near(write(content)) == list_pairs(NEIGHBOURS)


@pytest.mark.parametrize(
  "content, words, neighbours",
  [
    # A missing word gets the vector of its first cased form,
    (
      "PARIS 9 1\nParis 1 9\nRome 1 -9\nrome 9 2\nBonn 9 3\n",
      "bonn paris rome",
      {"bonn": "rome paris", "paris": "rome bonn", "rome": "bonn paris"},
    ),
    # The same word in another case is not a neighbour.
    (
      "cat 1 1\nCat 1 1.1\nCAT 1 1.2\ndog 1 2\n",
      "cat Cat dog",
      {"cat": "dog", "Cat": "dog", "dog": "Cat cat"},
    ),
  ],
)
def test_words_in_another_case(write, content, words, neighbours):
  assert read_near(write(content), words.split()) == list_pairs(neighbours)


@pytest.mark.parametrize(
  "content, warning",
  [
    (f"10 2\n{LINES}".encode(), "9 words that are read, but .* says 10"),
    (b"k\xc3 1 2\n" + LINES.encode() + b"\xe9t\xe9 1 2\n", "left out: 2[.]"),
  ],
)
def test_what_is_odd_but_usable_is_a_warning(write, capsys, content, warning):
  assert read_near(write(content)) == list_pairs(NEIGHBOURS)
  assert re.search(warning, capsys.readouterr().err.replace("\n", " "))
