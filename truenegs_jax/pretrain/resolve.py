"""Resolves a config: fills in what its weights decide, and checks it."""

import operator
from collections.abc import Mapping
from typing import Any

from truenegs_jax.config import sections
from truenegs_jax.config.keys import flatten
from truenegs_jax.config.losses import check_smoothing
from truenegs_jax.config.sections import REQUIRED, PretrainConfig
from truenegs_jax.models import layers
from truenegs_jax.objectives import masking
from truenegs_jax.objectives.soft_regularization import REGULARIZERS
from truenegs_jax.runtime import cpu
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.synonyms import run_table
from truenegs_jax.train import loggers, sharding
from truenegs_jax.weights import find, hf_config, match

ROLES = {"electra": ("discriminator", "generator"), "mlm": ("bert",)}


def resolve_config(
  config: PretrainConfig,
  weights: find.Weights,
  *,
  saved: Mapping[str, Any] | None,
  has_table: bool = False,
) -> PretrainConfig:
  """Fills in what the config leaves to its weights; checks it.

  A run that resumes, or branches, from a checkpoint with the config `saved`
  needs no weights. If it resumes and so `has_table`, it needs no sources of
  synonyms. A dry run needs neither.
  """
  config = replace_init(config, weights, saved=saved)
  check(config)
  if config.dry_run:
    return config
  # Before the vocabulary, and before rows are prepared.
  if saved is None and config.init == REQUIRED:
    raise InputError(
      "This config continues from weights, and none of this size are released."
      f" Set --config.init=FOLDER. {find.INIT_FORMATS}"
    )
  if saved is None and config.init:
    weights.for_roles(ROLES[config.objective])
  if config.negatives.needs_table and not has_table:
    run_table.make_request(config.negatives, config.data).check()
  return config


def replace_init(
  config: PretrainConfig,
  weights: find.Weights,
  *,
  saved: Mapping[str, Any] | None,
) -> PretrainConfig:
  """Fills in what "init" leaves to the weights, and "auto" to the devices.

  A run that resumes takes them from the config of its checkpoint, `saved`, so
  that it computes in the same precision on another machine.
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
    if value not in (new, 0, (0, 0, 0, 0), sections.FROM_WEIGHTS):
      weights.report(
        f"{name}={value} is ignored. With model.variant=init it is that of the"
        f" weights, {new}."
      )
    changes[name] = new
  if config.model.dtype == sections.AUTO:
    dtype = saved["model"]["dtype"] if saved else cpu.choose_dtype()
    changes["model.dtype"] = dtype
  return config.replace(changes)


def _list_open_keys(config: PretrainConfig) -> dict[str, Any]:
  """Returns the keys that `init` decides, with their values in the config."""
  names = []
  model = config.model
  if model.variant == sections.FROM_WEIGHTS:
    names += [f"model.{name}" for name in sections.SIZES]
    names.append("generator.sizes")
  else:
    sizes = sections.OPEN_SIZES
    names += [f"model.{name}" for name in sizes if not getattr(model, name)]
  if config.data.vocab == sections.FROM_WEIGHTS:
    names.append("data.vocab")
  if model.backbone == "modern":
    thetas = hf_config.THETAS
    names += [f"model.{name}" for name in thetas if not getattr(model, name)]
  return {name: operator.attrgetter(name)(config) for name in names}


def _read_known_keys(
  config: PretrainConfig,
  weights: find.Weights,
  own: Mapping[str, Any],
  saved: Mapping[str, Any] | None,
) -> dict[str, Any]:
  """Returns the keys of the checkpoint's config, or else of the weights."""
  if saved is not None:
    known = flatten(saved)
    known["generator.sizes"] = tuple(known["generator.sizes"])  # JSON has lists
    return known
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
  known = {}
  for name, value in kept.sizes.items():
    known[f"model.{name}"] = value
  if "data.vocab" in own:
    _ = kept.tokenizer  # raises if there is none
    known["data.vocab"] = str(kept.vocabulary)
  if generator := networks.get("generator"):
    known["generator.sizes"] = generator.generator_sizes
  return known


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
  if c.short_rows and (c.length % 4 or c.length < 32):
    raise InputError(
      f"short_rows={c.short_rows:g} reads a row as four, but length={c.length}"
      " is no multiple of 4 of at least 32. Set --config.length=128, for"
      " example."
    )
  is_of_pairs = c.negatives.spares_synonyms or c.model.sharing != "full"
  if c.objective == "mlm" and is_of_pairs:
    raise InputError(
      "objective=mlm trains one network. Set --config.model.sharing=full and"
      " --config.negatives.discriminator_label=1."
    )
  decay_steps = c.optim.decay_steps if c.optim.schedule == "wsd" else 0
  warmup_steps = c.optim.warmup_steps
  if warmup_steps >= c.steps or warmup_steps + decay_steps > c.steps:
    fix = f"warmup_steps={(c.steps - decay_steps) // 10}"
    if decay_steps >= c.steps:
      fix = f"decay_steps={c.steps // 5}"
    raise InputError(
      f"optim.warmup_steps={warmup_steps:,} and {decay_steps:,} steps of decay"
      f" do not fit into steps={c.steps:,}. Set --config.optim.{fix}, for"
      " example."
    )
  _check_negatives(config)
  loggers.check_writers(c.log.writers)
  spec = sharding.get_mesh_spec(c.mesh.preset, c.mesh.model)
  sharding.check_batch_size(c.batch_size, c.optim.accumulation, spec)
  if match.parse_skip(c.init_skip) and not c.init:
    raise InputError(
      f"init_skip={c.init_skip!r} needs weights to start from. Set"
      " --config.init=FOLDER or remove init_skip."
    )


def _check_negatives(config: PretrainConfig) -> None:
  """Checks combinations of values in the section `negatives`."""
  n = config.negatives
  request = run_table.make_request(n, config.data)
  has_teacher = request.teacher is not None
  fits = has_teacher == (n.smoothing_by == "teacher")
  if request.model and request.symmetric:  # its table changes in training
    fits = False
  if n.smoothing and not fits:
    by = "set" if n.smoothing == 1 else "balanced"
    if has_teacher or (request.model and by == "balanced"):
      by = request.parsed[0].name
    raise InputError(
      f"negatives.smoothing_by={n.smoothing_by!r} does not go with"
      f" negatives.sources={n.sources!r}. Set"
      f" --config.negatives.smoothing_by={by}."
    )
  if not has_teacher and (n.smoothing or n.smoothing_by != "uniform"):
    check_smoothing(n.smoothing, n.smoothing_by)
  table = request.model
  if table and n.needs_table and table.every >= config.steps:
    raise InputError(
      f"negatives.sources={n.sources!r} builds a table every"
      f" {table.every:,} steps, which is never in a run of"
      f" {config.steps:,} steps. Set a smaller every=NUMBER in it."
    )
