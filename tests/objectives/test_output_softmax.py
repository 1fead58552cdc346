"""The fused vocabulary head is the plain one, and draws from its softmax."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support import tiny
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import masking, output_softmax
from truenegs_jax.runtime import rng as rng_lib

B, K, E = 6, 4, 8
SIZES = (
  output_softmax.BLOCK - 1,
  output_softmax.BLOCK,
  3 * output_softmax.BLOCK + 5,
)
V = SIZES[-1]
predict, sample = (
  jax.jit(output_softmax.predict),
  jax.jit(output_softmax.sample),
)
CHUNKS = (24, 12, 5)


def keys_of(rows):
  return rng_lib.row_keys(jax.random.key(0), 0, jnp.asarray(rows))


@functools.cache
def case_of(size=V, dtype="float32"):
  """Vectors, table, bias, gold tokens, the slots' weights and their keys."""
  rng = np.random.default_rng(size)
  normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  gold_BxK = jnp.asarray(rng.integers(0, size, (B, K)), jnp.int32)
  layer = normal(size, E), normal(size)
  weight_BxK = normal(B, K).at[0].set(0.0)  # of all signs
  return normal(B, K, E).astype(dtype), *layer, gold_BxK, weight_BxK


def logits_of(x_BxKxE, word_VxE, bias_V):
  return jnp.einsum(
    "bke,ve->bkv",
    x_BxKxE,
    word_VxE.astype(x_BxKxE.dtype),
    preferred_element_type=jnp.float32,
  ) + bias_V.reshape(1, 1, -1)


@functools.partial(jax.jit, static_argnames=("chunk", "temperature"))
def fused(case, chunk, temperature=1.0):
  """What `read` gives, and the gradients of a weighted sum of its losses."""
  *inputs, gold_BxK, weight_BxK = case

  def loss(*inputs):
    output = output_softmax.compute(
      *inputs,
      gold_BxK,
      keys_of(range(B)),
      temperature=temperature,
      chunk=chunk,
    )
    return (output.loss_BxK * weight_BxK).sum(), vars(output)

  return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*inputs)


@functools.partial(jax.jit, static_argnames="temperature")
def plain(case, temperature=1.0):
  """The same, by whole logits and optax."""
  *inputs, gold_BxK, weight_BxK = case

  def loss(*inputs):
    logits_BxKxV = logits_of(*inputs)
    loss_BxK = optax.softmax_cross_entropy_with_integer_labels(
      logits_BxKxV, gold_BxK
    )
    sampled_BxK = output_softmax.sample(
      logits_BxKxV, keys_of(range(B)), temperature
    )
    output = {"loss_BxK": loss_BxK, "sampled_BxK": sampled_BxK}
    output["predicted_BxK"] = jnp.argmax(logits_BxKxV, axis=-1)
    return (loss_BxK * weight_BxK).sum(), output

  return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*inputs)


def assert_same(a, b, tolerance=1e-5):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    if x.dtype == jnp.int32:
      np.testing.assert_array_equal(x, y)
    else:
      x, y = np.float32(x), np.float32(y)
      np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
  ("size", "chunk"), [(size, 0) for size in SIZES] + [(V, c) for c in CHUNKS]
)
def test_loss_prediction_draw_and_gradients_are_those_of_the_plain_form(
  size, chunk
):
  case = case_of(size)
  assert_same(fused(case, chunk, 1.5), plain(case, 1.5))


def test_half_precision_is_that_of_the_products_alone():
  case = case_of(dtype="bfloat16")
  (got, output), (want, expected) = fused(case, 5), plain(case)
  assert_same(output, expected)
  assert_same(got[1:], want[1:], 0.05)  # f32, of a gradient in half precision
  assert got[0].dtype == jnp.bfloat16
  assert_same(got[0], want[0], 0.1)


def test_linearized_and_transposed_it_gives_the_same_gradient():
  *inputs, gold_BxK, weight_BxK = case_of()
  loss = lambda *inputs: (
    output_softmax.compute(
      *inputs, gold_BxK, keys_of(range(B)), chunk=6
    ).loss_BxK
    * weight_BxK
  ).sum()

  @jax.jit
  def gradients(*inputs):
    _, push = jax.linearize(loss, *inputs)
    return jax.linear_transpose(push, *inputs)(jnp.ones(()))

  assert_same(gradients(*inputs), plain(case_of())[0])


# --- predictions --------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_prediction_is_the_likeliest_token_and_of_equals_the_first(size):
  rng = np.random.default_rng(0)
  logits = rng.integers(0, 4, (8, 50, size)).astype(np.float32)  # many equals
  logits[:, :25] = rng.normal(size=(8, 25, size)) - 1e4  # and far below 0
  got = predict(jnp.asarray(logits))
  assert got.dtype == jnp.int32
  np.testing.assert_array_equal(got, logits.argmax(axis=-1))


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_logits_that_are_none_give_some_token(value):
  found = []
  for at in (V - 1, slice(None)):
    logits = jnp.zeros((B, K, V)).at[..., at].set(value)
    found += [predict(logits), sample(logits, keys_of(range(B)), 1.0)]
  x_BxKxE, *others = case_of()
  for at in ((0, 0, 0), slice(None)):
    _, output = fused((x_BxKxE.at[at].set(value), *others), 0)
    found += [output["predicted_BxK"], output["sampled_BxK"]]
  for token_BxK in found:
    assert ((token_BxK >= 0) & (token_BxK < V)).all()


# --- draws --------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("vocab", [12, 2 * output_softmax.BLOCK + 3])
def test_samples_are_as_frequent_as_the_softmax_says(vocab, temperature):
  rows, slots = 128, 400
  logits_V = np.random.default_rng(0).normal(size=vocab).astype(np.float32)
  logits = jnp.broadcast_to(jnp.asarray(logits_V), (rows, slots, vocab))
  got = np.asarray(sample(logits, keys_of(range(rows)), temperature))
  p_V = np.exp(logits_V.astype(np.float64) / temperature)
  expected = p_V / p_V.sum() * got.size
  counts = np.bincount(got.ravel(), minlength=vocab)
  chi_square = ((counts - expected) ** 2 / expected).sum()
  assert chi_square < vocab - 1 + 5 * np.sqrt(2 * (vocab - 1))
  # Neighbouring slots and rows draw apart: equal by chance alone.
  chance = ((p_V / p_V.sum()) ** 2).sum()
  for a, b in ((got[:, 1:], got[:, :-1]), (got[1:], got[:-1])):
    same = (a == b).mean()
    assert abs(same - chance) < 5 * np.sqrt(chance * (1 - chance) / a.size)


def test_a_draw_is_its_row_keys_and_its_own_logits_alone():
  x_BxKxE, *layer, gold_BxK, _ = case_of()

  @jax.jit
  def draw(rows):
    x, gold = x_BxKxE[rows], gold_BxK[rows]
    return output_softmax.compute(x, *layer, gold, keys_of(rows)).sampled_BxK

  whole = draw(np.arange(B))
  for rows in (np.arange(B)[::-1], np.array([4, 0])):
    np.testing.assert_array_equal(draw(rows), whole[rows])


def test_samples_send_no_gradient():
  logits = case_of()[0]
  table = jnp.arange(float(E))

  def picked(logits):
    return (
      table[sample(logits, keys_of(range(B)), 1.0)].sum()
      + table[predict(logits)].sum()
    )

  np.testing.assert_array_equal(jax.grad(picked)(logits), 0.0)


def test_a_certain_token_is_always_sampled_and_an_impossible_one_never():
  keys_B = keys_of(range(B))
  for at in (0, 3, V - 1):
    logits = jnp.full((B, 50, V), -jnp.inf).at[..., [at, 200]].set(1.0)
    drawn = np.asarray(sample(logits, keys_B, 1.0))
    assert set(drawn.ravel().tolist()) == {at, 200}
    logits = jnp.zeros((B, 50, V), jnp.bfloat16).at[..., at].set(60.0)
    assert (sample(logits, keys_B, 1.0) == at).all()


@pytest.mark.parametrize("share", [0.0, 1e-7, 0.5, 1 - 2.0**-24, 1.0])
def test_no_share_of_the_masses_leads_to_one_that_is_zero(share, monkeypatch):
  rng = np.random.default_rng(0)
  rounded = lambda x: x * (1 + 1e-6 * rng.normal(size=x.shape))
  matmul = jnp.matmul
  monkeypatch.setattr(jnp, "matmul", lambda *a, **k: rounded(matmul(*a, **k)))
  # Of equal ones half the sum is where one ends, and zeros follow.
  mass_MxC = np.float32(rng.random((500, 300)) < 0.05)
  mass_MxC[:, 7] = 1  # at least one
  mass_MxC = jnp.asarray(mass_MxC)
  found_M = output_softmax._invert_cdf(mass_MxC, jnp.full(500, share))
  assert (jnp.take_along_axis(mass_MxC, found_M[:, None], axis=1) > 0).all()


# --- what a step computes -----------------------------------------------------

PLAIN = {"hard_correction": False, "soft_weight": 0.0}
ROWS = 3  # of three slots each


@functools.cache
def results_of(is_pair, **options):
  """(operation, sizes of its result) of the gradient of a recipe's losses."""
  make = pretrain.make_pair if is_pair else pretrain.make_bert
  more = {"generator_multiplier": 0.5} if is_pair else {}
  model = make(vocab_size=V, variant="tiny", layers=1, **more)
  batch = jax.tree.map(jnp.asarray, tiny.make_batch(0, rows=ROWS))
  keys_B = keys_of(batch.pop("row"))
  terms = tiny.make_objective(model, tiny.make_options(**options), train=True)

  def loss(params):
    found = terms(params, batch, keys_B, tiny.make_aux())
    return sum(found[n][0] for n in ("mlm", "soft", "detect") if n in found)

  lowered = jax.jit(jax.grad(loss)).lower(pretrain.param_shapes(model))
  return [
    (name, [int(size) for size in sizes.split(",") if size])
    for sizes, name in re.findall(
      r"= \w+\[([\d,]*)\]\S* ([\w-]+)\(", lowered.as_text(dialect="hlo")
    )
    if name != "parameter"  # of a computation that is called
  ]


@pytest.mark.parametrize("is_pair", [True, False])
def test_hard_correction_adds_nothing_as_large_as_the_logits(is_pair):
  logits = ROWS * masking.num_slots(tiny.L, 0.15) * V
  plain, corrected = (
    [name for name, sizes in found if math.prod(sizes) >= logits]
    for found in (
      results_of(is_pair, **PLAIN),
      results_of(is_pair, **PLAIN | {"hard_correction": True}),
    )
  )
  assert plain.count("exponential") == 2  # one in the backward pass
  assert sorted(plain) == sorted(corrected)


@pytest.mark.parametrize("is_pair", [True, False])
def test_words_have_one_scatter_for_all_that_a_network_is_shown(is_pair):
  """The generator's input, and the discriminator's with what soft compares."""
  width = 16 if is_pair else 32
  count = lambda **options: results_of(is_pair, **options).count(
    ("scatter", [V, width])
  )
  assert count(**PLAIN) == (2 if is_pair else 1)
  assert count(hard_correction=True, soft_weight=1.0) == 2
