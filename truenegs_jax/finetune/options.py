"""Reads the values of a config of fine-tuning as checked options."""

from collections.abc import Mapping, Sequence
from typing import Any

from truenegs_jax.config.grammar import parse_names
from truenegs_jax.config.sections import INIT_SKIPS, PretrainConfig
from truenegs_jax.config.tables import Finetune
from truenegs_jax.models import layers
from truenegs_jax.models.encoder import find_family
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.tasks.task import OWN, SQUAD, TASKS, Task, define_own_task
from truenegs_jax.train import loggers, sharding

# Of ELECTRA's paper (Clark et al. 2020), by size of the network.
LEARNING_RATES = {"small": 3e-4, "base": 1e-4, "large": 5e-5}
LAYER_DECAYS = {"small": 0.8, "base": 0.8, "large": 0.9}


class FinetuneOptions(PretrainConfig):
  """A config of fine-tuning; keys that it lacks have their defaults."""

  finetune: Finetune = Finetune()

  @property
  def mesh_spec(self) -> sharding.MeshSpec:
    """The axes of the mesh, and what is split over them."""
    return sharding.get_mesh_spec(self.mesh.preset, self.mesh.model)

  @property
  def files(self) -> dict[str, str]:
    """The files that are set, by split; they are those of the only task."""
    o = self.finetune
    splits = {"train": o.train, "dev": o.dev, "test": o.test}
    return {split: file for split, file in splits.items() if file}

  @property
  def task_names(self) -> tuple[str, ...]:
    """The names in `tasks`."""
    return parse_names(self.finetune.tasks, key="finetune.tasks")

  def find_task(self, name: str) -> Task:
    """Returns a published task, or the user's own without its file's values."""
    if name != OWN:
      return TASKS[name]
    o = self.finetune
    return define_own_task(
      text=o.text, label=o.label, kind=o.kind, labels=o.labels, metric=o.metric
    )

  @property
  def all_seeds(self) -> Sequence[int]:
    """The seeds of the runs of each task."""
    return range(self.seed, self.seed + self.finetune.seeds)

  def peak_rate(self, width: int) -> float:
    """Returns the head's highest learning rate for a network of that width."""
    return self.optim.lr or LEARNING_RATES[find_family(width)]

  def decay(self, width: int) -> float:
    """Returns the factor of the learning rate from a layer to the one below."""
    return self.finetune.layer_decay or LAYER_DECAYS[find_family(width)]


def parse_options(values: Mapping[str, Any]) -> FinetuneOptions:
  """Reads the values of a config; InputError for values that do not fit."""
  options = FinetuneOptions.read(values)
  o = options.finetune
  accumulation = options.optim.accumulation
  one_of("model.remat", options.model.remat, layers.REMAT)
  loggers.check_writers(options.log.writers)
  parse_names(options.init_skip, key="init_skip", choices=INIT_SKIPS)
  tasks = options.task_names
  glue = [name for name in TASKS if name != SQUAD]
  groups = (glue, (SQUAD,), (OWN,))
  if not tasks or not any(set(tasks) <= {*group} for group in groups):
    raise InputError(
      f"finetune.tasks={o.tasks!r} must name tasks of GLUE"
      f" ({', '.join(glue)}), or {SQUAD}, or {OWN}."
    )
  if o.loss == "sum" and accumulation > 1:
    raise InputError(
      f"optim.accumulation={accumulation} does not fit"
      " finetune.loss='sum', because it divides the loss. Set"
      " --config.optim.accumulation=1 or --config.finetune.loss=mean."
    )
  sharding.check_batch_size(options.batch_size, accumulation, options.mesh_spec)
  return options
