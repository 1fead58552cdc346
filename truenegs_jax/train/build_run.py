"""Builds a run (model, objective, optimizer, settings) from a config.

This is the only module of `train` that reads values of a ConfigDict to train.
The others take a `Run`, or some of its values.

A run whose synonyms are those of the source `model` rebuilds its table every N
steps: the synonyms of a token are the nearest neighbours of its embedding. The
table is part of the train state, so that a resumed run continues with it.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from truenegs_jax.config.sections import Data, Negatives, Optim, Readings
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import (
  electra,
  masking,
  mlm,
  negatives,
  slot_predictions,
)
from truenegs_jax.objectives.options import Options
from truenegs_jax.synonyms.run_table import (
  SWITCHES,
  ModelTable,
  TableRequest,
  resolve_auto,
)
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import (
  Vocabulary,
  fingerprint,
  may_have_synonyms,
)
from truenegs_jax.train import optim, sharding, speed, step
from truenegs_jax.workdir.saved_model import build_model

# Keys of `negatives` that `describe_objective` puts into words or leaves out.
DESCRIBED = (
  "sources",
  "layout",
  "hard_correction",
  "prediction",
  "soft",
  "soft_weight",
  "sentence_weight",
  "smoothing",
)

RefreshFn = Callable[[step.TrainState, int], step.TrainState]


OBJECTIVES: dict[str, Callable[..., slot_predictions.Terms]] = {
  "electra": electra.electra_terms,
  "mlm": mlm.mlm_terms,
}


@dataclasses.dataclass(frozen=True)
class ModelTableBuilder:
  """Builds synonym tables from embeddings."""

  options: ModelTable  # neighbours, lowest cosine, steps between two tables
  source: str  # normalized `negatives.sources`
  stop_words: str  # fingerprint of the words without synonyms
  keep_stop_words: bool  # whether stop words get synonyms nevertheless
  golds_V: np.ndarray  # bool, tokens that get synonyms
  words_V: np.ndarray  # bool, tokens that may be synonyms

  @property
  def fingerprint(self) -> str:
    """Identifies how tables are built; their content changes every N steps."""
    return f"{self.source}, stop words {self.stop_words}"

  def empty_table(self) -> dict[str, jax.Array]:
    """Returns the table before the first refresh, which has no synonyms."""
    shape = len(self.words_V), self.options.top
    return {"ids_VxS": jnp.full(shape, -1, jnp.int32)}

  def build(self, word_VxE: jax.Array) -> dict[str, jax.Array]:
    """Builds the table of an embedding table; can be jitted."""
    ids_VxS = negatives.neighbour_ids(
      word_VxE,
      jnp.asarray(self.golds_V),
      jnp.asarray(self.words_V),
      top=self.options.top,
      threshold=self.options.threshold,
    )
    return {"ids_VxS": ids_VxS}

  def to_synonym_table(
    self, ids_VxS: np.ndarray, vocab: Sequence[str], *, steps: int
  ) -> SynonymTable:
    """Converts the last table of a run of `steps` steps, to be saved."""
    every = self.options.every
    return SynonymTable.from_ids(
      ids_VxS,
      vocab,
      source=self.source,
      options={
        "keep_stop_words": self.keep_stop_words,
        "stop_words": self.stop_words,
        "made_before_step": (steps - 1) // every * every,
      },
    )


@dataclasses.dataclass(frozen=True)
class Run:
  """A run as its config describes it, without arrays."""

  summary: str  # describes the objective
  config: Mapping[str, Any]  # in JSON's types
  model: pretrain.Model
  options: Options
  terms: Callable[..., slot_predictions.Terms]  # of the objective
  loss_weights: Mapping[str, float]
  learning_rate: optim.Schedule
  tx: optax.GradientTransformation
  # None if synonyms come from another source than the model, or are not used.
  table_builder: ModelTableBuilder | None
  steps: int
  batch_size: int  # rows per update, over all devices and processes
  length: int  # tokens per row
  seed: int  # of parameters, draws and the order of rows
  accumulation: int  # micro-batches per update
  max_skips: int  # consecutive skipped updates that do not end the run
  init: str  # weights to start from, or ""
  init_skip: str  # what need not match them: words, head
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
  options, n = build_options(c, tokenizer), c.negatives
  table_builder = None
  if options.needs_table:
    table_builder = make_table_builder(
      build_table_request(Negatives.read(c.negatives), Data.read(c.data)),
      tokenizer,
    )
  loss_weights = {"mlm": c.generator.loss_weight}
  for name in ("soft", "sentence"):
    if weight := n[f"{name}_weight"]:  # a term of weight 0 is not computed
      loss_weights[name] = weight
  if c.objective == "electra":
    loss_weights["detect"] = c.generator.detect_weight
  return Run(
    summary=describe_objective(c),
    config=json.loads(c.to_json()),
    model=build_model(c, vocab_size=len(tokenizer.vocab)),
    options=options,
    terms=OBJECTIVES[c.objective],
    loss_weights=loss_weights,
    learning_rate=rate,
    tx=optim.make_optimizer(rate, Optim.read(c.optim), frozen=pretrain.CARRIED),
    table_builder=table_builder,
    steps=c.steps,
    batch_size=c.batch_size,
    length=c.length,
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
  n, temperature = c.negatives, c.generator.temperature
  sources = resolve_auto(n.sources, c.data.language)
  terms = [{"electra": "ELECTRA", "mlm": "BERT"}[c.objective]]
  if n.hard_correction:
    terms.append(f"hard correction by {sources} ({n.prediction})")
  elif Negatives.read(n).needs_table:
    terms.append(f"synonyms of {sources}")
  if n.soft_weight:
    terms.append(f"soft regularization ({n.soft}) x {n.soft_weight:g}")
  if n.sentence_weight:
    terms.append(f"sentence regularization x {n.sentence_weight:g}")
  if n.smoothing:
    terms.append(f"smoothing over synonyms x {n.smoothing:g}")
  if temperature != n.temperature:
    terms.append(f"sampled at temperature {temperature:g}")
  terms += [
    f"{name} {n[name]}"
    for name, key in Negatives.list_keys().items()
    if name not in DESCRIBED and n[name] != key.default
  ]
  recipe = " + ".join(terms) if len(terms) > 1 else f"plain {terms[0]}"
  return f"{recipe}; {c.masking.prob:.0%} masked ({c.masking.style})"


def build_options(c: ConfigDict, tokenizer: Tokenizer) -> Options:
  """Builds the options of the objective from a config."""
  return Options(
    masking=masking.MaskingOptions.for_tokenizer(
      tokenizer, mask_prob=c.masking.prob, style=c.masking.style
    ),
    sampling_temperature=c.generator.temperature / c.negatives.temperature,
    vocabulary_chunk=c.model.vocabulary_chunk,
    **vars(Readings.read(c.negatives)),
  )


def build_table_request(negatives: Negatives, data: Data) -> TableRequest:
  """Builds the request for the synonym table of a config."""
  names = ("sources", "stop_words", *SWITCHES)
  return TableRequest(
    language=data.language,
    wordnet_dir=data.wordnet_dir,
    **{name: getattr(negatives, name) for name in names},
  )


def make_table_builder(
  request: TableRequest, tokenizer: Tokenizer
) -> ModelTableBuilder | None:
  """Makes the builder of the source "model"; None for other sources."""
  options = request.model
  if options is None:
    return None
  vocab, words = tokenizer.vocab, frozenset[str]()
  if not request.keep_stop_words:
    words = request.load_stop_words()
  if options.symbols:
    golds_V = may_have_synonyms(vocab, words)
    words_V = may_have_synonyms(vocab, ())
  else:
    vocabulary = Vocabulary(vocab, no_neighbours=request.no_neighbours)
    golds_V = words_V = np.array(
      [vocabulary.may_have_neighbours(token) for token in vocab]
    )
  return ModelTableBuilder(
    options,
    source=request.identity,
    stop_words=fingerprint(words),
    keep_stop_words=request.keep_stop_words,
    golds_V=golds_V,
    words_V=words_V,
  )


def make_refresh(
  builder: ModelTableBuilder | None,
  abstract: step.TrainState,
  *,
  from_weights: bool,
) -> RefreshFn:
  """Compiles `refresh(state, done) -> state`, which rebuilds the table.

  The table is rebuilt before every N-th step; before step 0 only if the run
  starts from weights, because random embeddings have no neighbours. Without a
  builder the state stays unchanged.
  """
  if builder is None:
    return lambda state, done: state
  shardings = jax.tree.map(lambda x: x.sharding, abstract.aux)

  def build(params: dict[str, Any]) -> dict[str, jax.Array]:
    # The embeddings are gathered first. With a split embedding table, each
    # block of cosines would be summed over the devices.
    word_VxE = jax.lax.with_sharding_constraint(
      params["embeddings"]["word"], shardings["ids_VxS"]
    )
    return builder.build(word_VxE)

  lowered = jax.jit(build, out_shardings=shardings).lower(abstract.params)
  compiled = lowered.compile()

  def refresh(state: step.TrainState, done: int) -> step.TrainState:
    if done % builder.options.every or not (done or from_weights):
      return state
    return dataclasses.replace(state, aux=compiled(state.params))

  return refresh
