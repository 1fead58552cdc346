"""Rates and agreement against loops, intervals against simulation."""

import collections
import itertools
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
  same,
)
from truenegs_jax.corrections import rates
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.synonyms import wordnet
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
  r = rates.count_corrections(p, table, TOKENS, top=1000)
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
  assert rates.count_corrections(p, table, TOKENS, top=2).pairs == r.pairs[:2]


@pytest.mark.parametrize("seed", range(3))
def test_groups_divide_the_slots_by_their_golds(seed, monkeypatch):
  ends = (5, 10, 20)
  monkeypatch.setattr(rates, "BAND_ENDS", ends)
  p, table = random_predictions(seed), random_table(seed)
  rng = np.random.default_rng(seed)
  speech = rng.choice(rates.SPEECH[:4], len(TOKENS)).tolist()
  r = rates.count_corrections(p, table, TOKENS, speech=speech)
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
  groups = rates.count_corrections(p, table, tokens).by_frequency
  assert [group.of_slots.of for group in groups] == [2, 2, 2, 1]


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_lines_and_slots_changes_nothing(seed):
  p, table = random_predictions(seed), random_table(seed)
  speech = ["noun", "verb"] * (len(TOKENS) // 2)
  before = rates.count_corrections(p, table, TOKENS, speech=speech)
  after = rates.count_corrections(
    permuted(p, seed), table, TOKENS, speech=speech
  )
  assert same(before, after)


def test_nothing_to_count_is_no_rate_and_any_share():
  rows = [np.array([0, 2, 1], np.int32)]
  none = rates.Rate(rate=0.0, low=0.0, high=1.0, hits=0, of=0)
  table = random_table(0)
  for places, said in (([], []), ([(0, 1)], [2])):
    r = rates.count_corrections(predictions(rows, places, said), table, TOKENS)
    assert r.of_mismatches == none and r.of_slots.of == len(said)
    assert r.pairs == ()
  assert (
    rates.count_corrections(predictions([], [], []), table, TOKENS).of_slots
    == none
  )


def test_without_a_correction_or_with_one_line_the_interval_has_a_width():
  p = random_predictions(0)
  nothing = build_table([], TOKENS, source="none")
  for r in (
    rates.count_corrections(p, nothing, TOKENS),
    rates.count_corrections(
      random_predictions(1, num_sequences=1), nothing, TOKENS
    ),
    rates.count_corrections(
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
      value = rates.estimate_rate(np.full(size, hit), sequence_N)
      assert 0 <= value.low <= value.rate <= value.high <= 1
      assert (value.low, value.high)[hit] == value.rate == hit


def test_single_slots_have_wilsons_interval():
  hit_N = np.arange(3000) < 40
  got = rates.estimate_rate(hit_N, np.arange(3000))
  want = stats.binomtest(40, 3000).proportion_ci(method="wilson")
  assert (got.low, got.high) == pytest.approx((want.low, want.high), rel=5e-3)


def test_weights_count_as_repetitions_do():
  rng = np.random.default_rng(0)
  hit_N, sequence_N = rng.random(60) < 0.3, rng.integers(0, 12, 60)
  times_N = rng.integers(1, 4, 60)
  weighed = rates.estimate_rate(hit_N, sequence_N, times_N)
  repeated = rates.estimate_rate(
    np.repeat(hit_N, times_N), np.repeat(sequence_N, times_N)
  )
  assert same(weighed, repeated)


def test_one_pair_in_many_places_is_one_piece_of_evidence():
  got = rates.estimate_rate(np.ones(10, bool), np.arange(10), np.full(10, 0.1))
  want = stats.binomtest(1, 1).proportion_ci(method="wilson")
  assert (got.hits, got.of) == (1, 1) and got.low <= want.low


@pytest.mark.parametrize("num_sequences", [2, 5, 50])
def test_an_interval_solves_wilsons_equation(num_sequences):
  """At either end the share seen is z errors of the share supposed away."""
  rng = np.random.default_rng(num_sequences)
  sequence_N = rng.integers(0, num_sequences, 20 * num_sequences)
  p_T = rng.random(num_sequences)
  hit_N = rng.random(len(sequence_N)) < p_T[sequence_N]
  got = rates.estimate_rate(hit_N, sequence_N)
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
    r = rates.estimate_rate(hit_N, sequence_N)
    covered.append(r.low <= share <= r.high)
  assert 0.9 <= np.mean(covered) <= 0.99


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
    dict(zip(want, rates.classify_tokens(list(want), reader), strict=True))
    == want
  )
  [the] = rates.classify_tokens(["the"], reader, stop_words=())
  assert the == "noun"


@pytest.mark.parametrize("tagged", [None, "house%1:06:00:: 1\n", "a%9:0 1 1\n"])
def test_a_wordnet_without_counts_is_reported(tagged):
  with pytest.raises(DataError, match=r"cntlist\.rev.*launch/wordnet\.sh"):
    rates.classify_tokens(["house"], FakeWordNet({}, tagged))


@pytest.mark.slow
def test_real_wordnet_knows_common_words(tmp_path, real_data):
  archive = real_data / "wordnet" / "wordnet-3.0-nltk-layout.tar.xz"
  with tarfile.open(archive) as file:
    file.extractall(tmp_path, filter="data")
  words = ["house", "said", "good", "quickly", "running", "xyzzyq", "they"]
  with wordnet.session(str(tmp_path)) as reader:
    classes = rates.classify_tokens(words, reader)
  assert " ".join(classes) == (
    "noun verb adjective adverb verb not in WordNet stop word"
  )


# Agreement of sources.


def select(judgements, source, judge, golds="all", by="occurrence"):
  [found] = [
    j
    for j in judgements
    if (j.source, j.judge, j.golds, j.by) == (source, judge, golds, by)
  ]
  return found


def counts(judgement):
  p, r = judgement.precision, judgement.recall
  return (p.hits, p.of), (r.hits, r.of)


def by_hand():
  """Three lines of words a b c d, and what three sources list.

  The mismatches with a whole word as gold are a>b (3 times), b>c (2), c>d and
  d>a; of ##p>b nobody is asked, and a>a is right.
  """
  tokens = "[CLS] [SEP] a b c d ##p".split()
  a, b, c, d, piece = range(2, 7)
  rows = [
    np.array([0, a, b, piece, 1]),
    np.array([0, a, a, b, c, 1]),
    np.array([0, a, d, 1]),
  ]
  said = {
    (0, 1): b,
    (0, 2): c,
    (0, 3): b,
    (1, 1): b,
    (1, 2): b,
    (1, 3): c,
    (1, 4): d,
    (2, 1): a,
    (2, 2): a,
  }
  lists = {
    "x": [("a", "b"), ("b", "c")],
    "y": [("a", "b"), ("c", "d"), ("b", "d")],
    "z": [("d", "a")],
  }
  tables = {
    name: build_table(pairs, tokens, source=name, keep_stop_words=True)
    for name, pairs in lists.items()
  }
  return predictions(rows, list(said), list(said.values())), tables, tokens


def test_three_sources_by_hand():
  judgements = rates.compare_sources(*by_hand())
  assert len(judgements) == 6 * 2 * 2
  # x corrects a>b and b>c, 5 times; y a>b and c>d, 4 times; both a>b, 3 times.
  x_y = select(judgements, "x", "y")
  assert counts(x_y) == ((3, 5), (3, 4))
  # Of 7: both 3, x alone 2, y alone 1, neither 1.
  same_share, chance = 4 / 7, (5 * 4 + 2 * 3) / 49
  assert x_y.kappa == pytest.approx((same_share - chance) / (1 - chance))
  x_y = select(judgements, "x", "y", by="pair")
  assert counts(x_y) == ((1, 2), (1, 2))
  assert x_y.kappa == pytest.approx(0)
  # Both know a and b, not c: y's c>d is no miss of x any more.
  x_y = select(judgements, "x", "y", golds="shared")
  assert counts(x_y) == ((3, 5), (3, 3))
  x_y = select(judgements, "x", "y", golds="shared", by="pair")
  assert counts(x_y) == ((1, 2), (1, 1))
  # z knows d alone: nothing in common with the others.
  assert counts(select(judgements, "y", "z")) == ((0, 4), (0, 1))
  assert select(judgements, "y", "z").kappa < 0
  y_z = select(judgements, "y", "z", golds="shared")
  assert counts(y_z) == ((0, 0), (0, 0)) and y_z.kappa is None


@pytest.mark.parametrize("seed", range(3))
def test_judgements_are_those_of_a_loop_over_slots(seed):
  p = random_predictions(seed, 100)
  tables = {name: random_table(seed + i) for i, name in enumerate("abc")}
  judgements = rates.compare_sources(p, tables, TOKENS)
  listed = {
    name: {tuple(map(int, divmod(k, len(TOKENS)))) for k in t.keys_Q}
    for name, t in tables.items()
  }
  knows = {name: {g for g, _ in pairs} for name, pairs in listed.items()}
  asked = [
    (g, s)
    for g, s, eligible in zip(
      p.gold_M.tolist(),
      p.predicted_M.tolist(),
      p.eligible_M.tolist(),
      strict=True,
    )
    if g != s and eligible and not TOKENS[g].startswith("##")
  ]
  for (a, b), golds, by in itertools.product(
    itertools.permutations("abc", 2), ("all", "shared"), ("occurrence", "pair")
  ):
    units = asked if by == "occurrence" else sorted(set(asked))
    if golds == "shared":
      units = [u for u in units if u[0] in knows[a] & knows[b]]
    both = sum(u in listed[a] and u in listed[b] for u in units)
    of_a = sum(u in listed[a] for u in units)
    of_b = sum(u in listed[b] for u in units)
    j = select(judgements, a, b, golds, by)
    assert counts(j) == ((both, of_a), (both, of_b))
    agree = (len(units) - of_a - of_b + 2 * both) / len(units)
    share_a, share_b = of_a / len(units), of_b / len(units)
    chance = share_a * share_b + (1 - share_a) * (1 - share_b)
    assert j.kappa == pytest.approx((agree - chance) / (1 - chance))
    back = select(judgements, b, a, golds, by)
    assert same(back.precision, j.recall) and same(back.recall, j.precision)


def test_a_source_agrees_fully_with_itself():
  table = random_table(0)
  tables = {"one": table, "two": table}
  for j in rates.compare_sources(random_predictions(0, 100), tables, TOKENS):
    assert j.precision.rate == j.recall.rate == 1 and j.kappa == 1
    assert 0 < j.precision.low < 0.99


@pytest.mark.parametrize("seed", range(2))
def test_judgements_do_not_depend_on_the_order(seed):
  p = random_predictions(seed)
  tables = {name: random_table(seed + i) for i, name in enumerate("abc")}
  assert same(
    rates.compare_sources(p, tables, TOKENS),
    rates.compare_sources(permuted(p, seed), tables, TOKENS),
  )


def test_pairs_seen_again_and_again_are_no_more_evidence():
  p = random_predictions(0, 60)
  rows = p.sequences * 2
  places = list(zip(p.sequence_M.tolist(), p.position_M.tolist(), strict=True))
  places += [(t + len(rows) // 2, i) for t, i in places]
  twice = predictions(
    rows, places, np.tile(p.predicted_M, 2), np.tile(p.eligible_M, 2)
  )
  tables = {"a": random_table(0), "b": random_table(1)}
  once, again = (
    select(
      rates.compare_sources(x, tables, TOKENS), "a", "b", by="pair"
    ).precision
    for x in (p, twice)
  )
  assert (once.hits, once.of) == (again.hits, again.of)
  independent = once.of
  assert again.high - again.low > 2 * np.sqrt(
    once.rate * (1 - once.rate) / independent
  )


@pytest.mark.parametrize("said", [[], [2]])
def test_nothing_to_judge_is_no_judgement(said):
  places = [(0, 1)][: len(said)]
  p = predictions([np.array([0, 2, 1])], places, said)
  tables = {"a": random_table(0), "b": random_table(1)}
  for j in rates.compare_sources(p, tables, TOKENS):
    assert counts(j) == ((0, 0), (0, 0)) and j.kappa is None
  empty = {name: build_table([], TOKENS, source=name) for name in "ab"}
  for j in rates.compare_sources(random_predictions(0), empty, TOKENS):
    assert counts(j) == ((0, 0), (0, 0)) and j.kappa is None
  assert rates.compare_sources(p, {"alone": random_table(0)}, TOKENS) == ()
