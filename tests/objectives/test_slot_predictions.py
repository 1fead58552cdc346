"""Predictions and samples of slots, and the sums over them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle
from truenegs_jax.objectives import slot_predictions

CASE = oracle.make_case(1)


def predict_case(recipe, *, train=False):
  bound = oracle.StubModel().bind({"params": CASE.params})
  inputs, keys_B = oracle.make_inputs(CASE), oracle.make_keys(CASE)
  return slot_predictions.mask_and_predict(
    bound, inputs, keys_B, {}, recipe, train=train
  )


@pytest.mark.parametrize("prediction", ["argmax", "sample"])
def test_predictions_and_samples_equal_the_oracle(prediction):
  recipe = oracle.make_options(prediction=prediction, sampling_temperature=9.0)
  predictions, draws = predict_case(recipe), oracle.draw_slots(recipe, CASE)
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


def test_masks_samples_and_dropout_are_independent():
  """Neither masks nor samples depend on the others."""
  hot = oracle.make_options(sampling_temperature=9.0, prediction="sample")
  base = predict_case(hot)
  cold = predict_case(dataclasses.replace(hot, sampling_temperature=0.1))
  in_training = predict_case(hot, train=True)
  np.testing.assert_array_equal(base.masked_BxL, cold.masked_BxL)
  assert (base.sampled_BxK != cold.sampled_BxK).any()
  np.testing.assert_array_equal(base.sampled_BxK, in_training.sampled_BxK)


def test_weighted_sum_ignores_nan_without_weight():
  loss = jnp.array([1.0, jnp.nan, 3.0, jnp.inf])
  total, count = slot_predictions.weighted_sum(
    loss, jnp.array([1.0, 0.0, 0.5, 0.0])
  )
  assert (float(total), float(count)) == (2.5, 1.5)
  assert total.dtype == count.dtype == jnp.float32
