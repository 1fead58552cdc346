"""Results of fine-tunings: a file for each run, and one for all of them.

<workdir>/<task>/seed-<n>/result.json  a run, once it has ended
<workdir>/results.json                 all of them: scores, answers, how made
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.finetune import config_checks
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.workdir import files

RESULT, RESULTS, CONFIG = "result.json", files.RESULTS, files.CONFIG
MODEL = "model"  # beside RESULT: for Hugging Face
OF_TASK = {"labels", "data", "head"}  # of `made`: what differs among tasks


@dataclasses.dataclass(frozen=True)
class Result:
  """A run of a task and a seed that has ended.

  Attributes:
    failure: why it counts as failed, or "".
    scores: of each split, value by metric, in percent.
    step, steps: what the scores are of, and the steps of a whole run.
    evaluations: scores of the dev set on the way, by step.
    losses: mean of the first and of the last records of training.
    secs, rows_per_s: of training, compiling included.
    answers: of each split, "keys", "golds" and "answers", one an example.
    made: what the numbers depend on beside the config: fingerprints, sizes.
    notes: in what the data were not the published task.
    exported: what became of the model for Hugging Face; "": not wanted.
  """

  task: str
  seed: int
  failure: str
  scores: Mapping[str, Mapping[str, float]]
  step: int
  steps: int
  evaluations: Mapping[str, Mapping[str, float]]
  losses: Sequence[float]
  secs: float
  rows_per_s: float
  answers: Mapping[str, Mapping[str, Sequence[Any]]]
  made: Mapping[str, Any]
  notes: Sequence[str]
  exported: str = ""


def run_folder(workdir: pathlib.Path, task: str, seed: int) -> pathlib.Path:
  """Where a run has its files."""
  return workdir / task / f"seed-{seed}"


def save(workdir: pathlib.Path, result: Result) -> None:
  """Writes a run's file, which says by being there that the run has ended."""
  place = run_folder(workdir, result.task, result.seed) / RESULT
  files.save_json(place, to_json_types(dataclasses.asdict(result)), indent=None)


def to_json_types(value: Any) -> Any:
  """With None for what is not finite, which JSON does not know."""
  if isinstance(value, Mapping):
    return {name: to_json_types(x) for name, x in value.items()}
  if isinstance(value, list | tuple):
    return [to_json_types(x) for x in value]
  return None if isinstance(value, float) and not np.isfinite(value) else value


def load(workdir: pathlib.Path, task: str, seed: int) -> Result | None:
  """A run that has ended, or None.

  Raises:
    CheckpointError: its file is damaged.
  """
  path = run_folder(workdir, task, seed) / RESULT
  if not path.exists():
    return None
  try:
    values = json.loads(path.read_text(encoding="utf-8"))
    for split in values["answers"].values():  # no number, for JSON's sake
      split["answers"] = [
        math.nan if x is None else x for x in split["answers"]
      ]
    result = Result(**values)
    scores, answers = result.scores["dev"], result.answers["dev"]["answers"]
    if not (scores and all(map(math.isfinite, scores.values())) and answers):
      raise ValueError("it holds no scores or no answers")
    return result
  except (AttributeError, LookupError, OSError, TypeError, ValueError) as e:
    raise CheckpointError(
      f"{path} cannot be read as a result ({e!r}); remove {path.parent}, and"
      " the same command makes this run again."
    ) from e


def missing_seeds(
  workdir: pathlib.Path, task: str, seeds: Sequence[int]
) -> list[int]:
  """Those of the seeds whose runs have not ended."""
  return [
    n for n in seeds if not (run_folder(workdir, task, n) / RESULT).exists()
  ]


def load_all(workdir: pathlib.Path) -> dict[str, list[Result]]:
  """All the runs that have ended in a workdir, by task.

  Raises:
    CheckpointError: a file is damaged.
  """
  by_task: dict[str, list[Result]] = {}
  for path in sorted(workdir.glob(f"*/seed-*/{RESULT}")):
    seed = path.parent.name.removeprefix("seed-")
    if seed.isdecimal() and (run := load(workdir, path.parts[-3], int(seed))):
      by_task.setdefault(run.task, []).append(run)
  return by_task


def check_config(workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Refuses a workdir whose runs are of another config (in JSON's types).

  Raises:
    InputError: it is that of a pre-training.
    CheckpointError: lists what differs.
  """
  if files.has_pretraining(workdir):
    raise InputError(
      f"--workdir={workdir} is that of a pre-training; give another."
    )
  for name, runs in load_all(workdir).items():
    changed = [
      change
      for change in files.find_changes(runs[0].made.get(CONFIG, config), config)
      if change.key not in config_checks.FREE_TO_CHANGE
    ]
    if changed:
      hint = ""
      if any(change.key == "finetune.head" for change in changed):
        hint = (
          " The default head was 'linear' before it became 'dense';"
          " --config.finetune.against=WORKDIR compares runs of the two."
        )
      raise CheckpointError(
        f"{workdir} has runs of {name} by another config. {_listed(changed)}"
        f"{hint}"
      )


def check_provenance(
  known: Mapping[str, Sequence[Result]],
  task: str,
  provenance: Mapping[str, Any],
) -> None:
  """Refuses other weights or data than those of the runs that have ended.

  Runs of other tasks have to be of the same weights, too: one table, and maybe
  one average, is made of them.

  Args:
    known: as `load_all` has them.
    provenance: of new runs, as `Result.made` has that of old ones.

  Raises:
    CheckpointError: lists what differs.
  """
  for run in (run for runs in known.values() for run in runs):
    keys = (
      provenance.keys() - {CONFIG} - (set() if run.task == task else OF_TASK)
    )
    old: dict[str, Any] = {key: run.made.get(key) for key in keys}
    now = {key: provenance[key] for key in keys}
    if run.task == task:  # test sets may be answered, or not
      both = old["data"].keys() & now["data"].keys()
      for side in (old, now):
        side["data"] = {split: side["data"][split] for split in both}
    if changed := files.find_changes(old, now):
      raise CheckpointError(
        f"the workdir has runs of {run.task} with other weights or data."
        f" {_listed(changed)}"
      )


def _listed(changed: Sequence[files.Change]) -> str:
  lines = "\n  ".join(map(str, changed))
  return (
    f"What differs (saved -> now):\n  {lines}\nPut it back as it was, or give"
    " another --workdir."
  )


def load_other_workdir(workdir: pathlib.Path) -> dict[str, list[Result]]:
  """The runs of another workdir, by task.

  Raises:
    InputError: it has none.
    CheckpointError: a file is damaged.
  """
  if runs := load_all(workdir.expanduser()):
    return runs
  raise InputError(
    f"finetune.against={workdir}: no run of a fine-tuning has ended there; give"
    " the workdir of one."
  )


def has_same_sources(workdir: pathlib.Path, config: Mapping[str, Any]) -> bool:
  """Whether weights and data go by the names that they had."""
  return not any(
    change.key in config_checks.NAMES
    for runs in load_all(workdir).values()
    for change in files.find_changes(runs[-1].made.get(CONFIG, {}), config)
  )
