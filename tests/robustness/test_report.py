"""Tests the paper's rows."""

import pytest

from truenegs_jax.robustness import report


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
