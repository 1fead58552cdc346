"""From a config of fine-tuning to its numbers; what it may say is checked here.

Rates and their decay go by the width of the network where the config leaves
them open: small, base, large (Clark et al. 2020, table 7).
"""

from typing import Any

import optax
from ml_collections import ConfigDict

from truenegs_jax.configs.common_keys import KEYS, Key
from truenegs_jax.data.tokens.tokenizer import ACCENTS
from truenegs_jax.finetune import published
from truenegs_jax.models import choose_attention, encoder, finetune, pretrain
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.tasks import glue
from truenegs_jax.train import checks, metrics, optim, sharding
from truenegs_jax.weights.init import check_fit
from truenegs_jax.workdir import files

SQUAD, OWN = "squad", "own"
OF_SPANS = ("spans", "joint")  # heads
CHOICES = {
  "finetune.loss": ("mean", "sum"),
  "finetune.layer_exponent": optim.EXPONENTS,
  "finetune.keep": ("last", "best"),
  "finetune.export": ("all", "none"),
  "model.attention": choose_attention.NAMES,
  "model.dtype": checks.DTYPES,
  "data.accents": tuple(ACCENTS),
}
RANGES = {
  **KEYS,
  "optim.lr": Key(0),  # 0: by width
  "finetune.seeds": Key(1, 1000),
  "finetune.rows": Key(0),
  "finetune.epochs": Key(0, 1000),
  "finetune.head_dropout": Key(0, 0.99),
  "finetune.warmup": Key(0, 1),
  "finetune.layer_decay": Key(0, 1),
  "finetune.window": Key(1),
  "finetune.evals_per_epoch": Key(0),
  "finetune.patience": Key(0),
  "finetune.stride": Key(1),
  "finetune.question_length": Key(1),
  "finetune.num_best": Key(1),
  "finetune.max_answer": Key(1),
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
  checks.check_ranges(files.flatten(c.to_dict()), RANGES)
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
  checks.check_batch_size(
    c.batch_size,
    c.optim.accumulation,
    sharding.get_spec(c.mesh.preset, c.mesh.axes),
  )


def task_names(c: ConfigDict) -> tuple[str, ...]:
  """The tasks of a config, each once."""
  words = c.finetune.tasks.replace(" ", "").split(",")
  return tuple(dict.fromkeys(filter(None, words)))


def _check_tasks(c: ConfigDict) -> None:
  names = task_names(c)
  own, squad = "text" in c.finetune, "stride" in c.finetune
  known = (OWN,) if own else (SQUAD,) if squad else tuple(glue.TASKS)
  wrong = [name for name in names if name not in known]
  if not names or wrong:
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
  heads = OF_SPANS if squad else ("linear", "dense", "pooler")
  one_of("finetune.head", c.finetune.head, heads)


def make_model(
  c: ConfigDict, *, role: str, backbone: str, num_outputs: int, vocab_size: int
) -> finetune.Downstream:
  """The network with its head; `c.model.variant` has sizes by now.

  The head "dense" of BERT is its pooler, as in Hugging Face's class.
  """
  of_bert = role == "bert" and c.finetune.head == "dense"
  names = "variant max_positions dropout attention_dropout dtype remat scan"
  return finetune.make_downstream(
    role=role,
    head="pooler" if of_bert else c.finetune.head,
    num_outputs=num_outputs,
    vocab_size=vocab_size,
    backbone=backbone,
    head_dropout=c.finetune.head_dropout,
    **{name: c.model[name] for name in names.split()},
  )


def by_width(config: encoder.EncoderConfig, values: tuple[float, ...]) -> float:
  """The value of small, base or large models."""
  return values[published.SIZES.index(published.size_of(config.width))]


def peak_rate(c: ConfigDict, config: encoder.EncoderConfig) -> float:
  """The learning rate of the head at its highest."""
  return c.optim.lr or by_width(config, c.finetune.lrs)


def layer_decay(c: ConfigDict, config: encoder.EncoderConfig) -> float:
  """What the rate is multiplied by, a layer further down."""
  return c.finetune.layer_decay or by_width(config, c.finetune.layer_decays)


def make_optimizer(
  c: ConfigDict, model: finetune.Downstream, total_steps: int
) -> tuple[optax.GradientTransformation, optim.Schedule]:
  """Adam with a rate for each layer, and its schedule."""
  config = model.config
  rate = optim.make_schedule(
    c.optim.schedule,
    peak=peak_rate(c, config),
    warmup_steps=round(c.finetune.warmup * total_steps),
    total_steps=total_steps,
  )
  shapes: Any = pretrain.param_shapes(model)
  factors = optim.layer_factors(
    shapes, decay=layer_decay(c, config), exponent=c.finetune.layer_exponent
  )
  numbers = {name: c.optim[name] for name in optim.NUMBERS}
  return optim.make_optimizer(rate, factors=factors, **numbers), rate


def epochs(c: ConfigDict, of_task: float) -> float:
  """Passes over the training rows."""
  return c.finetune.epochs or of_task
