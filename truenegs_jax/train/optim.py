"""Optimizer and learning-rate schedules of ELECTRA, BERT and ModernBERT.

Source: google-research/electra, `model/optimization.py`.
"""

import functools
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from truenegs_jax.config.sections import Optim

# Of ELECTRA's, BERT's and the paper's code.
CLIP_NORM = 1.0
MEAN_DECAY = 0.9
EPSILON = 1e-6
# Of Muon's code (Jordan et al. 2024).
MUON_DECAY = 0.95  # of the momentum
NEWTON_SCHULZ = 5 * [(3.4445, -4.7750, 2.0315)]  # of the powers 1, 3 and 5
MUON_RMS = 0.2  # root mean square of updates before the learning rate
HIGH_RATE = 0.05  # above it, runs draw a warning

Array = jax.Array
Schedule = Callable[[Array | int], Array]


def make_schedule(
  name: str,
  *,
  peak: float,
  warmup_steps: int,
  total_steps: int,
  decay_steps: int = 0,
) -> Schedule:
  """Makes the learning-rate schedule of `optim.schedule`.

  "electra" is peak * (1 - t/T) * min(1, t/warmup). Warm-up and decay overlap,
  so the rate never reaches the peak. "bert" rises linearly to the peak and then
  falls linearly. Its decay is counted from step 0, so the rate drops a little
  at the end of the warm-up (google-research/bert, `optimization.py`). "wsd"
  (warm-up, stable, decay) rises linearly, stays at the peak, and after t of its
  last `decay_steps` is peak * (1 - sqrt(t / decay_steps)). The first update has
  a rate of 0, except in "bert" and "wsd" without warm-up.
  """

  def fall(step: Array | int) -> Array:
    # Divided by 1, a run without decay would round otherwise than its branches.
    share = jnp.clip(step / (decay_steps + 1e-9), 0.0, 1.0)
    return peak * (1.0 - jnp.sqrt(share))

  if name == "wsd":
    rise = optax.linear_schedule(0.0, peak, warmup_steps)
    pieces = [rise, optax.constant_schedule(peak), fall]
    ends = [warmup_steps, total_steps - decay_steps]
    return optax.join_schedules(pieces, ends)

  def rate(step: Array | int) -> Array:
    step = jnp.asarray(step, jnp.float32)
    decay = 1.0 - jnp.minimum(step / total_steps, 1.0)
    if name == "electra":
      return peak * decay * jnp.minimum(step / max(warmup_steps, 1), 1.0)
    warming = peak * step / max(warmup_steps, 1)
    return jnp.where(step < warmup_steps, warming, peak * decay)

  return rate


def report_high_rate(rate: float, report: Callable[[str], None]) -> None:
  """Reports a peak learning rate that is too high for Adam."""
  if rate > HIGH_RATE:
    report(
      f"warning: optim.lr={rate:g} is more than {HIGH_RATE:g}. Adam moves each"
      " weight by about that much in a step, and the network hardly learns."
      " Start a new run with --config.optim.lr=0.001 or less."
    )


def make_optimizer(
  rate: Schedule,
  options: Optim,
  *,
  frozen: tuple[str, ...] = (),
  clip_apart: str = "",
  lr_factors: dict | None = None,
) -> optax.GradientTransformation:
  """Chains clipping, Adam without bias correction and decoupled weight decay.

  With `muon_lr`, Muon takes the place of Adam for kernels of layers. Their
  updates, but not their decay, are multiplied by `muon_lr / lr`.
  `rate` also multiplies the decay, and so does `lr_factors`, the result of
  `layer_lr_factors`. `frozen` has top-level names of parameters that get no
  gradient and do not decay. Names that start with `clip_apart` are clipped by
  their own norm, and the others by theirs.
  """

  def is_decayed(path: jax.tree_util.KeyPath, _: object) -> bool:
    layer = path[0].key
    name = path[-1].key
    return name not in ("bias", "scale") and layer not in frozen

  scale = scale_by_plain_adam(options)
  if options.muon_lr:
    by_muon = [scale_by_muon(), optax.scale(options.muon_lr / options.lr)]
    scale = optax.partition(
      {"adam": scale, "muon": optax.chain(*by_muon)},
      functools.partial(jax.tree_util.tree_map_with_path, _choose_optimizer),
    )
  clip = optax.clip_by_global_norm(CLIP_NORM)
  if clip_apart:
    clip = optax.partition(
      {True: clip, False: clip},
      lambda tree: {name: name.startswith(clip_apart) for name in tree},
    )
  transforms = [
    clip,
    scale,
    optax.add_decayed_weights(
      options.weight_decay,
      mask=functools.partial(jax.tree_util.tree_map_with_path, is_decayed),
    ),
    optax.scale_by_learning_rate(rate),
  ]
  if lr_factors is not None:
    transforms.append(
      optax.stateless(lambda u, _: jax.tree.map(operator.mul, u, lr_factors))
    )
  return optax.chain(*transforms)


def layer_lr_factors(params: optax.Params, *, decay: float) -> dict:
  """Makes factors of the learning rate for layer-wise decay in fine-tuning.

  With n layers, layer j is at depth j + 1 and has the factor
  decay ** (n + 2 - depth). The embeddings and their projection are at depth 0,
  a norm after the last layer is at the depth of that layer, and the heads have
  the factor 1 (google-research/electra, `_get_layer_lrs`).
  """
  counts = {
    part: sum(name.startswith("layer_") for name in inner)
    for part, inner in params.items()
  }
  top = max(counts.values()) + 2

  def factor(path: jax.tree_util.KeyPath, _: object) -> float:
    part = path[0].key
    inner = path[1].key
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


def _choose_optimizer(path: jax.tree_util.KeyPath, _: object) -> str:
  """Returns "muon" for kernels of layers, and "adam" for all else."""
  names = [key.key for key in path]
  in_layer = any(name.startswith("layer_") for name in names)
  return "muon" if in_layer and names[-1] == "kernel" else "adam"


def scale_by_muon() -> optax.GradientTransformation:
  """Makes the momentum of each matrix orthogonal (Jordan et al. 2024, "Muon").

  The weights of a matrix get updates of 0.2 in the root mean square, about as
  Adam's (Liu et al. 2025, "Muon is scalable", equation 4). A kernel
  `[D, parts, F]` is as many matrices.
  """

  def scale(momentum: Array) -> Array:
    if momentum.ndim == 3:
      return jnp.stack([*map(scale, jnp.unstack(momentum, axis=1))], axis=1)
    return MUON_RMS * max(momentum.shape) ** 0.5 * _orthogonalize(momentum)

  return optax.chain(
    optax.trace(MUON_DECAY, nesterov=True),
    optax.stateless(lambda momenta, _: jax.tree.map(scale, momenta)),
  )


def _orthogonalize(matrix_DxF: Array) -> Array:
  """Brings the singular values of a matrix near 1, by Newton-Schulz steps.

  `optax.contrib.scale_by_muon` takes almost twice as long on a CPU, because
  its products have three axes.
  """
  is_tall = matrix_DxF.shape[0] > matrix_DxF.shape[1]
  x = matrix_DxF.T if is_tall else matrix_DxF
  x = x / (jnp.linalg.norm(x) + EPSILON)
  for linear, cubic, quintic in NEWTON_SCHULZ:
    gram = x @ x.T
    x = linear * x + (cubic * gram + quintic * gram @ gram) @ x
  return x.T if is_tall else x


class PlainAdamState(NamedTuple):
  """Running means of gradients and of squared gradients."""

  mean: optax.Params
  square: optax.Params


def scale_by_plain_adam(options: Optim) -> optax.GradientTransformation:
  """Scales gradients to mean / (sqrt(square) + epsilon).

  The released code of BERT and ELECTRA does not correct the bias of these
  running means, which start from 0; `optax.scale_by_adam` always does.
  """
  b1 = MEAN_DECAY
  b2 = options.b2

  def init(params: optax.Params) -> PlainAdamState:
    # Separate buffers, because one buffer cannot be donated twice.
    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    return PlainAdamState(mean=zeros(params), square=zeros(params))

  def update(
    grads: optax.Updates, state: PlainAdamState, _: optax.Params | None = None
  ) -> tuple[optax.Updates, PlainAdamState]:
    mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, grads)
    square = jax.tree.map(
      lambda v, g: b2 * v + (1 - b2) * g * g, state.square, grads
    )
    steps = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + EPSILON), mean, square)
    return steps, PlainAdamState(mean, square)

  return optax.GradientTransformation(init, update)
