"""Adam, weight decay and learning-rate schedules as ELECTRA and BERT have them.

Source: google-research/electra, `model/optimization.py`.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from truenegs_jax.runtime.errors import InputError, one_of

Array = jax.Array
Schedule = Callable[[Array | int], Array]

# Of `make_optimizer`, as the section `optim` of a config names them.
OPTIMIZER_KEYS = ("weight_decay", "clip_norm", "b1", "b2", "epsilon")
LAYER_EXPONENTS = ("released", "paper")
NOT_DECAYED = ("bias", "scale")  # every bias, and the gain of every layer norm


def electra_schedule(
  peak: float, warmup_steps: int, total_steps: int
) -> Schedule:
  """peak * (1 - t/T) * min(1, t/warmup): both at once, so the peak is never
  reached and the first update has a rate of 0."""

  def rate(step):
    step = jnp.asarray(step, jnp.float32)
    decay = 1.0 - jnp.minimum(step / total_steps, 1.0)
    return peak * decay * jnp.minimum(step / max(warmup_steps, 1), 1.0)

  return rate


def bert_schedule(peak: float, warmup_steps: int, total_steps: int) -> Schedule:
  """Linear warm-up to the peak, then the decayed value: a small step down
  where they meet (google-research/bert, `optimization.py`)."""

  def rate(step):
    step = jnp.asarray(step, jnp.float32)
    decayed = peak * (1.0 - jnp.minimum(step / total_steps, 1.0))
    warming = peak * step / max(warmup_steps, 1)
    return jnp.where(step < warmup_steps, warming, decayed)

  return rate


SCHEDULES: dict[str, Callable[[float, int, int], Schedule]] = {
  "electra": electra_schedule,
  "bert": bert_schedule,
}


def make_schedule(
  name: str, *, peak: float, warmup_steps: int, total_steps: int
) -> Schedule:
  """Looks a schedule up by name; InputError lists the known ones."""
  one_of("optim.schedule", name, SCHEDULES)
  return SCHEDULES[name](peak, warmup_steps, total_steps)


def loss_weight_schedule(
  name: str, weight: float, steps: int
) -> float | Schedule:
  """How the weight of a loss changes with the step.

  Args:
    name: "constant"; "warmup": linearly from 0; "delay": 0 before `steps`;
      "decay": linearly to 0.
    weight: its largest value.
    steps: how long the change takes.

  Raises:
    InputError: an unknown name.
  """
  changes: dict[str, float | Schedule] = {
    "constant": weight,
    "warmup": optax.linear_schedule(0.0, weight, max(steps, 1)),
    "delay": lambda step: weight * (jnp.asarray(step) >= steps),
    "decay": optax.linear_schedule(weight, 0.0, max(steps, 1)),
  }
  one_of("negatives.soft_schedule", name, changes)
  return changes[name]


def make_optimizer(
  rate: Schedule,
  *,
  weight_decay: float = 0.01,
  clip_norm: float = 1.0,
  b1: float = 0.9,
  b2: float = 0.999,
  epsilon: float = 1e-6,
  carried: tuple[str, ...] = (),
  factors: Any = None,
) -> optax.GradientTransformation:
  """Clip the joint norm, Adam without bias correction, decoupled decay.

  `carried` names parts of the parameters that get no gradient and are to stay
  as they are: nothing decays in them. `factors`, from `layer_lr_factors`,
  multiply the rate of each parameter, hence its decay as well.
  """
  parts = [
    optax.clip_by_global_norm(clip_norm),
    scale_by_plain_adam(b1, b2, epsilon),
    optax.add_decayed_weights(
      weight_decay, mask=functools.partial(decay_mask, carried=carried)
    ),
    optax.scale_by_learning_rate(rate),
  ]
  if factors is not None:
    multiply = functools.partial(jax.tree.map, operator.mul)
    parts.append(optax.stateless(lambda updates, _: multiply(updates, factors)))
  return optax.chain(*parts)


def layer_lr_factors(
  params: optax.Params, *, decay: float, exponent: str = "released"
) -> Any:
  """Factors of each parameter's rate in fine-tuning: smaller further down.

  With n layers, layer j is at depth j + 1 and has decay ** (n + 2 - depth); the
  embeddings and their projection are at depth 0, a norm after the last layer is
  at the depth of that layer, and what is no part of the network, the heads, has
  1. So `_get_layer_lrs` of google-research/electra, `model/optimization.py`.

  Args:
    params: of a network, `layer_0`, `layer_1`, ..., its `embeddings` and heads;
      arrays or their shapes.
    decay: in (0, 1]; 0.8 in ELECTRA-small and -base, 0.9 in -large.
    exponent: "released": the last layer has decay ** 2; "paper", what Clark et
      al. 2020 describe: one less, so it has `decay`.

  Returns:
    A float for each parameter, in the same tree.

  Raises:
    InputError: another `exponent`, or a `decay` beyond its range.
  """
  if not 0.0 < decay <= 1.0:
    raise InputError(
      f"finetune.layer_decay={decay:g} must be above 0 and at most 1, which is"
      " one rate for all layers; ELECTRA has 0.8 (large: 0.9)."
    )
  one_of("finetune.layer_exponent", exponent, LAYER_EXPONENTS)
  counts = {
    part: sum(name.startswith("layer_") for name in inner)
    for part, inner in params.items()
  }
  top = max(counts.values()) + (2 if exponent == "released" else 1)

  def factor(path: tuple[Any, ...], _: Any) -> float:
    part, inner = path[0].key, path[1].key
    if part == "embeddings" or inner == "project":
      depth = 0
    elif inner.startswith("layer_"):
      depth = int(inner.removeprefix("layer_")) + 1
    elif counts[part]:
      depth = counts[part]  # the norm after the last layer
    else:
      return 1.0
    return decay ** (top - depth)

  return jax.tree_util.tree_map_with_path(factor, params)


class PlainAdamState(NamedTuple):
  """Holds the running means of gradients and of their squares."""

  mean: optax.Params
  square: optax.Params


def scale_by_plain_adam(
  b1: float, b2: float, epsilon: float
) -> optax.GradientTransformation:
  """m / (sqrt(v) + epsilon), with no correction for the zeros m, v start from.

  `optax.scale_by_adam` always corrects; released BERT and ELECTRA never do.
  """

  def init(params):
    # Two trees: buffers that are one and the same cannot both be donated.
    zeros = lambda: jax.tree.map(jnp.zeros_like, params)
    return PlainAdamState(mean=zeros(), square=zeros())

  def update(grads, state, params=None):
    del params
    mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, grads)
    square = jax.tree.map(
      lambda v, g: b2 * v + (1 - b2) * g * g, state.square, grads
    )
    scaled = jax.tree.map(
      lambda m, v: m / (jnp.sqrt(v) + epsilon), mean, square
    )
    return scaled, PlainAdamState(mean, square)

  return optax.GradientTransformation(init, update)


def decay_mask(params: optax.Params, *, carried: tuple[str, ...] = ()) -> Any:
  """True for the kernels and tables, which decay; by the parameter's name."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: (
      path[-1].key not in NOT_DECAYED and path[0].key not in carried
    ),
    params,
  )
