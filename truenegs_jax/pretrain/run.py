"""Runs the task "pretrain": from text to a model in Hugging Face format.

rows -> synonyms -> training -> verdict -> export -> cases -> fills -> report
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shlex
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs.common import REQUIRED
from truenegs_jax.corrections import findings, predict_slots
from truenegs_jax.data import batches
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.sources import describe_sources
from truenegs_jax.pretrain import evaluate, export_run, loop
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.runtime.files import read_results
from truenegs_jax.runtime.paths import is_hub_name
from truenegs_jax.synonyms import run_table
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import plan, prepare_data, setup, sharding, speed, start
from truenegs_jax.weights import find, hf_names
from truenegs_jax.weights.export_model import export_model
from truenegs_jax.workdir import files, lock, saved_model
from truenegs_jax.workdir.checkpoints import Checkpoints

EXIT_NOT_LEARNED = 1
SAVE_MEMORY = (
  "Run the same command again with --config.model.vocabulary_chunk=1024, which"
  " needs less."
)


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Starts or resumes a pre-training; returns the exit code."""
  say = functools.partial(console.print, soft_wrap=True)
  config = PretrainConfig.read(c)
  clock = speed.TimeLimit(
    config.steps, limit_secs=60 * config.minutes, began=errors.BEGAN
  )
  weights = find.Weights(config.init, say)
  folder = workdir / files.CHECKPOINTS
  files.check_checkpoint_folder(folder)
  with distributed.raise_everywhere("config"):
    saved = saved_model.read_config(workdir)
    if config.branch and saved is None:
      saved = saved_model.read_config(start.find_branch(config.branch)[0])
    run = start.resolve(config, weights, saved=saved, say=say)
  if config.dry_run:
    return dry_run(run, console)
  with lock.lock(workdir) as lease:
    with distributed.raise_everywhere("inputs"):
      run, inputs = prepare_inputs(run, workdir, console)
    keep = run.config.checkpoint.keep
    kept = run.kept_steps
    checkpoints = Checkpoints(folder, keep=keep, keep_steps=kept, lease=lease)
    with _name_suspect_steps(workdir), contextlib.closing(checkpoints):
      prepared = setup.set_up_training(
        run, workdir, inputs, checkpoints, console, clock
      )
      result = loop.train(prepared, workdir, checkpoints, console)
    with distributed.raise_everywhere("lease"):
      lease.check()  # before results of a successor are replaced
    if result.stopped_by is None:
      return finish_run(workdir, result)
    say(
      f"Saved at step {result.steps:,}. To continue, run the"
      f" same command again: {errors.rerun_command()}"
    )
    if distributed.is_first_process():
      write_own_report(workdir, say)
    return errors.SIGNAL_CODES[result.stopped_by]


def dry_run(run: start.Run, console: Console) -> int:
  """Prints the plan of a run in seconds, with a step that is only traced."""
  mesh = sharding.make_mesh(run.mesh_spec)
  run, attention = plan.resolve_attention(run, mesh)
  state = plan.abstract_state(run, mesh)
  aux = plan.abstract_aux(run, mesh)
  batch = plan.abstract_batch(run, mesh)
  jax.eval_shape(plan.build_train_step(run, mesh), state, batch, aux)
  data = run.config.data
  text = "missing: set --config.data.sources=FILES"
  if data.sources != REQUIRED:
    text = describe_sources(data.sources)
  lines = {
    "dry run": "reads no text, writes nothing",
    **plan.report_lines(run, mesh, state, aux, attention),
    "text": text,
    "vocabulary": f"{len(run.tokenizer.vocab):,} entries of {data.vocab!r}",
    "needs": "; ".join(["text", *_list_needs(run)]),
  }
  console.print(plan.report_table(lines))
  return 0


def _list_needs(run: start.Run) -> Iterator[str]:
  """Yields what a run needs besides text, and whether it is here."""
  init = run.config.init
  vocab = run.config.data.vocab
  if init == REQUIRED:
    yield "weights: --config.init=FOLDER"
  elif init:
    yield f"weights: {find.describe(init)}"
  if is_hub_name(vocab) and vocab != "train" and not os.path.exists(vocab):
    yield f"vocabulary: {vocab} of the Hugging Face hub"
  if request := run.table_request:
    try:
      request.check()
      yield f"synonyms: {request.identity}, here"
    except errors.TrueNegsError as e:
      yield f"synonyms: {errors.printable(e)}"


def prepare_inputs(
  run: start.Run, workdir: pathlib.Path, console: Console
) -> tuple[start.Run, plan.RunInputs]:
  """Finds or prepares rows, tokenizer and synonym table of a run."""
  c = run.config
  folder, tokenizer = prepare_data.find_or_prepare_rows(
    c.data, c.length, console
  )
  if tokenizer != run.tokenizer:  # it was a placeholder
    config = start.require_words(run.config, tokenizer)
    run = dataclasses.replace(run, config=config, tokenizer=tokenizer)
  folder = rows_folder.copy_rows(folder)
  verification = rows_folder.Verification(folder)
  train_rows = rows_folder.open_rows(folder, "train")
  batches.check_batch_size(train_rows, c.batch_size)
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
  return run, plan.RunInputs(
    train_rows, held_out_rows, verification, synonyms, coverage
  )


def finish_run(workdir: pathlib.Path, result: loop.Training) -> int:
  """Evaluates, exports and plots a finished run; returns the exit code.

  Each part is on disk before the next begins. An error is raised at the end.
  """
  console = result.console
  inputs = result.setup.inputs
  with (
    _name_suspect_steps(workdir),
    distributed.raise_everywhere("verification"),
    progress.working(console, "Verifying the rest of the rows"),
  ):
    inputs.verification.finish()
  say = functools.partial(console.print, soft_wrap=True)
  failures: list[Exception] = []
  part = functools.partial(_try_part, failures)
  unigram_V = inputs.train_rows.unigram_V
  verdict = evaluate.compute_verdict(result.held_out, unigram_V)
  console.print(evaluate.verdict_table(verdict))
  with part("verdict"):
    _save_verdict(workdir, result, verdict)
  with part("export"):
    _export(workdir, result)
  if result.setup.run.config.negatives.hard_correction:
    with part("cases"):
      _save_cases(workdir, result)
  with part("fills"):
    _save_fills(workdir, result)
  with part("report"):
    if distributed.is_first_process():
      with progress.working(console, "Writing the report"):
        write_own_report(workdir, say)
  if failures:
    raise type(failures[0])(" ".join(map(errors.printable, failures)))
  if verdict.passed or not result.setup.run.config.eval.must_learn:
    say(f"{verdict.summary} {describe_next_steps(workdir)}")
    return 0
  say(evaluate.describe_failure(verdict))
  return EXIT_NOT_LEARNED


@contextlib.contextmanager
def _try_part(failures: list[Exception], name: str) -> Iterator[None]:
  """Adds an error of the body, in any process, to `failures` of all."""
  try:
    with distributed.raise_everywhere(name):
      try:
        yield
      except Exception as e:
        error = errors.explain(distributed.explain_loss(e), memory=SAVE_MEMORY)
        if isinstance(error, errors.LostError):
          raise
        if error is None:
          traceback.print_exc()  # a bug
          error = errors.TrueNegsError(f"{type(e).__name__}: {e}")
        text = f"After the last step, the {name} failed: {error}"
        raise type(error)(text) from e
  except errors.TrueNegsError as e:
    failures.append(e)


def _update_results(workdir: pathlib.Path, **results: Any) -> None:
  """Replaces values of results.json, which other parts have written."""
  if distributed.is_first_process():
    path = workdir / files.RESULTS
    saved = dict[str, Any]()
    with (
      contextlib.suppress(errors.CheckpointError),  # none yet, or damaged
      read_results(path, errors.CheckpointError, "") as content,
    ):
      saved = content
    files.save_json(path, saved | results)


def _save_verdict(
  workdir: pathlib.Path, result: loop.Training, verdict: evaluate.Verdict
) -> None:
  """Saves the verdict and, if the run has built it, the synonym table."""
  setup = result.setup
  _update_results(
    workdir,
    command=errors.rerun_command(),
    seed=setup.run.config.seed,
    steps=result.steps,
    fingerprints=setup.description["fingerprints"],
    verdict=files.finite_or_null(dataclasses.asdict(verdict))
    | {"answers": verdict.answers, "passed": verdict.passed}
    | {"summary": verdict.summary, "table": verdict.rows}
    | {"rule": evaluate.RULE},
    left_out=files.finite_or_null(evaluate.leave_out(result.held_out)),
  )
  if setup.run.table_builder and distributed.is_first_process():
    _find_table(result).save(workdir / files.SYNONYMS)


def _find_table(result: loop.Training) -> SynonymTable:
  setup = result.setup
  builder = result.setup.run.table_builder
  if builder is None:
    assert setup.inputs.table is not None
    return setup.inputs.table
  ids_VxS = jax.device_get(setup.state.aux["ids_VxS"])
  vocab = setup.run.tokenizer.vocab
  return builder.to_synonym_table(ids_VxS, vocab, steps=result.steps)


def _save_cases(workdir: pathlib.Path, result: loop.Training) -> None:
  num_shown = result.setup.run.config.eval.cases
  with progress.working(result.console, "Searching for corrections"):
    search = _find_cases(result, _find_table(result))
  saved = dataclasses.asdict(search)
  shown = search.cases[:num_shown]
  if distributed.is_first_process():
    files.save_json(workdir / files.CASES, saved, indent=None)
  if num_shown:
    result.console.print(findings.render_cases(search, shown))
  counts = {x: saved[x] for x in ("searched", "corrected")}
  cases = saved["cases"][:num_shown]
  _update_results(workdir, corrections=counts | {"cases": cases})


def _save_fills(workdir: pathlib.Path, result: loop.Training) -> None:
  run = result.setup.run
  state = result.setup.state
  with progress.working(result.console, "Filling [MASK] in sentences"):
    fills = evaluate.fill_masks(
      run.model, state.params, run.tokenizer, run.config.eval.sentences
    )
  if fills:
    result.console.print(evaluate.fills_table(fills))
  _update_results(workdir, fills=[fill._asdict() for fill in fills])


@contextlib.contextmanager
def _name_suspect_steps(workdir: pathlib.Path) -> Iterator[None]:
  """Adds the steps that may have learned from damaged rows to a DataError."""
  try:
    yield
  except errors.DataError as e:
    suspects: list[int] = []
    folder = workdir / files.CHECKPOINTS
    if files.has_checkpoint(workdir):
      saved = Checkpoints(folder, read_only=True)
      with contextlib.closing(saved):
        for step in saved.steps():
          suspects.append(step)
          with contextlib.suppress(errors.DamagedStepError):
            if saved.read_description(step).get(loop.ROWS_VERIFIED):
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
  main = f"{errors.program()} main"
  folder = shlex.quote(str(workdir))
  text = f"""\
Results are in '{workdir}'. Open {files.REPORT} in a browser to see them all.
# To fine-tune on your own classified texts:
{main} --config=finetune_own --config.init={folder} \\
  --config.finetune.train=train.csv --config.finetune.dev=dev.csv \\
  --config.finetune.text=sentence --config.finetune.label=label
# To measure corrections in a text, as in the paper's table 2:
{main} --config=corrections \\
  --config.corrections.run={folder} --config.corrections.text=text.txt"""
  if (exported := workdir / files.EXPORT).exists():
    code = f"""import truenegs_jax as tn
model = tn.load({json.dumps(str(exported))})
print(*tn.fill_masks(*model, ["a [MASK] who writes books"]))"""
    python = errors.program(pathlib.Path(sys.executable).name)
    text += f"\n# To fill in a mask:\n{python} -c {shlex.quote(code)}"
  return text


def _find_cases(result: loop.Training, table: SynonymTable) -> findings.Search:
  """Searches at most `eval.search_rows` rows.

  Held-out rows are searched, then training rows until there are enough cases to
  print or the time of the run is over. All processes search the same rows, in
  batches as large as a micro-batch of training.
  """
  setup = result.setup
  run = result.setup.run
  inputs = result.setup.inputs
  c = run.config
  rows = inputs.train_rows
  held_out_rows = inputs.held_out_rows
  size = c.batch_size // c.optim.accumulation
  search = functools.partial(
    predict_slots.predict_batch,
    plan.build_predict_step(run, setup.mesh),
    setup.state.params,
    setup.mesh,
  )
  finder = findings.CaseFinder(table, run.tokenizer)
  limit = c.eval.search_rows
  for batch in batches.held_out_batches(held_out_rows, size, limit=limit):
    finder.add(search(batch))
  epoch_rows = len(rows) // c.batch_size * c.batch_size
  left = min(limit - len(held_out_rows), epoch_rows)
  for step in range(-(-left // size)):
    is_enough = len(finder.counts) >= c.eval.cases
    if is_enough or result.clock.is_over(f"search {step}"):
      break
    batch = batches.batch_at(rows, step, batch_size=size, seed=c.seed)
    batch["documents"][left - step * size :] = 0  # no slots beyond the limit
    finder.add(search(batch))
  return finder.finish()


def _export(workdir: pathlib.Path, result: loop.Training) -> None:
  """Exports a run if transformers has its architecture; prints a report."""
  run = result.setup.run
  console = result.console
  params = distributed.to_host(result.setup.state.params)
  if not distributed.is_first_process():
    return
  if reason := hf_names.unsupported_reason(run.model):
    report = f"{reason} The checkpoints have the weights."
  else:
    origin = export_run.summarize_run(workdir, run.config, result.steps)
    folder = workdir / files.EXPORT
    with progress.working(console, "Exporting"):
      model = run.model, params, run.tokenizer
      exported = export_model(*model, folder, origin=origin)
    report = f"Exported to '{folder}'. {exported.summary}"
  # Words are not broken on a terminal; a log has a line.
  console.print(report, soft_wrap=not console.is_terminal)
