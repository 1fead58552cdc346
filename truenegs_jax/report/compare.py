"""Compares runs on a page: results, differences from the first, configs."""

import json
import math
from collections.abc import Iterator, Sequence

import numpy as np

from truenegs_jax.config.keys import flatten
from truenegs_jax.report import page
from truenegs_jax.stats.intervals import jackknife_error
from truenegs_jax.workdir.files import find_changes

ERRORS = (
  "± is the standard error for other held-out rows, by the jackknife over their"
  " batches. That of a difference is paired, as both runs are evaluated on the"
  " same rows. It says nothing of other seeds: train several. Unfinished runs"
  " and rows of one batch have none."
)


def compare(runs: Sequence[page.Run]) -> Iterator[page.Html]:
  """Yields the blocks that compare several runs; none for a single one.

  Configs are compared of runs of the same task as the first that has results.
  """
  measured = [run for run in runs if run.measures]
  if len(measured) > 1:
    yield from _compare_results(*measured)
  task = (measured or runs)[0].task
  configs = {x.name: flatten(x.config) for x in runs if x.task == task}
  first, *others = configs.values()
  keys = {x.key for other in others for x in find_changes(first, other)}
  if others:
    rows = [
      {"config key": key}
      | {k: json.dumps(x.get(key)) for k, x in configs.items()}
      for key in sorted(keys)
    ]
    yield page.table("Config keys in which the runs differ", rows)


def _compare_results(first: page.Run, *others: page.Run) -> Iterator[page.Html]:
  """Yields differences from the first run, then all results."""
  rows = [
    {"metric or cost": x}
    | {run.name: _subtract(first, run, x) for run in others}
    for x in first.measures
  ]
  yield page.table(f"Differences from {first.name}", rows)
  yield page.text(ERRORS)
  listed = [
    f"{run.name} differs in {', '.join(x.key for x in keys)}"
    for run in others
    if (keys := find_changes(first.setting, run.setting))
  ]
  if listed:
    text = f"Losses and shares are not comparable to those of {first.name}"
    yield page.text(f"{text}: {'; '.join(listed)}.")
  # Those that most runs lack, such as of corrections, in their place.
  runs = sorted((first, *others), key=lambda run: -len(run.measures))
  labels = dict.fromkeys(label for run in runs for label in run.measures)
  rows = [
    {"metric or cost": x}
    | {run.name: _show(run, x) for run in (first, *others)}
    for x in labels
  ]
  yield page.table("Results", rows)


def _subtract(first: page.Run, other: page.Run, label: str) -> str:
  """Describes a difference with its error, or why there is none."""
  a = first.measures[label]
  b = other.measures.get(label)
  if b is None:
    return ""
  if a.digits is not None and find_changes(first.setting, other.setting):
    return "not comparable"
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


def _show(run: page.Run, label: str) -> str:
  if not (x := run.measures.get(label)):
    return ""
  if x.digits is None:
    return page.format_number(x.value)
  return page.format_estimate(x.value, jackknife_error(x.left_out), x.digits)
