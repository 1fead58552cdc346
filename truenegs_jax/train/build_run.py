"""Builds a run (model, objective, optimizer, settings) from a config.

This is the only module of `train` that reads values of a ConfigDict to train.
The others take a `Run`, or some of its values.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import optax
from ml_collections import ConfigDict

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import electra, masking, mlm, slot_predictions
from truenegs_jax.objectives import options as options_lib
from truenegs_jax.objectives.options import Options
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import run_table
from truenegs_jax.synonyms.sources import resolve_auto
from truenegs_jax.train import model_synonyms, optim, sharding, speed, step
from truenegs_jax.workdir.from_config import build_model

OBJECTIVES: dict[str, Callable[..., slot_predictions.Terms]] = {
  "electra": electra.electra_terms,
  "mlm": mlm.mlm_terms,
}


@dataclasses.dataclass(frozen=True)
class Run:
  """A run as its config describes it, without arrays."""

  summary: str  # describes the objective
  config: Mapping[str, Any]  # in JSON's types
  model: pretrain.Model
  options: Options
  terms: Callable[..., slot_predictions.Terms]  # of the objective
  loss_weights: Mapping[str, step.LossWeight]
  learning_rate: optim.Schedule
  tx: optax.GradientTransformation
  # None if synonyms come from another source than the model, or are not used.
  table_builder: model_synonyms.ModelTableBuilder | None
  steps: int
  batch_size: int  # rows per update, over all devices and processes
  length: int  # tokens per row
  packed: bool  # whether a row may have several documents
  seed: int  # of parameters, draws and the order of rows
  accumulation: int  # micro-batches per update
  max_skips: int  # consecutive skipped updates that do not end the run
  init: str  # weights to start from, or ""
  init_skip: str  # what need not match them: words, positions, head
  mesh_preset: str
  mesh_spec: sharding.MeshSpec
  attention: str  # implementation; "auto" chooses by the devices
  table_layout: str
  table_placement: str
  log_every: int  # interval in steps, like the next two
  eval_every: int
  save_every: int
  eval_rows: int  # held-out rows of an evaluation
  keep: int  # number of newest checkpoints to keep
  keep_steps: tuple[int, ...]  # steps whose checkpoints are never deleted
  writers: tuple[str, ...]  # in addition to metrics.jsonl
  traced_steps: tuple[int, int] | None  # (M, N) of log.profile

  def objective(self, *, train: bool) -> step.Objective:
    """Returns the objective, with dropout if `train`."""
    return functools.partial(
      self.terms, model=self.model, options=self.options, train=train
    )

  def init_state(self) -> step.TrainState:
    """Returns the state of step 0; can be jitted to create it on a mesh."""
    init_params = functools.partial(pretrain.init_params, self.model)
    state = step.init_state(init_params, self.tx, self.seed)
    if self.table_builder is None:
      return state
    return dataclasses.replace(state, aux=self.table_builder.empty_table())


def build_run(c: ConfigDict, tokenizer: Tokenizer) -> Run:
  """Builds a run from a pre-training config that passed `check_config`."""
  rate = optim.make_schedule(
    c.optim.schedule,
    peak=c.optim.lr,
    warmup_steps=c.optim.warmup_steps,
    total_steps=c.steps,
  )
  optimizer_options = {name: c.optim[name] for name in optim.OPTIMIZER_KEYS}
  options, n = build_options(c, tokenizer), c.negatives
  table_builder = None
  if options.needs_table:
    table_builder = model_synonyms.make_table_builder(
      build_table_request(c), tokenizer
    )
  return Run(
    summary=describe_objective(c),
    config=json.loads(c.to_json()),
    model=build_model(c, vocab_size=len(tokenizer.vocab)),
    options=options,
    terms=OBJECTIVES[c.objective],
    loss_weights=_loss_weights(c),
    learning_rate=rate,
    tx=optim.make_optimizer(rate, frozen=pretrain.CARRIED, **optimizer_options),
    table_builder=table_builder,
    steps=c.steps,
    batch_size=c.batch_size,
    length=c.length,
    packed=c.data.layout == "packed",
    seed=c.seed,
    accumulation=c.optim.accumulation,
    max_skips=c.optim.max_skips,
    init=c.init,
    init_skip=c.init_skip,
    mesh_preset=c.mesh.preset,
    mesh_spec=sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes),
    attention=c.model.attention,
    table_layout=n.layout,
    table_placement=c.mesh.synonyms,
    log_every=c.log.every_steps,
    eval_every=c.eval.every_steps,
    save_every=c.checkpoint.every_steps,
    eval_rows=c.eval.rows,
    keep=c.checkpoint.keep,
    keep_steps=tuple(
      round(c.steps * percent / 100) for percent in c.checkpoint.keep_percent
    ),
    writers=tuple(c.log.writers),
    traced_steps=speed.parse_profile(c.log.profile, c.steps),
  )


def describe_objective(c: ConfigDict) -> str:
  """Describes the objective of a config in words."""
  language = c.data.get("language", "en")  # runs of 0.1 have none
  sources = resolve_auto(c.negatives.sources, language)
  return options_lib.describe(
    c.objective,
    c.negatives.to_dict() | {"sources": sources},
    mask_prob=c.masking.prob,
    mask_style=c.masking.style,
    sampling_temperature=c.generator.temperature,
  )


def build_options(c: ConfigDict, tokenizer: Tokenizer) -> Options:
  """Builds the options of the objective from a config.

  Raises:
    InputError: a saved config has a value that this version does not support.
  """
  removed = options_lib.removed_values(c.negatives)
  if removed:
    raise InputError(
      f"This version does not support {', '.join(removed)}. Use the version of"
      " truenegs_jax that saved the run."
    )
  other_sections = ("masking", "sampling_temperature", "vocabulary_chunk")
  readings = {
    field.name: c.negatives[field.name]
    for field in dataclasses.fields(Options)
    if field.name not in other_sections
  }
  return Options(
    masking=masking.MaskingOptions.for_tokenizer(
      tokenizer,
      mask_prob=c.masking.prob,
      style=c.masking.style,
      with_replacement=c.masking.with_replacement,
    ),
    sampling_temperature=c.generator.temperature / c.negatives.temperature,
    vocabulary_chunk=c.model.vocabulary_chunk,
    **readings,
  )


def build_table_request(c: ConfigDict) -> run_table.TableRequest:
  """Builds the request for the synonym table of a config."""
  names = ("sources", "stop_words", *run_table.SWITCHES)
  return run_table.TableRequest(
    language=c.data.language,
    wordnet_dir=c.data.wordnet_dir,
    **{name: c.negatives[name] for name in names},
  )


def _loss_weights(c: ConfigDict) -> dict[str, step.LossWeight]:
  """Returns the loss weights without soft terms of weight 0."""
  n = c.negatives
  weights: dict[str, step.LossWeight] = {"mlm": c.generator.loss_weight}
  for name in ("soft", "sentence"):
    if weight := n[f"{name}_weight"]:
      weights[name] = optim.loss_weight_schedule(
        n.soft_schedule, weight, n.soft_steps
      )
  if c.objective == "electra":
    weights["detect"] = c.generator.detect_weight
  return weights
