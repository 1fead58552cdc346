"""Before the first step: where a run starts, its state, its compiled steps.

Start order: resume the workdir if it holds a checkpoint, else from the weights
that `config.init` names, else from scratch. A checkpoint of another run is
refused with what differs, never mixed in.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import pathlib
import time
from collections.abc import Callable, Mapping

import jax
from rich.console import Console

from truenegs_jax.configs import common_keys
from truenegs_jax.data.rows.rows_folder import Rows
from truenegs_jax.data.tokens.tokenizer import Tokenizer, write_vocabulary
from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.synonyms.table import SynonymTable, save_table
from truenegs_jax.train import model_synonyms, plan, sharding
from truenegs_jax.train import step as step_lib
from truenegs_jax.train.build_run import OutputSettings, Run
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.init import load
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import files


@dataclasses.dataclass(frozen=True)
class RunInputs:
  """Data of a run; `fingerprints` identify it."""

  tokenizer: Tokenizer
  train_rows: Rows
  held_out_rows: Rows
  table: SynonymTable | None  # None: nothing, or the model, makes synonyms
  weights: Weights  # to start from; used where the config names some
  fingerprints: Mapping[str, str | None]


@dataclasses.dataclass(frozen=True)
class TrainSetup:
  """All that the loop runs on."""

  run: Run
  mesh: jax.sharding.Mesh
  state: step_lib.TrainState
  aux: dict[str, jax.Array]
  train_step: jax.stages.Compiled
  eval_step: Callable
  refresh: model_synonyms.RefreshFn
  description: dict  # the run, as each checkpoint describes it


def open_checkpoints(
  output: OutputSettings, workdir: pathlib.Path
) -> checkpoints_lib.Checkpoints:
  """The checkpoints of a workdir, kept as the config says."""
  return checkpoints_lib.Checkpoints(
    workdir / files.CHECKPOINTS,
    keep=output.keep,
    keep_steps=output.keep_steps,
  )


def set_up_training(
  run: Run,
  workdir: pathlib.Path,
  inputs: RunInputs,
  checkpoints: checkpoints_lib.Checkpoints,
  console: Console,
) -> TrainSetup:
  """Checks, restores or initializes, compiles and reports, in this order.

  Raises:
    InputError, CheckpointError: before anything is compiled or written.
  """
  mesh = sharding.make_mesh(run.mesh_spec)
  sharding.process_slice(mesh, run.batch_size)  # refuses what cannot be read
  description = make_description(run, inputs.fingerprints)
  for part, value in description.items():
    distributed.check_same(part, json.dumps(value))
  resumed = resumable_step(checkpoints, description)
  if resumed is not None:
    _note_environment(
      checkpoints.read_description(resumed), description, console
    )
  abstract = plan.abstract_state(run, mesh)
  aux = plan.make_aux(run, inputs.table, inputs.tokenizer.vocab, mesh)
  make_state = _first_state(
    run, inputs, abstract, checkpoints, resumed, console
  )
  attending, attention = plan.resolve_attention(run, mesh, check=True)
  began = time.perf_counter()
  lowered = plan.lower_train_step(attending, mesh, abstract, aux)
  compiled, state = plan.compile_while(lowered, make_state)
  secs = time.perf_counter() - began
  start = TrainSetup(
    run=run,
    mesh=mesh,
    state=state,
    aux=aux,
    train_step=compiled,
    eval_step=plan.build_eval_step(attending, mesh),
    refresh=model_synonyms.make_refresh(
      run.table_builder, abstract, from_weights=bool(run.init)
    ),
    description=description,
  )
  if distributed.is_first_process():
    files.save_json(workdir / files.CONFIG, description["config"])
    write_vocabulary(inputs.tokenizer.vocab, workdir / files.VOCABULARY)
    if inputs.table is not None:
      save_table(inputs.table, workdir / files.SYNONYMS)
  begins = (
    f"{run.init and 'weights of '}{run.init or 'scratch'}, seed {run.seed}"
  )
  if resumed is not None:
    begins = f"resume {workdir} at step {resumed:,}"
  lines = {
    "start": begins,
    **_report(start, inputs),
    "attention": attention,
    "compiled in": f"{secs:.1f} s",
    "written to": f"{workdir}/ ({files.CONFIG}, metrics.jsonl,"
    f" {files.CHECKPOINTS}/, {files.PLOTS}/, {files.EXPORT}/)",
  }
  console.print(plan.report_table(lines))
  return start


def make_description(run: Run, fingerprints: Mapping) -> dict:
  """A checkpoint's description of the run that wrote it, in JSON's types."""
  versions = {}
  for package in ("truenegs_jax", "jax", "jaxlib", "flax", "optax"):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  return {
    "config": dict(run.config),
    "fingerprints": dict(fingerprints),
    "versions": versions,
    "devices": jax.device_count(),
  }


def resumable_step(
  checkpoints: checkpoints_lib.Checkpoints, description: Mapping
) -> int | None:
  """The newest saved step; CheckpointError when it is of another run."""
  latest = checkpoints.latest_step()
  if latest is None:
    return None
  saved = checkpoints.read_description(latest)
  changed = files.find_changes(
    files.add_missing_keys(saved["config"]), description["config"]
  )
  changed = [change for change in changed if not _may_be(change)]
  for change in changed:
    if change.key in common_keys.REMOVED:
      raise CheckpointError(
        f"{checkpoints.folder} holds step {latest} of a run with"
        f" {change.key}={change.saved}, which is gone. Go on with truenegs_jax"
        f" {common_keys.REMOVED[change.key].last_version}, or give another"
        " --workdir."
      )
  changed += files.find_changes(
    saved["fingerprints"], description["fingerprints"]
  )
  if changed:
    listed = "\n  ".join(map(str, changed))
    raise CheckpointError(
      f"{checkpoints.folder} holds step {latest} of another run. What differs"
      f" (saved -> now):\n  {listed}\nPut it back as it was, or give another"
      " --workdir to start afresh."
    )
  return latest


def _may_be(change: files.Change) -> bool:
  """Whether a run whose config has changed so may be resumed."""
  if removed := common_keys.REMOVED.get(change.key):
    return change.now is files.ABSENT and change.saved == removed.value
  return (
    change.key in common_keys.KEYS and common_keys.KEYS[change.key].may_change
  )


def _note_environment(
  saved: Mapping, description: Mapping, console: Console
) -> None:
  """Says where a resumed run cannot be bit-equal to an uninterrupted one."""
  parts = ("versions", "devices")
  changed = files.find_changes(
    {part: saved[part] for part in parts},
    {part: description[part] for part in parts},
  )
  if changed:
    console.print(
      f"resumed in another environment ({'; '.join(map(str, changed))}): the"
      " same data and draws, but sums may be rounded in another way",
      soft_wrap=True,
    )


def _first_state(run, inputs, abstract, checkpoints, resumed, console):
  """Reads what the state is made from, and returns a call that makes it."""
  if resumed is not None:
    state = checkpoints.restore_state(resumed, vars(abstract))
    return lambda: step_lib.TrainState(**state)
  params = None
  if run.init:
    with distributed.raise_everywhere("init"):
      params = load.load_params(
        inputs.weights,
        run.model,
        tokenizer=inputs.tokenizer,
        seed=run.seed,
        skip=run.init_skip,
        report=functools.partial(console.print, soft_wrap=True),
      )
  places = jax.tree.map(lambda x: x.sharding, abstract)
  put = lambda x, place: jax.make_array_from_callback(
    x.shape, place, lambda index: x[index]
  )

  def make():
    state = jax.jit(run.init_state, out_shardings=places)()
    if params is None:
      return state
    given = jax.tree.map(put, params, places.params)
    return dataclasses.replace(state, params=given)

  return make


def _report(start: TrainSetup, inputs: RunInputs) -> dict[str, str]:
  """The lines about a run and its data."""
  run, rows = start.run, len(inputs.train_rows)
  lines = plan.report_lines(run, start.mesh, start.state, start.aux)
  memory = start.train_step.memory_analysis()
  scratch = plan.format_mib(memory.temp_size_in_bytes) if memory else "unknown"
  lines["per device"] += f", step {scratch}"
  lines["steps"] += f"; {run.steps * run.batch_size / rows:.1f} epochs"
  lines["data"] = (
    f"{rows:,} rows of {run.length} tokens, {len(inputs.held_out_rows):,} held"
    f" out, vocabulary {len(inputs.tokenizer.vocab):,}"
  )
  lines["synonyms"] = "none"
  if run.table_builder is not None:
    own = run.table_builder.options
    lines["synonyms"] = (
      f"the {own.top} nearest in the model's own word table, from a cosine of"
      f" {own.threshold:g}; made anew every {own.every:,} steps"
    )
  elif (table := inputs.table) is not None:
    lines["synonyms"] = (
      f"{table.num_pairs:,} pairs of {table.num_rows:,} tokens, {table.source}"
    )
  return lines
