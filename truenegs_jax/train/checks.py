"""Checks configs before any file is read or array created."""

from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.config.sections import Data, Negatives
from truenegs_jax.data.corpus.language import check_code
from truenegs_jax.models import layers
from truenegs_jax.objectives import masking
from truenegs_jax.objectives.soft_regularization import REGULARIZERS
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.synonyms.run_table import ModelTable
from truenegs_jax.train import build_run, metrics, sharding, speed
from truenegs_jax.weights import config_sizes, fit
from truenegs_jax.weights.find import INIT_FORMATS, Weights
from truenegs_jax.workdir import saved_model


def check_config(c: ConfigDict) -> None:
  """Checks the values of a config without reading a file."""
  one_of("masking.style", c.masking.style, masking.STYLES)
  one_of("model.remat", c.model.remat, layers.REMAT)
  one_of("negatives.soft", c.negatives.soft, REGULARIZERS)
  if c.length > c.model.max_positions:
    raise InputError(
      f"length={c.length:,} is more than"
      f" model.max_positions={c.model.max_positions:,}. Lower"
      " --config.length=NUMBER or raise --config.model.max_positions=NUMBER."
    )
  if (c.task == "corrections") != ("corrections" in c):
    raise InputError(
      f"task={c.task!r} does not match this config. Use"
      " --config=configs/corrections.py to measure corrections, and another"
      " config to pre-train."
    )
  check_code(c.data.language)
  table = build_run.build_table_request(
    Negatives.read(c.negatives), Data.read(c.data)
  ).model
  _check_negatives(c.negatives, c.objective, table, c.steps)
  metrics.check_writers(c.log.writers)
  speed.parse_profile(c.log.profile, c.steps)
  sharding.check_batch_size(
    c.batch_size,
    c.optim.accumulation,
    sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes),
  )
  if fit.parse_skip(c.init_skip) and not c.init:
    raise InputError(
      f"init_skip={c.init_skip!r} needs weights to start from. Set"
      " --config.init=FOLDER or remove init_skip."
    )
  no_init = c.dry_run or c.init in ("", config_sizes.REQUIRED)
  if c.task == "corrections" and no_init:
    return  # the model is that of corrections.run, or not looked up
  if config_sizes.FROM_WEIGHTS in (c.model.variant, c.data.vocab):
    raise InputError(
      f"model.variant={c.model.variant!r}, data.vocab={c.data.vocab!r}: 'init'"
      " is not looked up in the weights here. Set both values explicitly."
    )
  model = saved_model.build_model(c, vocab_size=1)
  types = next(iter(model.roles.values())).type_vocab_size
  if c.task == "pretrain" and c.data.layout == "electra" and types < 2:
    raise InputError(
      f"model.variant: type_vocab_size is {types}, but rows of"
      " data.layout='electra' have two token types. Set type_vocab_size=2 or"
      " --config.data.layout=packed."
    )


def check_warmup(warmup_steps: int, steps: int) -> str:
  """Returns a warning if the warm-up is over a quarter of the run, or ""."""
  fix = f"Set --config.optim.warmup_steps={steps // 10}, for example."
  warmup = f"optim.warmup_steps={warmup_steps:,}"
  if warmup_steps >= steps:
    raise InputError(
      f"{warmup} is as long as the run (steps={steps:,}) or longer. The"
      f" learning rate would rise until the end. {fix}"
    )
  if 4 * warmup_steps > steps:
    return (
      f"warning: {warmup} is more than a quarter of the run (steps={steps:,})."
      f" The learning rate is low for long. {fix}"
    )
  return ""


def check_required_files(
  c: ConfigDict, weights: Weights, *, saved: bool
) -> None:
  """Checks that the files exist that only the user can provide.

  A dry run does not need them, nor does a run with a `saved` checkpoint, which
  has their contents.
  """
  if saved:
    return
  if c.init == config_sizes.REQUIRED:
    raise InputError(
      "This config continues from weights, and none of this size are released."
      f" Set --config.init=FOLDER. {INIT_FORMATS}"
    )
  if c.init:
    check_weights(c, weights)
  if Negatives.read(c.negatives).needs_table:
    build_run.build_table_request(
      Negatives.read(c.negatives), Data.read(c.data)
    ).check()


def check_weights(c: ConfigDict, weights: Weights) -> None:
  """Checks that a run can start from weights; reads no parameter."""
  weights.for_roles(config_sizes.ROLES[c.objective])  # before the vocabulary
  tokenizer, vocab_size = None, 1  # not known yet; any size fits
  if c.data.vocab != "train":
    tokenizer = saved_model.build_tokenizer(Data.read(c.data), c.data.vocab)
    vocab_size = len(tokenizer.vocab)
  elif "words" not in fit.parse_skip(c.init_skip):
    raise InputError(
      "data.vocab='train' trains a new vocabulary, but the embeddings of"
      f" init={c.init!r} belong to another one. Use that vocabulary"
      " (--config.data.vocab=init or its file), or copy only the embeddings of"
      " tokens that both have (--config.init_skip=words)."
    )
  model = saved_model.build_model(c, vocab_size=vocab_size)
  fit.fit(weights, model, tokenizer, init_skip=c.init_skip)


def _check_negatives(
  negatives: Any, objective: str, table: ModelTable | None, steps: int
) -> None:
  """Checks combinations of values in the section `negatives` of a config.

  `table` has the options of the source "model", None for other sources.
  """
  if table and (negatives.symmetric or negatives.include_self):
    raise InputError(
      f"negatives.sources={negatives.sources!r} builds its table during"
      " training, which supports neither negatives.symmetric nor"
      " negatives.include_self. Set both to False."
    )
  if table and Negatives.read(negatives).needs_table and table.every >= steps:
    raise InputError(
      f"negatives.sources={negatives.sources!r} builds a table every"
      f" {table.every:,} steps, which is never in a run of {steps:,} steps. Set"
      " a smaller every=NUMBER in it."
    )
  if objective == "mlm" and negatives.discriminator != "none":
    raise InputError(
      f"negatives.discriminator={negatives.discriminator!r} needs ELECTRA's"
      " two networks, and BERT has one. Set"
      " --config.negatives.discriminator=none."
    )
