"""Saves and loads the results of fine-tuning runs.

<workdir>/<task>/seed-<n>/result.json  one finished run
<workdir>/results.json                 all finished runs
"""

import dataclasses
import math
import pathlib
import typing
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from truenegs_jax.finetune import config_checks
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.workdir import files
from truenegs_jax.workdir.metrics_file import finite_or_null

RESULT, RESULTS, CONFIG = "result.json", files.RESULTS, files.CONFIG
RUNS = "*/seed-*"  # the folders of all runs in a workdir
MODEL = "model"  # next to RESULT: the export for Hugging Face
HEAD_HINT = (
  " The default head was 'linear' before it became 'dense'. Use"
  " --config.finetune.against=WORKDIR to compare runs of the two."
)
# Keys of `Result.provenance` that may differ between the tasks of a workdir.
TASK_KEYS = {"labels", "data", "head"}
JSON_KEYS = {"provenance": "made"}  # where they differ from the field's name


@dataclasses.dataclass(frozen=True)
class Result:
  """A finished run: one task, fine-tuned with one seed.

  Attributes:
    failure: why the run failed, or "".
    scores: for each split, value by metric, in percent.
    step, steps: the step of the scored parameters, and of a complete run.
    evaluations: scores of the dev set during training, by step.
    losses: means of the first training record that is not NaN, and of the last.
    secs, rows_per_s: duration and speed of training, with compilation.
    answers: for each split, lists of "keys", "golds" and "answers".
    provenance: all that the scores depend on: config, fingerprints, sizes.
    notes: how the data differ from the published task.
    exported: outcome of the export for Hugging Face; "" if not requested.
    mistakes: wrong answers to the dev set, see `find_mistakes`; empty in files
      of earlier versions.
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
  provenance: Mapping[str, Any]
  notes: Sequence[str]
  exported: str = ""
  mistakes: Sequence[Mapping[str, Any]] = ()

  def to_json(self) -> dict[str, Any]:
    """Returns the fields by their keys in JSON files."""
    fields = dataclasses.asdict(self)
    return {JSON_KEYS.get(name, name): x for name, x in fields.items()}


def run_folder(workdir: pathlib.Path, task: str, seed: int) -> pathlib.Path:
  """Returns the folder of a run."""
  return workdir / task / f"seed-{seed}"


def save(workdir: pathlib.Path, result: Result) -> None:
  """Writes the file of a run; its existence marks the run as finished."""
  path = run_folder(workdir, result.task, result.seed) / RESULT
  files.save_json(path, finite_or_null(result.to_json()), indent=None)


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
  fix = (
    f"Remove '{path.parent}' and run the same command again; it repeats this"
    " run."
  )
  with json_text.read_file(path, CheckpointError, fix) as values:
    for split in values["answers"].values():  # undoes `finite_or_null`
      answers = split["answers"]
      split["answers"] = [math.nan if x is None else x for x in answers]
    result = Result(provenance=values.pop(JSON_KEYS["provenance"]), **values)
    _check_types(result)
    if (result.task, result.seed) != (task, seed):
      raise ValueError(f"of {result.task}, seed {result.seed}")
    scores, answers = result.scores["dev"], result.answers["dev"]["answers"]
    if not (scores and all(map(math.isfinite, scores.values())) and answers):
      raise ValueError("no scores or no answers")
    return result


def _check_types(result: Result) -> None:
  """Raises TypeError if a field is not of its type; floats may be integers."""
  for field in dataclasses.fields(result):
    kind: Any = typing.get_origin(field.type) or field.type
    kinds = (int, float) if kind is float else kind
    if not isinstance(getattr(result, field.name), kinds):
      raise TypeError(field.name)


def missing_seeds(
  workdir: pathlib.Path, task: str, seeds: Sequence[int]
) -> list[int]:
  """Returns the seeds without a finished run."""
  folders = {seed: run_folder(workdir, task, seed) for seed in seeds}
  return [n for n, folder in folders.items() if not (folder / RESULT).exists()]


def count_missing(
  workdir: pathlib.Path, tasks: Sequence[str], seeds: Sequence[int]
) -> int:
  """Returns the number of runs that are not finished."""
  return sum(len(missing_seeds(workdir, task, seeds)) for task in tasks)


def load_all(
  workdir: pathlib.Path, pattern: str = RUNS
) -> dict[str, list[Result]]:
  """Loads the finished runs of a workdir, by task; errors as in `load`."""
  by_task: dict[str, list[Result]] = {}
  for path in sorted(workdir.glob(f"{pattern}/{RESULT}")):
    seed = path.parent.name.removeprefix("seed-")
    if seed.isdecimal() and (run := load(workdir, path.parts[-3], int(seed))):
      by_task.setdefault(run.task, []).append(run)
  return by_task


def check_config(workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Refuses a workdir whose runs have another config (in JSON's types).

  Raises:
    InputError: the workdir has a pre-training run.
    CheckpointError: the configs differ; the message lists the differences.
  """
  if files.has_pretraining(workdir):
    raise InputError(
      f"--workdir={str(workdir)!r} has a pre-training run. Choose another."
    )
  for name, runs in load_all(workdir).items():
    saved = runs[0].provenance.get(CONFIG, config)
    if changes := _find_config_changes(saved, config):
      has_other_head = any(x.key == "finetune.head" for x in changes)
      raise CheckpointError(
        f"'{workdir}' has runs of {name} with another config."
        f" {_describe_changes(changes)}{HEAD_HINT if has_other_head else ''}"
      )


def check_unfinished(
  folder: pathlib.Path, saved: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
  """Refuses to continue a run with another provenance.

  Raises:
    CheckpointError: lists the differences.
  """
  changes = _find_config_changes(saved[CONFIG], now[CONFIG])
  both = [{**x, CONFIG: None} for x in (saved, now)]
  if changes := changes + _find_source_changes(*both):
    raise CheckpointError(
      f"'{folder}' has an unfinished run with another config or other data."
      f" {_describe_changes(changes)} To repeat this run, remove its folder."
    )


def _find_config_changes(
  saved: Mapping[str, Any], now: Mapping[str, Any]
) -> list[files.Change]:
  return [
    change
    for change in files.find_changes(saved, now)
    if change.key not in config_checks.FREE_TO_CHANGE
  ]


def _find_source_changes(
  saved: Mapping[str, Any], now: Mapping[str, Any]
) -> list[files.Change]:
  """Compares weights and data; the test set may be read only sometimes."""
  splits = saved.get("data", {}).keys() & now.get("data", {}).keys()
  both = [
    {**x, "data": {n: x["data"][n] for n in splits}} for x in (saved, now)
  ]
  return files.find_changes(*both)


def check_provenance(
  runs_by_task: Mapping[str, Sequence[Result]],
  task: str,
  provenance: Mapping[str, Any],
) -> None:
  """Refuses weights or data that differ from those of finished runs.

  Runs of other tasks must have the same weights, too, because one table and
  one average are computed from all of them.

  Args:
    runs_by_task: finished runs, as from `load_all`.
    task, provenance: of the runs to start, as in `Result`.

  Raises:
    CheckpointError: lists the differences.
  """
  for run in chain.from_iterable(runs_by_task.values()):
    keys = provenance.keys() - {CONFIG}
    if run.task != task:
      keys -= TASK_KEYS
    saved = {key: run.provenance.get(key) for key in keys}
    now = {key: provenance[key] for key in keys}
    if changes := _find_source_changes(saved, now):
      raise CheckpointError(
        f"The workdir has runs of {run.task} with other weights or data."
        f" {_describe_changes(changes)}"
      )


def _describe_changes(changes: Sequence[files.Change]) -> str:
  lines = "\n  ".join(map(str, changes))
  return (
    f"Differences (saved -> now):\n  {lines}\nPass --workdir=runs/NAME for"
    " new runs, or restore the saved values."
  )


def load_other_workdir(workdir: pathlib.Path) -> dict[str, list[Result]]:
  """Does `load_all` for `finetune.against`; InputError if there are none."""
  if runs := load_all(workdir.expanduser()):
    return runs
  raise InputError(
    f"finetune.against={str(workdir)!r} has no finished fine-tuning run. Pass"
    " the workdir of a fine-tuning."
  )


def has_same_sources(workdir: pathlib.Path, config: Mapping[str, Any]) -> bool:
  """Whether weights and data have the same names as in the finished runs."""
  for runs in load_all(workdir).values():
    saved = runs[-1].provenance.get(CONFIG, {})
    changes = files.find_changes(saved, config)
    if any(change.key in config_checks.SOURCE_KEYS for change in changes):
      return False
  return True
