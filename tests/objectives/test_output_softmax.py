"""The fused output softmax equals whole logits, and samples from them."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from support import tiny
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import masking, output_softmax
from truenegs_jax.runtime import cpu
from truenegs_jax.runtime import rng as rng_lib

B, K, E = 6, 5, 8
BLOCK = output_softmax.BLOCK
SIZES = BLOCK - 1, BLOCK, 3 * BLOCK + 5
V = SIZES[-1]
predict, sample = map(jax.jit, (output_softmax.predict, output_softmax.sample))


def make_keys(rows):
  return rng_lib.row_keys(jax.random.key(0), 0, jnp.asarray(rows))


@functools.cache
def make_case(size=V, dtype="float32"):
  """Draws vectors, table, bias, gold tokens and weights of slots."""
  rng = np.random.default_rng(size)

  def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  gold_BxK = jnp.asarray(rng.integers(0, size, (B, K)), jnp.int32)
  layer = normal(size, E), normal(size)
  weight_BxK = normal(B, K).at[0].set(0.0)  # of all signs
  return normal(B, K, E).astype(dtype), *layer, gold_BxK, weight_BxK


def compute_logits(x_BxKxE, word_VxE, bias_V):
  return jnp.einsum(
    "bke,ve->bkv",
    x_BxKxE,
    word_VxE.astype(x_BxKxE.dtype),
    preferred_element_type=jnp.float32,
  ) + bias_V.reshape(1, 1, -1)


def list_tokens(gold_BxK, size):
  """Lists the gold token, others, and some of them twice."""
  return (gold_BxK[..., None] + jnp.array([[[0, 3, 1, 0, 176, 1]]])) % size


def sum_losses(output, weight_BxK):
  """Adds up losses and listed logits, with weights of all signs."""
  weight_BxKxS = weight_BxK[..., None] * jnp.arange(-2.0, 4.0)[None, None]
  listed = output["listed_BxKxS"] * weight_BxKxS
  return (output["loss_BxK"] * weight_BxK).sum() + listed.sum()


@functools.partial(jax.jit, static_argnames="chunk")
def compute_fused(case, **options):
  """Returns the gradients of `sum_losses`, and the output."""
  *inputs, gold_BxK, weight_BxK = case
  listed_BxKxS = list_tokens(gold_BxK, inputs[2].size)

  def loss(*inputs):
    keys_B = make_keys(range(B))
    output = output_softmax.compute(
      *inputs, gold_BxK, keys_B, listed_BxKxS=listed_BxKxS, **options
    )
    return sum_losses(vars(output), weight_BxK), vars(output)

  return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*inputs)


@jax.jit
def compute_plain(case):
  """Computes the same from whole logits with optax."""
  *inputs, gold_BxK, weight_BxK = case

  def loss(*inputs):
    logits_BxKxV, keys_B = compute_logits(*inputs), make_keys(range(B))
    loss_BxK = optax.softmax_cross_entropy_with_integer_labels(
      logits_BxKxV, gold_BxK
    )
    output = {
      "loss_BxK": loss_BxK,
      "predicted_BxK": jnp.argmax(logits_BxKxV, axis=-1),
      "sampled_BxK": output_softmax.sample(logits_BxKxV, keys_B),
      "listed_BxKxS": jnp.take_along_axis(
        logits_BxKxV, list_tokens(gold_BxK, inputs[2].size), axis=-1
      ),
    }
    return sum_losses(output, weight_BxK), output

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
  ("size", "chunk"),
  [
    (BLOCK - 1, 0),
    (V, 0),
    (V, 13),  # 2, 2 and 1 slots of each row
    pytest.param(BLOCK, 0, marks=pytest.mark.slow),
    pytest.param(V, 3, marks=pytest.mark.slow),
  ],
)
def test_loss_prediction_sample_and_gradients_equal_the_plain_ones(size, chunk):
  case = make_case(size)
  assert_same(compute_fused(case, chunk=chunk), compute_plain(case))


def test_devices_compute_chunks_of_their_own_rows():
  """Five slots on each of six devices are split in three chunks."""
  mesh = Mesh(np.array(jax.devices()[:B]), "data")
  specs = P("data"), P(), P(), P("data"), P("data")
  shardings = (NamedSharding(mesh, spec) for spec in specs)
  case = jax.device_put(make_case(), tuple(shardings))
  text = compute_fused.lower(case, chunk=13).compile().as_text()
  padded = -(-V // (3 * BLOCK)) * 3 * BLOCK
  positions = re.findall(rf"f32\[(\d+),{padded}\]", text)
  assert max(map(int, positions)) == 2  # of 5 on a device


def test_gradients_are_the_same_on_other_platforms():
  case = make_case()
  with cpu.lowering_for("tpu"):  # the outer jit traces it again
    fused = jax.jit(compute_fused.__wrapped__)(case)
  assert_same(fused, compute_plain(case))


def test_only_products_are_in_half_precision():
  case = make_case(dtype="bfloat16")
  grads, output = compute_fused(case, chunk=5)
  plain_grads, plain_output = compute_plain(case)
  assert_same(output, plain_output)
  # Gradients of the layer are f32 sums of bfloat16 products.
  assert_same(grads[1:], plain_grads[1:], 0.05)
  assert grads[0].dtype == jnp.bfloat16
  assert_same(grads[0], plain_grads[0], 0.1)


@pytest.mark.parametrize("size", SIZES)
def test_the_prediction_is_the_first_likeliest_token(size):
  rng = np.random.default_rng(0)
  # Many logits are equal.
  logits = rng.integers(0, 4, (8, 50, size)).astype(np.float32)
  logits[:, :25] = rng.normal(size=(8, 25, size)) - 1e4  # and far below 0
  predicted = predict(jnp.asarray(logits))
  assert predicted.dtype == jnp.int32
  np.testing.assert_array_equal(predicted, logits.argmax(axis=-1))


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_logits_that_are_not_finite_give_some_token(value):
  tokens = []
  for index in (V - 1, slice(None)):
    logits = jnp.zeros((B, K, V)).at[..., index].set(value)
    tokens += [predict(logits), sample(logits, make_keys(range(B)))]
  x_BxKxE, *others = make_case()
  for index in ((0, 0, 0), slice(None)):
    _, output = compute_fused((x_BxKxE.at[index].set(value), *others))
    tokens += [output["predicted_BxK"], output["sampled_BxK"]]
  for token_BxK in tokens:
    assert ((token_BxK >= 0) & (token_BxK < V)).all()


@pytest.mark.parametrize("vocab", [12, 2 * BLOCK + 3])
def test_samples_have_the_frequencies_of_the_softmax(vocab):
  rows, slots = 64, 400
  logits_V = np.random.default_rng(0).normal(size=vocab).astype(np.float32)
  logits = jnp.broadcast_to(jnp.asarray(logits_V), (rows, slots, vocab))
  sampled = np.asarray(sample(logits, make_keys(range(rows))))
  p_V = np.exp(logits_V.astype(np.float64))
  expected = p_V / p_V.sum() * sampled.size
  counts = np.bincount(sampled.ravel(), minlength=vocab)
  chi_square = ((counts - expected) ** 2 / expected).sum()
  assert chi_square < vocab - 1 + 5 * np.sqrt(2 * (vocab - 1))
  # Neighbouring slots and rows are independent: equal by chance only.
  chance = ((p_V / p_V.sum()) ** 2).sum()
  for a, b in ((sampled[:, 1:], sampled[:, :-1]), (sampled[1:], sampled[:-1])):
    agreement = (a == b).mean()
    assert abs(agreement - chance) < 5 * np.sqrt(chance * (1 - chance) / a.size)


def test_a_sample_depends_on_its_row_key_and_logits_only():
  x_BxKxE, *layer, gold_BxK, _ = make_case()

  @jax.jit
  def draw(rows):
    x, gold = x_BxKxE[rows], gold_BxK[rows]
    return output_softmax.compute(x, *layer, gold, make_keys(rows)).sampled_BxK

  all_rows = draw(np.arange(B))
  for rows in (np.arange(B)[::-1], np.array([4, 0, 0, 1, 0, 4])):
    np.testing.assert_array_equal(draw(rows), all_rows[rows])


def test_certain_tokens_are_always_and_impossible_ones_never_sampled():
  keys_B = make_keys(range(B))
  for index in (0, 3, V - 1):
    logits = jnp.full((B, 50, V), -jnp.inf).at[..., [index, 200]].set(1.0)
    tokens = np.asarray(sample(logits, keys_B))
    assert set(tokens.ravel().tolist()) == {index, 200}
    logits = jnp.zeros((B, 50, V), jnp.bfloat16).at[..., index].set(60.0)
    assert (sample(logits, keys_B) == index).all()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_inverting_the_cdf_never_returns_a_mass_of_zero(share, monkeypatch):
  rng = np.random.default_rng(0)
  matmul = jnp.matmul

  def matmul_with_rounding(*args, **kwargs):
    x = matmul(*args, **kwargs)
    return x * (1 + 1e-6 * rng.normal(size=x.shape))

  monkeypatch.setattr(jnp, "matmul", matmul_with_rounding)
  # With equal masses, half of the sum is the end of one, before zeros.
  mass_MxC = np.float32(rng.random((500, 300)) < 0.05)
  mass_MxC[:, 7] = 1  # at least one
  mass_MxC = jnp.asarray(mass_MxC)
  found_M = output_softmax._invert_cdf(mass_MxC, jnp.full(500, share))
  assert (jnp.take_along_axis(mass_MxC, found_M[:, None], axis=1) > 0).all()


PLAIN = {"hard_correction": False, "soft_weight": 0.0}
ROWS = 3  # of three slots each
NETWORKS = True, pytest.param(False, marks=pytest.mark.slow)


@functools.cache
def list_results(is_pair, **options):
  """Lists (operation, shape of its result) of the gradient of a recipe."""
  make = pretrain.make_electra if is_pair else pretrain.make_bert
  more = {"generator_multiplier": 0.5} if is_pair else {}
  model = make(vocab_size=V, variant="tiny", layers=1, **more)
  batch = jax.tree.map(jnp.asarray, tiny.make_batch(0, rows=ROWS))
  keys_B = make_keys(batch.pop("row"))
  terms = tiny.make_objective(model, tiny.make_options(**options), train=True)

  def loss(params):
    losses = terms(params, batch, keys_B, tiny.make_aux())
    return sum(losses[n][0] for n in ("mlm", "soft", "detect") if n in losses)

  lowered = jax.jit(jax.grad(loss)).lower(pretrain.param_shapes(model))
  return [
    (name, [int(size) for size in sizes.split(",") if size])
    for sizes, name in re.findall(
      r"= \w+\[([\d,]*)\]\S* ([\w-]+)\(", lowered.as_text(dialect="hlo")
    )
    if name != "parameter"  # of a computation that is called
  ]


@pytest.mark.parametrize("is_pair", NETWORKS)
def test_hard_correction_adds_nothing_as_large_as_the_logits(is_pair):
  logits = ROWS * masking.num_slots(tiny.L, 0.15) * V

  def list_large(**options):
    results = list_results(is_pair, **options)
    return [name for name, sizes in results if math.prod(sizes) >= logits]

  plain, corrected = list_large(**PLAIN), list_large(soft_weight=0.0)
  assert plain.count("exponential") == 2  # one in the backward pass
  assert sorted(plain) == sorted(corrected)


@pytest.mark.parametrize("is_pair", NETWORKS)
def test_the_word_table_has_one_scatter_per_network(is_pair):
  """The soft term shares that of the discriminator's input."""
  width = 16 if is_pair else 32
  scatter = "scatter", [V, width]
  plain = list_results(is_pair, **PLAIN)
  assert plain.count(scatter) == (2 if is_pair else 1)
  soft = list_results(is_pair, hard_correction=True, soft_weight=1.0)
  assert soft.count(scatter) == 2
