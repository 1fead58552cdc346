"""Runs the task "robustness": scores a fine-tuned model on changed texts.

model -> dev set -> sample -> sets, saved in sets/NAME -> answers -> table

The model's workdir is only read. Answers and scores are saved in results.json.
"""

import json
import pathlib
from collections.abc import Callable, Sequence

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.configs.common_keys import rules
from truenegs_jax.finetune import task_data
from truenegs_jax.finetune.results import RUNS
from truenegs_jax.report.write import write_own_report
from truenegs_jax.robustness import make_sets, published_sets, report
from truenegs_jax.robustness.annotate import save_annotations
from truenegs_jax.robustness.comparison import compare_sets, conclude
from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.robustness.fine_tuned import FineTunedModel, open_model
from truenegs_jax.robustness.report import SetResult
from truenegs_jax.robustness.scores import Answers, estimate, score_set
from truenegs_jax.robustness.transformation import texts
from truenegs_jax.runtime import distributed, progress
from truenegs_jax.runtime.cache import enable_compilation_cache
from truenegs_jax.runtime.config_files import flatten
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.flags import rerun_command
from truenegs_jax.tasks.task import Task
from truenegs_jax.train import check_values, plan
from truenegs_jax.weights.formats import find
from truenegs_jax.workdir import files, lock, metrics_file

SETS = "sets"  # the folder in a workdir
Models = dict[str, FineTunedModel]  # by their names in tables, `init` first


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Scores the models, prints and saves the results; returns the exit code.

  Raises:
    TrueNegsError: its class has the exit code.
  """

  def say(text: str) -> None:
    console.print(text, soft_wrap=True)

  _check(c, workdir)
  models = {} if c.dry_run and _on_hub(c) else _open_models(c, say)
  names, paths = _parse_sets(c, models[c.init].task) if models else ((), {})
  if c.dry_run:
    console.print(plan.report_table(_describe_plan(c, models, names)))
    return 0
  model = models[c.init]
  with progress.working(console, "Reading examples"):
    published = [
      published_sets.read_published(name, path, model.task, model.columns)
      for name, path in paths.items()
    ]
    examples = task_data.read_dev(model.options, model.task) if names else []
    transformations, annotator = make_sets.make_transformations(
      c, names, model, examples
    )
  drawn = make_sets.draw_rows(examples, c.robustness.rows, c.seed)
  enable_compilation_cache()
  with lock.lock(workdir):
    sets = []
    for x in transformations:
      folder = workdir / SETS / x.name
      sets.append(
        make_sets.make_or_read(x, drawn, c.seed, folder, model, console)
      )
    if c.robustness.record and annotator:
      path = pathlib.Path(c.robustness.record).expanduser()
      save_annotations(path, (t for e in drawn for t in texts(e)), annotator)
    sets += published
    for eval_set in sets:
      say(report.describe_set(eval_set))
    for eval_set in sets:
      report.print_samples(eval_set, c.robustness.samples, console)
    results = _score(sets, models, console)
    if results:
      report.print_scores(results, model.task, console)
    else:
      say("No example could be changed, so that there is nothing to score.")
    compared = [(x.title, y.compared) for x, y in results if y.compared]
    conclusion = conclude(compared) if compared else ""
    if compared:
      report.print_comparisons(compared, console)
      say(conclusion)
    _save(c, results, models, conclusion, workdir)
    write_own_report(workdir, say)
  say(
    f"saved: {workdir / files.RESULTS}, {workdir / files.REPORT}"
    + f", {workdir / SETS}/" * bool(names)
  )
  return 0


def _check(c: ConfigDict, workdir: pathlib.Path) -> None:
  """Raises InputError for a wrong value, before any file is read."""
  if distributed.process_count() > 1:
    raise InputError("Several processes are only for pre-training. Use one.")
  check_values.check_values(flatten(c.to_dict()), rules("robustness"))
  published_sets.parse_files(c.robustness.files)
  if files.has_pretraining(workdir) or any(workdir.glob(RUNS)):
    raise InputError(
      f"--workdir='{workdir}' is the workdir of a run, whose results would be"
      " replaced. Choose another, such as --workdir=runs/robustness."
    )


def _on_hub(c: ConfigDict) -> bool:
  """Whether a model would have to be downloaded."""
  given = (c.init, c.robustness.against)
  return not all(map(find.is_local, filter(None, given)))


def _open_models(c: ConfigDict, report: Callable[[str], None]) -> Models:
  name, against = c.robustness.task, c.robustness.against
  models = {c.init: open_model(c, c.init, report, task_name=name)}
  if not against:
    return models
  key, task = "robustness.against", models[c.init].task
  if against == c.init:
    raise InputError(f"{key}={against!r} is also init. Pass another model.")
  other = open_model(c, against, report, key=key, task_name=task.name)
  if other.task.labels != task.labels:
    raise InputError(
      f"{key}={against!r} has the classes {', '.join(other.task.labels)}, but"
      f" init has {', '.join(task.labels)}. Pass two models of one task."
    )
  return models | {against: other}


def _parse_sets(
  c: ConfigDict, task: Task
) -> tuple[Sequence[str], dict[str, str]]:
  """Returns the names of transformations, and published sets by name."""
  names = make_sets.parse_names(c.robustness.sets, task)
  paths = published_sets.parse_files(c.robustness.files)
  if not names and not paths:
    raise InputError(
      "There is nothing to score. Set --config.robustness.sets=paper or"
      " --config.robustness.files='NAME=FILE'."
    )
  if both := paths.keys() & set(names):
    raise InputError(
      f"robustness.files: {min(both)!r} is also in robustness.sets. Choose"
      " another name."
    )
  return names, paths


def _score(
  sets: Sequence[EvalSet], models: Models, console: Console
) -> list[tuple[EvalSet, SetResult]]:
  """Answers the examples of all sets at once, and scores each set."""
  sets = [x for x in sets if x.transformed]
  examples = [y for x in sets for rows in x.sides.values() for y in rows]
  by_model = {}
  for name, model in models.items():
    by_model[name] = model.answer(examples, console)
  results = []
  for x in sets:
    answers: dict[str, Answers] = {
      name: {
        side: [[run[texts(y)] for y in rows] for run in runs]
        for side, rows in x.sides.items()
      }
      for name, runs in by_model.items()
    }
    scores = {k: score_set(x, models[k].task, y) for k, y in answers.items()}
    pair = list(scores.values())
    compared = compare_sets(*pair) if pair[1:] else None
    estimates = {name: estimate(y) for name, y in scores.items()}
    results.append((x, SetResult(estimates, answers, compared)))
  return results


def _save(
  c: ConfigDict,
  results: report.Results,
  models: Models,
  conclusion: str,
  workdir: pathlib.Path,
) -> None:
  config = json.loads(c.to_json())
  value = {
    "command": rerun_command(),
    "config": config,
    "task": models[c.init].task.name,
    "models": {
      name: {"folders": x.folders, "seeds": x.seeds}
      for name, x in models.items()
    },
    "sets": {x.name: report.to_json(x, result) for x, result in results},
    "conclusion": conclusion,
  }
  files.save_json(workdir / files.CONFIG, config)
  path = workdir / files.RESULTS
  files.save_json(path, metrics_file.finite_or_null(value), indent=None)


def _describe_plan(
  c: ConfigDict, models: Models, names: Sequence[str]
) -> dict[str, str]:
  """Describes in a dry run what would be read, made and scored."""
  o = c.robustness
  lines = {"dry run": "reads no examples; writes and compiles nothing"}
  for key, name in {"model": c.init, "against": o.against}.items():
    seeds = ", ".join(map(str, models[name].seeds)) if name in models else ""
    lines[key] = find.describe(name) if name else "none"
    lines[key] += f"; seeds {seeds}" if seeds else ""
  if model := models.get(c.init):
    data = task_data.find_split(model.options, model.task.name, "dev")
    lines["task"] = model.task.title
    lines["data"] = f"{data}; {o.rows or 'all'} examples, seed {c.seed}"
  lines["sets"] = ", ".join(names) or o.sets or "none"
  lines["published"] = o.files or "none"
  return lines
