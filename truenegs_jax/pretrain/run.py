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

from truenegs_jax.config.sections import Data, Negatives
from truenegs_jax.corrections import findings, predict_slots
from truenegs_jax.data.corpus.sources_spec import describe_sources
from truenegs_jax.data.rows import batches, rows_folder
from truenegs_jax.pretrain import (
  evaluate,
  export_run,
  loop,
)
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.runtime.cache import enable_compilation_cache
from truenegs_jax.synonyms import run_table
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import (
  build_run,
  checks,
  plan,
  prepare_data,
  sharding,
)
from truenegs_jax.weights import config_sizes, find, hf_folder
from truenegs_jax.weights.export_model import export_model
from truenegs_jax.weights.find import Weights
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import files, lock
from truenegs_jax.workdir.saved_model import placeholder_tokenizer

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
    c = plan.apply_saved(c, saved, say)
    checks.check_config(c)
    if c.minutes:  # the shortest run must be possible, too
      least = min(c.steps, plan.LEAST_STEPS)
      checks.check_config(plan.shorten(c, least))
    if warning := checks.check_warmup(c.optim.warmup_steps, c.steps):
      say(warning)
  if c.dry_run:
    return dry_run(c, weights, console)
  with distributed.raise_everywhere("files"):
    checks.check_required_files(c, weights, saved=files.has_checkpoint(workdir))
  enable_compilation_cache(distributed.warn)
  with lock.lock(workdir):
    with distributed.raise_everywhere("inputs"):
      run, inputs = prepare_run(c, workdir, weights, console)
    if c.minutes and not files.has_checkpoint(workdir):
      with progress.working(console, "Compiling and timing a step"):
        steps = plan.fit(run, inputs, c.minutes, began=began, say=say)
      if steps < c.steps:
        c = plan.shorten(c, steps)
      else:
        c = c.copy_and_resolve_references()
        c.minutes = 0.0  # a resume with other steps is refused
      run = build_run.build_run(c, inputs.tokenizer)
    with _report_steps_trained_on_damaged_rows(workdir):
      result = loop.train(run, workdir, inputs, console)
    if result.stopped_by is not None:
      say(
        f"Saved at step {int(result.setup.state.step):,}. To continue, run the"
        f" same command again: {errors.rerun_command()}"
      )
      if distributed.is_first_process():
        write_own_report(workdir, say)
      if result.stopped_by == signal.SIGINT:
        return errors.SAVED_INTERRUPT
      return errors.SAVED_RESTART
    return finish_run(c, workdir, inputs, result, console)


def dry_run(c: ConfigDict, weights: Weights, console: Console) -> int:
  """Prints the plan of a run in seconds; returns 0.

  Reads no text and compiles nothing: the training step is traced to check its
  shapes. benchmarks/memory.py compiles it, and prints the memory of activations
  as well.

  Raises:
    InputError: a run of this config would fail before it reads its data.
  """
  if find.is_local(c.init):
    checks.check_weights(c, weights)
  tokenizer, origin = placeholder_tokenizer(Data.read(c.data))
  run = build_run.build_run(c, tokenizer)
  mesh = sharding.make_mesh(run.mesh_spec)
  run, attention = plan.resolve_attention(run, mesh)
  state = plan.abstract_state(run, mesh)
  aux = plan.abstract_aux(run, mesh)
  batch = plan.abstract_batch(run, mesh)
  jax.eval_shape(plan.build_train_step(run, mesh), state, batch, aux)
  lines = plan.report_lines(run, mesh, state, aux)
  inputs = []  # files other than text that the user must provide
  if c.init == config_sizes.REQUIRED:
    inputs.append("weights: --config.init=FOLDER")
  elif c.init:
    inputs.append(f"weights: {find.describe(c.init)}")
  if Negatives.read(c.negatives).needs_table:
    request = build_run.build_table_request(
      Negatives.read(c.negatives), Data.read(c.data)
    )
    for source in sum(request.union, []):
      paths = {k: source.options.get(k) for k in run_table.PATHS}
      inputs += [f"{source.name} {k}={x}" for k, x in paths.items() if x]
  o = c.optim
  micro_batches = f"{o.accumulation} micro-batch" + "es" * (o.accumulation > 1)
  batch_size = plan.format_mib(sharding.bytes_per_device(batch))
  lines["per device"] += f", batch {batch_size}, without activations"
  if c.minutes:
    least = min(c.steps, plan.LEAST_STEPS)
    lines["steps"] += f"; at least {least:,} if minutes={c.minutes:g} is short"
  lines = {
    "dry run": "reads no text; writes and compiles nothing",
    **lines,
    "attention": attention,
    "text": "missing: set --config.data.sources=FILES"
    if c.data.sources == config_sizes.REQUIRED
    else describe_sources(c.data.sources),
    "vocabulary": f"{len(tokenizer.vocab):,} entries, {origin}",
    "optimizer": f"{o.schedule} schedule, peak {o.lr:g}, {o.warmup_steps:,}"
    f" warm-up steps, {micro_batches}, {c.model.dtype}, remat {c.model.remat}",
    "needs": ", ".join(inputs) or "only text",
  }
  console.print(plan.parameter_table(state))
  console.print(plan.report_table(lines))  # last, so that it stays in sight
  return 0


def prepare_run(
  c: ConfigDict, workdir: pathlib.Path, weights: Weights, console: Console
) -> tuple[build_run.Run, plan.RunInputs]:
  """Builds a run; finds or prepares its rows, tokenizer and synonym table."""
  is_resumed = files.has_checkpoint(workdir)
  folder, tokenizer = prepare_data.find_or_prepare_rows(
    Data.read(c.data), c.length, console
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
  evaluate.encode_sentences(
    tokenizer, c.eval.sentences, max_length=c.model.max_positions
  )
  run = build_run.build_run(c, tokenizer)
  synonyms = None
  coverage_lines: dict[str, str] = {}
  if run.options.needs_table and run.table_builder is None:
    saved = workdir / files.SYNONYMS if is_resumed else None
    request = build_run.build_table_request(
      Negatives.read(c.negatives), Data.read(c.data)
    )
    synonyms = run_table.load_or_build(
      request, tokenizer, saved=saved, console=console
    )
    with progress.working(console, "Counting words with synonyms"):
      coverage_lines["text"], warning = run_table.describe_text(
        request, synonyms, train_rows.unigram_V
      )
    if warning:
      console.print("warning:", warning, soft_wrap=True)
  source = run.table_builder or synonyms
  return run, plan.RunInputs(
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
  inputs: plan.RunInputs,
  result: loop.TrainResult,
  console: Console,
) -> int:
  """Evaluates, plots and exports a finished run; returns the exit code.

  Raises:
    DataError: the rows were damaged. Nothing was written.
  """
  with (
    _report_steps_trained_on_damaged_rows(workdir),
    distributed.raise_everywhere("verification"),
    progress.working(console, "Verifying the rest of the rows"),
  ):
    inputs.train_rows.finish_verification()
  state, run = result.setup.state, result.setup.run
  params, aux = distributed.to_host((state.params, state.aux))
  if not distributed.is_first_process():
    return 0  # the first process does the rest
  say = functools.partial(console.print, soft_wrap=True)
  device_params = jax.device_put(params)  # once, not for each batch
  synonyms = _last_table(run, workdir, inputs, aux)
  verdict = evaluate.compute_verdict(
    result.held_out, inputs.train_rows.unigram_V
  )
  console.print(evaluate.verdict_table(verdict))
  results = {
    "command": errors.rerun_command(),
    "seed": run.seed,
    "steps": run.steps,
    "fingerprints": dict(inputs.fingerprints),
    "verdict": files.finite_or_null(dataclasses.asdict(verdict))
    | {"passed": verdict.passed},
  }
  if synonyms is not None and run.options.hard_correction:
    search = _find_cases(
      run, inputs, synonyms, device_params, c.eval.cases, console
    )
    saved = dataclasses.asdict(search)
    files.save_json(workdir / files.CASES, saved, indent=None)
    shown = search.cases[: c.eval.cases]
    if c.eval.cases:
      console.print(findings.render_cases(shown, search.searched))
    results["corrections"] = {
      "predictions_searched": search.searched,
      "cases": [dataclasses.asdict(case) for case in shown],
    }
  with progress.working(console, "Filling [MASK] in sentences"):
    fills = evaluate.fill_masks(
      run.model,
      device_params,
      inputs.tokenizer,
      c.eval.sentences,
      max_length=c.model.max_positions,
    )
  if fills:
    console.print(evaluate.fills_table(fills))
  results["fills"] = [fill._asdict() for fill in fills]
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
    f" and the AUC {evaluate.MIN_ERRORS:g} standard errors above 0.5."
  )
  return EXIT_NOT_LEARNED


@contextlib.contextmanager
def _report_steps_trained_on_damaged_rows(
  workdir: pathlib.Path,
) -> Iterator[None]:
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


def _last_table(
  run: build_run.Run,
  workdir: pathlib.Path,
  inputs: plan.RunInputs,
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


def _find_cases(
  run: build_run.Run,
  inputs: plan.RunInputs,
  synonyms: SynonymTable,
  params: Mapping[str, Any],
  enough: int,
  console: Console,
) -> findings.Search:
  """Searches held-out batches, then training ones until `enough` pairs."""
  size, seed, options = run.batch_size, run.seed, run.options
  held_out = batches.held_out_batches(inputs.held_out_rows, batch_size=size)
  training = (
    batches.batch_at(inputs.train_rows, step, batch_size=size, seed=seed)
    for step in range(min(run.steps, SEARCHED_STEPS))
  )
  predict = predict_slots.make_predict_slots(
    run.model,
    options.masking,
    continues_V=plan.continuation_mask(inputs.tokenizer.vocab, options),
  )
  finder = findings.CaseFinder({synonyms.source: synonyms}, inputs.tokenizer)
  key = jax.random.key(seed)
  with progress.working(console, "Searching for corrections"):
    for batch in held_out:
      finder.add(predict_slots.predict_batch(predict, params, batch, key))
    for batch in training:
      if len(finder.counts) >= enough:
        break
      finder.add(predict_slots.predict_batch(predict, params, batch, key))
    return finder.finish()


def _export(
  run: build_run.Run,
  workdir: pathlib.Path,
  inputs: plan.RunInputs,
  params: Mapping[str, Any],
) -> str:
  """Exports a run if transformers has its architecture; returns a report."""
  if reason := hf_folder.unsupported_reason(run.model):
    return f"{reason} The checkpoints have the weights."
  folder = workdir / files.EXPORT
  origin = export_run.summarize_run(workdir, run.config, run.steps)
  exported = export_model(
    run.model, params, inputs.tokenizer, folder, origin=origin
  )
  return f"Exported to '{folder}'. {exported.summary}"
