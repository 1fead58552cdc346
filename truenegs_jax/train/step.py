"""The one training step: knows neither ELECTRA nor GLUE, owns the weights.

An objective is `fn(params, inputs, keys_B, aux) -> {name: (sum, count)}`. The
loss is the sum over the weighted names of weight * sum / count, with the counts
of the whole global batch, however it is split over devices or micro-batches.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax

from truenegs_jax.runtime import rng

Array = jax.Array
Terms = dict[str, tuple[Array, Array]]
Objective = Callable[..., Terms]
LossWeight = float | Callable[[Array | int], Array]  # or a schedule of the step


@dataclasses.dataclass(frozen=True)
class TrainState:
  """All that a run is, beside its data and its config.

  `step` (int32) counts the batches taken, skipped updates included; `key` is
  the root key, the same during the whole run. `aux` holds device arrays that
  the run itself has made and that are no parameters; the objective gets them
  beside those that come from outside.
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
  """A fresh state; pure, so that it can be jitted straight onto a mesh."""
  params = init_params(jax.random.key(seed))
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=params,
    opt_state=tx.init(params),
    # Not the key that the parameters were drawn with.
    key=jax.random.fold_in(jax.random.key(seed), 1),
  )


def make_train_step(
  objective: Objective,
  weights: Mapping[str, LossWeight],
  tx: optax.GradientTransformation,
  num_microbatches: int = 1,
) -> Callable[[TrainState, dict, Mapping], tuple[TrainState, Terms]]:
  """Builds `step(state, batch, aux) -> (state, terms)`.

  A batch whose gradient is not finite leaves parameters and optimizer as they
  were and is reported as `skipped`; the step is counted all the same.
  """

  def step(state, batch, aux):
    keys_B = rng.row_keys(state.key, state.step, batch["row"])
    inputs = {name: batch[name] for name in batch if name != "row"}
    evaluate = lambda params, inputs, keys_B: objective(
      params, inputs, keys_B, {**aux, **state.aux}
    )
    now = loss_weights_at(weights, state.step)
    if num_microbatches == 1:
      terms, grads = _whole_gradient(
        evaluate, now, state.params, inputs, keys_B
      )
    else:
      terms, grads = _accumulated_gradient(
        evaluate, now, state.params, inputs, keys_B, num_microbatches
      )
    return _apply(state, tx, terms, grads)

  return step


def make_eval_step(
  objective: Objective, seed: int
) -> Callable[[dict, dict, Mapping], Terms]:
  """Builds `evaluate(params, batch, aux) -> terms`, with the same draws for a
  held-out row at every evaluation of every run of this seed."""

  def evaluate(params, batch, aux):
    key = jax.random.fold_in(jax.random.key(seed), 2)
    keys_B = rng.row_keys(key, 0, batch["row"])
    inputs = {name: batch[name] for name in batch if name != "row"}
    return objective(params, inputs, keys_B, aux)

  return evaluate


def loss_weights_at(
  weights: Mapping[str, LossWeight], step: Array | int
) -> dict[str, Array | float]:
  """The weight of each term at a step."""
  return {
    name: weight(step) if callable(weight) else weight
    for name, weight in weights.items()
  }


def total_loss(terms: Terms, weights: Mapping[str, Array | float]) -> Array:
  """The one division: weight * sum / count; an empty term counts 0."""
  shares = [
    weight * terms[name][0] / jnp.maximum(terms[name][1], 1.0)
    for name, weight in weights.items()
  ]
  return sum(shares, jnp.zeros(()))


def _whole_gradient(evaluate, weights, params, inputs, keys_B):
  def loss(params):
    terms = evaluate(params, inputs, keys_B)
    return total_loss(terms, weights), terms

  grads, terms = jax.grad(loss, has_aux=True)(params)
  return terms, grads


def _accumulated_gradient(evaluate, weights, params, inputs, keys_B, num):
  """The gradient of the whole batch, a micro-batch at a time.

  A count (kept slots) may be known only after the forward pass of the last
  micro-batch. So each term's sum has a gradient tree of its own, divided at
  the end. The terms' backward graphs hardly overlap and XLA merges their equal
  forward passes, so this costs memory for trees, not passes over the data.
  """

  def slices(x):
    # Every num-th row: a device's slice of the batch stays on the device.
    split = x.reshape(x.shape[0] // num, num, *x.shape[1:])
    return jnp.moveaxis(split, 1, 0)

  def term_gradients(inputs, keys_B):
    def sums(params):
      terms = evaluate(params, inputs, keys_B)
      return {name: terms[name][0] for name in weights}, terms

    # One forward pass; then the backward pass of each sum alone. (A vjp with
    # cotangents 1, 0, 0 would run all of them for each.)
    _, push, terms = jax.linearize(sums, params, has_aux=True)
    grads = {}
    for name in weights:
      one_sum = lambda tangents, name=name: push(tangents)[name]
      (grads[name],) = jax.linear_transpose(one_sum, params)(jnp.ones(()))
    return grads, terms

  def add(sums, micro):
    return jax.tree.map(jnp.add, sums, term_gradients(*micro)), None

  micro = jax.tree.map(slices, (inputs, keys_B))
  shapes = jax.eval_shape(term_gradients, *jax.tree.map(lambda x: x[0], micro))
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  (grads, terms), _ = jax.lax.scan(add, zeros, micro)
  scale = {
    name: weight / jnp.maximum(terms[name][1], 1.0)
    for name, weight in weights.items()
  }
  combined = jax.tree.map(
    lambda *leaves: sum(
      s * g for s, g in zip(scale.values(), leaves, strict=True)
    ),
    *(grads[name] for name in scale),
  )
  return terms, combined


def _apply(
  state: TrainState,
  tx: optax.GradientTransformation,
  terms: Terms,
  grads: dict,
) -> tuple[TrainState, Terms]:
  grad_norm = optax.tree.norm(grads)
  finite = jnp.isfinite(grad_norm)
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  keep = lambda new, old: jax.tree.map(
    lambda n, o: jnp.where(finite, n, o), new, old
  )
  state = TrainState(
    step=state.step + 1,
    params=keep(params, state.params),
    # The schedule goes by the batches taken, not by the updates made.
    opt_state=_with_count(keep(opt_state, state.opt_state), state.step + 1),
    key=state.key,
    aux=state.aux,
  )
  # A batch that was skipped must not turn the sums of many into NaN.
  terms = jax.tree.map(lambda x: jnp.where(finite, x, 0.0), terms)
  grad_norm = jnp.where(finite, grad_norm, 0.0)
  one = jnp.ones(())
  terms = terms | {
    "grad_norm": (grad_norm, one),
    "skipped": (1.0 - finite.astype(jnp.float32), one),
  }
  return state, terms


def _with_count(opt_state: optax.OptState, count: Array) -> optax.OptState:
  """Sets the step that the schedule will see next."""
  return jax.tree.map(
    lambda s: (
      s._replace(count=count)
      if isinstance(s, optax.ScaleByScheduleState)
      else s
    ),
    opt_state,
    is_leaf=lambda s: isinstance(s, optax.ScaleByScheduleState),
  )
