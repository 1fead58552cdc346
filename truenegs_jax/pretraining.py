"""The task "pretrain", from text to a model that Hugging Face loads.

prepare rows -> synonym table -> train -> verdict, cases, fills, curves ->
export
"""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
import shlex
import signal
import sys
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax import (
  cache,
  distributed,
  dry_run,
  errors,
  export,
  huggingface,
  model_card,
  prepare,
  tables,
)
from truenegs_jax.data import pipeline, rows
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.evals import corrections, curves, fills, slots, verdict
from truenegs_jax.models import pretrain
from truenegs_jax.synonyms import table
from truenegs_jax.train import (
  build,
  checks,
  guards,
  loop,
  own_table,
  startup,
  writers,
)
from truenegs_jax.weights import sizes

EXIT_NOT_LEARNED = 1
SEARCHED_STEPS = 200  # batches of training rows searched for cases


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Runs or goes on with a pre-training; returns the exit code.

  Raises:
    TrueNegsError: with the exit code that belongs to it.
  """
  say = functools.partial(console.print, soft_wrap=True)
  with distributed.together("config"):
    c = sizes.resolve(c, saved=tables.saved_config(workdir), say=say)
    checks.check_config(c)
  if c.dry_run:
    return dry_run.dry_run(c, console)
  with distributed.together("given"):
    checks.check_given(c, saved=tables.has_checkpoint(workdir), say=say)
  enable_compilation_cache()
  with guards.lock(workdir):
    with distributed.together("inputs"):
      inputs = gather_inputs(c, workdir, console)
    outcome = loop.train(c, workdir, inputs, console)
    if outcome.stopped_by is not None:
      console.print(
        f"saved at step {int(outcome.start.state.step):,}; to go on from"
        f" there, give the same command again: {command()}",
        soft_wrap=True,
      )
      if outcome.stopped_by == signal.SIGINT:
        return errors.SAVED_INTERRUPT
      return errors.SAVED_RESTART
    return finish(c, workdir, inputs, outcome, console)


def gather_inputs(
  c: ConfigDict, workdir: pathlib.Path, console: Console
) -> startup.Inputs:
  """Rows, tokenizer and synonym table of a config, made where missing."""
  folder, tokenizer = prepare.prepare_config(c)
  train_rows = rows.open_rows(folder, "train")
  rows.check_batch_size(train_rows, c.batch_size)
  held_out_rows = rows.open_rows(folder, "held_out")
  if not len(held_out_rows):
    raise errors.DataError(
      f"{folder} holds no held-out rows: the text fills a single row; give"
      " more text, or a smaller --config.length."
    )
  fills.encode_sentences(
    tokenizer, c.eval.sentences, max_length=c.model.max_positions
  )
  found, synonyms = None, None
  if tables.wanted(c):
    found = tables.find_or_build(c, workdir, tokenizer, console)
    synonyms = found.fingerprint if found else own_table.rule(c)
  return startup.Inputs(
    tokenizer=tokenizer,
    train_rows=train_rows,
    held_out_rows=held_out_rows,
    table=found,
    fingerprints={
      "vocabulary": tokenizer.fingerprint,
      "rows": train_rows.fingerprint,
      "synonyms": synonyms,
    },
  )


def finish(
  c: ConfigDict,
  workdir: pathlib.Path,
  inputs: startup.Inputs,
  outcome: loop.Outcome,
  console: Console,
) -> int:
  """Judges, shows, draws and exports a finished run; returns the exit code."""
  start = outcome.start
  params = distributed.to_host(start.state.params)
  own_ids = distributed.to_host(start.state.aux)
  if not distributed.is_first():
    return 0  # the first process has all that is left to do
  on_device = jax.device_put(params)  # once, not with every batch
  if own_ids:
    inputs = _with_own_table(c, workdir, inputs, own_ids["ids_VxS"])
  unigram_V = np.load(inputs.train_rows.folder / "unigram_V.npy")
  judged = verdict.judge(outcome.held_out, unigram_V)
  console.print(verdict.table(judged))
  results = {
    "command": command(),
    "seed": c.seed,
    "steps": c.steps,
    "fingerprints": dict(inputs.fingerprints),
    "verdict": writers.finite_or_null(dataclasses.asdict(judged))
    | {"passed": judged.passed},
  }
  if inputs.table is not None and c.negatives.hard_correction:
    cases, searched = _find_cases(c, inputs, start, on_device)
    console.print(corrections.show(cases, searched))
    results["corrections"] = {
      "predictions_searched": searched,
      "cases": [dataclasses.asdict(case) for case in cases],
    }
  filled = fills.fill_masks(
    start.run.model,
    on_device,
    inputs.tokenizer,
    c.eval.sentences,
    max_length=c.model.max_positions,
  )
  if filled:
    console.print(fills.show(filled))
  results["fills"] = [dataclasses.asdict(fill) for fill in filled]
  startup.save_json(workdir / "results.json", results)
  drawn = curves.draw(workdir)
  console.print(f"curves: {', '.join(map(str, drawn))}", soft_wrap=True)
  _export(c, workdir, inputs.tokenizer, start.run.model, params, console)
  if judged.passed or not c.eval.must_learn:
    return 0
  console.print(
    "not learned: the MLM loss must end below the unigram entropy, and the AUC"
    f" of ELECTRA above 0.5 by {verdict.MIN_ERRORS:g} standard errors",
    soft_wrap=True,
  )
  return EXIT_NOT_LEARNED


def _with_own_table(
  c: ConfigDict,
  workdir: pathlib.Path,
  inputs: startup.Inputs,
  ids_VxS: np.ndarray,
) -> startup.Inputs:
  """The inputs with the table that the model has made, which is saved, too."""
  own = own_table.saved_table(c, ids_VxS, inputs.tokenizer.vocab)
  table.save_table(own, workdir / startup.SYNONYMS)
  return dataclasses.replace(inputs, table=own)


def command() -> str:
  """What to type to run this again."""
  name = pathlib.Path(sys.argv[0]).stem
  words = [f"python -m truenegs_jax.{name}", *map(shlex.quote, sys.argv[1:])]
  return " ".join(words)


def enable_compilation_cache() -> None:
  """Keeps what is compiled, so that a restart does not compile again.

  Whoever can write the folder can have code run, so it is the user's alone;
  where it cannot be, a line says so and nothing is kept. A damaged entry is
  compiled again. JAX_COMPILATION_CACHE_DIR, when set, names another folder,
  which is then taken as it is.
  """
  if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    return
  folder = cache.folder() / "xla"
  try:
    cache.make_private(folder)
  except OSError as e:
    distributed.tell(
      f"what is compiled is not kept for the next start: {e}. To keep it, let"
      " TRUENEGS_CACHE name a folder that only you can write to."
    )
    return
  jax.config.update("jax_compilation_cache_dir", str(folder))


def _find_cases(c, inputs, start, params):
  """Searches the held-out rows first, then some of the training rows."""
  held_out = pipeline.held_out_batches(
    inputs.held_out_rows, batch_size=c.batch_size
  )
  trained = (
    pipeline.batch_at(
      inputs.train_rows, i, batch_size=c.batch_size, seed=c.seed
    )
    for i in range(min(c.steps, SEARCHED_STEPS))
  )
  return corrections.find_cases(
    slots.make_predict_slots(
      start.run.model,
      start.run.options.masking,
      visible_slots=c.negatives.visible_slots,
      continues_V=build.continuations(c, inputs.tokenizer.vocab),
    ),
    params,
    itertools.chain(held_out, trained),
    table=inputs.table,
    tokenizer=inputs.tokenizer,
    limit=c.eval.cases,
    seed=c.seed,
  )


def _export(
  c: ConfigDict,
  workdir: pathlib.Path,
  tokenizer: Tokenizer,
  model: pretrain.Model,
  params: Any,
  console: Console,
) -> None:
  if not huggingface.has_names(model):
    console.print(
      f"not exported: the backbone {c.model.backbone!r} is none that"
      " transformers has; the checkpoints hold the weights",
      soft_wrap=True,
    )
    return
  exported = export.export_model(
    params,
    model,
    tokenizer,
    workdir / "export",
    about=model_card.about_run(workdir, json.loads(c.to_json()), c.steps),
  )
  console.print(
    f"exported to {workdir / 'export'}/: {exported.statement}", soft_wrap=True
  )
