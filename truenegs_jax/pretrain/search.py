"""Searches the rows of a finished run for corrections to show."""

import dataclasses
import functools
import pathlib

from rich.console import Console

from truenegs_jax.data import batches
from truenegs_jax.pretrain import cases, evaluate, predict_slots
from truenegs_jax.pretrain.evaluate import Trained
from truenegs_jax.report.page import print_table
from truenegs_jax.runtime import distributed, progress
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import speed
from truenegs_jax.workdir import files


def save_cases(
  trained: Trained,
  workdir: pathlib.Path,
  clock: speed.TimeLimit,
  console: Console,
) -> None:
  """Searches a run for corrections; prints and saves them."""
  num_shown = trained.run.config.eval.cases
  table = trained.find_table()
  with progress.working(console, "Searching for corrections"):
    search = find_cases(trained, table, clock)
  saved = dataclasses.asdict(search)
  if distributed.is_first_process():
    files.save_json(workdir / files.CASES, saved, indent=None)
  if num_shown:
    print_table(
      cases.make_cases_table(search, search.cases[:num_shown]), console
    )
  counts = {x: saved[x] for x in ("searched", "corrected")}
  shown = saved["cases"][:num_shown]
  evaluate.update_results(workdir, corrections=counts | {"cases": shown})


def find_cases(
  trained: Trained, table: SynonymTable, clock: speed.TimeLimit
) -> cases.Search:
  """Searches at most `eval.search_rows` rows.

  Held-out rows are searched, then training rows until there are enough cases to
  print or the time of the run is over. All processes search the same rows, in
  batches as large as a micro-batch of training.
  """
  run = trained.run
  c = run.config
  rows = trained.inputs.train_rows
  held_out_rows = trained.inputs.held_out_rows
  size = c.batch_size // c.optim.accumulation
  predict = functools.partial(
    predict_slots.predict_batch,
    predict_slots.build_predict_step(run),
    trained.state.params,
    run.mesh,
  )
  finder = cases.CaseFinder(table, run.tokenizer)
  limit = c.eval.search_rows
  for batch in batches.held_out_batches(held_out_rows, size, limit=limit):
    finder.add(predict(batch))
  epoch_rows = len(rows) // c.batch_size * c.batch_size
  left = min(limit - len(held_out_rows), epoch_rows)
  for step in range(-(-left // size)):
    is_enough = len(finder.counts) >= c.eval.cases
    if is_enough or clock.is_over(f"search {step}"):
      break
    batch = batches.batch_at(rows, step, batch_size=size, seed=c.seed)
    batch["documents"][left - step * size :] = 0  # no slots beyond the limit
    finder.add(predict(batch))
  return finder.finish()
