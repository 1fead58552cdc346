"""Shows what a run, a study or a preparation does, from another terminal.

  python -m truenegs_jax.status --workdir=runs/electra_demo [--watch=10]

It only reads: state, step, losses, speed, time left and the newest checkpoint.
`--watch` repeats it every so many seconds, until the work ends or Ctrl-C.
"""

from truenegs_jax.runtime import signals

if __name__ == "__main__":
  signals.exit_at_signals()  # before the imports that take time

import collections
import datetime
import pathlib
import time
from collections.abc import Iterator

from absl import flags
from ml_collections import ConfigDict
from rich.live import Live
from rich.table import Table

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.data.rows import rows_folder, store
from truenegs_jax.runtime import json_text, progress
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.runtime.files import is_locked
from truenegs_jax.workdir import files, metrics_file
from truenegs_jax.workdir.lock import FINISHED, RUNNING, STOPPED, read_state

RESULT = "result.json"  # of one fine-tuning
# Before config.json is written: by corrections and robustness at their end.
STARTING = "starts (reads text and weights, compiles), or measures a model"
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
  with json_text.read_file(path, CheckpointError, fix) as config:
    task = config["task"]
    if task == "study":
      return list(_describe_study(workdir, ConfigDict(config)))
    lines = [("state", read_state(workdir)), ("task", task)]
    if task == "pretrain":
      lines += _describe_records(workdir, f" of {config['steps']:,}")
    elif task == "finetune":
      lines += _describe_finetuning(workdir)
  return lines


def _describe_records(folder: pathlib.Path, of_steps: str) -> Iterator[Line]:
  """Describes the newest records, the time left, and the newest checkpoint."""
  newest = {x["split"]: x for x in metrics_file.read_records(folder)}
  train = newest.pop("train", None)
  if not train:
    yield "step", f"none{of_steps} recorded yet"
  else:
    yield "step", f"{train['step']:,}{of_steps}"
    yield "losses", _describe_losses(train)
    if speed := train.get("rows_per_s"):
      left = _format_secs(train.get("eta_s") or 0)
      yield "speed", f"{speed:.4g} rows/s, {left} left"
    if at := train.get("time"):
      yield "newest record", f"{_format_secs(time.time() - at)} ago"
  for split, record in newest.items():
    yield f"{split}, step {record['step']:,}", _describe_losses(record)
  folders = (folder / files.CHECKPOINTS).glob("*")
  steps = {int(x.name): x for x in folders if x.name.isdigit()}
  if steps:
    secs = time.time() - steps[max(steps)].stat().st_mtime
    text = f"step {max(steps):,}, {_format_secs(secs)} ago"
    yield "newest checkpoint", text


def _format_secs(secs: float) -> str:
  """Returns "0:00:12", although the clocks of two machines may differ."""
  return str(datetime.timedelta(seconds=round(min(max(secs, 0.0), MAX_SECS))))


def _describe_losses(record: metrics_file.Record) -> str:
  """Returns the losses, or all scores of a dev set."""
  fields = record if record["split"] == "dev" else LOSSES
  names = [name for name in fields if name not in metrics_file.COMMON]
  values = ((name, record.get(name)) for name in names)
  return ", ".join(f"{name} {x:.4g}" for name, x in values if x is not None)


def _describe_finetuning(workdir: pathlib.Path) -> Iterator[Line]:
  """Counts finished runs, and describes those that have not finished."""
  finished = collections.Counter(
    path.parent.parent.name for path in workdir.glob(f"*/seed-*/{RESULT}")
  )
  if finished:
    yield "finished", ", ".join(f"{k}: {n} runs" for k, n in finished.items())
  for path in sorted(workdir.glob(f"*/seed-*/{metrics_file.METRICS}")):
    if not path.with_name(RESULT).exists():
      yield "run", path.parent.relative_to(workdir).as_posix()
      yield from _describe_records(path.parent, "")


def _describe_study(workdir: pathlib.Path, c: ConfigDict) -> Iterator[Line]:
  """Counts the parts of a study, and describes those that run or failed."""
  from truenegs_jax.study import drive, plan  # imports much

  parts = plan.make_parts(plan.StudyOptions.from_config(c), workdir)
  states = drive.read_states(parts, workdir)
  counts = collections.Counter(states.values())
  is_running = counts[drive.State.RUNNING] > 0
  is_open = counts[drive.State.MISSING] + counts[drive.State.FAILED] > 0
  yield "state", RUNNING if is_running else STOPPED if is_open else FINISHED
  yield "task", "study"
  yield "parts", drive.describe_progress(states)
  for part in parts:
    folder, state = workdir / part.key, states[part.key]
    if state in (drive.State.FAILED, drive.State.DIVERGED):
      yield "failed", drive.describe_failure(part, workdir)
    elif state == drive.State.RUNNING:
      yield "part", part.key
      if (folder / files.CONFIG).exists():
        yield from describe(folder)[1:]


def _describe_rows(folder: pathlib.Path) -> list[Line]:
  """Describes a folder of rows, finished or in preparation."""
  if (folder / rows_folder.MANIFEST).exists():
    splits = rows_folder.read_manifest(folder)["splits"]
    rows = ", ".join(f"{x['rows']:,} {name}" for name, x in splits.items())
    return [("state", FINISHED), ("task", "prepare"), ("rows", rows)]
  if is_locked(folder / files.LOCK):
    return [("state", RUNNING), ("task", STARTING)]
  num_built, size = store.measure_unfinished(folder)
  lock = folder.with_name(f".{folder.name}.lock")
  is_running = is_locked(lock, or_shared=True)
  if not num_built and not is_running:
    raise InputError(
      f"--workdir='{folder}' is neither a workdir nor a folder of rows: it has"
      f" no {files.CONFIG}. Pass the --workdir of a run, or the folder that"
      " `prepare` prints."
    )
  state = RUNNING if is_running else STOPPED
  shards = f"{num_built:,} written, {size / 1e6:,.1f} MB"
  return [("state", state), ("task", "prepare"), ("shards", shards)]


def main(argv: list[str]) -> None:
  """Prints the status, once or every `--watch` seconds."""
  del argv
  workdir = pathlib.Path(flags.FLAGS.workdir).expanduser()
  console = progress.make_console()
  with flags_lib.exit_on_errors():
    if not flags.FLAGS.workdir:
      raise InputError("Set --workdir=FOLDER, that of a run, study or rows.")
    lines = describe(workdir)
    if not flags.FLAGS.watch:
      console.print(_grid(lines))
      return
    with Live(_grid(lines), console=console, auto_refresh=False) as live:
      while lines[0][1] == RUNNING:
        time.sleep(flags.FLAGS.watch)
        lines = describe(workdir)
        live.update(_grid(lines), refresh=True)


def _grid(lines: list[Line]) -> Table:
  grid = Table.grid(padding=(0, 2))
  for line in lines:
    grid.add_row(*line)
  return grid


if __name__ == "__main__":
  flags.DEFINE_string("workdir", "", "Folder of a run, study or rows.")
  flags.DEFINE_float(
    "watch", 0.0, "Seconds between repetitions; 0: once.", lower_bound=0.0
  )
  flags_lib.run(main)
