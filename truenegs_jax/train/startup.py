"""Before the first step: where a run starts, its state, its compiled steps.

Start order: resume the workdir if it holds a checkpoint, else from scratch. A
checkpoint of another run is refused with what differs, never mixed in.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from truenegs_jax.data.rows import Rows
from truenegs_jax.data.tokenizer import Tokenizer, write_vocabulary
from truenegs_jax.errors import CheckpointError, disk_errors
from truenegs_jax.models import pretrain
from truenegs_jax.synonyms.table import SynonymTable, save_table
from truenegs_jax.train import build, sharding
from truenegs_jax.train import checkpoint as checkpoint_lib
from truenegs_jax.train import step as step_lib

SYNONYMS = "synonyms.npz"  # the workdir's copy of its table

# May change between the runs of one workdir: they decide what is shown and
# kept, or where things lie, and no number of the training. (On another mesh
# data, masks and draws are the same; sums are added in another order.)
FREE_TO_CHANGE = (
  "checkpoint.",
  "data.rows:",
  "data.tokenizer:",
  "data.wordnet_dir:",
  "data.workers:",
  "eval.",
  "log.",
  "mesh.",
  "optim.max_skips:",
)


@dataclasses.dataclass(frozen=True)
class Inputs:
  """What a run trains on; `fingerprints` says exactly which."""

  tokenizer: Tokenizer
  train_rows: Rows
  held_out_rows: Rows
  table: SynonymTable | None  # None: no hard correction
  fingerprints: Mapping[str, str | None]


@dataclasses.dataclass(frozen=True)
class Start:
  """All that the loop runs on."""

  run: build.Run
  mesh: jax.sharding.Mesh
  state: step_lib.TrainState
  aux: dict[str, jax.Array]
  train_step: jax.stages.Compiled
  eval_step: Callable
  description: dict  # what each checkpoint says of its run


def open_checkpoints(
  c: ConfigDict, workdir: pathlib.Path
) -> checkpoint_lib.Checkpoints:
  """The checkpoints of a workdir, kept as the config says."""
  fractions = c.checkpoint.keep_percent
  return checkpoint_lib.Checkpoints(
    workdir / "checkpoints",
    keep=c.checkpoint.keep,
    keep_steps=[round(c.steps * percent / 100) for percent in fractions],
  )


def prepare_start(
  c: ConfigDict,
  workdir: pathlib.Path,
  inputs: Inputs,
  checkpoints: checkpoint_lib.Checkpoints,
  console: Console,
) -> Start:
  """Checks, restores or initializes, compiles and reports, in this order.

  Raises:
    InputError, CheckpointError: before anything is compiled or written.
  """
  run = build.build_run(c, inputs.tokenizer)
  mesh = sharding.make_mesh(run.mesh_spec)
  description = describe(c, inputs.fingerprints)
  resumed = resumable_step(checkpoints, description)
  if resumed is not None:
    _note_environment(checkpoints.run(resumed), description, console)
  abstract = abstract_state(run, c.seed, mesh)
  aux = build.make_aux(inputs.table, mesh)
  state = _first_state(run, c.seed, abstract, checkpoints, resumed)
  compiled, secs = _compile_train_step(c, run, mesh, abstract, aux)
  start = Start(
    run=run,
    mesh=mesh,
    state=state,
    aux=aux,
    train_step=compiled,
    eval_step=jax.jit(
      step_lib.make_eval_step(run.objective(train=False), c.seed),
      out_shardings=sharding.replicated(mesh),
    ),
    description=description,
  )
  save_json(workdir / "config.json", description["config"])
  write_vocabulary(inputs.tokenizer.vocab, workdir / "vocab.txt")
  if inputs.table is not None:
    save_table(inputs.table, workdir / SYNONYMS)
  console.print(_report(c, start, resumed, secs, workdir, inputs))
  return start


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
  checkpoints: checkpoint_lib.Checkpoints, description: Mapping
) -> int | None:
  """The newest saved step; CheckpointError when it is of another run."""
  latest = checkpoints.latest()
  if latest is None:
    return None
  saved = checkpoints.run(latest)
  lines = [
    line
    for part in ("config", "fingerprints")
    for line in checkpoint_lib.differences(saved[part], description[part])
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


def abstract_state(
  run: build.Run, seed: int, mesh: jax.sharding.Mesh
) -> step_lib.TrainState:
  """Shapes, dtypes and shardings of the state; no array is made."""
  shapes = jax.eval_shape(lambda: run.init_state(seed))
  places = sharding.tree_shardings(shapes, mesh, run.mesh_spec)
  return jax.tree.map(
    lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
    shapes,
    places,
  )


def save_json(path: pathlib.Path, value: Any) -> None:
  """Writes JSON under its final name only once it is whole."""
  whole = path.with_suffix(".json.tmp")
  with disk_errors(path):
    whole.write_text(json.dumps(value, indent=2) + "\n")
    whole.replace(path)


def _note_environment(
  saved: Mapping, description: Mapping, console: Console
) -> None:
  """Says where a resumed run cannot be bit-equal to an uninterrupted one."""
  parts = ("versions", "devices")
  lines = checkpoint_lib.differences(
    {part: saved[part] for part in parts},
    {part: description[part] for part in parts},
  )
  if lines:
    console.print(
      f"resumed in another environment ({'; '.join(lines)}): the same data and"
      " draws, but sums may be rounded in another way",
      soft_wrap=True,
    )


def _first_state(run, seed, abstract, checkpoints, resumed):
  if resumed is None:
    places = jax.tree.map(lambda x: x.sharding, abstract)
    return jax.jit(lambda: run.init_state(seed), out_shardings=places)()
  return step_lib.TrainState(**checkpoints.state(resumed, vars(abstract)))


def _compile_train_step(c, run, mesh, abstract, aux):
  """The compiled step and the seconds that it took."""
  rows = sharding.batch_sharding(mesh)
  shapes = dict.fromkeys(
    ("tokens", "types", "documents"), (c.batch_size, c.length)
  ) | {"row": (c.batch_size,)}
  batch = {
    name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)
    for name, shape in shapes.items()
  }
  train_step = step_lib.make_train_step(
    run.objective(train=True), run.weights, run.tx, c.optim.accumulation
  )
  places = jax.tree.map(lambda x: x.sharding, abstract)
  began = time.perf_counter()
  compiled = (
    jax.jit(
      train_step,
      donate_argnums=0,
      out_shardings=(places, sharding.replicated(mesh)),
    )
    .lower(abstract, batch, aux)
    .compile()
  )
  return compiled, time.perf_counter() - began


def _report(
  c: ConfigDict,
  start: Start,
  resumed: int | None,
  compile_secs: float,
  workdir: pathlib.Path,
  inputs: Inputs,
) -> Table:
  """What starts here, on what, how large, and where everything goes."""
  mib = lambda num_bytes: f"{num_bytes / 2**20:,.0f} MiB"
  count = lambda *names: pretrain.parameter_count(
    [start.state.params[name] for name in names]
  )
  shared = count("embeddings")
  generator = count("generator", "generator_head")
  discriminator = count("discriminator", "discriminator_head")
  mesh = ", ".join(f"{k} {v}" for k, v in start.mesh.shape.items())
  device = start.mesh.devices.flat[0]
  memory = start.train_step.memory_analysis()
  scratch = f", step {mib(memory.temp_size_in_bytes)}" if memory else ""
  recipe = [
    "hard correction" if c.negatives.hard_correction else "",
    f"soft regularization x {c.negatives.soft_weight:g}"
    if c.negatives.soft_weight
    else "",
  ]
  lines = {
    "start": f"resume {workdir} at step {resumed:,}"
    if resumed is not None
    else f"scratch, seed {c.seed}",
    "objective": " + ".join(filter(None, recipe)) or "plain ELECTRA",
    "devices": f"{start.mesh.devices.size} x {device.device_kind}"
    f" ({device.platform}), {jax.process_count()} process(es), mesh"
    f" {c.mesh.preset}: {mesh}",
    "parameters": f"{shared + generator + discriminator:,}: embeddings"
    f" {shared:,}, generator {generator:,}, discriminator {discriminator:,}",
    "per device": f"state {mib(sharding.bytes_per_device(start.state))},"
    f" synonyms {mib(sharding.bytes_per_device(start.aux))}{scratch}",
    "synonyms": f"{inputs.table.num_pairs:,} pairs of"
    f" {inputs.table.num_rows:,} tokens, {inputs.table.source}"
    if inputs.table
    else "none",
    "data": f"{len(inputs.train_rows):,} rows of {c.length} tokens,"
    f" {len(inputs.held_out_rows):,} held out, vocabulary"
    f" {len(inputs.tokenizer.vocab):,}",
    "steps": f"{c.steps:,} of {c.batch_size} rows:"
    f" {c.steps * c.batch_size / len(inputs.train_rows):.1f} epochs",
    "compiled in": f"{compile_secs:.1f} s",
    "written to": f"{workdir}/ (config.json, metrics.jsonl, checkpoints/,"
    " plots/, export/)",
  }
  table = Table(box=None, show_header=False, pad_edge=False)
  table.add_column(style="bold", no_wrap=True)
  table.add_column(overflow="fold")
  for name, text in lines.items():
    table.add_row(name, text)
  return table
