"""Reads the workdir of a fine-tuning for its page."""

import math
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scipy import special

from truenegs_jax.report import curves, page
from truenegs_jax.workdir import files, metrics_file

RESULT = "result.json"  # of one run
SCORE_COLUMNS = {"task": page.TEXT, "metric": page.TEXT} | dict.fromkeys(
  ("median", "mean", "± 95 %", "lowest", "highest", "seeds", "failed"),
  page.NUMBER,
)
RUN_COLUMNS = {
  "task": page.CHOICE,
  **dict.fromkeys(("seed", "step", "seconds"), page.NUMBER),
  "scores, %": page.TEXT,
  "failure": page.TEXT,
}
MISTAKE_COLUMNS = {
  "seed": page.CHOICE,
  "text": page.TEXT,
  "gold": page.TEXT,
  "answer": page.TEXT,
}
Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # by task, as in results.json


def read(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Fills in a run; yields its sections."""
  run.curves = [*_read_curves(workdir)]
  tasks = results.get("tasks", {})
  runs: Runs = {name: task["runs"] for name, task in tasks.items()}
  if not runs:
    finished = len([*workdir.glob(f"*/seed-*/{RESULT}")])
    run.sentence = (
      f"{finished} runs are finished, {len(run.curves)} have begun; results"
      " are written at the end."
    )
    return
  mains = {name: next(iter(x[0]["scores"]["dev"])) for name, x in runs.items()}
  run.sentence = "Median scores on the dev sets: " + ", ".join(
    f"{name} {statistics.median(_scores(runs[name], metric)):.1f} ({metric})"
    for name, metric in mains.items()
  )
  secs = sum(x["secs"] for members in runs.values() for x in members)
  run.facts["cost"] = f"{secs / 3600:.2f} hours of training"
  seeds = run.config["finetune"]["seeds"]
  for name, members in runs.items():
    if len(members) < seeds:
      text = f"{len(members)} of {seeds} seeds of {name} are finished."
      run.notes.append((page.WARNING, text))
    run.notes += [
      (page.WARNING, f"{x['task']}, seed {x['seed']}: {x['failure']}")
      for x in members
      if x["failure"]
    ]
    if notes := members[0]["notes"]:
      text = f"{members[0]['task']} differs from others' setting: "
      run.notes.append((page.WARNING, text + ", ".join(notes)))
  yield page.Section(
    "Scores", files.RESULTS, _show_scores(runs, mains, results)
  )
  if any(x.get("mistakes") for members in runs.values() for x in members):
    yield page.Section("Wrong answers", files.RESULTS, _show_mistakes(runs))


def _read_curves(workdir: pathlib.Path) -> Iterator[curves.Curve]:
  paths = sorted(workdir.glob(f"*/seed-*/{metrics_file.METRICS}"))
  points = max(50, 4 * curves.MAX_POINTS // max(len(paths), 1))
  for path in paths:
    task, seed = path.parts[-3], path.parent.name.removeprefix("seed-")
    yield curves.Curve(
      label=f"{task}, seed {seed}",
      group=task,
      splits=curves.thin_records(
        curves.read_records(path.parent).splits, min(points, curves.MAX_POINTS)
      ),
    )


def _scores(runs: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
  return [x["scores"]["dev"][metric] for x in runs]


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
  """Returns the mean and half its 95 % interval (Student's t); NaN for one."""
  mean, size = statistics.fmean(values), len(values)
  if size < 2:
    return mean, math.nan
  t = float(special.stdtrit(size - 1, 0.975))
  return mean, t * statistics.stdev(values) / math.sqrt(size)


def _show_scores(
  runs: Runs, mains: Mapping[str, str], results: Mapping[str, Any]
) -> Iterator[page.Block]:
  """Yields dots for each task beside published rows, and tables."""
  for name, metric in mains.items():
    groups = [make_group("this run", _scores(runs[name], metric))]
    groups += [
      {"label": f"{x['name']} ({x['source']})", "points": [x["scores"][task]]}
      for x in results.get("published", ())
      for task in (name, f"{name}_{metric}")
      if task in x["scores"]
    ]
    title = f"{name}: {metric}; seeds, median, and 95 % interval of the mean"
    yield page.dots(title, "%", groups)
  rows = []
  for name, members in runs.items():
    for metric in members[0]["scores"]["dev"]:
      values = _scores(members, metric)
      failed = sum(bool(x["failure"]) for x in members)
      rows.append(
        [name, metric, statistics.median(values), *mean_interval(values)]
        + [min(values), max(values), len(values), failed]
      )
  yield page.table("Scores on the dev sets, %", SCORE_COLUMNS, rows)
  rows = [
    [x["task"], x["seed"], x["step"], x["secs"]]
    + [_format_scores(x["scores"]["dev"]), x["failure"]]
    for members in runs.values()
    for x in members
  ]
  yield page.table("Runs", RUN_COLUMNS, rows)
  compared = results["compared"]
  rows = [
    [name, x["metric"], x["ours"], x["theirs"], x["difference"]]
    + [x["low"], x["high"], x["low_runs"], x["high_runs"]]
    for name, comparisons in compared["tasks"].items()
    for x in comparisons
  ]
  if rows:
    columns = {"task": page.TEXT, "metric": page.TEXT} | dict.fromkeys(
      ("ours", "theirs", "difference", "low", "high")
      + ("low, other runs", "high, other runs"),
      page.NUMBER,
    )
    title = f"Compared with {compared['against']}, with 95 % intervals"
    yield page.table(title, columns, rows)


def make_group(label: str, values: Sequence[float]) -> dict[str, Any]:
  """Returns a group of `page.dots`."""
  mean, half = mean_interval(values)
  group: dict[str, Any] = {"label": label, "points": [*values]}
  if len(values) > 1:
    group |= {"median": statistics.median(values)}
    group |= {"low": mean - half, "high": mean + half}
  return group


def _format_scores(scores: Mapping[str, float]) -> str:
  return ", ".join(f"{name} {x:.2f}" for name, x in scores.items())


def _show_mistakes(runs: Runs) -> Iterator[page.Block]:
  """Yields a table of wrong answers for each task."""
  for name, members in runs.items():
    rows = [
      [str(run["seed"]), *(str(x[key]) for key in ("text", "gold", "answer"))]
      for run in members
      for x in run.get("mistakes", ())
    ]
    yield page.table(f"{name}, some of each seed", MISTAKE_COLUMNS, rows)
