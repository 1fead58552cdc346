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
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from truenegs_jax.data.rows.rows_folder import Rows
from truenegs_jax.data.tokens.tokenizer import Tokenizer, write_vocabulary
from truenegs_jax.models import choose_attention
from truenegs_jax.objectives import describe as describe_lib
from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.synonyms.table import SynonymTable, save_table
from truenegs_jax.train import from_config, model_synonyms, plan, sharding
from truenegs_jax.train import step as step_lib
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.init import load
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir.files import SYNONYMS, save_json

# May change between the runs of one workdir: they decide what is shown and
# kept, or where things lie, which have fingerprints or are not read again, and
# no number of the training beyond the order in which sums are added: data,
# masks and draws are the same on another mesh, or in other pieces.
FREE_TO_CHANGE = (
  "checkpoint.",
  "data.rows:",
  "data.tokenizer:",
  "data.vocab:",
  "data.wordnet_dir:",
  "data.workers:",
  "eval.",
  "generator.variant: (not there) -> ''",  # runs that were saved before it
  "init:",
  "init_skip:",
  "log.",
  "mesh.",
  "model.attention:",
  "model.remat:",
  "model.scan:",
  "model.vocabulary_chunk:",
  "negatives.layout:",
  "negatives.sources:",
  "negatives.stop_words:",
  "optim.max_skips:",
)


@dataclasses.dataclass(frozen=True)
class Inputs:
  """What a run trains on; `fingerprints` says exactly which."""

  tokenizer: Tokenizer
  train_rows: Rows
  held_out_rows: Rows
  table: SynonymTable | None  # None: nothing, or the model, makes synonyms
  weights: Weights  # to start from; used where the config names some
  fingerprints: Mapping[str, str | None]


@dataclasses.dataclass(frozen=True)
class Start:
  """All that the loop runs on."""

  run: from_config.Run
  mesh: jax.sharding.Mesh
  state: step_lib.TrainState
  aux: dict[str, jax.Array]
  train_step: jax.stages.Compiled
  eval_step: Callable
  refresh: model_synonyms.Refresh
  description: dict  # what each checkpoint says of its run
  attention: str  # what computes it, for the report


def open_checkpoints(
  c: ConfigDict, workdir: pathlib.Path
) -> checkpoints_lib.Checkpoints:
  """The checkpoints of a workdir, kept as the config says."""
  fractions = c.checkpoint.keep_percent
  return checkpoints_lib.Checkpoints(
    workdir / "checkpoints",
    keep=c.checkpoint.keep,
    keep_steps=[round(c.steps * percent / 100) for percent in fractions],
  )


def prepare_start(
  c: ConfigDict,
  workdir: pathlib.Path,
  inputs: Inputs,
  checkpoints: checkpoints_lib.Checkpoints,
  console: Console,
) -> Start:
  """Checks, restores or initializes, compiles and reports, in this order.

  Raises:
    InputError, CheckpointError: before anything is compiled or written.
  """
  run = from_config.build_run(c, inputs.tokenizer)
  mesh = sharding.make_mesh(run.mesh_spec)
  sharding.process_share(mesh, c.batch_size)  # refuses what cannot be read
  description = describe(c, inputs.fingerprints)
  for part, value in description.items():
    distributed.check_alike(part, json.dumps(value))
  resumed = resumable_step(checkpoints, description)
  if resumed is not None:
    _note_environment(checkpoints.run(resumed), description, console)
  abstract = plan.abstract_state(run, c.seed, mesh)
  aux = from_config.make_aux(c, inputs.table, inputs.tokenizer.vocab, mesh)
  make_state = _first_state(
    c, run, inputs, abstract, checkpoints, resumed, console
  )
  here, attention = from_config.attending(
    c, run, mesh, find=choose_attention.settle
  )
  began = time.perf_counter()
  lowered = plan.lower_train_step(c, here, mesh, abstract, aux)
  compiled, state = plan.compile_beside(lowered, make_state)
  secs = time.perf_counter() - began
  start = Start(
    run=run,
    mesh=mesh,
    state=state,
    aux=aux,
    train_step=compiled,
    eval_step=plan.eval_step(c, here, mesh),
    refresh=model_synonyms.make_refresh(c, run.own_table, abstract),
    description=description,
    attention=attention,
  )
  if distributed.is_first():
    _write_inputs(workdir, inputs, description["config"])
  console.print(_report(c, start, resumed, secs, workdir, inputs))
  return start


def _write_inputs(workdir: pathlib.Path, inputs: Inputs, config: dict) -> None:
  save_json(workdir / "config.json", config)
  write_vocabulary(inputs.tokenizer.vocab, workdir / "vocab.txt")
  if inputs.table is not None:
    save_table(inputs.table, workdir / SYNONYMS)


def describe(c: ConfigDict, fingerprints: Mapping) -> dict:
  """What a checkpoint says of the run that wrote it, in JSON's types."""
  versions = {}
  for package in ("truenegs_jax", "jax", "jaxlib", "flax", "optax"):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  return {
    "config": json.loads(c.to_json()),
    "fingerprints": dict(fingerprints),
    "versions": versions,
    "devices": jax.device_count(),
  }


def resumable_step(
  checkpoints: checkpoints_lib.Checkpoints, description: Mapping
) -> int | None:
  """The newest saved step; CheckpointError when it is of another run."""
  latest = checkpoints.latest()
  if latest is None:
    return None
  saved = checkpoints.run(latest)
  lines = [
    line
    for part in ("config", "fingerprints")
    for line in checkpoints_lib.differences(saved[part], description[part])
    if not line.startswith(FREE_TO_CHANGE)
  ]
  if lines:
    listed = "\n  ".join(lines)
    raise CheckpointError(
      f"{checkpoints.folder} holds step {latest} of another run. What differs"
      f" (saved -> now):\n  {listed}\nPut it back as it was, or give another"
      " --workdir to start afresh."
    )
  return latest


def _note_environment(
  saved: Mapping, description: Mapping, console: Console
) -> None:
  """Says where a resumed run cannot be bit-equal to an uninterrupted one."""
  parts = ("versions", "devices")
  lines = checkpoints_lib.differences(
    {part: saved[part] for part in parts},
    {part: description[part] for part in parts},
  )
  if lines:
    console.print(
      f"resumed in another environment ({'; '.join(lines)}): the same data and"
      " draws, but sums may be rounded in another way",
      soft_wrap=True,
    )


def _first_state(c, run, inputs, abstract, checkpoints, resumed, console):
  """Reads what the state is made from, and returns a call that makes it."""
  if resumed is not None:
    state = checkpoints.state(resumed, vars(abstract))
    return lambda: step_lib.TrainState(**state)
  params = None
  if c.init:
    with distributed.together("init"):
      params = load.load_params(
        inputs.weights,
        run.model,
        tokenizer=inputs.tokenizer,
        seed=c.seed,
        skip=c.init_skip,
        say=functools.partial(console.print, soft_wrap=True),
      )
  places = jax.tree.map(lambda x: x.sharding, abstract)
  put = lambda x, place: jax.make_array_from_callback(
    x.shape, place, lambda index: x[index]
  )

  def make():
    state = jax.jit(lambda: run.init_state(c.seed), out_shardings=places)()
    if params is None:
      return state
    given = jax.tree.map(put, params, places.params)
    return dataclasses.replace(state, params=given)

  return make


def _synonyms(run: from_config.Run, inputs: Inputs) -> str:
  if run.own_table is not None:
    own = run.own_table.options
    return (
      f"the {own.top} nearest in the model's own word table, from a cosine of"
      f" {own.threshold:g}; made anew every {own.every:,} steps"
    )
  if inputs.table is None:
    return "none"
  return (
    f"{inputs.table.num_pairs:,} pairs of {inputs.table.num_rows:,} tokens,"
    f" {inputs.table.source}"
  )


def _report(
  c: ConfigDict,
  start: Start,
  resumed: int | None,
  compile_secs: float,
  workdir: pathlib.Path,
  inputs: Inputs,
) -> Table:
  """What starts here, on what, how large, and where everything goes."""
  memory = start.train_step.memory_analysis()
  scratch = plan.mebibytes(memory.temp_size_in_bytes) if memory else "unknown"
  begins = f"{c.init and 'weights of '}{c.init or 'scratch'}, seed {c.seed}"
  if resumed is not None:
    begins = f"resume {workdir} at step {resumed:,}"
  rows = len(inputs.train_rows)
  lines = {
    "start": begins,
    "objective": describe_lib.objective(c),
    "devices": plan.devices(c, start.mesh),
    "attention": start.attention,
    "parameters": plan.parameters(start.run.model, start.state.params),
    "per device": f"{plan.held(start.state, start.aux)}, step {scratch}",
    "synonyms": _synonyms(start.run, inputs),
    "data": f"{rows:,} rows of {c.length} tokens,"
    f" {len(inputs.held_out_rows):,} held out, vocabulary"
    f" {len(inputs.tokenizer.vocab):,}",
    "steps": f"{plan.work(c, start.run.model)};"
    f" {c.steps * c.batch_size / rows:.1f} epochs",
    "compiled in": f"{compile_secs:.1f} s",
    "written to": f"{workdir}/ (config.json, metrics.jsonl, checkpoints/,"
    " plots/, export/)",
  }
  return plan.table(lines)
