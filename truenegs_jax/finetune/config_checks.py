"""Checks configs of fine-tuning and converts them to options.

check(c)
options = FinetuneOptions.from_config(c)
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

from ml_collections import ConfigDict

from truenegs_jax.configs.common_keys import rules
from truenegs_jax.runtime.config_files import flatten
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import glue, squad, user_task
from truenegs_jax.train import check_values, metrics, optim, sharding
from truenegs_jax.weights import match_vocabulary

SQUAD, OWN = squad.TASK.name, user_task.NAME
SIZES = ("small", "base", "large")
RULES = rules("finetune")
# Names of weights and data; their fingerprints are compared instead.
SOURCE_KEYS = ("data.vocab", "finetune.data", "finetune.files", "init")


def model_size(width: int) -> str:
  """Returns the name in SIZES for a width: base from 768, large from 1,024."""
  return SIZES[(width >= 768) + (width >= 1024)]


@dataclasses.dataclass(frozen=True)
class FinetuneOptions:
  """The values of a config, which configs/common_finetune.py describes.

  Fields have the last part of the keys as names, and are 0 or "" where the
  config does not have the key. `adam` holds arguments of
  `optim.make_optimizer`, `model` arguments of `make_downstream` that do not
  depend on the weights.
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
  adam: Mapping[str, Any]
  mesh: sharding.MeshSpec
  preset: str
  every_steps: int
  writers: tuple[str, ...]
  tasks: tuple[str, ...]
  seeds: int
  data: str
  files: str
  rows: int
  epochs: float
  predict_test: bool
  loss: str
  warmup: float
  lrs: tuple[float, ...]
  layer_decay: float
  layer_decays: tuple[float, ...]
  window: int
  evals_per_epoch: int
  save_minutes: float
  export: str
  against: str
  # Only for SQuAD:
  stride: int = 0
  question_length: int = 0
  num_best: int = 0
  max_answer: int = 0
  # Only for the user's own task:
  text: str = ""
  label: str = ""
  kind: str = ""
  labels: str = ""
  metric: str = ""

  @classmethod
  def from_config(cls, c: ConfigDict) -> Self:
    """Reads a config, whose values were checked."""
    sections = (c, c.model, c.data, c.optim, c.mesh, c.log, c.finetune)
    values = {name: x for section in sections for name, x in section.items()}
    names = ("dropout", "attention_dropout", "dtype", "remat", "scan")
    values |= {
      "tasks": parse_task_names(c.finetune.tasks),
      "model": {name: values[name] for name in ("head_dropout", *names)},
      "adam": {name: c.optim[name] for name in optim.OPTIMIZER_KEYS},
      "mesh": sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes),
    }
    fields = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: values[name] for name in fields if name in values})

  @property
  def all_seeds(self) -> Sequence[int]:
    """The seeds of the runs of each task."""
    return range(self.seed, self.seed + self.seeds)

  def peak_rate(self, width: int) -> float:
    """Returns the head's highest learning rate for a network of that width."""
    return self.lr or self.lrs[SIZES.index(model_size(width))]

  def decay(self, width: int) -> float:
    """Returns the factor of the learning rate from a layer to the one below."""
    return self.layer_decay or self.layer_decays[SIZES.index(model_size(width))]


def parse_task_names(text: str) -> tuple[str, ...]:
  """Parses `finetune.tasks`; repeated names count once."""
  names = text.replace(" ", "").split(",")
  return tuple(dict.fromkeys(filter(None, names)))


def check(c: ConfigDict) -> None:
  """Raises InputError for an invalid value, before any file is read."""
  if "finetune" not in c:
    raise InputError(
      "task='finetune' does not fit this config. Pass"
      " --config=configs/finetune_glue.py, finetune_squad.py or"
      " finetune_own.py."
    )
  f = c.finetune
  check_values.check_values(flatten(c.to_dict()), RULES)
  metrics.check_writers(c.log.writers)
  match_vocabulary.parse_skip(c.init_skip)
  is_own, names = "text" in f, parse_task_names(f.tasks)
  tasks = (OWN,) if is_own else (SQUAD,) if "stride" in f else (*glue.TASKS,)
  if not names or not set(names) <= set(tasks):
    raise InputError(
      f"finetune.tasks={f.tasks!r} does not fit this config, which has"
      f" {', '.join(tasks)}. The configs are finetune_glue.py,"
      " finetune_squad.py and finetune_own.py."
    )
  if is_own and not f.epochs:
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
    if len(f[name]) != len(SIZES):
      raise InputError(
        f"finetune.{name}={f[name]!r} must be three numbers, for small, base"
        " and large models."
      )
  spec = sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes)
  sharding.check_batch_size(c.batch_size, c.optim.accumulation, spec)
