"""Renders runs as one HTML file that needs no network.

Texts, tables, bars and dots are HTML that is made here; charts.js draws the
curves only. Whatever is no `Html` is escaped, so no text of a run is markup.
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
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from truenegs_jax.config.keys import flatten
from truenegs_jax.report.curves import PANELS, Curve
from truenegs_jax.workdir import files

SCRIPTS = ("vendor/uPlot.iife.min.js", "charts.js")
STYLES = ("vendor/uPlot.min.css", "style.css")
# Levels of notes.
GOOD, WARNING, ERROR = "good", "warning", "error"
MAX_WORDS = 8  # shown of a list of synonyms
LONG = 20  # characters of a cell whose lines may be broken
COLORS = 6  # of style.css, each with dashes of its own
MANY = 8  # curves, whose last values are shown by group
HINT = (
  "Lines are training, dots are held-out rows or dev sets, dotted lines are"
  " guesses. Drag to zoom, double-click to reset."
)


class Html(str):
  """Text that is HTML already; what is added to it is not."""


class Section(NamedTuple):
  """A part of the page, which shows one file; its blocks may be lazy."""

  title: str
  file: str
  blocks: Iterable[Html]


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


def tag(name: str, *children: object, **attributes: Any) -> Html:
  """Returns an element; what is no Html is escaped, None is left out."""
  texts = [
    f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
    for key, value in attributes.items()
    if value is not None
  ]
  inner = [x if isinstance(x, Html) else html.escape(str(x)) for x in children]
  return Html(f"<{name}{''.join(texts)}>{''.join(inner)}</{name}>")


def text(value: str) -> Html:
  """Returns a paragraph."""
  return tag("p", value)


def figure(title: str, *children: Html) -> Html:
  """Returns a figure with a caption, if there is a title."""
  captions = [tag("figcaption", title)] if title else []
  return tag("figure", *captions, *children)


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> Html:
  """Returns a table of rows with equal keys; numbers are on the right."""
  names = list(rows[0]) if rows else []
  texts = {name for row in rows for name in row if isinstance(row[name], str)}

  def cell(element: str, name: str, value: Any) -> Html:
    kind = "long" if len(str(value)) > LONG else None
    if name not in texts:
      kind = "number"
      value = value if element == "th" else format_number(value)
    scope = "col" if element == "th" else None
    shown = "" if value is None else value
    return tag(element, shown, class_=kind, scope=scope)

  head = tag("tr", *(cell("th", name, name) for name in names))
  body = [tag("tr", *(cell("td", *x) for x in row.items())) for row in rows]
  drawn = tag("table", tag("thead", head), tag("tbody", *body))
  region = {"role": "region", "aria_label": title or "Table", "tabindex": 0}
  return figure(title, tag("div", drawn, class_="scroll", **region))


def bars(title: str, counts: Iterable[Sequence[Any]]) -> Html:
  """Returns horizontal bars of pairs of a label and a number."""
  rows = [*counts]
  most = max((x for _, x in rows), default=0) or 1
  parts = list[Html]()
  for label, x in rows:
    bar = tag("span", class_="bar", style=f"width: {85 * x / most:.6g}%")
    parts += [tag("dt", label), tag("dd", bar, format_number(x))]
  return figure(title, tag("dl", *parts, class_="bars"))


def dots(title: str, groups: Sequence[Mapping[str, Any]]) -> Html:
  """Returns a chart with a line of dots for each group.

  A group has a `label`, `points`, and for more than one point `median`, and
  `low` and `high` of an interval.
  """
  from matplotlib.ticker import MaxNLocator  # slow to import

  points = [x for group in groups for x in group["points"]]
  ends = [group[x] for group in groups for x in ("low", "high") if x in group]
  ticks = MaxNLocator(5).tick_values(min(points + ends), max(points + ends))
  size = ticks[-1] - ticks[0]

  def put(kind: str, x: float, *children: str, width: float = 0) -> Html:
    style = f"left: {100 * (x - ticks[0]) / size:.6g}%"
    if width:
      style += f"; width: {100 * width / size:.6g}%"
    return tag("span", *children, class_=kind, style=style)

  parts = list[Html]()
  for group in groups:
    drawn = [put("tick", x) for x in ticks]
    if "median" in group:
      width = group["high"] - group["low"]
      drawn.append(put("interval", group["low"], width=width))
      drawn.append(put("median", group["median"]))
    drawn += [put("dot", x) for x in group["points"]]
    value = format_number(group.get("median", group["points"][0]))
    parts += [tag("dt", group["label"]), tag("dd", *drawn)]
    parts.append(tag("dd", value, class_="number"))
  scale = tag("dd", *(put("", x, format_number(x)) for x in ticks))
  return figure(title, tag("dl", *parts, tag("dt"), scale, class_="bars dots"))


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


def render(runs: Sequence[Run], compared: Iterable[Html] = ()) -> str:
  """Returns the page, with blocks that compare the runs."""
  curves = [curve for run in runs for curve in run.curves]
  parts = [
    ("At a glance", [tag("div", *map(_show, runs), class_="glance")]),
    ("Compared", [*compared]),
    ("Curves", _show_curves(curves)),
  ]
  for run in runs:
    start = f"{run.name}: " if len(runs) > 1 else ""
    parts += [(start + x.title, [*x.blocks]) for x in run.sections]
  links = list[Html]()
  sections = list[Html]()
  for i, (title, blocks) in enumerate(x for x in parts if x[1]):
    links.append(tag("a", title, href=f"#section-{i}"))
    heading = tag("h2", title)
    sections.append(tag("section", heading, *blocks, id=f"section-{i}"))
  version = importlib.import_module("truenegs_jax").__version__
  date = datetime.datetime.now().astimezone().isoformat(" ", "minutes")
  scripts = [*map(_read, SCRIPTS)]
  digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
  hashes = " ".join(f"'sha256-{base64.b64encode(x).decode()}'" for x in digests)
  drawn = [dataclasses.asdict(x) for x in curves]
  data = {"curves": drawn, "hasLegend": len(curves) <= MANY}
  encoded = json.dumps(files.finite_or_null(data), allow_nan=False)
  filled = {
    "TITLE": html.escape(", ".join(run.name for run in runs)),
    "POLICY": f"default-src 'none'; script-src {hashes}; style-src"
    " 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'",
    "STYLES": "".join(f"<style>{_read(name)}</style>" for name in STYLES),
    "LINKS": "".join(links),
    "SECTIONS": "\n".join(sections),
    "WRITTEN": f"Written {date} by truenegs_jax {version}.",
    "DATA": encoded.replace("<", "\\u003c"),  # it could end the element
    "LICENSE": f"<!--\n{_read('vendor/LICENSE.uplot')}-->",
    "SCRIPTS": "".join(f"<script>{script}</script>" for script in scripts),
  }
  # What is filled in is not searched for names of parts.
  pieces = _read("template.html").split("@@")
  return "".join(filled[x] if i % 2 else x for i, x in enumerate(pieces))


def _read(name: str) -> str:
  folder = importlib.resources.files("truenegs_jax.report")
  return folder.joinpath(name).read_text(encoding="utf-8")


def _show(run: Run) -> Html:
  """Returns what a run is and how it ended, at a glance."""
  state = tag("span", run.state, class_=f"state {run.state}")
  notes = [
    tag("li", tag("strong", f"{level}: "), note, class_=level)
    for level, note in run.notes
  ]
  config = {k: json.dumps(x) for k, x in flatten(run.config).items()}
  return tag(
    "article",
    tag("h3", run.name, " ", tag("small", run.task), " ", state),
    tag("p", run.sentence, class_="sentence"),
    tag("ul", *notes, class_="notes"),
    _list_facts({**run.facts, "folder": run.path}),
    tag("details", tag("summary", "Config"), _list_facts(config)),
  )


def _list_facts(facts: Mapping[str, str]) -> Html:
  shown = [(tag("dt", k), tag("dd", x)) for k, x in facts.items() if x]
  return tag("dl", *(part for pair in shown for part in pair))


def _show_curves(curves: Sequence[Curve]) -> list[Html]:
  """Returns places for charts, and last values.

  These are beside the names below each chart, unless curves are many.
  """
  groups = dict[str, list[Curve]]()
  for curve in curves:
    name = curve.group if len(curves) > MANY else curve.label
    groups.setdefault(name, []).append(curve)
  places = list[Html]()
  rows = list[dict[str, Any]]()
  for name, title in PANELS.items():
    columns = [x[name] for y in curves for x in y.splits.values() if name in x]
    has_chart = any(len({*x} - {None}) > 1 for x in columns)
    if has_chart:
      more = {"data_field": name, "role": "group", "aria_label": title}
      places.append(figure(title, tag("div", class_="chart", **more)))
    if not has_chart or len(curves) > MANY:
      rows += _list_last(name, groups)
  blocks = list[Html]()
  if places:
    blocks = [tag("p", HINT, class_="hint"), tag("div", *places, class_="grid")]
  if rows and len(curves) > MANY:
    keys = [
      tag("span", tag("span", class_=f"key key-{i % COLORS}"), name)
      for i, name in enumerate(groups)
    ]
    blocks.insert(1, tag("p", *keys, class_="keys"))
    blocks.append(table("Last values, medians of each name", rows))
  elif rows:
    blocks.append(table("Values that have no curve", rows))
  return blocks


def _list_last(
  name: str, groups: Mapping[str, Sequence[Curve]]
) -> Iterator[dict[str, Any]]:
  """Yields the median of the last values of a field, by split and group."""
  for split in files.SPLITS:
    row: dict[str, Any] = {}
    for group, curves in groups.items():
      columns = [x.splits.get(split, {}).get(name, ()) for x in curves]
      last = [[x for x in y if x is not None][-1:] for y in columns]
      values = [x for y in last for x in y]
      row[group] = statistics.median(values) if values else None
    if any(x is not None for x in row.values()):
      yield {"field": PANELS[name], "of": split.replace("_", "-")} | row
