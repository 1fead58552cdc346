"""Makes the tables of a study from its scores, beside the paper's.

Each arm has a row of means over its seeds and, but for the baseline, a row of
differences from the baseline with intervals of 95 %. A cell that lacks runs
says how many it has.
"""

import collections
import csv
import dataclasses
import io
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from truenegs_jax.finetune import results
from truenegs_jax.finetune.results import GLUE
from truenegs_jax.pretrain.cases import TABLE_2
from truenegs_jax.report.tables import Table
from truenegs_jax.robustness.scores import SIDES, TRANSFORMED
from truenegs_jax.stats import intervals
from truenegs_jax.stats.intervals import Runs
from truenegs_jax.tasks.task import SQUAD, TASKS

CORRECTIONS = "corrections"  # a task of scores
HELD_OUT = "held-out loss"  # another
RATES = {"sequence_rate": "Iter", "mismatch_rate": "Pred"}  # of table 2
MAX_COLUMNS = 8

Key = tuple[str, str]  # task and metric
# The paper's scores before and after the change, by set, model and metric.
Paper = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
Columns = Mapping[str, Sequence[Key]]  # name -> scores whose mean it shows
ARM = "arm"  # kinds of rows
DIFFERENCE = "difference"
PAPER = "paper"
CSV_FIELDS = ("table", "row", "kind", "column", "value", "half_width", "runs")


@dataclasses.dataclass(frozen=True)
class Score:
  """A score of one run."""

  arm: str
  seed: int  # of the pre-training
  # Of fine-tuning, title of a robustness set, CORRECTIONS, HELD_OUT, or another
  # name, whose metrics get a table of their own.
  task: str
  finetune_seed: int | None  # None for what is measured without fine-tuning
  metric: str  # in the task's results; of a robustness set "em original", ...
  value: float  # in percent, except for losses and other metrics
  # Scores of the examples with the mean `value`, in the same order for all arms
  # and seeds; None if there are none.
  correct_N: np.ndarray | None = dataclasses.field(default=None, compare=False)
  failure: str = ""  # why the run failed, if it has a score nevertheless

  @property
  def key(self) -> Key:
    """The task and the metric."""
    return self.task, self.metric


def group_runs(scores: Iterable[Score], arm: str, keys: Sequence[Key]) -> Runs:
  """Returns an arm's scores of these keys, for the seeds that have all keys."""
  by_seed: dict[int, dict[Key, list[Score]]] = {}
  for x in scores:
    if x.arm == arm and x.key in keys:
      by_seed.setdefault(x.seed, {}).setdefault(x.key, []).append(x)
  return {n: x for n, x in sorted(by_seed.items()) if len(x) == len(set(keys))}


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The arms, seeds and tasks of a study, with the scores of what is done."""

  scores: Sequence[Score]  # of all runs that are done
  arms: Sequence[str]  # the first is the baseline
  seeds: Sequence[int]  # of pre-training
  tasks: Sequence[str]  # of fine-tuning, as in scores
  finetune_seeds: Sequence[int]  # of each task of fine-tuning
  family: str = "electra"  # of the network that is fine-tuned
  width: int = 256
  paper: Paper = dataclasses.field(default_factory=dict)


def correction_metric(rate: str, percent: float) -> str:
  """Names a rate of RATES at a percentage of the run's steps."""
  return f"{rate} at {percent:g} %"


@dataclasses.dataclass(frozen=True)
class Cell:
  """A number of a table."""

  value: float | None = None
  half_width: float | None = None  # half its interval of 95 %
  runs: str = ""  # which runs there are, "2/3", if some lack

  def text(self, kind: str, digits: int) -> str:
    """Returns its number, interval and runs, those that it has, as lines."""
    sign = "+" if kind == DIFFERENCE else ""
    value = "" if self.value is None else f"{self.value:{sign}.{digits}f}"
    half = "" if self.half_width is None else f"±{self.half_width:.{digits}f}"
    return "\n".join(filter(None, (value, half, self.runs)))


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of an ARM, of its DIFFERENCE from the baseline, or of the PAPER."""

  label: str
  kind: str
  cells: Sequence[Cell]


@dataclasses.dataclass(frozen=True)
class Layout:
  """A table."""

  name: str  # unique in a study: "table3"
  title: str
  columns: Sequence[str]  # names of the cells of each row
  rows: Sequence[Row]
  notes: Sequence[str] = ()  # sentences below the table
  digits: int = 2  # number of decimals


def make_tables(study: Comparison) -> list[Layout]:
  """Makes the paper's tables and others from the scores of planned runs."""
  planned = [
    x
    for x in study.scores
    if x.arm in study.arms and x.seed in study.seeds
    if x.finetune_seed in (*study.finetune_seeds, None)
  ]
  study = dataclasses.replace(study, scores=planned)
  return [
    *_make_correction_tables(study),
    *_make_finetuning_tables(study),
    *_make_robustness_tables(study),
    *_make_other_tables(study),
  ]


def _make_layout(
  name: str,
  title: str,
  columns: Columns,
  study: Comparison,
  *,
  paper: Mapping[str, Sequence[float | None]] | None = None,
  digits: int = 2,
) -> Layout:
  """Makes the rows of the arms and of the paper, whose values are by label."""
  rows = []
  for arm in study.arms:
    cells = [_mean_cell(study, arm, x) for x in columns.values()]
    rows.append(Row(arm, ARM, cells))
    if arm != study.arms[0]:
      cells = [_difference_cell(study, arm, x) for x in columns.values()]
      rows.append(Row(arm, DIFFERENCE, cells))
  keys = {key for column in columns.values() for key in column}
  shown = [x for x in study.scores if x.key in keys]
  notes = [*_explain_cells(rows, shown, study.arms[0])]
  for label, values in (paper or {}).items():
    rows.append(Row(label, PAPER, [*map(Cell, values)]))
  return Layout(name, title, [*columns], rows, notes, digits)


def _explain_cells(
  rows: Sequence[Row], shown: Sequence[Score], baseline: str
) -> Iterator[str]:
  """Explains the cells of the arms, which have the scores `shown`."""
  if any(x.half_width is not None for row in rows for x in row.cells):
    yield f"±: half the 95 % interval of the difference from {baseline}."
    by_key = ([x for x in shown if x.key == y] for y in {x.key for x in shown})
    if not all(map(intervals.has_examples, by_key)):
      yield "Intervals count seeds, but not the choice of examples."
  if any(cell.runs for row in rows for cell in row.cells):
    yield "2/3: 2 of 3 runs, and of a difference 2 of 3 seeds, have scores."
  for x in shown:
    if x.failure:
      yield (
        f"{x.arm}, seed {x.seed}, {x.task}, fine-tuning {x.finetune_seed}"
        f" counts although it failed: {x.failure}"
      )


def _mean_cell(study: Comparison, arm: str, keys: Sequence[Key]) -> Cell:
  runs = group_runs(study.scores, arm, keys)
  count = sum(len(x) for by_key in runs.values() for x in by_key.values())
  planned = len(study.seeds) * len(keys)
  if any(x.finetune_seed is not None for x in study.scores if x.key in keys):
    planned *= len(study.finetune_seeds)
  value = intervals.mean_of_runs(runs) if runs else None
  return Cell(value, runs=_describe_lack(count, planned))


def _difference_cell(study: Comparison, arm: str, keys: Sequence[Key]) -> Cell:
  ours = group_runs(study.scores, arm, keys)
  theirs = group_runs(study.scores, study.arms[0], keys)
  planned = len(study.seeds)
  difference = intervals.compare_runs(ours, theirs)
  if not difference:
    return Cell(runs=_describe_lack(0, planned))
  runs = _describe_lack(difference.seeds, planned)
  return Cell(difference.value, difference.half_width, runs)


def _describe_lack(count: int, planned: int) -> str:
  return f"{count}/{planned}" if count < planned else ""


def _make_correction_tables(study: Comparison) -> Iterator[Layout]:
  """Makes a table for each rate: a column for each percentage of the run."""
  measured = {x.metric for x in study.scores if x.task == CORRECTIONS}
  for i, (rate, label) in enumerate(RATES.items()):
    metrics = {x: correction_metric(rate, x) for x in TABLE_2}
    shown = [percent for percent in TABLE_2 if metrics[percent] in measured]
    if shown:
      yield _make_layout(
        f"table2_{label.lower()}",
        f"Table 2 of the paper, {label}: corrections along the training, %",
        {f"{x:g} %": [(CORRECTIONS, metrics[x])] for x in shown},
        study,
        paper={
          "paper, BERT base": [TABLE_2[x][i] for x in shown],
          "paper, BERT large": [TABLE_2[x][2 + i] for x in shown],
        },
      )


def _make_finetuning_tables(study: Comparison) -> Iterator[Layout]:
  """Makes tables 3, with the rows of table 6, and 4."""
  if keys := [(x, TASKS[x].metrics[0]) for x in GLUE if x in study.tasks]:
    columns = {key[0]: [key] for key in keys}
    if len(keys) > 1:
      average = results.AVERAGE
      is_complete = len(keys) == len(GLUE)
      columns[average if is_complete else f"{average} of {len(keys)}"] = keys
    title = "Tables 3 and 6 of the paper: GLUE, dev sets, %"
    yield _make_finetuning_table("table3", title, columns, study)
  if SQUAD in study.tasks:
    columns = {x: [(SQUAD, x)] for x in TASKS[SQUAD].metrics}
    title = "Table 4 of the paper: SQuAD v1.1, dev set, %"
    yield _make_finetuning_table("table4", title, columns, study)


def _make_finetuning_table(
  name: str, title: str, columns: Columns, study: Comparison
) -> Layout:
  """Makes a table with the paper's models that have all of its scores."""
  published, network_note = results.find_published(
    (*GLUE, SQUAD), family=study.family, width=study.width
  )
  names = [  # of the published scores whose mean a column shows
    ["_".join(key) if key[0] == SQUAD else key[0] for key in keys]
    for keys in columns.values()
  ]
  needed = {name for column in names for name in column}
  paper = {}
  by_note = collections.defaultdict[str, list[str]](list)
  for model in published:
    if model.source.startswith("paper") and needed <= model.scores.keys():
      means = [statistics.fmean(model.scores[y] for y in x) for x in names]
      paper[f"paper, {model.name}"] = means
      by_note[model.note].append(model.name)
  notes = [f"Paper, {', '.join(y)}: {note}." for note, y in by_note.items()]
  if network_note and notes:
    notes.append(network_note)
  x = _make_layout(name, title, columns, study, paper=paper)
  return dataclasses.replace(x, notes=[*x.notes, *notes])


def _make_robustness_tables(study: Comparison) -> Iterator[Layout]:
  """Makes a table for each set of robustness."""
  for title, metrics in _robustness_sets(study).items():
    names = [f"{metric} {side}" for metric in metrics for side in SIDES]
    paper = {}
    for label, published in study.paper.get(title, {}).items():
      pairs = [published[metric] for metric in metrics]
      paper[label] = [x for b, a in pairs for x in (b, a, b - a)]
    yield _make_layout(
      f"table5_{title}",
      f"Table 5 of the paper: {title}, %" if paper else f"{title}, %",
      {name: [(title, name)] for name in names},
      study,
      paper=paper,
    )


def _robustness_sets(study: Comparison) -> dict[str, list[str]]:
  """Returns the titles of the sets and their metrics, without sides."""
  sets: dict[str, dict[str, None]] = {}
  for x in study.scores:
    metric, _, side = x.metric.rpartition(" ")
    if side == TRANSFORMED:
      sets.setdefault(x.task, {})[metric] = None
  return {title: list(metrics) for title, metrics in sets.items()}


def _make_other_tables(study: Comparison) -> Iterator[Layout]:
  """Makes a table of all metrics for each task that is not the paper's."""
  known = {*GLUE, SQUAD, CORRECTIONS, *_robustness_sets(study)}
  others: dict[str, dict[str, list[Key]]] = {}
  for x in study.scores:
    if x.task not in known:
      others.setdefault(x.task, {})[x.metric] = [x.key]
  for task, columns in others.items():
    for i in range(0, len(columns), MAX_COLUMNS):
      shown = dict([*columns.items()][i : i + MAX_COLUMNS])
      name = f"{task} {i // MAX_COLUMNS + 1}" if i else task
      yield _make_layout(name, name, shown, study, digits=4)


def to_table(x: Layout) -> Table:
  """Renders the numbers of a table as texts."""
  rows = []
  for row in x.rows:
    label = row.kind if row.kind == DIFFERENCE else row.label
    texts = [cell.text(row.kind, x.digits) for cell in row.cells]
    rows.append({"": label} | dict(zip(x.columns, texts, strict=True)))
  return Table(x.title, rows, x.notes)


def to_csv(layouts: Iterable[Layout]) -> str:
  """Renders tables as CSV, a line per number with all digits; "" for None."""
  file = io.StringIO()
  writer = csv.writer(file)
  writer.writerow(CSV_FIELDS)
  writer.writerows(
    (x.name, row.label, row.kind, column, *dataclasses.astuple(cell))
    for x in layouts
    for row in x.rows
    for column, cell in zip(x.columns, row.cells, strict=True)
  )
  return file.getvalue()
