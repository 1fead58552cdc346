"""Reads the workdirs of all other tasks for their pages.

The reader of a task fills in a run and yields its sections.
"""

import collections
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence

from truenegs_jax.report import curves, page
from truenegs_jax.report.pretraining import (
  Values,
  read_pretraining,
  read_saved,
  show_cases,
)
from truenegs_jax.workdir import files

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
  seeds: dict[str, list[Values]] = {}  # by task
  for path in sorted(workdir.glob("*/seed-*/result.json")):
    if saved := read_saved(run, path):
      seeds.setdefault(saved["task"], []).append(saved)
  every = [seed for members in seeds.values() for seed in members]
  medians = []
  for task, members in seeds.items():
    metric, scores = next(iter(_list_scores(members).items()))
    medians.append(f"{task} {statistics.median(scores):.1f} ({metric})")
  counts = f"{len(every)} of {len(run.curves)} begun runs finished"
  run.progress |= {"step": counts, "loss": ", ".join(medians)}
  run.sentence = f"{counts}; medians: {', '.join(medians)}."
  hours = sum(seed["secs"] for seed in every) / 3600
  run.facts["cost"] = f"{hours:.2f} hours of training"
  for seed in every:
    if seed["failure"]:
      text = f"{seed['task']}, seed {seed['seed']}: {seed['failure']}"
      run.notes.append((page.WARNING, text))
  for task, members in seeds.items():
    if notes := members[0]["notes"]:
      text = f"{task} differs from others' setting: {', '.join(notes)}"
      run.notes.append((page.WARNING, text))
  if seeds:
    blocks = _show_scores(seeds, results)
    yield page.Section("Scores", files.RESULTS, blocks)
  rows = [
    {"task": seed["task"], "seed": str(seed["seed"])}
    | {key: str(mistake[key]) for key in ("text", "gold", "answer")}
    for seed in every
    for mistake in seed["mistakes"]
  ]
  if rows:
    table = page.table("Some of each seed", rows)
    yield page.Section("Wrong answers", "result.json", [table])


def _list_scores(members: Sequence[Values]) -> dict[str, list[float]]:
  """Returns the scores of all seeds of a task, the main metric first."""
  dev = [x["scores"]["dev"] for x in members]
  return {metric: [x[metric] for x in dev] for metric in dev[0]}


def _show_scores(
  seeds: Mapping[str, Sequence[Values]], results: Values
) -> Iterator[str]:
  """Yields scores beside published ones, and a comparison with other runs."""
  rows = []
  for task, members in seeds.items():
    keys = {task}  # of published scores; that of the main metric is the task's
    for metric, scores in _list_scores(members).items():
      keys.add(f"{task}_{metric}")
      row = {"task": task, "metric": metric}
      listed = ", ".join(f"{x:.1f}" for x in scores)
      own = {"model": "this run", "median": statistics.median(scores)}
      rows.append(row | own | {"seeds or note": listed})
      for model in results.get("published", ()):
        name = f"{model['name']} ({model['source']})"
        for key in keys & model["scores"].keys():
          published = {"model": name, "median": model["scores"][key]}
          rows.append(row | published | {"seeds or note": model["note"]})
      keys = set()
  yield page.table("Scores on the dev sets, %", rows)
  if note := results.get("published_note"):
    yield note
  compared = results.get("compared", {"tasks": {}})
  rows = [
    {"on": task} | {key: x[key] for key in COMPARED}
    for task, comparisons in compared["tasks"].items()
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
  rates = results["checkpoints"][-1]["rates"]
  run.sentence = (
    f"{rates['mismatch_rate']['rate']:.2%} of the wrong predictions and"
    f" {rates['sequence_rate']['rate']:.2%} of the sequences are corrected by"
    f" {results['source']}; the paper has 1.41 % and 7.07 % for BERT-base."
  )
  rows = []
  for checkpoint in results["checkpoints"]:
    for name, label in RATES.items():
      x = checkpoint["rates"][name]
      row = {"step": checkpoint["step"], "corrected": label}
      row |= {"cases": x["hits"], "total": x["total"]}
      rows.append(row | {key: 100 * x[key] for key in ("rate", "low", "high")})
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
  rows = []
  for examples in results["sets"].values():
    row = {"set": examples["title"]}
    for model, metric, texts in _list_robustness(examples):
      row |= {"model": model, "metric": metric}
      row |= {"questions": examples["questions"]}
      rows.append(row | {side: texts.get(side, "") for side in SIDES})
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
  run.notes += [(page.WARNING, x) for x in results.get("failures", ())]
  if results:
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
  texts = []
  if cell["value"] is not None:
    texts.append(f"{cell['value']:,.{digits}f}")
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
