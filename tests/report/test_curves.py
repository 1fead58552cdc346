"""Curves keep the means of the records, and have honest intervals."""

import json

import numpy as np
import pytest

from truenegs_jax.report import curves


def write_records(folder, records, more=""):
  lines = [json.dumps({"split": "train"} | record) + "\n" for record in records]
  (folder / "metrics.jsonl").write_text("".join(lines) + more)
  return curves.read_records(folder)


def test_points_are_the_means_of_their_records(tmp_path):
  values = np.random.default_rng(0).normal(size=1_003)
  records = [
    {"step": i + 1, "time": float(i), "total": value}
    for i, value in enumerate(values)
  ]
  splits = write_records(tmp_path, records).splits
  points = curves.thin_records(splits, 50)["train"]
  ends = points["step"]
  assert len(ends) == 50
  assert ends[-1] == 1_003
  for begin, end, mean in zip([0, *ends], ends, points["total"], strict=False):
    expected = values[int(begin) : int(end)].mean()
    assert mean == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_damaged_lines_are_counted_but_an_unfinished_one_is_not(tmp_path):
  good = [{"step": 1, "time": 0.0, "total": 1.0}]
  records = write_records(tmp_path, good, 'no record\n[]\n{"step": 2, "spl')
  assert records.num_damaged == 2
  assert len(records.splits["train"]["step"]) == 1


def test_hours_leave_out_the_time_between_two_processes(tmp_path):
  times = [0, 10, 20, 30, 100_000, 100_010]
  records = [
    {"step": i, "time": float(time)} for i, time in enumerate(times, start=1)
  ]
  hours = curves.count_hours(write_records(tmp_path, records).splits["train"])
  assert hours * 3600 == pytest.approx([10, 20, 30, 40, 50, 60])


@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_intervals_of_rates_contain_the_rate(spread):
  """In 95 % of the windows, also if the slots of a record are alike."""
  rng, rate, slots = np.random.default_rng(0), 0.01, 500
  hits = []
  for _ in range(300):
    p_N = np.full(40, rate)
    if spread:
      p_N = rng.gamma(1 / spread, rate * spread, size=40)
    share_N = rng.binomial(slots, np.minimum(p_N, 1.0)) / slots
    train = {"step": np.arange(1, 41), "corrected_of_slots": share_N}
    points = curves.thin_records({"train": train}, 1_000)["train"]
    low, high = (
      points["corrected_of_slots" + x][-1] for x in (curves.LOW, curves.HIGH)
    )
    hits.append(low <= 100 * rate <= high)
  assert 0.88 <= np.mean(hits) <= 0.99


def test_a_rate_has_an_interval_before_the_first_correction():
  share_N = np.zeros(100)
  share_N[-30:] = 0.01 * (np.arange(30) % 2)
  train = {"step": np.arange(1, 101), "corrected_of_slots": share_N}
  points = curves.thin_records({"train": train}, 1_000)["train"]
  name = "corrected_of_slots"
  assert points[name][50] == points[name + curves.LOW][50] == 0
  assert 0 < points[name + curves.HIGH][50] < 1


def test_null_and_absent_values_are_not_averaged(tmp_path):
  records = [
    {"step": 1, "time": 0.0, "total": 2.0},
    {"step": 2, "time": 1.0, "total": None},
    {"step": 3, "time": 2.0, "soft": 5.0},
    {"step": 4, "time": 3.0, "soft": None},
  ]
  splits = write_records(tmp_path, records).splits
  points = curves.thin_records(splits, 2)["train"]
  assert points["total"] == [2.0, None]
  assert points["soft"] == [None, 5.0]


@pytest.mark.parametrize("size, first", [(100, 20), (10, 5), (1, 1)])
def test_a_rate_begins_with_a_full_window(size, first):
  """A few records would have intervals that hide all others."""
  train = {"step": np.arange(1, size + 1), "corrected_of_slots": np.ones(size)}
  values = curves.thin_records({"train": train}, 1_000)["train"]
  rate = values["corrected_of_slots"]
  assert rate == [None] * (first - 1) + [100.0] * (size - first + 1)
