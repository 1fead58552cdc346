"""From a config to a run: model, objective, optimizer and numbers.

The one place where training reads a ConfigDict: everything else takes a `Run`,
or the few values of it that it needs.
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
from truenegs_jax.train import model_synonyms, optim, sharding, speed, step
from truenegs_jax.workdir.from_config import build_model

OBJECTIVES: dict[str, Callable[..., slot_predictions.Terms]] = {
  "electra": electra.electra_terms,
  "mlm": mlm.mlm_terms,
}


@dataclasses.dataclass(frozen=True)
class OutputSettings:
  """When a run logs, evaluates and saves; no parameter depends on it.

  Attributes:
    log_every, eval_every, save_every: steps from one to the next.
    eval_rows: held-out rows of an evaluation, at most.
    keep: how many of the newest checkpoints are kept.
    keep_steps: steps whose checkpoints are kept for good.
    writers: names of writers beside metrics.jsonl.
    traced: first and last step of a profiler trace; None for no trace.
  """

  log_every: int
  eval_every: int
  save_every: int
  eval_rows: int
  keep: int
  keep_steps: tuple[int, ...]
  writers: tuple[str, ...]
  traced_steps: tuple[int, int] | None


@dataclasses.dataclass(frozen=True)
class Run:
  """A run as its config describes it, before any array exists.

  Attributes:
    summary: the recipe in words.
    config: the config in JSON's types.
    model, options, terms: the objective over the model.
    loss_weights: weight of each term of the loss, or its schedule.
    learning_rate, tx: schedule of the learning rate, and optimizer.
    table_builder: builds the synonym table from the model's embeddings; None
      if synonyms come from another source or are not used.
    steps: of the whole run.
    batch_size: rows of an update, over all devices and processes.
    length: tokens of a row.
    packed: rows hold several documents.
    seed: of parameters, draws and the order of the rows.
    accumulation: micro-batches of an update.
    max_skips: non-finite updates in a row that do not end the run.
    init, init_skip: weights to start from, and the rows of theirs to leave out.
    mesh_preset, mesh_spec: how arrays lie on the devices.
    attention: what computes it; "auto" chooses by the devices.
    table_layout, table_placement: how synonyms are stored, and split.
  """

  summary: str
  config: Mapping[str, Any]
  model: pretrain.Model
  options: Options
  terms: Callable[..., slot_predictions.Terms]
  loss_weights: Mapping[str, step.LossWeight]
  learning_rate: optim.Schedule
  tx: optax.GradientTransformation
  table_builder: model_synonyms.ModelTableBuilder | None
  steps: int
  batch_size: int
  length: int
  packed: bool
  seed: int
  accumulation: int
  max_skips: int
  init: str
  init_skip: str
  mesh_preset: str
  mesh_spec: sharding.MeshSpec
  attention: str
  table_layout: str
  table_placement: str
  output: OutputSettings

  def objective(self, *, train: bool) -> step.Objective:
    """The objective over this model."""
    return functools.partial(
      self.terms, model=self.model, options=self.options, train=train
    )

  def init_state(self) -> step.TrainState:
    """A fresh state; pure, so that it can be jitted onto a mesh."""
    init_params = functools.partial(pretrain.init_params, self.model)
    state = step.init_state(init_params, self.tx, self.seed)
    if self.table_builder is None:
      return state
    return dataclasses.replace(state, aux=self.table_builder.empty())


def build_run(c: ConfigDict, tokenizer: Tokenizer) -> Run:
  """Builds a run from a config of pre-training that passed `check_config`."""
  rate = optim.make_schedule(
    c.optim.schedule,
    peak=c.optim.lr,
    warmup_steps=c.optim.warmup_steps,
    total_steps=c.steps,
  )
  numbers = {name: c.optim[name] for name in optim.OPTIMIZER_KEYS}
  options, n = build_options(c, tokenizer), c.negatives
  table_builder = None
  if options.needs_table:
    table_builder = model_synonyms.make_table_builder(
      n.sources,
      tokenizer.vocab,
      stop_words_file=n.stop_words,
      keep_stop_words=n.keep_stop_words,
    )
  return Run(
    summary=describe_objective(c),
    config=json.loads(c.to_json()),
    model=build_model(c, vocab_size=len(tokenizer.vocab)),
    options=options,
    terms=OBJECTIVES[c.objective],
    loss_weights=_loss_weights(c),
    learning_rate=rate,
    tx=optim.make_optimizer(rate, carried=pretrain.CARRIED, **numbers),
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
    output=OutputSettings(
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
    ),
  )


def describe_objective(c: ConfigDict) -> str:
  """The recipe of a config, maybe a saved one, in words."""
  return options_lib.describe(
    c.objective,
    c.negatives.to_dict(),
    mask_prob=c.masking.prob,
    mask_style=c.masking.style,
    sampling_temperature=c.generator.temperature,
  )


def build_options(c: ConfigDict, tokenizer: Tokenizer) -> Options:
  """The readings of an objective that a config, maybe a saved one, chooses.

  Raises:
    InputError: the saved config has a reading that was removed since.
  """
  removed = options_lib.removed_values(c.negatives)
  if removed:
    raise InputError(
      f"{', '.join(removed)} is gone from this version; use the truenegs_jax"
      " that saved the run."
    )
  elsewhere = ("masking", "sampling_temperature", "vocabulary_chunk")
  readings = {
    field.name: c.negatives[field.name]
    for field in dataclasses.fields(Options)
    if field.name not in elsewhere
  }
  return Options(
    masking=masking.MaskingOptions(
      mask_id=tokenizer.mask,
      never_masked=(tokenizer.cls, tokenizer.sep, tokenizer.mask),
      mask_prob=c.masking.prob,
      style=c.masking.style,
      with_replacement=c.masking.with_replacement,
      vocab_size=len(tokenizer.vocab),
    ),
    sampling_temperature=c.generator.temperature,
    vocabulary_chunk=c.model.vocabulary_chunk,
    **readings,
  )


def build_table_request(c: ConfigDict) -> run_table.TableRequest:
  """The synonym table that a config asks for."""
  names = ("sources", "stop_words", *run_table.OPTIONS)
  return run_table.TableRequest(
    wordnet_dir=c.data.wordnet_dir,
    **{name: c.negatives[name] for name in names},
  )


def _loss_weights(c: ConfigDict) -> dict[str, step.LossWeight]:
  """Weight of each term of the loss; one of weight 0 is left out."""
  n = c.negatives
  weights: dict[str, step.LossWeight] = {"mlm": c.generator.loss_weight}
  for name, weight in ("soft", n.soft_weight), ("sentence", n.sentence_weight):
    if weight:
      weights[name] = optim.loss_weight_schedule(
        n.soft_schedule, weight, n.soft_steps
      )
  if c.objective == "electra":
    weights["detect"] = c.generator.detect_weight
  return weights
