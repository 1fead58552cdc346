"""Checks configs of fine-tuning and converts them to options.

check(c)
options = FinetuneOptions.from_config(c)
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

from ml_collections import ConfigDict

from truenegs_jax.config.grammar import parse_names
from truenegs_jax.config.sections import INIT_SKIPS, Optim
from truenegs_jax.config.task_sections import Finetune
from truenegs_jax.models import layers
from truenegs_jax.models.registry import FAMILY, find_family
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.tasks.task import OWN, SQUAD, TASKS
from truenegs_jax.train import metrics, sharding


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

  @classmethod
  def from_config(cls, c: ConfigDict) -> Self:
    """Reads a config, whose values were checked."""
    sections = (c, c.model, c.data, c.optim, c.mesh, c.log, c.finetune)
    values = {name: x for section in sections for name, x in section.items()}
    names = ("dropout", "attention_dropout", "dtype", "remat", "scan")
    values |= {
      "model": {name: values[name] for name in ("head_dropout", *names)},
      "optim": Optim.read(c.optim),
      "mesh": sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes),
    }
    return cls.read(values)

  @property
  def task_names(self) -> tuple[str, ...]:
    """The names in `tasks`."""
    return parse_names(self.tasks, key="finetune.tasks")

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


def check(c: ConfigDict) -> None:
  """Raises InputError for an invalid value, before any file is read."""
  f = c.finetune
  one_of("model.remat", c.model.remat, layers.REMAT)
  metrics.check_writers(c.log.writers)
  parse_names(c.init_skip, key="init_skip", choices=INIT_SKIPS)
  names = parse_names(f.tasks, key="finetune.tasks")
  glue = [name for name in TASKS if name != SQUAD]
  groups = (glue, (SQUAD,), (OWN,))
  if not names or not any(set(names) <= {*group} for group in groups):
    raise InputError(
      f"finetune.tasks={f.tasks!r} must name tasks of GLUE"
      f" ({', '.join(glue)}), or {SQUAD}, or {OWN}. The configs are"
      " finetune_glue.py, finetune_squad.py and finetune_own.py."
    )
  if OWN in names and not f.epochs:
    raise InputError(
      f"finetune.epochs={f.epochs}, but your own task has no default."
      " Set --config.finetune.epochs=3, for example."
    )
  if f.loss == "sum" and c.optim.accumulation > 1:
    raise InputError(
      f"optim.accumulation={c.optim.accumulation} does not fit"
      " finetune.loss='sum', because it divides the loss. Set"
      " --config.optim.accumulation=1 or --config.finetune.loss=mean."
    )
  for name in ("lrs", "layer_decays"):
    if len(f[name]) != len(FAMILY):
      raise InputError(
        f"finetune.{name}={f[name]!r} must be three numbers, for small, base"
        " and large models."
      )
  spec = sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes)
  sharding.check_batch_size(c.batch_size, c.optim.accumulation, spec)
