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
from collections.abc import Collection, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config import grammar
from truenegs_jax.config.tables import Robustness
from truenegs_jax.finetune import task_data
from truenegs_jax.report.page import print_table
from truenegs_jax.report.write import write_own_report
from truenegs_jax.robustness import (
  add_sentence,
  eval_set,
  scores,
  transformation,
)
from truenegs_jax.robustness.annotate import Annotator, load_annotator
from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.robustness.model import FineTunedModel, open_model
from truenegs_jax.robustness.transformation import transform_all
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import DataError, InputError, rerun_command
from truenegs_jax.synonyms import wordnet
from truenegs_jax.tasks.records import HUB
from truenegs_jax.tasks.task import SQUAD, TASKS, Question
from truenegs_jax.weights import find
from truenegs_jax.workdir import files, lock

SWAP = "swap_synonyms"
ADD = "add_sentence"
SETS = "sets"  # the folder in a workdir
SUMMARY = "Scores on changed texts."
FILES = "robustness.files"  # the config key


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Scores the model, prints and saves the results; returns the exit code."""
  o = Robustness.read(c.robustness)
  check(o, workdir)
  report = functools.partial(console.print, soft_wrap=True)
  names = grammar.parse_names(
    o.sets, key="robustness.sets", choices=(SWAP, ADD)
  )
  sources = parse_files(o.files, names)
  model = open_model(c.init, c.to_dict(), report)
  if not (names or sources):
    raise InputError(
      f"There is nothing to score. Set --config.robustness.sets={SWAP} or"
      " --config.robustness.files=FILE."
    )
  annotator = None
  if names:
    annotator = load_annotator(o.spacy_model)
    wordnet.find_wordnet()
  if c.dry_run:
    seeds = [str(x) for x in model.seeds.values() if x is not None]
    texts = [find.describe(c.init)]
    if seeds:
      texts.append(f"seeds {', '.join(seeds)}")
    report("dry run: reads no examples; writes and compiles nothing")
    report(f"model: {'; '.join(texts)}")
    report(f"sets: {', '.join([*names, *sources.values()])}")
    return 0
  with progress.working(console, "Reading questions"):
    published = [
      eval_set.read_published(name, where) for name, where in sources.items()
    ]
    questions: list[Question] = []
    if annotator:
      task = TASKS[SQUAD]
      questions = task_data.read_split(
        model.options, task, "dev", section="robustness"
      )
  with lock.lock(workdir):
    sets = []
    if annotator:
      sets = make_sets(
        names, annotator, questions, o, seed=c.seed, console=console
      )
    for x in sets:
      eval_set.save_set(x, workdir / SETS)
    config = json.loads(c.to_json())
    _score_sets(config, model, [*sets, *published], workdir, console)
  return 0


def make_sets(
  names: Sequence[str],
  annotator: Annotator,
  questions: Sequence[Question],
  o: Robustness,
  *,
  seed: int,
  console: Console,
) -> list[EvalSet]:
  """Draws questions of a dev set, and makes the named sets of them."""
  size = len(questions)
  rng = random.Random(f"{seed}/rows")
  rows = rng.sample(range(size), min(o.rows or size, size))
  drawn = [questions[i] for i in sorted(rows)]
  sets = []
  reader = wordnet.open_wordnet()
  for name in names:
    if name == SWAP:
      change = transformation.make_swap(annotator, reader)
    else:
      change = add_sentence.make_add_sentence(
        annotator, reader, questions, neighbours=o.neighbours
      )
    title = f"Changing texts, {change.title}"
    with progress.counting(console, title, len(drawn)) as advance:
      new_set = transform_all(drawn, change, seed=seed, advance=advance)
    if not new_set.transformed:
      raise DataError(
        f"robustness.sets: {name} changed none of {len(drawn):,} questions:"
        f" {new_set.about['refused']}. Remove it, or choose other questions."
      )
    sets.append(new_set)
  return sets


def _score_sets(
  config: dict[str, Any],
  model: FineTunedModel,
  sets: Sequence[EvalSet],
  workdir: pathlib.Path,
  console: Console,
) -> None:
  """Scores the model on sets; prints and saves the results."""
  say = functools.partial(console.print, soft_wrap=True)
  for x in sets:
    say(scores.describe_set(x))
  answer = functools.partial(model.answer, console=console)
  runs, by_set = scores.score_model(answer, model.seeds, sets)
  results = {
    x.name: scores.make_result(
      x,
      config["init"],
      by_set[x.name],
      family=model.family,
      width=model.width,
    )
    for x in sets
  }
  table = scores.make_table(results.values())
  print_table(table, console)
  notes = [model.note] if model.note else []
  for text in (SUMMARY, *notes):
    say(f"* {text}")
  value = {
    "command": rerun_command(),
    "config": config,
    "runs": runs,
    "summary": SUMMARY,
    "notes": notes,
    "tables": [dataclasses.asdict(table)],
    "sets": results,
  }
  files.save_json(workdir / files.CONFIG, config)
  path = workdir / files.RESULTS
  files.save_json(path, value, indent=None)
  write_own_report(workdir, say)
  say(f"saved: {path}, {workdir / files.REPORT}, {workdir / SETS}/")


def check(o: Robustness, workdir: pathlib.Path) -> None:
  """Raises InputError for a wrong value, before any file is read."""
  path = os.path.expanduser(o.neighbours)
  if path and not os.path.isfile(path):
    raise InputError(
      f"robustness.neighbours={o.neighbours!r}: there is no such file. Pass a"
      " file of word vectors, such as glove.6B.100d.txt."
    )
  files.check_no_run(workdir, "robustness")


def parse_files(text: str, sets: Collection[str]) -> dict[str, str]:
  """Returns what `robustness.files` names, by the names of the sets.

  A set has the name of its file or data set, or that of the option name=, which
  is none of `sets`, those that this run makes.
  """
  sources: dict[str, str] = {}
  for item in grammar.parse_items(text, key=FILES):
    where = item.name
    options = dict(item.options)
    name = options.pop("name", "") or eval_set.find_name(where)
    is_set = where and (not options or where.startswith(HUB))
    if not is_set or name in (*sets, *sources):
      raise InputError(
        f"{FILES}={text!r}: {name!r}. Each item is a file or hf:NAME with its"
        " options, and has another name, such as FILE name=TITLE, hf:NAME"
        " config=CONFIG split=SPLIT."
      )
    if options:
      where = f"{where} {grammar.format_item('', options.items())}"
    sources[name] = where
  return sources
