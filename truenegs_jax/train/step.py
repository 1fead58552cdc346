"""Makes training and evaluation steps for any objective.

An objective is `fn(params, inputs, keys_B, aux) -> {name: (sum, count)}`. The
loss is the sum of weight * sum / count over the terms with a weight. Sums and
counts are those of the global batch, however it is split over devices or
micro-batches. Pre-training and fine-tuning use the same step.
"""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from truenegs_jax.runtime import rng

Array = jax.Array
Terms = dict[str, tuple[Array, Array]]
Objective = Callable[..., Terms]
Weights = Mapping[str, float]  # loss weights by the names of their terms


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """State of a run, as saved in a checkpoint."""

  step: Array  # int32 [], number of batches used, including skipped updates
  params: dict
  opt_state: optax.OptState
  key: Array  # root key of all draws; constant during a run
  # Arrays that the run computes but does not train, such as a synonym table.
  # The objective gets them together with its other `aux`.
  aux: dict[str, Array] = dataclasses.field(default_factory=dict)


def init_state(
  init_params: Callable[[Array], dict],
  tx: optax.GradientTransformation,
  seed: int,
) -> TrainState:
  """Returns the state of step 0; can be jitted to create it on a mesh."""
  params = init_params(jax.random.key(seed))
  # Not the key that drew the parameters.
  key = jax.random.fold_in(jax.random.key(seed), 1)
  return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params), key)


def make_train_step(
  objective: Objective,
  loss_weights: Weights,
  tx: optax.GradientTransformation,
  num_microbatches: int = 1,
) -> Callable[[TrainState, dict, Mapping], tuple[TrainState, Terms]]:
  """Makes `step(state, batch, aux) -> (state, terms)`.

  If the loss or the gradient of a batch is not finite, parameters and optimizer
  stay as they are and the term `skipped` is 1; the step is counted
  nevertheless. Terms without a loss weight are metrics only.
  """

  def step(
    state: TrainState, batch: dict[str, Array], aux: Mapping[str, Array]
  ) -> tuple[TrainState, Terms]:
    keys_B = rng.row_keys(state.key, state.step, batch["row"])
    inputs = {name: x for name, x in batch.items() if name != "row"}

    def evaluate(params: dict, inputs: dict, keys_B: Array) -> Terms:
      arrays = {**aux, **state.aux}
      return objective(params, inputs, keys_B, arrays)

    args = evaluate, loss_weights, state.params, (inputs, keys_B)
    if num_microbatches == 1:
      terms, grads = _batch_gradient(*args)
    else:
      terms, grads = _accumulated_gradient(*args, num_microbatches)
    # A loss can be NaN where its gradient is 0: `jnp.take` beyond a table.
    loss_is_finite = jnp.isfinite(total_loss(terms, loss_weights))
    return _update(state, tx, terms, grads, loss_is_finite)

  return step


def make_eval_step(
  objective: Objective, seed: int, num_microbatches: int = 1
) -> Callable[[dict, dict, Mapping], Terms]:
  """Makes `evaluate(params, batch, aux) -> terms`.

  A row has the same draws in every evaluation of every run with this seed.
  Micro-batches take as little memory as those of a training step.
  """

  def evaluate(
    params: dict, batch: dict[str, Array], aux: Mapping[str, Array]
  ) -> Terms:
    key = jax.random.fold_in(jax.random.key(seed), 2)
    keys_B = rng.row_keys(key, 0, batch["row"])
    inputs = {name: x for name, x in batch.items() if name != "row"}
    if num_microbatches == 1:
      return objective(params, inputs, keys_B, aux)
    terms = jax.lax.map(
      lambda rows: objective(params, *rows, aux),
      _split_rows((inputs, keys_B), num_microbatches),
    )
    return jax.tree.map(lambda x: x.sum(axis=0), terms)

  return evaluate


def total_loss(terms: Terms, weights: Weights) -> Array:
  """Returns the sum of weight * sum / count; empty terms count 0.

  >>> six, two = jnp.array(6.0), jnp.array(2.0)
  >>> total_loss({"mlm": (six, two), "replaced": (two, six)}, {"mlm": 0.5})
  Array(1.5, dtype=float32)
  """
  losses = [
    weight * terms[name][0] / jnp.maximum(terms[name][1], 1.0)
    for name, weight in weights.items()
  ]
  return sum(losses, jnp.zeros(()))


def _batch_gradient(
  evaluate: Callable[..., Terms], weights: Weights, params: dict, rows: tuple
) -> tuple[Terms, dict]:
  """Computes the terms of `evaluate(params, *rows)` and the loss's gradient."""

  def loss(params: dict) -> tuple[Array, Terms]:
    terms = evaluate(params, *rows)
    return total_loss(terms, weights), terms

  grads, terms = jax.grad(loss, has_aux=True)(params)
  return terms, grads


def _accumulated_gradient(
  evaluate: Callable[..., Terms],
  weights: Weights,
  params: dict,
  rows: tuple,
  num_microbatches: int,
) -> tuple[Terms, dict]:
  """Computes the terms and the loss's gradient, one micro-batch at a time.

  Each sum of the loss is divided by its count, and some counts (kept slots) are
  known only after the last micro-batch. So the gradient of each sum is added up
  in its own tree, and the trees are combined at the end. This costs memory, but
  hardly any time: the backward passes of the terms overlap little, and XLA
  merges equal forward passes.
  """

  def compute(rows: tuple) -> tuple[dict[str, dict], Terms]:
    return _gradients_of_sums(evaluate, weights, params, rows)

  def add(totals: tuple, microbatch: tuple) -> tuple[tuple, None]:
    return jax.tree.map(jnp.add, totals, compute(microbatch)), None

  microbatches = _split_rows(rows, num_microbatches)
  first = jax.tree.map(lambda x: x[0], microbatches)
  zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(compute, first))
  (grads, terms), _ = jax.lax.scan(add, zeros, microbatches)
  scales = [
    weight / jnp.maximum(terms[name][1], 1.0)
    for name, weight in weights.items()
  ]
  return terms, jax.tree.map(
    lambda *grads: sum(map(operator.mul, scales, grads)),
    *(grads[name] for name in weights),
  )


def _split_rows(rows: Any, num: int) -> Any:
  """Puts every `num`-th row into one micro-batch, so rows stay on a device."""
  return jax.tree.map(
    lambda x: jnp.moveaxis(x.reshape(len(x) // num, num, *x.shape[1:]), 1, 0),
    rows,
  )


def _gradients_of_sums(
  evaluate: Callable[..., Terms],
  names: Iterable[str],
  params: dict,
  rows: tuple,
) -> tuple[dict[str, dict], Terms]:
  """Returns the gradient of the sum of each named term, and all terms."""

  def compute_sums(params: dict) -> tuple[dict[str, Array], Terms]:
    terms = evaluate(params, *rows)
    return {name: terms[name][0] for name in names}, terms

  # One forward pass, then one backward pass for each sum. A vjp with
  # cotangents 1, 0, 0 would run all backward passes for each sum.
  _, push, terms = jax.linearize(compute_sums, params, has_aux=True)
  grads = {}
  for name in names:
    pull = jax.linear_transpose(lambda x, name=name: push(x)[name], params)
    (grads[name],) = pull(jnp.ones(()))
  return grads, terms


def _update(
  state: TrainState,
  tx: optax.GradientTransformation,
  terms: Terms,
  grads: dict,
  loss_is_finite: Array,
) -> tuple[TrainState, Terms]:
  """Updates parameters and optimizer if loss and gradient are finite."""
  grad_norm = optax.tree.norm(grads)
  finite = loss_is_finite & jnp.isfinite(grad_norm)
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  params, opt_state = jax.tree.map(
    lambda new, old: jnp.where(finite, new, old),
    (optax.apply_updates(state.params, updates), opt_state),
    (state.params, state.opt_state),
  )
  step = state.step + 1
  state = dataclasses.replace(
    state, step=step, params=params, opt_state=opt_state
  )
  # The schedule counts batches, including skipped updates.
  state = set_schedule_step(state, step)
  # The terms of a skipped batch must not make merged sums NaN.
  terms = jax.tree.map(lambda x: jnp.where(finite, x, 0.0), terms)
  one = jnp.ones(())
  terms = terms | {
    "grad_norm": (jnp.where(finite, grad_norm, 0.0), one),
    "skipped": (1.0 - finite.astype(jnp.float32), one),
  }
  return state, terms


def set_schedule_step(state: TrainState, step: Array) -> TrainState:
  """Gives the next update the learning rate after `step` steps."""

  def is_schedule(x: object) -> bool:
    return isinstance(x, optax.ScaleByScheduleState)

  opt_state = jax.tree.map(
    lambda x: x._replace(count=step) if is_schedule(x) else x,
    state.opt_state,
    is_leaf=is_schedule,
  )
  return dataclasses.replace(state, opt_state=opt_state)
