"""Tests which places small changes spare; test_contract.py has the rest."""

import pytest

from truenegs_jax.robustness import perturbations
from truenegs_jax.robustness.transformation import transform_all
from truenegs_jax.tasks.task import Example


@pytest.mark.parametrize(
  ("name", "text"),
  [
    ("typos", "Tesla from Paris had four million; NASA at 1st did many."),
    ("case", "ß 12, 中"),
    ("punctuation", "New York 4.5 St. Paul No. 1 U.S. Navy 1300 c. 5"),
    ("contractions", "There is n't what it is. That's been it; why didn't he?"),
  ],
)
def test_texts_without_a_safe_place_are_refused(name, text):
  transformation = perturbations.make_perturbation(name)
  for seed in range(5):
    example = Example("x", text, None, "x", "")
    result = transform_all([example], transformation, seed=seed)
    assert result.about["refused"] == {perturbations.NO_PLACE: 1}, (
      result.transformed
    )
