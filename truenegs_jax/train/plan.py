"""A run before any array of it exists: shapes, bytes, FLOPs, report.

The training step is compiled from this plan. A dry run prints it, and so does
the start of a run.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from truenegs_jax.models import choose_attention, encoder, pretrain
from truenegs_jax.objectives import masking, negatives
from truenegs_jax.runtime import distributed
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.train import sharding
from truenegs_jax.train import step as step_lib
from truenegs_jax.train.build_run import Run

# Synonyms of a token; WordNet has 55 for one token of BERT's vocabulary.
ASSUMED_LIST_LENGTH = 64
TRAINING_PASSES = 3  # a backward pass is two products for each of the forward


def resolve_attention(
  run: Run,
  mesh: jax.sharding.Mesh,
  *,
  check: bool = False,
) -> tuple[Run, str]:
  """The run with the attention that it has on a mesh, and a line about that.

  It is for the steps of a training; what else is done with the model has the
  attention that runs anywhere.

  Args:
    run: with the attention that it asks for.
    mesh: where it trains.
    check: a kernel is also run on the devices, against plain attention.

  Raises:
    InputError: what `model.attention` wants cannot be, or the processes find
      different ones.
  """
  find = choose_attention.choose_checked if check else choose_attention.choose
  form, line = find(
    run.attention,
    run.model.roles.values(),
    mesh,
    length=run.length,
    packed=run.packed,
  )
  distributed.check_same("attention", line)
  model: Any = choose_attention.with_attention(run.model, form)
  return dataclasses.replace(run, model=model), line


def abstract_state(run: Run, mesh: jax.sharding.Mesh) -> step_lib.TrainState:
  """Shapes, dtypes and shardings of the state; no array is made."""
  shapes = jax.eval_shape(run.init_state)
  places = sharding.tree_shardings(shapes, mesh, run.mesh_spec)
  return jax.tree.map(
    lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
    shapes,
    places,
  )


def abstract_batch(
  run: Run, mesh: jax.sharding.Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
  """Shapes of the global batch of a step."""
  shapes = dict.fromkeys(
    ("tokens", "types", "documents"), (run.batch_size, run.length)
  ) | {"row": (run.batch_size,)}
  rows = sharding.batch_sharding(mesh)
  return {
    name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)
    for name, shape in shapes.items()
  }


def abstract_aux(
  run: Run, mesh: jax.sharding.Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
  """Shapes of what `make_aux` puts on the devices.

  No table is read, so lists of `ASSUMED_LIST_LENGTH` synonyms are assumed.
  """
  aux, vocab_size = {}, run.options.masking.vocab_size
  if run.options.needs_table and run.table_builder is None:
    layout = table_lib.choose_layout(
      vocab_size, ASSUMED_LIST_LENGTH, run.table_layout
    )
    bits = vocab_size, math.ceil(vocab_size / negatives.WORD_BITS)
    name, shape, dtype = {
      "bits": ("bits_VxW", bits, jnp.uint32),
      "ids": ("ids_VxS", (vocab_size, ASSUMED_LIST_LENGTH), jnp.int32),
    }[layout]
    like = jax.ShapeDtypeStruct(shape, dtype)
    aux[name] = sharding.abstract_table(like, mesh, run.table_placement)
  if run.options.strict_subword:
    aux["continues_V"] = jax.ShapeDtypeStruct(
      (vocab_size,), bool, sharding=sharding.replicated_sharding(mesh)
    )
  return aux


def make_aux(
  run: Run,
  table: table_lib.SynonymTable | None,
  vocab: Sequence[str],
  mesh: jax.sharding.Mesh,
) -> dict[str, jax.Array]:
  """Device arrays that are no parameters: the synonym table, if any.

  With `negatives.strict_subword` also which tokens are `##` pieces.
  """
  aux = {}
  if table is not None:
    arrays = table_lib.build_arrays(table, run.table_layout)
    for name, array in arrays.items():
      aux[name] = sharding.place_table(array, mesh, run.table_placement)
  if run.options.strict_subword:
    continues_V = continuation_mask(vocab)
    aux["continues_V"] = jax.make_array_from_callback(
      continues_V.shape,
      sharding.replicated_sharding(mesh),
      lambda index: continues_V[index],
    )
  return aux


def continuation_mask(vocab: Sequence[str]) -> np.ndarray:
  """bool_V: the `##` pieces."""
  return np.array([token.startswith("##") for token in vocab])


def build_train_step(run: Run, mesh: jax.sharding.Mesh) -> Callable:
  """The step of a run: `(state, batch, aux) -> (state, terms)`."""
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
  aux: Mapping[str, Any],
) -> jax.stages.Lowered:
  """The training step on (abstract) arrays, ready to be compiled."""
  places = jax.tree.map(lambda x: x.sharding, state)
  jitted = jax.jit(
    build_train_step(run, mesh),
    donate_argnums=0,
    out_shardings=(places, sharding.replicated_sharding(mesh)),
  )
  return jitted.lower(state, abstract_batch(run, mesh), aux)


def compile_while(
  lowered: jax.stages.Lowered, make: Callable[[], Any]
) -> tuple[jax.stages.Compiled, Any]:
  """Compiles in a thread; returns that, and what `make` has made meanwhile.

  To draw the first weights takes about as long to compile as a step does, and
  a compiler keeps few cores busy. Many processes may have to meet while they
  compile, so there one comes after the other.
  """
  if distributed.process_count() > 1:
    return lowered.compile(), make()
  with futures.ThreadPoolExecutor(1) as pool:
    compiling = pool.submit(lowered.compile)
    made = make()
    return compiling.result(), made


def build_eval_step(run: Run, mesh: jax.sharding.Mesh) -> Callable:
  """The jitted evaluation: `(params, batch, aux) -> terms`."""
  objective = sharding.gather_params(
    run.objective(train=False), mesh, run.mesh_spec
  )
  return jax.jit(
    step_lib.make_eval_step(objective, run.seed),
    out_shardings=sharding.replicated_sharding(mesh),
  )


def row_flops(run: Run) -> float:
  """Floating-point operations of the products of one row of training.

  Two for each multiplication and addition, three passes for forward and
  backward, nothing for what is computed twice to save memory; attention over
  the whole row, the vocabulary at the K slots alone.
  """
  roles, o, length = run.model.roles, run.options, run.length
  slots = masking.num_slots(length, o.masking.mask_prob)
  forward = 0.0
  for role, config in roles.items():
    forward += length * _encoder_flops(config, length)
    if role == "discriminator":
      forward += length * (2 * config.width**2 + 2 * config.width)
    else:
      e = config.embedding_size
      forward += slots * (2 * config.width * e + 2 * e * config.vocab_size)
  passes = TRAINING_PASSES * forward
  if o.soft_weight and o.soft_prediction == "expected":
    masked = list(roles.values())[-1]
    mean = 2 * masked.vocab_size * masked.embedding_size
    passes += TRAINING_PASSES * slots * mean
  if o.sentence_weight:
    own = o.sentence_encoder == "kept"
    encoding = list(roles.values())[0 if own else -1]
    once = length * _encoder_flops(encoding, length)
    passes += once  # the target, which has no backward pass
    if len(roles) == 1 or o.prediction != "sample" or not own:
      passes += TRAINING_PASSES * once  # else the discriminator has it anyway
  return passes


def _encoder_flops(config: encoder.EncoderConfig, length: int) -> float:
  """Of a token's way through the layers, forward."""
  d, e = config.width, config.embedding_size
  layer = 8 * d**2 + 4 * d * config.ffn + 4 * length * d
  return config.layers * layer + (2 * e * d if e != d else 0)


def report_lines(
  run: Run,
  mesh: jax.sharding.Mesh,
  state: step_lib.TrainState,
  aux: Mapping[str, Any],
) -> dict[str, str]:
  """The lines of a report that hold of every run: name -> text."""
  flops = row_flops(run)
  rows = run.steps * run.batch_size
  return {
    "objective": run.summary,
    "devices": describe_devices(run, mesh),
    "parameters": describe_parameters(run.model, state.params),
    "per device": describe_memory(state, aux),
    "steps": f"{run.steps:,} of {run.batch_size:,} rows of {run.length} tokens,"
    f" {rows * run.length:.3g} tokens in all; FLOP: {flops:.4g} a row,"
    f" {flops * run.batch_size:.4g} a step, {flops * rows:.4g} in all",
  }


def describe_devices(run: Run, mesh: jax.sharding.Mesh) -> str:
  """The devices of a run and how they are laid out."""
  axes = ", ".join(f"{name} {size}" for name, size in mesh.shape.items())
  device = mesh.devices.flat[0]
  return (
    f"{mesh.devices.size} x {device.device_kind} ({device.platform}),"
    f" {jax.process_count()} process(es), mesh {run.mesh_preset}: {axes}"
  )


def describe_parameters(model: pretrain.Model, params: Any) -> str:
  """How many parameters a model has, in all and in each of its parts."""
  count = lambda *names: pretrain.count_parameters(
    [params[name] for name in names if name in params]
  )
  parts = {"embeddings": count("embeddings")}
  for role in model.roles:
    parts[role] = count(role, f"{role}_head")
  parts["carried along"] = count(*pretrain.CARRIED)
  listed = ", ".join(f"{name} {n:,}" for name, n in parts.items() if n)
  return f"{sum(parts.values()):,}: {listed}"


def describe_memory(state: step_lib.TrainState, aux: Mapping[str, Any]) -> str:
  """Memory of one device from step to step."""
  return (
    f"state {format_mib(sharding.bytes_per_device(state))},"
    f" synonyms {format_mib(sharding.bytes_per_device(aux))}"
  )


def format_mib(num_bytes: float) -> str:
  """A size in MiB, as the reports print it."""
  return f"{num_bytes / 2**20:,.0f} MiB"


def report_table(lines: Mapping[str, str]) -> Table:
  """A report: a name and a text a line."""
  table = Table(box=None, show_header=False, pad_edge=False)
  table.add_column(style="bold", no_wrap=True)
  table.add_column(overflow="fold")
  for name, text in lines.items():
    table.add_row(name, text)
  return table


def parameter_table(state: step_lib.TrainState) -> Table:
  """Shape, and bytes on a device, of every parameter, layers folded."""
  table = Table(box=None, pad_edge=False)
  table.add_column("parameter (layers are all like layer_0)", overflow="fold")
  table.add_column("shape")
  table.add_column("bytes on a device", justify="right")
  for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if "/layer_" in name and "/layer_0/" not in name:
      continue  # layers are alike
    local = math.prod(leaf.sharding.shard_shape(leaf.shape))
    shape = " x ".join(map(str, leaf.shape))
    table.add_row(name, shape, f"{local * leaf.dtype.itemsize:,}")
  return table
