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
  """Prints a table, with columns of numbers on the right, and its notes.

  Without rows, it prints the title.
  """
  if not table.rows:
    console.print(table.title, soft_wrap=True)
    return
  has_lines = any("\n" in x for row in table.rows for x in row.values())
  grid = rich.table.Table(
    title=table.title,
    title_justify="left",
    box=box.SIMPLE_HEAD,
    padding=0,
    pad_edge=False,
    leading=int(has_lines),  # a line between rows of several
  )
  for name in table.rows[0]:
    is_number = all(NUMBER.match(row[name]) for row in table.rows)
    if is_number:
      head = name.replace(" ", "\n")
      grid.add_column(head, justify="right", no_wrap=True)
    else:
      grid.add_column(name, overflow="fold")
  for row in table.rows:
    grid.add_row(*row.values())
  console.print(grid)
  for note in table.notes:
    console.print(note, soft_wrap=True)
