"""Slots are filled by the model's own logits, once per place."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle
from truenegs_jax.objectives import slot_predictions
from truenegs_jax.runtime import rng

CASE = oracle.make_case(1)


def guess(recipe, *, train=False):
  bound = oracle.StubModel().bind({"params": CASE.params})
  inputs, keys_B = oracle.make_inputs(CASE), oracle.make_keys(CASE)
  return slot_predictions.mask_and_predict(
    bound, inputs, keys_B, recipe, train=train
  )


@pytest.mark.parametrize("prediction", ["argmax", "sample"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])  # without, and with logits
@pytest.mark.parametrize("repeats", [False, True])
def test_slots_are_filled_as_the_oracle_draws_them(
  repeats, smoothing, prediction
):
  recipe = oracle.make_options(
    repeats=repeats,
    prediction=prediction,
    smoothing=smoothing,
    sampling_temperature=9.0,
  )
  got, want = guess(recipe), oracle.draw_slots(recipe, CASE)
  assert (got.logits_BxKxV is not None) == bool(smoothing)
  np.testing.assert_array_equal(got.masked_BxL, want.masked_BxL)
  used = np.asarray(got.slots.weight_BxK) > 0
  for name, field in (
    ("sampled_BxK", "sampled"),
    ("predicted_BxK", "prediction"),
    ("inputs_BxK", "masked_as"),
  ):
    drawn = [getattr(slot, field) for slot in want.slots]
    np.testing.assert_array_equal(np.asarray(getattr(got, name))[used], drawn)
  # Slots of one place hold one token, which is what the row then holds.
  places = {(s.row, s.position): s.prediction for s in want.slots}
  assert (len(places) < len(want.slots)) == repeats
  filled = slot_predictions.predicted_sentences(oracle.make_inputs(CASE), got)
  expected_BxL = CASE.tokens_BxL.copy()
  for place, token in places.items():
    expected_BxL[place] = token
  np.testing.assert_array_equal(filled["tokens"], expected_BxL)
  assert (filled["documents"] == CASE.documents_BxL).all()


def test_every_draw_has_a_purpose_of_its_own():
  """Masks do not depend on the sampling, nor either on dropout."""
  hot = oracle.make_options(sampling_temperature=9.0, prediction="sample")
  base = guess(hot)
  cold = guess(dataclasses.replace(hot, sampling_temperature=0.1))
  trained = guess(hot, train=True)
  np.testing.assert_array_equal(base.masked_BxL, cold.masked_BxL)
  assert (base.sampled_BxK != cold.sampled_BxK).any()
  np.testing.assert_array_equal(base.sampled_BxK, trained.sampled_BxK)


def test_dropout_has_keys_in_training_alone():
  keys_B = oracle.make_keys(CASE)
  assert slot_predictions.dropout_keys(keys_B, 1, train=False) is None
  keys = [slot_predictions.dropout_keys(keys_B, i, train=True) for i in (1, 2)]
  assert (keys[0] == rng.purpose_keys(keys_B, 1)).all()
  assert (jax.random.key_data(keys[0]) != jax.random.key_data(keys[1])).any()


def test_a_sum_leaves_out_what_has_no_weight_even_if_it_is_nan():
  loss = jnp.array([1.0, jnp.nan, 3.0, jnp.inf])
  total, count = slot_predictions.weighted_sum(
    loss, jnp.array([1.0, 0.0, 0.5, 0.0])
  )
  assert (float(total), float(count)) == (2.5, 1.5)
  assert total.dtype == count.dtype == jnp.float32
