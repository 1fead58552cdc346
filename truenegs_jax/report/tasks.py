"""Reads the workdirs of all other tasks for their pages.

The reader of a task fills in a run and yields its sections.
"""

import collections
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truenegs_jax.report import curves, page
from truenegs_jax.report.pretraining import (
  Values,
  read_pretraining,
  read_saved,
  show_cases,
)
from truenegs_jax.workdir import files

Runs = Mapping[str, Sequence[Values]]  # of a fine-tuning, by task
# Of a comparison: two models, their difference, and its intervals.
COMPARED = (
  *("metric", "ours", "theirs", "difference"),
  *("low", "high", "low_runs", "high_runs"),
)
SIDES = ("original", "transformed", "drop")  # of a robustness set
RATES = {
  "mismatch_rate": "of wrong predictions",
  "sequence_rate": "of sequences",
  "slot_rate": "of slots",
}
FAILED = "failed.json"  # why the process of a part of a study failed


def read_finetuning(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads a fine-tuning, also its first seeds before it has results."""
  run.curves = curves.read_curves(workdir, "*/seed-*")
  runs = {name: task["runs"] for name, task in results.get("tasks", {}).items()}
  if not runs:
    for path in sorted(workdir.glob("*/seed-*/result.json")):
      if saved := read_saved(run, path):
        runs.setdefault(saved["task"], []).append(saved)
  count = sum(map(len, runs.values()))
  mains = {name: next(iter(x[0]["scores"]["dev"])) for name, x in runs.items()}
  medians = [
    f"{name} {statistics.median(_scores(runs[name], metric)):.1f} ({metric})"
    for name, metric in mains.items()
  ]
  run.progress["step"] = f"{count} of {len(run.curves)} begun runs finished"
  run.progress["loss"] = ", ".join(medians)
  run.sentence = f"Median scores on the dev sets: {', '.join(medians)}"
  if not results:
    run.sentence = (
      f"{count} runs are finished, {len(run.curves)} have begun; results are"
      " written at the end."
    )
    return
  secs = sum(x["secs"] for members in runs.values() for x in members)
  run.facts["cost"] = f"{secs / 3600:.2f} hours of training"
  seeds = run.config["finetune"]["seeds"]
  run.notes += [(page.WARNING, text) for text in _warn_of_seeds(runs, seeds)]
  blocks = _show_scores(runs, mains, results)
  yield page.Section("Scores", files.RESULTS, blocks)
  rows = [
    {"task": name, "seed": str(x["seed"])}
    | {key: str(mistake[key]) for key in ("text", "gold", "answer")}
    for name, members in runs.items()
    for x in members
    for mistake in x.get("mistakes", ())
  ]
  if rows:
    table = page.table("Some of each seed", rows)
    yield page.Section("Wrong answers", files.RESULTS, [table])


def _warn_of_seeds(runs: Runs, seeds: int) -> Iterator[str]:
  for name, members in runs.items():
    if len(members) < seeds:
      yield f"{len(members)} of {seeds} seeds of {name} are finished."
    for x in members:
      if x["failure"]:
        yield f"{name}, seed {x['seed']}: {x['failure']}"
    if notes := members[0]["notes"]:
      yield f"{name} differs from others' setting: {', '.join(notes)}"


def _scores(members: Sequence[Values], metric: str) -> list[float]:
  return [x["scores"]["dev"][metric] for x in members]


def _show_scores(
  runs: Runs, mains: Mapping[str, str], results: Values
) -> Iterator[str]:
  """Yields scores beside published ones, and a comparison with other runs."""
  rows = list[dict[str, Any]]()
  for name, task in results["tasks"].items():
    for metric, summary in task["summary"].items():
      seeds = ", ".join(f"{x:.1f}" for x in _scores(runs[name], metric))
      row = {"task": name, "metric": metric, "model": "this run"}
      rows.append(row | summary | {"seeds": seeds, "note": ""})
      names = [f"{name}_{metric}"]
      if metric == mains[name]:
        names.append(name)
      rows += [
        row
        | {"model": f"{x['name']} ({x['source']})"}
        | dict.fromkeys(summary)
        | {"median": x["scores"][key], "seeds": "", "note": x["note"]}
        for x in results.get("published", ())
        for key in names
        if key in x["scores"]
      ]
  yield page.table("Scores on the dev sets, %", rows)
  if note := results.get("published_note"):
    yield note
  compared = results["compared"]
  rows = [
    {"on": name} | {key: x[key] for key in COMPARED}
    for name, comparisons in compared["tasks"].items()
    for x in comparisons
  ]
  if rows:
    title = f"Compared with {compared['against']}: 95 % intervals over"
    yield page.table(f"{title} examples, and over examples and runs", rows)


def read_corrections(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads the task `corrections`."""
  if not results:
    return
  text = f"{results['lines']:,} lines, cut to {results['length']} tokens"
  run.facts["text"] = text
  source, checkpoints = next(iter(results["checkpoints"].items()))
  rates = {name: x["rate"] for name, x in checkpoints[-1]["rates"].items()}
  run.sentence = (
    f"{rates['mismatch_rate']:.2%} of the wrong predictions and"
    f" {rates['sequence_rate']:.2%} of the sequences are corrected by"
    f" {source}; the paper has 1.41 % and 7.07 % for BERT-base."
  )
  rows = [
    {"source": source, "step": x["step"], "corrected": label}
    | {"cases": x["rates"][name]["hits"], "total": x["rates"][name]["total"]}
    | {key: 100 * x["rates"][name][key] for key in ("rate", "low", "high")}
    for source, checkpoints in results["checkpoints"].items()
    for x in checkpoints
    for name, label in RATES.items()
  ]
  table = page.table("Rates, %, with 95 % intervals", rows)
  yield page.Section("Rates", files.RESULTS, [table])
  if saved := read_saved(run, workdir / files.CASES):
    yield page.Section("Corrections", files.CASES, show_cases(saved))


def read_robustness(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads the task `robustness`."""
  del workdir  # a reader of results only
  if not results:
    return
  run.sentence = "Scores on changed texts."
  run.notes += [(page.WARNING, x) for x in results.get("notes", ())]
  rows = [
    {"set": examples["title"], "model": model, "metric": metric}
    | {"questions": examples["questions"]}
    | {side: texts.get(side, "") for side in SIDES}
    for examples in results["sets"].values()
    for model, metric, texts in _list_scores(examples)
  ]
  table = page.table("Scores, %, with standard errors over questions", rows)
  yield page.Section("Robustness", files.RESULTS, [table])


def _list_scores(
  examples: Values,
) -> Iterator[tuple[str, str, dict[str, str]]]:
  """Yields models, metrics and scores by side, at last those of the paper."""
  for model, metrics in examples["scores"].items():
    for metric, sides in metrics.items():
      texts = {k: f"{x['value']:.2f} ± {x['se']:.2f}" for k, x in sides.items()}
      yield model, metric, texts
  for model, metrics in examples["paper"].items():
    for metric, (before, after) in metrics.items():
      values = zip(SIDES, (before, after, before - after), strict=True)
      yield f"{model} (paper)", metric, {k: f"{x:.2f}" for k, x in values}


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
  if not results:
    return
  run.notes = [(page.WARNING, x) for x in results["failures"]]
  blocks = _show_tables(results["tables"])
  yield page.Section("Tables", files.RESULTS, blocks)


def _read_part(folder: pathlib.Path) -> str:
  """Returns the state of a part of a study."""
  state = files.read_state(folder)
  has_failed = state == files.STOPPED and (folder / FAILED).exists()
  return "failed" if has_failed else state


def _show_tables(layouts: Sequence[Values]) -> Iterator[str]:
  for layout in layouts:
    rows = []
    for row in layout["rows"]:
      texts = [_format_cell(x, layout["digits"]) for x in row["cells"]]
      cells = dict(zip(layout["columns"], texts, strict=True))
      rows.append({"row": row["label"], "kind": row["kind"]} | cells)
    yield page.table(layout["title"], rows)
    if layout["notes"]:
      yield " ".join(layout["notes"])


def _format_cell(cell: Values, digits: int) -> str:
  texts = list[str]()
  if cell["value"] is not None:
    form = "," if isinstance(cell["value"], int) else f",.{digits}f"
    texts.append(f"{cell['value']:{form}}")
  if cell["half_width"] is not None:
    texts.append(f"± {cell['half_width']:.{digits}f}")
  return " ".join([*texts, cell["runs"]]).strip()


READERS = {
  "pretrain": read_pretraining,
  "finetune": read_finetuning,
  "corrections": read_corrections,
  "robustness": read_robustness,
  "study": read_study,
}
