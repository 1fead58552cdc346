"""Tests word vectors: ranking against a double loop, formats, damaged files."""

import bz2
import gzip
import lzma
import math
import tracemalloc

import numpy as np
import pytest

from truenegs_jax.data.corpus import read_state
from truenegs_jax.data.tokens.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.synonyms import sources, word_vectors
from truenegs_jax.synonyms.table import SynonymTable
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


def rank_by_loop(vectors_GxD, top, threshold=-1, count=60):
  """Ranks neighbours by computing one cosine at a time."""
  ranked = []
  vectors_GxD = vectors_GxD.astype(float)
  for i, a_D in enumerate(vectors_GxD[:count]):
    scores = []
    for j, b_D in enumerate(vectors_GxD):
      norms = math.sqrt(math.fsum(a_D**2)) * math.sqrt(math.fsum(b_D**2))
      scores.append((-round(math.fsum(a_D * b_D) / norms, 9), j))
    best = sorted(s for s in scores if s[1] != i)[:top]
    ranked.append([j for s, j in best if -s >= threshold and j < count])
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


def rank(vectors_GxD, count=60, top=10, **options):
  ranked = word_vectors.rank_neighbours(
    vectors_GxD.astype(np.float32), count, top=top, **options
  )
  return [list(row) for row in ranked]


def format_text(names, vectors_GxD):
  lines = zip(names, np.asarray(vectors_GxD).tolist(), strict=True)
  return "".join(f"{w} {' '.join(map(str, v))}\n" for w, v in lines)


def format_binary(names, vectors_GxD, end=b""):
  """Formats vectors in word2vec's binary format."""
  size, dim = np.shape(vectors_GxD)
  entries = zip(names, np.asarray(vectors_GxD, "<f4"), strict=True)
  content = b"".join(w.encode() + b" " + v.tobytes() + end for w, v in entries)
  return f"{size} {dim}\n".encode() + content


def format_binary_lines(end=b""):
  lines = LINES.replace("x y", "1e-30 -7").splitlines()
  names = [line.split()[0] for line in lines]
  return format_binary(names, [line.split()[1:] for line in lines], end)


# Ranking.


@pytest.mark.parametrize("make", [random_vectors, tied_vectors, close_vectors])
@pytest.mark.parametrize("count", [60, 35])
@pytest.mark.parametrize("top, threshold", [(1, -1), (7, 0.2), (99, -1)])
def test_neighbours_equal_a_double_loop(make, count, top, threshold):
  vectors_GxD = make(seed=top).astype(np.float32)
  options = {"top": top, "threshold": threshold, "count": count}
  ranked = rank(vectors_GxD, **options)
  assert ranked == rank_by_loop(vectors_GxD, **options)
  for cells in (1, 61, 7 * 60):
    assert rank(vectors_GxD, cells=cells, **options) == ranked


def test_cosines_at_the_threshold_are_included():
  vectors_GxD = np.array([[1.0, 0], [3, 4], [4, 3]])
  assert rank(vectors_GxD, 3, threshold=0.8) == [[2], [2], [1, 0]]
  assert rank(vectors_GxD, 3, threshold=0.8000001) == [[], [2], [1]]
  assert rank(np.ones((1, 3)), 1) == [[]]


def test_scale_of_vectors_does_not_matter(write):
  scales = 10.0 ** np.array([[-300], [-160], [0], [160], [300]])
  plain_GxD = random_vectors(seed=3, size=5)
  pairs = read(write(format_text("abcde", plain_GxD)), "abcde")
  assert read(write(format_text("abcde", plain_GxD * scales)), "abcde") == pairs


def test_memory_is_limited_by_cells():
  vectors_GxD = random_vectors(seed=4, size=2_000, dim=3)
  tracemalloc.start()
  rank(vectors_GxD, 2_000, top=3, cells=20_000)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 2_000_000  # all cosines would need 32 MB


# Words and files.


def test_pairs_are_whole_word_tokens_nearest_first(write):
  path = write(LINES)
  assert read(path) == list_pairs(NEIGHBOURS)
  assert read(path, top=2) == list_pairs(NEIGHBOURS, top=2)
  built = SynonymTable.from_pairs(
    read(path, top=1), TOKENS, source="vectors", keep_stop_words=True
  )
  cat, dog = TOKENS.index("cat"), TOKENS.index("dog")
  assert built.synonym_ids(cat) == [dog] and built.num_pairs == 6


@pytest.mark.parametrize("make", [random_vectors, tied_vectors])
def test_line_order_does_not_matter_and_top_is_ten_by_default(write, make):
  names, vectors_GxD = [f"w{i}" for i in range(60)], make(seed=6)
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
    LINES + "cat . . 5 5\n3 . 5 5\nthe name@domain.com 5 5\n",  # phrases
    gzip.compress(LINES.encode(), mtime=0),
    lzma.compress(LINES.encode()),
    bz2.compress(LINES.encode()),
    gzip.compress(format_binary_lines(b"\n"), mtime=0),
    format_binary_lines().replace(b"unseen", b"caf\xe9\x80\xff"),
  ],
  ids=lambda content: f"{len(content)} long",
)
def test_variants_of_the_format_yield_the_same_pairs(write, content):
  suffixes = {b"\x1f": ".gz", b"\xfd": ".xz", b"B": ".bz2"}
  is_text = isinstance(content, str)
  suffix = "" if is_text else suffixes.get(content[:1], "")
  assert read(write(content, f"vectors.txt{suffix}")) == list_pairs(NEIGHBOURS)


def test_a_number_as_a_word_is_no_header(write):
  path = write("2 1 0\n10 1 1\n")
  assert read(path, ["2", "10"]) == [("2", "10"), ("10", "2")]


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


def test_a_word_without_accents_gets_the_vector_of_one_with_them(write):
  tokenizer = make_tokenizer(
    [*SPECIALS, "eleve", "cote", "note"], lowercase=True
  )
  path = write("Élève 1 1\ncôte 1 2\ncote 1 9\nnote 1 3\n")
  vocabulary = Vocabulary(tokenizer.vocab, tokenizer.normalize)
  pairs = list(sources.vectors(vocabulary, path=path, top=1))
  assert pairs == list_pairs({"eleve": "note", "cote": "note", "note": "cote"})


@pytest.mark.parametrize("among", word_vectors.AMONG)
def test_symbols_numbers_and_stop_words_are_no_neighbours(write, among):
  numbers = "20 1 0.12\n1990s 1 0.11\n½ 1 0.11\n"
  tokens = [*TOKENS, "20", "1990s", "½"]
  path = write(numbers + LINES)
  expected = {"cat": "dog van car", "dog": "cat van car"}
  expected |= {"car": "van dog cat", "van": "car dog cat"}
  if among == "vocabulary":  # `top` counts useful neighbours only
    pairs = read(path, tokens, symbols=False, top=3)
    assert pairs == list_pairs(expected)
  else:
    path = write((numbers + LINES).replace("x y", "-9 9"))
    every = read(path, tokens, top=4, among=among)
    kept = [p for p in every if set(p) <= set(expected)]
    assert read(path, tokens, symbols=False, top=4, among=among) == kept
    assert 0 < len(kept) < len(every)


def test_words_without_a_vector_are_reported(write):
  messages = []
  vocabulary = Vocabulary(["cat", "dog", "a", "b", "c"], report=messages.append)
  list(sources.vectors(vocabulary, path=write(LINES)))
  assert "3 of 5 words" in messages[0] and messages[0].endswith(
    "such as a, b, c."
  )


# Neighbours among all words of the file.


def test_words_outside_the_vocabulary_are_dropped_after_ranking(write):
  names, vectors_GxD = [f"w{i}" for i in range(60)], random_vectors(seed=7)
  order = np.random.default_rng(7).permutation(60)
  shuffled = [names[i] for i in order], vectors_GxD[order]
  expected = [
    (names[i], names[j])
    for i, others in enumerate(rank_by_loop(vectors_GxD, top=20, count=25))
    for j in others
  ]
  for content in (format_text(*shuffled), format_binary(*shuffled)):
    pairs = read(write(content), names[:25], top=20, among="file")
    assert pairs == expected


@pytest.mark.parametrize(
  "line, counts",
  [("cats 1 0.15", True), ("the_cat 1 0.15", False), ("CAT 1 0.15", True)],
)
def test_other_words_count_for_top_but_phrases_do_not(write, line, counts):
  path = write(f"{line}\ncat 1 0.1\ndog 1 0.3\n")
  pairs = list_pairs({"cat": "dog", "dog": "cat"})
  assert read(path, top=1, among="file") == ([] if counts else pairs)
  assert read(path, top=1, among="vocabulary") == pairs
  with pytest.raises(DataError, match="txt:3: 'x' is not a finite number"):
    read(write(LINES), among="file")  # checks the numbers of all words


# Binary files.


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("size", [2**19, 64, 7])
def test_binary_files_yield_the_same_pairs(write, monkeypatch, end, size):
  monkeypatch.setattr(word_vectors, "BLOCK_BYTES", size)
  assert read(write(format_binary_lines(end))) == list_pairs(NEIGHBOURS)


def test_long_binary_files_are_read_to_the_end(write):
  names = [f"w{i}" for i in range(30_000)]
  vectors_GxD = np.random.default_rng(8).normal(size=(30_000, 8))
  path = write(format_binary(names, vectors_GxD, b"\n"))  # three blocks
  chosen = [*range(0, 30_000, 1000), *range(29_995, 30_000)]
  words = [names[i] for i in chosen]
  ranked = rank_by_loop(vectors_GxD[chosen].astype(np.float32), top=3)
  expected = []
  for word, neighbours in zip(words, ranked, strict=True):
    expected += [(word, words[j]) for j in neighbours]
  assert read(path, words, top=3) == expected


def test_damaged_binary_files_are_refused(write, monkeypatch):
  monkeypatch.setattr(word_vectors, "BLOCK_BYTES", 64)
  content = format_binary_lines()
  for size in range(len(content)):
    with pytest.raises(DataError, match=r"vectors\.txt"):
      read(write(content[:size]))
  with pytest.raises(DataError, match=f"byte {size}, in word {NUM_WORDS} of"):
    read(write(content[:size]))
  for extra in (b"x", b"\n\nmore 12345678", content):
    with pytest.raises(DataError, match=f"after the {NUM_WORDS} words"):
      read(write(content + extra))
  assert read(write(content + b"\n")) == list_pairs(NEIGHBOURS)
  offset = content.index(b"car ")
  for wrong in (b"\0ar ", b"    ", b"x" * 3_000):
    with pytest.raises(DataError, match=f"txt: byte {offset}: .* word 4 and"):
      read(write(content[:offset] + wrong + content[offset + 4 :]))
  names = [f"w{i:03}" for i in range(500)]
  content = format_binary(names, random_vectors(seed=9, size=500))
  for number, size in np.random.default_rng(9).integers(10, 190, (20, 2)):
    offset = number + content.index(names[number].encode())
    with pytest.raises(DataError, match=r"vectors\.txt: "):
      read(write(content[:offset] + content[offset + size :]), names)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_binary_numbers_that_are_not_finite_are_refused(write, value):
  data = format_binary(["dog", "cat"], [[1, 2], [value, 1]])
  offset = data.index(b"cat")
  message = f"byte {offset}: {value} is not a finite"
  with pytest.raises(DataError, match=message):
    read(write(data))
  assert read(write(data), ["dog", "car"]) == []


# Damaged text.


@pytest.mark.parametrize(
  "line, reason",
  [
    ("cat 1", "1 numbers after the word, not 2"),
    ("cat", "0 numbers"),
    ("unseen 1 2 3", "3 numbers"),
    ("cat  1 2", "3 numbers"),
    ("cat dog 1 2 3", "4 numbers"),
    ("cat\t1\t2", "0 numbers"),
    ("cat 1 two", "'two' is not a finite number"),
    ("cat 1 nan", "'nan' is not"),
    ("cat -inf 1", "'-inf' is not"),
    ("cat 1 1e999", "'1e999' is not"),
  ],
)
@pytest.mark.parametrize("header", ["", f"{NUM_WORDS + 1} 2\n"])
def test_bad_line_is_reported_with_its_number(write, line, reason, header):
  lines = (header + LINES).split("\n")
  number = len(header.split("\n")) + 1
  path = write("\n".join([*lines[: number - 1], line, *lines[number - 1 :]]))
  with pytest.raises(DataError) as caught:
    read(path)
  assert f"{path}:{number}: {reason}" in str(caught.value)


@pytest.mark.parametrize(
  "content, message",
  [
    ("", "the file has no entries"),
    ("0 2\n", "the file has no entries"),
    ("cat\ndog\n", "txt:1: 0 numbers .* one or more"),
    (b"2 0\ncat dog \0", "vectors.txt"),
    (f"{NUM_WORDS} 3\n{LINES}", "txt:2: 2 numbers .*, not 3"),
    (f"{NUM_WORDS - 1} 2\n{LINES}", f"{NUM_WORDS} words, not {NUM_WORDS - 1} "),
    (f"{NUM_WORDS + 1} 2\n{LINES}", f"{NUM_WORDS} words, not {NUM_WORDS + 1} "),
    ("unseen 1 2\n" * 200_000 + "cat 1\n", "txt:200001: 1 numbers"),
    (LINES.encode() + b"\ncaf\xe9 1 2\n", f"txt:{NUM_WORDS + 2}: .*not UTF-8"),
    ("Katze 1 2\n", "vectors.txt: 6 of 6 words .* no vector"),
    ("cat 0 0\n", "6 of 6 words .* no vector"),
    ("##cat 1 2\n", "6 of 6 words .* no vector"),
  ],
)
def test_damaged_and_unsuitable_files_are_refused(write, content, message):
  with pytest.raises(DataError, match=message):
    read(write(content))


def test_cut_off_files_and_endless_lines_are_refused(write, monkeypatch):
  compressed = gzip.compress(LINES.encode())[:-10]
  with pytest.raises(DataError, match="damaged or cut off"):
    read(write(compressed, "vectors.txt.gz"))
  monkeypatch.setattr(read_state, "MAX_RECORD_BYTES", 1_000)
  with pytest.raises(DataError, match="a line of more than 1,000 bytes"):
    read(write(LINES + "cat" + " 1" * 1_000))


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
  # Of the file's 10,361 words 9,765 are tokens; 130 of these are stop words.
  for keep, size in ((False, 9_635), (True, 9_765)):
    built = SynonymTable.from_pairs(
      pairs, bert, source="x", keep_stop_words=keep
    )
    assert (built.num_rows, built.num_pairs) == (size, 10 * size)
