"""Renders runs as one HTML file that needs no network and no script.

page.html and parts.html are its templates, in which Jinja escapes every value:
no text of a run is markup. The terminal shows the same tables.
"""

import dataclasses
import datetime
import functools
import importlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import rich.table
from rich import box
from rich.console import Console

from truenegs_jax.config.keys import flatten
from truenegs_jax.report import curves as curves_lib

# Levels of notes.
GOOD = "good"
WARNING = "warning"
ERROR = "error"
MAX_WORDS = 8  # shown of a list of synonyms
MANY = 8  # curves, whose groups share one legend
NUMBER = re.compile(r"[-+±]?\d|$")  # how numbers and empty cells begin


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of texts, in results.json, on the page and in the terminal."""

  title: str
  rows: Sequence[Mapping[str, str]]  # by column; all have the same columns
  notes: Sequence[str] = ()  # lines below


class Section(NamedTuple):
  """A part of the page."""

  title: str
  blocks: Sequence[str]  # HTML, or the text of a paragraph


@dataclasses.dataclass
class Run:
  """One workdir on the page; its config is the saved one."""

  name: str
  path: str
  task: str = ""
  state: str = ""
  sentence: str = ""  # the outcome
  # Columns of the terminal's table: step, loss, rate, time left.
  progress: dict[str, str] = dataclasses.field(default_factory=dict)
  # Pairs of level and text.
  notes: list[tuple[str, str]] = dataclasses.field(default_factory=list)
  facts: dict[str, str] = dataclasses.field(default_factory=dict)
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  curves: list[curves_lib.Curve] = dataclasses.field(default_factory=list)
  sections: list[Section] = dataclasses.field(default_factory=list)
  measures: dict[str, float] = dataclasses.field(default_factory=dict)


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


def format_number(value: float | None) -> str:
  """Returns a number in four digits, or a whole one: "4.312", "61,440"."""
  if value is None or not math.isfinite(value):
    return "–"
  if value == int(value) or abs(value) >= 1_000:
    return f"{value:,.0f}"
  return f"{value:.4g}"


def format_estimate(value: float, error: float, digits: int) -> str:
  """Returns a value and its error, unless that is unknown: inf.

  The error is what the text around it names: a standard error, or half of an
  interval.
  """
  shown = f"{value:.{digits}f}"
  return shown if math.isinf(error) else f"{shown} ± {error:.{digits}f}"


def abridge(words: Sequence[str], first: str) -> list[str]:
  """Returns MAX_WORDS words, beginning with `first`, and "+N more"."""
  order = sorted(words, key=lambda word: word != first)
  rest = len(order) - MAX_WORDS
  return order[:MAX_WORDS] + ([f"+{rest} more"] if rest > 0 else [])


def describe_search(searched: int, corrected: int, shown: int) -> str:
  """Counts the synonyms among predictions, for the page and for a terminal."""
  if not corrected:
    return f"None of {searched:,} predictions is a synonym of the hidden word."
  return (
    f"{corrected:,} of {searched:,} predictions are synonyms of the hidden"
    f" word; {shown:,} are shown."
  )


def table(title: str, rows: Iterable[Mapping[str, Any]]) -> str:
  """Returns the HTML of a table of rows with equal keys."""
  return _load_parts().table(title, [dict(row) for row in rows])


def show_tables(tables: Iterable[Mapping[str, Any]]) -> Iterator[str]:
  """Yields tables that a results.json has, with the notes below each."""
  for saved in tables:
    yield table(saved["title"], saved["rows"])
    yield from saved["notes"]


def mark(sentence: str, gold: str, prediction: str) -> str:
  """Returns the HTML of a sentence with gold word and prediction at [MASK]."""
  before, mask, after = sentence.partition("[MASK]")
  if not mask:  # of another vocabulary
    return before
  return _load_parts().marked(before, gold, prediction, after)


def render(runs: Sequence[Run], compared: Sequence[str] = ()) -> str:
  """Returns the page, with blocks that compare the runs."""
  curves = [curve for run in runs for curve in run.curves]
  sections = [
    Section("At a glance", [_load_parts().cards(runs)]),
    Section("Compared", compared),
    Section("Curves", _show_curves(curves)),
  ]
  for run in runs:
    start = f"{run.name}: " if len(runs) > 1 else ""
    sections += [Section(start + x.title, x.blocks) for x in run.sections]
  return (
    _load_templates()
    .get_template("page.html")
    .render(
      title=", ".join(run.name for run in runs),
      sections=[x for x in sections if x.blocks],
      date=datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
      version=importlib.import_module("truenegs_jax").__version__,
    )
  )


def _show_curves(curves: Sequence[curves_lib.Curve]) -> list[str]:
  """Returns the charts; those of many curves share one legend."""
  charts = curves_lib.make_charts(curves)
  groups = curves_lib.list_groups(curves) if len(curves) > MANY else {}
  return [_load_parts().charts(charts, groups)] if charts else []


@functools.cache
def _load_templates() -> Any:
  import jinja2  # slow to import

  templates = jinja2.Environment(
    autoescape=True,
    loader=jinja2.PackageLoader(__package__, ""),
    lstrip_blocks=True,
    trim_blocks=True,
  )
  templates.filters |= {"number": format_number, "values": _list_values}
  return templates


def _load_parts() -> Any:
  """Returns the macros of parts.html, which return HTML."""
  return _load_templates().get_template("parts.html").module


def _list_values(config: Mapping[str, Any]) -> dict[str, str]:
  """Returns the values of a config as JSON, by their keys."""
  return {name: json.dumps(x) for name, x in flatten(config).items()}
