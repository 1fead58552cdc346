"""Renders runs as one HTML file that needs no network.

A section is a title and blocks; a block is a dict whose `kind` names the
function of app.js that draws it.
"""

import base64
import dataclasses
import datetime
import hashlib
import html
import importlib
import importlib.resources
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from truenegs_jax.config.keys import flatten
from truenegs_jax.report.curves import PANELS, Curve
from truenegs_jax.workdir.files import finite_or_null

SCRIPTS = ("vendor/uPlot.iife.min.js", "vendor/tabulator.min.js", "app.js")
LICENSES = ("vendor/LICENSE.uplot", "vendor/LICENSE.tabulator")
STYLES = ("vendor/uPlot.min.css", "vendor/tabulator.min.css", "style.css")

Block = dict[str, Any]
# Levels of notes.
GOOD, WARNING, ERROR = "good", "warning", "error"
MAX_CHOICES = 12
MAX_WORDS = 8  # shown of a list of synonyms
# Types of a table's columns: TEXT has a filter, CHOICE one of its values.
# MARKED is a sentence with [MASK], of a row with a gold and a prediction; WORDS
# is a list of words, with the prediction marked.
TEXT, CHOICE, NUMBER, PERCENT = "text", "choice", "number", "percent"
MARKED, WORDS = "marked", "words"


@dataclasses.dataclass
class Section:
  """A part of the page, which shows one file; its blocks may be lazy."""

  title: str
  file: str
  blocks: Iterable[Block]


class Measure(NamedTuple):
  """A result by which runs are compared."""

  value: float
  digits: int | None = None  # decimals; None for a cost, compared in percent
  left_out: Sequence[float] = ()  # values without each batch, if known


@dataclasses.dataclass
class Run:
  """One workdir on the page; its config is the saved one."""

  name: str
  path: str
  task: str = ""
  state: str = ""
  sentence: str = ""  # the outcome
  # Pairs of level and text.
  notes: list[tuple[str, str]] = dataclasses.field(default_factory=list)
  facts: dict[str, str] = dataclasses.field(default_factory=dict)
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  curves: list[Curve] = dataclasses.field(default_factory=list)
  sections: list[Section] = dataclasses.field(default_factory=list)
  measures: dict[str, Measure] = dataclasses.field(default_factory=dict)
  # What comparable runs have in common.
  setting: dict[str, Any] = dataclasses.field(default_factory=dict)


def text(value: str) -> Block:
  """Returns a paragraph."""
  return {"kind": "text", "text": value}


def table(title: str, rows: Sequence[Mapping[str, Any]], **types: str) -> Block:
  """Returns a table of rows with equal keys; `types` replace inferred ones."""
  columns = [
    {"title": name, "type": types.get(name) or _infer_type(name, rows)}
    for name in (rows[0] if rows else ())
  ]
  cells = [[*row.values()] for row in rows]
  return {"kind": "table", "title": title, "columns": columns, "rows": cells}


def _infer_type(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
  values = [row[name] for row in rows if row[name] is not None]
  if any(isinstance(x, list | tuple) for x in values):
    return WORDS
  if not any(isinstance(x, str) for x in values):
    return NUMBER
  return CHOICE if len({*values}) <= MAX_CHOICES else TEXT


def format_number(value: float) -> str:
  """Returns a number without an exponent: "61,440", "4.31"."""
  return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def format_estimate(
  value: float, error: float, digits: int, *, sign: str = ""
) -> str:
  """Returns a value with its standard error, unless that is unknown: inf."""
  text = f"{value:{sign}.{digits}f}"
  return text if math.isinf(error) else f"{text} ± {error:.{digits}f}"


def abridge(words: Sequence[str], first: str) -> list[str]:
  """Returns MAX_WORDS words, beginning with `first`, and "+N more"."""
  order = sorted(words, key=lambda word: word != first)
  rest = len(order) - MAX_WORDS
  return order[:MAX_WORDS] + ([f"+{rest} more"] if rest > 0 else [])


def describe_search(searched: int, corrected: int, shown: int) -> str:
  """Describes a search for corrections, for the page and for a terminal."""
  if not corrected:
    return f"No corrections found in {searched:,} predictions."
  return (
    f"{corrected:,} of {searched:,} predictions are corrected (taken out of the"
    f" loss); {shown:,} are shown."
  )


def bars(title: str, counts: Iterable[tuple[str, float]]) -> Block:
  """Returns horizontal bars with their labels."""
  return {"kind": "bars", "title": title, "rows": [*map(list, counts)]}


def dots(title: str, unit: str, groups: Sequence[Mapping[str, Any]]) -> Block:
  """Returns a chart with a line of dots for each group.

  A group has a `label`, `points`, and for more than one point `median`, and
  `low` and `high` of an interval.
  """
  return {"kind": "dots", "title": title, "unit": unit, "groups": [*groups]}


def render(runs: Sequence[Run], compared: Iterable[Block] = ()) -> str:
  """Returns the page, with blocks that compare the runs."""
  data = {
    "version": importlib.import_module("truenegs_jax").__version__,
    "date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
    "panels": PANELS,
    "compared": [*compared],
    "runs": [
      dataclasses.asdict(dataclasses.replace(run, measures={}))
      | {"config": [*flatten(run.config).items()]}
      for run in runs
    ],
  }
  # In a script element only "<" could end it or begin a comment.
  text = json.dumps(finite_or_null(data), ensure_ascii=False, allow_nan=False)
  text = text.replace("<", "\\u003c")
  scripts = [*map(_read, SCRIPTS)]
  digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
  hashes = " ".join(f"'sha256-{base64.b64encode(x).decode()}'" for x in digests)
  title = html.escape(", ".join(run.name for run in runs))
  parts = {
    "TITLE": title.replace("{", "&#123;"),  # no name of a part
    "POLICY": f"default-src 'none'; script-src {hashes}; style-src"
    " 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'",
    "STYLES": "".join(f"<style>{_read(name)}</style>" for name in STYLES),
    "LICENSES": "".join(f"<!--\n{_read(name)}-->" for name in LICENSES),
    "SCRIPTS": "".join(f"<script>{script}</script>" for script in scripts),
    "DATA": text,
  }
  page = _read("template.html")
  for name, part in parts.items():  # DATA, which could have a name, is last
    page = page.replace(f"{{{{{name}}}}}", part, 1)
  return page


def _read(name: str) -> str:
  folder = importlib.resources.files("truenegs_jax.report")
  return folder.joinpath(name).read_text(encoding="utf-8")
