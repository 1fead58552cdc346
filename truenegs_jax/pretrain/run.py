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
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs.common import REQUIRED
from truenegs_jax.corrections import findings, predict_slots
from truenegs_jax.data.corpus.sources_spec import describe_sources
from truenegs_jax.data.rows import batches, rows_folder
from truenegs_jax.pretrain import evaluate, export_run, loop
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.synonyms import run_table
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import plan, prepare_data, setup, sharding, start
from truenegs_jax.train.plan import RunInputs
from truenegs_jax.train.start import Run
from truenegs_jax.train.time_limit import TimeLimit
from truenegs_jax.weights import find, hf_folder
from truenegs_jax.weights.export_model import export_model
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import files, lock

EXIT_NOT_LEARNED = 1
SEARCHED_STEPS = 200  # most batches of training rows searched for cases


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Starts or resumes a pre-training; returns the exit code.

  Raises TrueNegsErrors, which have exit codes of their own.
  """
  say = functools.partial(console.print, soft_wrap=True)
  config = PretrainConfig.read(c)
  files.check_checkpoint_folder(workdir / files.CHECKPOINTS)
  with distributed.raise_everywhere("config"):
    run = start.resolve(
      config,
      find.Weights(config.init, say),
      saved=files.read_saved_config(workdir),
      say=say,
    )
  if config.dry_run:
    return dry_run(run, console)
  with lock.lock(workdir):
    clock = TimeLimit(
      config.steps, limit_secs=60 * config.minutes, began=errors.BEGAN
    )
    with distributed.raise_everywhere("inputs"), clock.preparing():
      run, inputs = prepare_inputs(run, workdir, console)
    checkpoints = checkpoints_lib.Checkpoints(
      workdir / files.CHECKPOINTS,
      keep=run.config.checkpoint.keep,
      keep_steps=run.kept_steps,
    )
    with (
      _report_steps_trained_on_damaged_rows(workdir),
      contextlib.closing(checkpoints),
    ):
      prepared = setup.set_up_training(
        run, workdir, inputs, checkpoints, console, clock
      )
      result = loop.train(prepared, workdir, checkpoints, console)
    if result.stopped_by is None:
      return finish_run(workdir, result)
    say(
      f"Saved at step {result.steps:,}. To continue, run the"
      f" same command again: {errors.rerun_command()}"
    )
    if distributed.is_first_process():
      write_own_report(workdir, say)
    if result.stopped_by == signal.SIGINT:
      return errors.SAVED_INTERRUPT
    return errors.SAVED_RESTART


def dry_run(run: Run, console: Console) -> int:
  """Prints the plan of a run in seconds; returns 0.

  The training step is only traced. benchmarks/memory.py compiles it, to print
  the memory of activations, too.
  """
  c, o = run.config, run.config.optim
  mesh = sharding.make_mesh(run.mesh_spec)
  run, attention = plan.resolve_attention(run, mesh)
  state = plan.abstract_state(run, mesh)
  aux = plan.abstract_aux(run, mesh)
  batch = plan.abstract_batch(run, mesh)
  jax.eval_shape(plan.build_train_step(run, mesh), state, batch, aux)
  lines = plan.report_lines(run, mesh, state, aux)
  inputs = []  # files other than text that the user must provide
  if c.init == REQUIRED:
    inputs.append("weights: --config.init=FOLDER")
  elif c.init:
    inputs.append(f"weights: {find.describe(c.init)}")
  if run.table_request:
    for source in sum(run.table_request.union, []):
      paths = {k: source.options.get(k) for k in run_table.PATHS}
      inputs += [f"{source.name} {k}={x}" for k, x in paths.items() if x]
  micro_batches = f"{o.accumulation} micro-batch" + "es" * (o.accumulation > 1)
  batch_size = plan.format_mib(sharding.bytes_per_device(batch))
  lines["per device"] += f", batch {batch_size}, without activations"
  lines = {
    "dry run": "reads no text; writes and compiles nothing",
    **lines,
    "attention": attention,
    "text": "missing: set --config.data.sources=FILES"
    if c.data.sources == REQUIRED
    else describe_sources(c.data.sources),
    "vocabulary": f"{len(run.tokenizer.vocab):,} entries, {run.vocabulary}",
    "optimizer": f"{o.schedule} schedule, peak {o.lr:g}, {o.warmup_steps:,}"
    f" warm-up steps, {micro_batches}, {c.model.dtype}, remat {c.model.remat}",
    "needs": ", ".join(inputs) or "only text",
  }
  console.print(plan.report_table(lines))
  return 0


def prepare_inputs(
  run: Run, workdir: pathlib.Path, console: Console
) -> tuple[Run, RunInputs]:
  """Finds or prepares rows, tokenizer and synonym table of a run."""
  c = run.config
  folder, tokenizer = prepare_data.find_or_prepare_rows(
    c.data, c.length, console
  )
  if tokenizer != run.tokenizer:  # it was a placeholder
    run = dataclasses.replace(run, tokenizer=tokenizer)
  divide = functools.partial(distributed.place_among_equals, "rows")
  verification = rows_folder.Verification(folder, divide)
  train_rows = rows_folder.open_rows(folder, "train")
  rows_folder.check_batch_size(train_rows, c.batch_size)
  if warning := rows_folder.padding_warning(train_rows.manifest):
    console.print(warning, soft_wrap=True)
  held_out_rows = rows_folder.open_rows(folder, "held_out")
  if not len(held_out_rows):
    raise errors.DataError(
      f"'{folder}' has no held-out rows: the text fills a single row. Use more"
      " text or a smaller --config.length=NUMBER."
    )
  evaluate.encode_sentences(
    tokenizer, c.eval.sentences, max_length=c.model.max_positions
  )
  synonyms = None
  coverage: dict[str, str] = {}
  if run.table_request and run.table_builder is None:
    saved = workdir / files.SYNONYMS
    synonyms = run_table.load_or_build(
      run.table_request,
      tokenizer,
      saved=saved if files.has_checkpoint(workdir) else None,
      console=console,
    )
    with progress.working(console, "Counting words with synonyms"):
      coverage["text"], warning = run_table.describe_text(
        run.table_request, synonyms, train_rows.unigram_V
      )
    if warning:
      console.print("warning:", warning, soft_wrap=True)
  inputs = RunInputs(
    train_rows, held_out_rows, verification, synonyms, coverage
  )
  return run, inputs


def finish_run(workdir: pathlib.Path, result: loop.Training) -> int:
  """Evaluates, plots and exports a finished run; returns the exit code."""
  console = result.console
  with (
    _report_steps_trained_on_damaged_rows(workdir),
    distributed.raise_everywhere("verification"),
    progress.working(console, "Verifying the rest of the rows"),
  ):
    result.setup.inputs.verification.finish()
  state, run = result.setup.state, result.setup.run
  params, aux = distributed.to_host((state.params, state.aux))
  if not distributed.is_first_process():
    return 0  # the first process does the rest
  say = functools.partial(console.print, soft_wrap=True)
  verdict, results = _evaluate(workdir, result, params, aux)
  files.save_json(workdir / files.RESULTS, results)
  with progress.working(console, "Writing the report"):
    write_own_report(workdir, say)
  with progress.working(console, "Exporting"):
    exported = _export(run, workdir, params, result.steps)
  # Words are not broken on a terminal; a log has a line.
  console.print(exported, soft_wrap=not console.is_terminal)
  if verdict.passed or not run.config.eval.must_learn:
    say(describe_next_steps(workdir))
    return 0
  say(evaluate.describe_failure(verdict))
  return EXIT_NOT_LEARNED


def _evaluate(
  workdir: pathlib.Path,
  result: loop.Training,
  params: Mapping[str, Any],
  aux: Mapping[str, Any],
) -> tuple[evaluate.Verdict, dict[str, Any]]:
  """Prints verdict, cases and fills; returns the verdict and results.json."""
  run, inputs, console = result.setup.run, result.setup.inputs, result.console
  c, vocab = run.config, run.tokenizer.vocab
  device_params = jax.device_put(params)  # once, not for each batch
  synonyms = inputs.table
  if run.table_builder:
    synonyms = run.table_builder.to_synonym_table(
      aux["ids_VxS"], vocab, steps=result.steps
    )
    synonyms.save(workdir / files.SYNONYMS)
  verdict = evaluate.compute_verdict(
    result.held_out, inputs.train_rows.unigram_V
  )
  console.print(evaluate.verdict_table(verdict))
  results = {
    "command": errors.rerun_command(),
    "seed": c.seed,
    "steps": result.steps,
    "fingerprints": result.setup.description["fingerprints"],
    "verdict": files.finite_or_null(dataclasses.asdict(verdict))
    | {"answers": verdict.answers, "passed": verdict.passed},
  }
  if synonyms is not None and c.negatives.hard_correction:
    search = _find_cases(result, synonyms, device_params)
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
      run.tokenizer,
      c.eval.sentences,
      max_length=c.model.max_positions,
    )
  if fills:
    console.print(evaluate.fills_table(fills))
  results["fills"] = [fill._asdict() for fill in fills]
  return verdict, results


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
  result: loop.Training, synonyms: SynonymTable, params: Mapping[str, Any]
) -> findings.Search:
  """Searches held-out batches, then training ones until there are enough."""
  run, inputs = result.setup.run, result.setup.inputs
  c = run.config
  held_out = batches.held_out_batches(
    inputs.held_out_rows, batch_size=c.batch_size
  )
  training = (
    batches.batch_at(
      inputs.train_rows, step, batch_size=c.batch_size, seed=c.seed
    )
    for step in range(min(result.steps, SEARCHED_STEPS))
  )
  predict = predict_slots.make_predict_slots(
    run.model, run.options.masking, continues_V=run.continues_V
  )
  finder = findings.CaseFinder({synonyms.source: synonyms}, run.tokenizer)
  key = jax.random.key(c.seed)
  with progress.working(result.console, "Searching for corrections"):
    for batch in held_out:
      finder.add(predict_slots.predict_batch(predict, params, batch, key))
      if result.clock.is_ending():
        break
    for batch in training:
      if len(finder.counts) >= c.eval.cases or result.clock.is_ending():
        break
      finder.add(predict_slots.predict_batch(predict, params, batch, key))
    return finder.finish()


def _export(
  run: Run, workdir: pathlib.Path, params: Mapping[str, Any], steps: int
) -> str:
  """Exports a run if transformers has its architecture; returns a report."""
  if reason := hf_folder.unsupported_reason(run.model):
    return f"{reason} The checkpoints have the weights."
  folder = workdir / files.EXPORT
  origin = export_run.summarize_run(workdir, run.config, steps)
  exported = export_model(
    run.model, params, run.tokenizer, folder, origin=origin
  )
  return f"Exported to '{folder}'. {exported.summary}"
