"""Reads fine-tunings, corrections, robustness and studies for their pages."""

import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truenegs_jax.report import curves, page
from truenegs_jax.report.pretraining import read_saved, show_cases
from truenegs_jax.stats.intervals import mean_interval
from truenegs_jax.workdir import files

RESULT = "result.json"  # of one run
Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # of results.json, by task
# Of a comparison: two models, their difference, and its intervals.
COMPARED = (
  *("metric", "ours", "theirs", "difference"),
  *("low", "high", "low_runs", "high_runs"),
)
SIDES = ("original", "transformed", "drop")  # of a robustness set


def read_finetuning(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Fills in a run; yields its sections."""
  run.curves = curves.read_curves(workdir, "*/seed-*")
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


def _scores(runs: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
  return [x["scores"]["dev"][metric] for x in runs]


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
      mean, half = mean_interval(values)
      row = {"task": name, "metric": metric}
      row |= {"median": statistics.median(values), "mean": mean}
      row |= {"± 95 %": half, "lowest": min(values), "highest": max(values)}
      row |= {"seeds": len(values)}
      row |= {"failed": sum(bool(x["failure"]) for x in members)}
      rows.append(row)
  yield page.table("Scores on the dev sets, %", rows)
  compared = results["compared"]
  rows = [
    {"task": name} | {key: x[key] for key in COMPARED}
    for name, comparisons in compared["tasks"].items()
    for x in comparisons
  ]
  if rows:
    title = f"Compared with {compared['against']}, with 95 % intervals"
    yield page.table(title, rows)


def make_group(label: str, values: Sequence[float]) -> dict[str, Any]:
  """Returns a group of `page.dots`."""
  mean, half = mean_interval(values)
  group: dict[str, Any] = {"label": label, "points": [*values]}
  if len(values) > 1:
    group |= {"median": statistics.median(values)}
    group |= {"low": mean - half, "high": mean + half}
  return group


def _show_mistakes(runs: Runs) -> Iterator[page.Block]:
  """Yields a table of wrong answers for each task."""
  for name, members in runs.items():
    rows = [
      {"seed": str(run["seed"])}
      | {key: str(x[key]) for key in ("text", "gold", "answer")}
      for run in members
      for x in run.get("mistakes", ())
    ]
    yield page.table(f"{name}, some of each seed", rows)


def read_corrections(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Fills in a run of the task `corrections`; yields its sections."""
  if not results:
    return
  size = f"{results['lines']:,} lines, cut to {results['length']} tokens"
  run.facts["text"] = size
  source, checkpoints = next(iter(results["checkpoints"].items()))
  last = checkpoints[-1]["rates"]
  mismatches, sequences = last["mismatch_rate"], last["sequence_rate"]
  run.sentence = (
    f"{mismatches['rate']:.2%} of the wrong predictions and"
    f" {sequences['rate']:.2%} of the sequences are corrected by {source}; the"
    " paper has 1.41 % and 7.07 % for BERT-base."
  )
  yield page.Section("Rates", files.RESULTS, _show_rates(results))
  saved = read_saved(run, workdir / files.CASES)
  yield page.Section("Corrections", files.CASES, show_cases(saved))


def _show_rates(results: Mapping[str, Any]) -> Iterator[page.Block]:
  names = {
    "mismatch_rate": "of wrong predictions",
    "sequence_rate": "of sequences",
    "slot_rate": "of slots",
  }
  rows = [
    {"source": source, "step": x["step"], "corrected": label}
    | _rate_cells(x["rates"][name])
    for source, checkpoints in results["checkpoints"].items()
    for x in checkpoints
    for name, label in names.items()
  ]
  yield page.table("Rates, %, with 95 % intervals", rows)


def _rate_cells(rate: Mapping[str, Any]) -> dict[str, float]:
  shares = {name: 100 * rate[name] for name in ("rate", "low", "high")}
  return {"cases": rate["hits"], "total": rate["total"]} | shares


def read_robustness(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Fills in a run of the task `robustness`; yields its sections."""
  del workdir  # a reader of results only
  if not results:
    return
  run.sentence = "Scores on changed texts."
  rows = []
  for examples in results["sets"].values():
    by_model = {
      model: {
        metric: {
          side: f"{x['value']:.2f} ± {x['se']:.2f}" for side, x in sides.items()
        }
        for metric, sides in metrics.items()
      }
      for model, metrics in examples["scores"].items()
    }
    for model, metrics in examples["paper"].items():
      by_model[model] = {
        metric: {
          "original": f"{before:.2f}",
          "transformed": f"{after:.2f}",
          "drop": f"{before - after:.2f}",
        }
        for metric, (before, after) in metrics.items()
      }
    rows += [
      {"set": examples["title"], "model": model, "metric": metric}
      | {side: texts.get(side, "") for side in SIDES}
      for model, metrics in by_model.items()
      for metric, texts in metrics.items()
    ]
  title = "Scores, %, with standard errors over questions"
  yield page.Section("Robustness", files.RESULTS, [page.table(title, rows)])


def read_study(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Fills in a study; yields its sections."""
  run.curves = curves.read_curves(workdir, "runs/*/seed-*/pretrain")
  run.state = ""  # a study has no lock
  run.sentence = f"{len(run.curves)} pre-trainings have begun."
  if not results:
    return
  scores, failures = results["scores"], results["failures"]
  arms = [*dict.fromkeys(x["arm"] for x in scores)]
  run.sentence = (
    f"{len(scores):,} scores of {len(arms)} arms: {', '.join(arms)}."
  )
  run.notes = [(page.WARNING, x) for x in failures]
  yield page.Section("Tables", files.RESULTS, _show_tables(results["tables"]))
  yield page.Section("Arms", files.RESULTS, _show_arms(scores, arms))


def _show_tables(
  layouts: Sequence[Mapping[str, Any]],
) -> Iterator[page.Block]:
  for layout in layouts:
    rows = []
    for row in layout["rows"]:
      texts = [_format_cell(x, layout["digits"]) for x in row["cells"]]
      cells = dict(zip(layout["columns"], texts, strict=True))
      rows.append({"row": row["label"], "kind": row["kind"]} | cells)
    yield page.table(layout["title"], rows)
    if layout["notes"]:
      yield page.text(" ".join(layout["notes"]))


def _format_cell(cell: Mapping[str, Any], digits: int) -> str:
  value, half, runs = (cell[x] for x in ("value", "half_width", "runs"))
  number = "" if value is None else f"{value:,.{digits}f}"
  if isinstance(value, int):
    number = f"{value:,}"
  interval = "" if half is None else f"± {half:.{digits}f}"
  return " ".join(filter(None, (number, interval, runs)))


def _show_arms(
  scores: Sequence[Mapping[str, Any]], arms: Sequence[str]
) -> Iterator[page.Block]:
  """Yields dots for each task and metric: the means of an arm's seeds."""
  for task, metric in dict.fromkeys((x["task"], x["metric"]) for x in scores):
    groups = []
    for arm in arms:
      by_seed: dict[int, list[float]] = {}
      for x in scores:
        same = (x["task"], x["metric"], x["arm"]) == (task, metric, arm)
        if same and x["value"] is not None:
          by_seed.setdefault(x["seed"], []).append(x["value"])
      if means := [sum(x) / len(x) for x in by_seed.values()]:
        groups.append(make_group(arm, means))
    if groups:
      yield page.dots(f"{task}: {metric}", "", groups)
