"""Tables of numbers, rendered for a terminal and as CSV."""

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
