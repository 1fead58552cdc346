"""Predictions and samples of slots, and the sums over them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle
from truenegs_jax.objectives import slot_predictions
from truenegs_jax.runtime import rng

CASE = oracle.make_case(1)


def predict_case(recipe, *, train=False):
  bound = oracle.StubModel().bind({"params": CASE.params})
  inputs, keys_B = oracle.make_inputs(CASE), oracle.make_keys(CASE)
  return slot_predictions.mask_and_predict(
    bound, inputs, keys_B, recipe, train=train
  )


@pytest.mark.parametrize("prediction", ["argmax", "sample"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])  # without and with logits
@pytest.mark.parametrize("repeats", [False, True])
def test_predictions_and_samples_equal_the_oracle(
  repeats, smoothing, prediction
):
  recipe = oracle.make_options(
    repeats=repeats,
    prediction=prediction,
    smoothing=smoothing,
    sampling_temperature=9.0,
  )
  predictions, draws = predict_case(recipe), oracle.draw_slots(recipe, CASE)
  assert (predictions.logits_BxKxV is not None) == bool(smoothing)
  np.testing.assert_array_equal(predictions.masked_BxL, draws.masked_BxL)
  in_use = np.asarray(predictions.slots.weight_BxK) > 0
  for name, field in (
    ("sampled_BxK", "sampled"),
    ("predicted_BxK", "prediction"),
    ("inputs_BxK", "masked_as"),
  ):
    drawn = [getattr(slot, field) for slot in draws.slots]
    np.testing.assert_array_equal(
      np.asarray(getattr(predictions, name))[in_use], drawn
    )
  # Slots at one position hold one token.
  positions = {(s.row, s.position): s.prediction for s in draws.slots}
  assert (len(positions) < len(draws.slots)) == repeats
  filled = slot_predictions.predicted_sentences(
    oracle.make_inputs(CASE), predictions
  )
  expected_BxL = CASE.tokens_BxL.copy()
  for position, token in positions.items():
    expected_BxL[position] = token
  np.testing.assert_array_equal(filled["tokens"], expected_BxL)
  assert (filled["documents"] == CASE.documents_BxL).all()


def test_masks_samples_and_dropout_are_independent():
  """Neither masks nor samples depend on the others."""
  hot = oracle.make_options(sampling_temperature=9.0, prediction="sample")
  base = predict_case(hot)
  cold = predict_case(dataclasses.replace(hot, sampling_temperature=0.1))
  in_training = predict_case(hot, train=True)
  np.testing.assert_array_equal(base.masked_BxL, cold.masked_BxL)
  assert (base.sampled_BxK != cold.sampled_BxK).any()
  np.testing.assert_array_equal(base.sampled_BxK, in_training.sampled_BxK)


def test_dropout_has_keys_in_training_only():
  keys_B = oracle.make_keys(CASE)
  assert slot_predictions.dropout_keys(keys_B, 1, train=False) is None
  keys = [slot_predictions.dropout_keys(keys_B, i, train=True) for i in (1, 2)]
  assert (keys[0] == rng.purpose_keys(keys_B, 1)).all()
  assert (jax.random.key_data(keys[0]) != jax.random.key_data(keys[1])).any()


def test_weighted_sum_ignores_nan_without_weight():
  loss = jnp.array([1.0, jnp.nan, 3.0, jnp.inf])
  total, count = slot_predictions.weighted_sum(
    loss, jnp.array([1.0, 0.0, 0.5, 0.0])
  )
  assert (float(total), float(count)) == (2.5, 1.5)
  assert total.dtype == count.dtype == jnp.float32
