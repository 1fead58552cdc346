"""Tests word vectors: ranking against a double loop, formats, damaged files."""

import gzip
import lzma
import math

import numpy as np
import pytest

from truenegs_jax.synonyms import sources
from truenegs_jax.synonyms.vocabulary import Vocabulary

TOKENS = ["[PAD]", "[UNK]", "cat", "dog", "##cat", "car", "van", ".", "the"]
LINES = (
  "the 0.1 -0.2\ncat 1 0.1\nunseen x y\ncar -1 2e0\ndog 1 0.2\n"
  "van -1 2.5\n##cat 1 0.1\n[UNK] 1 0.1\n. 5 -7\n"
)
NUM_WORDS = len(LINES.splitlines())
# By the angles, in degrees: the -63, . -54, cat 6, dog 11, van 112, car 117.
NEIGHBOURS = {
  "cat": "dog . the van car",
  "dog": "cat . the van car",
  "car": "van dog cat . the",
  "van": "car dog cat . the",
  ".": "the cat dog van car",
  "the": ". cat dog van car",
}


@pytest.fixture
def write(tmp_path):
  def write_file(content, name="vectors.txt"):
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    return str(tmp_path / name)

  return write_file


def read(path, tokens=TOKENS, symbols=True, **options):
  vocabulary = Vocabulary(tokens, no_neighbours={"the"})
  return list(
    sources.vectors(vocabulary, path=path, symbols=symbols, **options)
  )


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


def random_vectors(seed, size=60, dim=50):
  return np.random.default_rng(seed).normal(size=(size, dim))


def tied_vectors(seed, size=60):
  """Vectors of few directions, so that many cosines are equal, and copies."""
  rng = np.random.default_rng(seed)
  vectors_GxD = rng.integers(-2, 3, (size, 3)).astype(float)
  vectors_GxD[~vectors_GxD.any(axis=1)] = 1
  vectors_GxD[1::3] = vectors_GxD[::3] * 2.0 ** rng.integers(-9, 9, (20, 1))
  return vectors_GxD


def close_vectors(seed, size=60, dim=50):
  """Vectors whose cosines differ by some 1e-8, too little for float32."""
  rng = np.random.default_rng(seed)
  return rng.normal(size=dim) + 1e-4 * rng.normal(size=(size, dim))


def rank(vectors_GxD, top=10, **options):
  ranked = sources.rank_neighbours(
    vectors_GxD.astype(np.float32), top=top, **options
  )
  return [list(row) for row in ranked]


def format_text(names, vectors_GxD):
  lines = zip(names, np.asarray(vectors_GxD).tolist(), strict=True)
  return "".join(f"{w} {' '.join(map(str, v))}\n" for w, v in lines)


# Ranking.


@pytest.mark.parametrize("make", [random_vectors, tied_vectors, close_vectors])
@pytest.mark.parametrize("top, threshold", [(1, -1), (7, 0.2), (99, -1)])
def test_neighbours_equal_a_double_loop(make, top, threshold):
  vectors_GxD = make(seed=top).astype(np.float32)
  options = {"top": top, "threshold": threshold}
  ranked = rank(vectors_GxD, **options)
  assert ranked == rank_by_loop(vectors_GxD, **options)
  for cells in (1, 61, 7 * 60):
    assert rank(vectors_GxD, cells=cells, **options) == ranked


def test_cosines_at_the_threshold_are_included():
  vectors_GxD = np.array([[1.0, 0], [3, 4], [4, 3]])
  assert rank(vectors_GxD, threshold=0.8) == [[2], [2], [1, 0]]
  assert rank(vectors_GxD, threshold=0.8000001) == [[], [2], [1]]
  assert rank(np.ones((1, 3))) == [[]]


def test_scale_of_vectors_does_not_matter(write):
  scales = 10.0 ** np.array([[-300], [-160], [0], [160], [300]])
  plain_GxD = random_vectors(seed=3, size=5)
  pairs = read(write(format_text("abcde", plain_GxD)), "abcde")
  assert read(write(format_text("abcde", plain_GxD * scales)), "abcde") == pairs


# Words and files.


def test_pairs_are_whole_word_tokens_nearest_first(write):
  path = write(LINES)
  assert read(path) == list_pairs(NEIGHBOURS)
  assert read(path, top=2) == list_pairs(NEIGHBOURS, top=2)


def test_line_order_does_not_matter_and_top_is_ten_by_default(write):
  names, vectors_GxD = [f"w{i}" for i in range(60)], tied_vectors(seed=6)
  pairs = read(write(format_text(names, vectors_GxD)), names)
  assert len(pairs) == 60 * 10
  order = np.random.default_rng(0).permutation(60)
  shuffled = format_text([names[i] for i in order], vectors_GxD[order])
  assert read(write(shuffled), names) == pairs


def test_only_the_first_vector_of_a_word_counts(write):
  later = LINES + "cat -1 2\ndog oh no\nthe 0 0\n"
  assert read(write(later)) == list_pairs(NEIGHBOURS)
  earlier = read(write("cat -1 2\n" + LINES))
  assert [b for a, b in earlier if a == "cat"][:2] == ["car", "van"]
  without_cat = read(write("cat 0 -0.0\n" + LINES))  # a zero vector
  assert {w for pair in without_cat for w in pair} == set(NEIGHBOURS) - {"cat"}


@pytest.mark.parametrize(
  "content",
  [
    f"{NUM_WORDS} 2\n{LINES}",
    f"{NUM_WORDS} 2 \n" + LINES.replace("\n", " \n"),  # word2vec.c
    LINES.replace("\n", "\r\n"),
    "\ufeff" + LINES,
    LINES.removesuffix("\n"),
    LINES + "\n",
    "a\u0085b 1 2\nc\u2028 1 2\n\u00a0 1 2\n\x1c 1 2\n" + LINES,
    f"{NUM_WORDS} 2\ncat . . 5 5\n3 . 5 5\nthe @ 5 5\n{LINES}",  # phrases
    gzip.compress(LINES.encode(), mtime=0),
  ],
  ids=lambda content: f"{len(content)} long",
)
def test_variants_of_the_format_yield_the_same_pairs(write, content):
  suffix = "" if isinstance(content, str) else ".gz"
  assert read(write(content, f"vectors.txt{suffix}")) == list_pairs(NEIGHBOURS)


@pytest.mark.parametrize(
  "content, words, neighbours",
  [
    # A missing word gets the vector of its first cased form,
    (
      "PARIS 9 1\nParis 1 9\nRome 1 -9\nrome 9 2\nBonn 9 3\n",
      "bonn paris rome",
      {"bonn": "rome paris", "paris": "rome bonn", "rome": "bonn paris"},
    ),
    # unless that form is in the vocabulary, too.
    (
      "Paris 9 1\nROME 9 2\n",
      "Paris paris Rome rome",
      {"Paris": "rome", "rome": "Paris"},
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
  assert read(write(content), words.split()) == list_pairs(neighbours)


def test_symbols_numbers_and_stop_words_are_no_neighbours(write):
  numbers = "20 1 0.12\n1990s 1 0.11\n½ 1 0.11\n"
  path = write(numbers + LINES)
  expected = {"cat": "dog van car", "dog": "cat van car"}
  expected |= {"car": "van dog cat", "van": "car dog cat"}
  # `top` counts useful neighbours only.
  pairs = read(path, [*TOKENS, "20", "1990s", "½"], symbols=False, top=3)
  assert pairs == list_pairs(expected)


def test_a_header_with_another_count_is_a_warning(write, capsys):
  assert read(write(f"{NUM_WORDS + 1} 2\n{LINES}")) == list_pairs(NEIGHBOURS)
  assert f"{NUM_WORDS} words" in (message := capsys.readouterr().err)
  assert f"first line says {NUM_WORDS + 1}" in message


def test_words_that_are_not_utf8_are_skipped_and_counted(write, capsys):
  cut = b"k\xc3 1 2\n" + LINES.encode() + b"\xe9t\xe9 1 2\n"
  assert read(write(cut)) == list_pairs(NEIGHBOURS)
  assert "lines that are not UTF-8 are left out: 2." in capsys.readouterr().err


def test_neighbours_by_glove_for_berts_vocabulary(real_data):
  vocab_file = real_data / "vocab" / "bert-base-uncased-vocab.txt.xz"
  bert = lzma.decompress(vocab_file.read_bytes()).decode().split("\n")[:-1]
  path = real_data / "glove" / "glove.6B.50d.top10361.txt.xz"
  pairs = read(str(path), bert)
  neighbours = {}
  for word, neighbour in pairs:
    neighbours.setdefault(word, []).append(neighbour)
  for word, names in {
    "monday": "tuesday thursday wednesday friday week sunday saturday",
    "day": "days week next weekend night",
    "king": "prince queen ii emperor",
    "1990": "1992 1993 1980 1989 1999 1991",
    "primary": "secondary",
  }.items():
    expected = names.split()
    assert neighbours[word][: len(expected)] == expected
  assert set(map(len, neighbours.values())) == {10}
  assert "main" in neighbours["primary"] and "you" not in neighbours["good"]
  # Of the file's 10,361 words 9,765 are tokens.
  assert len(pairs) == 97_650
