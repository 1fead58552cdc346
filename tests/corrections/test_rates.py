"""Tests rates and agreements against loops, intervals against simulations."""

import collections
import functools
import itertools
import operator
import tarfile

import numpy as np
import pytest
from scipy import stats

from support.small_predictions import (
  TOKENS,
  FakeWordNet,
  is_close,
  make_predictions,
  random_predictions,
  random_table,
  shuffle_predictions,
)
from truenegs_jax.corrections import rates
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.table import SynonymTable


def id_pairs(table):
  """Returns the pairs of a table as (gold id, synonym id)."""
  return {divmod(key, table.vocab_size) for key in table.keys_Q.tolist()}


def iterate_slots(p):
  """Yields sequence, gold, prediction and eligibility of every slot."""
  arrays = (p.sequence_M, p.gold_M, p.predicted_M, p.eligible_M)
  return zip(*(array.tolist() for array in arrays), strict=True)


@pytest.mark.parametrize("seed", range(4))
def test_counts_equal_a_loop_over_slots(seed):
  p = random_predictions(seed, 500)
  table = random_table(seed, include_self=bool(seed % 2))
  synonyms = id_pairs(table)
  wrong = hits = 0
  with_slot, with_hit, pairs = set(), set(), collections.Counter()
  for t, gold, predicted, eligible in iterate_slots(p):
    with_slot.add(t)
    wrong += gold != predicted
    if gold != predicted and (gold, predicted) in synonyms and eligible:
      hits += 1
      with_hit.add(t)
      pairs[TOKENS[gold], TOKENS[predicted]] += 1
  r = rates.count_corrections(p, table, TOKENS, top=1000)
  assert len(with_slot) < len(p.sequences) and max(pairs.values()) > 1
  assert (r.of_mismatches.hits, r.of_mismatches.total) == (hits, wrong)
  assert (r.of_slots.hits, r.of_slots.total) == (hits, len(p.gold_M))
  sequences = len(with_hit), len(with_slot)
  assert (r.of_sequences.hits, r.of_sequences.total) == sequences
  assert r.of_mismatches.rate == pytest.approx(hits / wrong)
  assert {(x.gold, x.predicted): x.count for x in r.pairs} == pairs
  assert [x.count for x in r.pairs] == sorted(pairs.values(), reverse=True)
  assert rates.count_corrections(p, table, TOKENS, top=2).pairs == r.pairs[:2]


@pytest.mark.parametrize("seed", range(3))
def test_groups_partition_the_slots_by_gold_token(seed, monkeypatch):
  ends = (5, 10, 20)
  monkeypatch.setattr(rates, "BAND_ENDS", ends)
  p, table = random_predictions(seed), random_table(seed)
  rng = np.random.default_rng(seed)
  classes = rng.choice(rates.TOKEN_CLASSES[:4], len(TOKENS)).tolist()
  r = rates.count_corrections(p, table, TOKENS, token_classes=classes)
  frequency = collections.Counter(
    int(token) for row in p.sequences for token in row if token > 1
  )
  ranked = sorted(range(2, len(TOKENS)), key=lambda v: (-frequency[v], v))
  bands = {}
  for v in ranked:
    bands[v] = rates.BANDS[sum(ranked.index(v) >= end for end in ends)]
  corrected_M = table.contains(p.gold_M, p.predicted_M) & p.mismatch_M
  corrected_M &= p.eligible_M
  for groups, names, class_of in (
    (r.by_speech, rates.TOKEN_CLASSES, dict(enumerate(classes))),
    (r.by_frequency, rates.BANDS, bands),
  ):
    assert [group.name for group in groups] == list(names)
    for group in groups:
      in_M = np.array([class_of[v] == group.name for v in p.gold_M.tolist()])
      assert group.of_slots.total == in_M.sum()
      assert group.of_mismatches.total == (in_M & p.mismatch_M).sum()
      assert group.of_mismatches.hits == (in_M & corrected_M).sum()
    assert sum(group.of_slots.total for group in groups) == len(p.gold_M)


def test_ends_of_frequency_bands():
  golds = np.array([1, 100, 101, 1_000, 1_001, 10_000, 10_001]) - 1 + 2
  tokens = ["[CLS]", "[SEP]", *(f"t{i}" for i in range(10_100))]
  # Token `2 + i` has rank `i + 1`: ties are ordered by token id.
  every = np.arange(2, len(tokens))
  p = make_predictions(
    [np.array([0, *every, 1], np.int32)], [(0, g - 1) for g in golds], golds
  )
  table = SynonymTable.from_pairs([], tokens, source="none")
  groups = rates.count_corrections(p, table, tokens).by_frequency
  assert [group.of_slots.total for group in groups] == [2, 2, 2, 1]


@pytest.mark.parametrize("seed", range(3))
def test_counts_do_not_depend_on_the_order(seed):
  p, table = random_predictions(seed), random_table(seed)
  classes = ["noun", "verb"] * (len(TOKENS) // 2)
  before = rates.count_corrections(p, table, TOKENS, token_classes=classes)
  after = rates.count_corrections(
    shuffle_predictions(p, seed), table, TOKENS, token_classes=classes
  )
  assert is_close(before, after)


def test_rates_of_nothing_are_zero_with_a_full_interval():
  rows = [np.array([0, 2, 1], np.int32)]
  none = rates.Rate(rate=0.0, low=0.0, high=1.0, hits=0, total=0)
  table = random_table(0)
  for slots, predicted in (([], []), ([(0, 1)], [2])):
    p = make_predictions(rows, slots, predicted)
    r = rates.count_corrections(p, table, TOKENS)
    assert r.of_mismatches == none and r.of_slots.total == len(slots)
    assert r.pairs == ()
  r = rates.count_corrections(make_predictions([], [], []), table, TOKENS)
  assert r.of_slots == none


def test_intervals_without_corrections_or_of_one_sequence_are_wide():
  p = random_predictions(0)
  one_sequence = random_predictions(1, num_sequences=1)
  empty = SynonymTable.from_pairs([], TOKENS, source="none")
  for predictions, table in (
    (p, empty),
    (one_sequence, empty),
    (one_sequence, random_table(1)),
  ):
    r = rates.count_corrections(predictions, table, TOKENS)
    for value in (r.of_mismatches, r.of_slots, r.of_sequences):
      assert value.total and 0 <= value.low <= value.rate
      assert value.rate < value.high <= 1


def test_intervals_of_only_misses_or_hits_contain_the_rate():
  for size in range(1, 400):
    sequence_N = np.arange(size)
    for hit in (False, True):
      value = rates.estimate_rate(np.full(size, hit), sequence_N)
      assert 0 <= value.low <= value.rate <= value.high <= 1
      assert (value.low, value.high)[hit] == value.rate == hit


def test_interval_of_sequences_with_one_slot_is_wilsons():
  hit_N = np.arange(3000) < 40
  estimate = rates.estimate_rate(hit_N, np.arange(3000))
  expected = stats.binomtest(40, 3000).proportion_ci(method="wilson")
  assert (estimate.low, estimate.high) == pytest.approx(
    (expected.low, expected.high), rel=5e-3
  )


def test_integer_weights_equal_repetitions():
  rng = np.random.default_rng(0)
  hit_N, sequence_N = rng.random(60) < 0.3, rng.integers(0, 12, 60)
  times_N = rng.integers(1, 4, 60)
  weighted = rates.estimate_rate(hit_N, sequence_N, times_N)
  repeated = rates.estimate_rate(
    np.repeat(hit_N, times_N), np.repeat(sequence_N, times_N)
  )
  assert is_close(weighted, repeated)


def test_weights_that_add_to_one_count_as_one_trial():
  hit_N, weight_N = np.ones(10, bool), np.full(10, 0.1)
  estimate = rates.estimate_rate(hit_N, np.arange(10), weight_N)
  expected = stats.binomtest(1, 1).proportion_ci(method="wilson")
  assert estimate.hits == estimate.total == 1 and estimate.low <= expected.low


@pytest.mark.parametrize("num_sequences", [2, 5, 50])
def test_an_interval_solves_wilsons_equation(num_sequences):
  """Either end is z standard errors, at that end, from the observed share."""
  rng = np.random.default_rng(num_sequences)
  sequence_N = rng.integers(0, num_sequences, 20 * num_sequences)
  p_T = rng.random(num_sequences)
  hit_N = rng.random(len(sequence_N)) < p_T[sequence_N]
  estimate = rates.estimate_rate(hit_N, sequence_N)
  share = hit_N.mean()
  residuals = [
    (hit_N[sequence_N == t] - share).sum() for t in range(num_sequences)
  ]
  squares = num_sequences * np.var(residuals, ddof=1)
  independent = share * (1 - share) / (squares / len(hit_N) ** 2)
  assert independent < len(hit_N)
  t = stats.t.ppf(0.975, num_sequences - 1)
  for end in (estimate.low, estimate.high):
    error = np.sqrt(end * (1 - end) / independent)
    assert abs(share - end) == pytest.approx(t * error)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
  "share, num_sequences", [(0.014, 150), (0.07, 60), (0.3, 20)]
)
def test_intervals_cover_the_true_share_in_95_percent(
  share, num_sequences, correlation
):
  """`correlation` is that of two slots of one sequence."""
  rng = np.random.default_rng(0)
  covered = []
  for _ in range(1000):
    p_T = np.full(num_sequences, share)
    if correlation == 1:
      p_T = rng.binomial(1, share, num_sequences)
    elif correlation:
      scale = 1 / correlation - 1
      p_T = rng.beta(share * scale, (1 - share) * scale, num_sequences)
    sequence_N = np.repeat(
      np.arange(num_sequences), 1 + rng.poisson(4, num_sequences)
    )
    hit_N = rng.random(len(sequence_N)) < p_T[sequence_N]
    r = rates.estimate_rate(hit_N, sequence_N)
    covered.append(r.low <= share <= r.high)
  assert 0.9 <= np.mean(covered) <= 0.99


def test_part_of_speech_is_the_most_frequent_else_has_most_senses():
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
  expected = {
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
  classes = rates.classify_tokens(list(expected), reader)
  assert classes == tuple(expected.values())
  [the] = rates.classify_tokens(["the"], reader, stop_words=())
  assert the == "noun"


@pytest.mark.parametrize("tagged", [None, "house%1:06:00:: 1\n", "a%9:0 1 1\n"])
def test_missing_or_damaged_tag_counts_are_reported(tagged):
  with pytest.raises(DataError, match=r"cntlist\.rev.*truenegs_jax\.wordnet"):
    rates.classify_tokens(["house"], FakeWordNet({}, tagged))


@pytest.mark.slow
def test_classes_by_the_real_wordnet(tmp_path, real_data):
  archive = real_data / "wordnet" / "wordnet-3.0-nltk-layout.tar.xz"
  with tarfile.open(archive) as file:
    file.extractall(tmp_path, filter="data")
  words = ["house", "said", "good", "quickly", "running", "xyzzyq", "they"]
  with wordnet.session(str(tmp_path)) as reader:
    classes = rates.classify_tokens(words, reader)
  expected = "noun verb adjective adverb verb not in WordNet stop word"
  assert " ".join(classes) == expected


# Agreement of sources.


def select(agreements, source, judge, golds="all", by="occurrence"):
  """Returns the agreement with these names and units."""
  names = operator.attrgetter("source", "judge", "golds", "by")
  return {names(a): a for a in agreements}[source, judge, golds, by]


def counts(agreement):
  p, r = agreement.precision, agreement.recall
  return (p.hits, p.total), (r.hits, r.total)


def make_example():
  """Builds predictions for three lines of words a b c d, and three tables.

  The mismatches with a whole word as gold are a>b (3 times), b>c (2), c>d and
  d>a. ##p>b does not count, and a>a is right.
  """
  tokens = ["[CLS]", "[SEP]", "a", "b", "c", "d", "##p"]
  a, b, c, d, piece = range(2, 7)
  rows = [
    np.array([0, a, b, piece, 1]),
    np.array([0, a, a, b, c, 1]),
    np.array([0, a, d, 1]),
  ]
  predicted = [[b, c, b], [b, b, c, d], [a, a]]
  slots = [(t, i) for t in range(3) for i in range(1, len(rows[t]) - 1)]
  pairs = {
    "x": [("a", "b"), ("b", "c")],
    "y": [("a", "b"), ("c", "d"), ("b", "d")],
    "z": [("d", "a")],
  }
  build = functools.partial(
    SynonymTable.from_pairs, tokens=tokens, keep_stop_words=True
  )
  tables = {name: build(pairs[name], source=name) for name in pairs}
  return make_predictions(rows, slots, sum(predicted, [])), tables, tokens


def test_agreements_of_three_sources():
  agreements = rates.compare_sources(*make_example())
  assert len(agreements) == 6 * 2 * 2
  # x corrects a>b and b>c, 5 times; y a>b and c>d, 4 times; both a>b, 3 times.
  x_y = select(agreements, "x", "y")
  assert counts(x_y) == ((3, 5), (3, 4))
  # Of 7: both 3, x alone 2, y alone 1, neither 1.
  same_share, chance = 4 / 7, (5 * 4 + 2 * 3) / 49
  assert x_y.kappa == pytest.approx((same_share - chance) / (1 - chance))
  x_y = select(agreements, "x", "y", by="pair")
  assert counts(x_y) == ((1, 2), (1, 2))
  assert x_y.kappa == pytest.approx(0)
  # Both have synonyms of a and b, not of c, so c>d does not count.
  x_y = select(agreements, "x", "y", golds="shared")
  assert counts(x_y) == ((3, 5), (3, 3))
  x_y = select(agreements, "x", "y", golds="shared", by="pair")
  assert counts(x_y) == ((1, 2), (1, 1))
  # z has synonyms only of d, which the others do not.
  assert counts(select(agreements, "y", "z")) == ((0, 4), (0, 1))
  assert select(agreements, "y", "z").kappa < 0
  y_z = select(agreements, "y", "z", golds="shared")
  assert counts(y_z) == ((0, 0), (0, 0)) and y_z.kappa is None


@pytest.mark.parametrize("seed", range(3))
def test_agreements_equal_a_loop_over_slots(seed):
  p = random_predictions(seed, 100)
  tables = {name: random_table(seed + i) for i, name in enumerate("abc")}
  agreements = rates.compare_sources(p, tables, TOKENS)
  synonyms = {name: id_pairs(table) for name, table in tables.items()}
  golds_of = {name: {g for g, _ in pairs} for name, pairs in synonyms.items()}
  mismatches = []
  for _, gold, predicted, eligible in iterate_slots(p):
    if gold != predicted and eligible and not TOKENS[gold].startswith("##"):
      mismatches.append((gold, predicted))
  for (a, b), golds, by in itertools.product(
    itertools.permutations("abc", 2), ("all", "shared"), ("occurrence", "pair")
  ):
    units = mismatches if by == "occurrence" else sorted(set(mismatches))
    if golds == "shared":
      units = [u for u in units if u[0] in golds_of[a] & golds_of[b]]
    both = sum(u in synonyms[a] and u in synonyms[b] for u in units)
    of_a = sum(u in synonyms[a] for u in units)
    of_b = sum(u in synonyms[b] for u in units)
    agreement = select(agreements, a, b, golds, by)
    assert counts(agreement) == ((both, of_a), (both, of_b))
    agree = (len(units) - of_a - of_b + 2 * both) / len(units)
    share_a, share_b = of_a / len(units), of_b / len(units)
    chance = share_a * share_b + (1 - share_a) * (1 - share_b)
    assert agreement.kappa == pytest.approx((agree - chance) / (1 - chance))
    reverse = select(agreements, b, a, golds, by)
    assert is_close(reverse.precision, agreement.recall)
    assert is_close(reverse.recall, agreement.precision)


def test_a_source_agrees_fully_with_itself():
  table = random_table(0)
  tables = {"one": table, "two": table}
  for a in rates.compare_sources(random_predictions(0, 100), tables, TOKENS):
    assert a.precision.rate == a.recall.rate == 1 and a.kappa == 1
    assert 0 < a.precision.low < 0.99


@pytest.mark.parametrize("seed", range(2))
def test_agreements_do_not_depend_on_the_order(seed):
  p = random_predictions(seed)
  tables = {name: random_table(seed + i) for i, name in enumerate("abc")}
  assert is_close(
    rates.compare_sources(p, tables, TOKENS),
    rates.compare_sources(shuffle_predictions(p, seed), tables, TOKENS),
  )


def test_repeated_pairs_do_not_narrow_the_interval():
  p = random_predictions(0, 60)
  rows = p.sequences * 2
  slots = list(zip(p.sequence_M.tolist(), p.position_M.tolist(), strict=True))
  slots += [(t + len(rows) // 2, i) for t, i in slots]
  repeated = make_predictions(
    rows, slots, np.tile(p.predicted_M, 2), np.tile(p.eligible_M, 2)
  )
  tables = {"a": random_table(0), "b": random_table(1)}
  both = (rates.compare_sources(x, tables, TOKENS) for x in (p, repeated))
  once, twice = (select(x, "a", "b", by="pair").precision for x in both)
  assert (once.hits, once.total) == (twice.hits, twice.total)
  variance = once.rate * (1 - once.rate) / once.total
  assert twice.high - twice.low > 2 * np.sqrt(variance)


@pytest.mark.parametrize("predicted", [[], [2]])
def test_agreement_on_nothing_is_undefined(predicted):
  slots = [(0, 1)][: len(predicted)]
  p = make_predictions([np.array([0, 2, 1])], slots, predicted)
  tables = {"a": random_table(0), "b": random_table(1)}
  for a in rates.compare_sources(p, tables, TOKENS):
    assert counts(a) == ((0, 0), (0, 0)) and a.kappa is None
  empty = {
    name: SynonymTable.from_pairs([], TOKENS, source=name) for name in "ab"
  }
  for a in rates.compare_sources(random_predictions(0), empty, TOKENS):
    assert counts(a) == ((0, 0), (0, 0)) and a.kappa is None
  assert rates.compare_sources(p, {"alone": random_table(0)}, TOKENS) == ()
