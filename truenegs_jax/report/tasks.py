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
  """Reads a fine-tuning from the results of its seeds, also unfinished."""
  run.curves = curves.read_curves(workdir, "*/seed-*")
  runs: dict[str, list[Values]] = {}
  for path in sorted(workdir.glob("*/seed-*/result.json")):
    if saved := read_saved(run, path):
      runs.setdefault(saved["task"], []).append(saved)
  seeds = [x for members in runs.values() for x in members]
  medians = list[str]()
  for name, members in runs.items():
    metric, scores = next(iter(_list_scores(members).items()))
    median = statistics.median(scores)
    medians.append(f"{name} {median:.1f} ({metric})")
  run.progress["step"] = (
    f"{len(seeds)} of {len(run.curves)} begun runs finished"
  )
  run.progress["loss"] = ", ".join(medians)
  run.sentence = f"{run.progress['step']}; medians: {', '.join(medians)}."
  hours = sum(x["secs"] for x in seeds) / 3600
  run.facts["cost"] = f"{hours:.2f} hours of training"
  run.notes += [(page.WARNING, text) for text in _warn_of_seeds(runs)]
  if runs:
    blocks = _show_scores(runs, results)
    yield page.Section("Scores", files.RESULTS, blocks)
  rows = [
    {"task": x["task"], "seed": str(x["seed"])}
    | {key: str(mistake[key]) for key in ("text", "gold", "answer")}
    for x in seeds
    for mistake in x["mistakes"]
  ]
  if rows:
    table = page.table("Some of each seed", rows)
    yield page.Section("Wrong answers", "result.json", [table])


def _list_scores(members: Sequence[Values]) -> dict[str, list[float]]:
  """Returns the scores of all seeds of a task, the main metric first."""
  dev = [x["scores"]["dev"] for x in members]
  return {metric: [x[metric] for x in dev] for metric in dev[0]}


def _warn_of_seeds(runs: Runs) -> Iterator[str]:
  for name, members in runs.items():
    for x in members:
      if x["failure"]:
        yield f"{name}, seed {x['seed']}: {x['failure']}"
    if notes := members[0]["notes"]:
      yield f"{name} differs from others' setting: {', '.join(notes)}"


def _show_scores(runs: Runs, results: Values) -> Iterator[str]:
  """Yields scores beside published ones, and a comparison with other runs."""
  rows = list[dict[str, Any]]()
  for name, members in runs.items():
    keys = [name]  # of published scores; that of the main metric is the task's
    for metric, scores in _list_scores(members).items():
      row = {"task": name, "metric": metric}
      seeds = ", ".join(f"{x:.1f}" for x in scores)
      median = statistics.median(scores)
      own = {"model": "this run", "median": median, "seeds or note": seeds}
      rows.append(row | own)
      rows += [
        row
        | {"model": f"{x['name']} ({x['source']})", "median": x["scores"][key]}
        | {"seeds or note": x["note"]}
        for x in results.get("published", ())
        for key in [*keys, f"{name}_{metric}"]
        if key in x["scores"]
      ]
      keys = []
  yield page.table("Scores on the dev sets, %", rows)
  if not results:
    return
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
  last = results["checkpoints"][-1]
  rates = {name: x["rate"] for name, x in last["rates"].items()}
  run.sentence = (
    f"{rates['mismatch_rate']:.2%} of the wrong predictions and"
    f" {rates['sequence_rate']:.2%} of the sequences are corrected by"
    f" {results['source']}; the paper has 1.41 % and 7.07 % for BERT-base."
  )
  rows = [
    {"step": x["step"], "corrected": label}
    | {"cases": x["rates"][name]["hits"], "total": x["rates"][name]["total"]}
    | {key: 100 * x["rates"][name][key] for key in ("rate", "low", "high")}
    for x in results["checkpoints"]
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
  run.facts["runs"] = f"{len(results['runs']):,}"
  run.notes += [(page.WARNING, x) for x in results.get("notes", ())]
  rows = [
    {"set": examples["title"], "model": model, "metric": metric}
    | {"questions": examples["questions"]}
    | {side: texts.get(side, "") for side in SIDES}
    for examples in results["sets"].values()
    for model, metric, texts in _list_robustness(examples)
  ]
  table = page.table("Scores, %, with standard errors over questions", rows)
  yield page.Section("Robustness", files.RESULTS, [table])


def _list_robustness(
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
