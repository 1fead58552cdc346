"""Saves and loads the results of fine-tuning runs.

<workdir>/<task>/seed-<n>/result.json  one finished run
<workdir>/results.json                 all finished runs
"""

import dataclasses
import math
import pathlib
import typing
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.runtime.files import read_results
from truenegs_jax.workdir import files

RESULT, RESULTS, CONFIG = "result.json", files.RESULTS, files.CONFIG
RUNS = "*/seed-*"  # the folders of all runs in a workdir
MODEL = "model"  # next to RESULT: the export for Hugging Face
# Keys of `Result.provenance` that may differ between the tasks of a workdir.
# The others are equal, as one table and one average are computed from all.
TASK_KEYS = {"labels", "data", "head"}


@dataclasses.dataclass(frozen=True)
class Record:
  """A scored model."""

  task: str
  seed: int | None  # of its fine-tuning; None if that is not ours
  scores: Mapping[str, Mapping[str, float]]  # by split and metric, in percent
  # By split, lists of "keys", "golds" and "answers".
  answers: Mapping[str, Mapping[str, Sequence[Any]]]


@dataclasses.dataclass(frozen=True)
class Result(Record):
  """A finished run: one task, fine-tuned with one seed."""

  seed: int
  failure: str  # why the run failed, or ""
  step: int  # of the scored parameters
  steps: int  # of a complete run
  evaluations: Mapping[str, Mapping[str, float]]  # of the dev set, by step
  losses: Sequence[float]  # means of the first not NaN record and of the last
  secs: float  # of training, with compilation
  rows_per_s: float
  provenance: Mapping[str, Any]  # of the scores: config, fingerprints, sizes
  notes: Sequence[str]  # how the data differ from the published task
  mistakes: Sequence[Mapping[str, Any]]  # on the dev set, at most 100
  exported: str = ""  # outcome of the export for Hugging Face, if requested


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
    result = Result(**values)
    for field in dataclasses.fields(result):  # a float may be an integer
      kind: Any = typing.get_origin(field.type) or field.type
      kinds = (int, float) if kind is float else kind
      if not isinstance(getattr(result, field.name), kinds):
        raise TypeError(field.name)
    if (result.task, result.seed) != (task, seed):
      raise ValueError(f"of {result.task}, seed {result.seed}")
    scores, answers = result.scores["dev"], result.answers["dev"]["answers"]
    if not (scores and all(map(math.isfinite, scores.values())) and answers):
      raise ValueError("no scores or no answers")
    return result


def load_all(workdir: pathlib.Path) -> dict[str, list[Result]]:
  """Loads the finished runs of a workdir, by task."""
  by_task: dict[str, list[Result]] = {}
  for path in sorted(workdir.glob(f"{RUNS}/{RESULT}")):
    seed = path.parent.name.removeprefix("seed-")
    if seed.isdecimal() and (run := load(workdir, path.parts[-3], int(seed))):
      by_task.setdefault(run.task, []).append(run)
  return by_task


def check_config(workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Refuses a workdir whose runs have another config (in JSON's types)."""
  if (workdir / files.CHECKPOINTS).exists():
    raise InputError(
      f"--workdir={str(workdir)!r} has a pre-training run. Choose another."
    )
  for name, runs in load_all(workdir).items():
    changes = files.find_fixed_changes(runs[0].provenance[CONFIG], config)
    _refuse(changes, f"'{workdir}' has runs of {name} with another config.")


def check_provenance(
  saved: Mapping[str, Any],
  now: Mapping[str, Any],
  reason: str,
  *,
  left_out: Collection[str] = (),
) -> None:
  """Refuses another config, weights or data than those of a saved run.

  `saved` and `now` are values of `Result.provenance`, whose keys `left_out` are
  not compared. `reason` begins the message of the error.
  """
  changes = files.find_fixed_changes(saved[CONFIG], now[CONFIG])
  # The test set may be read only sometimes.
  splits = saved["data"].keys() & now["data"].keys()
  both, skipped = [], {CONFIG, *left_out}
  for x in (saved, now):
    values = {**x, "data": {split: x["data"][split] for split in splits}}
    both.append({k: v for k, v in values.items() if k not in skipped})
  _refuse(changes + files.find_changes(*both), reason)


def _refuse(changes: Sequence[files.Change], reason: str) -> None:
  if changes:
    lines = "\n  ".join(map(str, changes))
    raise CheckpointError(
      f"{reason} Differences (saved -> now):\n  {lines}\nPass"
      " --workdir=runs/NAME for new runs, or restore the saved values."
    )
