"""The training step equals plain ELECTRA or BERT; skips and accumulation."""

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


def test_accumulation_equals_the_full_batch_with_different_counts():
  tx = optax.sgd(0.1)
  weights = {"kept": 2.0, "all": 0.5}
  (full, terms), (micro, micro_terms) = (
    jax.jit(step.make_train_step(linear_objective, weights, tx, n))(
      linear_state(tx), linear_batch(), {}
    )
    for n in (1, 8)
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


@pytest.mark.parametrize(
  ("bad", "weight", "num"),
  [
    (0.0, 1.0, 1),
    (0.0, 0.0, 2),
    *[(np.nan, 1.0, 2), (np.nan, 0.0, 1)],
    *[(np.inf, 1.0, 1), (np.inf, 0.0, 2)],
  ],
)
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


def test_evaluation_by_micro_batches_has_the_terms_of_the_batch():
  params = linear_state(optax.sgd(0.1)).params
  sizes = []

  def objective(params, inputs, keys_B, aux):
    sizes.append(len(keys_B))
    return linear_objective(params, inputs, keys_B, aux)

  expected, terms = (
    step.make_eval_step(objective, 0, n)(params, linear_batch(), {})
    for n in (1, 4)
  )
  assert {*sizes} == {8, 2}  # so 4 micro-batches need a quarter of the memory
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), terms, expected
  )


def plain_loss(params, batch, keys_B, model):
  """Computes the loss of ELECTRA or BERT without any correction."""
  tokens_BxL, documents_BxL = batch["tokens"], batch["documents"]
  keys = functools.partial(rng.purpose_keys, keys_B)
  slots, masked_BxL = masking.hide_slots(
    tokens_BxL, documents_BxL, keys(rng.MASK), tiny.MASKING
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
  mlm = jnp.where(slots.weight_BxK > 0, outputs.loss_BxK, 0.0).sum()
  num_slots = jnp.maximum(slots.weight_BxK.sum(), 1.0)
  if len(model.roles) == 1:  # BERT
    return mlm / num_slots

  corrupted_BxL = masking.fill_slots(tokens_BxL, slots, outputs.sampled_BxK)
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
  return 1.0 * mlm / num_slots + 50.0 * detect / num_real


@pytest.mark.parametrize(
  ("make", "names"),
  [(tiny.make_model, ("mlm", "detect")), (tiny.make_bert, ("mlm",))],
)
def test_baseline_equals_plain_electra_or_bert_in_bits_and_cost(make, names):
  model = make(layers=1)
  inputs = tiny.make_batch(0)
  options = tiny.make_options(hard_correction=False, soft_weight=0.0)
  weights = {name: tiny.WEIGHTS[name] for name in names}
  objective = tiny.make_objective(model, options, train=True)
  inputs = jax.tree.map(jnp.asarray, inputs)
  keys_B = rng.row_keys(jax.random.key(0), 0, inputs.pop("row"))

  def ours(params):
    return step.total_loss(objective(params, inputs, keys_B, {}), weights)

  def plain(params):
    return plain_loss(params, inputs, keys_B, model)

  params = tiny.random_params(model)
  compiled = [
    jax.jit(jax.value_and_grad(fn)).lower(params).compile()
    for fn in (ours, plain)
  ]
  jax.tree.map(np.testing.assert_array_equal, *(fn(params) for fn in compiled))
  costs = [fn.cost_analysis() for fn in compiled]
  for figure in ("flops", "transcendentals"):
    assert costs[0][figure] < 1.001 * costs[1][figure]
