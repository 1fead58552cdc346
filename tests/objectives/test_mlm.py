"""BERT's terms equal the oracle's."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle, tiny
from truenegs_jax.objectives import slot_predictions

ALL_ON = {"soft_weight": 1.0, "sentence_weight": 1.0}
case_of = functools.cache(oracle.make_case)


@pytest.mark.parametrize(
  ("layout", "train", "fields"),
  [
    ("bits", True, {"drop_prob": 0.25}),
    ("ids", True, {"smoothing": 0.3, "smoothing_by": "model", "unit": "word"}),
    ("ids", False, {"smoothing": 0.3, "smoothing_by": "balanced"}),
  ],
)
def test_all_terms_and_gradients_equal_the_oracle(layout, train, fields):
  recipe = oracle.make_options(**ALL_ON | fields)
  case = case_of(0, layout=layout)
  expected = oracle.check_terms(recipe, case, pair=False, train=train)
  false, wrong = expected["corrected_of_mismatches"]
  assert 0 < false < wrong < expected["corrected_of_slots"][1]
  assert ("mlm_hidden" in expected) != train
  oracle.check_gradients(recipe, case, pair=False)


def make_predictions_certain(case, tokens_BxL):
  """Makes the predictions of a case certain, and lists all pairs of tokens."""
  logits = case.params["logits"].copy()
  np.put_along_axis(logits, tokens_BxL[..., None], 30.0, axis=-1)
  listed_VxV = np.ones((tiny.V, tiny.V), bool)
  case = dataclasses.replace(case, listed_VxV=listed_VxV)
  return oracle.set_params(case, logits=logits)


def test_every_wrong_prediction_can_be_corrected_and_no_correct_one():
  tokens_BxL, last = case_of(1).tokens_BxL, tiny.V - 1
  recipe = oracle.make_options(strict_subword=False, **ALL_ON)
  wrong, right = (
    oracle.check_terms(
      recipe,
      make_predictions_certain(case_of(1), predicted_BxL),
      pair=False,
      train=False,
    )
    for predicted_BxL in (np.where(tokens_BxL == last, 5, last), tokens_BxL)
  )
  slots = right["mlm"][1]
  assert slots and wrong["mlm"] == (0, 0)
  assert wrong["corrected_of_mismatches"] == (slots, slots)
  assert right["corrected_of_mismatches"] == (0, 0)
  assert right["soft"] == (0, slots) and right["sentence"][0] == 0


def test_strict_subword_corrects_only_whole_words():
  """Position 7 precedes a piece; 11 and 17 end their document."""
  piece = int(oracle.PIECES[0])
  tokens_BxL = np.full((oracle.B, oracle.L), 6, np.int32)
  documents_BxL = np.ones_like(tokens_BxL)
  tokens_BxL[:, 0] = piece  # would follow the end of the row if it wrapped
  tokens_BxL[:, 8] = tokens_BxL[:, 12] = piece
  tokens_BxL[:, 18:] = piece
  documents_BxL[:, 12:], documents_BxL[2:, 18:] = 2, 0
  case = dataclasses.replace(
    case_of(2),
    tokens_BxL=tokens_BxL,
    documents_BxL=documents_BxL,
    edges_V=np.where(np.arange(oracle.V) == piece, 3, 2),
  )
  case = make_predictions_certain(case, np.full_like(tokens_BxL, 7))
  words = oracle.find_words(case)
  assert not words[:, 7:9].any() and words[:, 11].all()
  assert words[2:, 17].all() and not words[:2, 17:].any()
  for strict in (False, True):
    recipe = oracle.make_options(strict_subword=strict)
    expected = oracle.check_terms(recipe, case, pair=False, train=True)
    slots = oracle.draw_slots(recipe, case).slots
    kept = [not words[s.row, s.position] for s in slots]
    assert any(kept) and not all(kept)
    false = len(slots) - sum(kept) * strict
    assert expected["corrected_of_slots"] == (false, len(slots))


def test_weighted_sum_ignores_nan_without_weight():
  loss = jnp.array([1.0, jnp.nan, 3.0, jnp.inf])
  weight = jnp.array([1.0, 0.0, 0.5, 0.0])
  total, count = slot_predictions.weighted_sum(loss, weight)
  assert (float(total), float(count)) == (2.5, 1.5)
  assert total.dtype == count.dtype == jnp.float32
