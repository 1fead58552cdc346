"""Turns a config and the weights that it names into a run, at once.

run = resolve(PretrainConfig.read(c), Weights(c.init), saved=None, say=print)

Checks, the dry run, compiling and loading take this value, or some of its
values. Only headers of weights are read, and nothing is compiled or written.
"""

import dataclasses
import functools
import operator
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optax

from truenegs_jax.config import sections
from truenegs_jax.config.keys import LARGEST, flatten
from truenegs_jax.config.losses import check_smoothing
from truenegs_jax.config.sections import Data, Negatives, PretrainConfig
from truenegs_jax.configs.common import REQUIRED
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.data.vocabulary import read_words
from truenegs_jax.models import encoder, layers, pretrain
from truenegs_jax.models.attention import XLA, Implementation
from truenegs_jax.objectives import electra, masking, mlm
from truenegs_jax.objectives.slot_predictions import Options, Terms
from truenegs_jax.objectives.soft_regularization import REGULARIZERS
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.synonyms.run_table import TableRequest, resolve_auto
from truenegs_jax.train import loggers, model_table, optim, sharding, speed
from truenegs_jax.train import step as step_lib
from truenegs_jax.weights import find, hf_config, match
from truenegs_jax.workdir import files, saved_model

OBJECTIVES: dict[str, Callable[..., Terms]] = {
  "electra": electra.electra_terms,
  "mlm": mlm.mlm_terms,
}
ROLES = {"electra": ("discriminator", "generator"), "mlm": ("bert",)}
# Keys of `negatives` that `describe_objective` puts into words or leaves out.
DESCRIBED = (
  *("sources", "layout", "hard_correction", "prediction"),
  *("soft", "soft_weight", "sentence_weight", "smoothing", "smoothing_by"),
)


@dataclasses.dataclass(frozen=True)
class Run:
  """A run as its config and its weights describe it, without arrays.

  Until rows are found, the vocabulary of `tokenizer` may have the right size
  only. `attention` is for training steps; other uses of the model take the one
  that runs on every platform.
  """

  config: PretrainConfig  # `resolve` has replaced "init"; see `require_words`
  tokenizer: Tokenizer
  weights: find.Weights = find.Weights("")  # of `config.init`
  attention: Implementation = XLA

  @functools.cached_property
  def model(self) -> pretrain.Model:
    """The networks."""
    vocab_size = len(self.tokenizer.vocab)
    model = saved_model.build_model(self.config, vocab_size=vocab_size)
    return encoder.replace_configs(model, attention=self.attention)

  @functools.cached_property
  def options(self) -> Options:
    """The recipe of the objective."""
    c = self.config
    names = sections.ObjectiveConfig.list_keys()
    until = c.negatives.hard_correction_until
    return Options(
      masking=masking.MaskingOptions.for_tokenizer(
        self.tokenizer, mask_prob=c.masking.prob, style=c.masking.style
      ),
      sampling_temperature=c.generator.temperature / c.negatives.temperature,
      correction_steps=round(until * c.steps) if until < 1 else LARGEST,
      vocabulary_chunk=c.model.vocabulary_chunk,
      **{name: getattr(c.negatives, name) for name in names},
    )

  @property
  def table_layout(self) -> str:
    """Layout of the synonym table on devices; smoothing reads lists."""
    return "ids" if self.options.smoothing else self.config.negatives.layout

  @functools.cached_property
  def table_request(self) -> TableRequest | None:
    """The request for the synonym table; None if the objective needs none."""
    n = self.config.negatives
    data = self.config.data
    return build_table_request(n, data) if n.needs_table else None

  @functools.cached_property
  def table_builder(self) -> model_table.ModelTableBuilder | None:
    """Builds the table of the source "model"; None for other sources."""
    if self.table_request is None:
      return None
    return model_table.make_table_builder(self.table_request, self.tokenizer)

  @property
  def edges_V(self) -> np.ndarray | None:
    """The array of `word_edges`; None unless `strict_subword`."""
    words = read_words(self.tokenizer.vocab)
    return words.edges_V if self.options.strict_subword else None

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
    weights = {"mlm": c.generator.loss_weight, **c.negatives.term_weights}
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
    mesh = self.config.mesh
    return sharding.get_mesh_spec(mesh.preset, mesh.axes)

  @property
  def kept_steps(self) -> tuple[int, ...]:
    """The steps whose checkpoints are never deleted."""
    steps = self.config.steps
    percents = self.config.checkpoint.keep_percent
    return tuple(round(steps * percent / 100) for percent in percents)

  def objective(self, *, train: bool) -> step_lib.Objective:
    """Returns the objective, with dropout if `train`."""
    terms = OBJECTIVES[self.config.objective]
    return functools.partial(
      terms, model=self.model, options=self.options, train=train
    )

  def init_state(self) -> step_lib.TrainState:
    """Returns the state of step 0; can be jitted to create it on a mesh."""
    init_params = functools.partial(pretrain.traced_init, self.model)
    state = step_lib.init_state(init_params, self.tx, self.config.seed)
    if self.table_builder is None:
      return state
    return dataclasses.replace(state, aux=self.table_builder.empty_table())


def resolve(
  config: PretrainConfig,
  weights: find.Weights,
  *,
  saved: Mapping[str, Any] | None = None,
  say: Callable[[str], object] = print,
) -> Run:
  """Turns a config and its weights into a run, which can start.

  A dry run needs no files of the user, and downloads nothing; nor does a run
  that resumes from a checkpoint with the config `saved`.
  """
  config = replace_init(config, weights, saved=saved)
  check(config)
  check_warmup(config.optim.warmup_steps, config.steps, say)
  is_start = saved is None and not config.dry_run
  if is_start and config.init == REQUIRED:
    raise InputError(
      "This config continues from weights, and none of this size are released."
      f" Set --config.init=FOLDER. {find.INIT_FORMATS}"
    )
  needs_weights = is_start and bool(config.init)
  if config.dry_run:
    needs_weights = find.is_local(config.init)
  if needs_weights:
    weights.for_roles(ROLES[config.objective])  # before the vocabulary
  tokenizer = find_tokenizer(
    config.data, download=needs_weights and not config.dry_run
  )
  run = Run(require_words(config, tokenizer), tokenizer, weights)
  network = next(iter(run.model.roles.values()))
  if config.data.layout == "electra" and network.type_vocab_size < 2:
    raise InputError(
      f"model.type_vocab_size is {network.type_vocab_size}, but rows of"
      " data.layout='electra' have two token types. Set"
      " --config.model.type_vocab_size=2 or --config.data.layout=packed."
    )
  if needs_weights:
    _ = run.matched
  if is_start and run.table_request:
    run.table_request.check()
  return run


def require_words(
  config: PretrainConfig, tokenizer: Tokenizer
) -> PretrainConfig:
  """Sets `strict_subword` if a list may be that of a piece of a word."""
  if not read_words(tokenizer.vocab).marks_spaces:
    return config
  return config.replace({"negatives.strict_subword": True})


def replace_init(
  config: PretrainConfig,
  weights: find.Weights,
  *,
  saved: Mapping[str, Any] | None,
) -> PretrainConfig:
  """Fills in what "init" leaves open: sizes and vocabulary of the weights.

  A run that resumes takes them from the config of its checkpoint, `saved`.
  `model.variant`="init" is for the generator, too, if the weights have one.
  With the backbone `modern`, it replaces thetas of rotary positions that are 0.
  """
  changes = {}
  if saved is not None:
    changes = {name: saved[name] for name in ("init", "init_skip")}
    if config.init not in ("", REQUIRED, saved["init"]):
      start = repr(saved["init"]) if saved["init"] else "scratch"
      weights.report(
        f"init={config.init!r} is ignored. This run resumes from its"
        f" checkpoint; it was started from {start}."
      )
  own = _list_open_keys(config)
  known = _read_known_keys(config, weights, own, saved)
  for name, value in own.items():
    new = known.get(name) or value
    if value and value not in (new, sections.FROM_WEIGHTS):
      weights.report(
        f"{name}={value} is ignored. With model.variant=init it is that of the"
        f" weights, {new}."
      )
    changes[name] = new
  return config.replace(changes)


def _list_open_keys(config: PretrainConfig) -> dict[str, Any]:
  """Returns the keys that `init` decides, with their values in the config."""
  names = []
  if config.model.variant == sections.FROM_WEIGHTS:
    names += [f"model.{name}" for name in sections.SIZES]
    names += [f"generator.{name}" for name in sections.GENERATOR_SIZES]
  if config.data.vocab == sections.FROM_WEIGHTS:
    names.append("data.vocab")
  if config.model.backbone == "modern":
    thetas = (f"model.{name}" for name in hf_config.THETAS)
    names += [x for x in thetas if not operator.attrgetter(x)(config)]
  return {name: operator.attrgetter(name)(config) for name in names}


def _read_known_keys(
  config: PretrainConfig,
  weights: find.Weights,
  own: Mapping[str, Any],
  saved: Mapping[str, Any] | None,
) -> dict[str, Any]:
  """Returns the keys of the checkpoint's config, or else of the weights."""
  if saved is not None:
    return flatten(saved)
  needs_weights = sections.FROM_WEIGHTS in (
    config.model.variant,
    config.data.vocab,
  )
  has_weights = config.init not in ("", REQUIRED)
  if needs_weights and not has_weights:
    raise InputError(
      "init: model.variant=init and data.vocab=init take their values from the"
      " weights that the run starts from. Set --config.init=FOLDER."
    )
  needs_download = config.dry_run and not find.is_local(config.init)
  if not needs_weights and (not own or not has_weights or needs_download):
    return {}
  networks = weights.for_roles(ROLES[config.objective])
  kept = next(iter(networks.values()))
  known: dict[str, Any] = {}
  for name, value in (kept.sizes | kept.thetas).items():
    known[f"model.{name}"] = value
  if "data.vocab" in own:
    _ = kept.tokenizer  # raises if there is none
    known["data.vocab"] = str(kept.vocabulary)
  if generator := networks.get("generator"):
    for name, size in generator.generator_sizes.items():
      known[f"generator.{name}"] = size
  return known


def find_branch(branch: str) -> tuple[pathlib.Path, int | None]:
  """Returns workdir and step, None for the newest, that `branch` names."""
  path = open_path("branch", branch)
  return files.parse_run_path(path) or (path, None)


def find_tokenizer(data: Data, *, download: bool = False) -> Tokenizer:
  """Returns the tokenizer of `data.vocab`.

  Without a file that is here, or may be downloaded, it is a placeholder of
  `data.vocab_size` tokens.
  """
  path = open_path("data.vocab", data.vocab)
  file = path if path.is_file() else tokenizer_lib.find_file(path)
  if data.vocab != "train" and (file or download):
    return tokenizer_lib.build_tokenizer(data, str(file or data.vocab))
  specials = tokenizer_lib.SPECIALS
  words = (f"word{i}" for i in range(data.vocab_size - len(specials)))
  return tokenizer_lib.make_tokenizer(
    [*specials, *words],
    lowercase=data.lowercase,
    strip_accents=tokenizer_lib.ACCENTS[data.accents],
  )


def check(config: PretrainConfig) -> None:
  """Checks that the values of a config go together; reads no file."""
  c = config
  one_of("masking.style", c.masking.style, masking.STYLES)
  one_of("model.remat", c.model.remat, layers.REMAT)
  one_of("negatives.soft", c.negatives.soft, REGULARIZERS)
  if c.length > c.model.max_positions:
    raise InputError(
      f"length={c.length:,} is more than"
      f" model.max_positions={c.model.max_positions:,}. Lower"
      " --config.length=NUMBER or raise --config.model.max_positions=NUMBER."
    )
  is_of_pairs = c.negatives.spares_synonyms or c.model.sharing != "full"
  if c.objective == "mlm" and is_of_pairs:
    raise InputError(
      "objective=mlm trains one network. Set --config.model.sharing=full,"
      " --config.negatives.discriminator_label=1 and"
      " --config.negatives.discriminator_ignore=False."
    )
  spans = c.optim.warmup_steps + c.optim.decay_steps
  if c.optim.schedule == "wsd" and spans > c.steps:
    raise InputError(
      f"optim.warmup_steps and optim.decay_steps are {spans:,} together, but"
      f" steps={c.steps:,}. Lower --config.optim.decay_steps=NUMBER."
    )
  _check_negatives(config)
  loggers.check_writers(c.log.writers)
  speed.parse_profile(c.log.profile, c.steps)
  spec = sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes)
  sharding.check_batch_size(c.batch_size, c.optim.accumulation, spec)
  if match.parse_skip(c.init_skip) and not c.init:
    raise InputError(
      f"init_skip={c.init_skip!r} needs weights to start from. Set"
      " --config.init=FOLDER or remove init_skip."
    )


def check_warmup(
  warmup_steps: int, steps: int, say: Callable[[str], object]
) -> None:
  """Warns if the warm-up is over a quarter of the run; refuses all of it."""
  fix = f"Set --config.optim.warmup_steps={steps // 10}, for example."
  warmup = f"optim.warmup_steps={warmup_steps:,}"
  if warmup_steps >= steps:
    raise InputError(
      f"{warmup} is as long as the run (steps={steps:,}) or longer. The"
      f" learning rate would rise until the end. {fix}"
    )
  if 4 * warmup_steps > steps:
    say(
      f"warning: {warmup} is more than a quarter of the run (steps={steps:,})."
      f" The learning rate is low for long. {fix}"
    )


def _check_negatives(config: PretrainConfig) -> None:
  """Checks combinations of values in the section `negatives`."""
  n = config.negatives
  if n.smoothing or n.smoothing_by != "uniform":
    check_smoothing(n.smoothing, n.smoothing_by)
  if n.smoothing and n.layout == "bits":
    raise InputError(
      "negatives.layout='bits' has no lists, which negatives.smoothing needs."
      " Set --config.negatives.layout=auto."
    )
  if n.hard_correction_until < 1 and (config.minutes or not n.hard_correction):
    raise InputError(
      f"negatives.hard_correction_until={n.hard_correction_until:g} is a share"
      " of the steps of a run with hard correction. Set --config.minutes=0 and"
      " --config.negatives.hard_correction=True."
    )
  request = build_table_request(n, config.data)
  table = request.model
  if table and (request.symmetric or n.include_self):
    raise InputError(
      f"negatives.sources={n.sources!r} builds its table during training,"
      " which supports neither negatives.symmetric, include_self nor"
      " smoothing_by=balanced. Set them to False and model."
    )
  if table and n.needs_table and table.every >= config.steps:
    raise InputError(
      f"negatives.sources={n.sources!r} builds a table every"
      f" {table.every:,} steps, which is never in a run of"
      f" {config.steps:,} steps. Set a smaller every=NUMBER in it."
    )


def build_table_request(negatives: Negatives, data: Data) -> TableRequest:
  """Builds the request for the synonym table of a config."""
  names = ("sources", "stop_words", "keep_stop_words", "include_self")
  return TableRequest(
    language=data.language,
    wordnet_dir=data.wordnet_dir,
    symmetric=negatives.symmetric or negatives.smoothing_by == "balanced",
    **{name: getattr(negatives, name) for name in names},
  )


def describe_objective(config: PretrainConfig) -> str:
  """Describes the objective of a config in words."""
  n = config.negatives
  temperature = config.generator.temperature
  sources = resolve_auto(n.sources, config.data.language)
  parts = {
    f"hard correction by {sources} ({n.prediction})": n.hard_correction,
    f"synonyms of {sources}": n.needs_table and not n.hard_correction,
    f"soft regularization ({n.soft}) x {n.soft_weight:g}": n.soft_weight,
    f"sentence regularization x {n.sentence_weight:g}": n.sentence_weight,
    f"smoothing over synonyms ({n.smoothing_by}) x {n.smoothing:g}": (
      n.smoothing
    ),
    f"sampled at temperature {temperature:g}": temperature != n.temperature,
  }
  for name, key in Negatives.list_keys().items():
    value = getattr(n, name)
    parts[f"{name} {value}"] = name not in DESCRIBED and value != key.default
  name = {"electra": "ELECTRA", "mlm": "BERT"}[config.objective]
  terms = [part for part, is_used in parts.items() if is_used]
  recipe = " + ".join([name, *terms]) if terms else f"plain {name}"
  masked = f"{config.masking.prob:.0%} masked ({config.masking.style})"
  return f"{recipe}; {masked}"
