"""Checks the parts of a study before any of them runs.

check_unchanged(parts, workdir)
check_parts(unfinished, say, needs_files=True)
"""

import json
import pathlib
from collections.abc import Callable, Sequence

from ml_collections import ConfigDict

from truenegs_jax.configs.common_keys import rules
from truenegs_jax.corrections import predict_slots
from truenegs_jax.finetune import config_checks, task_data
from truenegs_jax.robustness import published_sets
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.config_files import flatten
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.runtime.flags import parse_config
from truenegs_jax.study import plan
from truenegs_jax.study.parts import Part, read_record
from truenegs_jax.train import check_values, checks
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.init import config_sizes
from truenegs_jax.workdir import files

Say = Callable[[str], object]  # prints a line
# Names of inputs: a run may find them elsewhere, but all runs of a study must
# have the same.
INPUTS = (
  *("init", "init_skip", "data.vocab", "data.language"),
  *("negatives.sources", "negatives.stop_words"),
  *("finetune.data", "finetune.files"),
)


def check_unchanged(parts: Sequence[Part], root: pathlib.Path) -> None:
  """Refuses to mix parts of different configs.

  Raises:
    CheckpointError: a part was started with another config; lists differences.
  """
  for part in parts:
    if changes := find_changes(part, root):
      listed = "\n  ".join(map(str, changes))
      raise CheckpointError(
        f"'{root / part.key}' was started with another config. Differences"
        f" (saved -> now):\n  {listed}\nAll parts of a study have the same"
        " values. Restore them, give the arm another name, or pass another"
        " --workdir."
      )


def find_changes(part: Part, root: pathlib.Path) -> list[files.Change]:
  """Lists how a part's config differs from that with which it was started."""
  record = read_record(root / part.key)
  if not record or not part.config:
    return []
  task = part.config["task"]
  free = {key for key, rule in rules(task).items() if rule.may_change}
  if task in ("pretrain", "finetune"):
    free -= {*INPUTS}
  saved = record["config"]
  if task == "pretrain":
    saved = files.add_missing_keys(saved)
  changes = files.find_changes(saved, part.config)
  return [change for change in changes if change.key not in free]


def check_parts(parts: Sequence[Part], say: Say, *, needs_files: bool) -> None:
  """Checks one part of each kind and arm as its own process would.

  Args:
    needs_files: whether text and weights of pre-trainings must exist.

  Raises:
    TrueNegsError: the process would end with it, before it computes anything.
  """
  checked = set[str]()
  for part in filter(lambda x: x.config, parts):
    identity = json.dumps(part.config, sort_keys=True)
    if identity in checked:
      continue
    checked.add(identity)
    c = parse_part(part)
    if (c.task == "pretrain") != (part.name == plan.PRETRAIN):
      raise InputError(
        f"study.base has task={c.task!r}. Set --config.study.base to a config"
        " of pre-training, such as electra_small."
      )
    try:
      check_config(c, say, needs_files=needs_files)
    except errors.TrueNegsError as e:
      raise type(e)(f"{plan.describe_origin(part.arm, part.name)}: {e}") from e


def parse_part(part: Part) -> ConfigDict:
  """Returns the config that a part's process gets."""
  return parse_config([x for x in part.command if x.startswith("--config")])


def check_config(c: ConfigDict, say: Say, *, needs_files: bool) -> None:
  """Does `check_parts` for the config of one part."""
  check_values.check_values(flatten(c.to_dict()), rules(c.task))
  if "mesh" in c:
    c.mesh.axes = ""  # this process does not know the devices of the parts
  if c.task == "finetune":
    config_checks.check(c)
    task_data.check_files(config_checks.FinetuneOptions.from_config(c))
  elif c.task == "robustness":
    published_sets.parse_files(c.robustness.files)
  elif "corrections" in c:
    predict_slots.check_text(c.corrections.text)
  else:
    _check_pretraining(c, say, needs_files=needs_files)


def _check_pretraining(c: ConfigDict, say: Say, *, needs_files: bool) -> None:
  if c.minutes:
    raise InputError(
      f"minutes={c.minutes:g} gives each arm another number of steps. Set"
      " steps=NUMBER instead."
    )
  weights = Weights(c.init, say)
  c = config_sizes.resolve(c, weights, saved=None)
  checks.check_config(c)
  checks.check_warmup(c.optim.warmup_steps, c.steps)
  if needs_files:
    checks.check_required_files(c, weights, saved=False)


def find_unplanned(
  parts: Sequence[Part], root: pathlib.Path
) -> list[pathlib.Path]:
  """Lists folders of parts that the study does not have."""
  planned = {root / part.key for part in parts}
  return sorted({*root.glob("runs/*/seed-*/*/")} - planned)
