"""Checks configs of fine-tuning and converts them to options.

check(c)
options = FinetuneOptions.from_config(c)
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from ml_collections import ConfigDict

from truenegs_jax.configs.common_keys import rules
from truenegs_jax.runtime.config_files import flatten
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.tasks import glue, squad, user_task
from truenegs_jax.train import check_values, optim, sharding, writers
from truenegs_jax.weights.init import check_fit

SQUAD, OWN = squad.TASK.name, user_task.NAME
SIZES = ("small", "base", "large")
SPAN_HEADS = ("spans", "joint")
TEXT_HEADS = ("dense", "linear", "pooler")
RULES = rules("finetune")
# Names of weights and data; their fingerprints are compared instead.
SOURCE_KEYS = ("data.vocab", "finetune.data", "finetune.files", "init")
# Do not affect results, so they may change between the runs of a workdir.
FREE_TO_CHANGE = [name for name, rule in RULES.items() if rule.may_change]


def model_size(width: int) -> str:
  """Returns the name in SIZES for a width: base from 768, large from 1,024."""
  return SIZES[(width >= 768) + (width >= 1024)]


@dataclasses.dataclass(frozen=True)
class FinetuneOptions:
  """The values of a config, as described in configs/common_finetune.py.

  `adam` holds keyword arguments of `optim.make_optimizer`. Values of keys that
  the config does not have are 0 or "".
  """

  tasks: tuple[str, ...]
  data: str
  files: str
  rows: int
  predict_test: bool
  length: int
  batch_size: int
  accumulation: int
  epochs: float
  loss: str
  schedule: str
  warmup: float
  lr: float
  lrs: tuple[float, ...]
  layer_decay: float
  layer_decays: tuple[float, ...]
  layer_exponent: str
  adam: Mapping[str, Any]
  window: int
  evals_per_epoch: int
  keep: str
  patience: int
  save_minutes: float
  max_skips: int
  mesh: sharding.MeshSpec
  attention: str
  every_steps: int
  writers: tuple[str, ...]
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
    """Reads a config; fields have the last part of the keys as names."""
    sections = (c, c.model, c.optim, c.log, c.finetune)
    values = {name: x for section in sections for name, x in section.items()}
    values |= {
      "tasks": parse_task_names(c.finetune.tasks),
      "adam": {name: c.optim[name] for name in optim.OPTIMIZER_KEYS},
      "mesh": sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes),
    }
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: values[name] for name in names if name in values})

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
  f, values = c.finetune, flatten(c.to_dict())
  check_values.check_values(values, RULES)
  writers.check_writers(c.log.writers)
  check_fit.parse_skip(c.init_skip)
  _check_tasks(c)
  if f.patience and not f.evals_per_epoch:
    raise InputError(
      f"finetune.patience={f.patience} counts evaluations, but there is only"
      " one, at the end. Set --config.finetune.evals_per_epoch=1 or more."
    )
  if f.loss == "sum" and c.optim.accumulation > 1:
    raise InputError(
      f"optim.accumulation={c.optim.accumulation} does not fit"
      " finetune.loss='sum', because it divides the loss. Set"
      " --config.optim.accumulation=1 or --config.finetune.loss=mean."
    )
  for name in ("lrs", "layer_decays"):
    if len(f[name]) != 3:
      raise InputError(
        f"finetune.{name}={f[name]!r} must be three numbers, for small, base"
        " and large models."
      )
  spec = sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes)
  sharding.check_batch_size(c.batch_size, c.optim.accumulation, spec)


def _check_tasks(c: ConfigDict) -> None:
  own, spans = "text" in c.finetune, "stride" in c.finetune
  tasks = (OWN,) if own else (SQUAD,) if spans else tuple(glue.TASKS)
  names = parse_task_names(c.finetune.tasks)
  if not names or not set(names) <= set(tasks):
    raise InputError(
      f"finetune.tasks={c.finetune.tasks!r} does not fit this config, which has"
      f" {', '.join(tasks)}. The configs are finetune_glue.py,"
      " finetune_squad.py and finetune_own.py."
    )
  if own and not c.finetune.epochs:
    raise InputError(
      f"finetune.epochs={c.finetune.epochs}, but your own task has no default."
      " Set --config.finetune.epochs=3, for example."
    )
  one_of("finetune.head", c.finetune.head, SPAN_HEADS if spans else TEXT_HEADS)
