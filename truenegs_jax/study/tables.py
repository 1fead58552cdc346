"""Makes the tables of a study from its scores, beside the paper's.

  for layout in make_tables(scores, plan, family="electra", width=256):
    console.print(to_terminal(layout))

Each arm has a row of means over its seeds and, but for the baseline, a row of
differences from the baseline with intervals of 95 % (see `intervals`). A cell
that lacks runs says how many it has; notes name the runs that failed.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence

from truenegs_jax.corrections.report import TABLE_2
from truenegs_jax.finetune import leaderboard
from truenegs_jax.finetune.config_checks import SQUAD
from truenegs_jax.finetune.leaderboard import (
  AVERAGE,
  GLUE,
  SOURCES,
  PublishedModel,
)
from truenegs_jax.robustness.eval_set import ORIGINAL, TRANSFORMED
from truenegs_jax.robustness.report import find_published as find_published_set
from truenegs_jax.robustness.scores import DROP
from truenegs_jax.study import intervals
from truenegs_jax.study.intervals import MAX_SEEDS
from truenegs_jax.study.layout import (
  ARM,
  DIFFERENCE,
  PAPER,
  Cell,
  Layout,
  Row,
)
from truenegs_jax.study.records import (
  CORRECTIONS,
  RATES,
  Key,
  Plan,
  Score,
  correction_metric,
)
from truenegs_jax.tasks import glue, squad

PRETRAIN, ROBUSTNESS = "pretrain", "robustness"  # parts, as in `Plan.failures`
VARIANTS = ("hc", "hc_glove", "sr", "sr_sent")  # recipes of table 6
SIDES = (ORIGINAL, TRANSFORMED, DROP)
LABELS = dict(zip(RATES, ("Iter", "Pred"), strict=True))  # as in table 2
ERROR_REDUCTION = "error reduction"
EFFECT = 1.0  # percent, the gain of the paper's small ELECTRA by HC
OTHER_DIGITS = 4
POWER_COLUMNS = (
  *("difference", "detectable", "seeds"),
  *("error, seeds", "fine-tunings", "examples"),
)

Columns = Mapping[str, Sequence[Key]]  # name -> scores whose mean it shows


def make_tables(
  scores: Sequence[Score], plan: Plan, *, family: str, width: int
) -> list[Layout]:
  """Makes the paper's tables that have scores, other measures, and the power.

  Args:
    scores: of all runs that have any; those outside the plan are left out.
    plan: the runs that the study is to have.
    family, width: of the network, as in `leaderboard.find_published`.
  """
  finetune_seeds = {*plan.finetune_seeds, None}
  scores = [
    x
    for x in scores
    if x.arm in plan.arms and x.seed in plan.seeds
    if x.finetune_seed in finetune_seeds
  ]
  find = functools.partial(
    leaderboard.find_published, [*GLUE, SQUAD], width=width
  )
  # No small BERT is published.
  models = find(family=family) or find(family="electra")
  return [
    *_make_table_2(scores, plan),
    *_make_glue_tables(scores, plan, models),
    *_make_table_4(scores, plan, models),
    *_make_table_5(scores, plan),
    *_make_other_tables(scores, plan),
    *_make_power_table(scores, plan),
  ]


def _make_layout(
  name: str,
  title: str,
  columns: Columns,
  scores: Sequence[Score],
  plan: Plan,
  *,
  arms: Sequence[str] | None = None,
  part: str = "",
) -> Layout:
  """Makes the rows of the arms, of the whole plan unless given.

  Notes name the failures of pre-training, of the tasks, and of `part`.
  """
  baseline, *_ = plan.arms
  rows = []
  for arm in arms or plan.arms:
    cells = [_mean_cell(scores, plan, arm, x) for x in columns.values()]
    rows.append(Row(arm, ARM, cells))
    if arm != baseline:
      cells = [_difference_cell(scores, plan, arm, x) for x in columns.values()]
      rows.append(Row(f"{arm} - {baseline}", DIFFERENCE, cells))
  keys = {key for column in columns.values() for key in column}
  parts = {PRETRAIN, part, *(task for task, _ in keys)}
  notes = [
    f"{arm}, seed {seed}, {failed}: {reason}"
    for (arm, seed, failed), reason in plan.failures.items()
    if failed in parts
  ]
  notes += [
    f"{x.arm}, seed {x.seed}, {x.task}, fine-tuning {x.finetune_seed} counts"
    f" although it failed: {x.failure}"
    for x in scores
    if x.failure and x.key in keys
  ]
  if any(x.correct_N is None for x in scores if x.key in keys):
    notes.append("Intervals count seeds, but not the choice of examples.")
  differences = [x for row in rows if row.kind == DIFFERENCE for x in row.cells]
  if any(x.value is not None and not x.bounds for x in differences):
    notes.append("Differences of one seed have no interval.")
  return Layout(name, title, tuple(columns), rows, notes)


def _mean_cell(
  scores: Sequence[Score], plan: Plan, arm: str, keys: Sequence[Key]
) -> Cell:
  runs = intervals.group_runs(scores, arm, keys)
  lacking = [_count_seeds(runs, plan)]
  groups = [x for by_key in runs.values() for x in by_key.values()]
  is_tuned = any(x.finetune_seed is not None for y in groups for x in y)
  planned = len(groups) * (len(plan.finetune_seeds) if is_tuned else 1)
  if (count := sum(map(len, groups))) < planned:
    lacking.append(f"{count} of {planned} fine-tunings")
  value = intervals.mean(runs) if runs else None
  return Cell(value, runs=", ".join(filter(None, lacking)))


def _difference_cell(
  scores: Sequence[Score], plan: Plan, arm: str, keys: Sequence[Key]
) -> Cell:
  ours, theirs = (
    intervals.group_runs(scores, name, keys) for name in (arm, plan.arms[0])
  )
  runs = _count_seeds(ours.keys() & theirs.keys(), plan)
  difference = intervals.compare(ours, theirs)
  if not difference:
    return Cell(runs=runs)
  return Cell(difference.value, difference.interval or (), runs)


def _count_seeds(seeds: Collection[int], plan: Plan) -> str:
  """Counts the seeds; "" if all are there."""
  planned = len(plan.seeds)
  return f"{len(seeds)} of {planned} seeds" if len(seeds) < planned else ""


def _make_table_2(scores: Sequence[Score], plan: Plan) -> list[Layout]:
  """Makes a table for each rate: a column for each percentage of the run."""
  if all(x.task != CORRECTIONS for x in scores):
    return []
  layouts = []
  for column, (rate, label) in enumerate(
    zip(RATES, ("Iter", "Pred"), strict=True)
  ):
    keys = [(CORRECTIONS, correction_metric(rate, x)) for x in TABLE_2]
    columns = {f"{x:g} %": [key] for x, key in zip(TABLE_2, keys, strict=True)}
    title = f"Table 2, {label}: corrections along the training, %"
    x = _make_layout(f"table2_{label.lower()}", title, columns, scores, plan)
    paper = [
      Row(
        f"paper, BERT {size}",
        PAPER,
        [Cell(float(values[2 * i + column])) for values in TABLE_2.values()],
      )
      for i, size in enumerate(("base", "large"))
    ]
    layouts.append(dataclasses.replace(x, rows=[*x.rows, *paper]))
  return layouts


def _make_glue_tables(
  scores: Sequence[Score], plan: Plan, models: Sequence[PublishedModel]
) -> list[Layout]:
  """Makes table 3 and, if an arm is a variant, table 6."""
  columns = _glue_columns(plan)
  if not columns:
    return []
  arms = [plan.arms[0], *(x for x in plan.arms[1:] if x in VARIANTS)]
  titles = {"table3": "Table 3: GLUE", "table6": "Table 6: GLUE, variants"}
  sources, layouts = list[str](), []
  for name, title in titles.items():
    shown = arms if name == "table6" else plan.arms
    sources.append(SOURCES[name])  # table 6 repeats rows of table 3
    title += ", dev sets, %"
    x = _make_layout(name, title, columns, scores, plan, arms=shown)
    paper = [
      Row(f"paper, {model.name}", PAPER, _paper_cells(model.scores, columns))
      for model in models
      if model.source in sources
    ]
    layouts.append(_add_error_reduction(x, paper))
  return layouts if len(arms) > 1 else layouts[:1]


def _glue_columns(plan: Plan) -> dict[str, list[Key]]:
  """Returns the tasks of GLUE by their main metrics, and their average."""
  keys = [(x, glue.TASKS[x].metrics[0]) for x in GLUE if x in plan.tasks]
  columns = {key[0]: [key] for key in keys}
  if len(keys) > 1:
    is_complete = len(keys) == len(GLUE)
    columns[AVERAGE if is_complete else f"{AVERAGE} of {len(keys)}"] = keys
  return columns


def _paper_cells(
  published: Mapping[str, float], columns: Columns
) -> list[Cell]:
  """Returns a model's scores, by task, with the mean of a column's tasks."""
  return [
    Cell(statistics.fmean(published[task] for task, _ in keys))
    for keys in columns.values()
  ]


def _add_error_reduction(x: Layout, paper: Sequence[Row]) -> Layout:
  """Adds the paper's rows, and a column of differences in % of the error.

  Footnote 8: the difference of the averages (or of a single task), divided by
  100 % minus the baseline's. The baseline counts as known in its interval.
  """
  rows = []
  for row in (*x.rows, *paper):
    first = paper[0] if row.kind == PAPER else x.rows[0]
    baseline, last = first.cells[-1].value, row.cells[-1]
    share = Cell()
    if baseline is not None and baseline < 100 and last.value is not None:
      scale = 100 / (100 - baseline)
      if row.kind == DIFFERENCE:
        bounds = tuple(scale * bound for bound in last.bounds)
        share = Cell(scale * last.value, bounds)
      elif row.kind == PAPER and row is not first:
        share = Cell(scale * (last.value - baseline))
    rows.append(dataclasses.replace(row, cells=[*row.cells, share]))
  columns = [*x.columns, ERROR_REDUCTION]
  return dataclasses.replace(x, columns=columns, rows=rows)


def _make_table_4(
  scores: Sequence[Score], plan: Plan, models: Sequence[PublishedModel]
) -> list[Layout]:
  columns = _squad_columns(plan)
  if not columns:
    return []
  title = "Table 4: SQuAD v1.1, dev set, %"
  x = _make_layout("table4", title, columns, scores, plan)
  paper = [
    Row(
      f"paper, {model.name}",
      PAPER,
      [Cell(model.scores[f"{SQUAD}_{metric}"]) for metric in columns],
    )
    for model in models
    if model.source == SOURCES["table4"]
  ]
  return [dataclasses.replace(x, rows=[*x.rows, *paper])]


def _squad_columns(plan: Plan) -> dict[str, list[Key]]:
  metrics = squad.TASK.metrics if SQUAD in plan.tasks else ()
  return {x: [(SQUAD, x)] for x in metrics}


def _make_table_5(scores: Sequence[Score], plan: Plan) -> list[Layout]:
  """Makes a table for each set of robustness."""
  layouts = []
  for title, metrics in _robustness_sets(scores).items():
    columns = {
      f"{metric} {side}": [(title, f"{metric} {side}")]
      for metric in metrics
      for side in SIDES
    }
    x = _make_layout(
      f"table5_{title}",
      f"Table 5: {title}, %",
      columns,
      scores,
      plan,
      part=ROBUSTNESS,
    )
    paper = []
    for name, published in find_published_set(title, metrics).items():
      pairs = [published.get(metric, (None, None)) for metric in metrics]
      cells = [Cell(v) for a, b in pairs for v in (a, b, a and b and a - b)]
      paper.append(Row(name, PAPER, cells))
    layouts.append(dataclasses.replace(x, rows=[*x.rows, *paper]))
  return layouts


def _robustness_sets(scores: Sequence[Score]) -> dict[str, list[str]]:
  """Returns the titles of the sets and their metrics, without sides."""
  sets: dict[str, dict[str, None]] = {}
  for x in scores:
    metric, _, side = x.metric.rpartition(" ")
    if side == TRANSFORMED:
      sets.setdefault(x.task, {})[metric] = None
  return {title: list(metrics) for title, metrics in sets.items()}


def _make_other_tables(scores: Sequence[Score], plan: Plan) -> list[Layout]:
  """Makes a table of all metrics for each task that is not the paper's."""
  known = {*GLUE, SQUAD, CORRECTIONS, *_robustness_sets(scores)}
  others: dict[str, dict[str, list[Key]]] = {}
  for x in scores:
    if x.task not in known:
      others.setdefault(x.task, {})[x.metric] = [x.key]
  return [
    dataclasses.replace(
      _make_layout(task, task, columns, scores, plan), digits=OTHER_DIGITS
    )
    for task, columns in others.items()
  ]


def _make_power_table(scores: Sequence[Score], plan: Plan) -> list[Layout]:
  """Makes the table of what the study could have seen."""
  columns = {**_glue_columns(plan)}
  columns |= {f"{SQUAD} {x}": y for x, y in _squad_columns(plan).items()}
  for title, metrics in _robustness_sets(scores).items():
    names = (f"{metric} {DROP}" for metric in metrics)
    columns |= {f"{title} {x}": [(title, x)] for x in names}
  baseline, *arms = plan.arms
  rows = []
  for arm in arms:
    for name, keys in columns.items():
      runs = (intervals.group_runs(scores, x, keys) for x in (arm, baseline))
      if difference := intervals.compare(*runs):
        rows.append(Row(f"{arm}, {name}", ARM, _power_cells(difference)))
  notes = [
    "Detectable is the difference from the baseline whose interval would"
    " exclude 0 in 80 % of such studies. Seeds are how many would make"
    f" {EFFECT:g} % detectable (-: more than {MAX_SEEDS:,}). Standard errors"
    " come from pre-training seeds with their fine-tunings, from fine-tunings"
    " alone (-: one each), and from the choice of the dev set's examples. With"
    " few seeds, all of these are rough."
  ]
  title = "What this study could see, %"
  return [Layout("power", title, POWER_COLUMNS, rows, notes)] if rows else []


def _power_cells(x: intervals.Difference) -> list[Cell]:
  variances = x.seed_variance, x.finetune_variance, x.example_variance
  errors = [None if v is None else math.sqrt(v) for v in variances]
  difference = Cell(x.value, x.interval or ())
  return [
    difference,
    *map(Cell, (x.detectable, x.seeds_needed(EFFECT), *errors)),
  ]
