"""Predictions and samples of slots, and the sums over them."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs import electra_demo
from truenegs_jax.objectives import slot_predictions
from truenegs_jax.pretrain import plan

CASE = oracle.make_case(1)


def predict_case(recipe, *, train=False):
  bound = oracle.StubModel().bind({"params": CASE.params})
  inputs, keys_B = oracle.make_inputs(CASE), oracle.make_keys(CASE)
  return slot_predictions.mask_and_predict(
    bound, inputs, keys_B, {}, recipe, train=train
  )


@pytest.mark.parametrize("prediction", ["argmax", "sample"])
def test_predictions_and_samples_equal_the_oracle(prediction):
  recipe = oracle.make_options(prediction=prediction)
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


@pytest.mark.parametrize(
  ("vocab", "is_strict"), [(("big", "##ly"), False), (("Ġbig", "ly"), True)]
)
def test_pieces_are_spared_where_spaces_are_marked(vocab, is_strict):
  c = electra_demo.get_config()
  c.negatives.strict_subword = False
  tokenizer = types.SimpleNamespace(mask=4, cls=2, sep=3, vocab=vocab)
  run = plan.make_run(PretrainConfig.read(c), tokenizer)
  assert run.options.strict_subword == is_strict


def test_masks_and_samples_do_not_depend_on_dropout():
  recipe = oracle.make_options(prediction="sample")
  base, in_training = predict_case(recipe), predict_case(recipe, train=True)
  np.testing.assert_array_equal(base.masked_BxL, in_training.masked_BxL)
  np.testing.assert_array_equal(base.sampled_BxK, in_training.sampled_BxK)


def test_weighted_sum_ignores_nan_without_weight():
  loss = jnp.array([1.0, jnp.nan, 3.0, jnp.inf])
  total, count = slot_predictions.weighted_sum(
    loss, jnp.array([1.0, 0.0, 0.5, 0.0])
  )
  assert (float(total), float(count)) == (2.5, 1.5)
  assert total.dtype == count.dtype == jnp.float32
