"""Draws of a run share no keys; initial weights have their distributions."""

import functools

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs import electra_small
from truenegs_jax.models import pretrain
from truenegs_jax.pretrain import plan, predict_slots
from truenegs_jax.runtime import rng
from truenegs_jax.train import step as step_lib

LAYERS = 2
DROPOUT_SITES = 1 + 3 * LAYERS  # of a network
SLOT_DRAWS = 4  # positions, [MASK] or not, random tokens, samples


@pytest.fixture(scope="module")
def run():
  c = electra_small.get_config("runlocal,hc+sr")
  c.masking.style, c.negatives.drop_prob = "80_10_10", 0.1
  c.model.dropout = 0.1
  c.batch_size, c.model.layers = 2, LAYERS
  config = PretrainConfig.read(c)
  return plan.make_run(config, plan.find_tokenizer(config.data))


def record(monkeypatch, owner, name):
  """Returns the list to which a function appends its results."""
  results = []
  function = getattr(owner, name)

  def call(*args, **kwargs):
    results.append(function(*args, **kwargs))
    return results[-1]

  monkeypatch.setattr(owner, name, call)
  return results


def test_no_two_draws_of_a_run_have_the_same_key(run, monkeypatch):
  """Weights, two steps, evaluation and search: rows, purposes and sites."""
  model_params = tiny.random_params(run.model)
  words = record(monkeypatch, rng, "row_words")
  weight_keys = record(monkeypatch, flax.core.scope.Scope, "make_rng")
  batch = {name: jnp.asarray(x) for name, x in tiny.make_batch(0, 2).items()}
  aux = {"edges_V": run.edges_V} | tiny.make_aux()

  def make_objective(train):
    """Makes an objective that draws, and trains nothing."""

    def objective(params, inputs, keys_B, aux):
      del params
      run.objective(train=train)(model_params, inputs, keys_B, aux)
      return {"mlm": (jnp.zeros(()), jnp.ones(()))}

    return objective

  init = functools.partial(pretrain.init_params, run.model)
  state = step_lib.init_state(lambda key: {}, run.tx, seed=0)
  train_step = step_lib.make_train_step(
    make_objective(True), {"mlm": 1.0}, run.tx
  )
  predict = predict_slots.build_predict_step(run).__wrapped__

  @jax.jit
  def draw():
    step_lib.init_state(init, run.tx, seed=0)
    after, _ = train_step(state, batch, aux)
    train_step(after, batch, aux)
    step_lib.make_eval_step(make_objective(False), 0)({}, batch, aux)
    predict(model_params, batch, tiny.L)
    drawn = [jnp.stack(words_2xB, axis=1) for words_2xB in words]
    return jnp.concatenate(drawn), jax.random.key_data(jnp.stack(weight_keys))

  draws, weights = draw()
  draws = set(map(tuple, draws.tolist()))
  in_steps = 2 * (SLOT_DRAWS + 1 + 2 * DROPOUT_SITES)
  assert len(draws) == 2 * (in_steps + 2 * SLOT_DRAWS)
  roots = jax.random.key_data(jnp.stack([jax.random.key(0), state.key]))
  keys = [*draws, *map(tuple, [*weights.tolist(), *roots.tolist()])]
  assert len(set(keys)) == len(keys)
  assert len(weights) == len(jax.tree.leaves(model_params))


def glorot(fan_in, fan_out):
  limit = (6 / (fan_in + fan_out)) ** 0.5
  return limit / 3**0.5, limit


def test_initial_weights_have_the_distributions_of_electras_code():
  """Normal numbers are cut at two deviations, and not rescaled."""
  model = pretrain.make_electra(
    vocab_size=900, variant="small", layers=1, generator_multiplier=0.25
  )
  params = jax.jit(functools.partial(pretrain.init_params, model))(
    jax.random.key(0)
  )
  expected = {
    "discriminator/project/kernel": glorot(128, 256),
    "generator/project/kernel": glorot(128, 64),
    "discriminator_head/output/kernel": glorot(256, 1),
  }
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if name.endswith(("bias", "scale")):
      np.testing.assert_array_equal(x, float(name.endswith("scale")))
      continue
    deviation, limit = expected.get(name, (0.0176, 0.04))
    assert 0.8 * limit < np.abs(x).max() <= limit, name
    tolerance = 3 / x.size**0.5
    assert np.std(x) == pytest.approx(deviation, rel=tolerance), name
    assert abs(np.mean(x)) < 4 * deviation / x.size**0.5, name
