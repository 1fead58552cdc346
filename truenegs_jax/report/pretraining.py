"""Reads pre-trainings and cases of corrections, and compares pre-trainings."""

import datetime
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.config.keys import flatten
from truenegs_jax.config.sections import GENERATOR_SIZES, SIZES
from truenegs_jax.report import curves, page
from truenegs_jax.report.page import format_number
from truenegs_jax.runtime.errors import CheckpointError, printable
from truenegs_jax.runtime.files import read_results
from truenegs_jax.stats.intervals import jackknife_error
from truenegs_jax.workdir import files

FIX = "Run the command of the run again, which writes it."
COLLAPSED = 0.5  # mean cosine of random pairs
# Lines of the report at the start that are shown at a glance.
GLANCE = ("start", "objective", "devices", "parameters", "steps", "data")
MAX_SECS = 1e9  # left; more is damage
# Metrics that do not depend on the weights of a loss.
COMPARABLE = (
  *("mlm_uncorrected", "mlm_hidden", "detect", "auc"),
  *("corrected_of_slots", "corrected_of_mismatches", "corrected_rows"),
)
# Keys of a config and of about.json on which they depend but for the recipe.
SETTING = (
  *("objective", "model.backbone", "model.variant"),
  *(f"model.{name}" for name in SIZES),
  *(f"generator.{name}" for name in GENERATOR_SIZES),
  *("generator.multiplier", "generator.layers_multiplier"),
  *("masking.prob", "masking.style", "eval.rows"),
)
DATA = ("rows", "text_bytes", "unigram_entropy", "uniform_entropy")
ERRORS = (
  "± is the standard error for other held-out rows, by the jackknife over their"
  " batches. That of a difference is paired, as both runs are evaluated on the"
  " same rows. It says nothing of other seeds: train several. Unfinished runs"
  " and rows of one batch have none."
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
  """Reads a pre-training."""
  splits, num_damaged = curves.read_records(workdir)
  about = read_saved(run, workdir / files.ABOUT)
  batch_size = run.config["batch_size"]
  train = splits.get("train", {})
  held_out = splits.get("held_out", {})
  run.curves = [
    curves.Curve(
      label=run.name,
      group=run.name,
      splits=curves.thin_records(splits, curves.MAX_POINTS),
      tokens=batch_size * run.config["length"],
      flops=about.get("row_flops", 0) * batch_size or None,
      references=_list_references(about, held_out),
    )
  ]
  _describe_progress(run, train, run.config["steps"])
  if num_damaged:
    text = f"metrics.jsonl has damaged lines ({num_damaged:,})"
    run.notes.append((page.WARNING, f"{text}, which the curves lack."))
  lines = about.get("lines", {})
  run.facts |= {name: lines[name] for name in GLANCE if name in lines}
  run.facts["text"] = "; ".join(about.get("sources", ()))
  cost = _measure_cost(run.config, train, about) if train else {}
  costs = [f"{format_number(x)} {unit}" for unit, x in cost.items()]
  run.facts["cost"] = ", ".join(costs)
  run.notes += [(page.WARNING, x) for x in _warn(train, held_out, about)]
  if verdict := results.get("verdict"):
    level = page.GOOD if verdict["passed"] else page.WARNING
    run.notes.insert(0, (level, verdict["summary"]))
    blocks = [page.table("", verdict["table"]), str(verdict["rule"])]
    yield page.Section("Held-out rows", files.RESULTS, blocks)
  if saved := read_saved(run, workdir / files.CASES):
    yield page.Section("Corrections", files.CASES, show_cases(saved))
  config = flatten(run.config)
  run.setting = {x: config.get(x) or None for x in SETTING}
  run.setting["data"] = [about.get(x) for x in DATA]
  run.measures = dict(_measure_quality(held_out, results.get("left_out", {})))
  run.measures |= {unit: page.Measure(x) for unit, x in cost.items()}


def _list_references(
  about: Values, held_out: curves.Columns
) -> dict[str, dict[str, float]]:
  """Returns what guessing without context reaches, for each loss."""
  names = ("unigram", "uniform") if about else ()
  guesses = {f"{x} entropy": about[f"{x}_entropy"] for x in names}
  references = dict.fromkeys(("mlm", "mlm_uncorrected", "mlm_hidden"), guesses)
  references["auc"] = {"chance": 0.5}
  rate = held_out.get("replaced", [0.0])[-1]
  if 0 < rate < 1:
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    references["detect"] = {"entropy of the labels": float(entropy)}
  return references


def _describe_progress(
  run: page.Run, train: curves.Columns, steps: int
) -> None:
  """Says how far a pre-training is, on the page and in the terminal."""
  run.sentence = "No training step is recorded yet."
  if not train:
    return
  last = {name: float(x[-1]) for name, x in train.items()}
  if math.isfinite(total := last.get("total_steps", math.nan)):
    steps = int(total)  # that fit into the minutes
  run.progress["step"] = f"{int(last['step']):,} of {steps:,}"
  run.progress["loss"] = format_number(last.get("total"))
  run.progress["rate"] = f"{format_number(last.get('rows_per_s'))} rows/s"
  run.sentence = f"{run.state.capitalize()} at step {run.progress['step']}."
  secs = last.get("eta_s", math.nan)
  if last["step"] < steps and math.isfinite(secs):
    left = datetime.timedelta(seconds=round(min(max(secs, 0), MAX_SECS)))
    run.progress["left"] = str(left)


def _measure_cost(
  config: Values, train: curves.Columns, about: Values
) -> dict[str, float]:
  """Returns what a training has cost, by unit."""
  unknown = [math.nan]
  rows = train["step"][-1] * config["batch_size"]
  cost = {
    "hours of training": curves.count_hours(train)[-1],
    "steps": train["step"][-1],
    "tokens": rows * config["length"],
    "TFLOP": about.get("row_flops", math.nan) * rows / 1e12,
    "rows/s": train.get("rows_per_s", unknown)[-1],
    "GiB of memory": train.get("memory_peak_gib", unknown)[-1],
  }
  return {unit: float(x) for unit, x in cost.items() if math.isfinite(x)}


def _measure_quality(
  held_out: curves.Columns, left_out: Values
) -> Iterator[tuple[str, page.Measure]]:
  """Yields the last held-out metrics of a run, with their labels."""
  for field in [x for x in COMPARABLE if x in held_out]:
    scale, digits = (100, 2) if field in curves.RATES else (1, 4)
    # Without hard correction, `mlm` is that of all slots, too.
    rest = left_out.get(field, left_out.get("mlm", ()))
    rest = [scale * x for x in rest if x is not None]
    value = scale * held_out[field][-1]
    yield curves.PANELS[field], page.Measure(value, digits, rest)


def _warn(
  train: curves.Columns, held_out: curves.Columns, about: Values
) -> Iterator[str]:
  """Yields what a reader should look at."""
  if padding := about.get("padding_warning"):
    yield padding.removeprefix("warning: ")
  if (cosine := float(train.get("pair_cosine", [0])[-1])) > COLLAPSED:
    yield (
      f"The embeddings may have collapsed: random pairs have a mean cosine of"
      f" {cosine:.2f}. Lower negatives.soft_weight or optim.lr."
    )
  if skips := int(np.count_nonzero(np.nan_to_num(train.get("skipped", 0)))):
    yield (
      f"Updates were skipped in {skips:,} of {len(train['step']):,} records,"
      " because loss or gradient was not finite. Lower optim.lr."
    )
  if not math.isfinite(held_out.get("total", [0])[-1]):
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
    yield from _compare_results(*measured)
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


def _compare_results(first: page.Run, *others: page.Run) -> Iterator[str]:
  """Yields the results of the first run and the others' differences."""
  rows = [
    {"metric or cost": label, first.name: _format(x)}
    | {run.name: _subtract(first, run, label) for run in others}
    for label, x in first.measures.items()
  ]
  yield page.table(f"Results of {first.name}, and differences from it", rows)
  yield ERRORS
  for run in others:
    if changes := files.find_changes(first.setting, run.setting):
      names = ", ".join(x.key for x in changes)
      yield (
        f"Losses and shares of {run.name} are not comparable to those of"
        f" {first.name}: {run.name} differs in {names}."
      )


def _format(x: page.Measure) -> str:
  if x.digits is None:
    return format_number(x.value)
  return page.format_estimate(x.value, jackknife_error(x.left_out), x.digits)


def _subtract(first: page.Run, other: page.Run, label: str) -> str:
  """Describes a difference with its error, or why there is none."""
  a = first.measures[label]
  b = other.measures.get(label)
  if b is None:
    return ""
  if a.digits is not None and files.find_changes(first.setting, other.setting):
    return f"{_format(b)}, not comparable"
  if b.value == a.value:
    return "same"
  if a.digits is None:
    return f"{b.value / a.value - 1:+.1%}" if a.value else ""
  if is_paired := len(a.left_out) == len(b.left_out):
    error = jackknife_error(np.subtract(b.left_out, a.left_out).tolist())
  else:
    error = math.hypot(*map(jackknife_error, (a.left_out, b.left_out)))
  text = page.format_estimate(b.value - a.value, error, a.digits, sign="+")
  return text if is_paired or math.isinf(error) else f"{text} (unpaired)"
