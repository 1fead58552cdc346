"""Rates of corrections against loops, their intervals against simulation."""

import collections
import dataclasses
import json
import tarfile

import numpy as np
import pytest
from scipy import stats

from support.small_predictions import (
  TOKENS,
  FakeWordNet,
  permuted,
  predictions,
  random_predictions,
  random_table,
  rendered,
  same,
)
from truenegs_jax.corrections import rates
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.synonyms.table import build_table, contains


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_those_of_a_loop_over_slots(seed):
  p = random_predictions(seed, 500)
  table = random_table(seed, include_self=bool(seed % 2))
  listed = {tuple(map(int, divmod(k, len(TOKENS)))) for k in table.keys_Q}
  wrong = hits = 0
  with_slot, with_hit, pairs = set(), set(), collections.Counter()
  for t, gold, said, eligible in zip(
    p.sequence_M.tolist(),
    p.gold_M.tolist(),
    p.predicted_M.tolist(),
    p.eligible_M.tolist(),
    strict=True,
  ):
    with_slot.add(t)
    wrong += gold != said
    if gold != said and (gold, said) in listed and eligible:
      hits += 1
      with_hit.add(t)
      pairs[TOKENS[gold], TOKENS[said]] += 1
  r = rates.count(p, table, TOKENS, top=1000)
  assert len(with_slot) < len(p.sequences) and max(pairs.values()) > 1
  assert (r.of_mismatches.hits, r.of_mismatches.of) == (hits, wrong)
  assert (r.of_slots.hits, r.of_slots.of) == (hits, len(p.gold_M))
  assert (r.of_sequences.hits, r.of_sequences.of) == (
    len(with_hit),
    len(with_slot),
  )
  assert r.of_mismatches.rate == pytest.approx(hits / wrong)
  assert {(x.gold, x.predicted): x.count for x in r.pairs} == pairs
  assert [x.count for x in r.pairs] == sorted(pairs.values(), reverse=True)
  assert rates.count(p, table, TOKENS, top=2).pairs == r.pairs[:2]


@pytest.mark.parametrize("seed", range(3))
def test_groups_divide_the_slots_by_their_golds(seed, monkeypatch):
  ends = (5, 10, 20)
  monkeypatch.setattr(rates, "BAND_ENDS", ends)
  p, table = random_predictions(seed), random_table(seed)
  rng = np.random.default_rng(seed)
  speech = rng.choice(rates.SPEECH[:4], len(TOKENS)).tolist()
  r = rates.count(p, table, TOKENS, speech=speech)
  frequency = collections.Counter(
    int(token) for row in p.sequences for token in row if token > 1
  )
  ranked = sorted(range(2, len(TOKENS)), key=lambda v: (-frequency[v], v))
  band = {v: sum(ranked.index(v) >= end for end in ends) for v in ranked}
  for groups, names, kind in (
    (r.by_speech, rates.SPEECH, lambda v: speech[v]),
    (r.by_frequency, rates.BANDS, lambda v: rates.BANDS[band[v]]),
  ):
    assert [group.name for group in groups] == list(names)
    for group in groups:
      in_M = np.array([kind(v) == group.name for v in p.gold_M])
      false_M = contains(table, p.gold_M, p.predicted_M) & p.mismatch_M
      false_M &= p.eligible_M
      assert group.of_slots.of == in_M.sum()
      assert group.of_mismatches.of == (in_M & p.mismatch_M).sum()
      assert group.of_mismatches.hits == (in_M & false_M).sum()
    assert sum(group.of_slots.of for group in groups) == len(p.gold_M)


def test_bands_end_where_they_say():
  golds = np.array([1, 100, 101, 1_000, 1_001, 10_000, 10_001]) - 1 + 2
  tokens = ["[CLS]", "[SEP]", *(f"t{i}" for i in range(10_100))]
  # Token `2 + i` has rank `i + 1`: ties go by the number of the token.
  every = np.arange(2, len(tokens))
  p = predictions(
    [np.array([0, *every, 1], np.int32)], [(0, g - 1) for g in golds], golds
  )
  table = build_table([], tokens, source="none")
  groups = rates.count(p, table, tokens).by_frequency
  assert [group.of_slots.of for group in groups] == [2, 2, 2, 1]


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_lines_and_slots_changes_nothing(seed):
  p, table = random_predictions(seed), random_table(seed)
  speech = ["noun", "verb"] * (len(TOKENS) // 2)
  before = rates.count(p, table, TOKENS, speech=speech)
  after = rates.count(permuted(p, seed), table, TOKENS, speech=speech)
  assert same(before, after)


def test_nothing_to_count_is_no_rate_and_any_share():
  rows = [np.array([0, 2, 1], np.int32)]
  none = rates.Rate(rate=0.0, low=0.0, high=1.0, hits=0, of=0)
  table = random_table(0)
  for places, said in (([], []), ([(0, 1)], [2])):
    r = rates.count(predictions(rows, places, said), table, TOKENS)
    assert r.of_mismatches == none and r.of_slots.of == len(said)
    assert r.pairs == () and "-" in rendered(
      rates.show_groups(r.by_frequency, "none")
    )
  assert rates.count(predictions([], [], []), table, TOKENS).of_slots == none


def test_without_a_correction_or_with_one_line_the_interval_has_a_width():
  p = random_predictions(0)
  nothing = build_table([], TOKENS, source="none")
  for r in (
    rates.count(p, nothing, TOKENS),
    rates.count(random_predictions(1, num_sequences=1), nothing, TOKENS),
    rates.count(
      random_predictions(1, num_sequences=1), random_table(1), TOKENS
    ),
  ):
    for value in (r.of_mismatches, r.of_slots, r.of_sequences):
      assert value.of and 0 <= value.low <= value.rate
      assert value.rate < value.high <= 1


def test_the_rate_lies_within_its_interval_whatever_is_counted():
  for size in range(1, 400):
    sequence_N = np.arange(size)
    for hit in (False, True):
      value = rates.rate(np.full(size, hit), sequence_N)
      assert 0 <= value.low <= value.rate <= value.high <= 1
      assert (value.low, value.high)[hit] == value.rate == hit


def test_single_slots_have_wilsons_interval():
  hit_N = np.arange(3000) < 40
  got = rates.rate(hit_N, np.arange(3000))
  want = stats.binomtest(40, 3000).proportion_ci(method="wilson")
  assert (got.low, got.high) == pytest.approx((want.low, want.high), rel=5e-3)


@pytest.mark.parametrize("hits", [0, 7, 40])
def test_saying_everything_twice_makes_no_interval_narrower(hits):
  hit_N, sequence_N = np.arange(40) < hits, np.arange(40)
  once = rates.rate(hit_N, sequence_N)
  twice = rates.rate(np.tile(hit_N, 2), np.tile(sequence_N, 2))
  assert (twice.low, twice.high) == pytest.approx((once.low, once.high))
  assert twice.of == 2 * once.of


def test_weights_count_as_repetitions_do():
  rng = np.random.default_rng(0)
  hit_N, sequence_N = rng.random(60) < 0.3, rng.integers(0, 12, 60)
  times_N = rng.integers(1, 4, 60)
  weighed = rates.rate(hit_N, sequence_N, times_N)
  repeated = rates.rate(
    np.repeat(hit_N, times_N), np.repeat(sequence_N, times_N)
  )
  assert same(weighed, repeated)


def test_one_pair_in_many_places_is_one_piece_of_evidence():
  got = rates.rate(np.ones(10, bool), np.arange(10), np.full(10, 0.1))
  want = stats.binomtest(1, 1).proportion_ci(method="wilson")
  assert (got.hits, got.of) == (1, 1) and got.low <= want.low


@pytest.mark.parametrize("num_sequences", [2, 5, 50])
def test_an_interval_solves_wilsons_equation(num_sequences):
  """At either end the share seen is z errors of the share supposed away."""
  rng = np.random.default_rng(num_sequences)
  sequence_N = rng.integers(0, num_sequences, 20 * num_sequences)
  p_T = rng.random(num_sequences)
  hit_N = rng.random(len(sequence_N)) < p_T[sequence_N]
  got = rates.rate(hit_N, sequence_N)
  share = hit_N.mean()
  residuals = [
    (hit_N[sequence_N == t] - share).sum() for t in range(num_sequences)
  ]
  squares = num_sequences * np.var(residuals, ddof=1)
  independent = share * (1 - share) / (squares / len(hit_N) ** 2)
  assert independent < len(hit_N)
  t = stats.t.ppf(0.975, num_sequences - 1)
  for end in (got.low, got.high):
    error = np.sqrt(end * (1 - end) / independent)
    assert abs(share - end) == pytest.approx(t * error)


@pytest.mark.parametrize("likeness", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
  "share, num_sequences", [(0.014, 150), (0.07, 60), (0.3, 20)]
)
def test_intervals_cover_the_truth_as_often_as_they_say(
  share, num_sequences, likeness
):
  """`likeness` is the correlation of two slots of one sequence."""
  rng = np.random.default_rng(0)
  covered = []
  for _ in range(1000):
    p_T = np.full(num_sequences, share)
    if likeness == 1:
      p_T = rng.binomial(1, share, num_sequences)
    elif likeness:
      scale = 1 / likeness - 1
      p_T = rng.beta(share * scale, (1 - share) * scale, num_sequences)
    sequence_N = np.repeat(
      np.arange(num_sequences), 1 + rng.poisson(4, num_sequences)
    )
    hit_N = rng.random(len(sequence_N)) < p_T[sequence_N]
    r = rates.rate(hit_N, sequence_N)
    covered.append(r.low <= share <= r.high)
  assert 0.9 <= np.mean(covered) <= 0.99


def test_a_report_is_json_and_fits_a_terminal():
  p, table = random_predictions(0, 400), random_table(0)
  r = rates.count(p, table, TOKENS, speech=["noun"] * len(TOKENS))
  assert json.loads(json.dumps(dataclasses.asdict(r)))["of_slots"]["of"] > 900
  tables = [rates.show_groups(r.by_speech, "By part of speech")]
  tables += [rates.show_groups(r.by_frequency, "By frequency")]
  tables += [rates.show_pairs(r.pairs)]
  for text in map(rendered, tables):
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
  assert r.by_speech[0].name in rendered(tables[0])
  assert r.pairs[0].predicted in rendered(tables[2])


def test_part_of_speech_is_the_one_used_most_then_that_of_most_senses():
  index = {
    "house": {"n": [1], "v": [2, 3, 4]},
    "say": {"n": [5], "v": [6]},
    "said": {"a": [7]},
    "duck": {"n": [1], "v": [2, 3]},
    "tie": {"n": [1], "v": [2]},
    "first": {"a": [1], "s": [1], "r": [2]},
    "the": {"n": [1]},
  }
  tagged = (
    "first%5:00:00:order:00 1 40\nfirst%4:02:00:: 1 39\nhouse%1:06:00:: 1 90\n"
    "house%1:14:00:: 2 9\nhouse%2:42:00:: 1 95\nsay%2:32:00:: 1 3\n"
    "said%3:00:00:: 1 2\n"
  )
  reader = FakeWordNet(index, tagged, exceptions={"said": ["say"]})
  want = {
    "house": "noun",
    "Houses": "noun",
    "said": "verb",
    "duck": "verb",
    "tie": "noun",
    "first": "adjective",
    "the": "stop word",
    "##house": "## piece",
    "[MASK]": "not in WordNet",
    "zzz": "not in WordNet",
  }
  assert (
    dict(zip(want, rates.parts_of_speech(list(want), reader), strict=True))
    == want
  )
  [the] = rates.parts_of_speech(["the"], reader, stop_words=())
  assert the == "noun"


@pytest.mark.parametrize("tagged", [None, "house%1:06:00:: 1\n", "a%9:0 1 1\n"])
def test_a_wordnet_without_counts_is_reported(tagged):
  with pytest.raises(DataError, match=r"cntlist\.rev.*launch/wordnet\.sh"):
    rates.parts_of_speech(["house"], FakeWordNet({}, tagged))


def test_real_wordnet_knows_common_words(tmp_path, real_data):
  pytest.importorskip("nltk")
  from truenegs_jax.synonyms.wordnet import close_wordnet, open_wordnet

  archive = real_data / "wordnet" / "wordnet-3.0-nltk-layout.tar.xz"
  with tarfile.open(archive) as file:
    file.extractall(tmp_path, filter="data")
  reader = open_wordnet(str(tmp_path))
  words = "house said good quickly running xyzzyq they".split()
  got = rates.parts_of_speech(words, reader)
  close_wordnet(reader)
  assert " ".join(got) == (
    "noun verb adjective adverb verb not in WordNet stop word"
  )


@pytest.mark.parametrize(
  "change, message",
  [
    ({"gold_M": np.array([3, 3])}, "not what stands"),
    ({"gold_M": np.array([2])}, "same"),
    ({"predicted_M": np.array([2.0, 3.0])}, "float64, not integer"),
    ({"predicted_M": np.array([-1, 3])}, "negative"),
    ({"position_M": np.array([0, 2])}, "between"),
    ({"position_M": np.array([1, 3])}, "between"),
    ({"sequence_M": np.array([0, 1])}, "lines 0 to 1 of 1"),
    ({"sequence_M": np.array([-1, 0])}, "lines -1 to 0 of 1"),
    ({"eligible_M": np.array([1, 0])}, "int64, not bool"),
    ({"probability_M": np.array([0.5, np.nan])}, "no probabilities"),
    ({"probability_M": np.array([0.5, -0.5])}, "no probabilities"),
    ({"probability_M": np.array([0.5, 1.5])}, "no probabilities"),
  ],
)
def test_predictions_that_fit_no_corpus_are_refused(change, message):
  p = predictions([np.array([0, 2, 3, 1])], [(0, 1), (0, 2)], [4, 5])
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(p, **change)
