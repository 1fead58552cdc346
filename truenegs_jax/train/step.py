"""Makes training and evaluation steps for any objective.

An objective is `fn(params, inputs, keys_B, aux) -> {name: (sum, count)}`. The
loss is the sum of weight * sum / count over the terms with a weight. Sums and
counts are those of the global batch, however it is split over devices or
micro-batches. Pre-training and fine-tuning use the same step.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from truenegs_jax.runtime import rng

Array = jax.Array
Terms = dict[str, tuple[Array, Array]]
Objective = Callable[..., Terms]
LossWeight = float | Callable[[Array | int], Array]  # constant or schedule


@dataclasses.dataclass(frozen=True)
class TrainState:
  """State of a run, as saved in a checkpoint.

  Attributes:
    step: int32 [], number of batches used, including skipped updates.
    params: parameters.
    opt_state: state of the optimizer.
    key: root key of all draws; constant during a run.
    aux: arrays that the run computes itself but does not train, such as a
      synonym table. The objective gets them together with its other `aux`.
  """

  step: Array
  params: dict
  opt_state: optax.OptState
  key: Array
  aux: dict[str, Array] = dataclasses.field(default_factory=dict)


jax.tree_util.register_dataclass(
  TrainState, ["step", "params", "opt_state", "key", "aux"], []
)


def init_state(
  init_params: Callable[[Array], dict],
  tx: optax.GradientTransformation,
  seed: int,
) -> TrainState:
  """Returns the state of step 0; can be jitted to create it on a mesh."""
  params = init_params(jax.random.key(seed))
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=params,
    opt_state=tx.init(params),
    # Not the key that drew the parameters.
    key=jax.random.fold_in(jax.random.key(seed), 1),
  )


def make_train_step(
  objective: Objective,
  loss_weights: Mapping[str, LossWeight],
  tx: optax.GradientTransformation,
  num_microbatches: int = 1,
) -> Callable[[TrainState, dict, Mapping], tuple[TrainState, Terms]]:
  """Makes `step(state, batch, aux) -> (state, terms)`.

  If the gradient of a batch is not finite, parameters and optimizer stay as
  they are and the term `skipped` is 1; the step is counted nevertheless.

  Args:
    objective: the objective.
    loss_weights: weight of each term of the loss; other terms are metrics.
    tx: the optimizer.
    num_microbatches: number of slices of a batch whose gradients are added up.
  """

  def step(
    state: TrainState, batch: dict[str, Array], aux: Mapping[str, Array]
  ) -> tuple[TrainState, Terms]:
    keys_B = rng.row_keys(state.key, state.step, batch["row"])
    inputs = {name: batch[name] for name in batch if name != "row"}

    def evaluate(params: dict, inputs: dict, keys_B: Array) -> Terms:
      return objective(params, inputs, keys_B, {**aux, **state.aux})

    current = loss_weights_at(loss_weights, state.step)
    if num_microbatches == 1:
      terms, grads = _batch_gradient(
        evaluate, current, state.params, inputs, keys_B
      )
    else:
      terms, grads = _accumulated_gradient(
        evaluate, current, state.params, inputs, keys_B, num_microbatches
      )
    return _update(state, tx, terms, grads)

  return step


def make_eval_step(
  objective: Objective, seed: int
) -> Callable[[dict, dict, Mapping], Terms]:
  """Makes `evaluate(params, batch, aux) -> terms`.

  A row has the same draws in every evaluation of every run with this seed.
  """

  def evaluate(
    params: dict, batch: dict[str, Array], aux: Mapping[str, Array]
  ) -> Terms:
    key = jax.random.fold_in(jax.random.key(seed), 2)
    keys_B = rng.row_keys(key, 0, batch["row"])
    inputs = {name: batch[name] for name in batch if name != "row"}
    return objective(params, inputs, keys_B, aux)

  return evaluate


def loss_weights_at(
  loss_weights: Mapping[str, LossWeight], step: Array | int
) -> dict[str, Array | float]:
  """Returns the value of each loss weight at a step."""
  return {
    name: weight(step) if callable(weight) else weight
    for name, weight in loss_weights.items()
  }


def total_loss(
  terms: Terms, loss_weights: Mapping[str, Array | float]
) -> Array:
  """Returns the sum of weight * sum / count; empty terms count 0."""
  losses = [
    weight * terms[name][0] / jnp.maximum(terms[name][1], 1.0)
    for name, weight in loss_weights.items()
  ]
  return sum(losses, jnp.zeros(()))


def _batch_gradient(
  evaluate: Callable[..., Terms],
  loss_weights: Mapping[str, Array | float],
  params: dict,
  inputs: dict[str, Array],
  keys_B: Array,
) -> tuple[Terms, dict]:
  def loss(params: dict) -> tuple[Array, Terms]:
    terms = evaluate(params, inputs, keys_B)
    return total_loss(terms, loss_weights), terms

  grads, terms = jax.grad(loss, has_aux=True)(params)
  return terms, grads


def _accumulated_gradient(
  evaluate: Callable[..., Terms],
  loss_weights: Mapping[str, Array | float],
  params: dict,
  inputs: dict[str, Array],
  keys_B: Array,
  num_microbatches: int,
) -> tuple[Terms, dict]:
  """Computes the gradient of the whole batch, one micro-batch at a time.

  Some counts (kept slots) are known only after the last micro-batch. So the sum
  of each term has its own gradient tree, which is divided at the end. This
  costs memory, but hardly any time: the backward passes of the terms overlap
  little, and XLA merges equal forward passes.
  """

  def split(x: Array) -> Array:
    # Each micro-batch takes every n-th row, so that rows stay on their device.
    n = num_microbatches
    rows = x.reshape(len(x) // n, n, *x.shape[1:])
    return jnp.moveaxis(rows, 1, 0)

  def term_gradients(inputs: dict, keys_B: Array) -> tuple[dict, Terms]:
    def compute_sums(params: dict) -> tuple[dict[str, Array], Terms]:
      terms = evaluate(params, inputs, keys_B)
      return {name: terms[name][0] for name in loss_weights}, terms

    # One forward pass, then one backward pass for each sum. A vjp with
    # cotangents 1, 0, 0 would run all backward passes for each sum.
    _, push, terms = jax.linearize(compute_sums, params, has_aux=True)
    grads = {}
    for name in loss_weights:
      transpose = jax.linear_transpose(
        lambda tangents, name=name: push(tangents)[name], params
      )
      (grads[name],) = transpose(jnp.ones(()))
    return grads, terms

  def add(totals: Any, microbatch: Any) -> tuple[Any, None]:
    return jax.tree.map(jnp.add, totals, term_gradients(*microbatch)), None

  microbatches = jax.tree.map(split, (inputs, keys_B))
  shapes = jax.eval_shape(
    term_gradients, *jax.tree.map(lambda x: x[0], microbatches)
  )
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  (grads, terms), _ = jax.lax.scan(add, zeros, microbatches)
  scales = [
    weight / jnp.maximum(terms[name][1], 1.0)
    for name, weight in loss_weights.items()
  ]

  def combine(*grads: Array) -> Any:
    return sum(s * g for s, g in zip(scales, grads, strict=True))

  return terms, jax.tree.map(combine, *(grads[name] for name in loss_weights))


def _update(
  state: TrainState, tx: optax.GradientTransformation, terms: Terms, grads: dict
) -> tuple[TrainState, Terms]:
  """Updates parameters and optimizer if the gradient is finite."""
  grad_norm = optax.tree.norm(grads)
  finite = jnp.isfinite(grad_norm)
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  params, opt_state = jax.tree.map(
    lambda new, old: jnp.where(finite, new, old),
    (optax.apply_updates(state.params, updates), opt_state),
    (state.params, state.opt_state),
  )
  step = state.step + 1
  state = TrainState(
    step=step,
    params=params,
    # The schedule counts batches, including skipped updates.
    opt_state=_set_schedule_count(opt_state, step),
    key=state.key,
    aux=state.aux,
  )
  # The terms of a skipped batch must not make merged sums NaN.
  terms = jax.tree.map(lambda x: jnp.where(finite, x, 0.0), terms)
  grad_norm = jnp.where(finite, grad_norm, 0.0)
  one = jnp.ones(())
  terms = terms | {
    "grad_norm": (grad_norm, one),
    "skipped": (1.0 - finite.astype(jnp.float32), one),
  }
  return state, terms


def _set_schedule_count(
  opt_state: optax.OptState, count: Array
) -> optax.OptState:
  return jax.tree.map(
    lambda s: (
      s._replace(count=count)
      if isinstance(s, optax.ScaleByScheduleState)
      else s
    ),
    opt_state,
    is_leaf=lambda s: isinstance(s, optax.ScaleByScheduleState),
  )
