"""Runs this package's training step for benchmarks/step_peer.py."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import steps

from truenegs_jax.configs import electra_small
from truenegs_jax.objectives import masking, slot_predictions
from truenegs_jax.runtime import rng
from truenegs_jax.train import optim
from truenegs_jax.train import step as step_lib
from truenegs_jax.weights import hf_config, hf_names


class OwnStep:
  """The training step of configs/electra_small.py, on random rows."""

  def __init__(
    self,
    recipe: str,
    *,
    variant: str,
    batch: int,
    length: int,
    dropout: float,
    dtype: str,
  ):
    """Compiles the step of a recipe."""
    c = electra_small.get_config(recipe)
    c.batch_size = batch
    c.length = length
    c.optim.warmup_steps = 50
    c.model.variant = variant
    c.model.dropout = dropout
    c.model.dtype = dtype
    self._c = c
    self._step = steps.make_step(c)
    self._run = self._step.run
    self._state = self._step.init_state()
    self._count = 0
    self._draw = jax.jit(self._draw_masks_and_samples)
    self._total_loss = jax.jit(self._weight_losses)

  def peer_inputs(self, batches: int) -> dict[str, Any]:
    """Returns the inputs of `torch_step.TorchStep`, with `batches` of rows."""
    c = self._c
    model = self._run.model
    params = jax.tree.map(np.asarray, self._state.params)
    return {
      "configs": {
        role: hf_config.make_fields(model, role, pad=0) for role in model.roles
      },
      "tensors": {
        role: hf_names.to_huggingface(params, model, role)
        for role in model.roles
      },
      "tokens": [self._step.host_batch(i)["tokens"] for i in range(batches)],
      "slots": round(c.masking.prob * c.length),
      "mask_id": self._run.options.masking.mask_id,
      "kept": masking.STYLES[c.masking.style].kept,
      "detect_weight": c.generator.detect_weight,
      "optim": {
        **c.optim.to_dict(),
        "b1": optim.MEAN_DECAY,
        "clip_norm": optim.CLIP_NORM,
        "epsilon": optim.EPSILON,
        "total_steps": c.steps,
      },
      "flops": self._step.flops,
    }

  def step(self) -> float:
    """Updates the weights once; returns the loss."""
    batch = self._step.batch(self._count)
    self._state, terms = self._step.compiled(self._state, batch, self._step.aux)
    self._count += 1
    return float(self._total_loss(terms))

  def draws(self) -> tuple[np.ndarray, ...]:
    """Returns the next step's tokens, masked tokens, positions and samples."""
    batch = self._step.batch(self._count)
    arrays = self._draw(self._state, batch)
    tokens_BxL = np.asarray(batch["tokens"])
    masked_BxL, positions_BxK, sampled_BxK = map(np.asarray, arrays)
    used = np.s_[:, : round(self._c.masking.prob * self._c.length)]
    return tokens_BxL, masked_BxL, positions_BxK[used], sampled_BxK[used]

  def product(self, size: int) -> Callable[[], jax.Array]:
    """Returns a call that multiplies two square matrices of `size`."""
    x, w = jax.random.normal(
      jax.random.key(0), (2, size, size), self._c.model.dtype
    )
    multiply = jax.jit(lambda x, w: x @ w)
    return lambda: multiply(x, w).block_until_ready()

  def _draw_masks_and_samples(self, state, batch):
    keys_B = rng.row_keys(state.key, state.step, batch["row"])
    model = self._run.model.bind({"params": state.params})
    x = slot_predictions.mask_and_predict(
      model, batch, keys_B, {}, self._run.options, train=True
    )
    return x.masked_BxL, x.slots.positions_BxK, x.sampled_BxK

  def _weight_losses(self, terms):
    return step_lib.total_loss(terms, self._run.loss_weights)
