"""Plans a run before it starts: shapes, compiled steps, FLOPs and report.

The training step is compiled from shapes. A dry run and the start of a run
print the report. A run of limited minutes is shortened to the steps that fit.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from rich.table import Table

from truenegs_jax.data.rows import batches
from truenegs_jax.data.rows.batches import Rows
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import choose_attention, encoder, pretrain
from truenegs_jax.objectives import masking, negatives
from truenegs_jax.objectives.options import Options
from truenegs_jax.runtime import cpu, distributed
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import continues_word
from truenegs_jax.train import sharding
from truenegs_jax.train import step as step_lib
from truenegs_jax.train.build_run import Run
from truenegs_jax.weights.find import Weights

# Inputs of an objective that are neither parameters nor rows.
Aux = Mapping[str, jax.Array | jax.ShapeDtypeStruct]

# Synonyms of a token; WordNet has 55 for one token of BERT's vocabulary.
ASSUMED_LIST_LENGTH = 64
TRAINING_PASSES = 3  # forward, and twice as many products backward
# Shorter runs take longer than they may, as they would have learned too little:
# the demo does not pass its verdict with 500 steps. Runs that are configured to
# be shorter keep their steps.
LEAST_STEPS = 750
TIMED_STEPS = 10
EVAL_COST = 1 / 3  # of a batch of rows: a forward pass, without a backward pass
# Numbers of steps in a config that are a share of the run.
SCALED = (
  "optim.warmup_steps",
  "log.every_steps",
  "eval.every_steps",
  "checkpoint.every_steps",
)


@dataclasses.dataclass(frozen=True)
class RunInputs:
  """Data of a run."""

  tokenizer: Tokenizer
  train_rows: Rows
  held_out_rows: Rows
  table: SynonymTable | None  # None also if the run has a `table_builder`
  coverage: Mapping[str, str]  # lines of the report about the synonyms
  weights: Weights  # named by `config.init`, if any
  fingerprints: Mapping[str, str | None]  # of vocabulary, rows and synonyms


def resolve_attention(
  run: Run,
  mesh: jax.sharding.Mesh,
  *,
  check: bool = False,
  name: str = "attention",
  platform: str = "",
) -> tuple[Run, str]:
  """Chooses the attention implementation of a run's training steps.

  Other uses of the model keep the implementation that runs on every platform.
  With `check` the kernel is run and compared with plain attention. `name` tells
  comparisons between processes apart. `platform` is the platform of devices
  that are absent.

  Returns:
    The run with that implementation, and a line for the report.
  """
  implementation, line = choose_attention.choose(
    run.attention,
    run.model.roles.values(),
    mesh,
    length=run.length,
    platform=platform,
    check=check,
  )
  distributed.check_same(name, line)
  model = encoder.replace_configs(run.model, attention=implementation)
  return dataclasses.replace(run, model=model), line


def abstract_state(run: Run, mesh: jax.sharding.Mesh) -> step_lib.TrainState:
  """Returns shapes, dtypes and shardings of the train state."""
  shapes = jax.eval_shape(run.init_state)
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    sharding.tree_shardings(shapes, mesh, run.mesh_spec),
  )


def abstract_batch(
  run: Run, mesh: jax.sharding.Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns shapes, dtypes and shardings of the global batch of a step."""
  rows = sharding.batch_sharding(mesh)

  def int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)

  names = ("tokens", "types", "documents")
  batch = {name: int32(run.batch_size, run.length) for name in names}
  return batch | {"row": int32(run.batch_size)}


def abstract_aux(
  run: Run, mesh: jax.sharding.Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns shapes, dtypes and shardings of the arrays of `make_aux`.

  No table is read, so lists of `ASSUMED_LIST_LENGTH` synonyms are assumed.
  """
  aux, vocab_size = {}, run.options.masking.vocab_size
  if run.options.needs_table and run.table_builder is None:
    layout = table_lib.choose_layout(
      vocab_size, ASSUMED_LIST_LENGTH, run.table_layout
    )
    name, width, dtype = {
      "bits": ("bits_VxW", -(-vocab_size // negatives.WORD_BITS), jnp.uint32),
      "ids": ("ids_VxS", ASSUMED_LIST_LENGTH, jnp.int32),
    }[layout]
    like = jax.ShapeDtypeStruct((vocab_size, width), dtype)
    aux[name] = sharding.abstract_table(like, mesh, run.table_placement)
  if run.options.strict_subword:
    aux["continues_V"] = jax.ShapeDtypeStruct(
      (vocab_size,), bool, sharding=sharding.replicated_sharding(mesh)
    )
  return aux


def make_aux(
  run: Run,
  table: SynonymTable | None,
  vocab: Sequence[str],
  mesh: jax.sharding.Mesh,
) -> dict[str, jax.Array]:
  """Puts the table, if any, and `continues_V`, if needed, on the devices."""
  aux = {}
  if table is not None:
    for name, array in table.arrays(run.table_layout).items():
      aux[name] = sharding.place_table(array, mesh, run.table_placement)
  continues_V = continuation_mask(vocab, run.options)
  if continues_V is not None:
    replicated = sharding.replicated_sharding(mesh)
    aux["continues_V"] = jax.make_array_from_callback(
      continues_V.shape, replicated, continues_V.__getitem__
    )
  return aux


def continuation_mask(
  vocab: Sequence[str], options: Options
) -> np.ndarray | None:
  """Returns bool [V], True for `##` pieces, or None unless `strict_subword`."""
  if not options.strict_subword:
    return None
  return continues_word(vocab)


def build_train_step(run: Run, mesh: jax.sharding.Mesh) -> Callable:
  """Builds the training step: `(state, batch, aux) -> (state, terms)`."""
  objective = run.objective(train=True)
  return step_lib.make_train_step(
    sharding.gather_params(objective, mesh, run.mesh_spec),
    run.loss_weights,
    run.tx,
    run.accumulation,
  )


def lower_train_step(
  run: Run,
  mesh: jax.sharding.Mesh,
  state: step_lib.TrainState,
  aux: Aux,
  *,
  platform: str = "",
) -> jax.stages.Lowered:
  """Lowers the training step for (abstract) arrays.

  `platform` is that of devices that are absent ("cuda", "tpu"); otherwise it is
  the one of jax's default backend.
  """
  shardings = jax.tree.map(lambda x: x.sharding, state)
  jitted = jax.jit(
    build_train_step(run, mesh),
    donate_argnums=0,
    out_shardings=(shardings, sharding.replicated_sharding(mesh)),
  )
  with cpu.lowering_for(platform):
    return jitted.lower(state, abstract_batch(run, mesh), aux)


def compile_and_make_state(
  lowered: jax.stages.Lowered, make_state: Callable[[], step_lib.TrainState]
) -> tuple[jax.stages.Compiled, step_lib.TrainState]:
  """Compiles and calls `make_state` at the same time.

  Compiling the initialization takes about as long as compiling the step, and
  XLA uses few cores for each. With many processes both run in sequence, because
  processes may have to wait for one another while they compile. This thread
  only waits, so that it can handle a signal, which it could not inside XLA.
  """
  num_threads = 1 if distributed.process_count() > 1 else 2
  with futures.ThreadPoolExecutor(num_threads) as pool:
    compiled, state = pool.submit(lowered.compile), pool.submit(make_state)
    return compiled.result(), state.result()


def build_eval_step(run: Run, mesh: jax.sharding.Mesh) -> Callable:
  """Builds the jitted evaluation step: `(params, batch, aux) -> terms`."""
  objective = sharding.gather_params(
    run.objective(train=False), mesh, run.mesh_spec
  )
  return jax.jit(
    step_lib.make_eval_step(objective, run.seed),
    out_shardings=sharding.replicated_sharding(mesh),
  )


def row_flops(run: Run) -> float:
  """Counts the floating-point operations (FLOP) of training on one row.

  Counts matrix products only: two operations for each multiplication and
  addition, and three passes (forward and twice backward). Recomputation to save
  memory is not counted. Attention covers the full length of the row, the output
  layer the K slots.
  """
  roles, options, length = run.model.roles, run.options, run.length
  slots = masking.num_slots(length, options.masking.mask_prob)
  forward = 0.0
  for role, config in roles.items():
    forward += length * encoder_flops(config, length)
    if role == "discriminator":
      forward += length * (2 * config.width**2 + 2 * config.width)
    else:
      e = config.embedding_size
      forward += slots * (2 * config.width * e + 2 * e * config.vocab_size)
  passes = TRAINING_PASSES * forward
  networks = list(roles.values())
  kept, masked = networks[0], networks[-1]  # BERT has one network
  if options.soft_weight and options.soft_prediction == "expected":
    mean = 2 * masked.vocab_size * masked.embedding_size
    passes += TRAINING_PASSES * slots * mean
  if options.sentence_weight:
    sentence = length * encoder_flops(kept, length)
    passes += sentence  # of the target, without a backward pass
    # ELECTRA's discriminator encodes the sampled sentence anyway.
    if len(roles) == 1 or options.prediction != "sample":
      passes += TRAINING_PASSES * sentence
  return passes


def encoder_flops(config: encoder.EncoderConfig, length: int) -> float:
  """Counts the operations of one token in a forward pass of the encoder."""
  d, e = config.width, config.embedding_size
  layer = 8 * d**2 + 4 * d * config.ffn + 4 * length * d
  return config.layers * layer + (2 * e * d if e != d else 0)


def report_lines(
  run: Run,
  mesh: jax.sharding.Mesh,
  state: step_lib.TrainState,
  aux: Aux,
) -> dict[str, str]:
  """Returns the lines that every report has: name -> text."""
  flops, rows = row_flops(run), run.steps * run.batch_size
  return {
    "objective": run.summary,
    "devices": describe_devices(run.mesh_preset, mesh),
    "parameters": describe_parameters(run.model, state.params),
    "per device": describe_memory(state, aux),
    "steps": f"{run.steps:,} of {run.batch_size:,} rows of {run.length} tokens,"
    f" {rows * run.length:.3g} tokens in total",
    "FLOP": f"{flops:.4g} per row, {flops * run.batch_size:.4g} per step,"
    f" {flops * rows:.4g} in total",
  }


def describe_devices(preset: str, mesh: jax.sharding.Mesh) -> str:
  """Describes the devices of a run, its processes and its mesh."""
  device, processes = mesh.devices.flat[0], jax.process_count()
  return (
    f"{mesh.devices.size} x {device.device_kind} ({device.platform}),"
    f" {processes} process{'es' * (processes != 1)},"
    f" mesh {preset}: {sharding.format_axes(mesh.shape)}"
  )


def describe_parameters(model: pretrain.Model, params: dict) -> str:
  """Describes the number of parameters of a model and of its networks."""

  def count(*names: str) -> int:
    return pretrain.count_parameters(
      [params[name] for name in names if name in params]
    )

  counts = {"embeddings": count("embeddings")}
  for role in model.roles:
    counts[role] = count(role, f"{role}_head")
  counts["not trained"] = count(*pretrain.CARRIED)
  listed = ", ".join(f"{name} {n:,}" for name, n in counts.items() if n)
  return f"{sum(counts.values()):,}: {listed}"


def describe_memory(state: step_lib.TrainState, aux: Aux) -> str:
  """Describes the memory that one device uses between steps."""
  return (
    f"state {format_mib(sharding.bytes_per_device(state))},"
    f" synonyms {format_mib(sharding.bytes_per_device(aux))}"
  )


def format_mib(num_bytes: float) -> str:
  """Formats a size in MiB."""
  return f"{num_bytes / 2**20:,.0f} MiB"


def report_table(lines: Mapping[str, str]) -> Table:
  """Makes the table of a report from name -> text."""
  table = Table(box=None, show_header=False, pad_edge=False)
  table.add_column(style="bold", no_wrap=True)
  table.add_column(overflow="fold")
  for name, text in lines.items():
    table.add_row(name, text)
  return table


def parameter_table(state: step_lib.TrainState) -> Table:
  """Makes a table of the parameters: shape and bytes per device.

  Only the first layer of each network is listed.
  """
  table = Table(box=None, pad_edge=False)
  table.add_column("parameter (other layers equal layer_0)", overflow="fold")
  table.add_column("shape")
  table.add_column("bytes per device", justify="right")
  for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if "/layer_" in name and "/layer_0/" not in name:
      continue
    local = math.prod(leaf.sharding.shard_shape(leaf.shape))
    shape = " x ".join(map(str, leaf.shape))
    table.add_row(name, shape, f"{local * leaf.dtype.itemsize:,}")
  return table


def shorten(c: ConfigDict, steps: int) -> ConfigDict:
  """Returns a copy of a config with fewer steps, and SCALED in proportion."""
  shorter, share = c.copy_and_resolve_references(), steps / c.steps
  shorter.steps = steps
  for name in SCALED:
    section, key = name.split(".")
    if value := c[section][key]:  # 0 stays 0
      shorter[section][key] = max(1, round(value * share))
  return shorter


def apply_saved(
  c: ConfigDict, saved: Mapping[str, Any] | None, say: Callable[[str], object]
) -> ConfigDict:
  """Returns the config with the steps that a run was shortened to.

  `minutes` counts when a run starts. A resume takes the saved number of steps,
  however fast this machine is, unless `steps` is below it (and then refused).
  The saved config itself may have more steps.
  """
  if saved is None or not saved["minutes"] or saved["steps"] >= c.steps:
    return c
  shorter = shorten(c, saved["steps"])
  if shorter.optim.warmup_steps != saved["optim"]["warmup_steps"]:
    return c  # the saved config, with more steps
  say(
    f"This run was shortened to {saved['steps']:,} of {c.steps:,} steps when it"
    f" started (minutes={saved['minutes']:g})."
  )
  shorter.minutes = float(saved["minutes"])  # for the next resume
  return shorter


def fit(
  run: Run,
  inputs: RunInputs,
  minutes: float,
  *,
  began: float,
  say: Callable[[str], object],
) -> int:
  """Returns the number of steps that fit into `minutes`, and prints it.

  The first process decides for all. `began` is the time of
  `time.perf_counter` at which the minutes began; `say` prints a line.
  """
  compile_secs, step_secs = measure(run, inputs)
  # Compiling again, for fewer steps, and all that follows the training
  # (verdict, cases, export) are taken to need `compile_secs` each.
  left_secs = 60 * minutes - (time.perf_counter() - began) - 2 * compile_secs
  fitting = count_fitting(run, step_secs, left_secs)
  fitting = int(distributed.from_first("minutes", str(fitting)))
  steps = max(fitting, min(LEAST_STEPS, run.steps))
  line = f"{fitting:,} of {run.steps:,} steps fit into minutes={minutes:g}"
  if fitting < steps:
    line += (
      f", too few to learn from. {steps:,} steps take about"
      f" {steps * step_secs / 60:,.0f} minutes"
    )
  say(f"A step takes {step_secs:.2g} s: {line}.")
  return steps


def count_fitting(run: Run, step_secs: float, left_secs: float) -> int:
  """Returns how many steps fit, from 0 to `run.steps`, with evaluations."""
  eval_batches = -(-run.eval_rows // run.batch_size) / run.eval_every
  secs = step_secs * (1 + EVAL_COST * eval_batches)
  return max(0, min(run.steps, int(left_secs / secs)))


def measure(run: Run, inputs: RunInputs) -> tuple[float, float]:
  """Returns the seconds to compile the training step, and of one step."""
  now = time.perf_counter
  mesh = sharding.make_mesh(run.mesh_spec)
  began = now()
  run, _ = resolve_attention(run, mesh, name="attention to time")
  abstract = abstract_state(run, mesh)
  aux = make_aux(run, inputs.table, inputs.tokenizer.vocab, mesh)
  shardings = jax.tree.map(lambda x: x.sharding, abstract)
  with distributed.raise_everywhere("compile to time"):
    step, state = compile_and_make_state(
      lower_train_step(run, mesh, abstract, aux),
      jax.jit(run.init_state, out_shardings=shardings),
    )
  compiled = now()
  for number in range(TIMED_STEPS + 1):
    if number == 1:  # the first step allocates memory
      jax.block_until_ready(state)
      started = now()
    batch = batches.batch_at(
      inputs.train_rows,
      number,
      batch_size=run.batch_size,
      seed=run.seed,
      process=sharding.process_slice(mesh, run.batch_size),
    )
    state, _ = step(state, sharding.shard_batch(batch, mesh), aux)
  jax.block_until_ready(state)
  return compiled - began, (now() - started) / TIMED_STEPS
