"""The training step equals plain ELECTRA; its skips and accumulation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support import tiny
from truenegs_jax.objectives import masking, output_softmax
from truenegs_jax.runtime import rng
from truenegs_jax.train import step

PEAK, WARMUP, TOTAL = 1e-3, 5, 100  # schedule of tiny.make_tx


def linear_objective(params, inputs, keys_B, aux):
  """Computes terms with one parameter; "bad" has no gradient.

  The count of "kept" depends on the input.
  """
  del keys_B, aux
  x_B, keep_B, bad_B = inputs["x"], inputs["keep"], inputs["bad"]
  residual_B = (params["w"]["kernel"] * x_B - 1.0) ** 2
  absolute_B = jnp.abs(params["w"]["kernel"] - x_B)
  return {
    "kept": ((residual_B * keep_B).sum(), keep_B.sum()),
    "all": (absolute_B.sum(), jnp.ones_like(x_B).sum()),
    "bad": (bad_B.sum(), jnp.ones_like(x_B).sum()),
  }


def linear_state(tx):
  w = {"kernel": jnp.full((), 0.3), "bias": jnp.zeros(())}
  return step.init_state(lambda key: {"w": w}, tx, 0)


def linear_batch():
  # A micro-batch takes every second row; one of them keeps a single row.
  return {
    "x": jnp.array([1.0, 2.0, -1.0, 0.5, 3.0, -2.0, 0.1, 0.7]),
    "keep": jnp.array([1.0, 0, 1, 0, 1, 0, 1, 1]),
    "bad": jnp.zeros(8),
    "row": jnp.arange(8),
  }


@pytest.mark.parametrize("num", [2, 8])
def test_accumulation_equals_the_full_batch_with_different_counts(num):
  tx = optax.sgd(0.1)
  weights = {"kept": 2.0, "all": 0.5}
  (full, terms), (micro, micro_terms) = (
    jax.jit(step.make_train_step(linear_objective, weights, tx, n))(
      linear_state(tx), linear_batch(), {}
    )
    for n in (1, num)
  )
  np.testing.assert_allclose(
    micro.params["w"]["kernel"], full.params["w"]["kernel"], rtol=1e-6
  )
  assert micro_terms["kept"][1] == terms["kept"][1] == 5
  x, keep = np.asarray(linear_batch()["x"]), np.asarray(linear_batch()["keep"])
  slope = 2.0 * (2 * (0.3 * x - 1) * x * keep).sum() / 5
  slope += 0.5 * np.sign(0.3 - x).sum() / 8
  np.testing.assert_allclose(
    full.params["w"]["kernel"], 0.3 - 0.1 * slope, rtol=1e-5
  )


def test_skipped_update_changes_the_step_only():
  tx = tiny.make_tx()
  train_step = jax.jit(
    step.make_train_step(linear_objective, {"kept": 1.0}, tx)
  )
  state, _ = train_step(linear_state(tx), linear_batch(), {})
  state, _ = train_step(state, linear_batch(), {})
  poisoned = linear_batch() | {"x": linear_batch()["x"].at[2].set(np.nan)}
  after, terms = train_step(state, poisoned, {})
  assert terms["skipped"][0] == 1.0
  assert after.step == state.step + 1 == 3
  jax.tree.map(
    np.testing.assert_array_equal,
    (state.params, state.opt_state[1]),  # the moments
    (after.params, after.opt_state[1]),
  )
  # It advances the learning rate.
  assert after.opt_state[-1].count == 3
  following, terms = train_step(after, linear_batch(), {})
  assert terms["skipped"][0] == 0.0
  assert following.params["w"]["kernel"] != after.params["w"]["kernel"]


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("weight", [1.0, 0.0])
@pytest.mark.parametrize("num", [1, 2])
def test_each_term_of_the_loss_counts(bad, weight, num):
  tx, weights = optax.sgd(0.1), {"kept": 1.0, "bad": weight}
  train_step = step.make_train_step(linear_objective, weights, tx, num)
  state = linear_state(tx)
  batch = linear_batch() | {"bad": jnp.zeros(8).at[5].set(bad)}
  after, terms = jax.jit(train_step)(state, batch, {})
  is_bad = float(bad != 0.0)
  assert terms["skipped"][0] == is_bad
  kernels = [x.params["w"]["kernel"] for x in (state, after)]
  assert (kernels[0] == kernels[1]) == is_bad
  assert after.step == 1
  assert np.isfinite(jax.tree.leaves(terms)).all()


def test_evaluation_has_the_same_draws_for_a_row():
  def objective(params, inputs, keys_B, aux):
    del params, inputs, aux
    return {"drawn_B": jax.vmap(jax.random.bits)(keys_B)}

  def draw(row_B, seed=0):
    evaluate = step.make_eval_step(objective, seed)
    return np.asarray(evaluate({}, {"row": row_B}, {})["drawn_B"])

  row_B = np.arange(8)
  np.testing.assert_array_equal(draw(row_B[::-1]), draw(row_B)[::-1])
  assert len({*draw(row_B), *draw(row_B + 8), *draw(row_B, seed=1)}) == 24


def plain_losses(params, batch, keys_B, model):
  tokens_BxL, documents_BxL = batch["tokens"], batch["documents"]
  keys = functools.partial(rng.purpose_keys, keys_B)
  slots = masking.choose_slots(
    tokens_BxL, documents_BxL, keys(rng.MASK), tiny.MASKING
  )
  masked_BxL = masking.apply_mask(
    tokens_BxL, slots, keys(rng.MASK), tiny.MASKING
  )
  bound = model.bind({"params": params})
  vectors_BxKxE = bound.generate_vectors(
    {**batch, "tokens": masked_BxL},
    slots.positions_BxK,
    keys(rng.GENERATOR_DROPOUT),
  )
  outputs = output_softmax.compute(
    vectors_BxKxE, *bound.output_layer(), slots.gold_BxK, keys(rng.SAMPLE)
  )
  sampled_BxK = outputs.sampled_BxK
  mlm = jnp.where(slots.weight_BxK > 0, outputs.loss_BxK, 0.0).sum()
  num_slots = jnp.maximum(slots.weight_BxK.sum(), 1.0)

  corrupted_BxL = masking.fill_slots(tokens_BxL, slots, sampled_BxK)
  target_BxL = (corrupted_BxL != tokens_BxL).astype(jnp.float32)
  x_BxL = model.apply(
    {"params": params},
    {**batch, "tokens": corrupted_BxL},
    keys(rng.DISCRIMINATOR_DROPOUT),
    method="detect_logits",
  )
  loss_BxL = -(
    target_BxL * jax.nn.log_sigmoid(x_BxL)
    + (1.0 - target_BxL) * jax.nn.log_sigmoid(-x_BxL)
  )
  real_BxL = (documents_BxL != 0).astype(jnp.float32)
  detect = jnp.where(real_BxL > 0, loss_BxL, 0.0).sum()
  num_real = jnp.maximum(real_BxL.sum(), 1.0)
  # The order matters: the gradient of 50 * (x / n) is 50 / n, which is rounded
  # differently from 1 / n * 50, the gradient of (50 * x) / n.
  total = 1.0 * mlm / num_slots + 50.0 * detect / num_real
  return total, (mlm / num_slots, detect / num_real)


def plain_step(carry, batch, key, *, model):
  """Clips to norm 1 and updates by Adam without bias correction."""
  t, params, mean, square = carry
  keys_B = rng.row_keys(key, t, batch["row"])
  inputs = {name: batch[name] for name in batch if name != "row"}
  grads, losses = jax.grad(plain_losses, has_aux=True)(
    params, inputs, keys_B, model
  )
  norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
  grads = jax.tree.map(lambda g: jnp.where(norm < 1.0, g, g / norm), grads)
  mean = jax.tree.map(lambda m, g: 0.9 * m + (1 - 0.9) * g, mean, grads)
  square = jax.tree.map(
    lambda v, g: 0.999 * v + (1 - 0.999) * g * g, square, grads
  )
  s = t.astype(jnp.float32)
  rate = PEAK * (1.0 - jnp.minimum(s / TOTAL, 1.0))
  rate = rate * jnp.minimum(s / WARMUP, 1.0)

  def move(path, p, m, v):
    update = m / (jnp.sqrt(v) + 1e-6)
    if path[-1].key not in ("bias", "scale"):
      update = update + 0.01 * p
    return p - rate * update

  params = jax.tree_util.tree_map_with_path(move, params, mean, square)
  return (t + 1, params, mean, square), losses


@pytest.mark.slow
def test_baseline_equals_plain_electra_bit_for_bit():
  model, tx = tiny.make_model(layers=1), tiny.make_tx()
  options = tiny.make_options(hard_correction=False, soft_weight=0.0)
  weights = {name: tiny.WEIGHTS[name] for name in ("mlm", "detect")}
  objective = tiny.make_objective(model, options, train=True)
  train_step = jax.jit(step.make_train_step(objective, weights, tx))
  plain = jax.jit(functools.partial(plain_step, model=model))
  state = tiny.init_state(model, tx)
  zeros = jax.tree.map(jnp.zeros_like, state.params)
  carry = (state.step, state.params, zeros, zeros)
  for i in range(6):
    batch = tiny.make_batch(i)
    carry, (mlm, detect) = plain(carry, batch, state.key)
    state, terms = train_step(state, batch, {})
    assert terms["mlm"][0] / terms["mlm"][1] == mlm, f"step {i}"
    assert terms["detect"][0] / terms["detect"][1] == detect, f"step {i}"
    for (path, a), b in zip(
      jax.tree_util.tree_leaves_with_path(state.params),
      jax.tree.leaves(carry[1]),
      strict=True,
    ):
      name = f"step {i}, {jax.tree_util.keystr(path)}"
      np.testing.assert_array_equal(a, b, err_msg=name)
