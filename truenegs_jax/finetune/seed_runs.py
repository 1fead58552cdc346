"""Trains, evaluates, saves and exports the runs of a fine-tuning."""

import dataclasses
import json
import pathlib
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from truenegs_jax.finetune import (
  evaluate,
  leaderboard,
  loop,
  results,
  task_data,
)
from truenegs_jax.finetune.config_checks import FinetuneOptions
from truenegs_jax.finetune.initial_weights import InitialWeights
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.train import guards
from truenegs_jax.weights import export_model, hf_folder, model_card
from truenegs_jax.workdir import files

# Files in the folder of an unfinished run.
UNFINISHED = {
  files.CHECKPOINTS,
  files.METRICS,
  f"{files.METRICS}.tmp",
  files.DAMAGED,
  files.BAD_ROWS,
  f"{results.RESULT}.tmp",
  files.LOGGED_ID,
  files.TENSORBOARD,
  files.WANDB,
  results.MODEL,
}


@dataclasses.dataclass(frozen=True)
class TaskPlan:
  """A task, the provenance of its runs, and the seeds of unfinished runs."""

  setup: loop.TrainingSetup
  provenance: Mapping[str, Any]
  seeds: Sequence[int]


@dataclasses.dataclass(frozen=True)
class RunContext:
  """Values that all runs of a workdir share; `config` is in JSON's types."""

  workdir: pathlib.Path
  console: Console
  options: FinetuneOptions
  config: Mapping[str, Any]

  def report(self, text: str) -> None:
    """Prints a line."""
    self.console.print(text, soft_wrap=True)

  def count_missing(self) -> int:
    """Returns the number of runs that are not finished."""
    seeds = self.options.all_seeds
    return sum(
      len(results.missing_seeds(self.workdir, task, seeds))
      for task in self.options.task_names
    )


def plan_runs(context: RunContext, initial: InitialWeights) -> list[TaskPlan]:
  """Reads all tasks, and compares weights and data with saved runs.

  All files are read before the first run, so that bad ones are found at once.
  """
  read, finished = [], results.load_all(context.workdir)
  with distributed.raise_everywhere("inputs"):
    for name in context.options.task_names:
      with progress.working(context.console, f"Reading {name}"):
        data = task_data.read_task_data(
          context.options, name, initial.tokenizer
        )
        model = initial.make_model(data.task)
        provenance = initial.provenance(model, data.task, data.fingerprints())
      provenance[results.CONFIG] = context.config
      results.check_provenance(finished, name, provenance)
      missing = results.missing_seeds(
        context.workdir, name, context.options.all_seeds
      )
      for seed in missing:
        folder = results.run_folder(context.workdir, name, seed)
        if saved := loop.read_description(folder):
          results.check_unfinished(folder, saved[loop.PROVENANCE], provenance)
      read.append((model, data, provenance, missing))
  distributed.check_same("runs", json.dumps([x[2:] for x in read]))
  return [
    TaskPlan(loop.make_setup(context.options, model, data), provenance, missing)
    for model, data, provenance, missing in read
  ]


def train_missing(
  context: RunContext, initial: InitialWeights, plans: Sequence[TaskPlan]
) -> signal.Signals | None:
  """Trains and saves the runs of the plans; returns a signal to stop."""
  runs = [(plan, seed) for plan in plans for seed in plan.seeds]
  described = None
  _remove_checkpoints(context.workdir)  # if a kill came before
  with guards.StopSignals(context.console) as signals:
    vote = guards.StopVote(signals, plans[0].setup.predictor.mesh)

    def check() -> None:
      if number := vote.poll():
        raise loop.Stopped(number)

    for number, (plan, seed) in enumerate(runs, start=1):
      if plan is not described:
        _describe_task(context, plan.setup)
        described = plan
      title = f"{plan.setup.data.task.title}, seed {seed}"
      context.report(f"{title}: run {number} of {len(runs)}")
      try:
        _train_run(context, initial, plan, seed, check)
      except loop.Stopped as e:
        return e.args[0]
  return None


def _describe_task(context: RunContext, setup: loop.TrainingSetup) -> None:
  data, options, model = setup.data, setup.options, setup.model
  width, num_cut = model.config.width, data.train.num_cut
  context.report(
    f"{data.task.title}: {len(data.train.tokens):,} training rows,"
    f" {len(data.dev.keys):,} dev examples, {setup.steps:,} steps of"
    f" {options.batch_size} rows, peak learning rate"
    f" {options.peak_rate(width):g}, layer decay {options.decay(width):g}, head"
    f" {model.head!r}, attention {setup.predictor.attention}"
    + (f", {num_cut:,} rows truncated" if num_cut else "")
    + "".join(f", {note}" for note in data.notes)
  )
  reason = hf_folder.unsupported_reason(model)
  if reason and options.export == "all":
    context.report(reason)


def _train_run(
  context: RunContext,
  initial: InitialWeights,
  plan: TaskPlan,
  seed: int,
  check: Callable[[], None],
) -> None:
  """Trains, answers, scores, saves and exports one run."""
  setup, data = plan.setup, plan.setup.data
  folder = results.run_folder(context.workdir, data.task.name, seed)
  name = f"{data.task.name} {seed}"
  with distributed.raise_everywhere(f"folder {name}"):
    if distributed.is_first_process():
      _prepare_folder(folder)
  with loop.fine_tune(
    setup,
    seed,
    folder,
    make_params=lambda: initial.make_params(
      setup.model, data.task, seed, report=context.report
    ),
    provenance=plan.provenance,
    check=check,
    console=context.console,
    save_end=context.options.export == "all",
  ) as trained:
    answers, scores, wrong = _answer_splits(
      context, setup, trained.params, check
    )
  failure = trained.failure or evaluate.find_failure(
    data.dev.golds, answers["dev"]["answers"]
  )
  result = results.Result(
    task=data.task.name,
    seed=seed,
    failure=failure,
    scores=scores,
    step=trained.step,
    steps=setup.steps,
    evaluations={str(step): x for step, x in trained.evaluations.items()},
    losses=trained.losses,
    secs=trained.secs,
    rows_per_s=trained.rows_per_s,
    answers=answers,
    provenance=plan.provenance,
    notes=list(data.notes),
    mistakes=wrong,
  )
  context.report(f"  {leaderboard.describe_run(result)}")
  params = distributed.to_host(trained.params)
  with distributed.raise_everywhere(f"save {name}"):
    if distributed.is_first_process():
      _save(context, initial, setup, params, result)


def _answer_splits(
  context: RunContext,
  setup: loop.TrainingSetup,
  params: Mapping[str, Any],
  check: Callable[[], None],
) -> tuple[dict[str, Any], dict[str, dict[str, float]], list[dict[str, Any]]]:
  """Returns answers and scores by split, and mistakes in the dev set."""
  data, answers, scores, wrong = setup.data, {}, {}, []
  for name, split in data.splits.items():
    outputs, answers_Q = setup.predictor.answer(
      params,
      split,
      console=context.console,
      title=f"Answering {name}, rows",
      check=check,
    )
    answers[name] = split.to_json(answers_Q)
    if split is data.dev:
      wrong = evaluate.find_mistakes(split, outputs, answers_Q)
    if split.golds:
      scores[name] = split.score(answers_Q)
  return answers, scores, wrong


def _save(
  context: RunContext,
  initial: InitialWeights,
  setup: loop.TrainingSetup,
  params: Mapping[str, Any],
  result: results.Result,
) -> None:
  """Exports a model, saves its result and removes its checkpoints.

  If it ends in between, the same command continues from the last checkpoint.
  """
  if context.options.export == "all":
    folder = results.run_folder(context.workdir, result.task, result.seed)
    output = folder / results.MODEL
    with progress.working(context.console, "Exporting"):
      exported = _export(initial, setup, params, result, output)
    context.report(f"  {exported}")
    result = dataclasses.replace(result, exported=exported)
  results.save(context.workdir, result)
  _remove_checkpoints(context.workdir)


def _remove_checkpoints(workdir: pathlib.Path) -> None:
  """Removes the checkpoints of finished runs."""
  for path in workdir.glob(f"*/seed-*/{results.RESULT}"):
    if distributed.is_first_process():
      shutil.rmtree(path.parent / files.CHECKPOINTS, ignore_errors=True)


def _prepare_folder(folder: pathlib.Path) -> None:
  """Creates the folder, without what a run without checkpoint left there."""
  names = {x.name for x in folder.iterdir()} if folder.exists() else set()
  exports = {x.name for x in folder.glob(f".{results.MODEL}.*")}  # of a kill
  if unknown := sorted(names - UNFINISHED - exports):
    raise errors.InputError(
      f"'{folder}' has files that do not belong to a run:"
      f" {', '.join(unknown[:5])}. Move them away."
    )
  if not files.has_checkpoint(folder):
    with disk_errors(folder):
      shutil.rmtree(folder, ignore_errors=True)
      folder.mkdir(parents=True)


def _export(
  initial: InitialWeights,
  setup: loop.TrainingSetup,
  params: Mapping[str, Any],
  result: results.Result,
  output: pathlib.Path,
) -> str:
  """Exports the model for Hugging Face; returns the outcome."""
  if result.failure:
    return "not exported: the run failed"
  if reason := hf_folder.unsupported_reason(setup.model):
    return reason
  origin = _describe_origin(initial, setup, result)
  shutil.rmtree(output, ignore_errors=True)  # of a kill before the result
  try:
    exported = export_model.export_task(
      params,
      setup.model,
      initial.tokenizer,
      output,
      task=setup.data.task,
      origin=origin,
    )
  except errors.DiskError as e:
    raise errors.DiskError(
      f"'{output}' could not be written ({e.__cause__ or e}). The run's"
      " checkpoints are kept. Free some space and run the same command again."
    ) from e
  except errors.TrueNegsError as e:
    return f"NOT EXPORTED: {errors.printable(e)}"
  return f"Exported to '{exported.output}'. {exported.summary}"


def _describe_origin(
  initial: InitialWeights, setup: loop.TrainingSetup, result: results.Result
) -> model_card.ModelOrigin:
  """Describes a run for its model card, without paths of this machine."""
  options, data, hide = setup.options, setup.data, model_card.hide_folders
  init = initial.weights.init if initial.weights else ""
  files = f"{options.data} {options.files}".strip()
  datasets = model_card.find_datasets(files)
  scores = leaderboard.format_scores(result.scores["dev"])
  notes = "".join(f"; {note}" for note in result.notes)
  return model_card.ModelOrigin(
    {
      "Training data": f"* {len(data.train.tokens):,} rows of `{hide(files)}`",
      "Training": f"""\
* Fine-tuned from: {f"`{hide(init)}`" if init else "weights drawn at random"}
* Recipe: {result.step:,} steps of {options.batch_size} rows of at most
  {options.length} tokens, head `{setup.model.head}`, seed {result.seed}
* Made by: `{model_card.hide_in_command(errors.rerun_command())}`""",
      "Evaluation": f"""\
Dev set: {len(data.dev.keys):,} examples, in percent: {scores}{notes}. Other
seeds have other scores; compare models by the mean of several.""",
    },
    limits=[f"Longer texts than {options.length} tokens were truncated."],
    metadata={
      "language": model_card.read_metadata(init).get("language"),
      "datasets": sorted({*datasets}),
      **model_card.describe_base(init),
    },
  )
