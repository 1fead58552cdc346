"""Tests how reports show the changes of a text."""

import pytest

from truenegs_jax.robustness.mark_changes import mark_changes

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
