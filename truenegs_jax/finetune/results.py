"""What fine-tunings have come to: a file for each run, and one for them all.

<workdir>/<task>/seed-<n>/result.json  a run, once it has ended
<workdir>/results.json                 all of them: scores, answers, how made
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.errors import CheckpointError, InputError
from truenegs_jax.finetune import recipe
from truenegs_jax.train import checkpoint, startup

RESULT, RESULTS, CONFIG = "result.json", "results.json", "config.json"


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


def folder(workdir: pathlib.Path, task: str, seed: int) -> pathlib.Path:
  """Where a run has its files."""
  return workdir / task / f"seed-{seed}"


def save(workdir: pathlib.Path, result: Result) -> None:
  """Writes a run's file, which says by being there that the run has ended."""
  place = folder(workdir, result.task, result.seed) / RESULT
  startup.save_json(place, dataclasses.asdict(result))


def load(workdir: pathlib.Path, task: str, seed: int) -> Result | None:
  """A run that has ended, or None.

  Raises:
    CheckpointError: its file is damaged.
  """
  path = folder(workdir, task, seed) / RESULT
  if not path.exists():
    return None
  try:
    return Result(**json.loads(path.read_text(encoding="utf-8")))
  except (OSError, TypeError, ValueError) as e:
    raise CheckpointError(
      f"{path} cannot be read as a result ({e}); remove {path.parent}, and the"
      " same command makes this run again."
    ) from e


def begin(workdir: pathlib.Path, c: ConfigDict) -> None:
  """Refuses a workdir of another config; one that is new gets this one's.

  Raises:
    CheckpointError: lists what differs.
  """
  path, now = workdir / CONFIG, json.loads(c.to_json())
  if (workdir / "checkpoints").exists():
    raise InputError(
      f"--workdir={workdir} is that of a pre-training; give another."
    )
  if path.exists():
    _check_same(path, now)
  startup.save_json(path, now)


def check_alike(
  workdir: pathlib.Path, task: str, made: Mapping[str, Any]
) -> None:
  """Refuses a run of other weights or data than those that have ended.

  Raises:
    CheckpointError: lists what differs.
  """
  for path in sorted((workdir / task).glob(f"seed-*/{RESULT}")):
    seed = int(path.parent.name.removeprefix("seed-"))
    ended = load(workdir, task, seed)
    lines = checkpoint.differences(ended.made if ended else made, made)
    if lines:
      listed = "\n  ".join(lines)
      raise CheckpointError(
        f"{path} is of other weights or data. What differs (saved -> now):\n "
        f" {listed}\nPut it back as it was, or give another --workdir."
      )


def collect(
  workdir: pathlib.Path, tasks: Iterable[str], seeds: Sequence[int]
) -> dict[str, list[Result]]:
  """The runs of these that have ended, by task."""
  found = {}
  for task in tasks:
    runs = [load(workdir, task, seed) for seed in seeds]
    if ended := [run for run in runs if run is not None]:
      found[task] = ended
  return found


def read_all(workdir: pathlib.Path) -> dict[str, list[Result]]:
  """The runs that results.json of another workdir has, by task.

  Raises:
    InputError: there is none, or it cannot be read.
  """
  path = workdir / RESULTS
  try:
    found = json.loads(path.read_text(encoding="utf-8"))["tasks"]
    return {
      task: [Result(**run) for run in value["runs"]]
      for task, value in found.items()
    }
  except (OSError, KeyError, TypeError, ValueError) as e:
    raise InputError(
      f"finetune.against: {path} cannot be read as the results of a"
      f" fine-tuning ({e!r}); give the workdir of one that has finished runs."
    ) from e


def _check_same(path: pathlib.Path, now: Mapping[str, Any]) -> None:
  try:
    saved = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError) as e:
    raise CheckpointError(
      f"{path} cannot be read: {e}; give another --workdir."
    ) from e
  lines = [
    line
    for line in checkpoint.differences(saved, now)
    if not line.startswith(recipe.FREE_TO_CHANGE)
  ]
  if lines:
    listed = "\n  ".join(lines)
    raise CheckpointError(
      f"{path.parent} has runs of another config. What differs (saved -> now):"
      f"\n  {listed}\nPut it back as it was, or give another --workdir."
    )
