"""Summarizes and compares runs, in tables next to published scores.

These are in published.txt, with notes on what limits a comparison.
"""

import dataclasses
import importlib.resources
import re
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from truenegs_jax.finetune.results import Result
from truenegs_jax.models import encoder
from truenegs_jax.report.page import Table
from truenegs_jax.stats.intervals import Comparison, compare_scores
from truenegs_jax.tasks import scoring
from truenegs_jax.tasks.task import SQUAD

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
SQUAD_SCORES = ("squad_em", "squad_f1")
AVERAGE = "average"  # only of all eight tasks
RunsByTask = Mapping[str, Sequence[Result]]
COMPARED = (
  "Means of these and the other runs: 95 % intervals of the difference, by a"
  " paired bootstrap over examples, and by Student's t over examples and runs"
)

SOURCES = {
  "table3": "paper, Table 3",
  "table4": "paper, Table 4",
  "table6": "paper, Table 6",
  "google": "google-research/electra, README",
}
_FILE = importlib.resources.files(__package__) / "published.txt"
_LINES = _FILE.read_text(encoding="utf-8").splitlines()
NOTES = dict(x[2:].split(maxsplit=1) for x in _LINES if x.startswith("* "))


@dataclasses.dataclass(frozen=True)
class PublishedModel:
  """Published scores of one model."""

  name: str  # in the report, "ELECTRA small HC"
  source: str  # the report
  family: str  # "electra" or "bert"
  size: str  # "small", "base" or "large"
  scores: Mapping[str, float]  # by name in GLUE and SQUAD_SCORES
  note: str  # what limits a comparison with these scores


def _parse_row(row: str) -> PublishedModel:
  """Parses a row of published.txt; names begin with family and size."""
  source, note, model = row.split(maxsplit=2)
  name, scores = model.split(": ")
  family, size = re.findall("[a-z]+", name.lower())[:2]
  values = [*map(float, scores.split())]
  columns = SQUAD_SCORES if len(values) == 2 else (*GLUE, *SQUAD_SCORES)
  by_task = dict(zip(columns, values, strict=False))
  text = NOTES[note]
  return PublishedModel(name, SOURCES[source], family, size, by_task, text)


PUBLISHED = tuple(_parse_row(x) for x in _LINES if x[0] not in "#*")


def find_published(
  tasks: Collection[str], *, family: str, width: int
) -> tuple[list[PublishedModel], str]:
  """Returns the published models of that size with scores for any of the tasks.

  If none of the family is published, ELECTRAs are returned. A note says if they
  are another network than one of that family and width; otherwise it is "".
  """
  size = encoder.find_family(width)
  names = {*tasks, *(SQUAD_SCORES if SQUAD in tasks else ())}
  models = [x for x in PUBLISHED if x.size == size and names & set(x.scores)]
  same = [x for x in models if x.family == family]
  others = same or [x for x in models if x.family == "electra"]
  if not others or same and width == encoder.VARIANTS[size]["width"]:
    return others, ""
  network = f"this {family.upper()} of {width:,} units"
  return others, f"All published models are another network than {network}."


def summarize_runs(
  runs: Sequence[Result],
) -> dict[str, dict[str, Any]]:
  """Returns statistics of each metric of the dev set, the main metric first.

  They are over all runs, failed ones included; "sd" is None for one run.
  """
  summaries = {}
  for metric in runs[0].scores["dev"]:
    scores = [run.scores["dev"][metric] for run in runs]
    summaries[metric] = {
      "runs": len(runs),
      "failed": sum(bool(run.failure) for run in runs),
      "median": statistics.median(scores),
      "mean": statistics.fmean(scores),
      "low": min(scores),
      "high": max(scores),
      "sd": statistics.stdev(scores) if len(scores) > 1 else None,  # ddof 1
    }
  return summaries


def average(scores: Mapping[str, float]) -> float | None:
  """Returns the mean over the eight tasks of GLUE; None if one is missing."""
  if not set(GLUE) <= scores.keys():
    return None
  return statistics.fmean(scores[name] for name in GLUE)


def median_run(runs: Sequence[Result]) -> Result:
  """Returns the median run by the main metric; of two, the lower."""
  metric = next(iter(runs[0].scores["dev"]))
  ordered = sorted(runs, key=lambda run: run.scores["dev"][metric])
  return ordered[(len(ordered) - 1) // 2]


def describe_run(result: Result) -> str:
  """Describes a run in one line."""
  texts = [f"FAILED: {result.failure}"] if result.failure else []
  for split, scores in result.scores.items():
    text = format_scores(scores)
    texts.append(text if split == "dev" else f"{split} {text}")
  step = f"step {result.step:,}"
  speed = f"{result.rows_per_s:.1f} rows/s"
  return "; ".join([*texts, f"{step}, {result.secs:,.0f} s, {speed}"])


def format_scores(scores: Mapping[str, float]) -> str:
  """Formats scores as "accuracy 70.34, f1 82.10"."""
  return ", ".join(f"{name} {x:.2f}" for name, x in scores.items())


def make_tables(
  runs_by_task: RunsByTask, compared: Mapping[str, Sequence[Comparison]]
) -> list[Table]:
  """Makes tables of the runs, of published scores and of comparisons."""
  rows = []
  lines = []
  for name, runs in runs_by_task.items():
    notes = dict.fromkeys(note for run in runs for note in run.notes)
    shown = f"{name} *" if notes else name
    for metric, s in summarize_runs(runs).items():
      labels = runs[0].provenance["labels"]
      if metric == "f1" and len(labels) == 2:
        metric = f"f1 of {labels[1]}"
      row = {"task": shown, "metric": metric}
      for statistic, x in s.items():
        digits = 0 if statistic in ("runs", "failed") else 2
        row[statistic] = "" if x is None else f"{x:.{digits}f}"
      rows.append(row)
    lines += [f"* {name}: {note}" for note in notes]
    failed = [run for run in runs if run.failure]
    lines += [f"! {name}, seed {run.seed}: {run.failure}" for run in failed]
  tables = [Table("Dev sets, %", rows, lines)]
  tables += _make_published_tables(runs_by_task)
  if compared:
    tables.append(make_comparisons_table(compared))
  return tables


def _make_published_tables(runs_by_task: RunsByTask) -> Iterator[Table]:
  """Yields medians and published scores in the layout of tables 3 and 4."""
  medians: dict[str, float] = {}
  for task, runs in runs_by_task.items():
    for metric, s in summarize_runs(runs).items():
      name = f"{task}_{metric}" if task == SQUAD else task
      medians.setdefault(name, s["median"])  # of GLUE the main metric
  columns = [name for name in (*GLUE, *SQUAD_SCORES) if name in medians]
  if not columns:
    return  # nothing is published on the user's own task
  if average(medians) is not None:
    columns.append(AVERAGE)
  noted = any(run.notes for runs in runs_by_task.values() for run in runs)
  name = "these runs *" if noted else "these runs"
  scored: list[tuple[str, Mapping[str, float], str]] = [
    (name, medians, "medians")
  ]
  provenance = next(iter(runs_by_task.values()))[0].provenance
  models, note = find_published(
    runs_by_task, family=provenance["family"], width=provenance["width"]
  )
  notes = list(dict.fromkeys(model.note for model in models))
  for x in models:
    source = f"{x.source} ({notes.index(x.note) + 1})"
    scored.append((x.name, x.scores, source))
  rows = []
  for name, scores, source in scored:
    values = {**scores, AVERAGE: average(scores)}
    shown = {n: f"{x:.1f}" for n, x in values.items() if x is not None}
    cells = {n: shown.get(n, "") for n in columns}
    rows.append({"model": name, **cells, "source": source})
  lines = [f"({mark}) {x}" for mark, x in enumerate(notes, start=1)]
  if note:
    lines.append(note)
  yield Table("Medians, and published dev sets", rows, lines)


def compare_results(
  ours: RunsByTask, theirs: RunsByTask
) -> tuple[dict[str, list[Comparison]], list[str]]:
  """Compares the runs of two workdirs on the dev set of each task.

  Returns the comparisons of each task, one per metric, and remarks: tasks that
  cannot be compared, and the notes of `theirs`.
  """
  compared = {}
  remarks = []
  for name, runs in ours.items():
    others = theirs.get(name, [])
    every = [*runs, *others]
    golds = [x.answers["dev"]["golds"] for x in every]
    if others and all(gold == golds[0] for gold in golds):
      answers = [x.answers["dev"]["answers"] for x in every]
      labels = [label for x in every for label in x.provenance["labels"]]
      metrics = [*runs[0].scores["dev"]]
      scores = scoring.score_runs(metrics, golds[0], answers, labels)
      counts = len(runs), len(others)
      compared[name] = [
        compare_scores(metric, x.draw, x.size, runs=counts)
        for metric, x in scores.items()
      ]
      notes = dict.fromkeys(note for run in others for note in run.notes)
      remarks += [f"* {name}, other runs: {note}" for note in notes]
    elif theirs:
      reason = "have other examples" if others else "do not have this task"
      remarks.append(f"{name} is not compared: the other runs {reason}")
  return compared, remarks


def make_comparisons_table(
  compared: Mapping[str, Sequence[Comparison]],
) -> Table:
  """Makes the table of comparisons, by name of what is compared."""
  rows = []
  for name, comparisons in compared.items():
    for x in comparisons:
      row = {"task": name, "metric": x.metric}
      row |= {"these": f"{x.ours:.2f}", "other": f"{x.theirs:.2f}"}
      row["difference"] = f"{x.difference:+.2f}"
      row["examples"] = f"{x.low:+.2f}, {x.high:+.2f}\np {x.p:.3f}"
      row["and runs"] = "one run"
      if x.low_runs is not None:
        interval = f"{x.low_runs:+.2f}, {x.high_runs:+.2f}"
        row["and runs"] = f"{interval}\np {x.p_runs:.3f}"
      rows.append(row)
  return Table(COMPARED, rows)
