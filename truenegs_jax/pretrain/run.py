"""The task "pretrain", from text to a model that Hugging Face loads.

prepare rows -> synonym table -> train -> verdict, cases, fills, curves ->
export
"""

import dataclasses
import functools
import itertools
import pathlib
import signal
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.corrections import cases as cases_lib
from truenegs_jax.corrections import predict_slots
from truenegs_jax.data.rows import batches, rows_folder
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.pretrain import (
  curves,
  dry_run,
  export_run,
  fill_masks,
  verdict,
)
from truenegs_jax.runtime import distributed, errors
from truenegs_jax.runtime.cache import enable_compilation_cache
from truenegs_jax.runtime.flags import rerun_command
from truenegs_jax.synonyms import run_table, table
from truenegs_jax.train import build_run, checks, loop, plan, prepare_data
from truenegs_jax.train import setup as setup_lib
from truenegs_jax.weights.export import pretrained
from truenegs_jax.weights.formats import hf_folder
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.init import config_sizes
from truenegs_jax.workdir import files, lock, metrics_file

EXIT_NOT_LEARNED = 1
SEARCHED_STEPS = 200  # batches of training rows searched for cases


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Runs or goes on with a pre-training; returns the exit code.

  Raises:
    TrueNegsError: with the exit code that belongs to it.
  """
  say = functools.partial(console.print, soft_wrap=True)
  weights = Weights(c.init, say)
  with distributed.raise_everywhere("config"):
    c = config_sizes.resolve(c, weights, saved=files.read_saved_config(workdir))
    checks.check_config(c)
  if c.dry_run:
    return dry_run.dry_run(c, weights, console)
  with distributed.raise_everywhere("given"):
    checks.check_required_files(c, weights, saved=files.has_checkpoint(workdir))
  enable_compilation_cache()
  with lock.lock(workdir):
    with distributed.raise_everywhere("inputs"):
      trained, inputs = prepare_run(c, workdir, weights, console)
    outcome = loop.train(trained, workdir, inputs, console)
    if outcome.stopped_by is not None:
      console.print(
        f"saved at step {int(outcome.setup.state.step):,}; to go on from"
        f" there, give the same command again: {rerun_command()}",
        soft_wrap=True,
      )
      if outcome.stopped_by == signal.SIGINT:
        return errors.SAVED_INTERRUPT
      return errors.SAVED_RESTART
    return finish_run(c, workdir, inputs, outcome, console)


def prepare_run(
  c: ConfigDict, workdir: pathlib.Path, weights: Weights, console: Console
) -> tuple[build_run.Run, setup_lib.RunInputs]:
  """The run of a config; rows, tokenizer and synonyms, made where missing."""
  folder, tokenizer = prepare_data.find_or_prepare_rows(c)
  train_rows = rows_folder.open_rows(folder, "train")
  rows_folder.check_batch_size(train_rows, c.batch_size)
  held_out_rows = rows_folder.open_rows(folder, "held_out")
  if not len(held_out_rows):
    raise errors.DataError(
      f"{folder} holds no held-out rows: the text fills a single row; give"
      " more text, or a smaller --config.length."
    )
  fill_masks.encode_sentences(
    tokenizer, c.eval.sentences, max_length=c.model.max_positions
  )
  trained = build_run.build_run(c, tokenizer)
  synonyms, fingerprint = None, None
  if trained.table_builder is not None:
    fingerprint = trained.table_builder.fingerprint
  elif trained.options.needs_table:
    resumed = files.has_checkpoint(workdir)
    synonyms = run_table.find_or_build(
      build_run.build_table_request(c),
      tokenizer.vocab,
      saved=workdir / files.SYNONYMS if resumed else None,
      console=console,
    )
    fingerprint = synonyms.fingerprint if synonyms else None
  return trained, setup_lib.RunInputs(
    tokenizer=tokenizer,
    train_rows=train_rows,
    held_out_rows=held_out_rows,
    table=synonyms,
    weights=weights,
    fingerprints={
      "vocabulary": tokenizer.fingerprint,
      "rows": train_rows.fingerprint,
      "synonyms": fingerprint,
    },
  )


def finish_run(
  c: ConfigDict,
  workdir: pathlib.Path,
  inputs: setup_lib.RunInputs,
  outcome: loop.TrainResult,
  console: Console,
) -> int:
  """Judges, shows, draws and exports a finished run; returns the exit code."""
  state, run = outcome.setup.state, outcome.setup.run
  params = distributed.to_host(state.params)
  own = distributed.to_host(state.aux)
  if not distributed.is_first_process():
    return 0  # the first process has all that is left to do
  on_device = jax.device_put(params)  # once, not with every batch
  synonyms = inputs.table
  if run.table_builder is not None:
    synonyms = run.table_builder.to_synonym_table(
      own["ids_VxS"], inputs.tokenizer.vocab, steps=run.steps
    )
    table.save_table(synonyms, workdir / files.SYNONYMS)
  unigram_V = np.load(inputs.train_rows.folder / "unigram_V.npy")
  judged = verdict.compute_verdict(outcome.held_out, unigram_V)
  console.print(verdict.verdict_table(judged))
  results = {
    "command": rerun_command(),
    "seed": run.seed,
    "steps": run.steps,
    "fingerprints": dict(inputs.fingerprints),
    "verdict": metrics_file.finite_or_null(dataclasses.asdict(judged))
    | {"passed": judged.passed},
  }
  if synonyms is not None and run.options.hard_correction:
    cases, searched = _find_cases(
      run, inputs, synonyms, on_device, limit=c.eval.cases
    )
    console.print(cases_lib.render_cases(cases, searched))
    results["corrections"] = {
      "predictions_searched": searched,
      "cases": [dataclasses.asdict(case) for case in cases],
    }
  filled = fill_masks.fill_masks(
    run.model,
    on_device,
    inputs.tokenizer,
    c.eval.sentences,
    max_length=c.model.max_positions,
  )
  if filled:
    console.print(fill_masks.fills_table(filled))
  results["fills"] = [dataclasses.asdict(fill) for fill in filled]
  files.save_json(workdir / files.RESULTS, results)
  drawn = curves.draw_curves(workdir)
  console.print(f"curves: {', '.join(map(str, drawn))}", soft_wrap=True)
  exported = _export(run, workdir, inputs.tokenizer, params)
  console.print(exported, soft_wrap=True)
  if judged.passed or not c.eval.must_learn:
    return 0
  console.print(
    "not learned: the MLM loss must end below the unigram entropy, and the AUC"
    f" of ELECTRA above 0.5 by {verdict.MIN_ERRORS:g} standard errors",
    soft_wrap=True,
  )
  return EXIT_NOT_LEARNED


def _find_cases(run, inputs, synonyms, params, *, limit):
  """Searches the held-out rows first, then some of the training rows."""
  held_out = batches.held_out_batches(
    inputs.held_out_rows, batch_size=run.batch_size
  )
  trained = (
    batches.batch_at(
      inputs.train_rows, i, batch_size=run.batch_size, seed=run.seed
    )
    for i in range(min(run.steps, SEARCHED_STEPS))
  )
  vocab = inputs.tokenizer.vocab
  return cases_lib.find_cases(
    predict_slots.make_predict_slots(
      run.model,
      run.options.masking,
      continues_V=plan.continuation_mask(vocab)
      if run.options.strict_subword
      else None,
    ),
    params,
    itertools.chain(held_out, trained),
    table=synonyms,
    tokenizer=inputs.tokenizer,
    limit=limit,
    seed=run.seed,
  )


def _export(
  run: build_run.Run,
  workdir: pathlib.Path,
  tokenizer: Tokenizer,
  params: Any,
) -> str:
  """Exports a finished run where transformers has its network; says so."""
  if not hf_folder.has_counterpart(run.model):
    return (
      f"not exported: the backbone {run.model.backbone!r} is none that"
      " transformers has; the checkpoints hold the weights"
    )
  folder = workdir / files.EXPORT
  about = export_run.summarize_run(workdir, run.config, run.steps)
  exported = pretrained.export_model(
    params, run.model, tokenizer, folder, origin=about
  )
  return f"exported to {folder}/: {exported.summary}"
