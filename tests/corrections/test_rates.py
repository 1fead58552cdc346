"""Tests rates and agreements of sources against loops over slots."""

import collections
import itertools
import tarfile

import numpy as np
import pytest

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
from truenegs_jax.stats.intervals import Rate
from truenegs_jax.synonyms import wordnet


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
  assert (r.mismatch_rate.hits, r.mismatch_rate.total) == (hits, wrong)
  assert (r.slot_rate.hits, r.slot_rate.total) == (hits, len(p.gold_M))
  sequences = len(with_hit), len(with_slot)
  assert (r.sequence_rate.hits, r.sequence_rate.total) == sequences
  assert r.mismatch_rate.rate == pytest.approx(hits / wrong)
  assert {(x.gold, x.predicted): x.count for x in r.pairs} == pairs
  assert [x.count for x in r.pairs] == sorted(pairs.values(), reverse=True)
  assert rates.count_corrections(p, table, TOKENS, top=2).pairs == r.pairs[:2]


@pytest.mark.parametrize("seed", range(3))
def test_classes_partition_the_slots_by_gold_token(seed):
  p, table = random_predictions(seed), random_table(seed)
  rng = np.random.default_rng(seed)
  classes = rng.choice(rates.TOKEN_CLASSES[:4], len(TOKENS)).tolist()
  r = rates.count_corrections(p, table, TOKENS, token_classes=classes)
  corrected_M = table.contains(p.gold_M, p.predicted_M) & p.mismatch_M
  corrected_M &= p.eligible_M
  assert [group.name for group in r.by_speech] == [*rates.TOKEN_CLASSES]
  for group in r.by_speech:
    in_M = np.array([classes[v] == group.name for v in p.gold_M.tolist()])
    assert group.slot_rate.total == in_M.sum()
    assert group.mismatch_rate.total == (in_M & p.mismatch_M).sum()
    assert group.mismatch_rate.hits == (in_M & corrected_M).sum()
  assert sum(x.slot_rate.total for x in r.by_speech) == len(p.gold_M)


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
  none = Rate(rate=0.0, low=0.0, high=1.0, hits=0, total=0)
  table = random_table(0)
  for slots, predicted in (([], []), ([(0, 1)], [2])):
    p = make_predictions(rows, slots, predicted)
    r = rates.count_corrections(p, table, TOKENS)
    assert r.mismatch_rate == none and r.slot_rate.total == len(slots)
    assert r.pairs == ()
  r = rates.count_corrections(make_predictions([], [], []), table, TOKENS)
  assert r.slot_rate == none


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


@pytest.mark.parametrize("seed", range(3))
def test_agreements_equal_a_loop_over_slots(seed):
  p = random_predictions(seed, 100)
  tables = {name: random_table(seed + i) for i, name in enumerate("abc")}
  agreements = rates.compare_sources(p, tables, TOKENS)
  precisions = {(a.source, a.judge, a.golds): a.precision for a in agreements}
  synonyms = {name: id_pairs(table) for name, table in tables.items()}
  golds_of = {name: {g for g, _ in pairs} for name, pairs in synonyms.items()}
  mismatches = []
  for _, gold, predicted, eligible in iterate_slots(p):
    if gold != predicted and eligible and not TOKENS[gold].startswith("##"):
      mismatches.append((gold, predicted))
  for a, b in itertools.permutations("abc", 2):
    for golds in ("all", "shared"):
      units = mismatches
      if golds == "shared":
        units = [u for u in units if u[0] in golds_of[a] & golds_of[b]]
      of_a = [u for u in units if u in synonyms[a]]
      both = sum(u in synonyms[b] for u in of_a)
      precision = precisions.pop((a, b, golds))
      assert (precision.hits, precision.total) == (both, len(of_a))
      assert precision.low <= precision.rate <= precision.high
  assert not precisions


@pytest.mark.parametrize("predicted", [[], [2]])
def test_agreement_on_nothing_is_undefined(predicted):
  slots = [(0, 1)][: len(predicted)]
  p = make_predictions([np.array([0, 2, 1])], slots, predicted)
  tables = {"a": random_table(0), "b": random_table(1)}
  for a in rates.compare_sources(p, tables, TOKENS):
    assert (a.precision.hits, a.precision.total) == (0, 0)
  assert rates.compare_sources(p, {"alone": random_table(0)}, TOKENS) == ()
