"""What the task "corrections" has found: shown, and written to its workdir.

results.json  all numbers, and what they are of
cases.json    the cases of the paper's figure 3
sheet.csv     corrections for people to judge; sheet-2.csv where that is another
plots/        the rates over the steps, where there are several
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from truenegs_jax.corrections import cases, rates, sources_compared
from truenegs_jax.corrections.rates import Rate, Rates
from truenegs_jax.corrections.text_lines import Lines
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.workdir import files


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A step of a run, and the corrections of its predictions."""

  step: int | None  # None: weights that no run of ours has saved
  percent: float | None  # of the run's steps
  rates: Rates


def show_checkpoints(checkpoints: list[Checkpoint], source: str) -> Table:
  """One line a checkpoint: corrections of sequences, mismatches and slots.

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
      _percent(r.of_sequences),
      _percent(r.of_mismatches),
      f"{100 * r.of_slots.rate:.2f}",
      f"{r.of_sequences.of:,}",
      f"{r.of_mismatches.of:,}",
    )
  return t


def _percent(value: Rate) -> str:
  if not value.of:
    return "-"
  low, high = 100 * value.low, 100 * value.high
  return f"{100 * value.rate:.2f} {low:.2f}-{high:.2f}"


def draw(checkpoints: list[Checkpoint], path: pathlib.Path) -> None:
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
  whole = path.with_suffix(".tmp")
  with disk_errors(path):
    path.parent.mkdir(exist_ok=True)
    figure.savefig(whole, dpi=110, format="png")
    whole.replace(path)
  plt.close(figure)


@dataclasses.dataclass(frozen=True)
class Findings:
  """Corrections among the predictions of a text's lines.

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
  judgements: tuple[sources_compared.Judgement, ...]
  cases: list[cases.Case]
  searched: int
  sheet: str

  @property
  def table_2(self) -> list[Checkpoint]:
    """The checkpoints by the first source."""
    return self.checkpoints[next(iter(self.tables))]


def show(f: Findings, console: Console) -> None:
  """Prints all tables; those of kinds of words are of the last checkpoint."""
  text, last = f.text, f.table_2[-1].rates
  console.print(
    f"{len(text.sequences):,} lines, {text.num_cut:,} of them cut to"
    f" {text.length} tokens; {text.num_headings:,} headings left out",
    soft_wrap=True,
  )
  console.print(show_checkpoints(f.table_2, next(iter(f.tables))))
  console.print(rates.show_pairs(last.pairs))
  if last.by_speech:
    console.print(rates.show_groups(last.by_speech, "By part of speech"))
  console.print(
    rates.show_groups(last.by_frequency, "By rank of frequency in this text")
  )
  if f.judgements:
    for golds in ("all", "shared"):
      console.print(sources_compared.show_judgements(f.judgements, golds=golds))
  console.print(cases.show(f.cases, f.searched))


def save(
  f: Findings, workdir: pathlib.Path, about: Mapping[str, Any]
) -> list[pathlib.Path]:
  """Writes the files, each under its name once it is whole; returns them.

  The numbers come first: a sheet that is in the way costs no measurement.

  Args:
    workdir: a folder that is there.
    about: what results.json begins with: what was measured.

  Raises:
    DiskError: one could not be written.
  """
  written = [workdir / "results.json", workdir / "cases.json"]
  files.save_json(written[0], {**about, **_numbers(f)})
  files.save_json(written[1], [dataclasses.asdict(case) for case in f.cases])
  if f.sheet:
    written.append(_save_sheet(workdir, f.sheet.encode()))
  if len(f.table_2) > 1:
    written.append(workdir / "plots" / "correction_rates.png")
    draw(f.table_2, written[-1])
  return written


def _save_sheet(workdir: pathlib.Path, sheet: bytes) -> pathlib.Path:
  """Writes it where nobody's judgements are, and says where that was."""
  names = (f"sheet-{number}.csv" for number in itertools.count(2))
  for name in itertools.chain(["sheet.csv"], names):
    path = workdir / name
    with disk_errors(path):
      if not path.exists():
        whole = path.with_suffix(".tmp")
        whole.write_bytes(sheet)
        whole.replace(path)
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
      source: [dataclasses.asdict(at) for at in found]
      for source, found in f.checkpoints.items()
    },
    "judgements": [dataclasses.asdict(j) for j in f.judgements],
  }
