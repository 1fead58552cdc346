"""Reads workdirs, also unfinished or damaged ones, and writes their page.

The reader of a task fills in a run from its files and yields its sections.
"""

import collections
import datetime
import json
import pathlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from truenegs_jax.config.keys import flatten
from truenegs_jax.report import curves, page
from truenegs_jax.report.page import format_number
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import CheckpointError, InputError, printable
from truenegs_jax.runtime.files import (
  READ_ERRORS,
  atomic_file,
  describe_error,
  read_results,
)
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.workdir import files

FIX = "Run the command of the run again, which writes it."
READ = f"{files.ABOUT}, {files.RESULTS}, {files.CASES} or {files.RESULT}"
PRETRAIN = "pretrain"  # the task of a config that names none
# Metrics that do not depend on the weights of a loss.
COMPARABLE = (
  *("mlm_uncorrected", "mlm_hidden", "detect", "auc", "blimp"),
  *("corrected_of_slots", "corrected_of_mismatches", "corrected_rows"),
)
HINT = (
  "Losses and shares are comparable if text, eval.rows, masking and sizes of"
  " networks are the same. Another seed changes them, too: a study shows by how"
  " much."
)
Values = Mapping[str, Any]  # of JSON


def write_own_report(
  workdir: pathlib.Path, say: Callable[[str], object]
) -> None:
  """Writes report.html of a run that ends.

  The run is finished and saved, so a failure is only a warning.
  """
  path = workdir / files.REPORT
  try:
    write_report([read_workdir(workdir, ends=True)], path)
  except Exception as e:
    say(
      f"warning: '{path}' was not written: {type(e).__name__}:"
      f" {printable(e).rstrip('.')}. The results are saved. To try again, run"
      f" {errors.program()} report {workdir} --output={path}"
    )


def write_report(runs: Sequence[page.Run], path: pathlib.Path) -> None:
  """Writes one page of all runs."""
  text = page.render(runs, compare(runs))
  with atomic_file(path, several_writers=True) as file:  # jobs of a study
    # Bytes of a folder's name that are no UTF-8 are shown as escapes.
    file.write(text.encode(errors="backslashreplace"))


def read_workdirs(workdirs: Sequence[pathlib.Path]) -> list[page.Run]:
  """Reads workdirs to compare, and puts their names before their curves'.

  The name of a run is that of its folder, or the path of one of several folders
  of equal names. InputError if a folder is no workdir.
  """
  folders = {workdir.resolve(): workdir for workdir in workdirs}  # each once
  runs = [read_workdir(workdir) for workdir in folders.values()]
  counts = collections.Counter(run.name for run in runs)
  for run in runs:
    if counts[run.name] > 1:
      run.name = run.path
    if len(runs) > 1:
      is_single = len(run.curves) == 1
      for curve in run.curves:
        curve.label = run.name if is_single else f"{run.name}, {curve.label}"
        curve.group = run.name if is_single else f"{run.name}, {curve.group}"
  return runs


def read_workdir(workdir: pathlib.Path, *, ends: bool = False) -> page.Run:
  """Returns what the page shows of a workdir; InputError if it is none.

  What cannot be read becomes a note of the page. `ends` tells that the run
  itself asks, which does not run much longer.
  """
  if not any((workdir / x).exists() for x in (files.CONFIG, files.LOCK)):
    is_folder = is_bucket(workdir) or workdir.is_dir()
    reason = f"has no {files.CONFIG}" if is_folder else "is not a folder"
    raise InputError(
      f"'{workdir}' {reason}. Pass the folder of a run, which the run printed."
    )
  run = page.Run(workdir.resolve().name, str(workdir))
  run.facts["folder"] = run.path
  try:
    run.state = files.read_state(workdir, ends=ends)
  except READ_ERRORS as e:  # as of a colleague's lock
    text = f"The state is unknown, because {files.LOCK} cannot be read"
    run.notes.append((page.ERROR, f"{text}: {describe_error(e)}."))
  run.config = _read_saved(run, workdir / files.CONFIG)
  if not run.config:
    run.sentence = "The run has no config that can be read."
    return run
  run.task = str(run.config.get("task", PRETRAIN))
  run.sentence = "No results yet: they are written at the end."
  results = _read_saved(run, workdir / files.RESULTS)
  run.facts["command"] = str(results.get("command", ""))
  try:
    for section in READERS.get(run.task, _read_pretraining)(
      run, workdir, results
    ):
      run.sections.append(section)
  except READ_ERRORS as e:
    text = f"This page is incomplete, because {files.CONFIG}, {READ} is damaged"
    run.notes.append((page.ERROR, f"{text}: {describe_error(e)}."))
  return run


def _read_saved(run: page.Run, path: pathlib.Path) -> dict[str, Any]:
  """Returns a JSON object; {} without a file, or with a note if damaged."""
  try:
    with read_results(path, CheckpointError, FIX) as saved:
      return saved
  except CheckpointError as e:
    if not isinstance(e.__cause__, FileNotFoundError):
      run.notes.append((page.ERROR, printable(e)))
    return {}


def _read_pretraining(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads a pre-training, also unfinished."""
  splits = curves.read_records(workdir)
  thinned = {
    name: curves.thin_records(records, curves.MAX_POINTS)
    for name, records in splits.items()
  }
  run.curves = [curves.Curve(thinned, run.name, run.name)]
  run.sentence = "No training step is recorded yet."
  if train := splits.get("train"):
    _describe_progress(run, train[-1])
  about = _read_saved(run, workdir / files.ABOUT)
  run.facts |= about.get("lines", {})
  run.facts["sources"] = "; ".join(about.get("sources", ()))
  held_out = splits.get("held_out", [{}])[-1]
  run.measures = {
    curves.PANELS[x]: held_out[x]
    for x in COMPARABLE
    if held_out.get(x) is not None
  }
  if verdict := results.get("verdict"):
    level = page.GOOD if verdict["passed"] else page.WARNING
    run.notes.insert(0, (level, verdict["summary"]))
    blocks = [*page.show_tables([verdict["table"]])]
    yield page.Section("Held-out rows", blocks)
  yield from _show_tables("Filled masks", results)
  yield from _show_cases(run, workdir)


def _describe_progress(run: page.Run, last: Values) -> None:
  """Says how far a pre-training is, on the page and in the terminal."""
  # The steps that fit into the minutes, or all.
  steps = int(last.get("total_steps") or run.config["steps"])
  run.progress["step"] = f"{last['step']:,} of {steps:,}"
  run.progress["loss"] = format_number(last.get("total"))
  run.progress["rate"] = f"{format_number(last.get('rows_per_s'))} rows/s"
  run.sentence = f"{run.state.capitalize()} at step {run.progress['step']}."
  planned = run.config["steps"]
  if run.state == files.FINISHED and last["step"] < planned:
    done = f"at step {last['step']:,} of {planned:,}"
    if minutes := run.config.get("minutes"):
      run.sentence = f"Finished after minutes={minutes:g}, {done}."
    else:
      run.state = files.STOPPED
      run.sentence = f"Stopped {done}."
  secs = last.get("eta_s")
  if last["step"] < steps and secs is not None:
    left = datetime.timedelta(seconds=round(secs))
    run.progress["left"] = str(left)


def _show_tables(title: str, results: Values) -> Iterator[page.Section]:
  """Yields the tables that a run printed at its end."""
  if tables := results.get("tables"):
    yield page.Section(title, [*page.show_tables(tables)])


def _show_cases(run: page.Run, workdir: pathlib.Path) -> Iterator[page.Section]:
  """Yields the corrections in cases.json."""
  saved = _read_saved(run, workdir / files.CASES)
  if not saved:
    return
  cases = saved["cases"]
  text = page.describe_search(saved["searched"], saved["corrected"], len(cases))
  if not cases:
    hint = "Young models have few; the config corrections measures any text."
    yield page.Section("Corrections", [f"{text} {hint}"])
    return
  rows = [
    {"sentence": page.mark(x["sentence"], x["gold"], x["prediction"])}
    | {"gold": x["gold"], "prediction": x["prediction"], "count": x["count"]}
    | {"probability": f"{x['probability']:.1%}"}
    | {"synonyms": ", ".join(page.abridge(x["synonyms"], x["prediction"]))}
    for x in cases
  ]
  note = f"{text} The gold word and the prediction are marked."
  yield page.Section("Corrections", [note, page.table("Cases", rows)])


def _read_finetuning(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads a fine-tuning from the results of its seeds, also unfinished."""
  run.curves = curves.read_curves(workdir, files.SEEDS)
  paths = sorted(workdir.glob(f"{files.SEEDS}/{files.RESULT}"), key=_seed_order)
  seeds = [x for x in (_read_saved(run, path) for path in paths) if x]
  scores: dict[tuple[str, str], list[float]] = {}
  for seed in seeds:
    for metric, value in seed["scores"]["dev"].items():
      scores.setdefault((seed["task"], metric), []).append(value)
    if seed["failure"]:
      text = f"{seed['task']}, seed {seed['seed']}: {seed['failure']}"
      run.notes.append((page.WARNING, text))
  rows = []
  medians = dict[str, str]()  # by task, of its first metric
  for (task, metric), values in scores.items():
    median = statistics.median(values)
    medians.setdefault(task, f"{task} {median:.1f} ({metric})")
    row = {"task": task, "metric": metric, "median": median}
    rows.append(row | {"seeds": ", ".join(f"{x:.1f}" for x in values)})
  options = run.config["finetune"]
  first = run.config["seed"]
  planned_seeds = range(first, first + options["seeds"])
  tasks = {x.strip() for x in options["tasks"].split(",") if x.strip()}
  planned = len(tasks) * len(planned_seeds)
  done = sum(x["task"] in tasks and x["seed"] in planned_seeds for x in seeds)
  counts = f"{done} of {planned} runs finished"
  if run.state == files.FINISHED and done < planned:
    run.state = files.STOPPED  # it wrote the tables of what it had
  run.progress |= {"step": counts, "loss": ", ".join(medians.values())}
  run.sentence = f"{counts}; medians: {run.progress['loss']}."
  if rows:
    table = page.table("Scores on the dev sets, %", rows)
    yield page.Section("Scores", [table])
  yield from _show_tables("Tables", results)


def _seed_order(path: pathlib.Path) -> tuple[str, int, str]:
  """Returns what sorts results by task, and seeds as numbers."""
  *_, task, seed, _ = path.parts
  return task, len(seed), seed


def _read_measurement(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads what tasks that measure write at their end."""
  if results:
    run.sentence = results["summary"]
    run.notes += [(page.WARNING, x) for x in results.get("notes", ())]
    yield from _show_tables("Tables", results)
    yield from _show_cases(run, workdir)


def _read_study(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads a study from its parts' folders; nothing of it is planned or run."""
  run.curves = curves.read_curves(workdir, "runs/*/seed-*/pretrain")
  parts = sorted(workdir.glob("runs/*/seed-*/*/"))
  states = collections.Counter(map(_read_part, parts))
  counts = ", ".join(f"{count} {state}" for state, count in states.items())
  run.progress["step"] = f"{len(parts)} parts: {counts}"
  if states[files.RUNNING]:
    run.state = files.RUNNING
  run.sentence = f"{len(parts)} parts have begun: {counts}."
  run.notes += [(page.WARNING, x) for x in results.get("failures", ())]
  yield from _show_tables("Tables", results)


def _read_part(folder: pathlib.Path) -> str:
  """Returns the state of a part of a study."""
  state = files.read_state(folder)
  has_failed = state == files.STOPPED and (folder / files.FAILED).exists()
  return "failed" if has_failed else state


READERS = {
  PRETRAIN: _read_pretraining,
  "finetune": _read_finetuning,
  "corrections": _read_measurement,
  "blimp": _read_measurement,
  "robustness": _read_measurement,
  "study": _read_study,
}


def compare(runs: Sequence[page.Run]) -> list[str]:
  """Returns the table that compares several runs; nothing for a single one.

  It has their last held-out metrics, and the config keys in which those of the
  first run's task differ.
  """
  if len(runs) < 2:
    return []
  measures = dict.fromkeys(label for run in runs for label in run.measures)
  rows = [
    {"metric or config key": label}
    | {run.name: format_number(run.measures.get(label)) for run in runs}
    for label in measures
  ]
  configs = {
    run.name: flatten(run.config) for run in runs if run.task == runs[0].task
  }
  first, *others = configs.values()
  keys = {x.key for other in others for x in files.find_changes(first, other)}
  for key in sorted(keys):
    row = {"metric or config key": key} | {run.name: "–" for run in runs}
    row |= {name: json.dumps(x.get(key)) for name, x in configs.items()}
    rows.append(row)
  if not rows:
    return []
  return [page.table("Last held-out metrics, and differing keys", rows), HINT]
