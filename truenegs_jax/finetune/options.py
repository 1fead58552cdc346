"""Reads the values of a config of fine-tuning as checked options.

options = parse_options(c.to_dict())
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from truenegs_jax.config.grammar import parse_names
from truenegs_jax.config.sections import INIT_SKIPS, Optim
from truenegs_jax.config.tables import Finetune
from truenegs_jax.models import layers
from truenegs_jax.models.encoder import FAMILY, find_family
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.tasks.task import (
  OWN,
  SQUAD,
  TASKS,
  Task,
  define_own_task,
)
from truenegs_jax.train import metrics, sharding

MODEL_KEYS = ("dropout", "attention_dropout", "dtype", "remat", "scan")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneOptions(Finetune):
  """The section `finetune` of a config, and values of its other sections.

  `model` holds arguments of `make_downstream` that do not depend on the
  weights.
  """

  seed: int
  init: str
  init_skip: str
  length: int
  batch_size: int
  variant: str
  model: Mapping[str, Any]
  attention: str
  vocab: str
  lowercase: bool
  accents: str
  schedule: str
  lr: float
  accumulation: int
  max_skips: int
  optim: Optim
  mesh: sharding.MeshSpec
  preset: str
  every_steps: int
  writers: tuple[str, ...]

  @property
  def task_names(self) -> tuple[str, ...]:
    """The names in `tasks`."""
    return parse_names(self.tasks, key="finetune.tasks")

  def find_task(self, name: str) -> Task:
    """Returns a published task, or the user's own without its file's values."""
    if name != OWN:
      return TASKS[name]
    return define_own_task(
      text=self.text,
      label=self.label,
      kind=self.kind,
      labels=self.labels,
      metric=self.metric,
    )

  @property
  def all_seeds(self) -> Sequence[int]:
    """The seeds of the runs of each task."""
    return range(self.seed, self.seed + self.seeds)

  def peak_rate(self, width: int) -> float:
    """Returns the head's highest learning rate for a network of that width."""
    return self.lr or self.lrs[FAMILY.index(find_family(width))]

  def decay(self, width: int) -> float:
    """Returns the factor of the learning rate from a layer to the one below."""
    return (
      self.layer_decay or self.layer_decays[FAMILY.index(find_family(width))]
    )


def parse_options(values: Mapping[str, Any]) -> FinetuneOptions:
  """Reads the values of a config; InputError for values that do not fit."""
  flat = dict(values)
  for name in ("model", "data", "optim", "mesh", "log", "finetune"):
    flat |= values[name]
  spec = sharding.get_mesh_spec(flat["preset"], flat["axes"])
  model = {name: flat[name] for name in ("head_dropout", *MODEL_KEYS)}
  optim = Optim.read(values["optim"])
  options = FinetuneOptions.read(
    flat | {"model": model, "optim": optim, "mesh": spec}
  )
  one_of("model.remat", model["remat"], layers.REMAT)
  metrics.check_writers(options.writers)
  parse_names(options.init_skip, key="init_skip", choices=INIT_SKIPS)
  tasks, glue = options.task_names, [name for name in TASKS if name != SQUAD]
  groups = (glue, (SQUAD,), (OWN,))
  if not tasks or not any(set(tasks) <= {*group} for group in groups):
    raise InputError(
      f"finetune.tasks={options.tasks!r} must name tasks of GLUE"
      f" ({', '.join(glue)}), or {SQUAD}, or {OWN}. The configs are"
      " finetune_glue.py, finetune_squad.py and finetune_own.py."
    )
  if OWN in tasks and not options.epochs:
    raise InputError(
      f"finetune.epochs={options.epochs}, but your own task has no default."
      " Set --config.finetune.epochs=3, for example."
    )
  if options.loss == "sum" and options.accumulation > 1:
    raise InputError(
      f"optim.accumulation={options.accumulation} does not fit"
      " finetune.loss='sum', because it divides the loss. Set"
      " --config.optim.accumulation=1 or --config.finetune.loss=mean."
    )
  for name in ("lrs", "layer_decays"):
    if len(numbers := getattr(options, name)) != len(FAMILY):
      raise InputError(
        f"finetune.{name}={numbers!r} must be three numbers, for small, base"
        " and large models."
      )
  sharding.check_batch_size(options.batch_size, options.accumulation, spec)
  return options
