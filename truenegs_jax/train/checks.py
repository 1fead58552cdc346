"""Refuses configs that no run can have, before anything is read or made."""

from ml_collections import ConfigDict

from truenegs_jax.configs.common_keys import KEYS
from truenegs_jax.data.rows import layouts
from truenegs_jax.data.tokens import fast_encoder
from truenegs_jax.data.tokens.tokenizer import ACCENTS
from truenegs_jax.models import choose_attention
from truenegs_jax.models.encoder import DTYPES
from truenegs_jax.objectives import masking, soft_regularization
from truenegs_jax.objectives.options import CHOICES, needs_table
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.synonyms import run_table, sources
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.train import build_run, metrics, optim, sharding, speed
from truenegs_jax.train.sharding import check_batch_size
from truenegs_jax.weights.formats.find import INIT_FORMATS, Weights
from truenegs_jax.weights.init import check_fit, config_sizes, match_vocabulary
from truenegs_jax.workdir import files
from truenegs_jax.workdir.from_config import (
  build_model,
  build_tokenizer,
  check_ranges,
)

REQUIRED = config_sizes.REQUIRED  # the value of config.init


def check_config(c: ConfigDict) -> None:
  """Refuses values that no run can have, before anything is read or made."""
  check_ranges(files.flatten(c.to_dict()), KEYS)
  if c.length > c.model.max_positions:
    raise InputError(
      f"length {c.length} is over model.max_positions"
      f" {c.model.max_positions}; lower one or raise the other."
    )
  _check_names(c)
  check_batch_size(
    c.batch_size,
    c.optim.accumulation,
    sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes),
  )


def check_required_files(
  c: ConfigDict, weights: Weights, *, saved: bool
) -> None:
  """Refuses a run for want of a file that only the user can name.

  A dry run does without them, so this is not part of `check_config`.

  Args:
    weights: what `c.init` names.
    saved: the run goes on from a checkpoint, which has all that they gave.
  """
  if saved:
    return
  if c.init == REQUIRED:
    raise InputError(
      "this config goes on from weights, and of its size none are released:"
      f" give them, --config.init=FOLDER. {INIT_FORMATS}"
    )
  if c.init:
    check_weights(c, weights)
  if needs_table(c.negatives):
    run_table.check_request(build_run.build_table_request(c))


def check_weights(c: ConfigDict, weights: Weights) -> None:
  """Refuses weights that this config cannot start from; no number is read.

  Raises:
    InputError: as `Weights.for_roles`, `check_fit.check_networks` and
      `match_vocabulary.check_vocabularies`.
  """
  networks = weights.for_roles(config_sizes.ROLES[c.objective])
  skip = check_fit.parse_skip(c.init_skip)
  if c.data.vocab != "train":
    tokenizer = build_tokenizer(c, c.data.vocab)
    match_vocabulary.check_vocabularies(networks, tokenizer, skip=skip)
    vocab_size = len(tokenizer.vocab)
  elif "words" in skip:
    vocab_size = 1  # not known yet, and it may be any
  else:
    raise InputError(
      "data.vocab=train learns words of its own, and the rows of the word table"
      f" of init={c.init} stand for others: take theirs,"
      " --config.data.vocab=init or the file, or carry rows over by word,"
      " --config.init_skip=words."
    )
  check_fit.check_networks(
    networks, build_model(c, vocab_size=vocab_size), skip=skip
  )


def _check_names(c: ConfigDict) -> None:
  """Looks everything up that the config names; each look-up can refuse."""
  if (c.task == "corrections") != ("corrections" in c):
    raise InputError(
      f"task {c.task!r} does not go with this config: corrections are measured"
      " with --config=configs/corrections.py, all others are pre-training."
    )
  one_of("objective", c.objective, build_run.OBJECTIVES)
  one_of("data.tokenizer", c.data.tokenizer, fast_encoder.BACKENDS)
  one_of("data.accents", c.data.accents, ACCENTS)
  one_of("data.layout", c.data.layout, layouts.LAYOUTS)
  one_of("model.dtype", c.model.dtype, DTYPES)
  one_of("model.attention", c.model.attention, choose_attention.CHOICES)
  one_of("mesh.synonyms", c.mesh.synonyms, sharding.TABLE_PLACEMENTS)
  _check_negatives(c)
  _check_model(c)
  one_of("optim.schedule", c.optim.schedule, optim.SCHEDULES)
  masking.get_style(c.masking.style)
  for name in c.log.writers:
    one_of("log.writers", name, metrics.WRITERS)
  speed.parse_profile(c.log.profile, c.steps)


def _check_model(c: ConfigDict) -> None:
  """A size that can be, and weights where the config is about some."""
  if check_fit.parse_skip(c.init_skip) and not c.init:
    raise InputError(
      f"init_skip={c.init_skip} is of weights to start from: give them,"
      " --config.init=FOLDER, or leave it out."
    )
  if c.task == "corrections" and c.init in ("", REQUIRED):
    return  # the model is that of corrections.run
  if config_sizes.FROM_WEIGHTS in (c.model.variant, c.data.vocab):
    raise InputError(
      f"model.variant={c.model.variant}, data.vocab={c.data.vocab}: what init"
      " stands for in the weights is not looked up here; give it."
    )
  model = build_model(c, vocab_size=1)
  types = next(iter(model.roles.values())).type_vocab_size
  if c.task == "pretrain" and c.data.layout == "electra" and types < 2:
    raise InputError(
      f"model.variant: type_vocab_size is {types}, and rows of"
      " data.layout=electra have two types of tokens; packed ones have one."
    )


def _check_negatives(c: ConfigDict) -> None:
  """Names of readings, and readings that do not go together."""
  n = c.negatives
  for name, known in CHOICES.items():
    one_of(f"negatives.{name}", n[name], known)
  one_of("negatives.layout", n.layout, table_lib.LAYOUTS)
  soft_regularization.get_regularizer(n.soft)
  optim.loss_weight_schedule(n.soft_schedule, n.soft_weight, n.soft_steps)
  softens = n.soft_weight or n.sentence_weight
  if softens and n.soft_schedule != "constant" and not n.soft_steps:
    raise InputError(
      f"negatives.soft_schedule {n.soft_schedule!r} takes time: give its steps,"
      " --config.negatives.soft_steps=NUMBER."
    )
  if softens and n.soft_schedule == "delay" and n.soft_steps >= c.steps:
    raise InputError(
      f"negatives.soft_schedule=delay of {n.soft_steps:,} steps never ends in a"
      f" run of {c.steps:,}; give fewer negatives.soft_steps."
    )
  if n.soft_prediction == "expected" and n.soft_gradient == "gold":
    raise InputError(
      "negatives.soft_prediction=expected is there for its gradient into the"
      " logits, which negatives.soft_gradient=gold stops; choose another."
    )
  own = sources.parse_expression(n.sources).model
  if own and (n.symmetric or n.include_self):
    raise InputError(
      f"negatives.sources={n.sources}: negatives.symmetric and include_self are"
      " of tables that are made beforehand; leave them False."
    )
  if own and needs_table(n) and own.every >= c.steps:
    raise InputError(
      f"negatives.sources={n.sources}: its table is made every {own.every:,}"
      f" steps, never in a run of {c.steps:,}; give a smaller every=."
    )
  if c.objective == "mlm":
    for name in ("discriminator", "sentence_encoder"):
      if n[name] != CHOICES[name][0]:
        raise InputError(
          f"negatives.{name}={n[name]} is of ELECTRA's two networks; BERT has"
          f" one: leave it {CHOICES[name][0]!r}."
        )
