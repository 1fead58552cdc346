"""Sources as judges of one another: an example by hand, then loops."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from support.small_predictions import (
  TOKENS,
  permuted,
  predictions,
  random_predictions,
  random_table,
  rendered,
  same,
)
from truenegs_jax.corrections import sources_compared
from truenegs_jax.synonyms.table import build_table


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
  judgements = sources_compared.compare(*by_hand())
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
def test_counts_are_those_of_a_loop_over_slots(seed):
  p = random_predictions(seed, 100)
  tables = {name: random_table(seed + i) for i, name in enumerate("abc")}
  judgements = sources_compared.compare(p, tables, TOKENS)
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
  for j in sources_compared.compare(random_predictions(0, 100), tables, TOKENS):
    assert j.precision.rate == j.recall.rate == 1 and j.kappa == 1
    assert 0 < j.precision.low < 0.99


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_lines_and_slots_changes_nothing(seed):
  p = random_predictions(seed)
  tables = {name: random_table(seed + i) for i, name in enumerate("abc")}
  assert same(
    sources_compared.compare(p, tables, TOKENS),
    sources_compared.compare(permuted(p, seed), tables, TOKENS),
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
      sources_compared.compare(x, tables, TOKENS), "a", "b", by="pair"
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
  for j in sources_compared.compare(p, tables, TOKENS):
    assert counts(j) == ((0, 0), (0, 0)) and j.kappa is None
  empty = {name: build_table([], TOKENS, source=name) for name in "ab"}
  for j in sources_compared.compare(random_predictions(0), empty, TOKENS):
    assert counts(j) == ((0, 0), (0, 0)) and j.kappa is None
  assert sources_compared.compare(p, {"alone": random_table(0)}, TOKENS) == ()


def test_a_report_is_json_and_fits_a_terminal():
  glove = "vectors path=glove.6B.50d.txt top=10"
  names = ("wordnet", glove, "omw")
  tables = {name: random_table(i) for i, name in enumerate(names)}
  judgements = sources_compared.compare(
    random_predictions(0, 3000), tables, TOKENS
  )
  assert json.dumps([dataclasses.asdict(j) for j in judgements])
  for golds, by in itertools.product(("all", "shared"), ("occurrence", "pair")):
    table = sources_compared.show_judgements(judgements, golds=golds, by=by)
    assert table.row_count == 6
    text = rendered(table)
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    j = select(judgements, "wordnet", "omw", golds, by)
    assert f"{j.precision.hits:,}/{j.precision.of:,}" in text
    assert f"{j.precision.rate:.2%}" in text and f"{j.kappa:.2f}" in text
    assert f"vectors: {glove}" in text and "wordnet:" not in text
    assert _sources(text) == list(
      itertools.permutations(("wordnet", "vectors", "omw"), 2)
    )


@pytest.mark.parametrize(
  "names",
  [
    ("pairs path=one.tsv", "pairs path=two.tsv"),
    ("wordnet pos=n | vectors path=a", "omw path=b"),
  ],
)
def test_sources_of_one_name_or_a_long_one_go_by_letters(names):
  tables = {name: random_table(i) for i, name in enumerate(names)}
  judgements = sources_compared.compare(random_predictions(0), tables, TOKENS)
  text = rendered(sources_compared.show_judgements(judgements))
  legend = [line.strip() for line in text.splitlines()[-2:]]
  assert legend == [f"A: {names[0]}", f"B: {names[1]}"]
  assert _sources(text) == [("A", "B"), ("B", "A")]


def _sources(text):
  """Source and judge of every line of a printed table."""
  rows = [line.split("│") for line in text.splitlines() if "│" in line]
  return [(source.strip(), judge.strip()) for _, source, judge, *_ in rows]
