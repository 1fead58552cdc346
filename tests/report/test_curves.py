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
  splits, _ = write_records(tmp_path, records)
  points = curves.thin_records(splits, 50)["train"]
  ends = points["step"]
  assert len(ends) == 50
  assert ends[-1] == 1_003
  for begin, end, mean in zip([0, *ends], ends, points["total"], strict=False):
    expected = values[int(begin) : int(end)].mean()
    assert mean == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_damaged_lines_are_counted_but_an_unfinished_one_is_not(tmp_path):
  good = [{"step": 1, "time": 0.0, "total": 1.0}]
  more = 'no record\n[]\n{"step": 2, "spl'
  splits, damaged = write_records(tmp_path, good, more)
  assert damaged == 2
  assert len(splits["train"]["step"]) == 1


def test_hours_leave_out_the_time_between_two_processes(tmp_path):
  times = [0, 10, 20, 30, 100_000, 100_010]
  records = [
    {"step": i, "time": float(time)} for i, time in enumerate(times, start=1)
  ]
  splits, _ = write_records(tmp_path, records)
  hours = curves.count_hours(splits["train"])
  assert hours * 3600 == pytest.approx([10, 20, 30, 40, 50, 60])


def test_null_and_absent_values_are_not_averaged(tmp_path):
  records = [
    {"step": 1, "time": 0.0, "total": 2.0},
    {"step": 2, "time": 1.0, "total": None},
    {"step": 3, "time": 2.0, "soft": 5.0},
    {"step": 4, "time": 3.0, "soft": None},
  ]
  splits, _ = write_records(tmp_path, records)
  points = curves.thin_records(splits, 2)["train"]
  assert points["total"] == [2.0, None]
  assert points["soft"] == [None, 5.0]
