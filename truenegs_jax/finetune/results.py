"""Saves and loads the results of fine-tuning runs.

<workdir>/<task>/seed-<n>/result.json  one finished run
<workdir>/results.json                 all finished runs
"""

import dataclasses
import itertools
import math
import pathlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.runtime.files import read_results
from truenegs_jax.workdir import files

RESULT = "result.json"
RUNS = "*/seed-*"  # the folders of all runs in a workdir
MODEL = "model"  # next to RESULT: the export for Hugging Face
# Keys of `Result.provenance` that may differ between the tasks of a workdir.
# The others are equal, as one table and one average are computed from all.
TASK_KEYS = {"labels", "data", "head"}


@dataclasses.dataclass(frozen=True)
class Result:
  """A finished run: one task, fine-tuned with one seed."""

  task: str
  seed: int
  scores: Mapping[str, Mapping[str, float]]  # by split and metric, in percent
  # By split, lists of "keys", "golds" and "answers".
  answers: Mapping[str, Mapping[str, Sequence[Any]]]
  failure: str  # why the run failed, or ""
  step: int  # of the scored parameters
  steps: int  # of a complete run
  secs: float  # of training, with compilation
  rows_per_s: float
  provenance: Mapping[str, Any]  # of the scores: config, fingerprints, sizes
  notes: Sequence[str]  # how the data differ from the published task
  mistakes: Sequence[Mapping[str, Any]]  # on the dev set, at most 100


def run_folder(workdir: pathlib.Path, task: str, seed: int) -> pathlib.Path:
  """Returns the folder of a run."""
  return workdir / task / f"seed-{seed}"


def save(workdir: pathlib.Path, result: Result) -> None:
  """Writes the file of a run; its existence marks the run as finished."""
  path = run_folder(workdir, result.task, result.seed) / RESULT
  value = files.finite_or_null(dataclasses.asdict(result))
  files.save_json(path, value, indent=None)


def fingerprint(chunks: Iterable[bytes]) -> str:
  """Returns the CRC-32 of the concatenated chunks, 8 hex digits."""
  crc = 0
  for chunk in chunks:
    crc = zlib.crc32(chunk, crc)
  return f"{crc:08x}"


def load(workdir: pathlib.Path, task: str, seed: int) -> Result | None:
  """Loads a finished run, or None; raises CheckpointError if it is damaged."""
  path = run_folder(workdir, task, seed) / RESULT
  if not path.exists():
    return None
  fix = f"Remove '{path.parent}' and run the same command again."
  with read_results(path, CheckpointError, fix) as values:
    for split in values["answers"].values():  # undoes `finite_or_null`
      answers = split["answers"]
      split["answers"] = [math.nan if x is None else x for x in answers]
    return Result(**values)


def load_all(workdir: pathlib.Path) -> dict[str, list[Result]]:
  """Loads the finished runs of a workdir, by task."""
  by_task: dict[str, list[Result]] = {}
  for path in sorted(workdir.glob(f"{RUNS}/{RESULT}")):
    seed = path.parent.name.removeprefix("seed-")
    if seed.isdecimal() and (run := load(workdir, path.parts[-3], int(seed))):
      by_task.setdefault(run.task, []).append(run)
  return by_task


def check_unchanged(
  workdir: pathlib.Path, now: Mapping[str, Any], *, task: str = ""
) -> None:
  """Refuses another config, weights or data than those of finished runs.

  Args:
    now: entries of `Result.provenance`; only these are compared.
    task: the task of `now`, without which TASK_KEYS are not compared.
  """
  for run in itertools.chain.from_iterable(load_all(workdir).values()):
    changes: list[files.Change] = []
    for key in now.keys() - (set() if run.task == task else TASK_KEYS):
      saved = run.provenance[key]
      if key == files.CONFIG:
        changes += files.find_fixed_changes(saved, now[key])
      else:
        # The test set may be read only sometimes.
        changes += [
          x
          for x in files.find_changes({key: saved}, {key: now[key]})
          if files.ABSENT not in (x.saved, x.now)
        ]
    if changes:
      lines = "\n  ".join(map(str, sorted(changes)))
      raise CheckpointError(
        f"'{workdir}' has runs of {run.task} with another config, other weights"
        f" or data. Differences (saved -> now):\n  {lines}\nPass"
        " --workdir=runs/NAME for new runs, or restore the saved values."
      )
