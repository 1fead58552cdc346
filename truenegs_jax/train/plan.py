"""Plans a run before it starts: shapes, training step, FLOPs and report.

The training step is compiled from shapes. Dry runs and starts print the report.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from rich.table import Table

from truenegs_jax.data.rows import Rows, Verification
from truenegs_jax.models import attention, pretrain
from truenegs_jax.objectives import masking, mlm, negatives, output_softmax
from truenegs_jax.runtime import cpu, distributed, rng
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import sharding, speed
from truenegs_jax.train import step as step_lib
from truenegs_jax.train.start import Run, describe_objective

# Inputs of an objective that are neither parameters nor rows.
Aux = Mapping[str, jax.Array | jax.ShapeDtypeStruct]

# Synonyms of a token; WordNet has 55 for one token of BERT's vocabulary.
ASSUMED_LIST_LENGTH = 64
TRAINING_PASSES = 3  # forward, and twice as many products backward
LOGIT_BYTES = 8  # of a logit and its gradient
LOGITS_SHARE = 1 / 4  # of a device's memory, at most


@dataclasses.dataclass(frozen=True)
class RunInputs:
  """Data of a run."""

  train_rows: Rows
  held_out_rows: Rows
  verification: Verification  # of the files of both
  table: SynonymTable | None  # None also if the run has a `table_builder`
  coverage: Mapping[str, str]  # lines of the report about the synonyms


@dataclasses.dataclass(frozen=True)
class PretrainSetup:
  """State, compiled steps and other inputs of the training loop."""

  run: Run
  inputs: RunInputs
  mesh: jax.sharding.Mesh
  state: step_lib.TrainState
  aux: dict[str, jax.Array]  # inputs of the objective other than the batch
  train_step: jax.stages.Compiled  # (state, batch, aux) -> (state, terms)
  eval_step: Callable[..., step_lib.Terms]  # (params, batch, aux) -> terms
  # Rebuilds the table of a state before a step, if due.
  refresh: Callable[[step_lib.TrainState, int], step_lib.TrainState]
  description: dict[str, Any]  # saved with each checkpoint
  clock: speed.TimeLimit


def resolve_attention(
  run: Run, mesh: jax.sharding.Mesh, *, check: bool = False, platform: str = ""
) -> tuple[Run, str]:
  """Chooses the attention of training steps; returns a line about it, too.

  `check` tests the kernel on the devices; `platform` is that of absent devices.
  """
  implementation, line = attention.choose(
    run.config.model.attention,
    run.model.roles.values(),
    mesh,
    length=run.config.length,
    platform=platform,
    check=check,
  )
  distributed.check_same("attention", line)
  return dataclasses.replace(run, attention=implementation), line


def resolve_chunk(run: Run, mesh: jax.sharding.Mesh, memory: int = 0) -> Run:
  """Replaces -1 in `model.vocabulary_chunk` by the most slots that fit.

  `memory`: bytes of a device; 0: of the devices of this run.
  """
  if run.config.model.vocabulary_chunk >= 0:
    return run
  slot_bytes = LOGIT_BYTES * len(run.tokenizer.vocab)
  slots = LOGITS_SHARE * (memory or speed.device_memory()) // slot_bytes
  chunk = int(max(slots, 1)) * mesh.shape[sharding.DATA_AXIS]
  config = run.config.replace({"model.vocabulary_chunk": chunk})
  return dataclasses.replace(run, config=config)


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
  size = run.config.batch_size
  rows = sharding.batch_sharding(mesh)
  like = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32, sharding=rows)
  names = ("tokens", "types", "documents")
  row = (size, run.config.length)
  return dict.fromkeys(names, like(row)) | {"row": like((size,))}


def abstract_aux(
  run: Run, mesh: jax.sharding.Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
  """Describes the arrays of `make_aux`, with ASSUMED_LIST_LENGTH synonyms."""
  aux = {}
  vocab_size = len(run.tokenizer.vocab)
  if run.table_request and run.table_builder is None:
    width = ASSUMED_LIST_LENGTH
    arrays = {"ids_VxS": (width, jnp.int32)}
    if table_lib.choose_layout(vocab_size, width, run.table_layout) == "bits":
      arrays = {"bits_VxW": (-(-vocab_size // negatives.WORD_BITS), jnp.uint32)}
    elif run.options.needs_rates:
      arrays["rates_VxS"] = width, jnp.float32
    for name, (columns, dtype) in arrays.items():
      like = jax.ShapeDtypeStruct((vocab_size, columns), dtype)
      aux[name] = sharding.abstract_table(like, mesh, run.config.mesh.synonyms)
  if run.options.strict_subword:
    aux["edges_V"] = jax.ShapeDtypeStruct(
      (vocab_size,), jnp.uint8, sharding=sharding.replicated_sharding(mesh)
    )
  return aux


def make_aux(
  run: Run, table: SynonymTable | None, mesh: jax.sharding.Mesh
) -> dict[str, jax.Array]:
  """Puts the table, if any, and `edges_V`, if needed, on the devices."""
  aux = {}
  if table is not None:
    arrays = table.arrays(run.table_layout, rates=run.options.needs_rates)
    for name, array in arrays.items():
      aux[name] = sharding.place_table(array, mesh, run.config.mesh.synonyms)
  if (edges_V := run.edges_V) is not None:
    replicated = sharding.replicated_sharding(mesh)
    aux["edges_V"] = jax.make_array_from_callback(
      edges_V.shape, replicated, edges_V.__getitem__
    )
  return aux


def build_train_step(run: Run, mesh: jax.sharding.Mesh) -> Callable:
  """Builds the training step: `(state, batch, aux) -> (state, terms)`."""
  objective = resolve_chunk(run, mesh).objective(train=True)
  return step_lib.make_train_step(
    sharding.gather_params(objective, mesh, run.mesh_spec),
    run.loss_weights,
    run.tx,
    run.config.optim.accumulation,
  )


def lower_train_step(
  run: Run,
  mesh: jax.sharding.Mesh,
  state: step_lib.TrainState,
  aux: Aux,
  *,
  platform: str = "",
) -> jax.stages.Lowered:
  """Lowers the training step for (abstract) arrays, also of absent devices."""
  shardings = jax.tree.map(lambda x: x.sharding, state)
  with cpu.lowering_for(platform):
    jitted = jax.jit(
      build_train_step(run, mesh),
      donate_argnums=0,
      out_shardings=(shardings, sharding.replicated_sharding(mesh)),
      compiler_options=cpu.compiler_options(),
    )
    return jitted.lower(state, abstract_batch(run, mesh), aux)


def build_eval_step(run: Run, mesh: jax.sharding.Mesh) -> Callable:
  """Builds the jitted evaluation step: `(params, batch, aux) -> terms`."""
  objective = resolve_chunk(run, mesh).objective(train=False)
  objective = sharding.gather_params(objective, mesh, run.mesh_spec)
  return jax.jit(
    step_lib.make_eval_step(objective, run.config.seed),
    out_shardings=sharding.replicated_sharding(mesh),
  )


def build_predict_step(run: Run, mesh: jax.sharding.Mesh) -> Callable:
  """Builds the prediction of slots: `(params, batch, width) -> [B, K] arrays`.

  Parameters and rows are split over the mesh as in an evaluation step. Rows are
  masked like in training, by the run's seed and their number; there is no
  dropout. The model reads the first `width` positions; the others must be
  padding. Masking draws for all L positions: slots do not depend on `width`.

  The arrays are `position`, `gold`, `predicted` (the likeliest token or a
  sample), `probability` of the predicted token, `weight` (1 for slots in use)
  and `eligible`, by `strict_subword`.
  """
  options = resolve_chunk(run, mesh).options
  edges_V = run.edges_V

  def predict(
    params: dict, batch: Mapping[str, jax.Array], width: int
  ) -> dict[str, jax.Array]:
    keys_B = rng.row_keys(jax.random.key(run.config.seed), 0, batch["row"])
    keys = functools.partial(rng.purpose_keys, keys_B)
    slots, masked_BxL = masking.hide_slots(
      batch["tokens"], batch["documents"], keys(rng.MASK), options.masking
    )
    most = int(options.masking.mask_prob * width) + 1  # slots of `width` tokens
    slots = jax.tree.map(lambda x_BxK: x_BxK[:, :most], slots)
    inputs = {"tokens": masked_BxL[:, :width]}
    for name in ("types", "documents"):
      inputs[name] = batch[name][:, :width]
    bound = run.model.bind({"params": params})
    compute = functools.partial(
      output_softmax.compute,
      bound.generate_vectors(inputs, slots.positions_BxK, None),
      *bound.output_layer(),
      keys_B=keys(rng.SAMPLE),
      temperature=options.sampling_temperature,
      chunk=options.vocabulary_chunk,
    )
    output = compute(gold_BxK=slots.gold_BxK)
    is_sampled = options.prediction == "sample"
    predicted_BxK = output.sampled_BxK if is_sampled else output.predicted_BxK
    return {
      "position": slots.positions_BxK,
      "gold": slots.gold_BxK,
      "weight": slots.weight_BxK,
      "predicted": predicted_BxK,
      "probability": jnp.exp(-compute(gold_BxK=predicted_BxK).loss_BxK),
      "eligible": jnp.ones_like(slots.gold_BxK, bool)
      if edges_V is None
      else mlm.is_whole_word(batch, slots.positions_BxK, edges_V),
    }

  return jax.jit(
    sharding.gather_params(predict, mesh, run.mesh_spec),
    static_argnums=2,
    out_shardings=sharding.replicated_sharding(mesh),
  )


def row_flops(run: Run) -> float:
  """Counts the floating-point operations (FLOP) of training on one row.

  Counts matrix products only: two operations for each multiplication and
  addition, and three passes (forward and twice backward). Recomputation to save
  memory is not counted. Attention covers the row, the output layer the K slots.
  """
  roles = run.model.roles
  options = run.options
  length = run.config.length
  slots = masking.num_slots(length, options.masking.mask_prob)
  forward = 0.0
  for role, config in roles.items():
    forward += length * encoder_flops(run.model, role, length)
    if role == "discriminator":
      forward += length * (2 * config.width**2 + 2 * config.width)
    else:
      e = config.embedding_size
      forward += slots * (2 * config.width * e + 2 * e * config.vocab_size)
  passes = TRAINING_PASSES * forward
  *_, masked = roles.values()
  if options.soft_weight and options.soft_prediction == "expected":
    mean = 2 * masked.vocab_size * masked.embedding_size
    passes += TRAINING_PASSES * slots * mean
  if options.sentence_weight:
    sentence = length * encoder_flops(run.model, next(iter(roles)), length)
    passes += sentence  # of the target, without a backward pass
    # ELECTRA's discriminator encodes the sampled sentence anyway.
    if len(roles) == 1 or options.prediction != "sample":
      passes += TRAINING_PASSES * sentence
  return passes


def encoder_flops(model: pretrain.Model, role: str, length: int) -> float:
  """Counts the operations of one token in a forward pass of an encoder."""
  c = model.roles[role]
  window = min(length, 2 * model.roles[role].window + 1)
  keys = sum(window if c.is_local(i) else length for i in range(c.layers))
  leaves = jax.tree.leaves(pretrain.param_shapes(model)[role])
  kernels = sum(x.size for x in leaves if x.ndim > 1)
  return 2 * kernels + 4 * keys * c.width


def report_lines(
  run: Run,
  mesh: jax.sharding.Mesh,
  state: step_lib.TrainState,
  aux: Aux,
  attention: str,
) -> dict[str, str]:
  """Returns the lines that dry runs and starts report: name -> text."""
  c = run.config
  o = c.optim
  flops = row_flops(run)
  rows = c.steps * c.batch_size
  steps = f"{c.steps:,}"
  if c.minutes:
    steps = f"at most {steps}, as many as fit into {c.minutes:g} minutes,"
  return {
    "objective": describe_objective(c),
    "devices": describe_devices(c.mesh.preset, mesh),
    "parameters": describe_parameters(run.model, state.params),
    "per device": describe_memory(state, aux),
    "steps": f"{steps} of {c.batch_size:,} rows of {c.length} tokens,"
    f" {rows * c.length:,} tokens in total",
    "FLOP": f"{flops:.4g} per row, {flops * c.batch_size:.4g} per step,"
    f" {flops * rows:.4g} in total",
    "optimizer": f"{o.schedule} schedule, peak {o.lr:g}, {o.warmup_steps:,}"
    f" warm-up steps, accumulation {o.accumulation}, {c.model.dtype}, remat"
    f" {c.model.remat}",
    "attention": attention,
    "logits": describe_logits(run, mesh),
  }


def describe_devices(preset: str, mesh: jax.sharding.Mesh) -> str:
  """Describes the devices of a run, its processes and its mesh."""
  device = mesh.devices.flat[0]
  count = jax.process_count()
  processes = "1 process" if count == 1 else f"{count} processes"
  return (
    f"{mesh.devices.size} x {device.device_kind} ({device.platform}),"
    f" {processes},"
    f" mesh {preset}: {sharding.format_axes(mesh.shape)}"
  )


def describe_parameters(model: pretrain.Model, params: dict) -> str:
  """Describes the number of parameters of a model and of its networks."""

  def count(*names: str) -> int:
    return pretrain.count_parameters([params.get(name) for name in names])

  counts = {"embeddings": count("embeddings")}
  counts["discriminator's embeddings"] = count(*pretrain.OWN.values())
  for role in model.roles:
    counts[role] = count(role, f"{role}_head")
  counts["not trained"] = count(*pretrain.CARRIED)
  listed = ", ".join(f"{part} {n:,}" for part, n in counts.items() if n)
  return f"{sum(counts.values()):,}: {listed}"


def describe_memory(state: step_lib.TrainState, aux: Aux) -> str:
  """Describes the memory that one device uses between steps."""
  return (
    f"state {format_mib(sharding.bytes_per_device(state))},"
    f" synonyms {format_mib(sharding.bytes_per_device(aux))}"
  )


def describe_logits(run: Run, mesh: jax.sharding.Mesh) -> str:
  """Describes how many of a micro-batch's logits are in memory at a time."""
  c = run.config
  options = resolve_chunk(run, mesh).options
  rows = c.batch_size // c.optim.accumulation
  slots = masking.num_slots(c.length, options.masking.mask_prob)
  count = 1  # the mean of all embeddings needs all logits
  if options.soft_prediction != "expected":
    count = output_softmax.count_chunks(rows, slots, options.vocabulary_chunk)
  size = LOGIT_BYTES * rows * slots * len(run.tokenizer.vocab) / count
  size /= mesh.shape[sharding.DATA_AXIS]
  how = f"in {count} chunks" if count > 1 else "at once"
  return f"of {rows * slots:,} slots {how}, {format_mib(size)} with gradients"


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
