"""Options of a run's words, and sums over slots."""

import types

import jax.numpy as jnp
import pytest

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs import electra_demo
from truenegs_jax.objectives import slot_predictions
from truenegs_jax.pretrain import plan


@pytest.mark.parametrize(
  ("vocab", "is_strict"), [(("big", "##ly"), False), (("Ġbig", "ly"), True)]
)
def test_pieces_are_spared_where_spaces_are_marked(vocab, is_strict):
  c = electra_demo.get_config()
  c.negatives.strict_subword = False
  tokenizer = types.SimpleNamespace(mask=4, cls=2, sep=3, vocab=vocab)
  run = plan.make_run(PretrainConfig.read(c), tokenizer)
  assert run.options.strict_subword == is_strict


def test_weighted_sum_ignores_nan_without_weight():
  loss = jnp.array([1.0, jnp.nan, 3.0, jnp.inf])
  total, count = slot_predictions.weighted_sum(
    loss, jnp.array([1.0, 0.0, 0.5, 0.0])
  )
  assert (float(total), float(count)) == (2.5, 1.5)
  assert total.dtype == count.dtype == jnp.float32
