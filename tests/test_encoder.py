"""The encoder looks at what it should and at nothing else."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from truenegs_jax import randomness
from truenegs_jax.models import encoder

CONFIG = encoder.EncoderConfig(
  vocab_size=tiny.V, max_positions=64, **encoder.VARIANTS["tiny"]
)


FIELDS = ("tokens", "types", "documents")


@functools.cache
def network():
  """Embeds and encodes `inputs`; wide random parameters."""
  embeddings, stack = encoder.Embeddings(CONFIG), encoder.Encoder(CONFIG)
  inputs = {name: jnp.zeros((1, 2), jnp.int32) for name in FIELDS}
  first, second = jax.random.split(jax.random.key(0))
  a = jax.jit(embeddings.init)(first, inputs, None)
  x = embeddings.apply(a, inputs, None)
  b = jax.jit(stack.init)(second, x, inputs["documents"], None)

  # At an initial deviation of 0.02 attention would hardly matter.
  a, b = jax.tree.map(lambda p: 5 * p, (a, b))

  @jax.jit
  def encode(inputs, keys_B=None):
    x = embeddings.apply(a, inputs, keys_B)
    return stack.apply(b, x, inputs["documents"], keys_B)

  return lambda inputs, keys_B=None: np.asarray(encode(inputs, keys_B))


def inputs_of(seed, rows=2, length=tiny.L):
  batch = tiny.make_batch(seed, rows, length)
  return {name: jnp.asarray(batch[name]) for name in FIELDS}


def test_packed_documents_equal_separate_rows():
  rng = np.random.default_rng(0)
  lengths = (7, 10, 4)
  documents = [rng.integers(5, tiny.V, n) for n in lengths]
  types = [np.arange(n) // 5 for n in lengths]

  def row(tokens, types, numbers):
    pad = (0, tiny.L - len(tokens))
    arrays = (tokens, np.minimum(types, 1), numbers)
    return {
      name: jnp.asarray(np.pad(x, pad)[None], jnp.int32)
      for name, x in zip(FIELDS, arrays, strict=True)
    }

  packed = network()(
    row(
      np.concatenate(documents),
      np.concatenate(types),
      np.repeat([1, 2, 3], lengths),
    )
  )[0]
  start = 0
  for tokens, kinds in zip(documents, types, strict=True):
    alone = network()(row(tokens, kinds, np.ones(len(tokens))))[0]
    np.testing.assert_allclose(
      packed[start : start + len(tokens)],
      alone[: len(tokens)],
      rtol=1e-5,
      atol=1e-5,
    )
    start += len(tokens)


def test_padding_content_changes_no_real_position():
  inputs = inputs_of(0)
  real = np.asarray(inputs["documents"]) != 0
  assert not real.all()
  junk = {
    "tokens": jnp.where(real, inputs["tokens"], 9),
    "types": jnp.where(real, inputs["types"], 1),
    "documents": inputs["documents"],
  }
  np.testing.assert_array_equal(network()(inputs)[real], network()(junk)[real])


def test_every_real_token_sees_every_other_of_its_document():
  inputs = inputs_of(1, rows=1, length=8)
  n = int((np.asarray(inputs["documents"]) != 0).sum())
  base = network()(inputs)[0]
  for i in range(n):
    changed = {**inputs, "tokens": inputs["tokens"].at[0, i].add(1)}
    moved = np.abs(network()(changed)[0, :n] - base[:n]).max(axis=-1)
    assert (moved > 1e-6).all(), f"token {i}"


def test_positions_and_types_matter():
  inputs = inputs_of(2)
  base = network()(inputs)
  swapped = {**inputs, "tokens": inputs["tokens"].at[0, 1:3].set(9)}
  turned = {**swapped, "tokens": swapped["tokens"].at[0, 2].set(10)}
  other = {**swapped, "tokens": swapped["tokens"].at[0, 1].set(10)}
  assert np.abs(network()(turned)[0, 0] - network()(other)[0, 0]).max() > 1e-6
  types = {**inputs, "types": inputs["types"].at[0, 1].set(1)}
  assert np.abs(network()(types) - base)[0].max() > 1e-4


def test_positions_restart_with_each_document():
  documents_BxL = jnp.array(
    [[1, 1, 1, 2, 2, 3, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]]
  )
  np.testing.assert_array_equal(
    encoder.document_positions(documents_BxL),
    [[0, 1, 2, 0, 1, 0, 0, 1], [0, 1, 2, 3, 4, 5, 6, 7]],
  )


def test_a_row_of_padding_is_finite_in_value_and_gradient():
  inputs = {name: jnp.zeros((1, 8), jnp.int32) for name in FIELDS}
  stack = encoder.Encoder(CONFIG)
  x = jax.random.normal(jax.random.key(1), (1, 8, CONFIG.embedding_size))
  init = lambda key: stack.init(key, x, inputs["documents"], None)
  b = jax.jit(init)(jax.random.key(0))
  total = lambda b: stack.apply(b, x, inputs["documents"], None).sum()
  value, grads = jax.jit(jax.value_and_grad(total))(b)
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_a_layer_equals_a_numpy_layer():
  layer = encoder.Layer(CONFIG, first_site=1)
  rng = np.random.default_rng(0)
  x_BxLxD = rng.normal(size=(2, 5, CONFIG.width)).astype(np.float32)
  documents = jnp.array([[1, 1, 1, 1, 1], [1, 1, 2, 2, 0]])
  allowed = encoder.attention_mask(documents)
  p = layer.init(jax.random.key(0), x_BxLxD, allowed, None)
  p = jax.tree.map(
    lambda a: jnp.asarray(rng.normal(size=a.shape), jnp.float32) * 0.3, p
  )
  got = layer.apply(p, x_BxLxD, allowed, None)
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), p)["params"]
  want = numpy_layer(p, x_BxLxD.astype(np.float64), np.asarray(allowed))
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def numpy_layer(p, x, allowed):
  """Post-norm BERT layer in f64 (Devlin et al. 2019)."""
  dense = lambda name, x: x @ p[name]["kernel"] + p[name]["bias"]
  heads = lambda x: x.reshape(2, 5, CONFIG.heads, -1).transpose(0, 2, 1, 3)
  q, k, v = (heads(dense(name, x)) for name in ("query", "key", "value"))
  scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
  scores = np.where(allowed, scores, -1e9)
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape)
  x = numpy_norm(p["attention_norm"], x + dense("attention_output", mixed))
  h = dense("ffn_input", x)
  erf = np.vectorize(math.erf)
  h = h * 0.5 * (1 + erf(h / np.sqrt(2)))
  return numpy_norm(p["ffn_norm"], x + dense("ffn_output", h))


def numpy_norm(p, x):
  mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
  return (x - mean) / np.sqrt(variance + 1e-12) * p["scale"] + p["bias"]


def test_layer_norm_keeps_small_variances():
  x = 100 + 1e-3 * jnp.arange(8, dtype=jnp.float32)[None]
  norm = encoder.layer_norm()
  y = norm.apply(norm.init(jax.random.key(0), x), x)
  assert float(y.std()) == pytest.approx(1.0, rel=1e-2)


def test_gelu_is_the_exact_one():
  # At 2 the tanh form differs by 1.6e-4.
  assert float(encoder.gelu(jnp.array(2.0))) == pytest.approx(
    1.9544997361, abs=2e-6
  )


def test_dropout_acts_at_every_site():
  """With one kind of dropout on, the other rate being zero, values change."""
  inputs = inputs_of(3)
  keys_B = randomness.row_keys(jax.random.key(0), 0, jnp.arange(2))
  for rates in (dict(dropout=0.0), dict(attention_dropout=0.0), {}):
    config = dataclasses.replace(CONFIG, **rates)
    stack = encoder.Encoder(config)
    x = jax.random.normal(jax.random.key(1), (2, tiny.L, 16))
    p = stack.init(jax.random.key(0), x, inputs["documents"], None)
    quiet = stack.apply(p, x, inputs["documents"], None)
    noisy = stack.apply(p, x, inputs["documents"], keys_B)
    assert np.abs(np.asarray(noisy - quiet)).max() > 1e-4


def test_no_two_dropout_sites_of_a_network_share_a_number(monkeypatch):
  seen = []
  true_dropout = randomness.dropout

  def note(x, keys_B, *, rate, site):
    seen.append(site)
    return true_dropout(x, keys_B, rate=rate, site=site)

  monkeypatch.setattr(randomness, "dropout", note)
  inputs = inputs_of(0)
  embeddings, stack = encoder.Embeddings(CONFIG), encoder.Encoder(CONFIG)
  keys_B = randomness.row_keys(jax.random.key(0), 0, jnp.arange(2))
  x, _ = embeddings.init_with_output(jax.random.key(0), inputs, keys_B)
  stack.init(jax.random.key(0), x, inputs["documents"], keys_B)
  assert len(seen) == len(set(seen)) == 1 + 3 * CONFIG.layers


def test_half_precision_stays_half_between_layers():
  config = dataclasses.replace(CONFIG, dtype="bfloat16")
  stack = encoder.Encoder(config)
  x = jnp.zeros((1, 4, 16), jnp.bfloat16)
  documents = jnp.ones((1, 4), jnp.int32)
  p = stack.init(jax.random.key(0), x, documents, None)
  assert stack.apply(p, x, documents, None).dtype == jnp.bfloat16
  assert {leaf.dtype for leaf in jax.tree.leaves(p)} == {jnp.dtype("float32")}
