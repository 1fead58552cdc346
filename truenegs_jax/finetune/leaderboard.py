"""Prints tables of fine-tuning results next to published ones.

Published are rows of the paper's tables 3 and 4 and of other reports of
ELECTRA, for dev sets, in percent: Matthews' correlation for CoLA, Spearman's
for STS-B, accuracy for other tasks of GLUE (MNLI matched), and SQuAD v1.1.
"""

import dataclasses
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from truenegs_jax.finetune import config_checks
from truenegs_jax.finetune.bootstrap import Comparison
from truenegs_jax.finetune.results import Result

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
SQUAD = ("squad_em", "squad_f1")
AVERAGE = "average"  # only of all eight tasks
RECORD_FIELDS = ("step", "split", "time")  # not scores

TABLE_3, TABLE_4 = "paper, Table 3", "paper, Table 4"
GOOGLE = "google-research/electra, README"
COMMUNITY = "richarddwang/electra_pytorch, README"
NVIDIA = "NVIDIA/DeepLearningExamples, TensorFlow2 ELECTRA"

BEST_RUNS = "runs not stated, probably the best of several"
LENGTH_512 = f"{BEST_RUNS}; another pre-training than Table 3's, at length 512"
COPIED = (
  "probably copied: task by task the numbers of Google's ELECTRA-Small-OWT;"
  " if HC and SR are each the best of several runs, about 1.0 too low beside"
  " them on average"
)
COPIED_SQUAD = (
  "EM probably copied: it is Google's for ELECTRA-Small++, trained on more data"
)
RELEASED = "Google's weights, trained on more data and for longer"
REPEATED = (
  "one pre-training on OpenWebText, mean of 10 runs, whose standard deviation"
  " is 0.1 (QQP) to 1.9 (RTE), CoLA's 1.3. 14 pre-trainings, each"
  " scored by the best of 10 runs of every task, average 81.38 (sd 0.57, 80.42"
  " to 82.23)"
)
FAILED = (
  "a user's pre-training on OpenWebText that went wrong: its generator was as"
  " wide as the discriminator; with 1/4 of that it was competitive"
)


@dataclasses.dataclass(frozen=True)
class PublishedModel:
  """Published scores of one model.

  Attributes:
    name: name in the report, "ELECTRA small HC".
    source: the report.
    family, size: "electra" or "bert"; "small", "base" or "large".
    scores: reported scores, by name in GLUE and SQUAD.
    note: what limits a comparison with these scores.
  """

  name: str
  source: str
  family: str
  size: str
  scores: Mapping[str, float]
  note: str


def _row(
  name: str, source: str, scores: str, note: str = BEST_RUNS
) -> PublishedModel:
  """Parses a row: scores in the order of GLUE and SQUAD, "-" for none.

  The name begins with family and size. Two scores alone are SQUAD's.
  """
  family, size = name.lower().replace("+", "").replace(",", "").split()[:2]
  values = scores.split()
  names = SQUAD if len(values) < 3 else (*GLUE, *SQUAD)
  by_task = {
    n: float(x) for n, x in zip(names, values, strict=False) if x != "-"
  }
  return PublishedModel(name, source, family, size, by_task, note)


PUBLISHED = (
  _row("BERT base", TABLE_3, "61.1 93.0 86.8 87.1 90.8 84.7 91.4 67.9"),
  _row("BERT base HC", TABLE_3, "62.9 93.2 87.5 87.4 90.9 84.9 91.5 69.3"),
  _row("BERT base SR", TABLE_3, "61.2 93.5 89.0 87.5 90.9 84.8 91.6 68.6"),
  _row("BERT large", TABLE_3, "61.7 93.7 88.5 90.1 91.3 86.7 92.4 72.9"),
  _row("BERT large HC", TABLE_3, "62.3 93.4 89.0 90.5 91.5 87.0 93.0 73.7"),
  _row("BERT large SR", TABLE_3, "62.3 94.2 89.2 90.1 91.4 87.0 92.8 74.0"),
  _row(
    "ELECTRA small", TABLE_3, "56.8 88.3 87.4 86.8 88.3 78.9 87.9 68.5", COPIED
  ),
  _row("ELECTRA small HC", TABLE_3, "62.0 89.8 87.0 86.7 89.0 80.4 88.0 67.9"),
  _row("ELECTRA small SR", TABLE_3, "61.1 90.1 89.5 87.0 89.4 80.8 88.8 68.6"),
  _row("ELECTRA base", TABLE_3, "68.3 95.3 90.9 91.3 91.7 88.5 93.0 82.3"),
  _row("ELECTRA base HC", TABLE_3, "70.9 95.6 91.2 91.3 92.0 88.7 93.6 83.8"),
  _row("ELECTRA base SR", TABLE_3, "70.4 95.4 90.4 91.2 91.9 89.1 93.4 84.8"),
  _row("ELECTRA small", TABLE_4, "75.8 83.9", COPIED_SQUAD),
  _row("ELECTRA small HC", TABLE_4, "77.7 85.6", LENGTH_512),
  _row("ELECTRA small SR", TABLE_4, "76.0 84.2", LENGTH_512),
  _row("ELECTRA base", TABLE_4, "85.1 91.6"),
  _row("ELECTRA base HC", TABLE_4, "85.7 92.1"),
  _row("ELECTRA base SR", TABLE_4, "85.6 92.0"),
  _row(
    "ELECTRA small OWT",
    GOOGLE,
    "56.8 88.3 87.4 86.8 88.3 78.9 87.9 68.5",
    "one pre-training on OpenWebText",
  ),
  _row(
    "ELECTRA small",
    COMMUNITY,
    "58.72 88.03 86.04 86.16 88.63 80.4 87.45 67.46",
    REPEATED,
  ),
  _row(
    "ELECTRA small, generator 1",
    "google-research/electra, issue 73",
    "51.0 85.2 - - - 75.0 - - 61.0 70.1",
    FAILED,
  ),
  _row(
    "ELECTRA small++",
    GOOGLE,
    "57.0 91.2 88.0 87.5 89.0 81.3 88.4 66.7 75.8",
    RELEASED,
  ),
  _row(
    "ELECTRA base++",
    GOOGLE,
    "67.7 95.1 89.5 91.2 91.5 88.8 93.2 82.7 86.8",
    RELEASED,
  ),
  _row(
    "ELECTRA large",
    GOOGLE,
    "69.1 96.9 90.8 92.6 92.4 90.9 95.0 88.0 89.7",
    RELEASED,
  ),
  _row(
    "ELECTRA base++",
    NVIDIA,
    "87.02 92.72",
    f"{RELEASED}; mean of 5 runs, standard deviation 0.17 and 0.14",
  ),
  _row(
    "ELECTRA base",
    NVIDIA,
    "85.0 90.95",
    "pre-trained on Wikipedia and BooksCorpus, as the paper's",
  ),
)


def find_published(
  tasks: Collection[str], *, family: str, width: int
) -> tuple[PublishedModel, ...]:
  """Returns the published models of that size with scores for any of the tasks.

  Args:
    tasks: names in GLUE, or "squad".
    family: "electra" or "bert".
    width: hidden size of the network.
  """
  size = config_checks.model_size(width)
  names = {*tasks, *(SQUAD if config_checks.SQUAD in tasks else ())}
  return tuple(
    model
    for model in PUBLISHED
    if (model.family, model.size) == (family, size)
    and names & set(model.scores)
  )


@dataclasses.dataclass(frozen=True)
class Summary:
  """Statistics of a metric over all runs of a task, with failed ones.

  Attributes:
    runs, failed: number of runs, and of failed ones among them.
    median, mean, low, high: over all runs; low and high are the extremes.
    sd: standard deviation between runs (ddof 1); None for one run.
  """

  runs: int
  failed: int
  median: float
  mean: float
  low: float
  high: float
  sd: float | None


def summarize_scores(
  scores: Sequence[float], failures: Sequence[str]
) -> Summary:
  """Summarizes the scores of the runs of a task.

  Args:
    scores: score of each run, in percent.
    failures: why each run failed, or "".
  """
  return Summary(
    runs=len(scores),
    failed=sum(map(bool, failures)),
    median=statistics.median(scores),
    mean=statistics.fmean(scores),
    low=min(scores),
    high=max(scores),
    sd=statistics.stdev(scores) if len(scores) > 1 else None,
  )


def summarize_runs(runs: Sequence[Result]) -> dict[str, Summary]:
  """Summarizes each metric of the dev set, the main metric first."""
  failures = [run.failure for run in runs]
  return {
    metric: summarize_scores([r.scores["dev"][metric] for r in runs], failures)
    for metric in runs[0].scores["dev"]
  }


def average(
  scores: Mapping[str, float], tasks: Sequence[str] = GLUE
) -> float | None:
  """Returns the mean over tasks, as in table 3; None if one is missing."""
  if not all(name in scores for name in tasks):
    return None
  return statistics.fmean(scores[name] for name in tasks)


def median_run(runs: Sequence[Result]) -> Result:
  """Returns the median run by the main metric; of two, the lower."""
  metric = next(iter(runs[0].scores["dev"]))
  ordered = sorted(runs, key=lambda run: run.scores["dev"][metric])
  return ordered[(len(ordered) - 1) // 2]


def describe_run(result: Result) -> str:
  """Describes a run in one line."""
  others = [
    f"{split} {format_scores(values)}"
    for split, values in result.scores.items()
    if split != "dev"
  ]
  failed = f"FAILED: {result.failure}; " if result.failure else ""
  speed = (
    f"step {result.step:,}, {result.secs:,.0f} s,"
    f" {result.rows_per_s:.1f} rows/s"
  )
  return failed + "; ".join(
    [format_scores(result.scores["dev"]), *others, speed]
  )


def format_scores(scores: Mapping[str, Any]) -> str:
  """Formats scores as "accuracy 70.34, f1 82.10"."""
  return ", ".join(
    f"{name} {value:.2f}"
    for name, value in scores.items()
    if name not in RECORD_FIELDS
  )


def print_tables(
  runs_by_task: Mapping[str, Sequence[Result]],
  compared: Mapping[str, Sequence[Comparison]],
  console: Console,
) -> None:
  """Prints statistics of the runs, published scores and comparisons."""
  console.print(_seeds_table(runs_by_task))
  for name, runs in runs_by_task.items():
    for note in _notes(runs):
      console.print(f"* {name}: {note}", soft_wrap=True)
    for run in runs:
      if run.failure:
        console.print(f"! {name}, seed {run.seed}: {run.failure}")
  _show_published(runs_by_task, console)
  if compared:
    console.print(_comparisons_table(compared))


def _notes(runs: Sequence[Result]) -> list[str]:
  """Returns the distinct notes of all runs."""
  return list(dict.fromkeys(note for run in runs for note in run.notes))


def _table(title: str, left: Iterable[str], right: Iterable[str]) -> Table:
  table = Table(title=title, title_justify="left")
  for name in left:
    table.add_column(name)
  for name in right:
    table.add_column(name, justify="right")
  return table


def _seeds_table(runs_by_task: Mapping[str, Sequence[Result]]) -> Table:
  columns = ("runs", "failed", "median", "mean", "low", "high", "sd")
  table = _table("Dev sets, %", ("task", "metric"), columns)
  for task, runs in runs_by_task.items():
    shown = f"{task} *" if _notes(runs) else task
    for metric, s in summarize_runs(runs).items():
      values = (f"{x:.2f}" for x in (s.median, s.mean, s.low, s.high))
      sd = "" if s.sd is None else f"{s.sd:.2f}"
      table.add_row(shown, metric, str(s.runs), str(s.failed), *values, sd)
      shown = ""
  return table


def _show_published(
  runs_by_task: Mapping[str, Sequence[Result]], console: Console
) -> None:
  """Prints medians and published scores in the layout of tables 3 and 4."""
  scores: dict[str, float] = {}
  for task, runs in runs_by_task.items():
    for metric, s in summarize_runs(runs).items():
      is_squad = task == config_checks.SQUAD
      scores.setdefault(f"{task}_{metric}" if is_squad else task, s.median)
  names = [n for n in (*GLUE, *SQUAD) if n in scores]
  if not names:
    return  # nothing is published on the user's own task
  averaged = [AVERAGE] if set(GLUE) <= set(names) else []
  table = _table(
    "Medians, and published dev sets", ["model"], [*names, *averaged]
  )
  table.add_column("source")

  def add_row(name: str, scores: Mapping[str, float], source: str) -> None:
    mean = average(scores)
    values = scores if mean is None else {**scores, AVERAGE: mean}
    shown = (
      f"{values[n]:.1f}" if n in values else "" for n in (*names, *averaged)
    )
    table.add_row(name, *shown, source)

  counts = sorted({len(runs) for runs in runs_by_task.values()})
  runs_of_each = " to ".join(map(str, (counts[0], counts[-1])[: len(counts)]))
  star = " *" if any(map(_notes, runs_by_task.values())) else ""
  add_row(f"these runs{star}", scores, f"median of {runs_of_each}")
  first = next(iter(runs_by_task.values()))[0]
  family, width = first.provenance["family"], first.provenance["width"]
  # No small BERT is published, so ELECTRA of the same size is shown.
  models = find_published(
    runs_by_task, family=family, width=width
  ) or find_published(runs_by_task, family="electra", width=width)
  notes = list(dict.fromkeys(model.note for model in models))
  for model in models:
    source = f"{model.source} ({notes.index(model.note) + 1})"
    add_row(model.name, model.scores, source)
  console.print(table)
  for mark, note in enumerate(notes, start=1):
    console.print(f"({mark}) {note}", soft_wrap=True)


def _comparisons_table(compared: Mapping[str, Sequence[Comparison]]) -> Table:
  table = _table(
    "Means of these and the other runs: 95 % intervals of the difference by a"
    " paired bootstrap over examples, and over examples and runs",
    ("task", "metric"),
    ("these", "other", "difference", "examples", "p", "and runs", "p"),
  )
  for task, rows in compared.items():
    for number, x in enumerate(rows):
      has_runs = x.low_runs is not None
      table.add_row(
        "" if number else task,
        x.metric,
        f"{x.ours:.2f}",
        f"{x.theirs:.2f}",
        f"{x.difference:+.2f}",
        f"{x.low:+.2f} to {x.high:+.2f}",
        f"{x.p:.3f}",
        f"{x.low_runs:+.2f} to {x.high_runs:+.2f}" if has_runs else "one run",
        f"{x.p_runs:.3f}" if has_runs else "",
      )
  return table
