"""Tests rates against loops over slots, and their table."""

import numpy as np
import pytest

from support.small_predictions import (
  make_predictions,
  random_predictions,
  random_table,
  render,
)
from truenegs_jax.pretrain import cases
from truenegs_jax.stats.intervals import Rate


@pytest.mark.parametrize("seed", range(2))
def test_counts_equal_a_loop_over_slots(seed):
  p = random_predictions(seed, 500)
  table = random_table(seed)
  synonyms = {divmod(key, table.vocab_size) for key in table.keys_Q.tolist()}
  wrong = hits = 0
  with_slot, with_hit = set(), set()
  arrays = (p.sequence_M, p.gold_M, p.predicted_M, p.eligible_M)
  for t, gold, predicted, eligible in zip(*arrays, strict=True):
    with_slot.add(t)
    wrong += gold != predicted
    if gold != predicted and (gold, predicted) in synonyms and eligible:
      hits += 1
      with_hit.add(t)
  r = cases.count_corrections(p, table)
  assert len(with_slot) < len(p.sequences) and hits > 20
  assert (r.mismatch_rate.hits, r.mismatch_rate.total) == (hits, wrong)
  assert (r.slot_rate.hits, r.slot_rate.total) == (hits, len(p.gold_M))
  sequences = len(with_hit), len(with_slot)
  assert (r.sequence_rate.hits, r.sequence_rate.total) == sequences
  assert r.mismatch_rate.rate == pytest.approx(hits / wrong)


def test_rates_of_nothing_are_zero_with_a_full_interval():
  rows = [np.array([0, 2, 1], np.int32)]
  none = Rate(rate=0.0, low=0.0, high=1.0, hits=0, total=0)
  for slots, predicted in (([], []), ([(0, 1)], [2])):
    p = make_predictions(rows, slots, predicted)
    r = cases.count_corrections(p, random_table(0))
    assert r.mismatch_rate == none and r.slot_rate.total == len(slots)


@pytest.mark.parametrize(
  "steps, rows",
  [
    # Of a run of 162 steps, 6.25 % are 10.125, 12.5 % are 20.25.
    ([10, 81, 120], {0: "6.90 1.31", 1: "7.05 1.36", 2: "7.07 1.41"}),
    ([10, 82, 162], {0: "6.90 1.31", 2: "7.07 1.41"}),
    ([11, 20, 162], {1: "6.96 1.34", 2: "7.07 1.41"}),
    ([129, 130, 162], {1: "7.06 1.40", 2: "7.07 1.41"}),
    ([None], {0: "7.07 1.41"}),
  ],
)
def test_the_papers_table_2_is_beside_equal_shares_of_steps(steps, rows):
  checkpoints = []
  for i, step in enumerate(steps):
    r = cases.count_corrections(random_predictions(i, 400), random_table(i))
    percent = step and step / 1.62
    checkpoints.append(cases.CheckpointRates(step, percent, r))
  table = cases.make_rates_table(checkpoints, "wordnet")
  text = render(table)
  assert "…" not in text and all(x["Iter"] in text for x in table.rows)
  for i, (row, checkpoint) in enumerate(
    zip(table.rows, checkpoints, strict=True)
  ):
    assert row["BERT base"] == rows.get(i, "")
    r = checkpoint.rates
    for cell, rate in (
      (row["Iter"], r.sequence_rate),
      (row["Pred"], r.mismatch_rate),
    ):
      numbers = [f"{100 * x:.2f}" for x in (rate.rate, rate.low, rate.high)]
      assert cell == f"{numbers[0]} {numbers[1]}-{numbers[2]}"
