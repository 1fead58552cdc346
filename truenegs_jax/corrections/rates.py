"""Counts, prints and saves how often predictions are corrected (table 2).

Axis: M slots.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from truenegs_jax.corrections import cases
from truenegs_jax.corrections.predict_slots import Lines, Predictions
from truenegs_jax.stats.intervals import Rate, estimate_rate
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.workdir import files

# The paper's table 2: percent of the steps, then Iter and Pred of BERT-base and
# of BERT-large, in percent.
TABLE_2 = {
  6.25: (6.90, 1.31, 7.46, 1.50),
  12.5: (6.96, 1.34, 7.58, 1.55),
  25.0: (6.97, 1.36, 7.31, 1.49),
  50.0: (7.05, 1.36, 7.46, 1.56),
  80.0: (7.06, 1.40, 7.38, 1.57),
  100.0: (7.07, 1.41, 7.44, 1.60),
}


@dataclasses.dataclass(frozen=True)
class Rates:
  """Corrections among a model's predictions.

  A correction is a prediction that is a synonym of the gold token, not the gold
  token itself, in an eligible slot. Shares are of all slots, eligible or not,
  like in training.
  """

  mismatch_rate: Rate  # the paper's prediction level
  slot_rate: Rate
  sequence_rate: Rate  # the paper's iteration level; only sequences with slots


@dataclasses.dataclass(frozen=True)
class CheckpointRates:
  """Corrections among the predictions of a checkpoint."""

  step: int | None  # None for weights without a run
  percent: float | None  # of the run's steps
  rates: Rates


@dataclasses.dataclass(frozen=True)
class Findings:
  """Results of the task, for one text.

  Attributes:
    text: the lines.
    tables: synonym tables by source; the first is that of the paper's table 2.
    checkpoints: by source, in the order of steps.
    search: cases of all sources, at the last checkpoint.
  """

  text: Lines
  tables: Mapping[str, SynonymTable]
  checkpoints: Mapping[str, list[CheckpointRates]]
  search: cases.Search


def count_corrections(p: Predictions, table: SynonymTable) -> Rates:
  """Counts the predictions that a table of synonyms corrects."""
  corrected_M, wrong_M = p.corrected_M(table), p.mismatch_M
  sequences = np.unique(p.sequence_M)
  has_correction = np.isin(sequences, p.sequence_M[corrected_M])
  return Rates(
    mismatch_rate=estimate_rate(corrected_M[wrong_M], p.sequence_M[wrong_M]),
    slot_rate=estimate_rate(corrected_M, p.sequence_M),
    sequence_rate=estimate_rate(has_correction, sequences),
  )


def find_table_2(
  steps: Sequence[tuple[int | None, float | None]],
) -> dict[float, int]:
  """Finds the checkpoints of table 2 by their steps and percent of the run.

  Returns:
    Percentages of TABLE_2 that have a checkpoint, and its index; the last
    checkpoint is always at 100.
  """
  rows = {
    percent: index
    for percent in TABLE_2
    for index, (step, done) in enumerate(steps[:-1])
    if step and done and round(step / done * percent) == step
  }
  return rows | {100.0: len(steps) - 1}


def render_rates(checkpoints: Sequence[CheckpointRates], source: str) -> Table:
  """Renders rates by checkpoint; "Iter" and "Pred" are the paper's columns."""
  grid = Table(
    title=f"Corrections by {source} (%, with 95 % intervals), and in the"
    " paper's table 2",
    caption="The paper leaves open which split it measured, how it was cut and"
    " masked, and whether predictions were sampled.",
    title_justify="left",
    caption_justify="left",
  )
  columns = ("step (%)", "Iter", "Pred", "BERT base", "BERT large")
  for name in columns:
    grid.add_column(name, justify="right")
  rows = find_table_2([(x.step, x.percent) for x in checkpoints])
  paper = {index: TABLE_2[percent] for percent, index in rows.items()}
  for index, checkpoint in enumerate(checkpoints):
    step, rates = "-", checkpoint.rates
    if checkpoint.step is not None:
      step = f"{checkpoint.step:,} ({checkpoint.percent:.3g})"
    published = [f"{x:.2f}" for x in paper.get(index, ())]
    grid.add_row(
      step,
      _format_rate(rates.sequence_rate),
      _format_rate(rates.mismatch_rate),
      " ".join(published[:2]),
      " ".join(published[2:]),
    )
  return grid


def _format_rate(rate: Rate) -> str:
  """Formats a share and its interval in percent; a dash if it is undefined."""
  if not rate.total:
    return "-"
  interval = f"{100 * rate.low:.2f}-{100 * rate.high:.2f}"
  return f"{100 * rate.rate:.2f} {interval}"


def print_findings(f: Findings, console: Console, *, num_cases: int) -> None:
  """Prints the rates and the first cases by the first source."""
  console.print(
    f"{len(f.text.sequences):,} lines, {f.text.num_cut:,} of them cut to"
    f" {f.text.length} tokens",
    soft_wrap=True,
  )
  first = next(iter(f.tables))
  console.print(render_rates(f.checkpoints[first], first))
  shown = [x for x in f.search.cases if x.verdicts[first] == "corrected"]
  console.print(cases.render_cases(shown[:num_cases], f.search.searched))


def save_findings(
  f: Findings, workdir: pathlib.Path, about: Mapping[str, Any]
) -> None:
  """Writes results.json, which begins with `about`, and cases.json."""
  results = {
    **about,
    "lines": len(f.text.sequences),
    "lines_cut": f.text.num_cut,
    "length": f.text.length,
    "fingerprints": {
      "text": f.text.fingerprint,
      "synonyms": {name: t.fingerprint for name, t in f.tables.items()},
      "vocabulary": next(iter(f.tables.values())).vocabulary,
    },
    "tables": {name: dict(t.options) for name, t in f.tables.items()},
    "checkpoints": {
      source: [*map(dataclasses.asdict, checkpoints)]
      for source, checkpoints in f.checkpoints.items()
    },
  }
  files.save_json(workdir / files.RESULTS, results)
  search = dataclasses.asdict(f.search)
  files.save_json(workdir / files.CASES, search, indent=None)
