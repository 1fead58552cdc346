"""ModernBERT's encoder; tests/weights compare it with transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.models import encoder, modern, pretrain

CONFIG = encoder.EncoderConfig(
  vocab_size=tiny.V, **{**modern.FIELDS, **modern.VARIANTS["tiny"], "window": 5}
)


def test_initial_weights_are_those_of_modernbert():
  x_BxLxD, ones = jnp.ones((1, 2, CONFIG.width)), jnp.ones((1, 2), jnp.int32)

  @jax.jit
  def init():
    network, head = modern.Encoder(CONFIG), pretrain.DetectionHead(CONFIG)
    key = jax.random.key(0)
    return network.init(key, x_BxLxD, ones, None), head.init(key, x_BxLxD)

  network, head = (tree["params"] for tree in init())
  layer = network["layer_1"]
  for deviation, module in (
    (0.02, layer["qkv"]),
    (0.02, layer["ffn_gated"]),
    (0.01, layer["attention_output"]),
    (0.01, layer["ffn_output"]),
    (0.01, head["dense"]),
    (32**-0.5, head["output"]),
  ):
    assert 1.3 * deviation < np.abs(module["kernel"]).max() <= 2 * deviation


@pytest.mark.parametrize(
  ("variant", "millions"), [("base", 149.7), ("large", 395.9)]
)
def test_published_sizes_have_the_published_parameters(variant, millions):
  model = pretrain.make_bert(
    vocab_size=50_368, variant=variant, backbone="modern"
  )
  count = pretrain.count_parameters(pretrain.param_shapes(model))
  assert count / 1e6 == pytest.approx(millions, abs=0.05)
