"""Shows what a run, a study or a preparation does, from another terminal.

  truenegs status runs/electra_demo

It only reads: state, step, losses, speed, time left and the newest checkpoint.
"""

from truenegs_jax.runtime import errors

if __name__ == "__main__":
  errors.start_command()  # before the imports that take time

import datetime
import pathlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.config.tables import Study
from truenegs_jax.data.rows import rows_folder
from truenegs_jax.data.rows.shards import measure_unfinished
from truenegs_jax.finetune import results
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.runtime.files import is_locked, read_json
from truenegs_jax.runtime.paths import is_bucket, open_path
from truenegs_jax.workdir import files

# Fields of records, in this order; other losses are in metrics.jsonl.
LOSSES = (
  *("total", "mlm", "mlm_uncorrected", "detect", "soft", "sentence"),
  *("auc", "corrected_of_mismatches"),
)
MAX_SECS = 1e9  # more is damage
Line = tuple[str, str]  # label and text


def describe(workdir: pathlib.Path) -> list[Line]:
  """Describes a workdir or a rows folder; the first line is its state."""
  path = workdir / files.CONFIG
  if not path.exists():
    return _describe_rows(workdir)
  fix = "Run the command of the run again, which writes it."
  with read_json(path, CheckpointError, fix) as config:
    task = config["task"]
    if task == "study":
      return _describe_study(workdir, Study.read(config["study"]))
    lines = [("state", files.read_state(workdir)), ("task", task)]
    if task == "pretrain":
      lines += _describe_records(workdir, config["steps"])
    elif task == "finetune":
      by_task = results.load_all(workdir)
      lines.append(("finished runs", f"{sum(map(len, by_task.values()))}"))
      for name, runs in by_task.items():
        for metric in runs[0].scores["dev"]:
          seeds = {x.seed: x.scores["dev"][metric] for x in runs}
          text = ", ".join(f"seed {n} {x:.2f}" for n, x in seeds.items())
          mean = f"mean {statistics.fmean(seeds.values()):.2f}"
          lines.append((f"{name} {metric}", f"{mean}; {text}"))
      for folder in files.list_recorded(workdir, results.RUNS):
        if not (folder / results.RESULT).exists():
          lines.append(("run", folder.relative_to(workdir).as_posix()))
          lines += _describe_records(folder)
  return lines


def _describe_records(folder: pathlib.Path, most: int = 0) -> Iterator[Line]:
  """Describes the newest records, the time left, and the newest checkpoint."""
  newest = {x["split"]: x for x in files.read_records(folder)}
  if train := newest.get("train"):
    total = train.get("total_steps") or most  # expected or all steps
    yield "step", f"{train['step']:,}" + (f" of {total:,}" if total else "")
    if speed := train.get("rows_per_s"):
      left = _format_secs(train.get("eta_s") or 0)
      yield "speed", f"{speed:.4g} rows/s, {left} left"
  for split, record in newest.items():
    names = record if split == "dev" else LOSSES
    values = {x: record.get(x) for x in names if x not in files.COMMON}
    shown = [f"{name} {x:.4g}" for name, x in values.items() if x is not None]
    yield f"{split}, step {record['step']:,}", ", ".join(shown)
  checkpoints = folder / files.CHECKPOINTS
  if saved_steps := files.list_steps(checkpoints):
    path: Any = checkpoints / str(saved_steps[-1])
    if is_bucket(path):  # where folders have no time
      saved = (path / files.COMMITTED).stat().mtime
    else:
      saved = path.stat().st_mtime
    ago = _format_secs(time.time() - saved)
    yield "newest checkpoint", f"step {saved_steps[-1]:,}, {ago} ago"


def _format_secs(secs: float) -> str:
  """Returns "0:00:12", although the clocks of two machines may differ."""
  return str(datetime.timedelta(seconds=round(min(max(secs, 0.0), MAX_SECS))))


def _describe_study(workdir: pathlib.Path, study: Study) -> list[Line]:
  """Counts the parts of a study, and names those that run or failed."""
  from truenegs_jax.study import drive, plan  # imports much

  parts = plan.make_plan(study, workdir).parts
  states = drive.read_states(parts, workdir)
  current, state = set(states.values()), drive.State
  is_open = bool(current & {state.MISSING, state.FAILED})
  overall = files.STOPPED if is_open else files.FINISHED
  lines = [("state", files.RUNNING if state.RUNNING in current else overall)]
  lines += [("task", "study"), ("parts", drive.describe_progress(states))]
  for part in parts:
    if states[part.key] == state.RUNNING:
      lines.append(("part", part.key))
    elif states[part.key] in (state.FAILED, state.DIVERGED):
      lines.append(("failed", drive.describe_failure(part, workdir)))
  if missing := drive.next_part(parts, states):
    lines.append(("next", missing.key))
  return lines


def _describe_rows(folder: pathlib.Path) -> list[Line]:
  """Describes a folder of rows, finished or in preparation."""
  if (folder / rows_folder.MANIFEST).exists():
    splits = rows_folder.read_manifest(folder)["splits"]
    rows = ", ".join(f"{x['rows']:,} {name}" for name, x in splits.items())
    return [("state", files.FINISHED), ("task", "prepare"), ("rows", rows)]
  if is_locked(folder / files.LOCK):
    return [("state", files.RUNNING), ("task", "starts, or measures a model")]
  num_built, size = measure_unfinished(folder)
  lock = folder.with_name(f".{folder.name}.lock")
  is_running = is_locked(lock)
  if not num_built and not is_running:
    raise InputError(
      f"'{folder}' is neither a workdir nor a folder of rows: it has no"
      f" {files.CONFIG}. Name the folder of a run, or the one that"
      " `prepare` prints."
    )
  state = files.RUNNING if is_running else files.STOPPED
  shards = f"{num_built:,} written, {size / 1e6:,.1f} MB"
  return [("state", state), ("task", "prepare"), ("shards", shards)]


def main(argv: list[str]) -> None:
  """Prints the status."""
  with flags_lib.exit_on_errors():
    if len(argv) != 2:
      raise InputError(f"Name one folder: {errors.program()} status runs/x.")
    for label, text in describe(open_path("status", argv[1])):
      print(f"{label:<19}{text}")


def run_command() -> None:
  """Runs `main`."""
  flags_lib.run(main)


if __name__ == "__main__":
  run_command()
