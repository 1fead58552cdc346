"""Properties of tables and their layouts; the real WordNet's numbers."""

import dataclasses
import functools
import json
import lzma
import os
import tarfile
import tracemalloc

import numpy as np
import pytest

from truenegs_jax.runtime.errors import DataError, DiskError, InputError
from truenegs_jax.synonyms import sources, table, wordnet
from truenegs_jax.synonyms.stop_words import STOP_WORDS, fingerprint, golds

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


def pairs_of_bits(bits_VxW):
  """The set bits, (row, 32 * word + bit)."""
  rows, words, bits = np.nonzero(bits_VxW[..., None] >> np.arange(32) & 1)
  return set(zip(rows.tolist(), (words * 32 + bits).tolist(), strict=True))


def pairs_of_ids(ids_VxS):
  rows, places = np.nonzero(ids_VxS >= 0)
  others = ids_VxS[rows, places]
  return set(zip(rows.tolist(), others.tolist(), strict=True))


def test_bit_b_mod_32_of_word_b_div_32_is_set_for_each_pair_and_no_other():
  bits_VxW = table.bits(build())
  dense_VxV = np.zeros((len(TOKENS), len(TOKENS)), bool)
  for word, synonym in PAIRS:
    if word != "in":
      dense_VxV[TOKENS.index(word), TOKENS.index(synonym)] = True
  a, b = np.meshgrid(*[np.arange(len(TOKENS))] * 2, indexing="ij")
  assert (bits_VxW.dtype, bits_VxW.shape) == (np.uint32, (67, 3))
  bits = bits_VxW[a, b // 32] >> (b % 32).astype(np.uint32) & 1
  np.testing.assert_array_equal(bits == 1, dense_VxV)


def test_rows_of_ids_are_ascending_and_padded_with_minus_1():
  ids_VxS = table.ids(build())
  assert (ids_VxS.dtype, ids_VxS.shape) == (np.int32, (67, 3))
  expected = [TOKENS.index(f"word{i}") for i in (24, 25, 59)]
  assert ids_VxS[TOKENS.index("word0")].tolist() == expected
  assert ids_VxS[TOKENS.index("house")].tolist() == [6, -1, -1]
  assert ids_VxS[TOKENS.index("in")].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("seed", range(8))
def test_both_layouts_lists_and_look_ups_tell_the_same_pairs(seed):
  rng = np.random.default_rng(seed)
  size = int(rng.integers(1, 90))
  tokens = [f"w{i}" for i in range(size)]
  drawn = rng.integers(0, size, (int(rng.integers(0, 4 * size)), 2)).tolist()
  built = build([(tokens[a], tokens[b]) for a, b in drawn], tokens)
  expected = {(a, b) for a, b in drawn if a != b}
  assert pairs_of_bits(table.bits(built)) == expected
  assert pairs_of_ids(table.ids(built)) == expected
  for layout, pairs_in in (("bits", pairs_of_bits), ("ids", pairs_of_ids)):
    [array] = table.arrays(built, layout).values()
    assert pairs_in(array) == expected
  lists = [table.synonyms_of(built, i) for i in range(size)]
  assert [(i, b) for i in range(size) for b in lists[i]] == sorted(expected)
  assert table.lengths(built).tolist() == list(map(len, lists))
  assert built.num_rows == sum(map(bool, lists))
  assert built.num_pairs == len(expected)
  a, b = np.meshgrid(*[np.arange(-1, size + 1)] * 2, indexing="ij")
  found = {(i - 1, j - 1) for i, j in np.argwhere(table.contains(built, a, b))}
  assert found == expected


@pytest.mark.parametrize("seed", range(4))
def test_a_table_comes_back_from_its_ids_in_any_order(seed):
  rng = np.random.default_rng(seed)
  drawn = rng.integers(0, 60, (200, 2))
  tokens = TOKENS[::-1]
  built = build([(f"word{a}", f"word{b}") for a, b in drawn], tokens)
  shuffled_VxS = rng.permuted(table.ids(built), axis=1)
  other = table.from_ids(shuffled_VxS, tokens, source="x", options={"top": 3})
  np.testing.assert_array_equal(other.keys_Q, built.keys_Q)
  assert other.fingerprint == built.fingerprint
  assert (other.source, dict(other.options)) == ("x", {"top": 3})


def test_layout_is_bits_up_to_the_limit_and_then_what_is_smaller():
  edge = 65_536  # 65,536 * 2,048 words of 4 bytes are 512 MiB
  assert table.choose_layout(edge, 1, "auto") == "bits"
  assert table.choose_layout(edge + 1, 1, "auto") == "ids"
  assert table.choose_layout(edge + 1, 2048, "auto") == "ids"
  assert table.choose_layout(edge + 1, 2049, "auto") == "bits"
  assert table.choose_layout(10**6, 1, "bits") == "bits"
  assert table.choose_layout(10, 9, "ids") == "ids"
  with pytest.raises(InputError, match="'dense'.*auto, bits, ids"):
    table.choose_layout(10, 1, "dense")
  assert list(table.arrays(build(), "auto")) == ["bits_VxW"]
  assert list(table.arrays(build(), "ids")) == ["ids_VxS"]


def test_a_large_vocabulary_takes_the_memory_of_its_pairs(tmp_path):
  tokens = [f"w{i}" for i in range(128_000)]
  pairs = zip(tokens, tokens[1:] + tokens[:1], strict=True)
  tracemalloc.start()
  built = build(pairs, tokens, symmetric=True)
  table.save_table(built, tmp_path / "t.npz")
  loaded = table.load_table(tmp_path / "t.npz", tokens)
  [(name, array)] = table.arrays(loaded, "auto").items()
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert (name, array.shape) == ("ids_VxS", (128_000, 2))
  assert array[5].tolist() == [4, 6] and array[0].tolist() == [1, 127_999]
  assert peak < 128 << 20  # its bits would take 2 GB


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


@pytest.mark.parametrize("keep_stop_words", [False, True])
def test_golds_are_the_words_that_a_table_can_give_a_list(keep_stop_words):
  tokens = [*TOKENS, "In", ""]
  options = {"keep_stop_words": keep_stop_words, "stop_words": {"in", "word3"}}
  found = {tokens[i] for i in np.flatnonzero(golds(tokens, **options))}
  stops = set() if keep_stop_words else {"in", "In", "word3"}
  assert found == set(tokens) - {"[PAD]", "[MASK]", "##s", ""} - stops
  every = [(a, b) for a in tokens for b in tokens]
  lists_V = table.lengths(build(every, tokens, **options))
  assert {tokens[i] for i in np.flatnonzero(lists_V)} == found


def test_stop_words_are_told_apart_whatever_their_order():
  assert fingerprint(["b", "a", "b"]) == fingerprint({"a", "b"})
  assert fingerprint({"a", "b"}) != fingerprint({"ab"}) != fingerprint(())
  options = build(stop_words={"a", "b"}).options
  assert options["stop_words"] == fingerprint({"a", "b"})


def test_other_stop_words_may_be_given_in_any_language():
  built = build(stop_words={"houses", "word0"})
  assert listed(built, "in") == {"home"}
  assert listed(built, "houses") == listed(built, "word0") == set()


def test_symmetric_closes_the_relation_and_then_skips_stop_words():
  pairs = [("houses", "house"), ("home", "in"), ("in", "word3")]
  built = build(pairs, symmetric=True)
  assert listed(built, "house") == {"houses"}
  assert listed(built, "houses") == {"house"}
  assert listed(built, "home") == listed(built, "word3") == {"in"}
  assert listed(built, "in") == set()
  kept = build(pairs, symmetric=True, keep_stop_words=True)
  assert listed(kept, "in") == {"home", "word3"}


def test_self_comes_last_so_words_that_symmetry_gave_a_list_have_it():
  built = build([("houses", "house")], symmetric=True, include_self=True)
  assert listed(built, "house") == {"house", "houses"}
  assert listed(built, "home") == set()


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
  assert not table.bits(built).any()
  assert table.ids(built).tolist() == [[-1]] * len(TOKENS)
  assert (built.num_rows, built.num_pairs) == (0, 0)


def test_order_and_repetition_of_pairs_do_not_matter():
  assert build(PAIRS[::-1] + PAIRS).fingerprint == build().fingerprint


@pytest.mark.parametrize(
  "other",
  [
    build(PAIRS[1:]),
    build(keep_stop_words=True),
    build(symmetric=True),
    build(tokens=[*TOKENS, "more"]),
    build(tokens=["other", *TOKENS[1:]]),
  ],
)
def test_fingerprint_differs_with_pairs_and_vocabulary(other):
  assert other.fingerprint != build().fingerprint


def test_fingerprint_is_that_of_the_pairs_wherever_they_are_from():
  other = table.build_table(
    PAIRS, TOKENS, source="another", stop_words={"in", "never seen"}
  )
  assert other.fingerprint == build().fingerprint
  assert other.options != build().options


def test_a_table_cannot_be_changed():
  with pytest.raises(ValueError):
    build().keys_Q[0] = 1


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
  np.testing.assert_array_equal(loaded.keys_Q, built.keys_Q)
  for field in dataclasses.fields(table.SynonymTable)[1:]:
    assert getattr(loaded, field.name) == getattr(built, field.name)


def test_a_saved_table_says_what_it_is(tmp_path):
  built = build(symmetric=True)
  table.save_table(built, tmp_path / "synonyms.npz")
  with np.load(tmp_path / "synonyms.npz") as file:
    header = json.loads(str(file["header"]))
  assert header["source"] == "test" and header["options"]["symmetric"] is True
  assert header["fingerprint"] == built.fingerprint
  assert (header["rows"], header["pairs"]) == (built.num_rows, built.num_pairs)


def test_a_table_replaces_files_alone_and_goes_where_a_link_points(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  with pytest.raises(DiskError, match="pipe is no file"):
    table.save_table(build(), tmp_path / "pipe")
  assert (tmp_path / "pipe").is_fifo()
  (tmp_path / "link.npz").symlink_to(tmp_path / "there.npz")
  table.save_table(build(), tmp_path / "link.npz")
  assert (tmp_path / "link.npz").is_symlink()
  assert table.load_table(tmp_path / "there.npz", TOKENS).num_pairs


def test_saving_leaves_one_file_and_the_old_one_when_it_fails(
  tmp_path, monkeypatch
):
  path = tmp_path / "synonyms.npz"
  table.save_table(build(), path)
  old = path.read_bytes()

  def full_disk(*_, **__):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(table.np, "savez_compressed", full_disk)
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
  return wordnet.open_wordnet(str(folder))


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
  assert wordnet.raw_synonyms(word, reader) == tuple(names.split())


def test_coverage_is_that_of_footnote_5(reader, bert):
  known = {w for w in bert if wordnet.raw_synonyms(w, reader)}
  assert len(known) == 19_080
  assert round(100 * len(known) / len(bert), 2) == 62.51
  assert {"lester", "tess", "cass", "weiss", "iss"} <= known
  assert len(known - STOP_WORDS) == 18_992
  assert sum(word in STOP_WORDS for word in bert) == 150


def test_size_of_the_table_of_berts_vocabulary(build_real):
  built = build_real()
  assert (built.num_rows, built.num_pairs) == (13_406, 60_081)
  assert table.bits(built).shape == (30_522, 954)
  assert table.ids(built).shape == (30_522, 55)


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
  np.testing.assert_array_equal(loaded.keys_Q, built.keys_Q)
