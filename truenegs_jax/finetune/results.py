"""Saves, loads, summarizes and compares the results of fine-tuning runs.

<workdir>/<task>/seed-<n>/result.json  one finished run
<workdir>/results.json                 all finished runs, with tables

published.txt has the scores of others, with notes on what limits a comparison.
"""

import collections
import dataclasses
import importlib.resources
import itertools
import math
import pathlib
import re
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from truenegs_jax.models import encoder
from truenegs_jax.report.page import Table
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.runtime.files import read_results
from truenegs_jax.stats.intervals import Comparison, compare_scores
from truenegs_jax.tasks import entities, scoring
from truenegs_jax.tasks.task import SQUAD
from truenegs_jax.workdir import files

MODEL = "model"  # next to a run's result: the export for Hugging Face
# Keys of `Result.provenance` that may differ between the tasks of a workdir.
# The others are equal, as one table and one average are computed from all.
TASK_KEYS = {"labels", "data"}
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
SQUAD_SCORES = ("squad_em", "squad_f1")
TYPE_METRICS = ("f1", "precision", "recall")
AVERAGE = "average"  # only of all eight tasks
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


@dataclasses.dataclass(frozen=True)
class Result:
  """A finished run: one task, fine-tuned with one seed."""

  task: str
  seed: int
  scores: Mapping[str, Mapping[str, float]]  # by split and metric, in percent
  # By split, lists of "keys", "golds" and "answers".
  answers: Mapping[str, Mapping[str, Sequence[Any]]]
  failure: str  # why the run failed, or ""
  step: int  # of the scored parameters
  secs: float  # of training, with compilation
  provenance: Mapping[str, Any]  # config, network, classes, fingerprints


RunsByTask = Mapping[str, Sequence[Result]]


def run_folder(workdir: pathlib.Path, task: str, seed: int) -> pathlib.Path:
  """Returns the folder of a run."""
  return workdir / task / f"seed-{seed}"


def save(workdir: pathlib.Path, result: Result) -> None:
  """Writes the file of a run; its existence marks the run as finished."""
  path = run_folder(workdir, result.task, result.seed) / files.RESULT
  files.save_json(path, dataclasses.asdict(result), indent=None)


def load(workdir: pathlib.Path, task: str, seed: int) -> Result | None:
  """Loads a finished run, or None; raises CheckpointError if it is damaged."""
  path = run_folder(workdir, task, seed) / files.RESULT
  if not path.exists():
    return None
  fix = f"Remove '{path.parent}' and run the same command again."
  with read_results(path, CheckpointError, fix) as values:
    for split in values["answers"].values():  # undoes `finite_or_null`
      answers = split["answers"]
      split["answers"] = [math.nan if x is None else x for x in answers]
    return Result(**values)


def load_all(workdir: pathlib.Path) -> dict[str, list[Result]]:
  """Loads the finished runs of a workdir, by task."""
  by_task: dict[str, list[Result]] = {}
  for path in sorted(workdir.glob(f"{files.SEEDS}/{files.RESULT}")):
    seed = path.parent.name.removeprefix("seed-")
    if seed.isdecimal() and (run := load(workdir, path.parts[-3], int(seed))):
      by_task.setdefault(run.task, []).append(run)
  return by_task


def check_unchanged(
  workdir: pathlib.Path,
  finished: RunsByTask,
  now: Mapping[str, Any],
  *,
  task: str = "",
) -> None:
  """Refuses another config, weights or data than those of finished runs.

  Args:
    workdir: that of the finished runs, for messages.
    finished: all runs that `load_all` found.
    now: entries of `Result.provenance`; only these are compared.
    task: the task of `now`, without which TASK_KEYS are not compared.
  """
  for run in itertools.chain.from_iterable(finished.values()):
    changes: list[files.Change] = []
    for key in now.keys() - (set() if run.task == task else TASK_KEYS):
      saved = run.provenance[key]
      if key == files.CONFIG:
        changes += files.find_fixed_changes(saved, now[key])
      else:
        changes += files.find_changes({key: saved}, {key: now[key]})
    if changes:
      lines = "\n  ".join(map(str, sorted(changes)))
      raise CheckpointError(
        f"'{workdir}' has runs of {run.task} with another config, other weights"
        f" or data. Differences (saved -> now):\n  {lines}\nPass"
        " --workdir=runs/NAME for new runs, or restore the saved values."
      )


@dataclasses.dataclass(frozen=True)
class PublishedModel:
  """Published scores of one model."""

  name: str  # in the report, "ELECTRA small HC"
  source: str  # the report
  family: str  # "electra" or "bert"
  size: str  # "small", "base" or "large"
  scores: Mapping[str, float]  # by name in GLUE and SQUAD_SCORES
  note: str  # what limits a comparison with these scores


def _read_published() -> Iterator[PublishedModel]:
  """Reads published.txt; names of models begin with family and size."""
  file = importlib.resources.files(__package__) / "published.txt"
  notes = {}
  for line in file.read_text(encoding="utf-8").splitlines():
    if line.startswith("* "):
      name, text = line[2:].split(maxsplit=1)
      notes[name] = text
    elif not line.startswith("#"):
      source, note, model = line.split(maxsplit=2)
      name, scores = model.split(": ")
      family, size = re.findall("[a-z]+", name.lower())[:2]
      values = [*map(float, scores.split())]
      columns = SQUAD_SCORES if len(values) == 2 else (*GLUE, *SQUAD_SCORES)
      by_task = dict(zip(columns, values, strict=False))
      yield PublishedModel(
        name, SOURCES[source], family, size, by_task, notes[note]
      )


PUBLISHED = tuple(_read_published())


def find_size(width: int) -> str:
  """Returns the released size of that width: "small", "base" or "large"."""
  if width < 768:
    return "small"
  return "base" if width < 1024 else "large"


def find_published(
  tasks: Collection[str], *, family: str, width: int
) -> tuple[list[PublishedModel], str]:
  """Returns the published models of that size with scores for any of the tasks.

  If none of the family is published, ELECTRAs are returned. A note says if they
  are another network than one of that family and width; otherwise it is "".
  """
  size = find_size(width)
  names = {*tasks, *(SQUAD_SCORES if SQUAD in tasks else ())}
  models = [x for x in PUBLISHED if x.size == size and names & set(x.scores)]
  same = [x for x in models if x.family == family]
  others = same or [x for x in models if x.family == "electra"]
  if not others or same and width == encoder.VARIANTS[size]["width"]:
    return others, ""
  network = f"this {family.upper()} of {width:,} units"
  return others, f"All published models are another network than {network}."


def summarize_runs(runs: Sequence[Result]) -> dict[str, dict[str, Any]]:
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


def format_scores(scores: Mapping[str, float]) -> str:
  """Formats scores as "accuracy 70.34, f1 82.10"."""
  return ", ".join(f"{name} {x:.2f}" for name, x in scores.items())


def make_tables(
  runs_by_task: RunsByTask, compared: Mapping[str, Sequence[Comparison]]
) -> list[Table]:
  """Makes tables of the runs, of published scores and of comparisons."""
  rows = []
  failures = []
  for task, runs in runs_by_task.items():
    labels = runs[0].provenance["labels"]
    for metric, summary in summarize_runs(runs).items():
      if metric == "f1" and len(labels) == 2:
        metric = f"f1 of {labels[1]}"
      row = {"task": task, "metric": metric}
      for statistic, x in summary.items():
        digits = 0 if statistic in ("runs", "failed") else 2
        row[statistic] = "" if x is None else f"{x:.{digits}f}"
      rows.append(row)
    failed = [run for run in runs if run.failure]
    failures += [f"! {task}, seed {run.seed}: {run.failure}" for run in failed]
  tables = [Table("Dev sets, %", rows, failures)]
  tables += _make_types_table(runs_by_task)
  tables += _make_published_table(runs_by_task)
  if compared:
    tables.append(make_comparisons_table(compared))
  return tables


def _make_types_table(runs_by_task: RunsByTask) -> Iterator[Table]:
  """Yields means of the runs by type of entity, of tasks that tag words."""
  for task, runs in runs_by_task.items():
    answers_SxN = [x.answers["dev"]["answers"] for x in runs]
    golds = runs[0].answers["dev"]["golds"]
    if not isinstance(answers_SxN[0][0], list):
      continue
    tags = itertools.chain.from_iterable(golds)
    counts = collections.Counter(x[2:] for x in tags if x.startswith("B-"))
    rows = []
    for kind in sorted(counts):
      golds_of, *answers_of = (
        [entities.keep_type(x, kind) for x in column]
        for column in (golds, *answers_SxN)
      )
      scores = scoring.score_runs(TYPE_METRICS, golds_of, answers_of)
      means = {name: f"{x.by_run().mean():.2f}" for name, x in scores.items()}
      rows.append({"type": kind, "entities": f"{counts[kind]:,}", **means})
    yield Table(f"{task}: dev set by type, means of the runs, %", rows, [])


def _make_published_table(runs_by_task: RunsByTask) -> Iterator[Table]:
  """Yields medians and published scores in the layout of tables 3 and 4."""
  medians: dict[str, float] = {}
  for task, runs in runs_by_task.items():
    for metric, summary in summarize_runs(runs).items():
      name = f"{task}_{metric}" if task == SQUAD else task
      medians.setdefault(name, summary["median"])  # of GLUE the main metric
  columns = [name for name in (*GLUE, *SQUAD_SCORES) if name in medians]
  if not columns:
    return  # nothing is published on the user's own task
  if average(medians) is not None:
    columns.append(AVERAGE)
  provenance = next(iter(runs_by_task.values()))[0].provenance
  models, note = find_published(
    runs_by_task, family=provenance["family"], width=provenance["width"]
  )
  notes = list(dict.fromkeys(model.note for model in models))
  scored: list[tuple[str, Mapping[str, float], str]] = [
    ("these runs", medians, "medians")
  ]
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

  Returns the comparisons of each task, one per metric, and which tasks cannot
  be compared.
  """
  compared = {}
  remarks = []
  for task, runs in ours.items():
    others = theirs.get(task, [])
    every = [*runs, *others]
    golds = [x.answers["dev"]["golds"] for x in every]
    if others and all(gold == golds[0] for gold in golds):
      answers = [x.answers["dev"]["answers"] for x in every]
      labels = [label for x in every for label in x.provenance["labels"]]
      metrics = [*runs[0].scores["dev"]]
      scores = scoring.score_runs(metrics, golds[0], answers, labels)
      counts = len(runs), len(others)
      compared[task] = [
        compare_scores(metric, x.draw, x.size, runs=counts)
        for metric, x in scores.items()
      ]
    elif theirs:
      reason = "have other examples" if others else "do not have this task"
      remarks.append(f"{task} is not compared: the other runs {reason}")
  return compared, remarks


def make_comparisons_table(
  compared: Mapping[str, Sequence[Comparison]],
) -> Table:
  """Makes the table of comparisons, by name of what is compared."""
  rows = []
  for name, comparisons in compared.items():
    for x in comparisons:
      row = {
        "task": name,
        "metric": x.metric,
        "these": f"{x.ours:.2f}",
        "other": f"{x.theirs:.2f}",
        "difference": f"{x.difference:+.2f}",
        "examples": f"{x.low:+.2f}, {x.high:+.2f}\np {x.p:.3f}",
        "and runs": "one run",
      }
      if x.low_runs is not None:
        interval = f"{x.low_runs:+.2f}, {x.high_runs:+.2f}"
        row["and runs"] = f"{interval}\np {x.p_runs:.3f}"
      rows.append(row)
  return Table(COMPARED, rows)
