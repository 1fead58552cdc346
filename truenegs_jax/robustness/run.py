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
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config import grammar
from truenegs_jax.config.tables import Robustness
from truenegs_jax.finetune import task_data
from truenegs_jax.finetune.results import RUNS
from truenegs_jax.finetune.start import FineTunedModel, open_model
from truenegs_jax.report.tables import print_table
from truenegs_jax.report.write import write_own_report
from truenegs_jax.robustness import add_sentence, eval_set, scores, swap
from truenegs_jax.robustness.annotate import Annotator, load_annotator
from truenegs_jax.robustness.eval_set import EvalSet
from truenegs_jax.robustness.transformation import transform_all
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError, rerun_command
from truenegs_jax.synonyms import wordnet
from truenegs_jax.tasks.records import HUB
from truenegs_jax.tasks.task import SPANS, Task
from truenegs_jax.weights import find
from truenegs_jax.workdir import files, lock

SWAP = "swap_synonyms"
ADD = "add_sentence"
PAPER = "paper"  # SWAP and, for questions, ADD
SETS = "sets"  # the folder in a workdir
FILES = "robustness.files"  # the config key


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Scores the model, prints and saves the results; returns the exit code."""
  o = Robustness.read(c.robustness)
  check(o, workdir)
  report = functools.partial(console.print, soft_wrap=True)
  model = open_model(c.init, c.to_dict(), report, task_name=o.task)
  names = choose_sets(o.sets, model.task)
  sources = parse_files(o.files)
  if not (names or sources):
    raise InputError(
      "There is nothing to score. Set --config.robustness.sets=paper or"
      " --config.robustness.files=FILE."
    )
  annotator = None
  if names:
    annotator = load_annotator(o.spacy_model)
    wordnet.find_wordnet()
  if c.dry_run:
    seeds = ", ".join(map(str, model.seeds.values()))
    lines = {
      "dry run": "reads no examples; writes and compiles nothing",
      "model": f"{find.describe(c.init)}; seeds {seeds}",
      "sets": ", ".join(names) or "none",
      "published": ", ".join(sources.values()) or "none",
    }
    console.print(progress.make_table(lines))
    return 0
  with progress.working(console, "Reading examples"):
    published = [
      eval_set.read_published(name, where, model.task)
      for name, where in sources.items()
    ]
    examples: list[Any] = []
    if annotator:
      examples, _ = task_data.read_split(model.options, model.task, "dev")
  with lock.lock(workdir):
    sets = []
    if annotator:
      sets = make_sets(names, annotator, examples, c, console)
    for x in sets:
      eval_set.save_set(x, workdir / SETS)
    config = json.loads(c.to_json())
    _score_sets(config, model, [*sets, *published], workdir, console)
  return 0


def make_sets(
  names: Sequence[str],
  annotator: Annotator,
  examples: Sequence[Any],
  c: ConfigDict,
  console: Console,
) -> list[EvalSet]:
  """Draws examples of a dev set, and makes the named sets of them."""
  size = len(examples)
  rng = random.Random(f"{c.seed}/rows")
  rows = rng.sample(range(size), min(c.robustness.rows or size, size))
  drawn = [examples[i] for i in sorted(rows)]
  sets = []
  reader = wordnet.open_wordnet()
  for name in names:
    if name == SWAP:
      transformation = swap.make_swap(annotator, reader)
    else:
      transformation = add_sentence.make_add_sentence(
        annotator, reader, examples, neighbours=c.robustness.neighbours
      )
    title = f"Changing texts, {transformation.title}"
    with progress.counting(console, title, len(drawn)) as advance:
      sets.append(
        transform_all(drawn, transformation, seed=c.seed, advance=advance)
      )
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
  sets = [x for x in sets if x.transformed]
  runs: dict[str, Any] = {}
  results: dict[str, Any] = {}
  if sets:
    answer = functools.partial(model.answer, console=console)
    runs, by_set = scores.score_model(answer, model.task, model.seeds, sets)
    for x in sets:
      results[x.name] = scores.make_result(
        x, config["init"], by_set[x.name], model.network
      )
  notes = [model.note] if model.note else []
  if model.network != scores.NETWORK and model.task.kind == SPANS:
    notes.append(
      "The paper's ELECTRA-small is not shown: it has a"
      f" {scores.NETWORK}, and this is a {model.network}."
    )
  tables = []
  summary = "No example could be changed, so that there is nothing to score."
  if results:
    summary = "Scores on changed texts."
    tables.append(scores.make_table(results.values(), model.task))
    print_table(tables[0], console)
  for text in (summary, *notes):
    say(f"* {text}")
  value = {
    "command": rerun_command(),
    "config": config,
    "runs": runs,
    "summary": summary,
    "notes": notes,
    "tables": [*map(dataclasses.asdict, tables)],
    "sets": results,
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
  files.check_no_run(workdir, RUNS)


def choose_sets(text: str, task: Task) -> tuple[str, ...]:
  """Returns the sets to make for a task, of a value of robustness.sets."""
  chosen = grammar.parse_names(
    text, key="robustness.sets", choices=(SWAP, ADD, PAPER)
  )
  if task.kind == SPANS:
    return (SWAP, ADD) if PAPER in chosen else chosen
  if ADD in chosen:
    raise InputError(
      f"robustness.sets: {ADD} changes questions on contexts, but {task.title}"
      " has labeled texts. Remove it."
    )
  return (SWAP,) if chosen else ()


def parse_files(text: str) -> dict[str, str]:
  """Returns what `robustness.files` names, by the names of the sets.

  A set has the name of its file or data set, or that of the option name=.
  """
  sources: dict[str, str] = {}
  for item in grammar.parse_items(text, key=FILES):
    where = item.name
    options = dict(item.options)
    name = options.pop("name", "") or eval_set.find_name(where)
    if not where or options and not where.startswith(HUB):
      raise InputError(
        f"{FILES}={text!r}: each item is a file or hf:NAME with its options,"
        " such as FILE name=TITLE, hf:NAME config=CONFIG split=SPLIT."
      )
    if name in (SWAP, ADD, *sources):
      raise InputError(
        f"{FILES}={text!r}: the name {name!r} is taken. Give this set another"
        " name with name=TITLE."
      )
    if options:
      where = f"{where} {grammar.format_item('', options.items())}"
    sources[name] = where
  return sources
