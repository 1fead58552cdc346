"""Compares runs on a page: results, differences from the first, configs."""

import itertools
import json
import math
from collections.abc import Iterator, Sequence

import numpy as np

from truenegs_jax.config.keys import flatten
from truenegs_jax.report import page
from truenegs_jax.report.verdict import format_estimate
from truenegs_jax.stats.intervals import jackknife_error
from truenegs_jax.workdir.files import find_changes

ERRORS = (
  "± is the standard error for other held-out rows, by the jackknife over their"
  " batches. It is paired, as both runs are evaluated on the same rows. It says"
  " nothing of other seeds: train several of each."
)


def compare(runs: Sequence[page.Run]) -> Iterator[page.Block]:
  """Yields the blocks that compare several runs; none for a single one."""
  measured = [run for run in runs if run.measures]
  if len(measured) > 1:
    yield from _compare_results(*measured)
  if len(runs) > 1:
    yield _compare_configs(runs)


def _compare_results(
  first: page.Run, *others: page.Run
) -> Iterator[page.Block]:
  """Yields differences from the first run, then the results."""
  runs = first, *others
  rows = [
    {"difference": label} | {x.name: _subtract(first, x, label) for x in others}
    for label in first.measures
  ]
  yield page.table(f"Differences from {first.name}", rows)
  yield page.text(ERRORS)
  changes = {x.name: find_changes(first.setting, x.setting) for x in others}
  listed = [
    f"{name} differs in {', '.join(x.key for x in keys)}"
    for name, keys in changes.items()
    if keys
  ]
  if listed:
    yield page.text(
      f"Losses and shares are not comparable with those of {first.name}:"
      f" {'; '.join(listed)}."
    )
  rows = [
    {"result": label} | {x.name: _show(x.measures.get(label)) for x in runs}
    for label in dict.fromkeys(itertools.chain(*(x.measures for x in runs)))
  ]
  yield page.table("Results", rows)


def _subtract(first: page.Run, other: page.Run, label: str) -> str:
  """Returns a difference with its error, or why there is none."""
  a, b = first.measures[label], other.measures.get(label)
  if b is None:
    return ""
  if a.digits is None:
    return f"{b.value / a.value - 1:+.1%}" if a.value else ""
  if find_changes(first.setting, other.setting):
    return "not comparable"
  kind, is_paired = "", len(a.left_out) == len(b.left_out)
  if is_paired:
    error = jackknife_error(np.subtract(b.left_out, a.left_out).tolist())
  else:
    error = math.hypot(*map(jackknife_error, (a.left_out, b.left_out)))
    kind = " (unpaired)"
  text = format_estimate(b.value - a.value, error, a.digits, sign="+")
  return text if math.isinf(error) else text + kind


def _show(measure: page.Measure | None) -> str:
  if measure is None:
    return ""
  if measure.digits is None:
    return page.format_number(measure.value)
  error = jackknife_error(measure.left_out)
  return format_estimate(measure.value, error, measure.digits)


def _compare_configs(runs: Sequence[page.Run]) -> page.Block:
  """Returns a table of the config keys in which runs differ."""
  first, *others = configs = [flatten(run.config) for run in runs]
  keys = {x.key for other in others for x in find_changes(first, other)}
  rows = [
    {"config key": key}
    | {
      run.name: json.dumps(config[key]) if key in config else ""
      for run, config in zip(runs, configs, strict=True)
    }
    for key in sorted(keys)
  ]
  return page.table("Config keys in which the runs differ", rows)
