"""Runs the task "pretrain": from text to a model in Hugging Face format.

rows -> synonym table -> training -> verdict, cases, predictions for [MASK],
report -> export
"""

import contextlib
import dataclasses
import functools
import pathlib
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.corrections import cases as cases_lib
from truenegs_jax.corrections import predict_slots, rates
from truenegs_jax.data.rows import batches, rows_folder
from truenegs_jax.pretrain import (
  dry_run,
  export_run,
  fill_masks,
  loop,
)
from truenegs_jax.pretrain import verdict as verdict_lib
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.runtime.cache import enable_compilation_cache
from truenegs_jax.runtime.flags import rerun_command
from truenegs_jax.synonyms import coverage, run_table
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import (
  build_run,
  checks,
  memory,
  plan,
  prepare_data,
  time_limit,
)
from truenegs_jax.train import setup as setup_lib
from truenegs_jax.weights.export import pretrained
from truenegs_jax.weights.formats import hf_folder
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.init import config_sizes
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import files, lock, metrics_file

EXIT_NOT_LEARNED = 1
SEARCHED_STEPS = 200  # most batches of training rows searched for cases


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Starts or resumes a pre-training; returns the exit code.

  Raises TrueNegsErrors, which have exit codes of their own.
  """
  began = time.perf_counter()
  say = functools.partial(console.print, soft_wrap=True)
  weights = Weights(c.init, say)
  with distributed.raise_everywhere("config"):
    saved = files.read_saved_config(workdir)
    c = config_sizes.resolve(c, weights, saved=saved)
    c = time_limit.apply_saved(c, saved, say)
    checks.check_config(c)
    if c.minutes:  # the shortest run must be possible, too
      least = min(c.steps, time_limit.LEAST_STEPS)
      checks.check_config(time_limit.shorten(c, least))
    if saved is None:  # earlier versions accepted any warm-up
      if warning := checks.check_warmup(c.optim.warmup_steps, c.steps):
        say(warning)
  if c.dry_run:
    return dry_run.dry_run(c, weights, console)
  with distributed.raise_everywhere("files"):
    checks.check_required_files(c, weights, saved=files.has_checkpoint(workdir))
  enable_compilation_cache()
  with lock.lock(workdir):
    with distributed.raise_everywhere("inputs"):
      run, inputs = prepare_run(c, workdir, weights, console)
    if c.minutes and not files.has_checkpoint(workdir):
      with progress.working(console, "Compiling and timing a step"):
        c = time_limit.fit(c, run, inputs, began=began, say=say)
      run = build_run.build_run(c, inputs.tokenizer)
    with memory.explain_exhaustion(run, console), _name_suspects(workdir):
      result = loop.train(run, workdir, inputs, console)
    if result.stopped_by is not None:
      say(
        f"Saved at step {int(result.setup.state.step):,}. To continue, run the"
        f" same command again: {rerun_command()}"
      )
      if distributed.is_first_process():
        write_own_report(workdir, say)
      if result.stopped_by == signal.SIGINT:
        return errors.SAVED_INTERRUPT
      return errors.SAVED_RESTART
    return finish_run(c, workdir, inputs, result, console)


def prepare_run(
  c: ConfigDict, workdir: pathlib.Path, weights: Weights, console: Console
) -> tuple[build_run.Run, setup_lib.RunInputs]:
  """Builds a run; finds or prepares its rows, tokenizer and synonym table."""
  is_resumed = files.has_checkpoint(workdir)
  folder, tokenizer = prepare_data.find_or_prepare_rows(
    c, console, is_resumed=is_resumed
  )
  start = jax.process_index() / distributed.process_count()
  verification = rows_folder.Verification(folder, start=start)
  train_rows = rows_folder.open_rows(folder, "train", verification)
  rows_folder.check_batch_size(train_rows, c.batch_size)
  if warning := rows_folder.padding_warning(train_rows.manifest):
    console.print(warning, soft_wrap=True)
  held_out_rows = rows_folder.open_rows(folder, "held_out", verification)
  if not len(held_out_rows):
    raise errors.DataError(
      f"'{folder}' has no held-out rows: the text fills a single row. Use more"
      " text or a smaller --config.length=NUMBER."
    )
  fill_masks.encode_sentences(
    tokenizer, c.eval.sentences, max_length=c.model.max_positions
  )
  run = build_run.build_run(c, tokenizer)
  synonyms = None
  coverage_lines: dict[str, str] = {}
  if run.options.needs_table and run.table_builder is None:
    saved = workdir / files.SYNONYMS if is_resumed else None
    request, tokens = build_run.build_table_request(c), tokenizer.vocab
    synonyms = run_table.find_or_build(
      request, tokenizer, saved=saved, console=console
    )
    assert synonyms is not None  # the source "model" has a table_builder
    with progress.working(console, "Counting words with synonyms"):
      coverage_lines, warning = coverage.describe(
        request, synonyms, tokens, train_rows.unigram_V
      )
    if warning:
      console.print(warning, soft_wrap=True)
  source = run.table_builder or synonyms
  return run, setup_lib.RunInputs(
    tokenizer=tokenizer,
    train_rows=train_rows,
    held_out_rows=held_out_rows,
    table=synonyms,
    coverage=coverage_lines,
    weights=weights,
    fingerprints={
      "vocabulary": tokenizer.fingerprint,
      "rows": train_rows.fingerprint,
      "synonyms": source.fingerprint if source else None,
    },
  )


def finish_run(
  c: ConfigDict,
  workdir: pathlib.Path,
  inputs: setup_lib.RunInputs,
  result: loop.TrainResult,
  console: Console,
) -> int:
  """Evaluates, plots and exports a finished run; returns the exit code.

  Raises:
    DataError: the rows were damaged. Nothing was written.
  """
  with _name_suspects(workdir):
    _verify_rows(inputs, console)
  state, run = result.setup.state, result.setup.run
  params, aux = distributed.to_host((state.params, state.aux))
  if not distributed.is_first_process():
    return 0  # the first process does the rest
  say = functools.partial(console.print, soft_wrap=True)
  device_params = jax.device_put(params)  # once, not for each batch
  synonyms = _last_table(run, workdir, inputs, aux)
  verdict = verdict_lib.compute_verdict(
    result.held_out, inputs.train_rows.unigram_V
  )
  console.print(verdict_lib.verdict_table(verdict))
  results = {
    "command": rerun_command(),
    "seed": run.seed,
    "steps": run.steps,
    "fingerprints": dict(inputs.fingerprints),
    "verdict": metrics_file.finite_or_null(dataclasses.asdict(verdict))
    | {"passed": verdict.passed},
  }
  if synonyms is not None and run.options.hard_correction:
    search = _find_cases(c, run, inputs, synonyms, device_params, console)
    cases_lib.save_cases(workdir, search)
    shown = search.cases[: c.eval.cases]
    if c.eval.cases:
      console.print(cases_lib.render_cases(shown, search.searched))
    results["corrections"] = {
      "predictions_searched": search.searched,
      "cases": [dataclasses.asdict(case) for case in shown],
    }
  results["fills"] = _show_fills(c, run, inputs, device_params, console)
  files.save_json(workdir / files.RESULTS, results)
  with progress.working(console, "Writing the report"):
    write_own_report(workdir, say)
  with progress.working(console, "Exporting"):
    exported = _export(run, workdir, inputs, params)
  # Words are not broken on a terminal; a log has a line.
  console.print(exported, soft_wrap=not console.is_terminal)
  if verdict.passed or not c.eval.must_learn:
    say(describe_next_steps(workdir))
    return 0
  say(
    "The model did not learn: the MLM loss must be below the unigram entropy,"
    f" and the AUC {verdict_lib.MIN_ERRORS:g} standard errors above 0.5."
  )
  return EXIT_NOT_LEARNED


@contextlib.contextmanager
def _name_suspects(workdir: pathlib.Path) -> Iterator[None]:
  """Adds the steps that may have learned from damaged rows to a DataError."""
  try:
    yield
  except errors.DataError as e:
    suspects: list[int] = []
    folder = workdir / files.CHECKPOINTS
    if files.has_checkpoint(workdir):
      checkpoints = checkpoints_lib.Checkpoints(folder, read_only=True)
      with contextlib.closing(checkpoints):
        for step in checkpoints.steps():
          suspects.append(step)
          with contextlib.suppress(errors.DamagedStepError):
            if checkpoints.read_description(step).get(loop.ROWS_VERIFIED):
              suspects = []
    if not suspects:
      raise
    raise errors.DataError(
      f"{e} Steps {', '.join(map(str, suspects))} in '{folder}' were saved"
      " before all rows were verified and may have learned from them: remove"
      " these steps, too."
    ) from e


def _verify_rows(inputs: setup_lib.RunInputs, console: Console) -> None:
  """Verifies the rows not yet verified; DataError in all processes."""
  with (
    distributed.raise_everywhere("verification"),
    progress.working(console, "Verifying the rest of the rows"),
  ):
    inputs.train_rows.finish_verification()


def _last_table(
  run: build_run.Run,
  workdir: pathlib.Path,
  inputs: setup_lib.RunInputs,
  aux: Mapping[str, Any],
) -> SynonymTable | None:
  """Returns the table at the end of a run; saves it if the model made it."""
  if run.table_builder is None:
    return inputs.table
  synonyms = run.table_builder.to_synonym_table(
    aux["ids_VxS"], inputs.tokenizer.vocab, steps=run.steps
  )
  synonyms.save(workdir / files.SYNONYMS)
  return synonyms


def describe_next_steps(workdir: pathlib.Path) -> str:
  """Returns where the results of a run are, and commands that use them."""
  main, folder = "python -m truenegs_jax.main", shlex.quote(str(workdir))
  text = f"""\
Results are in '{workdir}'. Open {files.REPORT} in a browser to see them all.
# To fine-tune on your own classified texts:
{main} --config=finetune_own --config.init={folder} \\
  --config.finetune.files='train=train.csv dev=dev.csv' \\
  --config.finetune.text=sentence --config.finetune.label=label
# To measure corrections in a text, as in the paper's table 2:
{main} --config=corrections \\
  --config.corrections.run={folder} --config.corrections.text=text.txt"""
  for role in ("generator", "bert"):
    if (exported := workdir / files.EXPORT / role).exists():
      text += f"""
# To fill in a mask with transformers, which needs PyTorch:
python -c "from transformers import pipeline
fill = pipeline('fill-mask', '{exported}')
print(fill('a [MASK] who writes books'))\""""
  return text


def _show_fills(
  c: ConfigDict,
  run: build_run.Run,
  inputs: setup_lib.RunInputs,
  params: Mapping[str, Any],
  console: Console,
) -> list[dict[str, Any]]:
  """Prints and returns the likeliest tokens of [MASK] in sentences."""
  with progress.working(console, "Filling [MASK] in sentences"):
    fills = fill_masks.fill_masks(
      run.model,
      params,
      inputs.tokenizer,
      c.eval.sentences,
      max_length=c.model.max_positions,
    )
  if fills:
    console.print(fill_masks.fills_table(fills))
  return [fill._asdict() for fill in fills]


def _find_cases(
  c: ConfigDict,
  run: build_run.Run,
  inputs: setup_lib.RunInputs,
  synonyms: SynonymTable,
  params: Mapping[str, Any],
  console: Console,
) -> cases_lib.Search:
  """Finds corrections in held-out rows; if few, also in training rows."""
  size, seed, options = run.batch_size, run.seed, run.options
  vocab = inputs.tokenizer.vocab
  request = build_run.build_table_request(c)
  held_out = batches.held_out_batches(inputs.held_out_rows, batch_size=size)
  training = (
    batches.batch_at(inputs.train_rows, step, batch_size=size, seed=seed)
    for step in range(min(run.steps, SEARCHED_STEPS))
  )
  predict = predict_slots.make_predict_slots(
    run.model,
    options.masking,
    continues_V=plan.continuation_mask(vocab, options),
  )
  with progress.working(console, "Searching for corrections"):
    finder = cases_lib.CaseFinder(
      {synonyms.source: synonyms},
      inputs.tokenizer,
      limit=cases_lib.MAX_SAVED,
      token_classes=rates.find_classes(request, vocab, lambda _: None),
    )
    search = cases_lib.find_cases(
      finder,
      predict,
      params,
      held_out,
      training,
      enough=c.eval.cases,
      seed=seed,
    )
  say = functools.partial(console.print, soft_wrap=True)
  cases = cases_lib.add_lemmas(search.cases, request, say)
  return dataclasses.replace(search, cases=cases)


def _export(
  run: build_run.Run,
  workdir: pathlib.Path,
  inputs: setup_lib.RunInputs,
  params: Mapping[str, Any],
) -> str:
  """Exports a run if transformers has its architecture; returns a report."""
  if not hf_folder.has_counterpart(run.model):
    return (
      "Not exported: transformers does not have the backbone"
      f" {run.model.backbone!r}. The checkpoints have the weights."
    )
  folder = workdir / files.EXPORT
  origin = export_run.summarize_run(workdir, run.config, run.steps)
  exported = pretrained.export_model(
    run.model, params, inputs.tokenizer, folder, origin=origin
  )
  return f"Exported to '{folder}'. {exported.summary}"
