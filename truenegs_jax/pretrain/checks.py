"""Checks that the values of a config go together; reads no file."""

from collections.abc import Callable

from truenegs_jax.config.losses import check_smoothing
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.models import layers
from truenegs_jax.objectives import masking
from truenegs_jax.objectives.soft_regularization import REGULARIZERS
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.synonyms import run_table
from truenegs_jax.train import loggers, sharding, speed
from truenegs_jax.weights import match


def check(config: PretrainConfig) -> None:
  """Raises InputError for values that do not go together."""
  c = config
  one_of("masking.style", c.masking.style, masking.STYLES)
  one_of("model.remat", c.model.remat, layers.REMAT)
  one_of("negatives.soft", c.negatives.soft, REGULARIZERS)
  if c.length > c.model.positions:
    raise InputError(
      f"length={c.length:,} is more than"
      f" model.max_positions={c.model.positions:,}. Lower"
      " --config.length=NUMBER or raise --config.model.max_positions=NUMBER."
    )
  is_of_pairs = c.negatives.spares_synonyms or c.model.sharing != "full"
  if c.objective == "mlm" and is_of_pairs:
    raise InputError(
      "objective=mlm trains one network. Set --config.model.sharing=full and"
      " --config.negatives.discriminator_label=1."
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
  request = run_table.make_request(n, config.data)
  table = request.model
  if table and request.symmetric:
    raise InputError(
      f"negatives.sources={n.sources!r} builds its table during training, which"
      " does not support smoothing_by='balanced'. Set"
      " --config.negatives.smoothing_by=model."
    )
  if table and n.needs_table and table.every >= config.steps:
    raise InputError(
      f"negatives.sources={n.sources!r} builds a table every"
      f" {table.every:,} steps, which is never in a run of"
      f" {config.steps:,} steps. Set a smaller every=NUMBER in it."
    )
