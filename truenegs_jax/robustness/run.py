"""Runs the task "robustness": scores a fine-tuned model on changed texts.

model -> dev set -> sample -> sets, saved in sets/NAME -> answers -> table

The model's workdir is only read. Answers and scores are saved in results.json.
"""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.configs.common_keys import rules
from truenegs_jax.finetune import task_data
from truenegs_jax.robustness import (
  comparison,
  make_sets,
  published_sets,
  report,
)
from truenegs_jax.robustness.annotate import save_annotations
from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.robustness.fine_tuned import FineTunedModel, open_model
from truenegs_jax.robustness.report import SetResult
from truenegs_jax.robustness.scores import score_set
from truenegs_jax.robustness.transformation import texts
from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.cache import enable_compilation_cache
from truenegs_jax.runtime.config_files import flatten
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.flags import rerun_command
from truenegs_jax.train import check_values, plan
from truenegs_jax.weights.formats import find
from truenegs_jax.workdir import files, lock, metrics_file


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Scores the model, prints and saves the results; returns the exit code.

  Raises:
    TrueNegsError: its class has the exit code.
  """

  def say(text: str) -> None:
    console.print(text, soft_wrap=True)

  _check(c, workdir)
  given = [c.init, *filter(None, [c.robustness.against])]
  if c.dry_run and not all(map(find.is_local, given)):
    console.print(plan.report_table(_describe_plan(c)))
    return 0
  models = _open_models(c, say)
  model = next(iter(models.values()))
  names = make_sets.parse_names(c.robustness.sets, model.task)
  where = published_sets.parse_files(c.robustness.files)
  if not names and not where:
    raise InputError(
      "There is nothing to score. Set --config.robustness.sets=paper or"
      " --config.robustness.files='NAME=FILE'."
    )
  if both := where.keys() & set(names):
    raise InputError(
      f"robustness.files: {min(both)!r} is also in robustness.sets. Choose"
      " another name."
    )
  if c.dry_run:
    console.print(plan.report_table(_describe_plan(c, model, names)))
    return 0
  enable_compilation_cache()
  sets = [
    published_sets.read_published(name, path, model.task, model.columns)
    for name, path in where.items()
  ]
  with lock.lock(workdir):
    if names:
      sets = [*_make_sets(c, names, model, workdir, console), *sets]
    for examples in sets:
      say(report.describe_set(examples))
    sets = [examples for examples in sets if examples.transformed]
    results = _score(sets, models, console)
    _report(c, results, models, console)
    files.save_json(workdir / files.CONFIG, json.loads(c.to_json()))
    _save(c, results, models, workdir / files.RESULTS)
  say(f"saved: {workdir / files.RESULTS}, {workdir / make_sets.SETS}/")
  return 0


def _check(c: ConfigDict, workdir: pathlib.Path) -> None:
  """Raises InputError for a wrong value, before any file is read."""
  if distributed.process_count() > 1:
    raise InputError("Several processes are only for pre-training. Use one.")
  check_values.check_values(flatten(c.to_dict()), rules("robustness"))
  published_sets.parse_files(c.robustness.files)
  if files.has_pretraining(workdir) or any(workdir.glob("*/seed-*")):
    raise InputError(
      f"--workdir='{workdir}' is the workdir of a run, whose results would be"
      " replaced. Choose another, such as --workdir=runs/robustness."
    )


def _open_models(
  c: ConfigDict, say: Callable[[str], None]
) -> dict[str, FineTunedModel]:
  """Opens `c.init` and `robustness.against`, by their names in tables."""
  models = {c.init: open_model(c, c.init, say)}
  if against := c.robustness.against:
    key = "robustness.against"
    if against == c.init:
      raise InputError(f"{key}={against!r} is also init. Pass another model.")
    models[against] = open_model(c, against, say, key=key)
    first, other = (x.task for x in models.values())
    if (first.name, first.labels) != (other.name, other.labels):
      raise InputError(
        f"{key}={against!r} is a model of {other.title}, but init of"
        f" {first.title}. Pass two models of one task."
      )
  return models


def _make_sets(
  c: ConfigDict,
  names: Sequence[str],
  model: FineTunedModel,
  workdir: pathlib.Path,
  console: Console,
) -> list[EvalSet]:
  o = c.robustness
  with console.status("reading the dev set ..."):
    examples = task_data.read_dev(model.options, model.task)
    transformations, annotator = make_sets.make_transformations(
      c, names, model, examples
    )
  drawn = make_sets.draw_rows(examples, o.rows, c.seed)
  sets = []
  for transformation in transformations:
    with console.status(f"{transformation.title} ..."):
      sets.append(
        make_sets.make_or_read(
          transformation,
          drawn,
          c.seed,
          workdir,
          lambda text: console.print(text, soft_wrap=True),
        )
      )
  if o.record and annotator:
    path = pathlib.Path(o.record).expanduser()
    save_annotations(path, (x for e in drawn for x in texts(e)), annotator)
  return sets


def _score(
  sets: Sequence[EvalSet], models: dict[str, FineTunedModel], console: Console
) -> list[SetResult]:
  """Answers all examples of all sets at once, and scores them."""
  sides = [side for x in sets for side in (x.original, x.transformed)]
  examples = [example for side in sides for example in side]
  by_set: list[dict[str, Any]] = [{} for _ in sets]
  for name, model in models.items():
    count, runs = len(examples), len(model.initials)
    with console.status(f"{name}: {count:,} answers of {runs} runs ..."):
      answers_SxN = model.answer(examples)
    start = 0
    for side_number, side in enumerate(sides):
      part = [run[start : start + len(side)] for run in answers_SxN]
      by_set[side_number // 2].setdefault(name, []).append(part)
      start += len(side)
  results = []
  for x, answers in zip(sets, by_set, strict=True):
    scores = {
      name: score_set(x, models[name].task, *pair)
      for name, pair in answers.items()
    }
    pair = list(scores.values())
    compared = comparison.compare_sets(*pair) if pair[1:] else None
    results.append(SetResult(x, scores, answers, compared))
  return results


def _report(
  c: ConfigDict,
  results: Sequence[SetResult],
  models: dict[str, FineTunedModel],
  console: Console,
) -> None:
  for result in results:
    report.print_samples(result.examples, c.robustness.samples, console)
  if not results:
    console.print("No example could be transformed.")
    return
  task = next(iter(models.values())).task
  title = f"{task.title}, % ± standard error over questions"
  report.print_table(results, title, console)
  if sentence := _conclude(results):
    report.print_comparison(results, console)
    console.print(sentence, soft_wrap=True)


def _conclude(results: Sequence[SetResult]) -> str:
  compared = {x.examples.title: x.compared for x in results if x.compared}
  return comparison.conclude(compared) if compared else ""


def _save(
  c: ConfigDict,
  results: Sequence[SetResult],
  models: dict[str, FineTunedModel],
  path: pathlib.Path,
) -> None:
  value = {
    "command": rerun_command(),
    "config": json.loads(c.to_json()),
    "task": next(iter(models.values())).task.name,
    "models": {
      name: {"folders": x.origin.folders, "seeds": x.origin.seeds}
      for name, x in models.items()
    },
    "sets": {x.examples.name: report.to_json(x) for x in results},
    "conclusion": _conclude(results),
  }
  files.save_json(path, metrics_file.finite_or_null(value), indent=None)


def _describe_plan(
  c: ConfigDict,
  model: FineTunedModel | None = None,
  names: Sequence[str] = (),
) -> dict[str, str]:
  """Describes in a dry run what would be read, made and scored."""
  o = c.robustness
  lines = {
    "dry run": "reads no examples; writes and compiles nothing",
    "model": find.describe(c.init),
  }
  if model:
    seeds = ", ".join(map(str, model.origin.seeds))
    data = task_data.find_split(model.options, model.task.name, "dev")
    lines |= {
      "model": f"'{c.init}'" + (f", seeds {seeds}" if seeds else ""),
      "task": model.task.title,
      "data": f"{data}; {o.rows or 'all'} examples, seed {c.seed}",
    }
  lines["sets"] = ", ".join(names) or o.sets or "none"
  if o.files:
    lines["published"] = o.files
  if o.against:
    lines["against"] = o.against
  return lines
