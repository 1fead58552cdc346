"""The report of the task "corrections": tables on the screen, and its files.

results.json  all numbers, and what they were measured on
cases.json    the cases of the paper's figure 3
sheet.csv     corrections for people to judge; sheet-2.csv where that is another
plots/        the rates over the steps, where there are several
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from truenegs_jax.corrections import cases
from truenegs_jax.corrections.predict_slots import Lines
from truenegs_jax.corrections.rates import Agreement, Group, Pair, Rate, Rates
from truenegs_jax.runtime.files import atomic_file, disk_errors
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.workdir import files

OPTION = re.compile(r" +\w+=\S+")  # of a source, as in "pairs path=a.tsv"
WIDEST = 12  # characters of a source's name in a table


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A step of a run, and the corrections of its predictions."""

  step: int | None  # None: weights that no run of ours has saved
  percent: float | None  # of the run's steps
  rates: Rates


@dataclasses.dataclass(frozen=True)
class Findings:
  """Corrections among the predictions for a text's lines.

  Attributes:
    text: the lines that were filled.
    tables: the sources of synonyms by name; the first is the one of table 2.
    checkpoints: by source, in the order of their steps.
    judgements: of the sources on one another, at the last checkpoint.
    cases: of the first source, at the last checkpoint.
    searched: predictions of the last checkpoint.
    sheet: CSV; "" is none.
  """

  text: Lines
  tables: Mapping[str, SynonymTable]
  checkpoints: Mapping[str, list[Checkpoint]]
  judgements: tuple[Agreement, ...]
  cases: list[cases.Case]
  searched: int
  sheet: str

  @property
  def table_2(self) -> list[Checkpoint]:
    """The checkpoints by the first source."""
    return self.checkpoints[next(iter(self.tables))]


def print_report(f: Findings, console: Console) -> None:
  """Prints all tables; those of kinds of words are of the last checkpoint."""
  text, last = f.text, f.table_2[-1].rates
  console.print(
    f"{len(text.sequences):,} lines, {text.num_cut:,} of them cut to"
    f" {text.length} tokens; {text.num_headings:,} headings left out",
    soft_wrap=True,
  )
  console.print(render_checkpoints(f.table_2, next(iter(f.tables))))
  console.print(render_pairs(last.pairs))
  if last.by_speech:
    console.print(render_groups(last.by_speech, "By part of speech"))
  title = "By rank of frequency in this text"
  console.print(render_groups(last.by_frequency, title))
  if f.judgements:
    for golds in ("all", "shared"):
      console.print(render_agreements(f.judgements, golds=golds))
  console.print(cases.render_cases(f.cases, f.searched))


def render_checkpoints(checkpoints: list[Checkpoint], source: str) -> Table:
  """Corrections of sequences, mismatches and slots, a line per checkpoint.

  "Iter" and "Pred" are the paper's columns.
  """
  t = Table(
    title=f"Corrections by {source} (%, with 95 % intervals)",
    title_justify="left",
  )
  for name in ("step (%)", "Iter", "Pred", "slots", "sequences", "mismatches"):
    t.add_column(name, justify="right")
  for at in checkpoints:
    r = at.rates
    t.add_row(
      "-" if at.step is None else f"{at.step:,} ({at.percent:.3g})",
      *(
        f"{100 * x.rate:.2f} {100 * x.low:.2f}-{100 * x.high:.2f}"
        if x.of
        else "-"
        for x in (r.of_sequences, r.of_mismatches)
      ),
      f"{100 * r.of_slots.rate:.2f}",
      f"{r.of_sequences.of:,}",
      f"{r.of_mismatches.of:,}",
    )
  return t


def render_pairs(pairs: Sequence[Pair]) -> Table:
  """The corrections, most frequent first."""
  t = Table(title="Most frequent corrections", title_justify="left")
  for name in ("gold", "prediction", "times"):
    t.add_column(name, overflow="fold")
  for pair in pairs:
    t.add_row(pair.gold, pair.predicted, f"{pair.count:,}")
  return t


def render_groups(groups: Sequence[Group], title: str) -> Table:
  """Mismatches and corrections by kind of gold token."""
  t = Table(title=title, title_justify="left")
  t.add_column("gold", overflow="fold")
  for name in ("slots", "mismatches", "corrected", "share", "95 % interval"):
    t.add_column(name, justify="right")
  for group in groups:
    value = group.of_mismatches
    counts = (group.of_slots.of, value.of, value.hits)
    t.add_row(group.name, *(f"{n:,}" for n in counts), *format_percent(value))
  return t


def render_agreements(
  judgements: Iterable[Agreement], *, golds: str = "all", by: str = "occurrence"
) -> Table:
  """Those over these golds, counted this way; a line per source and judge.

  Sources go by their names without options, or, where these are long or not
  different, by letters; the caption is their legend.
  """
  judgements = list(judgements)
  labels = _labels(dict.fromkeys(j.source for j in judgements))
  units = "predictions" if by == "occurrence" else "different pairs"
  where = "" if golds == "all" else ", where both know the gold"
  legend = [f"{x}: {name}" for name, x in labels.items() if x != name]
  reverse = "The recall of a line is the precision of the reverse one."
  t = Table(
    title=f"Corrections that a judge confirms: {units}{where}",
    caption="\n".join([reverse, *legend]),
    title_justify="left",
    caption_justify="left",
  )
  for name in ("source", "judge"):
    t.add_column(name, overflow="fold")
  for name in ("precision", "95 % interval", "kappa"):
    t.add_column(name, justify="right", no_wrap=True)
  for j in judgements:
    if (j.golds, j.by) == (golds, by):
      share, interval = format_percent(j.precision)
      counts = f"{j.precision.hits:,}/{j.precision.of:,} {share}"
      kappa = "-" if j.kappa is None else f"{j.kappa:.2f}"
      t.add_row(labels[j.source], labels[j.judge], counts, interval, kappa)
  return t


def format_percent(value: Rate) -> tuple[str, str]:
  """A share and its interval, in percent; dashes where nothing was counted."""
  if not value.of:
    return "-", "-"
  return f"{value.rate:.2%}", f"{value.low:.2%} to {value.high:.2%}"


def save_report(
  f: Findings, workdir: pathlib.Path, about: Mapping[str, Any]
) -> list[pathlib.Path]:
  """Writes the files, each under its name once it is complete; returns them.

  The numbers come first: a sheet that is in the way costs no measurement.

  Args:
    workdir: an existing folder.
    about: the first entries of results.json: the model and the settings.

  Raises:
    DiskError: one could not be written.
  """
  written = [workdir / files.RESULTS, workdir / "cases.json"]
  files.save_json(written[0], {**about, **_numbers(f)})
  files.save_json(written[1], [dataclasses.asdict(case) for case in f.cases])
  if f.sheet:
    written.append(_save_sheet(workdir, f.sheet.encode()))
  if len(f.table_2) > 1:
    written.append(workdir / files.PLOTS / "correction_rates.png")
    plot_rates(f.table_2, written[-1])
  return written


def plot_rates(checkpoints: list[Checkpoint], path: pathlib.Path) -> None:
  """Writes a PNG of both rates over the steps, with their intervals.

  Raises:
    DiskError: it could not be written.
  """
  import matplotlib  # here: its import takes longer than many a command

  matplotlib.use("Agg")
  from matplotlib import pyplot as plt

  figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
  for axis, title, name in zip(
    axes,
    ("Iter: sequences with a correction", "Pred: corrected mismatches"),
    ("of_sequences", "of_mismatches"),
    strict=True,
  ):
    rates: list[Rate] = [getattr(at.rates, name) for at in checkpoints]
    axis.errorbar(
      [at.step for at in checkpoints],
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
    axis.grid(alpha=0.3)
  figure.tight_layout()
  with disk_errors(path):
    path.parent.mkdir(exist_ok=True)
  with atomic_file(path) as file:
    figure.savefig(file, dpi=110, format="png")
  plt.close(figure)


def _save_sheet(workdir: pathlib.Path, sheet: bytes) -> pathlib.Path:
  """Writes the sheet under a name that holds no judgements; returns it."""
  names = (f"sheet-{number}.csv" for number in itertools.count(2))
  for name in itertools.chain(["sheet.csv"], names):
    path = workdir / name
    if not path.exists():
      with atomic_file(path) as file:
        file.write(sheet)
    with disk_errors(path):
      if path.read_bytes() == sheet:
        break
  return path


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
      source: [dataclasses.asdict(at) for at in checkpoints]
      for source, checkpoints in f.checkpoints.items()
    },
    "judgements": [dataclasses.asdict(j) for j in f.judgements],
  }


def _labels(sources: Iterable[str]) -> dict[str, str]:
  """A short name for each source."""
  names = list(sources)
  short = [OPTION.sub("", name) for name in names]
  if len(set(short)) < len(names) or max(map(len, short), default=0) > WIDEST:
    short = [chr(ord("A") + i) for i in range(len(names))]
  return dict(zip(names, short, strict=True))
