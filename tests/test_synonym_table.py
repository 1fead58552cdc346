"""Properties of the bit table; the paper's numbers on the real WordNet."""

import dataclasses
import functools
import lzma
import tarfile

import numpy as np
import pytest

from truenegs_jax.errors import DataError, DiskError, InputError
from truenegs_jax.synonyms import sources, table
from truenegs_jax.synonyms.stop_words import STOP_WORDS

TOKENS = ["[PAD]", "[MASK]", "##s", "in", "house", "houses", "home"]
TOKENS += [f"word{i}" for i in range(60)]  # 67 tokens: 3 words, one part full.
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
  return table.build_table(pairs, tokens, source="test", **options)


def listed(built, token, tokens=TOKENS):
  ids = table.synonyms_of(built, tokens.index(token))
  return {tokens[i] for i in ids}


def test_bit_b_mod_32_of_word_b_div_32_is_set_for_each_pair_and_no_other():
  built = build()
  dense_VxV = np.zeros((len(TOKENS), len(TOKENS)), bool)
  for word, synonym in PAIRS:
    if word != "in":
      dense_VxV[TOKENS.index(word), TOKENS.index(synonym)] = True
  a, b = np.meshgrid(*[np.arange(len(TOKENS))] * 2, indexing="ij")
  assert (built.bits_VxW.dtype, built.bits_VxW.shape) == (np.uint32, (67, 3))
  bits = built.bits_VxW[a, b // 32] >> (b % 32).astype(np.uint32) & 1
  np.testing.assert_array_equal(bits == 1, dense_VxV)


def test_rows_and_pairs_are_counted():
  built = build()
  assert (built.num_rows, built.num_pairs) == (4, 6)


def test_the_relation_is_as_directed_as_the_pairs():
  built = build()
  assert listed(built, "houses") == {"house"}
  assert listed(built, "house") == {"home"}


def test_stop_words_have_no_list_unless_asked_for_but_stay_candidates():
  pairs = [*PAIRS, ("home", "in")]
  assert listed(build(pairs), "in") == set()
  assert listed(build(pairs), "home") == {"house", "in"}
  assert listed(build(pairs, keep_stop_words=True), "in") == {"home"}


def test_self_is_listed_only_on_request_and_only_where_there_is_a_list():
  pairs = [*PAIRS, ("word7", "word7")]
  built, naive = build(pairs), build(pairs, include_self=True)
  assert all(i not in table.synonyms_of(built, i) for i in range(len(TOKENS)))
  assert "house" in listed(naive, "house")
  assert listed(naive, "word7") == set()
  assert naive.num_pairs == built.num_pairs + built.num_rows


def test_pieces_specials_and_foreign_words_get_no_bits():
  pairs = [("##s", "home"), ("home", "##s"), ("[MASK]", "home")]
  built = build([*pairs, ("home", "[PAD]"), ("home", "zebra")])
  assert not built.bits_VxW.any()
  assert (built.num_rows, built.num_pairs) == (0, 0)


def test_order_and_repetition_of_pairs_do_not_matter():
  assert build(PAIRS[::-1] + PAIRS).fingerprint == build().fingerprint


@pytest.mark.parametrize(
  "other",
  [
    build(PAIRS[1:]),
    build(keep_stop_words=True),
    build(tokens=[*TOKENS, "more"]),
    table.build_table(PAIRS, TOKENS, source="another"),
  ],
)
def test_fingerprint_differs_with_pairs_options_vocabulary_and_source(other):
  assert other.fingerprint != build().fingerprint


def test_a_table_cannot_be_changed():
  with pytest.raises(ValueError):
    build().bits_VxW[0, 0] = 1


def test_vocabulary_with_a_repeated_token_is_refused():
  with pytest.raises(InputError, match="'home' twice"):
    build(tokens=["home", "house", "home"])
  with pytest.raises(InputError, match="empty"):
    build(tokens=[])


@pytest.mark.parametrize("token_id", [-1, len(TOKENS)])
def test_synonyms_of_an_id_outside_the_vocabulary_are_refused(token_id):
  with pytest.raises(InputError, match=str(token_id)):
    table.synonyms_of(build(), token_id)


@pytest.mark.parametrize("pairs", [PAIRS, []])
def test_loaded_table_equals_the_saved_one(tmp_path, pairs):
  built = build(pairs, include_self=True)
  table.save_table(built, tmp_path / "new folder" / "synonyms.npz")
  loaded = table.load_table(tmp_path / "new folder" / "synonyms.npz", TOKENS)
  np.testing.assert_array_equal(loaded.bits_VxW, built.bits_VxW)
  for field in dataclasses.fields(table.SynonymTable)[1:]:
    assert getattr(loaded, field.name) == getattr(built, field.name)


def test_saving_leaves_one_file_and_the_old_one_when_it_fails(
  tmp_path, monkeypatch
):
  path = tmp_path / "synonyms.npz"
  table.save_table(build(), path)
  old = path.read_bytes()

  def full_disk(*_, **__):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(np, "savez_compressed", full_disk)
  with pytest.raises(DiskError, match="No space left"):
    table.save_table(build([]), path)
  assert [p.name for p in tmp_path.iterdir()] == ["synonyms.npz"]
  assert path.read_bytes() == old


def test_another_vocabulary_is_refused_with_both_fingerprints(tmp_path):
  path = tmp_path / "synonyms.npz"
  table.save_table(build(), path)
  for tokens in (TOKENS[:-1], TOKENS[::-1]):
    with pytest.raises(DataError) as caught:
      table.load_table(path, tokens)
    assert table.vocabulary_fingerprint(TOKENS) in str(caught.value)
    assert table.vocabulary_fingerprint(tokens) in str(caught.value)
    assert str(path) in str(caught.value)


def test_changed_pairs_are_found_by_their_fingerprint(tmp_path):
  path = tmp_path / "synonyms.npz"
  table.save_table(build(), path)
  with np.load(path) as file:
    header, keys_Q = file["header"], file["keys"]
  for forged in (keys_Q[:-1], keys_Q + 10**9, keys_Q.astype(np.float32)):
    np.savez_compressed(path, header=header, keys=forged)
    with pytest.raises(DataError, match="not a whole") as caught:
      table.load_table(path, TOKENS)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"x" * 999])
def test_file_that_is_no_table_is_refused(tmp_path, content):
  path = tmp_path / "synonyms.npz"
  path.write_bytes(content)
  with pytest.raises(DataError, match="synonyms.npz"):
    table.load_table(path, TOKENS)


def test_cut_off_pickled_and_newer_files_are_refused(tmp_path):
  path = tmp_path / "synonyms.npz"
  table.save_table(build(), path)
  path.write_bytes(path.read_bytes()[:200])
  with pytest.raises(DataError, match="synonyms.npz"):
    table.load_table(path, TOKENS)
  np.savez(path, header=np.array([{}], object), keys=np.array([None]))
  with pytest.raises(DataError, match="allow_pickle"):
    table.load_table(path, TOKENS)
  np.savez(path, header=np.array('{"format": 99}'), keys=np.zeros(0, np.int64))
  with pytest.raises(DataError, match="format 99"):
    table.load_table(path, TOKENS)


def test_missing_file_is_named(tmp_path):
  with pytest.raises(DataError, match="no synonym table .*absent.npz"):
    table.load_table(tmp_path / "absent.npz", TOKENS)


def test_there_are_179_stop_words():
  assert len(STOP_WORDS) == 179
  assert {"i", "in", "wouldn't", "the"} <= STOP_WORDS
  assert STOP_WORDS.isdisjoint({"one", "primary", "stay"})


# The real WordNet, and the vocabulary of BERT where it is at hand.
@functools.cache
def _open(folder):
  return sources.open_wordnet(str(folder))


@functools.cache
def _unpacked(archive, folder):
  with tarfile.open(archive) as file:
    file.extractall(folder, filter="data")
  return folder


@pytest.fixture
def reader(request, tmp_path_factory):
  """The WordNet that `make test` installed, else the one of the real data."""
  try:
    return _open("")
  except InputError:
    data = request.getfixturevalue("real_data")
  archive = data / "wordnet" / "wordnet-3.0-nltk-layout.tar.xz"
  return _open(_unpacked(archive, tmp_path_factory.getbasetemp() / "wordnet"))


@functools.cache
def _vocabulary(path):
  with lzma.open(path, "rt", encoding="utf-8") as file:
    return file.read().split("\n")[:-1]


@functools.cache
def _bert_pairs(reader, vocabulary):
  return list(sources.wordnet(vocabulary, reader=reader))


@pytest.fixture
def bert(real_data):
  return _vocabulary(real_data / "vocab" / "bert-base-uncased-vocab.txt.xz")


@pytest.fixture
def build_real(bert, reader):
  """Builds BERT's table; the pairs are looked up once."""
  return functools.partial(build, _bert_pairs(reader, tuple(bert)), tokens=bert)


@pytest.mark.parametrize("word, names", [("primary", PRIMARY), ("stay", STAY)])
def test_raw_lists_are_those_of_figure_3(reader, word, names):
  assert sources.raw_synonyms(word, reader) == tuple(names.split())


def test_coverage_is_that_of_footnote_5(reader, bert):
  known = {w for w in bert if sources.raw_synonyms(w, reader)}
  assert len(known) == 19_080
  assert round(100 * len(known) / len(bert), 2) == 62.51
  assert {"lester", "tess", "cass", "weiss", "iss"} <= known
  assert len(known - STOP_WORDS) == 18_992
  assert sum(word in STOP_WORDS for word in bert) == 150


def test_size_of_the_table_of_berts_vocabulary(build_real):
  built = build_real()
  assert (built.num_rows, built.num_pairs) == (13_406, 60_081)
  assert built.bits_VxW.shape == (30_522, 954)


def test_size_of_the_table_with_stop_words(build_real, bert):
  built = build_real(keep_stop_words=True)
  assert (built.num_rows, built.num_pairs) == (13_475, 60_552)
  lengths = [len(table.synonyms_of(built, i)) for i in range(len(bert))]
  assert max(lengths) == 55
  assert bert[lengths.index(55)] == "takes"


def test_pairs_of_table_1_are_told_right(build_real, bert):
  built = build_real()
  assert "main" in listed(built, "primary", bert)
  assert "remain" in listed(built, "stay", bert)
  assert "you" not in listed(built, "good", bert)
  assert "house" in listed(built, "houses", bert)
  assert "houses" not in listed(built, "house", bert)


def test_file_of_the_real_table_is_small_and_exact(build_real, bert, tmp_path):
  built = build_real()
  table.save_table(built, tmp_path / "synonyms.npz")
  assert (tmp_path / "synonyms.npz").stat().st_size < 500_000
  loaded = table.load_table(tmp_path / "synonyms.npz", bert)
  np.testing.assert_array_equal(loaded.bits_VxW, built.bits_VxW)
