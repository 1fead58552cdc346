"""BERT's layers; test_backbones.py tests what all backbones have in common."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from support import tiny
from truenegs_jax.models import attention, encoder

CONFIG = encoder.EncoderConfig(
  vocab_size=tiny.V, max_positions=64, **encoder.VARIANTS["tiny"]
)


def test_a_layer_equals_its_numpy_reference():
  layer = encoder.Layer(CONFIG)
  rng = np.random.default_rng(0)
  x_BxLxD = rng.normal(size=(2, 5, CONFIG.width)).astype(np.float32)
  documents = jnp.array([[1, 1, 1, 1, 1], [1, 1, 2, 2, 0]])
  mask = attention.make_mask(attention.XLA, documents)
  p = jax.eval_shape(layer.init, jax.random.key(0), x_BxLxD, None, 1, mask)
  p = jax.tree.map(lambda a: np.float32(0.3 * rng.normal(size=a.shape)), p)
  output = jax.jit(lambda p: layer.apply(p, x_BxLxD, None, 1, mask))(p)
  p = jax.tree.map(np.float64, p)["params"]
  allowed = np.asarray(mask.allowed_Bx1xLxL)
  expected = layer_reference(p, np.float64(x_BxLxD), allowed)
  np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def layer_reference(p, x, allowed):
  """Computes a post-norm BERT layer in f64 (Devlin et al. 2019)."""

  def dense(name, x):
    return x @ p[name]["kernel"] + p[name]["bias"]

  def project_heads(name):
    return dense(name, x).reshape(2, 5, CONFIG.heads, -1).transpose(0, 2, 1, 3)

  q, k, v = map(project_heads, ("query", "key", "value"))
  scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
  scores = np.where(allowed, scores, -1e9)
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape)
  x = norm_reference(p["attention_norm"], x + dense("attention_output", mixed))
  h = dense("ffn_input", x)
  erf = np.vectorize(math.erf)
  h = h * 0.5 * (1 + erf(h / np.sqrt(2)))
  return norm_reference(p["ffn_norm"], x + dense("ffn_output", h))


def norm_reference(p, x):
  mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
  return (x - mean) / np.sqrt(variance + 1e-12) * p["scale"] + p["bias"]
