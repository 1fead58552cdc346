"""Starts a run: its inputs, its state, and its compiled steps.

The state is new, restored from a checkpoint, or has the parameters of weights.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import pathlib
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import jax
import numpy as np
from rich.console import Console

from truenegs_jax.config.sections import Data, PretrainConfig
from truenegs_jax.data import batches, prepare
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.data.tokenizer_files import write_tokenizer
from truenegs_jax.pretrain import branch as branch_lib
from truenegs_jax.pretrain import (
  describe,
  fill_masks,
  minimal_pairs,
  model_table,
  open_teacher,
  plan,
)
from truenegs_jax.pretrain.plan import Inputs, Run
from truenegs_jax.runtime import cpu, distributed, progress
from truenegs_jax.runtime.errors import (
  CheckpointError,
  DataError,
  InputError,
  TrueNegsError,
  program,
)
from truenegs_jax.runtime.files import short_sha256
from truenegs_jax.synonyms import run_table
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.wordnet import open_wordnet
from truenegs_jax.train import guards, sharding
from truenegs_jax.train import step as step_lib
from truenegs_jax.weights import load
from truenegs_jax.workdir import files, saved_model
from truenegs_jax.workdir.checkpoints import Checkpoints

EVAL_PAIRS = 20  # of each paradigm, so that they take seconds


@dataclasses.dataclass(frozen=True)
class Started:
  """A run at its first step: its inputs, state and compiled steps."""

  run: Run
  inputs: Inputs
  state: step_lib.TrainState
  aux: dict[str, Any]  # inputs of the objective other than the batch
  # By the parts of a row: (state, batch, aux) -> (state, terms)
  train_steps: Mapping[int, jax.stages.Compiled]
  eval_step: Callable[..., step_lib.Terms]  # (params, batch, aux) -> terms
  # Rebuilds the table of a state before a step, if due.
  refresh: Callable[[step_lib.TrainState, int], step_lib.TrainState]
  description: dict[str, Any]  # saved with each checkpoint


def read_saved_config(
  workdir: pathlib.Path, branch: str
) -> dict[str, Any] | None:
  """Returns the config of the run to resume, or else of that to branch from."""
  saved = saved_model.read_config(workdir)
  if branch and saved is None:
    others = branch_lib.find_branch(branch)[0]
    with saved_model.open_run(others):  # raises if there is no run
      saved = saved_model.read_config(others)
  return saved


def find_kept_steps(config: PretrainConfig, folder: pathlib.Path) -> list[int]:
  """Returns the steps whose checkpoints are never deleted.

  Those in `folder` stay that were such when the run had fewer steps, by a
  percentage that `checkpoint.keep_percent` still has, or that cannot be read.
  """
  kept = {*plan.list_kept_steps(config)}
  with contextlib.closing(Checkpoints(folder, read_only=True)) as checkpoints:
    for step in checkpoints.steps():
      try:
        saved = checkpoints.read_description(step)["config"]
      except TrueNegsError:  # it may be intact
        kept.add(step)
        continue
      old = PretrainConfig.read(saved)
      percents = {*old.checkpoint.keep_percent} & {
        *config.checkpoint.keep_percent
      }
      if step in plan.list_kept_steps(
        old.replace({"checkpoint.keep_percent": tuple(percents)})
      ):
        kept.add(step)
  return sorted(kept)


def prepare_rows(
  data: Data, length: int, console: Console
) -> tuple[pathlib.Path, Tokenizer]:
  """Returns the rows folder of a run, which it prepares, and its tokenizer.

  Raises:
    InputError: rows are missing, and must be prepared by another command.
  """
  with progress.working(console, "Opening text and rows"):
    rows_plan = prepare.make_plan(data, length, open_wordnet)
    is_prepared = rows_plan.is_prepared()
  if not is_prepared and distributed.process_count() > 1:
    raise InputError(
      f"'{rows_plan.folder}' has no rows, and a run of many processes does not"
      f" prepare them. First run {program()} prepare with the same --config"
      " flags. Choose a folder that all machines share."
    )
  return prepare.execute_plan(rows_plan)


def read_inputs(
  run: Run, folder: pathlib.Path, workdir: pathlib.Path, console: Console
) -> Inputs:
  """Opens the rows in a folder, and reads or builds the synonym table."""
  c = run.config
  folder = rows_folder.copy_rows(folder)
  with progress.working(console, "Verifying the rows", brief=True):
    rows_folder.verify_rows(folder)
  train_rows = rows_folder.open_rows(folder, "train")
  batches.check_batch_size(train_rows, c.batch_size)
  if warning := rows_folder.padding_warning(train_rows.manifest):
    console.print(warning, soft_wrap=True)
  held_out_rows = rows_folder.open_rows(folder, "held_out")
  if not len(held_out_rows):
    raise DataError(
      f"'{folder}' has no held-out rows: the text fills a single row. Use more"
      " text or a smaller --config.length=NUMBER."
    )
  fill_masks.encode_sentences(
    run.tokenizer, c.eval.sentences, max_length=c.model.positions
  )
  rate_pairs = None
  if c.eval.blimp:
    pairs = minimal_pairs.read_pairs(
      c.eval.blimp, key="eval.blimp", rows=EVAL_PAIRS
    )
    rate_pairs = minimal_pairs.PairScorer(run, pairs).rate
  table = None
  teacher = None
  coverage = {}
  if run.teacher:
    with progress.working(console, "Reading the teacher"):
      teacher = read_teacher(run, console)
  if run.table_request and run.table_builder is None:
    saved = workdir / files.SYNONYMS
    table = run_table.load_or_build(
      run.table_request,
      run.tokenizer,
      saved=saved if files.has_checkpoint(workdir) else None,
      console=console,
    )
    with progress.working(console, "Counting words with synonyms"):
      coverage["text"], warning = run_table.describe_text(
        run.table_request, table, train_rows.unigram_V
      )
    if warning:
      console.print("warning:", warning, soft_wrap=True)
  return Inputs(train_rows, held_out_rows, table, coverage, teacher, rate_pairs)


def read_teacher(run: Run, console: Console) -> dict[str, Any]:
  """Reads a teacher's parameters; DataError for another vocabulary."""
  assert run.teacher
  run.teacher.check_vocabulary(run.tokenizer)
  report = functools.partial(console.print, soft_wrap=True)
  matched = run.teacher.matched
  with open_teacher.naming_errors(run.teacher.options.path):
    params = load.load_params(matched, complete=True, report=report)
  return run.teacher.select(params)


def start(
  run: Run,
  inputs: Inputs,
  workdir: pathlib.Path,
  checkpoints: Checkpoints,
  clock: guards.Clock,
  console: Console,
) -> Started:
  """Makes the state, compiles the steps, reports and writes files."""
  sharding.process_slice(run.mesh, run.config.batch_size)  # may raise
  description = make_description(run, inputs)
  for key, value in description.items():
    distributed.check_same(key, json.dumps(value))
  distributed.check_same("attention", run.attention_line)
  abstract = run.abstract_state()
  if run.config.branch and checkpoints.latest_step() is None:
    branch_lib.copy_branch(
      run.config.branch, checkpoints, description, abstract
    )
  resumed = resume(run, checkpoints, description, abstract, console, clock)
  make_state: Callable[[], step_lib.TrainState]
  if resumed:
    make_state = functools.partial(step_lib.TrainState, **resumed)
  else:
    make_state = prepare_state(run, abstract, console)
  aux = make_aux(run, inputs.table, inputs.teacher)
  done = int(resumed["step"]) if resumed else 0
  compiled, state = compile_steps(run, abstract, aux, make_state, done, console)
  started = Started(
    run,
    inputs,
    state,
    aux,
    compiled,
    build_eval_step(run),
    model_table.make_refresh(
      run.table_builder, abstract, from_weights=bool(run.config.init)
    ),
    description,
  )
  origin = _describe_origin(run.config)
  if resumed:
    origin = f"resumed at step {int(state.step):,} of '{workdir}'"
  analyses = [step.memory_analysis() for step in compiled.values()]
  sizes = [x.temp_size_in_bytes for x in analyses if x]
  scratch = max(sizes, default=None)
  lines = {
    "start": origin,
    **describe.start_lines(run, inputs, state, aux, scratch),
  }
  console.print(progress.make_table(lines))
  if distributed.is_first_process():
    files.save_json(workdir / files.CONFIG, description["config"])
    write_tokenizer(run.tokenizer, workdir)
    if inputs.table is not None:
      inputs.table.save(workdir / files.SYNONYMS)
    sources = describe.describe_text(inputs.train_rows.manifest)
    about = {"lines": lines, "sources": sources}
    files.save_json(workdir / files.ABOUT, about)
  return started


def _describe_origin(config: PretrainConfig) -> str:
  """Describes what a new run starts from."""
  init = config.init
  origin = f"weights '{init}'" if init else "random parameters"
  return f"{origin}, seed {config.seed}"


def compile_steps(
  run: Run,
  abstract: step_lib.TrainState,
  aux: Mapping[str, jax.Array],
  make_state: Callable[[], step_lib.TrainState],
  done: int,
  console: Console,
) -> tuple[dict[int, jax.stages.Compiled], step_lib.TrainState]:
  """Compiles the training steps, and makes the state at the same time.

  Rows are never read as more parts than after the `done` steps.
  """
  most = plan.count_parts(run.config, done)
  runs = {n: plan.shorten(run, n) for n in plan.PARTS if n <= most}
  text = "Compiling (kept for the next start)"
  if cpu.ONEDNN in cpu.compiler_options(run.config.model.dtype):
    text = "Compiling"
  with (  # processes that step before others are ready run into a timeout
    distributed.raise_everywhere("compile"),
    progress.working(console, text),
  ):
    lowered = {
      parts: lower_train_step(short_run, abstract, aux)
      for parts, short_run in runs.items()
    }
    # This thread only waits, so that it can handle a signal. Of many processes
    # each does one after the other, as they may have to wait for one another.
    num_threads = 1 if distributed.process_count() > 1 else 2
    with futures.ThreadPoolExecutor(num_threads) as pool:
      steps = {n: pool.submit(x.compile) for n, x in lowered.items()}
      state = pool.submit(make_state)
      return {n: x.result() for n, x in steps.items()}, state.result()


def make_description(run: Run, inputs: Inputs) -> dict[str, Any]:
  """Returns the description of a run for its checkpoints, in JSON's types."""
  synonyms = None
  if table := run.table_builder or inputs.table:
    synonyms = table.fingerprint
  elif inputs.teacher:
    assert run.teacher
    synonyms = open_teacher.fingerprint(run.teacher.options, inputs.teacher)
  versions = {}
  for package in ("truenegs_jax", "jax", "jaxlib", "flax", "optax"):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  return {
    "config": run.config.to_json(),
    "fingerprints": {
      "vocabulary": run.tokenizer.fingerprint,
      "rows": inputs.train_rows.fingerprint,
      "synonyms": synonyms,
    },
    "versions": versions,
    "devices": jax.device_count(),
  }


def make_aux(
  run: Run, table: SynonymTable | None, teacher: dict[str, Any] | None = None
) -> dict[str, Any]:
  """Puts the table and what else the objective needs on the devices.

  `teacher` are parameters, which are split like those of the model.
  """
  aux: dict[str, np.ndarray] = {}
  if table is not None:
    aux |= table.arrays(run.table_layout, rates=run.options.needs_rates)
  if run.edges_V is not None:
    aux["edges_V"] = run.edges_V
  replicated = sharding.replicated_sharding(run.mesh)
  placed = {name: sharding.put(x, replicated) for name, x in aux.items()}
  if teacher is None:
    return placed
  split = sharding.param_shardings(teacher, run.mesh, run.mesh_spec)
  return {**placed, "teacher": jax.tree.map(sharding.put, teacher, split)}


def lower_train_step(
  run: Run,
  state: step_lib.TrainState,
  aux: Mapping[str, jax.Array | jax.ShapeDtypeStruct],
  *,
  platform: str = "",
) -> jax.stages.Lowered:
  """Lowers the training step for (abstract) arrays, also of absent devices."""
  shardings = jax.tree.map(lambda x: x.sharding, state)
  with cpu.lowering_for(platform):
    jitted = jax.jit(
      run.train_step,
      donate_argnums=0,
      out_shardings=(shardings, sharding.replicated_sharding(run.mesh)),
      compiler_options=cpu.compiler_options(run.config.model.dtype),
    )
    return jitted.lower(state, run.abstract_batch(), aux)


def build_eval_step(run: Run) -> Callable[..., step_lib.Terms]:
  """Builds the jitted evaluation step: `(params, batch, aux) -> terms`."""
  c = run.config
  step = step_lib.make_eval_step(
    run.objective(train=False), c.seed, c.optim.accumulation
  )
  replicated = sharding.replicated_sharding(run.mesh)
  return jax.jit(step, out_shardings=replicated)


def resume(
  run: Run,
  checkpoints: Checkpoints,
  description: Mapping[str, Any],
  abstract: step_lib.TrainState,
  console: Console,
  clock: guards.Clock,
) -> dict[str, Any]:
  """Restores the state of the newest undamaged step; {} without steps."""
  say = functools.partial(console.print, soft_wrap=True)

  def read(step: int) -> dict[str, Any]:
    saved = checkpoints.read_description(step)
    check_same_run(checkpoints.folder, step, saved, description)
    with progress.working(console, f"Restoring step {step:,}"):
      state = checkpoints.restore_state(step, vars(abstract))
    for note in describe.describe_resume(run, step, saved, description):
      say(note)
    if guards.TIME in saved:
      clock.resume(saved[guards.TIME])
    if minutes := run.config.minutes:
      say(f"{clock.used_secs() / 60:.3g} of minutes={minutes:g} are used.")
    return state

  newest = checkpoints.read_newest(read, say)
  return newest[1] if newest else {}


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
    more = ""
    if step >= description["config"]["steps"]:  # it has none left
      more = f" --config.steps={2 * step}"
    raise CheckpointError(
      f"'{folder}' has step {step:,} of another run. Differences"
      f" (saved -> now):\n  {differences}\nPass --workdir=runs/NAME for a new"
      f" run, with --config.branch={workdir}{more} to go on from this one, or"
      f" --config={workdir / files.CONFIG} to resume it."
    )


def prepare_state(
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
    if distributed.process_count() > 1:  # it may be a run that goes on
      arrays = jax.tree.leaves(params)
      hashes = [short_sha256(x.tobytes()) for x in arrays]
      distributed.check_same("weights", short_sha256(*hashes))
  shardings = jax.tree.map(lambda x: x.sharding, abstract)

  def make_state() -> step_lib.TrainState:
    state = jax.jit(run.init_state, out_shardings=shardings)()
    if params is None:
      return state
    placed = jax.tree.map(sharding.put, params, shardings.params)
    return dataclasses.replace(state, params=placed)

  return make_state
