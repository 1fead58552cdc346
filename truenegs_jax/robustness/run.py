"""Runs the task "robustness": scores a fine-tuned model on changed texts.

model -> dev set -> sample -> sets, saved in sets/NAME -> answers -> table

The model's workdir is only read. Answers and scores are saved in results.json.
"""

import dataclasses
import functools
import json
import os
import pathlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config import grammar
from truenegs_jax.config.tables import Robustness
from truenegs_jax.finetune import task_data
from truenegs_jax.finetune.results import RUNS
from truenegs_jax.finetune.start import FineTunedModel, open_model
from truenegs_jax.report.write import write_own_report
from truenegs_jax.robustness import add_sentence, eval_set, scores, word_changes
from truenegs_jax.robustness.annotate import Annotator, make_annotator
from truenegs_jax.robustness.transformation import Transformation, transform_all
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError, rerun_command
from truenegs_jax.tasks.task import SPANS, Task
from truenegs_jax.train import plan
from truenegs_jax.weights import find
from truenegs_jax.workdir import files, lock

SWAP, ADD, TYPOS = NAMES = "swap_synonyms", "add_sentence", "typos"
PAPER = "paper"  # SWAP and, for questions, ADD
SETS = "sets"  # the folder in a workdir
Models = dict[str, FineTunedModel]  # by their names in tables, `init` first


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Scores the models, prints and saves the results; returns the exit code."""
  o = Robustness.read(c.robustness)
  check(o, workdir)
  report = functools.partial(console.print, soft_wrap=True)
  models = _open_models(c.init, o, c.to_dict(), report)
  model = models[c.init]
  names, paths = choose_sets(o, model.task)
  needs_annotator = not {SWAP, ADD}.isdisjoint(names)
  annotator = make_annotator(o.annotations) if needs_annotator else None
  if c.dry_run:
    lines = {"dry run": "reads no examples; writes and compiles nothing"}
    named = zip(("model", "against"), models.items(), strict=False)
    for key, (name, opened) in named:
      seeds = ", ".join(map(str, opened.seeds.values()))
      lines[key] = f"{find.describe(name)}; seeds {seeds}"
    lines["sets"] = ", ".join(names) or "none"
    lines["published"] = o.files or "none"
    console.print(plan.report_table(lines))
    return 0
  examples: list[Any] = []
  with progress.working(console, "Reading examples"):
    read = functools.partial(eval_set.read_published, task=model.task)
    published = [*map(read, paths, paths.values())]
    if names:
      examples, _ = task_data.read_split(model.options, model.task, "dev")
    transformations = [
      make_transformation(x, annotator, examples, o, c.data.wordnet_dir)
      for x in names
    ]
  rng, size = random.Random(f"{c.seed}/rows"), len(examples)
  drawn_rows = rng.sample(range(size), min(o.rows or size, size))
  drawn = [examples[i] for i in sorted(drawn_rows)]
  with lock.lock(workdir):
    sets = []
    for x in transformations:
      title = f"Changing texts, {x.title}"
      with progress.counting(console, title, len(drawn)) as advance:
        sets.append(transform_all(drawn, x, seed=c.seed, advance=advance))
      eval_set.save_set(sets[-1], workdir / SETS)
    config = json.loads(c.to_json())
    _report_scores(config, models, [*sets, *published], workdir, console)
  return 0


def _report_scores(
  config: Mapping[str, Any],
  models: Models,
  sets: Sequence[eval_set.EvalSet],
  workdir: pathlib.Path,
  console: Console,
) -> None:
  """Scores the models on sets; prints and saves the results."""
  say = functools.partial(console.print, soft_wrap=True)
  for x in sets:
    say(scores.describe_set(x))
  sets = [x for x in sets if x.transformed]
  records: dict[str, Any] = {}
  by_model: dict[str, Mapping[str, scores.SetScores]] = {}
  for name, model in models.items() if sets else ():
    answer = functools.partial(model.answer, console=console)
    by_folder, by_model[name] = scores.score_model(
      answer, model.task, model.seeds, sets
    )
    records[name] = {k: dataclasses.asdict(x) for k, x in by_folder.items()}
  first = next(iter(models.values()))
  results = [scores.make_result(x, by_model, first.network) for x in sets]
  notes = [model.note for model in models.values() if model.note]
  if first.network != scores.NETWORK and first.task.kind == SPANS:
    reason = f"it has a {scores.NETWORK}, and this is a {first.network}"
    notes.append(f"The paper's ELECTRA-small is not shown: {reason}.")
  if results:
    scores.print_scores(results, first.task, console)
    for note in notes:
      say(f"* {note}")
  else:
    say("No example could be changed, so that there is nothing to score.")
  value = {
    "command": rerun_command(),
    "config": config,
    "models": records,
    "notes": notes,
    "sets": {x.examples.name: x.to_json() for x in results},
  }
  files.save_json(workdir / files.CONFIG, config)
  path = workdir / files.RESULTS
  files.save_json(path, files.finite_or_null(value), indent=None)
  write_own_report(workdir, say)
  say(f"saved: {path}, {workdir / files.REPORT}, {workdir / SETS}/")


def check(o: Robustness, workdir: pathlib.Path) -> None:
  """Raises InputError for a wrong value, before any file is read."""
  parse_files(o.files)
  path = os.path.expanduser(o.neighbours)
  if path and not os.path.isfile(path):
    raise InputError(
      f"robustness.neighbours={o.neighbours!r}: there is no such file. Pass a"
      " file of word vectors, such as glove.6B.100d.txt."
    )
  if (workdir / files.CHECKPOINTS).exists() or any(workdir.glob(RUNS)):
    raise InputError(
      f"--workdir='{workdir}' is the workdir of a run, whose results would be"
      " replaced. Choose another, such as --workdir=runs/robustness."
    )


def _open_models(
  init: str,
  o: Robustness,
  values: Mapping[str, Any],
  report: Callable[[str], None],
) -> Models:
  """Opens the model of `init` and that of `o.against`; `values`: the config."""
  models = {init: open_model(init, values, report, task_name=o.task)}
  if not (against := o.against):
    return models
  key, task = "robustness.against", models[init].task
  other = open_model(against, values, report, key=key, task_name=task.name)
  if other.task.labels != task.labels:
    raise InputError(
      f"{key}={against!r} has the classes {', '.join(other.task.labels)}, but"
      f" init has {', '.join(task.labels)}. Pass two models of one task."
    )
  return models | {against: other}


def parse_files(text: str) -> dict[str, str]:
  """Parses `robustness.files`, "NAME=FILE NAME='hf:NAME split=S'"."""
  item = grammar.parse_item(text, key="robustness.files")
  if item.name or not all(item.options.values()):
    raise InputError(
      f"robustness.files={text!r} is not of the form NAME=FILE. Set"
      " --config.robustness.files='NAME=FILE NAME=FILE'."
    )
  return item.options


def choose_sets(
  o: Robustness, task: Task
) -> tuple[tuple[str, ...], dict[str, str]]:
  """Returns the sets to make for a task, and the files of others by name."""
  paths, choices = parse_files(o.files), (*NAMES, PAPER)
  chosen = grammar.parse_names(o.sets, key="robustness.sets", choices=choices)
  paper, names = [SWAP, ADD] if task.kind == SPANS else [SWAP], list[str]()
  for name in chosen:
    if name == ADD and task.kind != SPANS:
      raise InputError(
        f"robustness.sets: {name} changes questions on contexts, but"
        f" {task.title} has labeled texts. Remove it."
      )
    names += paper if name == PAPER else [name]
  if not (names or paths):
    raise InputError(
      "There is nothing to score. Set --config.robustness.sets=paper or"
      " --config.robustness.files='NAME=FILE'."
    )
  if both := paths.keys() & set(names):
    raise InputError(
      f"robustness.files: {min(both)!r} is also in robustness.sets. Choose"
      " another name."
    )
  return tuple(dict.fromkeys(names)), paths


def make_transformation(
  name: str,
  annotator: Annotator | None,
  questions: Sequence[Any],
  o: Robustness,
  wordnet_dir: str,
) -> Transformation:
  """Makes a transformation of NAMES; `questions` are all of the dev set."""
  if name == SWAP and annotator:
    return word_changes.make_swap(annotator, wordnet_dir)
  if name == ADD and annotator:
    return add_sentence.make_add_sentence(
      annotator, questions, neighbours=o.neighbours, wordnet_dir=wordnet_dir
    )
  return word_changes.make_typos()
