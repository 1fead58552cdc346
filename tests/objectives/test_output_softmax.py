"""The fused output softmax equals whole logits, and samples from them."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from truenegs_jax.objectives import output_softmax
from truenegs_jax.runtime import cpu
from truenegs_jax.runtime import rng as rng_lib

B, K, E = 6, 5, 8
BLOCK = output_softmax.BLOCK
V = 3 * BLOCK + 5


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


def sample_plainly(logits_BxKxV, keys_B):
  """Inverts the distribution of blocks, and that of the columns of one."""
  uniform_BxKx2 = rng_lib.uniform(keys_B, (K, 2))
  size = logits_BxKxV.shape[-1]
  padding = (0, 0), (0, 0), (0, -size % BLOCK)
  mass = jnp.pad(jax.nn.softmax(logits_BxKxV), padding)
  mass_BxKxCxW = mass.reshape(B, K, -1, BLOCK)
  block_BxK = invert_plainly(mass_BxKxCxW.sum(axis=-1), uniform_BxKx2[..., 0])
  index = block_BxK[..., None, None]
  [columns] = jnp.moveaxis(jnp.take_along_axis(mass_BxKxCxW, index, 2), 2, 0)
  return block_BxK * BLOCK + invert_plainly(columns, uniform_BxKx2[..., 1])


def invert_plainly(mass, uniform):
  up_to = jnp.cumsum(mass, axis=-1)
  is_beyond = up_to > uniform[..., None] * up_to[..., -1:]
  return jnp.argmax(is_beyond, axis=-1).astype(jnp.int32)


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
      "sampled_BxK": sample_plainly(logits_BxKxV, keys_B),
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
    fused = jax.jit(lambda x: compute_fused.__wrapped__(x, chunk=0))(case)
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


def test_the_prediction_is_the_first_likeliest_token():
  rng, size = np.random.default_rng(0), BLOCK + 9
  # Many logits are equal.
  logits = rng.integers(0, 4, (B, K, size)).astype(np.float32)
  logits[:, 3:] = rng.normal(size=(B, K - 3, size)) - 1e4  # and far below 0
  layer, gold = (jnp.eye(size), jnp.zeros(size)), jnp.zeros((B, K), jnp.int32)
  output = output_softmax.compute(logits, *layer, gold, make_keys(range(B)))
  assert output.predicted_BxK.dtype == jnp.int32
  np.testing.assert_array_equal(output.predicted_BxK, logits.argmax(axis=-1))


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_logits_that_are_not_finite_give_some_token(value):
  x_BxKxE, *others = make_case()
  for index in ((0, 0, 0), slice(None)):
    _, output = compute_fused((x_BxKxE.at[index].set(value), *others))
    for token_BxK in (output["predicted_BxK"], output["sampled_BxK"]):
      assert ((token_BxK >= 0) & (token_BxK < V)).all()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_inverting_the_cdf_never_returns_a_mass_of_zero(share, monkeypatch):
  rng = np.random.default_rng(0)
  matmul = jnp.matmul

  def round_sums(*args, **kwargs):
    x = matmul(*args, **kwargs)
    return x * (1 + 1e-6 * rng.normal(size=x.shape))

  monkeypatch.setattr(jnp, "matmul", round_sums)
  # With equal masses, half of the sum is the end of one, before zeros.
  mass_MxC = np.float32(rng.random((500, 300)) < 0.05)
  mass_MxC[:, 7] = 1  # at least one
  invert = jax.jit(lambda *x: output_softmax._invert_cdf(*x))  # not yet traced
  found_M = invert(mass_MxC, jnp.full(500, share))
  assert (
    np.take_along_axis(mass_MxC, np.asarray(found_M)[:, None], 1) > 0
  ).all()
