"""Reads the workdirs of all other tasks for their pages.

The reader of a task fills in a run and yields its sections.
"""

import collections
import pathlib
import statistics
from collections.abc import Iterator

from truenegs_jax.report import curves, page
from truenegs_jax.report.pretraining import (
  Values,
  read_pretraining,
  read_saved,
  show_cases,
)
from truenegs_jax.workdir import files


def read_finetuning(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads a fine-tuning from the results of its seeds, also unfinished."""
  run.curves = curves.read_curves(workdir, "*/seed-*")
  paths = sorted(workdir.glob("*/seed-*/result.json"))
  seeds = [x for x in (read_saved(run, path) for path in paths) if x]
  scores: dict[tuple[str, str], list[float]] = {}
  for seed in seeds:
    for metric, value in seed["scores"]["dev"].items():
      scores.setdefault((seed["task"], metric), []).append(value)
  rows = []
  medians = dict[str, str]()  # by task, of its first metric
  for (task, metric), values in scores.items():
    median = statistics.median(values)
    medians.setdefault(task, f"{task} {median:.1f} ({metric})")
    row = {"task": task, "metric": metric, "median": median}
    rows.append(row | {"seeds": ", ".join(f"{x:.1f}" for x in values)})
  counts = f"{len(seeds)} of {len(run.curves)} begun runs finished"
  run.progress |= {"step": counts, "loss": ", ".join(medians.values())}
  run.sentence = f"{counts}; medians: {run.progress['loss']}."
  hours = sum(seed["secs"] for seed in seeds) / 3600
  run.facts["cost"] = f"{hours:.2f} hours of training"
  for seed in seeds:
    if failure := seed["failure"]:
      text = f"{seed['task']}, seed {seed['seed']}: {failure}"
      run.notes.append((page.WARNING, text))
  if rows:
    table = page.table("Scores on the dev sets, %", rows)
    yield page.Section("Scores", "result.json", [table])
  yield from _show_tables(results)


def read_measurement(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads what the tasks `corrections` and `robustness` write at their end."""
  if not results:
    return
  run.sentence = results["summary"]
  run.notes += [(page.WARNING, x) for x in results["notes"]]
  yield from _show_tables(results)
  if saved := read_saved(run, workdir / files.CASES):
    yield page.Section("Corrections", files.CASES, show_cases(saved))


def _show_tables(results: Values) -> Iterator[page.Section]:
  if tables := results.get("tables"):
    blocks = page.show_tables(tables)
    yield page.Section("Tables", files.RESULTS, blocks)


def read_study(
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
  yield from _show_tables(results)


def _read_part(folder: pathlib.Path) -> str:
  """Returns the state of a part of a study."""
  state = files.read_state(folder)
  has_failed = state == files.STOPPED and (folder / files.FAILED).exists()
  return "failed" if has_failed else state


READERS = {
  "pretrain": read_pretraining,
  "finetune": read_finetuning,
  "corrections": read_measurement,
  "robustness": read_measurement,
  "study": read_study,
}
