"""Properties of the synonyms by word vectors, on files of a few lines."""

import bz2
import gzip
import lzma
import math
import tracemalloc

import numpy as np
import pytest

from truenegs_jax.data.corpus import read_state
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import sources, table, word_vectors

TOKENS = "[PAD] [UNK] cat dog ##cat car van . the".split()
LINES = (
  "the 0.1 -0.2\ncat 1 0.1\nunseen x y\ncar -1 2e0\ndog 1 0.2\n"
  "van -1 2.5\n##cat 1 0.1\n[UNK] 1 0.1\n. 5 -7\n"
)
# By hand, from the angles: the -63, . -54, cat 6, dog 11, van 112, car 117.
RANKED = {
  "cat": "dog . the van car",
  "dog": "cat . the van car",
  "car": "van dog cat . the",
  "van": "car dog cat . the",
  ".": "the cat dog van car",
  "the": ". cat dog van car",
}
NUM_WORDS = len(LINES.splitlines())


@pytest.fixture
def write(tmp_path):
  def written(content, name="vectors.txt"):
    path = tmp_path / name
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(data)
    return str(path)

  return written


def found(path, tokens=TOKENS, **options):
  return list(sources.SOURCES["vectors"](tokens, path=path, **options))


def as_pairs(ranked, top=10):
  return [(w, o) for w, names in ranked.items() for o in names.split()[:top]]


def naive(vectors_GxD, top, threshold=-1, first=0):
  """Neighbours by one cosine at a time."""
  ranked = []
  vectors_GxD = np.roll(vectors_GxD, -first, axis=0).astype(float)
  num = len(vectors_GxD) - first
  for i, a_D in enumerate(vectors_GxD[:num]):
    scores = []
    for j, b_D in enumerate(vectors_GxD):
      norms = math.sqrt(math.fsum(a_D**2)) * math.sqrt(math.fsum(b_D**2))
      scores.append((-round(math.fsum(a_D * b_D) / norms, 9), j))
    best = sorted(s for s in scores if s[1] != i)[:top]
    ranked.append([j for score, j in best if -score >= threshold and j < num])
  return ranked


def random_vectors(seed, size=60, dim=50):
  return np.random.default_rng(seed).normal(size=(size, dim))


def tied_vectors(seed, size=60):
  """Few directions, so that many cosines are equal, and scaled copies."""
  rng = np.random.default_rng(seed)
  vectors_GxD = rng.integers(-2, 3, (size, 3)).astype(float)
  vectors_GxD[~vectors_GxD.any(axis=1)] = 1
  vectors_GxD[1::3] = vectors_GxD[::3] * 2.0 ** rng.integers(-9, 9, (20, 1))
  return vectors_GxD


def close_vectors(seed, size=60, dim=50):
  """Cosines differ by some 1e-8, which float32 cannot tell."""
  rng = np.random.default_rng(seed)
  return rng.normal(size=dim) + 1e-4 * rng.normal(size=(size, dim))


def rows(vectors_GxD, **options):
  options = {"top": 10, **options}
  found = word_vectors.nearest(vectors_GxD.astype(np.float32), **options)
  return [list(row) for row in found]


MAKERS = pytest.mark.parametrize(
  "make", [random_vectors, tied_vectors, close_vectors]
)


def text_of(names, vectors_GxD):
  lines = zip(names, vectors_GxD.tolist(), strict=True)
  return "".join(f"{w} {' '.join(map(str, v))}\n" for w, v in lines)


# Ranking.


@MAKERS
@pytest.mark.parametrize("first", [0, 25])
@pytest.mark.parametrize("top, threshold", [(1, -1), (7, 0.2), (99, -1)])
def test_neighbours_are_those_of_a_double_loop(make, first, top, threshold):
  vectors_GxD = make(seed=top).astype(np.float32)
  options = {"top": top, "threshold": threshold, "first": first}
  assert rows(vectors_GxD, **options) == naive(vectors_GxD, **options)


@MAKERS
def test_neighbours_do_not_depend_on_how_many_cosines_fit(make):
  vectors_GxD = make(seed=0)
  whole = rows(vectors_GxD)
  for cells in (1, 60, 61, 7 * 60, 59 * 60):
    assert rows(vectors_GxD, cells=cells) == whole


def test_of_equal_cosines_the_first_word_of_the_vocabulary_wins(write):
  path = write("d 1 1\nc 2 2\nb 0.3 0.3\na 7 7\n")
  assert found(path, list("abcd"), top=2) == as_pairs(
    {"a": "b c", "b": "a c", "c": "a b", "d": "a b"}
  )


def test_a_cosine_at_the_threshold_is_enough():
  vectors_GxD = np.array([[1.0, 0], [3, 4], [4, 3]])
  assert rows(vectors_GxD, threshold=0.8) == [[2], [2], [1, 0]]
  assert rows(vectors_GxD, threshold=0.8000001) == [[], [2], [1]]


def test_numbers_of_any_size_have_their_cosines(write):
  scales = 10.0 ** np.array([[-300], [-160], [0], [160], [300]])
  plain_GxD = random_vectors(seed=3, size=5)
  pairs = found(write(text_of("abcde", plain_GxD)), list("abcde"))
  assert found(write(text_of("abcde", plain_GxD * scales)), "abcde") == pairs


def test_a_lone_vector_has_no_neighbours():
  assert rows(np.ones((1, 3))) == [[]]


def test_the_whole_matrix_of_cosines_is_never_in_memory():
  vectors_GxD = random_vectors(seed=4, size=2_000, dim=3)
  tracemalloc.start()
  for _ in word_vectors.nearest(vectors_GxD, top=3, cells=20_000):
    pass
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 2_000_000  # 32 MB of cosines


# The source.


def test_pairs_are_whole_word_tokens_nearest_first(write):
  assert found(write(LINES)) == as_pairs(RANKED)
  assert found(write(LINES), top=2) == as_pairs(RANKED, top=2)


def test_ten_neighbours_are_the_default(write):
  names = [f"w{i}" for i in range(30)]
  path = write(text_of(names, random_vectors(seed=5, size=30)))
  assert len(found(path, names)) == 30 * 10


def test_order_of_the_lines_does_not_matter(write):
  for make in (random_vectors, tied_vectors):
    names, vectors_GxD = [f"w{i}" for i in range(60)], make(seed=6)
    pairs = found(write(text_of(names, vectors_GxD)), names)
    for seed in range(3):
      order = np.random.default_rng(seed).permutation(60)
      shuffled = text_of([names[i] for i in order], vectors_GxD[order])
      assert found(write(shuffled), names) == pairs


def test_the_first_vector_of_a_word_counts(write):
  later = LINES + "cat -1 2\ndog oh no\nthe 0 0\n"
  assert found(write(later)) == as_pairs(RANKED)
  earlier = found(write("cat -1 2\n" + LINES))
  assert [b for a, b in earlier if a == "cat"][:2] == ["car", "van"]


def test_words_with_a_zero_vector_are_left_out(write):
  pairs = found(write("cat 0 -0.0\n" + LINES))
  assert {"cat"} == set(RANKED) - {w for pair in pairs for w in pair}
  assert len(pairs) == 5 * 4


def test_table_takes_the_pairs(write):
  pairs = found(write(LINES), top=1)
  built = table.build_table(
    pairs, TOKENS, source="vectors", keep_stop_words=True
  )
  assert (built.num_rows, built.num_pairs) == (6, 6)
  cat, dog = TOKENS.index("cat"), TOKENS.index("dog")
  assert table.synonyms_of(built, cat) == [dog]


# Formats.


@pytest.mark.parametrize(
  "content",
  [
    f"{NUM_WORDS} 2\n{LINES}",
    f"{NUM_WORDS} 2 \n" + LINES.replace("\n", " \n"),  # word2vec.c
    LINES.replace("\n", "\r\n"),
    "\ufeff" + LINES,
    LINES.removesuffix("\n"),
    LINES + "\n",
  ],
  ids=["header", "spaces", "crlf", "mark", "no-end", "blank"],
)
def test_variants_of_the_format_give_the_same_pairs(write, content):
  assert found(write(content)) == as_pairs(RANKED)


@pytest.mark.parametrize(
  "suffix, pack",
  [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)],
)
def test_compressed_files_give_the_same_pairs(write, suffix, pack):
  path = write(pack(LINES.encode()), f"vectors.txt{suffix}")
  assert found(path) == as_pairs(RANKED)


def test_only_single_spaces_and_line_feeds_part_words(write):
  odd = "a\u0085b 1 2\nc\u2028 1 2\n\u00a0 1 2\n\x1c 1 2\n"
  assert found(write(odd + LINES)) == as_pairs(RANKED)


def test_a_number_as_a_word_is_no_header(write):
  path = write("2 1 0\n10 1 1\n")
  assert found(path, ["2", "10"]) == [("2", "10"), ("10", "2")]


def test_phrases_are_passed_over(write):
  phrases = "cat . . 5 5\n3 . 5 5\nthe name@domain.com 5 5\n"
  assert found(write(LINES + phrases)) == as_pairs(RANKED)


# Words in another case.


def test_a_word_that_the_file_lacks_has_the_vector_of_its_cased_form(write):
  path = write("PARIS 9 1\nParis 1 9\nRome 1 -9\nrome 9 2\nBonn 9 3\n")
  words = "bonn paris rome".split()
  assert found(path, words) == as_pairs(
    {"bonn": "rome paris", "paris": "rome bonn", "rome": "bonn paris"}
  )


def test_a_cased_form_that_is_a_word_itself_stands_for_itself_alone(write):
  path = write("Paris 9 1\nROME 9 2\n")
  words = "Paris paris Rome rome".split()
  assert found(path, words) == [("Paris", "rome"), ("rome", "Paris")]


def test_a_word_in_another_case_is_no_neighbour(write):
  path = write("cat 1 1\nCat 1 1.1\nCAT 1 1.2\ndog 1 2\n")
  pairs = found(path, ["cat", "Cat", "dog"])
  assert pairs == as_pairs({"cat": "dog", "Cat": "dog", "dog": "Cat cat"})


# Among all words of the file.


def test_neighbours_among_the_file_are_those_left_of_all_words(write):
  names, vectors_GxD = [f"w{i}" for i in range(60)], random_vectors(seed=7)
  order = np.random.default_rng(7).permutation(60)
  text = text_of([names[i] for i in order], vectors_GxD[order])
  ranked = naive(vectors_GxD, top=20)[:25]
  expected = [
    (names[i], names[j])
    for i, others in enumerate(ranked)
    for j in others
    if j < 25
  ]
  options = {"top": 20, "among": "file"}
  assert found(write(text), names[:25], **options) == expected
  packed = binary_of([names[i] for i in order], vectors_GxD[order])
  assert found(write(packed), names[:25], **options) == expected


def test_without_other_words_both_ways_of_ranking_agree(write):
  path = write("".join(LINES.splitlines(keepends=True)[:2]) + "car 1 2\n")
  assert found(path, among="file") == found(path, among="vocabulary")


@pytest.mark.parametrize(
  "line, is_rival",
  [("cats 1 0.15", True), ("the_cat 1 0.15", False), ("CAT 1 0.15", True)],
)
def test_other_words_take_places_but_phrases_do_not(write, line, is_rival):
  path = write(f"{line}\ncat 1 0.1\ndog 1 0.3\n")
  own = as_pairs({"cat": "dog", "dog": "cat"})
  assert found(path, top=1, among="file") == ([] if is_rival else own)
  assert found(path, top=1, among="vocabulary") == own


def test_numbers_of_the_other_words_are_looked_at_too(write):
  with pytest.raises(DataError, match="txt:3: 'x' is not a finite number"):
    found(write(LINES), among="file")
  zero = LINES.replace("x y", "0 0")
  assert found(write(zero.replace("unseen", "##cat")), among="file")


# Binary files.


def binary_of(names, vectors_GxD, end=b""):
  """A file as word2vec writes it."""
  size, dim = np.shape(vectors_GxD)
  entries = zip(names, np.asarray(vectors_GxD, "<f4"), strict=True)
  content = b"".join(w.encode() + b" " + v.tobytes() + end for w, v in entries)
  return f"{size} {dim}\n".encode() + content


def binary_lines(end=b""):
  lines = LINES.replace("x y", "1e-30 -7").splitlines()
  names = [line.split()[0] for line in lines]
  return binary_of(names, [line.split()[1:] for line in lines], end)


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("size", [2**19, 64, 7])
def test_binary_files_give_the_same_pairs(write, monkeypatch, end, size):
  monkeypatch.setattr(word_vectors, "BLOCK_BYTES", size)
  assert found(write(binary_lines(end), "v.bin")) == as_pairs(RANKED)
  packed = gzip.compress(binary_lines(end))
  assert found(write(packed, "v.bin.gz")) == as_pairs(RANKED)


def test_a_binary_file_is_known_by_its_content(write):
  assert found(write(binary_lines(), "vectors.txt")) == as_pairs(RANKED)
  text = f"{NUM_WORDS} 2\n{LINES}"
  assert found(write(text, "vectors.bin")) == as_pairs(RANKED)


def test_long_binary_files_are_read_to_the_end(write):
  names = [f"w{i}" for i in range(30_000)]
  vectors_GxD = np.random.default_rng(8).normal(size=(30_000, 8))
  path = write(binary_of(names, vectors_GxD, b"\n"))  # three blocks
  asked = names[::1000] + names[-5:]
  expected = vectors_GxD[[*range(0, 30_000, 1000), *range(29_995, 30_000)]]
  pairs = found(path, asked, top=3)
  ranked = naive(expected.astype(np.float32), top=3)
  assert pairs == [
    (asked[i], asked[j]) for i, row in enumerate(ranked) for j in row
  ]


def test_binary_words_that_are_not_utf8_are_passed_over(write):
  data = binary_lines().replace(b"unseen", b"caf\xe9\x80\xff")
  assert found(write(data)) == as_pairs(RANKED)


def test_a_binary_file_cut_off_anywhere_is_refused(write, monkeypatch):
  monkeypatch.setattr(word_vectors, "BLOCK_BYTES", 64)
  whole = binary_lines()
  for size in range(len(whole)):
    with pytest.raises(DataError, match="vectors.txt"):
      found(write(whole[:size]))
  with pytest.raises(
    DataError, match=f"cut off at byte {size}, in word {NUM_WORDS} of"
  ):
    found(write(whole[:size]))


def test_a_binary_file_that_goes_on_is_refused(write, monkeypatch):
  whole = binary_lines()
  monkeypatch.setattr(word_vectors, "BLOCK_BYTES", len(whole))
  for more in (b"x", b"\n\nmore 12345678", whole):
    with pytest.raises(DataError, match=f"after the {NUM_WORDS} words"):
      found(write(whole + more))
  assert found(write(whole + b"\n")) == as_pairs(RANKED)


def test_a_binary_file_that_lacks_bytes_within_is_refused(write):
  names = [f"w{i:03}" for i in range(500)]
  whole = binary_of(names, random_vectors(seed=9, size=500))
  for at, size in np.random.default_rng(9).integers(10, 190, (50, 2)):
    at += whole.index(names[at].encode())
    with pytest.raises(DataError, match=r"vectors\.txt: "):
      found(write(whole[:at] + whole[at + size :]), names)


def test_the_place_where_no_word_begins_is_named(write, monkeypatch):
  monkeypatch.setattr(word_vectors, "BLOCK_BYTES", 16)
  whole = binary_lines()
  at = whole.index(b"car ")
  for wrong in (b"\0ar ", b"    ", b"xxxx"):
    data = whole[:at] + wrong + whole[at + 4 :]
    if wrong == b"xxxx":
      data = data[:at] + b"x" * 3_000
    with pytest.raises(DataError, match=f"txt: byte {at}: .* word 4 and"):
      found(write(data))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_binary_numbers_that_are_not_finite_are_refused(write, value):
  data = binary_of(["dog", "cat"], [[1, 2], [value, 1]])
  at = data.index(b"cat")
  with pytest.raises(DataError, match=f"byte {at}: {value} is not a finite"):
    found(write(data))
  assert found(write(data), ["dog", "car"]) == []


def test_binary_vectors_without_numbers_are_refused(write):
  with pytest.raises(DataError, match="vectors.txt"):
    found(write(b"2 0\ncat dog \0"))


# What is refused.


def test_missing_file_says_what_to_give():
  with pytest.raises(InputError, match=r"'nowhere'.*glove\.6B\.50d\.txt"):
    found("nowhere")


def test_home_folder_is_understood(write, tmp_path, monkeypatch):
  write(LINES)
  monkeypatch.setenv("HOME", str(tmp_path))
  assert found("~/vectors.txt") == as_pairs(RANKED)


@pytest.mark.parametrize(
  "line, what",
  [
    ("cat 1", "1 numbers after the word, not 2"),
    ("cat", "0 numbers"),
    ("cat 1 2 3", "3 numbers"),
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
def test_bad_line_is_refused_by_its_number(write, line, what, header):
  lines = (header + LINES).split("\n")
  number = len(header.split("\n")) + 1
  path = write("\n".join([*lines[: number - 1], line, *lines[number - 1 :]]))
  with pytest.raises(DataError) as caught:
    found(path)
  assert f"{path}:{number}: {what}" in str(caught.value)


def test_first_line_without_numbers_is_refused(write):
  with pytest.raises(DataError, match=r"txt:1: 0 numbers .* one or more"):
    found(write("cat\ndog\n"))


def test_lines_that_differ_from_the_header_are_refused(write):
  with pytest.raises(DataError, match="txt:2: 2 numbers .*, not 3:"):
    found(write(f"{NUM_WORDS} 3\n{LINES}"))


def test_bytes_that_are_not_utf8_are_refused_by_their_line(write):
  content = LINES.encode() + "\ncaf\u00e9 1 2\n".encode("latin-1")
  with pytest.raises(DataError, match=rf"txt:{NUM_WORDS + 2}: .*not UTF-8"):
    found(write(content))


def test_place_is_right_far_into_a_file(write):
  path = write("unseen 1 2\n" * 200_000 + "cat 1\n")  # read in five blocks
  with pytest.raises(DataError, match="txt:200001: 1 numbers"):
    found(path)


def test_line_that_does_not_end_is_refused(write, monkeypatch):
  monkeypatch.setattr(read_state, "MAX_RECORD_BYTES", 1_000)
  path = write(LINES + "cat" + " 1" * 1_000)
  with pytest.raises(DataError, match="a line of more than 1,000 bytes"):
    found(path)


@pytest.mark.parametrize("count", [NUM_WORDS - 1, NUM_WORDS + 1])
def test_header_that_counts_other_words_is_refused(write, count):
  with pytest.raises(DataError, match=f"txt: {NUM_WORDS} words, not {count} "):
    found(write(f"{count} 2\n{LINES}"))


@pytest.mark.parametrize("content", ["", "\n", "0 2\n"])
def test_file_without_a_vector_is_refused(write, content):
  with pytest.raises(DataError, match="vectors.txt: there are no word vectors"):
    found(write(content))


@pytest.mark.parametrize("content", ["Katze 1 2\n", "cat 0 0\n", "##cat 1 2\n"])
def test_file_without_a_vector_of_the_vocabulary_is_refused(write, content):
  path = write(content)
  with pytest.raises(DataError, match="no word of the vocabulary") as caught:
    found(path)
  assert path in str(caught.value)


def test_file_that_was_cut_off_is_refused(write):
  packed = gzip.compress(LINES.encode())[:-10]
  with pytest.raises(DataError, match="damaged or cut off"):
    found(write(packed, "vectors.txt.gz"))


@pytest.mark.parametrize(
  "option, value, what",
  [
    ("top", 0, "top=0 "),
    ("top", -3, "top=-3 "),
    ("threshold", 1.1, "threshold=1.1 "),
    ("threshold", -1.1, "threshold=-1.1 "),
    ("threshold", math.nan, "threshold=nan "),
    ("among", "words", "among=words: .*vocabulary or file"),
  ],
)
def test_options_out_of_range_are_refused_before_reading(
  write, option, value, what
):
  with pytest.raises(InputError, match=what):
    found(write("no vectors"), **{option: value})


# The real vectors.


@pytest.fixture(scope="module")
def bert(real_data):
  packed = real_data / "vocab" / "bert-base-uncased-vocab.txt.xz"
  return lzma.decompress(packed.read_bytes()).decode().split("\n")[:-1]


@pytest.fixture(scope="module")
def real_pairs(real_data, bert):
  return found(str(real_data / "glove" / "glove.6B.50d.top10361.txt.xz"), bert)


def test_real_neighbours_are_of_a_kind(real_pairs):
  ranked = {}
  for word, other in real_pairs:
    ranked.setdefault(word, []).append(other)
  for word, others in {
    "monday": "tuesday thursday wednesday friday week sunday saturday",
    "day": "days week next weekend night",
    "king": "prince queen ii emperor",
    "1990": "1992 1993 1980 1989 1999 1991",
    "primary": "secondary",
  }.items():
    expected = others.split()
    assert ranked[word][: len(expected)] == expected
  assert {len(others) for others in ranked.values()} == {10}
  assert "main" in ranked["primary"] and "you" not in ranked["good"]


def test_size_of_the_real_table(real_pairs, bert):
  # Of the file's 10,361 words 9,765 are tokens; 130 of these are stop words.
  built = table.build_table(real_pairs, bert, source="vectors")
  assert (built.num_rows, built.num_pairs) == (9_635, 96_350)
  whole = table.build_table(
    real_pairs, bert, source="vectors", keep_stop_words=True
  )
  assert (whole.num_rows, whole.num_pairs) == (9_765, 97_650)
