"""From a config to the objects of a run: model, objective, optimizer, state.

The one place that reads names out of a ConfigDict and gives numbers to the
functions that want numbers; training, evaluation and export all build here.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from truenegs_jax.data import encode, layouts
from truenegs_jax.data.tokenizer import ACCENTS, Tokenizer, load_tokenizer
from truenegs_jax.errors import InputError
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import electra, masking, regularizers
from truenegs_jax.synonyms.sources import synonym_source
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import optim, sharding, step, writers

PREDICTIONS = ("argmax", "sample")
NORMALIZERS = ("kept", "slots")
DTYPES = ("float32", "bfloat16")

TINY = 1e-12  # the least of what must be more than 0
RANGES = (
  ("steps", 1, math.inf),
  ("batch_size", 1, math.inf),
  ("length", layouts.MIN_LENGTH, math.inf),
  ("seed", 0, math.inf),
  ("model.dropout", 0, 0.99),
  ("model.attention_dropout", 0, 0.99),
  ("model.initializer_range", TINY, 1),
  ("generator.mask_prob", TINY, 0.9),
  ("generator.multiplier", TINY, math.inf),
  ("generator.temperature", TINY, math.inf),
  ("generator.loss_weight", 0, math.inf),
  ("generator.detect_weight", 0, math.inf),
  ("negatives.soft_weight", 0, math.inf),
  ("data.held_out", TINY, 0.5),
  ("data.seed", 0, math.inf),
  ("data.workers", 0, math.inf),
  ("optim.accumulation", 1, math.inf),
  ("optim.lr", TINY, math.inf),
  ("optim.warmup_steps", 0, math.inf),
  ("optim.weight_decay", 0, math.inf),
  ("optim.clip_norm", TINY, math.inf),
  ("optim.max_skips", 0, math.inf),
  ("checkpoint.every_steps", 1, math.inf),
  ("checkpoint.keep", 1, math.inf),
  ("log.every_steps", 1, math.inf),
  ("eval.every_steps", 1, math.inf),
  ("eval.rows", 1, math.inf),
  ("eval.cases", 0, math.inf),
)


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


def vocabulary_of(c: ConfigDict, path: str) -> Tokenizer:
  """Loads a vocabulary as `c.data` has it."""
  return load_tokenizer(
    path,
    lowercase=c.data.lowercase,
    strip_accents=ACCENTS[c.data.accents],
  )


def check_config(c: ConfigDict) -> None:
  """Refuses values that no run can have, before anything is read or made."""
  for name, low, high in RANGES:
    value = c
    for part in name.split("."):
      value = value[part]
    if not low <= value <= high:  # NaN too
      raise InputError(f"{name} is {value}; it must be {_range(low, high)}.")
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
  _one_of("data.tokenizer", c.data.tokenizer, encode.BACKENDS)
  _one_of("data.accents", c.data.accents, tuple(ACCENTS))
  _one_of("model.dtype", c.model.dtype, DTYPES)
  _one_of("negatives.prediction", c.negatives.prediction, PREDICTIONS)
  _one_of("negatives.normalizer", c.negatives.normalizer, NORMALIZERS)
  build_model(c, vocab_size=1)
  optim.make_schedule(c.optim.schedule, peak=1, warmup_steps=1, total_steps=1)
  regularizers.get(c.negatives.soft)
  sharding.get_spec(c.mesh.preset)
  synonym_source(c.negatives.sources)
  writers.check_names(c.log.writers)


def _range(low: float, high: float) -> str:
  least = "more than 0" if low == TINY else f"at least {low}"
  return least if high == math.inf else f"{least} and at most {high}"


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
  if value not in known:
    raise InputError(f"{name} {value!r} is unknown; known: {', '.join(known)}.")
