"""Prints and saves the results of the task "corrections".

results.json  all numbers, the model and the settings
cases.json    corrections in their sentences, like the paper's figure 3
plots/        rates over the steps, if there are several
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from truenegs_jax.corrections import cases
from truenegs_jax.corrections.predict_slots import Lines
from truenegs_jax.corrections.rates import (
  Agreement,
  GroupRates,
  Pair,
  Rates,
)
from truenegs_jax.report.plots import panels
from truenegs_jax.stats.intervals import Rate
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.workdir import files

# The paper's table 2: percent of the steps, then Iter and Pred of BERT-base and
# of BERT-large, in percent.
TABLE_2 = {
  6.25: ("6.90", "1.31", "7.46", "1.50"),
  12.5: ("6.96", "1.34", "7.58", "1.55"),
  25.0: ("6.97", "1.36", "7.31", "1.49"),
  50.0: ("7.05", "1.36", "7.46", "1.56"),
  80.0: ("7.06", "1.40", "7.38", "1.57"),
  100.0: ("7.07", "1.41", "7.44", "1.60"),
}


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
    agreements: of all pairs of sources, at the last checkpoint.
    search: cases of all sources, at the last checkpoint.
  """

  text: Lines
  tables: Mapping[str, SynonymTable]
  checkpoints: Mapping[str, list[CheckpointRates]]
  agreements: tuple[Agreement, ...]
  search: cases.Search

  @property
  def table_2(self) -> list[CheckpointRates]:
    """The checkpoints with the first source."""
    return self.checkpoints[next(iter(self.tables))]


def print_report(f: Findings, console: Console, *, num_cases: int) -> None:
  """Prints all tables, and the first cases that the first source corrects.

  Tables by pair or class are of the last checkpoint.
  """
  text, last, first = f.text, f.table_2[-1].rates, next(iter(f.tables))
  console.print(
    f"{len(text.sequences):,} lines, {text.num_cut:,} of them cut to"
    f" {text.length} tokens; {text.num_headings:,} headings skipped",
    soft_wrap=True,
  )
  console.print(render_checkpoints(f.table_2, first))
  console.print(render_table_2(f.table_2, first))
  console.print(render_pairs(last.pairs))
  if last.by_speech:
    console.print(render_classes(last.by_speech))
  if f.agreements:
    for golds in ("all", "shared"):
      console.print(render_agreements(f.agreements, golds=golds))
  shown = [x for x in f.search.cases if x.verdicts[first] == "corrected"]
  console.print(cases.render_cases(shown[:num_cases], f.search.searched))


def render_checkpoints(
  checkpoints: list[CheckpointRates], source: str
) -> Table:
  """Renders rates by checkpoint; "Iter" and "Pred" are the paper's columns."""
  title = f"Corrections by {source} (%, with 95 % intervals)"
  grid = Table(title=title, title_justify="left")
  for name in ("step (%)", "Iter", "Pred", "slots", "sequences", "mismatches"):
    grid.add_column(name, justify="right")

  def format_rate(rate: Rate) -> str:
    interval = f"{100 * rate.low:.2f}-{100 * rate.high:.2f}"
    return f"{100 * rate.rate:.2f} {interval}" if rate.total else "-"

  for checkpoint in checkpoints:
    step, r = "-", checkpoint.rates
    if checkpoint.step is not None:
      step = f"{checkpoint.step:,} ({checkpoint.percent:.3g})"
    grid.add_row(
      step,
      format_rate(r.sequence_rate),
      format_rate(r.mismatch_rate),
      f"{100 * r.slot_rate.rate:.2f}",
      f"{r.sequence_rate.total:,}",
      f"{r.mismatch_rate.total:,}",
    )
  return grid


def render_table_2(checkpoints: list[CheckpointRates], source: str) -> Table:
  """Renders the rows of the paper's table 2 that have a checkpoint, beside it.

  The row of the last step always has one, the last checkpoint.
  """
  grid = Table(
    title=f"The paper's table 2 (%), and here by {source}",
    caption="The last row has the last checkpoint. The paper leaves open which"
    " split it measured, how it was cut and masked, and whether predictions"
    " were sampled.",
    title_justify="left",
    caption_justify="left",
  )
  columns = ("base: Iter", "Pred", "large: Iter", "Pred", "here: Iter", "Pred")
  for name in ("step (%)", *columns):
    grid.add_column(name, justify="right")
  steps = [(c.step, c.percent) for c in checkpoints]
  for percent, index in find_table_2(steps).items():
    rates = checkpoints[index].rates
    shares = (rates.sequence_rate, rates.mismatch_rate)
    own = (f"{100 * share.rate:.2f}" for share in shares)
    grid.add_row(f"{percent:g}", *TABLE_2[percent], *own)
  return grid


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


def render_pairs(pairs: Sequence[Pair]) -> Table:
  """Renders corrections, most frequent first."""
  grid = Table(title="Most frequent corrections", title_justify="left")
  for name in ("gold", "prediction", "times"):
    grid.add_column(name, overflow="fold")
  for pair in pairs:
    grid.add_row(pair.gold, pair.predicted, f"{pair.count:,}")
  return grid


def render_classes(classes: Sequence[GroupRates]) -> Table:
  """Renders mismatches and corrections by class of gold token."""
  grid = Table(title="By part of speech", title_justify="left")
  grid.add_column("gold", overflow="fold")
  for name in ("slots", "mismatches", "corrected", "share", "95 % interval"):
    grid.add_column(name, justify="right")
  for group in classes:
    rate = group.mismatch_rate
    counts = [f"{n:,}" for n in (group.slot_rate.total, rate.total, rate.hits)]
    grid.add_row(group.name, *counts, *_format_percent(rate))
  return grid


def render_agreements(
  agreements: Sequence[Agreement], *, golds: str = "all"
) -> Table:
  """Renders the agreements with this value of `golds`.

  Recall is the precision with source and judge exchanged.
  """
  suffix = "" if golds == "all" else ", gold tokens with synonyms in both"
  grid = Table(
    title=f"Corrections that a judge confirms{suffix}", title_justify="left"
  )
  for name in ("source", "judge"):
    grid.add_column(name, overflow="fold")
  for name in ("precision", "95 % interval"):
    grid.add_column(name, justify="right", no_wrap=True)
  for a in agreements:
    if a.golds == golds:
      share, interval = _format_percent(a.precision)
      counts = f"{a.precision.hits:,}/{a.precision.total:,} {share}"
      grid.add_row(a.source, a.judge, counts, interval)
  return grid


def _format_percent(rate: Rate) -> tuple[str, str]:
  """Formats a share and its interval in percent, or as dashes if undefined."""
  if not rate.total:
    return "-", "-"
  return f"{rate.rate:.2%}", f"{rate.low:.2%} to {rate.high:.2%}"


def save_report(
  f: Findings, workdir: pathlib.Path, about: Mapping[str, Any]
) -> list[pathlib.Path]:
  """Writes all files atomically, numbers first, and returns their paths.

  `about`, the model and the settings, goes to the beginning of results.json.

  Raises:
    DiskError: a file cannot be written.
  """
  written = [workdir / files.RESULTS]
  files.save_json(written[0], {**about, **_numbers(f)})
  written.append(cases.save_cases(workdir, f.search))
  if len(f.table_2) > 1:
    written.append(workdir / files.PLOTS / "correction_rates.png")
    plot_rates(f.table_2, written[-1])
  return written


def plot_rates(checkpoints: list[CheckpointRates], path: pathlib.Path) -> None:
  """Plots both rates over the steps, with their intervals, as PNG.

  Raises:
    DiskError: the file cannot be written.
  """
  titles = {
    "sequence_rate": "Iter: sequences with a correction",
    "mismatch_rate": "Pred: corrected mismatches",
  }
  with panels(path, len(titles)) as axes:
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
      rates: list[Rate] = [getattr(c.rates, name) for c in checkpoints]
      axis.errorbar(
        [c.step for c in checkpoints],
        [100 * r.rate for r in rates],
        yerr=[
          [100 * (r.rate - r.low) for r in rates],
          [100 * (r.high - r.rate) for r in rates],
        ],
        fmt="o-",
        capsize=3,
      )
      axis.set_title(title, fontsize=10)
      axis.set_xlabel("step")
      axis.set_ylabel("%, with 95 % intervals")


def _numbers(f: Findings) -> dict[str, Any]:
  return {
    "lines": len(f.text.sequences),
    "lines_cut": f.text.num_cut,
    "headings_left_out": f.text.num_headings,
    "length": f.text.length,
    "fingerprints": {
      "text": f.text.fingerprint,
      "synonyms": {name: t.fingerprint for name, t in f.tables.items()},
      "vocabulary": next(iter(f.tables.values())).vocabulary,
    },
    "tables": {name: dict(t.options) for name, t in f.tables.items()},
    "checkpoints": {
      source: [_to_json(checkpoint) for checkpoint in checkpoints]
      for source, checkpoints in f.checkpoints.items()
    },
    "judgements": [_to_json(agreement) for agreement in f.agreements],
  }


def _to_json(results: CheckpointRates | Agreement) -> dict[str, Any]:
  """Converts results to JSON types; the key of `Rate.total` is "of"."""

  def to_dict(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {"of" if name == "total" else name: x for name, x in fields}

  return dataclasses.asdict(results, dict_factory=to_dict)
