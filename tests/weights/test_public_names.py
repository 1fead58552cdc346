"""Names of weights and texts without folders."""

import pytest

from truenegs_jax.weights import model_card


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("/home/me/my texts/*.txt weight=2, ~/b.txt", "*.txt weight=2, b.txt"),
    (
      "wordnet | vectors path=/x y/g.txt top=10",
      "wordnet | vectors path=g.txt top=10",
    ),
    (
      "hf:a/b revision=refs/convert/parquet",
      "hf:a/b revision=refs/convert/parquet",
    ),
    ("hf:/data/mine, ('texts/a.txt', '/b/c')", "mine, ('texts/a.txt', 'c')"),
    ("hf:a/b split=train dev=../x/dev.csv", "hf:a/b split=train dev=dev.csv"),
    ("google/electra@main, /w/generator", "google/electra@main, generator"),
  ],
)
def test_folders_are_hidden(text, expected):
  assert model_card.hide_folders(text) == expected
