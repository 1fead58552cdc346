"""Our training step, as benchmarks/step_peer.py takes it."""

from typing import Any

import jax
import numpy as np
import steps

from truenegs_jax.configs import electra_small
from truenegs_jax.objectives import masking, slot_predictions
from truenegs_jax.runtime import rng
from truenegs_jax.train import step as step_lib
from truenegs_jax.weights.formats import hf_folder, hf_names

Draws = tuple[np.ndarray, ...]


class OwnStep:
  """What main.py runs with configs/electra_small.py, on made rows."""

  def __init__(self, recipe: str, *, batch: int, length: int, dropout: float):
    """Compiles the step; the second one has the whole rate."""
    c = electra_small.get_config(recipe)
    c.batch_size, c.length, c.optim.warmup_steps = batch, length, 50
    c.model.dropout = c.model.attention_dropout = dropout
    self._c, self._made = c, steps.make_step(c)
    self._run = self._made.run
    self._state, self._done = self._made.start(), 0
    self._draws = jax.jit(self._drawn)
    self._loss = jax.jit(self._weighted)

  def given(self, batches: int) -> dict[str, Any]:
    """What the other side starts from: weights, rows and numbers."""
    c, model, options = self._c, self._run.model, self._run.options
    params = jax.tree.map(np.asarray, self._state.params)
    return {
      "configs": {
        role: hf_folder.model_config(model, role, pad=0) for role in model.roles
      },
      "tensors": {
        role: hf_names.to_huggingface(params, model, role)
        for role in model.roles
      },
      "tokens": [self._made.host_batch(i)["tokens"] for i in range(batches)],
      "slots": round(c.masking.prob * c.length),
      "mask_id": options.masking.mask_id,
      "kept": masking.get_style(c.masking.style).kept,
      "detect_weight": c.generator.detect_weight,
      "optim": {**c.optim.to_dict(), "total_steps": c.steps},
      "flops": self._made.flops,
    }

  def step(self) -> float:
    """One update; returns its loss."""
    batch = self._made.batch(self._done)
    self._state, terms = self._made.compiled(self._state, batch, self._made.aux)
    self._done += 1
    return float(self._loss(terms, self._done - 1))

  def draws(self) -> Draws:
    """What the next step will draw: tokens, those masked, slots, samples."""
    batch = self._made.batch(self._done)
    found = self._draws(self._state, batch)
    tokens_BxL, *drawn = map(np.asarray, (batch["tokens"], *found))
    used = round(self._c.masking.prob * self._c.length)
    masked_BxL, positions_BxK, sampled_BxK = drawn
    return (
      tokens_BxL,
      masked_BxL,
      positions_BxK[:, :used],
      sampled_BxK[:, :used],
    )

  def product(self, size: int) -> Any:
    """A call that multiplies two square matrices of `size`."""
    x, w = jax.random.normal(jax.random.key(0), (2, size, size))
    multiply = jax.jit(lambda x, w: x @ w)
    return lambda: multiply(x, w).block_until_ready()

  def _drawn(self, state, batch):
    keys_B = rng.row_keys(state.key, state.step, batch["row"])
    found = slot_predictions.mask_and_predict(
      self._run.model.bind({"params": state.params}),
      batch,
      keys_B,
      self._run.options,
      train=True,
    )
    return found.masked_BxL, found.slots.positions_BxK, found.sampled_BxK

  def _weighted(self, terms, t):
    return step_lib.total_loss(
      terms, step_lib.loss_weights_at(self._run.loss_weights, t)
    )
