"""Reads pre-trainings and cases of corrections, and compares pre-trainings."""

import datetime
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from truenegs_jax.config.keys import flatten
from truenegs_jax.report import curves, page
from truenegs_jax.report.page import format_number
from truenegs_jax.runtime.errors import CheckpointError, printable
from truenegs_jax.runtime.files import read_results
from truenegs_jax.workdir import files

FIX = "Run the command of the run again, which writes it."
COLLAPSED = 0.5  # mean cosine of random pairs
MAX_SECS = 1e9  # left; more is damage
# Metrics that do not depend on the weights of a loss.
COMPARABLE = (
  *("mlm_uncorrected", "mlm_hidden", "detect", "auc"),
  *("corrected_of_slots", "corrected_of_mismatches", "corrected_rows"),
)
HINT = (
  "Losses and shares are comparable if text, eval.rows, masking and sizes of"
  " networks are the same. Another seed changes them, too: a study shows by how"
  " much."
)
Values = Mapping[str, Any]  # of JSON


def read_saved(run: page.Run, path: pathlib.Path) -> dict[str, Any]:
  """Returns a JSON object; {} without a file, or with a note if damaged."""
  try:
    with read_results(path, CheckpointError, FIX) as saved:
      return saved
  except CheckpointError as e:
    if not isinstance(e.__cause__, FileNotFoundError):
      run.notes.append((page.ERROR, printable(e)))
    return {}


def read_pretraining(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Fills in a run from its files, and yields the sections of the page."""
  splits, damaged = curves.read_records(workdir)
  about = read_saved(run, workdir / files.ABOUT)
  train = splits.get("train", [])
  held_out = splits.get("held_out", [{}])[-1]
  thinned = {
    split: curves.thin_records(records, curves.MAX_POINTS)
    for split, records in splits.items()
  }
  guesses = _list_guesses(about, held_out)
  run.curves = [curves.Curve(thinned, run.name, run.name, guesses)]
  run.sentence = "No training step is recorded yet."
  if train:
    _describe_progress(run, train[-1])
  run.facts |= about.get("lines", {})
  run.facts["sources"] = "; ".join(about.get("sources", ()))
  cost = _measure_cost(run.config, train, about) if train else {}
  costs = [f"{format_number(x)} {unit}" for unit, x in cost.items()]
  run.facts["cost"] = ", ".join(costs)
  if damaged:
    text = f"metrics.jsonl has damaged lines ({damaged:,})"
    run.notes.append((page.WARNING, f"{text}, which the curves lack."))
  warnings = _warn(train, held_out, about)
  run.notes += [(page.WARNING, text) for text in warnings]
  yield from _show_results(run, results)
  if saved := read_saved(run, workdir / files.CASES):
    yield page.Section("Corrections", files.CASES, show_cases(saved))
  run.measures = {
    curves.PANELS[x]: held_out[x]
    for x in COMPARABLE
    if held_out.get(x) is not None
  }
  run.measures |= cost


def _show_results(run: page.Run, results: Values) -> Iterator[page.Section]:
  """Yields the verdict and the filled masks."""
  if verdict := results.get("verdict"):
    level = page.GOOD if verdict["passed"] else page.WARNING
    run.notes.insert(0, (level, verdict["summary"]))
    blocks = page.show_tables([verdict["table"]])
    yield page.Section("Held-out rows", files.RESULTS, blocks)
  if tables := results.get("tables"):
    blocks = page.show_tables(tables)
    yield page.Section("Filled masks", files.RESULTS, blocks)


def _list_guesses(
  about: Values, held_out: curves.Record
) -> dict[str, dict[str, float]]:
  """Returns what guessing without context reaches, for each loss."""
  names = ("unigram", "uniform") if about else ()
  entropies = {f"{x} entropy": float(about[f"{x}_entropy"]) for x in names}
  guesses = dict.fromkeys(("mlm", "mlm_uncorrected", "mlm_hidden"), entropies)
  guesses["auc"] = {"chance": 0.5}
  rate = held_out.get("replaced")
  if rate is not None and 0 < rate < 1:
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    guesses["detect"] = {"entropy of the labels": entropy}
  return guesses


def _describe_progress(run: page.Run, last: curves.Record) -> None:
  """Says how far a pre-training is, on the page and in the terminal."""
  # The steps that fit into the minutes, or all.
  steps = int(last.get("total_steps") or run.config["steps"])
  run.progress["step"] = f"{last['step']:,} of {steps:,}"
  run.progress["loss"] = format_number(last.get("total"))
  run.progress["rate"] = f"{format_number(last.get('rows_per_s'))} rows/s"
  run.sentence = f"{run.state.capitalize()} at step {run.progress['step']}."
  secs = last.get("eta_s")
  if last["step"] < steps and secs is not None:
    left = datetime.timedelta(seconds=round(min(max(secs, 0), MAX_SECS)))
    run.progress["left"] = str(left)


def _measure_cost(
  config: Values, train: Sequence[curves.Record], about: Values
) -> dict[str, float]:
  """Returns what a training has cost, by unit."""
  last = train[-1]
  rows = last["step"] * config["batch_size"]
  cost = {
    "hours of training": curves.count_hours(train),
    "steps": last["step"],
    "tokens": rows * config["length"],
    "TFLOP": about.get("row_flops", 0) * rows / 1e12 or None,
    "rows/s": last.get("rows_per_s"),
    "GiB of memory": last.get("memory_peak_gib"),
  }
  return {unit: float(x) for unit, x in cost.items() if x is not None}


def _warn(
  train: Sequence[curves.Record], held_out: curves.Record, about: Values
) -> Iterator[str]:
  """Yields what a reader should look at."""
  if padding := about.get("padding_warning"):
    yield padding.removeprefix("warning: ")
  cosine = train[-1].get("pair_cosine") if train else None
  if cosine is not None and cosine > COLLAPSED:
    yield (
      f"The embeddings may have collapsed: random pairs have a mean cosine of"
      f" {cosine:.2f}. Lower negatives.soft_weight or optim.lr."
    )
  if skips := sum(bool(x.get("skipped")) for x in train):
    yield (
      f"Updates were skipped in {skips:,} of {len(train):,} records,"
      " because loss or gradient was not finite. Lower optim.lr."
    )
  if held_out.get("total", 0.0) is None:
    yield "The last held-out loss is not finite. Lower optim.lr."


def show_cases(saved: Values) -> Iterator[str]:
  """Yields the corrections in cases.json."""
  cases = saved["cases"]
  text = page.describe_search(saved["searched"], saved["corrected"], len(cases))
  if not cases:
    hint = "Young models have few; the task `corrections` measures any text."
    yield f"{text} {hint}"
    return
  yield f"{text} The gold word and the prediction are marked."
  rows = [
    {"sentence": _mark(x), "gold": x["gold"], "prediction": x["prediction"]}
    | {"count": x["count"], "probability": f"{x['probability']:.1%}"}
    | {"synonyms": ", ".join(page.abridge(x["synonyms"], x["prediction"]))}
    for x in cases
  ]
  yield page.table("Cases", rows)


def _mark(case: Values) -> str:
  """Returns the sentence of a case with the gold word and the prediction."""
  before, mask, after = case["sentence"].partition("[MASK]")
  if not mask:
    return before
  return page.mark(before, case["gold"], case["prediction"], after)


def compare(runs: Sequence[page.Run]) -> Iterator[str]:
  """Yields the tables that compare several runs; none for a single one.

  Configs are compared of runs of the same task as the first that has results.
  """
  measured = [run for run in runs if run.measures]
  if len(measured) > 1:
    labels = dict.fromkeys(label for run in measured for label in run.measures)
    results = list[dict[str, Any]]()
    for label in labels:
      values = {run.name: run.measures.get(label) for run in measured}
      results.append({"metric or cost": label, **values})
    yield page.table("Last held-out metrics, and cost", results)
    yield HINT
  task = (measured or runs)[0].task
  configs = {x.name: flatten(x.config) for x in runs if x.task == task}
  first, *others = configs.values()
  keys = {x.key for other in others for x in files.find_changes(first, other)}
  if others:
    rows = [
      {"config key": key}
      | {name: json.dumps(x.get(key)) for name, x in configs.items()}
      for key in sorted(keys)
    ]
    yield page.table("Config keys in which the runs differ", rows)
