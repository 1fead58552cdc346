"""Tables of results.json: the terminal and the page show the same texts."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import rich.table
from rich import box
from rich.console import Console

NUMBER = re.compile(r"[-+±]?\d|$")  # how numbers and empty cells begin


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of texts."""

  title: str
  rows: Sequence[Mapping[str, str]]  # by column; all have the same columns
  notes: Sequence[str] = ()  # lines below


def print_table(table: Table, console: Console) -> None:
  """Prints a table, with columns of numbers on the right, and its notes."""
  grid = rich.table.Table(
    title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
  )
  for name in table.rows[0]:
    is_number = all(NUMBER.match(row[name]) for row in table.rows)
    grid.add_column(
      name, justify="right" if is_number else "left", overflow="fold"
    )
  for row in table.rows:
    grid.add_row(*row.values())
  console.print(grid)
  for note in table.notes:
    console.print(note, soft_wrap=True)
