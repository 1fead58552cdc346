"""Plans a run: a config, its weights and a tokenizer become one frozen `Run`.

All that follows takes this value, or some of its values. Only headers of
weights are read, and nothing is written.
"""

import dataclasses
import functools
import signal
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from truenegs_jax.config import sections
from truenegs_jax.config.sections import Data, PretrainConfig
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data import tokenizer_files
from truenegs_jax.data.rows import Rows
from truenegs_jax.data.tokenizer import SPECIALS, Tokenizer
from truenegs_jax.data.words import read_words
from truenegs_jax.models import attention as attention_lib
from truenegs_jax.models import encoder, pretrain
from truenegs_jax.models.attention import XLA, Implementation
from truenegs_jax.objectives import electra, masking, mlm, negatives
from truenegs_jax.objectives.slot_predictions import Options, Terms
from truenegs_jax.pretrain import model_table
from truenegs_jax.pretrain.open_teacher import OpenTeacher, open_teacher
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.synonyms import run_table
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.synonyms.run_table import TableRequest, TeacherOptions
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import metrics, optim, sharding
from truenegs_jax.train import step as step_lib
from truenegs_jax.weights import find, match
from truenegs_jax.workdir import saved_model

OBJECTIVES: dict[str, Callable[..., Terms]] = {
  "electra": electra.electra_terms,
  "mlm": mlm.mlm_terms,
}
# Synonyms of a token; WordNet has 55 for one token of BERT's vocabulary.
ASSUMED_LIST_LENGTH = 64
NO_WEIGHTS = find.Weights("")
LOGIT_BYTES = 8  # of a logit and its gradient
LOGITS_SHARE = 1 / 4  # of a device's memory, at most
PARTS = 4, 2, 1  # as how many rows `short_rows` reads a row, in turn


@dataclasses.dataclass(frozen=True)
class Run:
  """A run as its config and its weights describe it, without arrays."""

  config: PretrainConfig  # of `resolve_config`
  tokenizer: Tokenizer  # of a dry run, maybe only of the right size
  mesh: jax.sharding.Mesh
  weights: find.Weights = NO_WEIGHTS  # of `config.init`
  vocabulary_chunk: int = 0  # slots whose logits are in memory at a time
  # Of training and evaluation; other uses of the model take the one that runs
  # on every platform.
  attention: Implementation = XLA
  attention_line: str = ""  # which one, and why

  @functools.cached_property
  def model(self) -> pretrain.Model:
    """The networks."""
    vocab_size = len(self.tokenizer.vocab)
    return saved_model.build_model(self.config, vocab_size=vocab_size)

  @functools.cached_property
  def options(self) -> Options:
    """The recipe of the objective, without a teacher."""
    return make_options(
      self.config, self.tokenizer, vocabulary_chunk=self.vocabulary_chunk
    )

  @property
  def table_layout(self) -> str:
    """Layout of the synonym table on devices; smoothing reads lists."""
    return "ids" if self.options.smoothing else "auto"

  @property
  def table_request(self) -> TableRequest | None:
    """The request for the synonym table; None if the objective needs none."""
    n = self.config.negatives
    request = run_table.make_request(n, self.config.data)
    return request if n.needs_table and not request.teacher else None

  @property
  def teacher_options(self) -> TeacherOptions | None:
    """Options of the source "teacher"; None for others, or without need."""
    n = self.config.negatives
    options = run_table.make_request(n, self.config.data).teacher
    return options if n.needs_table else None

  @functools.cached_property
  def teacher(self) -> OpenTeacher | None:
    """The teacher; None without one, and in a dry run if it is not here."""
    c = self.config
    options = self.teacher_options
    if not options or (c.dry_run and not find.is_local(options.path)):
      return None
    report = self.weights.report
    return open_teacher(options, dtype=c.model.dtype, report=report)

  @functools.cached_property
  def table_builder(self) -> model_table.ModelTableBuilder | None:
    """Builds the table of the source "model"; None for other sources."""
    if self.table_request is None:
      return None
    return model_table.make_table_builder(self.table_request, self.tokenizer)

  @property
  def edges_V(self) -> np.ndarray | None:
    """The array of `word_edges`; None unless the objective needs it."""
    o = self.options
    if not o.strict_subword and o.masking.unit != "word":
      return None
    return read_words(self.tokenizer.vocab).edges_V

  @functools.cached_property
  def matched(self) -> match.MatchedWeights:
    """The weights to start from; InputError if they do not fit the model."""
    networks = self.weights.for_roles(self.model.roles)
    skip = self.config.init_skip
    return match.match_weights(
      networks, self.model, self.tokenizer, init_skip=skip
    )

  @property
  def loss_weights(self) -> dict[str, float]:
    """The weight of each term of the loss; terms of weight 0 are left out."""
    c = self.config
    weights = {"mlm": 1.0, **c.negatives.term_weights}
    if c.objective == "electra":
      weights["detect"] = c.generator.detect_weight
    return weights

  @property
  def learning_rate(self) -> optim.Schedule:
    """The schedule: step -> learning rate."""
    o = self.config.optim
    return optim.make_schedule(
      o.schedule,
      peak=o.lr,
      warmup_steps=o.warmup_steps,
      total_steps=self.config.steps,
      decay_steps=o.decay_steps,
    )

  @property
  def tx(self) -> optax.GradientTransformation:
    """The optimizer."""
    c = self.config
    return optim.make_optimizer(
      self.learning_rate,
      c.optim,
      frozen=pretrain.CARRIED,
      clip_apart="" if c.model.sharing == "full" else "discriminator",
    )

  @property
  def mesh_spec(self) -> sharding.MeshSpec:
    """How state and rows are split over devices."""
    return read_mesh_spec(self.config)

  def objective(self, *, train: bool) -> step_lib.Objective:
    """Returns the objective, with dropout if `train`."""
    options = self.options
    if self.teacher:
      reader = self.teacher.make_reader(self.mesh, self.mesh_spec)
      options = dataclasses.replace(options, teacher=reader)
    terms = functools.partial(
      OBJECTIVES[self.config.objective],
      model=encoder.replace_configs(self.model, attention=self.attention),
      options=options,
      train=train,
    )
    return sharding.gather_params(terms, self.mesh, self.mesh_spec)

  def init_state(self) -> step_lib.TrainState:
    """Returns the state of step 0; can be jitted to create it on a mesh."""
    init_params = functools.partial(pretrain.traced_init, self.model)
    state = step_lib.init_state(init_params, self.tx, self.config.seed)
    if self.table_builder is None:
      return state
    return dataclasses.replace(state, aux=self.table_builder.empty_table())

  def train_step(
    self, state: step_lib.TrainState, batch: dict, aux: Mapping
  ) -> tuple[step_lib.TrainState, step_lib.Terms]:
    """Takes a training step; is compiled with `abstract_state` and so on."""
    step = step_lib.make_train_step(
      self.objective(train=True),
      self.loss_weights,
      self.tx,
      self.config.optim.accumulation,
    )
    return step(state, batch, aux)

  def abstract_state(self) -> step_lib.TrainState:
    """Returns shapes, dtypes and shardings of the train state."""
    shapes = jax.eval_shape(self.init_state)
    return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      shapes,
      sharding.tree_shardings(shapes, self.mesh, self.mesh_spec),
    )

  def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shapes, dtypes and shardings of the global batch of a step."""
    size = self.config.batch_size
    rows = sharding.batch_sharding(self.mesh)
    like = functools.partial(
      jax.ShapeDtypeStruct, dtype=jnp.int32, sharding=rows
    )
    names = ("tokens", "types", "documents")
    row = (size, self.config.length)
    return dict.fromkeys(names, like(row)) | {"row": like((size,))}

  def abstract_aux(self) -> dict[str, Any]:
    """Describes what an objective gets beside the batch.

    A synonym table that is not built yet has ASSUMED_LIST_LENGTH synonyms.
    """
    aux: dict[str, Any] = {}
    replicated = sharding.replicated_sharding(self.mesh)
    like = functools.partial(jax.ShapeDtypeStruct, sharding=replicated)
    vocab_size = len(self.tokenizer.vocab)
    if self.table_request and self.table_builder is None:
      width = ASSUMED_LIST_LENGTH
      layout = table_lib.choose_layout(vocab_size, width, self.table_layout)
      if layout == "bits":
        words = -(-vocab_size // negatives.WORD_BITS)
        aux["bits_VxW"] = like((vocab_size, words), jnp.uint32)
      else:
        aux["ids_VxS"] = like((vocab_size, width), jnp.int32)
        if self.options.needs_rates:
          aux["rates_VxS"] = like((vocab_size, width), jnp.float32)
    if self.edges_V is not None:
      aux["edges_V"] = like((vocab_size,), jnp.uint8)
    if self.teacher:
      shapes = self.teacher.select(pretrain.param_shapes(self.teacher.model))
      aux["teacher"] = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        shapes,
        sharding.param_shardings(shapes, self.mesh, self.mesh_spec),
      )
    return aux


@dataclasses.dataclass(frozen=True)
class Inputs:
  """Data of a run."""

  train_rows: Rows
  held_out_rows: Rows
  table: SynonymTable | None  # None also if the run builds its own
  coverage: Mapping[str, str]  # lines of the report about the synonyms
  teacher: dict[str, Any] | None = None  # parameters, f32 numpy arrays
  # (params, console) -> accuracy by paradigm of `eval.blimp`, if it is set.
  rate_pairs: Callable[..., dict[str, float]] | None = None


@dataclasses.dataclass(frozen=True)
class Trained:
  """A run after its last step, or after a signal."""

  run: Run
  inputs: Inputs
  state: step_lib.TrainState
  steps: int  # that are done
  held_out: list[metrics.Terms]  # of each batch
  fingerprints: Mapping[str, str | None]
  stopped_by: signal.Signals | None  # None if all steps are done

  def find_table(self) -> SynonymTable:
    """Returns the synonym table that the run has read, or its last own one."""
    builder = self.run.table_builder
    if builder is None:
      assert self.inputs.table is not None
      return self.inputs.table
    ids_VxS = jax.device_get(self.state.aux["ids_VxS"])
    vocab = self.run.tokenizer.vocab
    return builder.to_synonym_table(ids_VxS, vocab, steps=self.steps)


def make_options(
  config: PretrainConfig, tokenizer: Tokenizer, *, vocabulary_chunk: int = 0
) -> Options:
  """Makes the recipe of a config's objective."""
  c = config
  names = sections.ObjectiveConfig.list_keys()
  values = {name: getattr(c.negatives, name) for name in names}
  if read_words(tokenizer.vocab).marks_spaces:
    # A list of synonyms may be that of a piece of a word.
    values["strict_subword"] = True
  return Options(
    masking=masking.MaskingOptions.for_tokenizer(
      tokenizer,
      mask_prob=c.masking.prob,
      style=c.masking.style,
      unit=c.masking.unit,
    ),
    vocabulary_chunk=vocabulary_chunk,
    **values,
  )


def try_run(
  config: PretrainConfig, weights: find.Weights, *, is_new: bool
) -> Run:
  """Makes a run before there are rows; InputError if weights do not fit it.

  Words take the place of a vocabulary that is to be trained, or of a hub's
  unless the run is new and starts from weights. Only then, or if they are here,
  the weights are compared.
  """
  is_from_weights = is_new and bool(config.init)
  tokenizer = find_tokenizer(config.data, download=is_from_weights)
  run = make_run(config, tokenizer, weights)
  if run.teacher:
    run.teacher.check_length(config.length)
  if is_from_weights or (config.dry_run and find.is_local(config.init)):
    _ = run.matched
  return run


def make_run(
  config: PretrainConfig,
  tokenizer: Tokenizer,
  weights: find.Weights = NO_WEIGHTS,
  *,
  mesh: jax.sharding.Mesh | None = None,
  platform: str = "",
  memory: int = 0,
  check: bool = False,
) -> Run:
  """Makes a run; also decides what depends on its words and devices.

  Args:
    mesh: of devices, by default of all that there are.
    platform: of devices that are not here.
    memory: of a device, in bytes; by default that of the devices here.
    check: tries an attention kernel on all devices before it is chosen; to be
      called in all processes.
  """
  if mesh is None:
    mesh = sharding.make_mesh(read_mesh_spec(config))
  vocab_size = len(tokenizer.vocab)
  chunk = choose_chunk(vocab_size, mesh, memory)
  model = saved_model.build_model(config, vocab_size=vocab_size)
  network = next(iter(model.roles.values()))
  if config.data.layout == "electra" and network.type_vocab_size < 2:
    raise InputError(
      f"model.type_vocab_size is {network.type_vocab_size}, but rows of"
      " data.layout='electra' have two token types. Set"
      " --config.model.type_vocab_size=2 or --config.data.layout=packed."
    )
  implementation, line = attention_lib.choose(
    config.model.attention,
    model.roles.values(),
    mesh,
    length=config.length,
    platform=platform,
    check=check,
  )
  return Run(config, tokenizer, mesh, weights, chunk, implementation, line)


def shorten(run: Run, parts: int) -> Run:
  """Returns the run with each row read as `parts` rows, with as many tokens.

  It tries an attention kernel for them, so it is called in all processes.
  """
  c = run.config
  if parts == 1:
    return run
  short = {"length": c.length // parts, "batch_size": c.batch_size * parts}
  short_run = make_run(
    c.replace(short), run.tokenizer, run.weights, mesh=run.mesh, check=True
  )
  return dataclasses.replace(short_run, vocabulary_chunk=run.vocabulary_chunk)


def count_parts(config: PretrainConfig, step: int) -> int:
  """Returns as how many rows each row is read at a step, one of PARTS."""
  share = step / config.steps
  if share < config.short_rows:
    return PARTS[0]
  return PARTS[1] if share < 1.5 * config.short_rows else PARTS[2]


def choose_chunk(
  vocab_size: int, mesh: jax.sharding.Mesh, memory: int = 0
) -> int:
  """Returns the most slots whose logits fit into memory at a time.

  `memory` is that of a device in bytes, by default of the devices here.
  """
  slots = LOGITS_SHARE * (memory or sharding.device_memory())
  slots //= LOGIT_BYTES * vocab_size
  return int(max(slots, 1)) * mesh.shape[sharding.DATA_AXIS]


def list_kept_steps(config: PretrainConfig) -> tuple[int, ...]:
  """Returns the steps whose checkpoints are never deleted."""
  percents = config.checkpoint.keep_percent
  return tuple(round(config.steps * percent / 100) for percent in percents)


def read_mesh_spec(config: PretrainConfig) -> sharding.MeshSpec:
  """Returns the mesh preset of a config with its sizes."""
  return sharding.get_mesh_spec(config.mesh.preset, config.mesh.model)


def find_tokenizer(data: Data, *, download: bool = False) -> Tokenizer:
  """Returns the tokenizer of `data.vocab`.

  Without a file that is here, or may be downloaded, it is a placeholder of
  `data.vocab_size` tokens.
  """
  path = open_path("data.vocab", data.vocab)
  file = path if path.is_file() else tokenizer_files.find_file(path)
  if data.vocab != "train" and (file or download):
    return tokenizer_files.build_tokenizer(data, str(file or data.vocab))
  words = (f"word{i}" for i in range(data.vocab_size - len(SPECIALS)))
  return tokenizer_lib.make_tokenizer(
    [*SPECIALS, *words],
    lowercase=data.lowercase,
    strip_accents=tokenizer_lib.ACCENTS[data.accents],
  )
