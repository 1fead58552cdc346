"""Curves keep the means of the records, and charts show them."""

import json
import math

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
  points = curves.thin_records(splits["train"], 50)
  ends = [x["step"] for x in points]
  assert len(ends) == 50
  assert ends[-1] == 1_003
  for begin, point in zip([0, *ends], points, strict=False):
    expected = values[int(begin) : int(point["step"])].mean()
    assert point["total"] == pytest.approx(expected)


def test_shares_become_percentages_and_one_loss_has_one_name(tmp_path):
  common = {"step": 1, "time": 0.0, "accuracy": 0.5, "corrected_rows": 0.25}
  records = [
    common | {"mlm": 3.0},
    common | {"split": "dev", "mlm": 3.0, "mlm_uncorrected": 4.0},
  ]
  splits, _ = write_records(tmp_path, records)
  [train], [dev] = splits["train"], splits["dev"]
  assert (train["accuracy"], train["corrected_rows"]) == (50, 25)
  assert (dev["accuracy"], dev["corrected_rows"]) == (0.5, 25)
  assert train["mlm_uncorrected"] == 3 and "mlm" not in train
  assert (dev["mlm"], dev["mlm_uncorrected"]) == (3, 4)
  [line] = curves.make_charts([curves.Curve({"train": [train]}, "a", "a")])[
    0
  ].lines
  assert line.style == "series-0 dots"  # a point is no line


@pytest.mark.parametrize(
  "values",
  [(0.0, 0.0), (5e-324, 0.0), (1e308, -1e308), (math.inf, 1.0), (7.0, 7.0001)],
)
def test_every_curve_can_be_drawn(values):
  points = [{"step": 10.0**i, "auc": x} for i, x in enumerate(values)]
  curve = curves.Curve({"train": points}, "a", "a")
  [chart] = curves.make_charts([curve])
  pixels = [y for _, y in chart.lines[0].points]
  assert all(8 <= y <= 190 for y in pixels)
  assert 1 <= len(chart.y_ticks) <= 8


def test_damaged_lines_are_counted_but_an_unfinished_one_is_not(tmp_path):
  good = [{"step": 1, "time": 0.0, "total": 1.0}]
  more = 'no record\n[]\n{"step": 2, "spl'
  splits, damaged = write_records(tmp_path, good, more)
  assert damaged == 2
  assert len(splits["train"]) == 1


def test_hours_leave_out_the_time_between_two_processes(tmp_path):
  times = [0, 10, 20, 30, 100_000, 100_010, 5, 15]  # two clocks
  records = [
    {"step": i, "time": float(time)} for i, time in enumerate(times, start=1)
  ]
  splits, _ = write_records(tmp_path, records)
  hours = curves.count_hours(splits["train"])
  assert hours * 3600 == pytest.approx(80)


def test_null_and_absent_values_are_not_averaged(tmp_path):
  records = [
    {"step": 1, "time": 0.0, "total": 2.0},
    {"step": 2, "time": 1.0, "total": None},
    {"step": 3, "time": 2.0, "soft": 5.0},
    {"step": 4, "time": 3.0, "soft": None},
  ]
  splits, _ = write_records(tmp_path, records)
  assert curves.thin_records(splits["train"], 2) == [
    {"step": 2, "total": 2.0},
    {"step": 4, "soft": 5.0},
  ]


def test_charts_place_values_between_the_ticks_of_their_axes(tmp_path):
  records = [
    {
      "step": step,
      "time": 0.0,
      "total": 9 - step / 100,
      "lr": 1e-4,
      "auc": None,
    }
    for step in range(1, 401)
  ]
  splits, _ = write_records(tmp_path, records)
  train = curves.thin_records(splits["train"], 10)
  points = {"train": train, "held_out": train[-1:]}
  guesses = {"total": {"chance": 7.0}, "lr": {}}
  charts = curves.make_charts(
    [
      curves.Curve(points, "a", "a", guesses),
      curves.Curve(points, "b", "b", guesses),
    ]
  )
  assert [x.title for x in charts] == [
    curves.PANELS[name] for name in ("total", "lr")
  ]
  chart, constant = charts
  styles = ["series-0", "series-0 dots", "series-1", "series-1 dots", "guess"]
  assert [line.style for line in chart.lines] == styles
  assert [line.last for line in chart.lines][-2:] == [pytest.approx(5.195), 7]
  assert [value for _, value in chart.x_ticks] == [100, 200, 300, 400]
  assert [value for _, value in chart.y_ticks] == [6, 7, 8]
  for axis, ticks, values in (
    (0, chart.x_ticks, [x["step"] for x in train]),
    (1, chart.y_ticks, [x["total"] for x in train]),
  ):
    pixels, known = zip(*ticks, strict=True)
    scale = np.polyfit(known, pixels, 1)
    shown = [point[axis] for point in chart.lines[0].points]
    assert shown == pytest.approx(np.polyval(scale, values), abs=0.2)
  assert 60 <= min(x for x, _ in chart.lines[0].points)
  assert {y for _, y in constant.lines[0].points} == {99.0}  # in the middle
