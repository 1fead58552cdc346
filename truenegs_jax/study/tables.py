"""Makes the tables of a study from its scores, beside the paper's.

Each arm has a row of means over its seeds and, but for the baseline, a row of
differences from the baseline with intervals of 95 %. A cell that lacks runs
says how many it has.
"""

import collections
import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence

from truenegs_jax.corrections.rates import TABLE_2
from truenegs_jax.finetune import results
from truenegs_jax.finetune.results import GLUE
from truenegs_jax.report.page import Table
from truenegs_jax.robustness.scores import SIDES, TRANSFORMED, find_published
from truenegs_jax.study import compare
from truenegs_jax.study.compare import Key, Score, group_runs
from truenegs_jax.tasks.task import SQUAD, TASKS

CORRECTIONS = "corrections"  # a task of scores
HELD_OUT = "held-out loss"  # another
RATES = {"sequence_rate": "Iter", "mismatch_rate": "Pred"}  # of table 2
DIFFERENCE = "difference"  # label of a row

Columns = Mapping[str, Sequence[Key]]  # name -> scores whose mean it shows


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


def correction_metric(rate: str, percent: float) -> str:
  """Names a rate of RATES at a percentage of the run's steps."""
  return f"{rate} at {percent:g} %"


def make_tables(study: Comparison) -> list[Table]:
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


def _make_table(
  title: str,
  columns: Columns,
  study: Comparison,
  *,
  paper: Mapping[str, Sequence[float]] | None = None,
  notes: Sequence[str] = (),
  digits: int = 2,
) -> Table:
  """Makes the rows of the arms and of the paper, whose values are by label."""
  baseline = study.arms[0]
  rows = []
  for arm in study.arms:
    means = [_show_mean(study, arm, x, digits) for x in columns.values()]
    rows.append({"": arm} | dict(zip(columns, means, strict=True)))
    if arm != baseline:
      shown = [
        _show_difference(study, arm, x, digits) for x in columns.values()
      ]
      rows.append({"": DIFFERENCE} | dict(zip(columns, shown, strict=True)))
  texts = "".join(row[name] for row in rows for name in columns)
  keys = {key for column in columns.values() for key in column}
  scores = [x for x in study.scores if x.key in keys]
  explained = [*dict.fromkeys(_explain_cells(texts, scores, baseline))]
  for label, values in (paper or {}).items():
    published = [f"{x:.{digits}f}" for x in values]
    rows.append({"": label} | dict(zip(columns, published, strict=True)))
  return Table(title, rows, [*explained, *notes])


def _explain_cells(
  texts: str, scores: Sequence[Score], baseline: str
) -> Iterator[str]:
  """Explains the texts of the arms' cells, which show these scores."""
  if "±" in texts:
    yield f"±: half the 95 % interval of the difference from {baseline}."
    by_key = (
      [x for x in scores if x.key == y] for y in {x.key for x in scores}
    )
    if not all(map(compare.has_examples, by_key)):
      yield "Intervals count seeds, but not the choice of examples."
  if "/" in texts:
    yield "2/3: 2 of 3 runs, and of a difference 2 of 3 seeds, have scores."
  for x in scores:
    if x.failure:
      yield (
        f"{x.arm}, seed {x.seed}, {x.task}, fine-tuning {x.finetune_seed}"
        f" counts although it failed: {x.failure}"
      )


def _show_mean(
  study: Comparison, arm: str, keys: Sequence[Key], digits: int
) -> str:
  """Returns the mean of an arm's scores, and how many of its runs have one."""
  runs = group_runs(study.scores, arm, keys)
  count = sum(len(x) for by_key in runs.values() for x in by_key.values())
  planned = len(study.seeds) * len(keys)
  tuned = {x.task for x in study.scores if x.finetune_seed is not None}
  if {task for task, _ in keys} <= tuned | {*study.tasks}:
    planned *= len(study.finetune_seeds)
  lines = [f"{compare.mean_of_runs(runs):.{digits}f}"] if runs else []
  if count < planned:
    lines.append(f"{count}/{planned}")
  return "\n".join(lines)


def _show_difference(
  study: Comparison, arm: str, keys: Sequence[Key], digits: int
) -> str:
  """Returns an arm's difference from the baseline, interval and seeds."""
  ours = group_runs(study.scores, arm, keys)
  theirs = group_runs(study.scores, study.arms[0], keys)
  lines = []
  seeds = 0
  if difference := compare.compare_runs(ours, theirs):
    seeds = difference.seeds
    lines.append(f"{difference.value:+.{digits}f}")
    if difference.half_width is not None:
      lines.append(f"±{difference.half_width:.{digits}f}")
  if seeds < len(study.seeds):
    lines.append(f"{seeds}/{len(study.seeds)}")
  return "\n".join(lines)


def _make_correction_tables(study: Comparison) -> Iterator[Table]:
  """Makes a table for each rate: a column for each percentage of the run."""
  measured = {x.metric for x in study.scores if x.task == CORRECTIONS}
  for i, (rate, label) in enumerate(RATES.items()):
    metrics = {x: correction_metric(rate, x) for x in TABLE_2}
    shown = [percent for percent in TABLE_2 if metrics[percent] in measured]
    if shown:
      yield _make_table(
        f"Table 2 of the paper, {label}: corrections along the training, %",
        {f"{x:g} %": [(CORRECTIONS, metrics[x])] for x in shown},
        study,
        paper={
          "paper, BERT base": [TABLE_2[x][i] for x in shown],
          "paper, BERT large": [TABLE_2[x][2 + i] for x in shown],
        },
      )


def _make_finetuning_tables(study: Comparison) -> Iterator[Table]:
  """Makes tables 3, with the rows of table 6, and 4."""
  if keys := [(x, TASKS[x].metrics[0]) for x in GLUE if x in study.tasks]:
    columns = {key[0]: [key] for key in keys}
    if len(keys) > 1:
      average = results.AVERAGE
      is_complete = len(keys) == len(GLUE)
      columns[average if is_complete else f"{average} of {len(keys)}"] = keys
    title = "Tables 3 and 6 of the paper: GLUE, dev sets, %"
    yield _make_finetuning_table(title, columns, study)
  if SQUAD in study.tasks:
    columns = {x: [(SQUAD, x)] for x in TASKS[SQUAD].metrics}
    title = "Table 4 of the paper: SQuAD v1.1, dev set, %"
    yield _make_finetuning_table(title, columns, study)


def _make_finetuning_table(
  title: str, columns: Columns, study: Comparison
) -> Table:
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
  return _make_table(title, columns, study, paper=paper, notes=notes)


def _make_robustness_tables(study: Comparison) -> Iterator[Table]:
  """Makes a table for each set of robustness."""
  for title, metrics in _robustness_sets(study).items():
    names = [f"{metric} {side}" for metric in metrics for side in SIDES]
    paper = {}
    published = find_published(title, family=study.family, width=study.width)
    for label, scores in published.items():
      pairs = [scores[metric] for metric in metrics]
      paper[label] = [x for b, a in pairs for x in (b, a, b - a)]
    yield _make_table(
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


def _make_other_tables(study: Comparison) -> Iterator[Table]:
  """Makes a table of all metrics for each task that is not the paper's."""
  known = {*GLUE, SQUAD, CORRECTIONS, *_robustness_sets(study)}
  others: dict[str, dict[str, list[Key]]] = {}
  for x in study.scores:
    if x.task not in known:
      others.setdefault(x.task, {})[x.metric] = [x.key]
  for task, columns in others.items():
    yield _make_table(task, columns, study, digits=4)
