"""Tests tables against a dense matrix, and the paper's numbers for WordNet."""

import dataclasses
import json
import lzma
import os
import tarfile

import hypothesis
import nltk
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import strategies as st

from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import table, wordnet
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import (
  STOP_WORDS,
  Vocabulary,
  fingerprint,
  may_have_synonyms,
)

# 67 tokens: three 32-bit words per row, the last one partly used.
TOKENS = ["[PAD]", "[MASK]", "##s", "in", "house", "houses", "home"]
TOKENS += [f"word{i}" for i in range(60)]
NAME = f"synonyms{table.SUFFIX}"
PAIRS = [
  ("house", "home"),
  ("home", "house"),
  ("houses", "house"),
  ("in", "home"),
  ("word0", "word24"),
  ("word0", "word25"),
  ("word0", "word59"),
]

# Figure 3 of the paper.
PRIMARY = (
  "basal chief elemental elementary main master primary primary_coil "
  "primary_election primary_feather primary_quill primary_winding principal"
)
STAY = (
  "abide appease arrest bide check continue delay detain halt hitch last_out "
  "outride persist quell remain rest ride_out stay stay_on stay_put stick "
  "stick_around stop stoppage"
)


def build(pairs=PAIRS, tokens=TOKENS, **options):
  return SynonymTable.from_pairs(pairs, tokens, source="test", **options)


def build_matrix(pairs, tokens, stops, *, symmetric=False):
  """Returns the pairs of a table as a matrix; follows `from_pairs`'s rules."""
  dense_VxV = np.zeros((len(tokens), len(tokens)), bool)
  for word, synonym in pairs:
    if word[0] not in "[#" and synonym[0] not in "[#" and word != synonym:
      dense_VxV[tokens.index(word), tokens.index(synonym)] = True
  if symmetric:
    dense_VxV |= dense_VxV.T
  dense_VxV[[token in stops for token in tokens]] = False
  return dense_VxV


def check_table(built, dense_VxV):
  """Asserts that all functions of a table agree with the matrix."""
  size = len(dense_VxV)
  bits_VxW, ids_VxS = built.build_bits(), built.build_ids()
  assert (bits_VxW.dtype, bits_VxW.shape) == (np.uint32, (size, -(-size // 32)))
  a, b = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
  bit_VxV = bits_VxW[a, b // 32] >> (b % 32).astype(np.uint32) & 1
  np.testing.assert_array_equal(bit_VxV == 1, dense_VxV)
  lists = [np.flatnonzero(row_V).tolist() for row_V in dense_VxV]
  width = max(1, *map(len, lists))
  assert (ids_VxS.dtype, built.width) == (np.int32, width)
  padded = [ids + [-1] * (width - len(ids)) for ids in lists]
  assert ids_VxS.tolist() == padded
  mutual_VxV = dense_VxV & dense_VxV.T & ~np.eye(size, dtype=bool)
  num_V = mutual_VxV.sum(axis=1)
  rates_VxV = mutual_VxV / np.maximum(1, np.maximum(num_V, num_V[:, None]))
  rates_VxS = [
    np.pad(rates_V[ids], (0, width - len(ids)))
    for rates_V, ids in zip(rates_VxV, lists, strict=True)
  ]
  arrays = built.arrays(rates=True)
  np.testing.assert_array_equal(arrays["rates_VxS"], np.float32(rates_VxS))
  np.testing.assert_array_equal(arrays["ids_VxS"], ids_VxS)
  assert [built.synonym_ids(i) for i in range(size)] == lists
  assert built.lengths_V.tolist() == list(map(len, lists))
  assert built.num_rows == sum(map(bool, lists))
  assert built.num_pairs == dense_VxV.sum()
  ids_VxS = np.random.default_rng(0).permuted(ids_VxS, axis=1)
  options = {"top": 3}
  other = SynonymTable.from_ids(
    ids_VxS, built.tokens, source="x", options=options
  )
  assert other.fingerprint == built.fingerprint
  assert (other.source, dict(other.options)) == ("x", options)
  # Ids outside the vocabulary are in no list and have no list.
  a, b = np.meshgrid(*[np.arange(-1, size + 1)] * 2, indexing="ij")
  inside_VxV = built.contains(a, b)
  np.testing.assert_array_equal(inside_VxV, np.pad(dense_VxV, 1))


@hypothesis.settings(deadline=None, derandomize=True, max_examples=40)
@hypothesis.given(
  pairs=st.lists(st.tuples(*[st.sampled_from(TOKENS)] * 2), max_size=150),
  symmetric=st.booleans(),
  stops=st.sets(st.sampled_from(TOKENS[3:]), max_size=9),
)
@hypothesis.example(PAIRS, False, {"in"})
@hypothesis.example([("home", "in")], True, {"in"})
def test_tables_equal_a_dense_matrix(pairs, symmetric, stops):
  options = {"symmetric": symmetric, "stop_words": stops}
  built = build(pairs, **options)
  check_table(built, build_matrix(pairs, TOKENS, stops, symmetric=symmetric))
  assert dict(built.options) == options | {"stop_words": fingerprint(stops)}
  reordered = build(pairs[::-1] * 2, **options)
  assert reordered.fingerprint == built.fingerprint


@pytest.mark.parametrize("size", [1, 32, 33])
def test_tables_of_vocabularies_around_multiples_of_32(size):
  tokens = [f"w{i}" for i in range(size)]
  drawn = np.random.default_rng(size).integers(0, size, (3 * size, 2))
  pairs = [(tokens[a], tokens[b]) for a, b in drawn]
  check_table(build(pairs, tokens), build_matrix(pairs, tokens, ()))


def test_auto_chooses_bits_up_to_the_limit_then_the_smaller_layout():
  edge = 65_536  # 65,536 * 2,048 words of 4 bytes are 512 MiB
  assert table.choose_layout(edge, 1, "auto") == "bits"
  assert table.choose_layout(edge + 1, 1, "auto") == "ids"
  assert table.choose_layout(edge + 1, 2048, "auto") == "ids"
  assert table.choose_layout(edge + 1, 2049, "auto") == "bits"
  assert build().arrays().keys() == {"bits_VxW"}
  assert build().arrays("ids").keys() == {"ids_VxS"}


def test_fingerprint_is_that_of_saved_tables():
  assert build().fingerprint == "1e29047a003d4a3d"


def test_synonyms_are_looked_up_by_words_of_every_tokenizer():
  tokens = ["<s>", "Ġmain", "ĠMain", "main", "Ġchief", "ĠChief", "s"]
  built = build([("main", "chief")], tokens)
  assert built.synonyms("main") == built.synonyms("Main") == ["chief"]
  assert built.synonyms("Ġmain") == ["Ġchief"]
  assert built.synonyms("chief") == built.synonyms("<s>") == []
  assert build().synonyms("house") == ["home"]
  assert build().synonyms("##s") == []
  with pytest.raises(InputError, match="has no 'House'. Pass one whole word"):
    build().synonyms("House")


# Saved tables.


@pytest.mark.parametrize("pairs", [PAIRS, []])
def test_loaded_table_equals_the_saved_one(tmp_path, pairs):
  built = build(pairs, symmetric=True)
  path = tmp_path / "new folder" / NAME
  built.save(path)
  loaded = SynonymTable.load(path, TOKENS)
  np.testing.assert_array_equal(loaded.keys_Q, built.keys_Q)
  for field in dataclasses.fields(SynonymTable)[1:]:
    assert getattr(loaded, field.name) == getattr(built, field.name)
  assert b"https://wordnet.princeton.edu" in path.read_bytes()


@pytest.mark.parametrize(
  "changes, reason",
  [
    ({"format": 99, "version": "7.1"}, "format 99 of truenegs_jax 7.1, but"),
    ({"tokens": [*TOKENS[:-1], "other"]}, "does not match its fingerprint"),
    ({"keys": [1, 2]}, "does not match its fingerprint"),
    ({}, "SafetensorError"),
  ],
)
def test_damaged_files_and_other_formats_are_refused(tmp_path, changes, reason):
  path = tmp_path / NAME
  build().save(path)
  arrays = safetensors.numpy.load_file(path)
  header = json.loads(arrays["header"].tobytes()) | changes
  keys_Q = np.array(header.pop("keys", arrays["keys"]))
  data = np.frombuffer(json.dumps(header).encode(), np.uint8)
  content = safetensors.numpy.save({"header": data, "keys": keys_Q})
  path.write_bytes(content if changes else content[:-20])
  with pytest.raises(DataError, match=f"'{path}' cannot be read.*{reason}"):
    SynonymTable.load(path, TOKENS)


def test_pairs_outside_the_vocabulary_are_refused(tmp_path):
  path = tmp_path / NAME
  keys_Q = np.array([len(TOKENS) ** 2])
  table._make_table(keys_Q, TOKENS, "test", {}).save(path)
  with pytest.raises(DataError, match="does not match its fingerprint"):
    SynonymTable.load(path)


def test_large_files_and_devices_are_refused_before_they_are_read(tmp_path):
  path = tmp_path / NAME
  path.touch()
  os.truncate(path, table.MAX_FILE_BYTES + 1)
  for name in (path, "/dev/zero"):
    with pytest.raises(DataError, match="bytes, or is no file"):
      SynonymTable.load(name)


def test_a_table_beside_another_vocabulary_is_refused(tmp_path):
  path = tmp_path / NAME
  build().save(path)
  tokens = [*TOKENS[1::-1], *TOKENS[2:]]
  reason = f"2 of {len(TOKENS)} ids stand for other tokens. Build the"
  with pytest.raises(DataError, match=f"{NAME}' and the .*{reason}"):
    SynonymTable.load(path, tokens)
  with pytest.raises(DataError, match=f"The synonym table and the .*{reason}"):
    build().arrays(tokenizer=tokens)


def test_words_that_are_not_stop_words_may_have_synonyms():
  tokens = ["house", "in", "In", "[", "[]", "#", "[MASK]", "##s", ""]
  may_V = may_have_synonyms(tokens, {"in"})
  assert may_V.tolist() == [1, 0, 0, 1, 1, 1, 0, 0, 0]


# The real WordNet, and BERT's vocabulary where the real data is available.


@pytest.fixture(scope="module")
def reader(real_data, tmp_path_factory):
  folder = tmp_path_factory.mktemp("wordnet")
  with tarfile.open(real_data / "wordnet/wordnet-3.0-nltk-layout.tar.xz") as x:
    x.extractall(folder / "corpora", filter="data")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(nltk.data, "path", [str(folder)])
    return wordnet.open_wordnet()


@pytest.fixture(scope="module")
def bert(real_data):
  path = real_data / "vocab" / "bert-base-uncased-vocab.txt.xz"
  return lzma.decompress(path.read_bytes()).decode().split("\n")[:-1]


@pytest.mark.parametrize("word, names", [("primary", PRIMARY), ("stay", STAY)])
def test_lemma_names_equal_figure_3(reader, word, names):
  assert wordnet.find_lemma_names(word, reader) == tuple(names.split())


def test_coverage_equals_footnote_5(reader, bert):
  covered = {
    token
    for token in bert
    if any(wordnet.find_stems(token.lower(), pos, reader) for pos in "nvar")
  }
  assert round(100 * len(covered) / len(bert), 2) == 62.51
  assert round(100 * len(covered - STOP_WORDS) / len(bert), 2) == 62.22


def test_the_table_of_berts_vocabulary(bert, reader):
  normalize = make_tokenizer(bert, lowercase=True).normalize
  pairs = list(wordnet.find_pairs(Vocabulary(bert, normalize), reader))
  built = build(pairs, bert)
  assert (built.num_rows, built.num_pairs, built.width) == (13_406, 60_081, 55)
  # Table 1 of the paper.
  assert "main" in built.synonyms("primary")
  assert "remain" in built.synonyms("stay")
  assert "you" not in built.synonyms("good")
  assert "house" in built.synonyms("houses")
  assert "houses" not in built.synonyms("house")
  kept = build(pairs, bert, stop_words=())
  assert (kept.num_rows, kept.num_pairs) == (13_475, 60_552)
