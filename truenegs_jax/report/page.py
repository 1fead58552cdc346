"""Renders runs as one HTML file that needs no network.

page.html and parts.html are its templates, in which Jinja escapes every value:
no text of a run is markup. charts.js draws the curves.
"""

import base64
import dataclasses
import datetime
import functools
import hashlib
import importlib
import importlib.resources
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from truenegs_jax.config.keys import flatten
from truenegs_jax.report.curves import PANELS, Curve
from truenegs_jax.workdir import files

SCRIPTS = ("vendor/uPlot.iife.min.js", "charts.js")
STYLES = ("vendor/uPlot.min.css", "style.css")
# Levels of notes.
GOOD = "good"
WARNING = "warning"
ERROR = "error"
MAX_WORDS = 8  # shown of a list of synonyms
MANY = 8  # curves, whose groups share one legend


class Section(NamedTuple):
  """A part of the page, which shows one file."""

  title: str
  file: str
  # HTML, or the text of a paragraph; may be lazy.
  blocks: Iterable[str]


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
  # Columns of the terminal's table: step, loss, rate, time left.
  progress: dict[str, str] = dataclasses.field(default_factory=dict)
  # Pairs of level and text.
  notes: list[tuple[str, str]] = dataclasses.field(default_factory=list)
  facts: dict[str, str] = dataclasses.field(default_factory=dict)
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  curves: list[Curve] = dataclasses.field(default_factory=list)
  sections: list[Section] = dataclasses.field(default_factory=list)
  measures: dict[str, Measure] = dataclasses.field(default_factory=dict)
  # What comparable runs have in common.
  setting: dict[str, Any] = dataclasses.field(default_factory=dict)


def format_number(value: float | None) -> str:
  """Returns a number in four digits, or a whole one: "4.312", "61,440"."""
  if value is None or not math.isfinite(value):
    return "–"
  if value == int(value) or abs(value) >= 1_000:
    return f"{value:,.0f}"
  if abs(value) < 1e-5:
    return f"{value:.2e}"
  decimals = 3 - math.floor(math.log10(abs(value)))
  return f"{value:.{decimals}f}".rstrip("0").rstrip(".")


def format_estimate(
  value: float, error: float, digits: int, *, sign: str = ""
) -> str:
  """Returns a value with its standard error, unless that is unknown: inf."""
  shown = f"{value:{sign}.{digits}f}"
  return shown if math.isinf(error) else f"{shown} ± {error:.{digits}f}"


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


def table(title: str, rows: Iterable[Mapping[str, Any]]) -> str:
  """Returns the HTML of a table of rows with equal keys."""
  return _load_parts().table(title, [dict(row) for row in rows])


def mark(before: str, gold: str, prediction: str, after: str) -> str:
  """Returns the HTML of a sentence with a masked word and its prediction."""
  return _load_parts().marked(before, gold, prediction, after)


def render(runs: Sequence[Run], compared: Iterable[str] = ()) -> str:
  """Returns the page, with blocks that compare the runs."""
  curves = [curve for run in runs for curve in run.curves]
  sections = [
    ("At a glance", [_load_parts().cards(runs)]),
    ("Compared", [*compared]),
    ("Curves", _show_curves(curves)),
  ]
  for run in runs:
    start = f"{run.name}: " if len(runs) > 1 else ""
    sections += [(start + x.title, [*x.blocks]) for x in run.sections]
  scripts = [_read(name) for name in SCRIPTS]
  drawn = [dataclasses.asdict(curve) for curve in curves]
  data = {"curves": drawn, "hasLegend": len(curves) <= MANY}
  return (
    _load_templates()
    .get_template("page.html")
    .render(
      title=", ".join(run.name for run in runs),
      policy=_make_policy(scripts),
      styles=[_read(name) for name in STYLES],
      sections=[(title, blocks) for title, blocks in sections if blocks],
      date=datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
      version=importlib.import_module("truenegs_jax").__version__,
      data=files.finite_or_null(data),
      license=_read("vendor/LICENSE.uplot"),
      scripts=scripts,
    )
  )


@functools.cache
def _load_templates() -> Any:
  import jinja2  # slow to import

  templates = jinja2.Environment(
    autoescape=True,
    loader=jinja2.FunctionLoader(_read),
    lstrip_blocks=True,
    trim_blocks=True,
  )
  templates.filters |= {"number": format_number, "values": _list_values}
  templates.policies["json.dumps_kwargs"] = {"allow_nan": False}
  return templates


def _load_parts() -> Any:
  """Returns the macros of parts.html, which return HTML."""
  return _load_templates().get_template("parts.html").module


def _read(name: str) -> str:
  folder = importlib.resources.files("truenegs_jax.report")
  return folder.joinpath(name).read_text(encoding="utf-8")


def _list_values(config: Mapping[str, Any]) -> dict[str, str]:
  """Returns the values of a config as JSON, by their keys."""
  return {name: json.dumps(x) for name, x in flatten(config).items()}


def _make_policy(scripts: Sequence[str]) -> str:
  """Returns a policy by which the page runs these scripts and loads nothing."""
  digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
  hashes = " ".join(f"'sha256-{base64.b64encode(x).decode()}'" for x in digests)
  return (
    f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline';"
    " img-src data:; base-uri 'none'; form-action 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
  )


def _show_curves(curves: Sequence[Curve]) -> list[str]:
  """Returns the places of the charts; those of many curves share one legend."""
  splits = [split for curve in curves for split in curve.splits.values()]
  recorded = {name for x in splits for name in x if {*x[name]} - {None}}
  titles = {name: x for name, x in PANELS.items() if name in recorded}
  groups = dict.fromkeys(x.group for x in curves) if len(curves) > MANY else ()
  return [_load_parts().charts(titles, [*groups])] if titles else []
