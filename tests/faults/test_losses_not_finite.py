"""An update whose loss is not finite is skipped, whatever its gradient is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from support import tiny
from truenegs_jax.objectives import task_losses
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.train import guards, step


def objective(params, inputs, keys_B, aux):
  """Computes a good term and one that is NaN or infinite without gradient."""
  del keys_B, aux
  weight, bad_B = params["w"]["kernel"], inputs["bad"]
  count = jnp.asarray(bad_B.size, jnp.float32)
  return {
    "good": (((weight - 1.0) ** 2) * count, count),
    "bad": (jax.lax.stop_gradient(weight * bad_B).sum(), count),
  }


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weight", [1.0, 0.0])
@pytest.mark.parametrize("num_microbatches", [1, 2])
def test_each_term_of_the_loss_counts(bad, weight, num_microbatches):
  tx = optax.sgd(0.1)
  weights = {"good": 1.0, "bad": weight}
  train_step = step.make_train_step(objective, weights, tx, num_microbatches)
  w = {"kernel": jnp.full((), 0.3)}
  state = step.init_state(lambda key: {"w": w}, tx, 0)
  batch = {"bad": jnp.zeros(8).at[5].set(bad), "row": jnp.arange(8)}
  after, terms = jax.jit(train_step)(state, batch, {})
  is_bad = float(bad != 0.0)
  assert terms["skipped"][0] == is_bad
  assert (after.params["w"]["kernel"] == w["kernel"]) == is_bad
  assert after.step == 1
  assert np.isfinite(jax.tree.leaves(terms)).all()


def pretraining():
  """Returns objective, parameters, loss weights and a batch with bad ids."""
  model = tiny.make_bert(layers=1)
  options = tiny.make_options(hard_correction=False, soft_weight=0.0)
  terms = tiny.make_objective(model, options, train=False)
  batch = tiny.make_batch(0)
  batch["tokens"][:, 2:5] = tiny.V + 5_000  # a vocabulary that was cut
  return terms, tiny.random_params(model), {"mlm": 1.0}, batch, {}


def fine_tuning():
  """Does the same for a classifier and a label beyond its classes."""

  class Classifier:
    def bind(self, variables):
      self.kernel = variables["params"]["w"]["kernel"]
      return self

    def logits(self, inputs, keys_B):
      return inputs["x"] * self.kernel[None]

  terms = functools.partial(
    task_losses.task_terms, kind="classes", model=Classifier(), train=False
  )
  batch = {
    "x": jnp.ones((4, 2)),
    "label": jnp.array([0, 1, 5, 1]),
    "weight": jnp.ones(4),
    "row": jnp.arange(4),
  }
  return terms, {"w": {"kernel": jnp.ones(2)}}, {"loss": 1.0}, batch, {}


@pytest.mark.parametrize("make", [pretraining, fine_tuning])
def test_a_bad_id_ends_the_run_with_its_step_and_rows(tmp_path, make):
  terms, params, weights, batch, aux = make()
  tx = tiny.make_tx()
  state = step.init_state(lambda key: params, tx, 0)
  train_step = jax.jit(step.make_train_step(terms, weights, tx))
  after, computed = train_step(state, jax.tree.map(jnp.asarray, batch), aux)
  jax.tree.map(np.testing.assert_array_equal, after.params, params)
  guard = guards.SkipGuard(tmp_path, max_skips=0)
  guard.add(0, computed["skipped"][0], batch["row"])
  with pytest.raises(
    NonFiniteError, match="loss .* step 0.*lr.*max_sk"
  ) as error:
    guard.check_pending()
  assert error.value.exit_code == 6
