"""Tests the paper's rows, and how changes of a text are shown."""

import pytest

from truenegs_jax.robustness import report
from truenegs_jax.robustness.report import mark_changes

LONG = " ".join(f"w{i}" for i in range(40))


@pytest.mark.parametrize(
  ("old", "new", "marked"),
  [
    (
      "Ann took a house.",
      "Ann take a home.",
      "Ann [took -> take] a [house -> home].",
    ),
    ("Who won?", "Who, won", "Who[+,] won[-?]"),
    ("a ( b ) c", "a (b)  d", "a (b) [c -> d]"),
    ("He didn't go", "He did not go", "He [didn't -> did not] go"),
    ("same", "same", "same"),
  ],
)
def test_changes_are_marked(old, new, marked):
  assert mark_changes(old, new) == marked


def test_long_unchanged_ranges_are_shortened():
  marked = mark_changes(f"{LONG} a {LONG} b", f"{LONG} x {LONG} y")
  tail, head = " ".join(LONG.split()[-8:]), " ".join(LONG.split()[:8])
  assert marked == f" ... {tail} [a -> x] {head} ... {tail} [b -> y]"


@pytest.mark.parametrize(
  ("title", "metrics", "em"),
  [
    ("SwapSynWordNet", ("em", "f1"), (80.67, 74.67)),
    ("AddSentDiverse-style", ("em", "f1"), (80.55, 25.60)),
    ("Synonym swap", ("em", "f1"), None),
    ("SwapSynWordNet", ("accuracy",), None),
  ],
)
def test_the_papers_rows_stand_only_beside_its_own_sets(title, metrics, em):
  paper = report.find_published(title, metrics)
  assert [paper["paper, small"]["em"]] == [em] if em else not paper


def test_the_rows_of_the_paper_are_whole_numbers_of_its_questions():
  for row in report.PAPER.values():
    for name, size in report.PAPER_SIZES.items():
      for value in row[name]["em"]:
        count = value * size / 100
        assert abs(count - round(count)) < 0.005 * size / 100 + 1e-9
