"""Curves keep the means of the records, and charts show them."""

import numpy as np
import pytest

from support.texts import write_lines
from truenegs_jax.report import curves


def test_points_are_the_means_of_the_values_that_there_are():
  values = [{"total": 1.0}, {"total": 3.0}, {"total": None}, {"soft": 5.0}]
  records = [{"step": i + 1} | x for i, x in enumerate(values)]
  assert curves.thin_records(records, 2) == [
    {"step": 2, "total": 2.0},
    {"step": 4, "soft": 5.0},
  ]


def test_shares_become_percentages_and_one_loss_has_one_name(tmp_path):
  common = {"step": 1, "accuracy": 0.5, "corrected_rows": 0.25, "mlm": 3.0}
  records = [
    common | {"split": "train"},
    common | {"split": "dev", "mlm_uncorrected": 4.0},
  ]
  write_lines(tmp_path / "metrics.jsonl", records)
  splits = curves.read_records(tmp_path)
  [train], [dev] = splits["train"], splits["dev"]
  assert (train["accuracy"], train["corrected_rows"]) == (50, 25)
  assert (dev["accuracy"], dev["corrected_rows"]) == (0.5, 25)
  assert train["mlm_uncorrected"] == 3 and "mlm" not in train
  assert (dev["mlm"], dev["mlm_uncorrected"]) == (3, 4)


@pytest.mark.parametrize("values", [(0.0, 0.0), (5e-324, 0.0), (1e308, -1e308)])
def test_every_curve_can_be_drawn(values):
  points = [{"step": 10.0**i, "auc": x} for i, x in enumerate(values)]
  [chart] = curves.make_charts([curves.Curve({"train": points}, "a", "a")])
  pixels = [y for _, y in chart.lines[0].points]
  assert all(8 <= y <= 190 for y in pixels)
  assert 1 <= len(chart.y_ticks) <= 8


def test_charts_place_values_between_the_ticks_of_their_axes():
  records = [
    {"step": step, "total": 9 - step / 100, "lr": 1e-4, "auc": None}
    for step in range(1, 401)
  ]
  train = curves.thin_records(records, 10)
  points = {"train": train, "held_out": train[-1:]}
  charts = curves.make_charts([curves.Curve(points, x, x) for x in "ab"])
  titles = [curves.PANELS[name] for name in ("total", "lr")]
  assert [x.title for x in charts] == titles
  chart, constant = charts
  styles = ["series-0", "series-0 dots", "series-1", "series-1 dots"]
  assert [line.style for line in chart.lines] == styles
  assert chart.lines[-1].last == pytest.approx(5.195)
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
