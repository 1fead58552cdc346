"""From a config of fine-tuning to its values; what it may hold is checked here.

check(c)
recipe = Recipe.from_config(c)
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from ml_collections import ConfigDict

from truenegs_jax.configs.common_keys import KEYS, KeyRule
from truenegs_jax.data.tokens.tokenizer import ACCENTS
from truenegs_jax.models import choose_attention, encoder
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.tasks import glue, squad, user_task
from truenegs_jax.train import metrics, optim, sharding
from truenegs_jax.weights.init import check_fit
from truenegs_jax.workdir import files
from truenegs_jax.workdir import from_config as from_config_lib

SQUAD, OWN = squad.TASK.name, user_task.NAME
SIZES = ("small", "base", "large")
OF_SPANS, OF_TEXTS = ("spans", "joint"), ("dense", "linear", "pooler")  # heads
CHOICES = {
  "finetune.loss": ("mean", "sum"),
  "finetune.layer_exponent": optim.LAYER_EXPONENTS,
  "finetune.keep": ("last", "best"),
  "finetune.export": ("all", "none"),
  "model.attention": choose_attention.CHOICES,
  "model.dtype": encoder.DTYPES,
  "data.accents": tuple(ACCENTS),
}
RANGES = {
  **KEYS,
  "optim.lr": KeyRule(0),  # 0: by width
  "finetune.seeds": KeyRule(1, 1000),
  "finetune.rows": KeyRule(0),
  "finetune.epochs": KeyRule(0, 1000),
  "finetune.head_dropout": KeyRule(0, 0.99),
  "finetune.warmup": KeyRule(0, 1),
  "finetune.layer_decay": KeyRule(0, 1),
  "finetune.window": KeyRule(1),
  "finetune.evals_per_epoch": KeyRule(0),
  "finetune.patience": KeyRule(0),
  "finetune.stride": KeyRule(1),
  "finetune.question_length": KeyRule(1),
  "finetune.num_best": KeyRule(1),
  "finetune.max_answer": KeyRule(1),
}
# Change no number of a run, or name what has fingerprints.
NAMES = ("data.vocab", "finetune.data", "finetune.files", "init")
FREE_TO_CHANGE = (
  *NAMES,
  "finetune.against",
  "finetune.export",
  "finetune.predict_test",
  "finetune.seeds",
  "finetune.tasks",
  "log.every_steps",
  "log.writers",
  "mesh.axes",
  "mesh.preset",
  "model.attention",
  "model.remat",
  "model.scan",
  "seed",
)


def model_size(width: int) -> str:
  """Which of SIZES a network of so many units is like: base from 768 on."""
  return SIZES[(width >= 768) + (width >= 1024)]


@dataclasses.dataclass(frozen=True)
class FinetuneOptions:
  """The values of a config; configs/common_finetune.py says what each is.

  Those that belong to another config than the present one are 0 or "".

  Attributes:
    adam: of `optim.make_optimizer`, by name.
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
  max_skips: int
  mesh: sharding.MeshSpec
  attention: str
  every_steps: int
  writers: tuple[str, ...]
  # Of SQuAD:
  stride: int = 0
  question_length: int = 0
  num_best: int = 0
  max_answer: int = 0
  # Of a task of the user's own:
  text: str = ""
  label: str = ""
  kind: str = ""
  labels: str = ""
  metric: str = ""

  @classmethod
  def from_config(cls, c: ConfigDict) -> Self:
    """Reads a config, each value by the last part of its key."""
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
    """The learning rate of the head at its highest, by the network's width."""
    return self.lr or self.lrs[SIZES.index(model_size(width))]

  def decay(self, width: int) -> float:
    """The factor of the rate, a layer further down."""
    return self.layer_decay or self.layer_decays[SIZES.index(model_size(width))]


def parse_task_names(text: str) -> tuple[str, ...]:
  """The tasks that `finetune.tasks` lists, each once."""
  words = text.replace(" ", "").split(",")
  return tuple(dict.fromkeys(filter(None, words)))


def check(c: ConfigDict) -> None:
  """Refuses values that no fine-tuning can have, before anything is read.

  Raises:
    InputError: names the value and what it may be.
  """
  if "finetune" not in c:
    raise InputError(
      "task 'finetune' does not go with this config; tasks are fine-tuned with"
      " --config=configs/finetune_glue.py, finetune_squad.py, finetune_own.py."
    )
  from_config_lib.check_ranges(files.flatten(c.to_dict()), RANGES)
  f = c.finetune
  for name, known in CHOICES.items():
    section, _, key = name.partition(".")
    one_of(name, c[section][key], known)
  for name in c.log.writers:
    one_of("log.writers", name, metrics.WRITERS)
  one_of("optim.schedule", c.optim.schedule, optim.SCHEDULES)
  check_fit.parse_skip(c.init_skip)
  _check_tasks(c)
  if f.patience and not f.evals_per_epoch:
    raise InputError(
      f"finetune.patience={f.patience} counts evaluations, and there is one, at"
      " the end: give --config.finetune.evals_per_epoch=1, say."
    )
  if f.loss == "sum" and c.optim.accumulation > 1:
    raise InputError(
      "finetune.loss=sum is not divided, and optim.accumulation would divide"
      " it: take one micro-batch, or finetune.loss=mean."
    )
  for name in ("lrs", "layer_decays"):
    if len(f[name]) != 3 or not all(0 < x <= 1 for x in f[name]):
      raise InputError(
        f"finetune.{name} is {f[name]}; give three numbers over 0 and up to 1:"
        " of small, base and large models."
      )
  sharding.check_batch_size(
    c.batch_size,
    c.optim.accumulation,
    sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes),
  )


def _check_tasks(c: ConfigDict) -> None:
  names = parse_task_names(c.finetune.tasks)
  own, spans = "text" in c.finetune, "stride" in c.finetune
  known = (OWN,) if own else (SQUAD,) if spans else tuple(glue.TASKS)
  if not names or set(names) - set(known):
    raise InputError(
      f"finetune.tasks={c.finetune.tasks!r}: this config has"
      f" {', '.join(known)}; finetune_glue.py, finetune_squad.py and"
      " finetune_own.py are there."
    )
  if own and not c.finetune.epochs:
    raise InputError(
      "finetune.epochs is 0, and a task of your own has no recipe to say how"
      " many it takes: give a number over 0."
    )
  one_of("finetune.head", c.finetune.head, OF_SPANS if spans else OF_TEXTS)
