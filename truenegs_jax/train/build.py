"""From a config to the objects of a run: model, objective, optimizer, state.

The one place that reads names out of a ConfigDict and gives numbers to the
functions that want numbers; training, evaluation and export all build here.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.errors import InputError
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import electra, masking, regularizers
from truenegs_jax.synonyms.sources import synonym_source
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import optim, sharding, step, writers

PREDICTIONS = ("argmax", "sample")
NORMALIZERS = ("kept", "slots")
DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Run:
  """What a config describes, before any array exists."""

  model: pretrain.ElectraPair
  options: electra.ElectraOptions
  weights: Mapping[str, float]
  rate: optim.Schedule
  tx: optax.GradientTransformation
  mesh_spec: sharding.MeshSpec

  def objective(self, *, train: bool) -> step.Objective:
    """The ELECTRA objective over this model."""
    return functools.partial(
      electra.electra_terms,
      model=self.model,
      options=self.options,
      train=train,
    )

  def init_state(self, seed: int) -> step.TrainState:
    """A fresh state; pure, so that it can be jitted onto a mesh."""
    init_params = functools.partial(pretrain.init_params, self.model)
    return step.init_state(init_params, self.tx, seed)


def build_run(c: ConfigDict, tokenizer: Tokenizer) -> Run:
  """Builds a pre-training run from a config that `check_config` has passed."""
  n = c.negatives
  options = electra.ElectraOptions(
    masking=masking.MaskingOptions(
      mask_id=tokenizer.mask,
      never_masked=(tokenizer.cls, tokenizer.sep, tokenizer.mask),
      mask_prob=c.generator.mask_prob,
    ),
    temperature=c.generator.temperature,
    hard_correction=n.hard_correction,
    prediction=n.prediction,
    normalizer=n.normalizer,
    soft=n.soft,
    soft_weight=n.soft_weight,
  )
  weights = {
    "mlm": c.generator.loss_weight,
    "detect": c.generator.detect_weight,
  }
  if n.soft_weight:
    weights["soft"] = n.soft_weight
  rate = optim.make_schedule(
    c.optim.schedule,
    peak=c.optim.lr,
    warmup_steps=c.optim.warmup_steps,
    total_steps=c.steps,
  )
  tx = optim.make_optimizer(
    rate,
    weight_decay=c.optim.weight_decay,
    clip_norm=c.optim.clip_norm,
    b1=c.optim.b1,
    b2=c.optim.b2,
    epsilon=c.optim.epsilon,
  )
  return Run(
    model=build_model(c, vocab_size=len(tokenizer.vocab)),
    options=options,
    weights=weights,
    rate=rate,
    tx=tx,
    mesh_spec=sharding.get_spec(c.mesh.preset),
  )


def build_model(c: ConfigDict, *, vocab_size: int) -> pretrain.ElectraPair:
  """The generator and discriminator that a config describes."""
  return pretrain.make_pair(
    vocab_size=vocab_size,
    variant=c.model.variant,
    generator_multiplier=c.generator.multiplier,
    backbone=c.model.backbone,
    max_positions=c.model.max_positions,
    dropout=c.model.dropout,
    attention_dropout=c.model.attention_dropout,
    initializer_range=c.model.initializer_range,
    dtype=c.model.dtype,
  )


def check_config(c: ConfigDict) -> None:
  """Refuses values that no run can have, before anything is read or made."""
  positive = {
    "steps": c.steps,
    "batch_size": c.batch_size,
    "length": c.length - 3,  # [CLS], [SEP] and something to mask
    "optim.accumulation": c.optim.accumulation,
    "optim.lr": c.optim.lr,
    "optim.clip_norm": c.optim.clip_norm,
    "generator.multiplier": c.generator.multiplier,
    "generator.temperature": c.generator.temperature,
    "checkpoint.every_steps": c.checkpoint.every_steps,
    "checkpoint.keep": c.checkpoint.keep,
    "log.every_steps": c.log.every_steps,
    "eval.every_steps": c.eval.every_steps,
    "eval.rows": c.eval.rows,
  }
  for name, value in positive.items():
    if not value > 0:  # NaN too
      least = "at least 4" if name == "length" else "positive"
      shown = c.length if name == "length" else value
      raise InputError(f"{name} is {shown}; it must be {least}.")
  for name, value in {
    "generator.mask_prob": c.generator.mask_prob,
    "model.dropout": c.model.dropout,
    "model.attention_dropout": c.model.attention_dropout,
    "data.held_out": c.data.held_out,
  }.items():
    if not 0 <= value < 1:
      raise InputError(f"{name} is {value}; it must lie in [0, 1).")
  if c.generator.mask_prob > 0.9:  # K slots must fit beside [CLS] and [SEP]
    raise InputError(
      f"generator.mask_prob is {c.generator.mask_prob}; it must be at most 0.9."
    )
  if c.length > c.model.max_positions:
    raise InputError(
      f"length {c.length} is over model.max_positions"
      f" {c.model.max_positions}; lower one or raise the other."
    )
  _check_names(c)
  shares = jax.device_count() * c.optim.accumulation
  if c.batch_size % shares:
    near = max(c.batch_size // shares, 1) * shares
    raise InputError(
      f"batch_size {c.batch_size} must be a multiple of {shares}"
      f" ({jax.device_count()} devices x {c.optim.accumulation} micro-batches);"
      f" try --config.batch_size={near}."
    )


def make_aux(
  table: SynonymTable | None, mesh: jax.sharding.Mesh
) -> dict[str, jax.Array]:
  """Device arrays that are no parameters: the synonym table's bits, if any."""
  if table is None:
    return {}
  bits_VxW = np.asarray(table.bits_VxW)
  return {"bits_VxW": jax.device_put(bits_VxW, sharding.replicated(mesh))}


def _check_names(c: ConfigDict) -> None:
  """Looks everything up that the config names; each look-up can refuse."""
  _one_of("task", c.task, ("pretrain",))
  _one_of("data.tokenizer", c.data.tokenizer, ("fast",))
  _one_of("model.dtype", c.model.dtype, DTYPES)
  _one_of("negatives.prediction", c.negatives.prediction, PREDICTIONS)
  _one_of("negatives.normalizer", c.negatives.normalizer, NORMALIZERS)
  build_model(c, vocab_size=1)
  optim.make_schedule(c.optim.schedule, peak=1, warmup_steps=1, total_steps=1)
  regularizers.get(c.negatives.soft)
  sharding.get_spec(c.mesh.preset)
  synonym_source(c.negatives.sources)
  writers.check_names(c.log.writers)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
  if value not in known:
    raise InputError(f"{name} {value!r} is unknown; known: {', '.join(known)}.")
