"""Tables of fine-tunings: what seeds scored, beside what was published."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console
from rich.table import Table

from truenegs_jax.finetune import bootstrap, config_checks, published
from truenegs_jax.finetune.results import Result
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import scoring

CONSTANT = 0.01  # of the gold scores' range: less than that tells nothing apart


@dataclasses.dataclass(frozen=True)
class Summary:
  """The scores of all runs of one task, failed ones among them.

  Attributes:
    runs, failed: how many there are, and how many of these failed.
    median, mean, low, high: of all the runs; low to high is their range.
    sd: standard deviation of a run (ddof 1); None for one run.
  """

  runs: int
  failed: int
  median: float
  mean: float
  low: float
  high: float
  sd: float | None


def summarize(
  scores: Sequence[float], failures: Sequence[object] = ()
) -> Summary:
  """What the runs of one task scored; nothing is dropped.

  Args:
    scores: percent, one a run.
    failures: one a run, true (a reason) where it failed; empty: none did.

  Raises:
    InputError: no scores, some that are not finite, or not as many failures.
  """
  if not scores or len(failures) not in (0, len(scores)):
    raise InputError(
      f"{len(scores)} scores and {len(failures)} failures: a summary wants both"
      " of every run, and one run at least."
    )
  if not np.isfinite(scores).all():
    raise InputError(
      f"scores {list(scores)}: each has to be finite; score the predictions of"
      " a failed run as they are."
    )
  return Summary(
    runs=len(scores),
    failed=sum(map(bool, failures)),
    median=statistics.median(scores),
    mean=statistics.fmean(scores),
    low=min(scores),
    high=max(scores),
    sd=statistics.stdev(scores) if len(scores) > 1 else None,
  )


def average(
  scores: Mapping[str, float], tasks: Sequence[str] = published.GLUE
) -> float | None:
  """The plain mean over tasks, Table 3's "Average"; None if one is lacking."""
  if not all(name in scores for name in tasks):
    return None
  return statistics.fmean(scores[name] for name in tasks)


def failure(gold_N: ArrayLike, predicted_N: ArrayLike) -> str:
  """Why a run counts as failed, or "": it learned nothing, or broke.

  Args:
    gold_N, predicted_N: classes (int), answers (str) or scores (float).
  """
  gold_N, predicted_N = np.asarray(gold_N), np.asarray(predicted_N)
  is_score = predicted_N.dtype.kind == "f"
  if is_score and not np.isfinite(predicted_N).all():
    return "scores are not finite"
  if is_score and np.ptp(predicted_N) < CONSTANT * np.ptp(gold_N):
    return f"all scores lie within {CONSTANT:.0%} of the gold scores' range"
  if len(set(predicted_N.tolist())) == 1 < len(set(gold_N.tolist())):
    return f"all {len(predicted_N)} predictions are {predicted_N[0].item()!r}"
  return ""


# What is no score in a record of the dev set.
NO_SCORES = ("step", "split", "time")
AVERAGE = "average"  # of all eight tasks; of fewer it compares nothing


def sentence(result: Result) -> str:
  """A run in a line."""
  parts = [listed(result.scores["dev"])]
  for split, values in result.scores.items():
    if split != "dev":
      parts.append(f"{split} {listed(values)}")
  parts.append(
    f"step {result.step:,}, {result.secs:,.0f} s,"
    f" {result.rows_per_s:.1f} rows/s"
  )
  failed = f"FAILED: {result.failure}; " if result.failure else ""
  return failed + "; ".join(parts)


def listed(scores: Mapping[str, Any]) -> str:
  """Scores in words: "accuracy 70.34, f1 82.10"."""
  return ", ".join(
    f"{name} {value:.2f}"
    for name, value in scores.items()
    if name not in NO_SCORES
  )


def summaries(runs: Sequence[Result]) -> dict[str, Summary]:
  """Of each metric of the dev set, the task's own first."""
  failures = [run.failure for run in runs]
  return {
    metric: summarize([r.scores["dev"][metric] for r in runs], failures)
    for metric in runs[0].scores["dev"]
  }


def median_run(runs: Sequence[Result]) -> Result:
  """The run in the middle by the task's own metric; of two, the lower."""
  own = next(iter(runs[0].scores["dev"]))
  ordered = sorted(runs, key=lambda run: run.scores["dev"][own])
  return ordered[(len(ordered) - 1) // 2]


def compare(
  found: Mapping[str, Sequence[Result]],
  others: Mapping[str, Sequence[Result]],
) -> tuple[dict[str, list[bootstrap.Comparison]], list[str]]:
  """Ours and another's runs of the same examples, by task.

  Returns:
    The comparisons, and lines on tasks that cannot be compared and on what the
    other's were not.
  """
  compared, lines = {}, []
  for name, runs in found.items():
    theirs = others.get(name, [])
    golds = [x.answers["dev"]["golds"] for x in (*runs, *theirs)]
    if theirs and all(gold == golds[0] for gold in golds):
      compared[name] = _comparisons(runs, theirs)
      lines += [f"* {name}, the other's: {x}" for x in _notes(theirs)]
    elif others:
      why = "on other examples" if theirs else "in no run"
      lines.append(f"{name} is not compared: the other has it {why}")
  return compared, lines


def show(
  found: Mapping[str, Sequence[Result]],
  compared: Mapping[str, Sequence[bootstrap.Comparison]],
  console: Console,
) -> None:
  """Prints the runs of each task, and the medians as the paper's tables."""
  console.print(_of_seeds(found))
  for name, runs in found.items():
    for note in _notes(runs):
      console.print(f"* {name}: {note}", soft_wrap=True)
    for run in runs:
      if run.failure:
        console.print(f"! {name}, seed {run.seed}: {run.failure}")
  _show_published(found, console)
  if compared:
    console.print(_of_comparisons(compared))


def _notes(runs: Sequence[Result]) -> list[str]:
  """Of all the runs, each once: where one ended early may be its own."""
  return list(dict.fromkeys(note for run in runs for note in run.notes))


def _of_seeds(found: Mapping[str, Sequence[Result]]) -> Table:
  made = Table(title="Dev sets, %", title_justify="left")
  for name in ("task", "metric"):
    made.add_column(name)
  columns = "runs failed median mean low high sd".split()
  for name in columns:
    made.add_column(name, justify="right")
  for task, runs in found.items():
    shown = f"{task} *" if _notes(runs) else task
    for metric, s in summaries(runs).items():
      values = (s.median, s.mean, s.low, s.high)
      made.add_row(
        shown,
        metric,
        str(s.runs),
        str(s.failed),
        *(f"{x:.2f}" for x in values),
        "" if s.sd is None else f"{s.sd:.2f}",
      )
      shown = ""
  return made


def _show_published(
  found: Mapping[str, Sequence[Result]], console: Console
) -> None:
  """Our medians and others' numbers, as the paper's tables 3 and 4 are laid."""
  scores: dict[str, float] = {}
  for task, runs in found.items():
    for metric, s in summaries(runs).items():
      scores.setdefault(
        f"{task}_{metric}" if task == config_checks.SQUAD else task, s.median
      )
  names = [n for n in (*published.GLUE, *published.SQUAD) if n in scores]
  if not names:
    return  # a task of the user's own
  made = Table(title="Medians, and published dev sets", title_justify="left")
  made.add_column("model")
  whole = set(published.GLUE) <= set(names)
  for name in (*names, *([AVERAGE] if whole else [])):
    made.add_column(name, justify="right")
  made.add_column("source")
  first, notes = next(iter(found.values()))[0], list[str]()
  counts = sorted({len(runs) for runs in found.values()})
  of = " to ".join(map(str, (counts[0], counts[-1])[: len(counts)]))
  star = " *" if any(map(_notes, found.values())) else ""
  _add_scores(made, f"these runs{star}", scores, names, f"median of {of}")
  for row in _published(found, first.made):
    if row.note not in notes:
      notes.append(row.note)
    mark = notes.index(row.note) + 1
    _add_scores(made, row.name, row.scores, names, f"{row.source} ({mark})")
  console.print(made)
  for mark, note in enumerate(notes, start=1):
    console.print(f"({mark}) {note}", soft_wrap=True)


def _published(
  found: Mapping[str, Sequence[Result]], made: Mapping[str, Any]
) -> tuple[published.Row, ...]:
  """Of the same family and size; of small BERTs nobody reports, so ELECTRAs."""
  width, tasks = made["width"], tuple(found)
  rows = published.rows_for(tasks, family=made["family"], width=width)
  return rows or published.rows_for(tasks, family="electra", width=width)


def _add_scores(
  table: Table,
  name: str,
  scores: Mapping[str, float],
  names: Sequence[str],
  source: str,
) -> None:
  shown = [f"{scores[n]:.1f}" if n in scores else "" for n in names]
  if AVERAGE in [column.header for column in table.columns]:
    mean = average(scores)
    shown.append("" if mean is None else f"{mean:.1f}")
  table.add_row(name, *shown, source)


def _of_comparisons(
  compared: Mapping[str, Sequence[bootstrap.Comparison]],
) -> Table:
  made = Table(
    title="Means of the runs, ours and the other's: 95 % intervals of the"
    " difference by a paired bootstrap over examples, and over examples and"
    " runs",
    title_justify="left",
  )
  for name in ("task", "metric"):
    made.add_column(name)
  columns = "ours,other,difference,examples,p,and runs,p"
  for name in columns.split(","):
    made.add_column(name, justify="right")
  for task, rows in compared.items():
    for x in rows:
      both = (
        "one run"
        if x.low_runs is None
        else f"{x.low_runs:+.2f} to {x.high_runs:+.2f}"
      )
      made.add_row(
        task,
        x.metric,
        f"{x.ours:.2f}",
        f"{x.theirs:.2f}",
        f"{x.difference:+.2f}",
        f"{x.low:+.2f} to {x.high:+.2f}",
        f"{x.p:.3f}",
        both,
        "" if x.p_runs is None else f"{x.p_runs:.3f}",
      )
      task = ""
  return made


def _comparisons(
  ours: Sequence[Result], theirs: Sequence[Result]
) -> list[bootstrap.Comparison]:
  """Of each metric of the dev set."""
  metrics = list(ours[0].scores["dev"])
  if ours[0].task == config_checks.SQUAD:
    scored = [[_question_scores(run) for run in of] for of in (ours, theirs)]
    return [
      bootstrap.compare_means(m, *([x[m] for x in of] for of in scored))
      for m in metrics
    ]
  known = (*ours[0].made["labels"], *theirs[0].made["labels"])
  ids = {label: i for i, label in enumerate(dict.fromkeys(known))}
  number = lambda said: np.array([ids.get(x, x) for x in said])
  of = lambda runs: [number(run.answers["dev"]["answers"]) for run in runs]
  gold_N = number(ours[0].answers["dev"]["golds"])
  return [bootstrap.compare(m, gold_N, of(ours), of(theirs)) for m in metrics]


def _question_scores(run: Result) -> dict[str, np.ndarray]:
  said = run.answers["dev"]
  by_key = lambda values: dict(zip(said["keys"], values, strict=True))
  return scoring.question_scores(by_key(said["answers"]), by_key(said["golds"]))
