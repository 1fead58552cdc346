"""Runs the task "blimp": how often a model prefers the grammatical sentence.

The model is that of a run, at one or several steps, or of weights. No result is
written before all are scored.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.config.tables import Blimp
from truenegs_jax.pretrain import measured, minimal_pairs
from truenegs_jax.report.page import Table, format_estimate, print_table
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import errors, progress
from truenegs_jax.stats.intervals import estimate_mean
from truenegs_jax.workdir import files, lock


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Scores pairs, prints and saves the results; returns the exit code."""
  say = functools.partial(console.print, soft_wrap=True)
  o = Blimp.read(c.blimp)
  config = PretrainConfig.read(c)
  m = measured.find_model(config, o, say)
  files.check_no_run(workdir, c.task)
  pairs = minimal_pairs.read_pairs(o.pairs, key="blimp.pairs", rows=o.rows)
  if equal := [x.location for x in pairs if x.good == x.bad]:
    say(
      f"{len(equal):,} pairs are of equal sentences, the first in {equal[0]}."
      " They count one half."
    )
  if config.dry_run:
    lines = measured.describe(m) | {"pairs": f"{len(pairs):,} of {o.pairs}"}
    console.print(progress.make_table(lines))
    return 0
  unread = "generator" if o.network == "discriminator" else ""
  with measured.open_model(m, unread=unread) as (saved, steps):
    scorer = minimal_pairs.PairScorer(
      m.make_run(saved), pairs, hidden=o.hidden, network=o.network
    )
    with lock.lock(workdir):
      rates = {step: scorer.rate(params, console) for step, params in steps}
      results = make_results(pairs, rates)
      print_table(Table(**results["tables"][0]), console)
      say(results["summary"])
      files.save_json(workdir / files.CONFIG, json.loads(c.to_json()))
      files.save_json(workdir / files.RESULTS, results)
      write_own_report(workdir, say)
  say(f"saved: {workdir / files.RESULTS}, {workdir / files.REPORT}")
  return 0


def make_results(
  pairs: Sequence[minimal_pairs.Pair],
  rates: Mapping[int | None, Mapping[str, float]],
) -> dict[str, Any]:
  """Returns the content of results.json from rates by step and paradigm."""
  terms: dict[str, list[str]] = {}
  for paradigm, term in {x.paradigm: x.term for x in pairs}.items():
    terms.setdefault(term or "(no term)", []).append(paradigm)
  checkpoints = []
  for step, rate in rates.items():
    accuracy, half_width = estimate_mean([*rate.values()])
    by_term = {
      term: float(np.mean([rate[x] for x in names]))
      for term, names in terms.items()
    }
    checkpoint = {"step": step, "accuracy": accuracy, "half_width": half_width}
    checkpoints.append(checkpoint | {"terms": by_term, "paradigms": rate})
  shown = format_estimate(accuracy, half_width, 2)
  tables = [_make_table(name, checkpoints) for name in ("terms", "paradigms")]
  return {
    "command": errors.rerun_command(),
    "pairs": len(pairs),
    "checkpoints": checkpoints,
    "summary": (
      f"{shown} % of the good sentences have the higher score: mean of"
      f" {len(rate)} paradigms with {len(pairs):,} pairs, and its 95 % interval"
      " for other paradigms. Guessing has 50 %."
    ),
    "tables": [dataclasses.asdict(x) for x in tables],
  }


def _make_table(name: str, checkpoints: Sequence[Mapping[str, Any]]) -> Table:
  """Makes a table of the accuracies by term or by paradigm."""
  rows = []
  for group in [*checkpoints[0][name], "mean of paradigms"]:
    row = {name: group}
    for x in checkpoints:
      column = "weights" if x["step"] is None else f"step {x['step']:,}"
      row[column] = f"{x[name].get(group, x['accuracy']):.2f}"
    rows.append(row)
  return Table(f"Good sentences with the higher score by {name}, %", rows)
