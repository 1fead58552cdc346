"""Sets up training: initial or resumed state, compiled steps and report."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import math
import pathlib
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import jax
import numpy as np
from rich.console import Console

from truenegs_jax.config.sections import SIZES
from truenegs_jax.data import batches
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.tokenizer import write_tokenizer
from truenegs_jax.runtime import distributed, progress
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.train import metrics, model_table, plan, sharding, speed
from truenegs_jax.train import step as step_lib
from truenegs_jax.train.plan import PretrainSetup, RunInputs
from truenegs_jax.train.start import Run, find_branch
from truenegs_jax.weights import load
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import files, saved_model

# Beginnings of the keys that decide the arrays of a state and their meaning.
NETWORKS = (
  *("config.objective", "config.model.backbone", "config.model.variant"),
  *(f"config.model.{name}" for name in SIZES),
  *("config.model.sharing", "config.generator.", "fingerprints.vocabulary"),
)


def set_up_training(
  run: Run,
  workdir: pathlib.Path,
  inputs: RunInputs,
  checkpoints: checkpoints_lib.Checkpoints,
  console: Console,
  clock: speed.TimeLimit,
) -> PretrainSetup:
  """Makes the state, compiles the steps, reports and writes files."""
  mesh = sharding.make_mesh(run.mesh_spec)
  sharding.process_slice(mesh, run.config.batch_size)  # may raise
  synonyms = run.table_builder or inputs.table
  fingerprints = {
    "vocabulary": run.tokenizer.fingerprint,
    "rows": inputs.train_rows.fingerprint,
    "synonyms": synonyms.fingerprint if synonyms else None,
  }
  description = make_description(run.config.to_json(), fingerprints)
  for key, value in description.items():
    distributed.check_same(key, json.dumps(value))
  abstract = plan.abstract_state(run, mesh)
  if run.config.branch and checkpoints.latest_step() is None:
    _copy_branch(run, checkpoints, description, abstract)
  resumed = _resume(run, checkpoints, description, abstract, console, clock)
  if resumed is None:
    make_state = _prepare_state(run, abstract, console)
  else:
    make_state = functools.partial(step_lib.TrainState, **resumed[1])
  aux = plan.make_aux(run, inputs.table, mesh)
  resolved, attention = plan.resolve_attention(run, mesh, check=True)
  with (  # processes that step before others are ready run into a timeout
    distributed.raise_everywhere("compile"),
    progress.working(console, "Compiling (kept for the next start)"),
  ):
    lowered = plan.lower_train_step(resolved, mesh, abstract, aux)
    # This thread only waits, so that it can handle a signal. Of many processes
    # each does one after the other, as they may have to wait for one another.
    num_threads = 1 if distributed.process_count() > 1 else 2
    with futures.ThreadPoolExecutor(num_threads) as pool:
      tasks = pool.submit(lowered.compile), pool.submit(make_state)
      compiled = tasks[0].result()
      state = tasks[1].result()
  setup = PretrainSetup(
    run=run,
    inputs=inputs,
    mesh=mesh,
    state=state,
    aux=aux,
    train_step=compiled,
    eval_step=plan.build_eval_step(resolved, mesh),
    refresh=model_table.make_refresh(
      run.table_builder, abstract, from_weights=bool(run.config.init)
    ),
    description=description,
    clock=clock,
  )
  lines = _report_lines(setup, workdir, resumed and resumed[0], attention)
  if distributed.is_first_process():
    _write_files(setup, workdir, lines)
  console.print(plan.report_table(lines))
  return setup


def _write_files(
  setup: PretrainSetup, workdir: pathlib.Path, lines: Mapping[str, str]
) -> None:
  """Writes what a resume, an export and the report need of a start."""
  run = setup.run
  inputs = setup.inputs
  if int(setup.state.step) < setup.clock.total_steps:  # results to do again
    for name in (files.RESULTS, files.CASES):
      files.remove_outdated(workdir / name)
  files.save_json(workdir / files.CONFIG, setup.description["config"])
  write_tokenizer(run.tokenizer, workdir)
  if inputs.table is not None:
    inputs.table.save(workdir / files.SYNONYMS)
  about = {
    "lines": dict(lines),
    "row_flops": plan.row_flops(run),
    "uniform_entropy": math.log(len(run.tokenizer.vocab)),
    **_describe_rows(inputs.train_rows),
  }
  files.save_json(workdir / files.ABOUT, about)


def make_description(
  config: dict[str, Any], fingerprints: Mapping[str, str | None]
) -> dict[str, Any]:
  """Returns the description of a run for its checkpoints, in JSON's types."""
  versions = {}
  for package in ("truenegs_jax", "jax", "jaxlib", "flax", "optax"):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  return {
    "config": config,
    "fingerprints": dict(fingerprints),
    "versions": versions,
    "devices": jax.device_count(),
  }


def _copy_branch(
  run: Run,
  checkpoints: checkpoints_lib.Checkpoints,
  description: Mapping[str, Any],
  abstract: step_lib.TrainState,
) -> None:
  """Copies the step of another run that `branch` names, to resume from it."""
  workdir, step = find_branch(run.config.branch)
  with saved_model.open_run(workdir) as others:
    step = step or others.latest_step() or 0
    saved = others.read_description(step)
    changes = files.find_changes(saved, description)
    if changed := [str(x) for x in changes if x.key.startswith(NETWORKS)]:
      raise CheckpointError(
        f"The state of '{run.config.branch}' is of other networks. Differences"
        f" (saved -> now): {'; '.join(changed)}. Set them to the saved values,"
        " and for other text --config.data.vocab=init."
      )
    state = others.restore_state(step, vars(abstract))
    checkpoints.save(step, state, {**saved, **description}, wait=True)


def _resume(
  run: Run,
  checkpoints: checkpoints_lib.Checkpoints,
  description: Mapping[str, Any],
  abstract: step_lib.TrainState,
  console: Console,
  clock: speed.TimeLimit,
) -> tuple[int, dict[str, Any]] | None:
  """Restores the newest undamaged step and its state; None without steps."""
  steps = run.config.steps
  minutes = run.config.minutes
  say = functools.partial(console.print, soft_wrap=True)

  def read(step: int) -> dict[str, Any]:
    saved = checkpoints.read_description(step)
    check_same_run(checkpoints.folder, step, saved, description)
    with progress.working(console, f"Restoring step {step:,}"):
      state = checkpoints.restore_state(step, vars(abstract))
    names = "versions", "devices"
    before, now = ({k: x[k] for k in names} for x in (saved, description))
    if changed := files.find_changes(before, now):
      say(
        "warning: The run is resumed in another environment"
        f" ({', '.join(map(str, changed))}). Data and draws are the same, but"
        " sums may be rounded differently."
      )
    earlier = saved["config"]
    more = steps > earlier["steps"] or minutes > earlier["minutes"]
    clock.resume(saved[speed.TIME], step, more=more)
    if minutes:
      say(f"{clock.used_secs() / 60:.3g} of minutes={minutes:g} are used.")
    elif steps > earlier["steps"]:
      say(
        f"This run had {earlier['steps']:,} steps and gets {steps:,}. After"
        f" step {step:,} it continues with their schedule: the learning rate is"
        f" {run.learning_rate(step):.3g} and falls to 0."
      )
    return state

  return checkpoints.read_newest(read, say)


def check_same_run(
  folder: pathlib.Path, step: int, saved: Mapping, description: Mapping
) -> None:
  """Raises CheckpointError if the saved description is of another run."""
  fixed = files.find_fixed_changes(saved["config"], description["config"])
  changed = [x for x in fixed if x.key != "steps" or x.now < x.saved]
  prints = (x["fingerprints"] for x in (saved, description))
  changed += files.find_changes(*prints)
  if changed:
    differences = "\n  ".join(map(str, changed))
    workdir = folder.parent
    raise CheckpointError(
      f"'{folder}' has step {step:,} of another run. Differences"
      f" (saved -> now):\n  {differences}\nPass --workdir=runs/NAME for a new"
      f" run, with --config.branch={workdir} to go on from this one, or"
      f" --config={workdir / files.CONFIG} to resume it."
    )


def _prepare_state(
  run: Run, abstract: step_lib.TrainState, console: Console
) -> Callable[[], step_lib.TrainState]:
  """Reads the weights of `init`; returns a function that makes the state."""
  params = None
  if init := run.config.init:
    report = functools.partial(console.print, soft_wrap=True)
    working = progress.working(console, f"Reading weights '{init}'")
    with distributed.raise_everywhere("init"), working:
      seed = run.config.seed
      params = load.load_params(run.matched, seed=seed, report=report)
  shardings = jax.tree.map(lambda x: x.sharding, abstract)

  def put(x: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    return jax.make_array_from_callback(x.shape, sharding, x.__getitem__)

  def make_state() -> step_lib.TrainState:
    state = jax.jit(run.init_state, out_shardings=shardings)()
    if params is None:
      return state
    placed = jax.tree.map(put, params, shardings.params)
    return dataclasses.replace(state, params=placed)

  return make_state


def _report_lines(
  setup: PretrainSetup,
  workdir: pathlib.Path,
  first_step: int | None,
  attention: str,
) -> dict[str, str]:
  """Returns the lines of the report; `first_step` is that of a resumed run."""
  run = setup.run
  inputs = setup.inputs
  c = run.config
  rows = len(inputs.train_rows)
  origin = "random parameters"
  if c.init:
    origin = f"weights '{c.init}'"
  origin += f", seed {c.seed}"
  if first_step is not None:
    origin = f"resumed at step {first_step:,} of '{workdir}'"
  lines = {"start": origin}
  lines |= plan.report_lines(run, setup.mesh, setup.state, setup.aux, attention)
  if memory := setup.train_step.memory_analysis():
    scratch = plan.format_mib(memory.temp_size_in_bytes)
    lines["per device"] += f", scratch {scratch}"
  lines["steps"] += f", {c.steps * c.batch_size / rows:.1f} epochs"
  lines["data"] = (
    f"{rows:,} rows of {c.length} tokens,"
    f" {len(inputs.held_out_rows):,} held-out rows, vocabulary of"
    f" {len(run.tokenizer.vocab):,} tokens"
  )
  lines["synonyms"] = "none"
  if run.table_builder is not None:
    options = run.table_builder.options
    lines["synonyms"] = (
      f"the {options.top} nearest tokens by the model's embeddings, with a"
      f" cosine of at least {options.threshold:g}, updated every"
      f" {options.every:,} steps"
    )
  elif (table := inputs.table) is not None:
    lines["synonyms"] = (
      f"{table.num_pairs:,} pairs for {table.num_rows:,} tokens"
      f" ({table.coverage}) from {table.source}"
    )
  lines |= inputs.coverage
  lines["workdir"] = (
    f"{workdir}/ ({files.CONFIG}, metrics.jsonl, {files.CHECKPOINTS}/,"
    f" {files.EXPORT}/)"
  )
  return lines


def _describe_rows(rows: batches.Rows) -> dict[str, Any]:
  """Describes the training rows for about.json."""
  manifest = rows.manifest
  return {
    "unigram_entropy": metrics.entropy(rows.unigram_V),
    "sources": _describe_text(manifest),
    "text_bytes": sum(x["text_bytes"] for x in manifest["parts"]),
    "rows": {name: x["rows"] for name, x in manifest["splits"].items()},
    "padding_warning": rows_folder.padding_warning(manifest),
  }


def _describe_text(manifest: dict[str, Any]) -> list[str]:
  """Describes each part of the text, without names of files and folders."""
  lines = []
  sources = manifest["options"]["sources"]
  for source, part in zip(sources, manifest["parts"], strict=True):
    name = source["source"]
    if "dataset" in source:
      name = "hf:{dataset}, {config} of revision {revision}".format(**source)
    size = part["text_bytes"] / 1e6
    lines.append(f"{name}: {part['documents']:,} documents, {size:,.1f} MB")
  return lines
