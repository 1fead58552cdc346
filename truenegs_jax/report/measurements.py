"""Reads the workdirs of corrections, robustness and studies for their pages."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truenegs_jax.report import curves, page
from truenegs_jax.report.finetuning import make_group
from truenegs_jax.report.pretraining import read_saved, show_cases
from truenegs_jax.workdir import files, metrics_file

RATE = ("share", "low", "high")
NUMBERS = dict.fromkeys(("cases", "of", *RATE), page.NUMBER)
SIDES = ("original", "transformed", "drop")  # of a robustness set


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
  mismatches, sequences = last["of_mismatches"], last["of_sequences"]
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
    "of_mismatches": "of wrong predictions",
    "of_sequences": "of sequences",
    "of_slots": "of slots",
  }
  rows = [
    [source, x["step"], label, *_rate_cells(x["rates"][name])]
    for source, checkpoints in results["checkpoints"].items()
    for x in checkpoints
    for name, label in names.items()
  ]
  columns = {
    "source": page.CHOICE,
    "step": page.NUMBER,
    "corrected": page.CHOICE,
  }
  yield page.table("Rates, %, with 95 % intervals", columns | NUMBERS, rows)
  checkpoints = next(iter(results["checkpoints"].values()))
  last = checkpoints[-1]["rates"]
  for name, title in (
    ("by_speech", "Of wrong predictions, by part of speech of the gold word"),
    ("by_frequency", "Of wrong predictions, by rank of frequency"),
  ):
    rows = [[x["name"], *_rate_cells(x["of_mismatches"])] for x in last[name]]
    if rows:
      yield page.table(title, {"gold": page.TEXT} | NUMBERS, rows)
  rows = [
    [x["source"], x["judge"], x["golds"], x["by"], x["kappa"]]
    + [*_rate_cells(x["precision"])]
    for x in results["judgements"]
  ]
  if rows:
    columns = dict.fromkeys(("source", "judge", "golds", "by"), page.CHOICE)
    columns |= {"kappa": page.NUMBER} | NUMBERS
    yield page.table("Corrections that another source confirms", columns, rows)


def _rate_cells(rate: Mapping[str, Any]) -> list[float]:
  return [rate["hits"], rate["of"]] + [
    100 * rate[name] for name in ("rate", "low", "high")
  ]


def read_robustness(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Fills in a run of the task `robustness`; yields its sections."""
  del workdir  # a reader of results only
  if not results:
    return
  run.sentence = results.get("conclusion") or "Scores on changed texts."
  rows = []
  for examples in results["sets"].values():
    for model, metrics in examples["scores"].items():
      rows += [
        [examples["title"], model, metric]
        + [x for side in SIDES for x in _score_cells(sides.get(side))]
        for metric, sides in metrics.items()
      ]
    for model, metrics in examples["paper"].items():
      rows += [
        [examples["title"], model, metric, before, None, after, None]
        + [before - after, None]
        for metric, (before, after) in metrics.items()
      ]
  columns = dict.fromkeys(("set", "model", "metric"), page.CHOICE)
  for side in SIDES:
    columns |= {side: page.NUMBER, f"± {side}": page.NUMBER}
  title = "Scores, %, with standard errors over questions"
  yield page.Section(
    "Robustness", files.RESULTS, [page.table(title, columns, rows)]
  )


def _score_cells(score: Mapping[str, Any] | None) -> list[float | None]:
  return [score["value"], score["se"]] if score else [None, None]


def read_study(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Fills in a study; yields its sections."""
  run.curves, run.state = [*_read_curves(workdir)], ""  # it has no lock
  run.sentence = f"{len(run.curves)} pre-trainings have begun."
  if not results:
    return
  scores, failures = results["scores"], results["failures"]
  arms = [*dict.fromkeys(x["arm"] for x in scores)]
  run.sentence = (
    f"{len(scores):,} scores of {len(arms)} arms: {', '.join(arms)}."
  )
  run.notes = [(page.WARNING, ", ".join(map(str, x))) for x in failures]
  yield page.Section("Tables", files.RESULTS, _show_tables(results["tables"]))
  yield page.Section("Arms", files.RESULTS, _show_arms(scores, arms))


def _read_curves(workdir: pathlib.Path) -> Iterator[curves.Curve]:
  pattern = f"runs/*/seed-*/pretrain/{metrics_file.METRICS}"
  paths = sorted(workdir.glob(pattern))
  points = max(50, 4 * curves.MAX_POINTS // max(len(paths), 1))
  for path in paths:
    arm, seed = path.parts[-4], path.parts[-3]
    splits = curves.read_records(path.parent).splits
    yield curves.Curve(
      label=f"{arm}, {seed}",
      group=arm,
      splits=curves.thin_records(splits, min(points, curves.MAX_POINTS)),
    )


def _show_tables(
  layouts: Sequence[Mapping[str, Any]],
) -> Iterator[page.Block]:
  for layout in layouts:
    yield from _show_table(layout)


def _show_table(layout: Mapping[str, Any]) -> Iterator[page.Block]:
  columns = {"row": page.TEXT, "kind": page.CHOICE} | {
    name: page.TEXT for name in layout["columns"]
  }
  rows = [
    [row["label"], row["kind"]]
    + [_format_cell(cell, layout["digits"]) for cell in row["cells"]]
    for row in layout["rows"]
  ]
  yield page.table(layout["title"], columns, rows)
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
