"""Tables of numbers, rendered for a terminal, JSON, CSV and LaTeX."""

import csv
import dataclasses
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from truenegs_jax.finetune.leaderboard import make_table

ARM, DIFFERENCE, PAPER = "arm", "difference", "paper"  # kinds of rows
CSV_FIELDS = (
  *("table", "row", "kind", "column"),
  *("value", "low", "high", "runs"),
)
LATEX = {
  **{char: f"\\{char}" for char in "#$%&_{}"},
  "\\": r"\textbackslash{}",
  "^": r"\textasciicircum{}",
  "~": r"\textasciitilde{}",
  "<": r"\textless{}",
  ">": r"\textgreater{}",
}


@dataclasses.dataclass(frozen=True)
class Cell:
  """A number of a table.

  Attributes:
    value: None if there is none.
    bounds: low and high of its interval of 95 %; empty without one.
    runs: which runs it lacks, as in "2 of 3 seeds"; "" if none.
  """

  value: float | int | None = None
  bounds: tuple[float, ...] = ()
  runs: str = ""

  def texts(self, kind: str, digits: int) -> list[str]:
    """Returns the number, its interval and its runs, if it has them."""
    if self.value is None:
      return [self.runs or "-"]
    if isinstance(self.value, int):
      return [f"{self.value:,}"]
    sign = "+" if kind == DIFFERENCE else ""
    shown = [f"{self.value:{sign}.{digits}f}"]
    if self.bounds:
      texts = (f"{x:{sign}.{digits}f}" for x in self.bounds)
      shown.append(f"({', '.join(texts)})")
    return [*shown, self.runs] if self.runs else shown

  @property
  def excludes_zero(self) -> bool:
    """Whether the interval is on one side of zero."""
    return bool(self.bounds) and (min(self.bounds) > 0 or max(self.bounds) < 0)


@dataclasses.dataclass(frozen=True)
class Row:
  """A row: an ARM, its DIFFERENCE from the baseline, or the PAPER's."""

  label: str
  kind: str
  cells: Sequence[Cell]


@dataclasses.dataclass(frozen=True)
class Layout:
  """A table.

  Attributes:
    name: short name, unique in a study: "table3".
    columns: names of the cells of each row.
    notes: sentences below the table.
    digits: number of decimals.
  """

  name: str
  title: str
  columns: Sequence[str]
  rows: Sequence[Row]
  notes: Sequence[str] = ()
  digits: int = 2


def to_terminal(x: Layout) -> Table:
  """Renders a table for a rich console; intervals are on lines of their own."""
  table = make_table(x.title, [""], x.columns)
  table.caption, table.caption_justify = "\n".join(x.notes), "left"
  styles = {PAPER: "dim"}
  for row in x.rows:
    cells = ["\n".join(cell.texts(row.kind, x.digits)) for cell in row.cells]
    table.add_row(row.label, *cells, style=styles.get(row.kind))
  return table


def to_json(x: Layout) -> dict[str, Any]:
  """Returns a table in JSON's types."""
  return dataclasses.asdict(x)


def to_csv(layouts: Iterable[Layout]) -> str:
  """Renders tables as CSV with one line per number and the fields CSV_FIELDS.

  Numbers have all their digits; what is None is empty.
  """
  file = io.StringIO()
  writer = csv.writer(file)
  writer.writerow(CSV_FIELDS)
  for x in layouts:
    for row in x.rows:
      for column, cell in zip(x.columns, row.cells, strict=True):
        place = x.name, row.label, row.kind, column
        bounds = cell.bounds or ("", "")
        writer.writerow([*place, cell.value, *bounds, cell.runs])
  return file.getvalue()


def to_latex(x: Layout) -> str:
  """Renders a table as LaTeX that needs no package.

  Differences whose interval excludes zero are bold.
  """
  lines = [
    r"\begin{table}",
    rf"\caption{{{escape_latex(x.title)}}}\label{{{x.name}}}",
    rf"\begin{{tabular}}{{l{'r' * len(x.columns)}}}",
    r"\hline",
    _latex_row(["", *map(escape_latex, x.columns)]),
    r"\hline",
  ]
  for row in x.rows:
    cells = [_latex_cell(cell, row.kind, x.digits) for cell in row.cells]
    lines.append(_latex_row([escape_latex(row.label), *cells]))
  lines += [r"\hline", r"\end{tabular}"]
  lines += [rf"\par {escape_latex(note)}" for note in x.notes]
  return "\n".join([*lines, r"\end{table}", ""])


def escape_latex(text: str) -> str:
  """Escapes the characters that LaTeX would interpret."""
  return "".join(LATEX.get(char, char) for char in text)


def _latex_row(cells: Sequence[str]) -> str:
  return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell, kind: str, digits: int) -> str:
  """Renders a cell; numbers between dollars get minus signs, not hyphens."""
  first, *more = (
    re.sub(r"[+-]?\d+\.\d+", r"$\g<0>$", escape_latex(text))
    for text in cell.texts(kind, digits)
  )
  if kind == DIFFERENCE and cell.excludes_zero:
    first = rf"$\mathbf{{{first.strip('$')}}}$"
  return " ".join([first, *(rf"{{\footnotesize {x}}}" for x in more)])
