"""Tables of numbers, rendered for a terminal, CSV and LaTeX."""

import csv
import dataclasses
import io
import re
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

ARM, DIFFERENCE, PAPER = "arm", "difference", "paper"  # kinds of rows
CSV_FIELDS = (
  *("table", "row", "kind", "column"),
  *("value", "half_width", "runs"),
)
STYLES = {PAPER: "dim", DIFFERENCE: "italic"}
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
    half_width: half its interval of 95 %; None without one.
    runs: which runs there are, as in "2/3", if some lack; else "".
  """

  value: float | int | None = None
  half_width: float | None = None
  runs: str = ""

  def lines(self, kind: str, digits: int) -> list[str]:
    """Returns its number, interval and runs, "" for those that it lacks."""
    sign = "+" if kind == DIFFERENCE else ""
    form = "," if isinstance(self.value, int) else f"{sign}.{digits}f"
    if self.value is None:
      return [self.runs, "", ""]
    return [
      f"{self.value:{form}}",
      "" if self.half_width is None else f"±{self.half_width:.{digits}f}",
      self.runs,
    ]

  @property
  def excludes_zero(self) -> bool:
    """Whether the interval is on one side of zero."""
    if self.value is None or self.half_width is None:
      return False
    return abs(self.value) > self.half_width


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of an ARM, of its DIFFERENCE from the baseline, or of the PAPER."""

  label: str
  kind: str
  cells: Sequence[Cell]

  def lines(self, digits: int) -> list[list[str]]:
    """Returns the texts of each line of the row, the label first."""
    texts = zip(*(x.lines(self.kind, digits) for x in self.cells), strict=True)
    label = self.kind if self.kind == DIFFERENCE else self.label
    first, *more = map(list, texts)
    return [[label, *first], *(["", *line] for line in more if any(line))]


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


def to_terminal(x: Layout) -> Group:
  """Renders a table for a rich console; narrow, to fit one of 80 columns."""
  table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
  table.add_column("")
  for name in x.columns:
    lines = re.sub("[ _]", "\n", name)
    table.add_column(lines, justify="right", no_wrap=True)
  for row in x.rows:
    for line in row.lines(x.digits):
      table.add_row(*line, style=STYLES.get(row.kind))
  return Group(Text(x.title, style="bold"), table, *map(Text, x.notes), "")


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
        writer.writerow([*place, *dataclasses.astuple(cell)])
  return file.getvalue()


def to_latex(x: Layout) -> str:
  """Renders a table as LaTeX that needs no package, over two columns of text.

  Differences whose interval excludes zero are bold.
  """
  lines = [
    r"\begin{table*}\centering\small\setlength{\tabcolsep}{3pt}",
    rf"\caption{{{escape_latex(x.title)}}}\label{{{x.name}}}",
    rf"\begin{{tabular}}{{l{'r' * len(x.columns)}}}",
    r"\hline",
    _latex_row(["", *map(escape_latex, x.columns)]),
    r"\hline",
  ]
  for row in x.rows:
    for i, (label, *texts) in enumerate(row.lines(x.digits)):
      bold = i == 0 and row.kind == DIFFERENCE
      cells = (
        _latex_number(text, is_bold=bold and cell.excludes_zero)
        for text, cell in zip(texts, row.cells, strict=True)
      )
      lines.append(_latex_row([escape_latex(label), *cells]))
  lines += [r"\hline", r"\end{tabular}"]
  lines += [rf"\par {escape_latex(note)}" for note in x.notes]
  return "\n".join([*lines, r"\end{table*}", ""])


def escape_latex(text: str) -> str:
  """Escapes the characters that LaTeX would interpret."""
  return "".join(LATEX.get(char, char) for char in text)


def _latex_row(cells: Sequence[str]) -> str:
  return " & ".join(cells) + r" \\"


def _latex_number(text: str, *, is_bold: bool) -> str:
  """Renders a number in mathematics, which has minus signs; "" stays."""
  text = text.replace("±", r"\pm ").replace(",", "{,}")
  if is_bold:
    text = rf"\mathbf{{{text}}}"
  return f"${text}$" if text else ""
