"""Describes a run before it starts: sizes, memory, FLOPs, data, needs.

Dry runs and starts print the lines, and about.json has them.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from rich.console import Console

from truenegs_jax.config.sections import REQUIRED, Negatives, PretrainConfig
from truenegs_jax.data.sources import describe_sources
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import masking
from truenegs_jax.pretrain import plan
from truenegs_jax.pretrain.open_teacher import OpenTeacher
from truenegs_jax.pretrain.plan import Inputs, Run
from truenegs_jax.runtime import errors, progress
from truenegs_jax.synonyms.run_table import resolve_auto
from truenegs_jax.train import sharding
from truenegs_jax.train import step as step_lib
from truenegs_jax.weights import find
from truenegs_jax.workdir import files

Arrays = Mapping[str, jax.Array | jax.ShapeDtypeStruct]
OBJECTIVES = {"electra": "ELECTRA", "mlm": "masked language modelling"}
TRAINING_PASSES = 3  # forward, and twice as many products backward
# Keys of `negatives` that `describe_objective` puts into words or leaves out.
DESCRIBED = (
  *("sources", "hard_correction", "prediction", "soft"),
  *("soft_weight", "sentence_weight", "smoothing", "smoothing_by"),
)


def describe_objective(config: PretrainConfig) -> str:
  """Describes the objective of a config in words."""
  n = config.negatives
  sources = resolve_auto(n.sources, config.data.language)
  parts = {
    f"hard correction by {sources} ({n.prediction})": n.hard_correction,
    f"synonyms of {sources}": n.needs_table and not n.hard_correction,
    f"soft regularization ({n.soft}) x {n.soft_weight:g}": n.soft_weight,
    f"sentence regularization x {n.sentence_weight:g}": n.sentence_weight,
    f"smoothing over synonyms ({n.smoothing_by}) x {n.smoothing:g}": (
      n.smoothing
    ),
  }
  for name, key in Negatives.list_keys().items():
    value = getattr(n, name)
    parts[f"{name} {value}"] = name not in DESCRIBED and value != key.default
  name = OBJECTIVES[config.objective]
  terms = [part for part, is_used in parts.items() if is_used]
  recipe = " + ".join([name, *terms]) if terms else f"plain {name}"
  m = config.masking
  words = ", whole words" if m.unit == "word" else ""
  return f"{recipe}; {m.prob:.0%} masked ({m.style}{words})"


def row_flops(run: Run, parts: int = 1) -> float:
  """Counts the floating-point operations (FLOP) of training on one row.

  Counts matrix products only: two operations for each multiplication and
  addition, and three passes (forward and twice backward). Recomputation to save
  memory is not counted. Attention covers the row, the output layer the K slots.
  A teacher has a forward pass. `short_rows` reads the row as `parts` rows.
  """
  roles = run.model.roles
  options = run.options
  length = run.config.length // parts
  role_passes = (role_flops(run, run.model, x, length) for x in roles)
  passes = TRAINING_PASSES * sum(role_passes)
  if run.teacher:
    model = run.teacher.model
    passes += role_flops(run, model, model.mlm_role, length)
  if options.sentence_weight:
    sentence = length * encoder_flops(run.model, next(iter(roles)), length)
    passes += sentence  # of the target, without a backward pass
    # ELECTRA's discriminator encodes the sampled sentence anyway.
    if len(roles) == 1 or options.prediction != "sample":
      passes += TRAINING_PASSES * sentence
  return parts * passes


def mean_row_flops(run: Run) -> float:
  """Counts the operations of a row, on average over all steps."""
  four = run.config.short_rows
  two = min(four / 2, 1 - four)
  shares = four, two, 1 - four - two
  pairs = zip(shares, plan.PARTS, strict=True)
  return sum(share * row_flops(run, n) for share, n in pairs if share)


def role_flops(
  run: Run, model: pretrain.Model, role: str, length: int
) -> float:
  """Counts the operations of `length` tokens in a network's forward pass."""
  c = model.roles[role]
  flops = length * encoder_flops(model, role, length)
  if role == "discriminator":
    return flops + length * (2 * c.width**2 + 2 * c.width)
  m = run.options.masking
  slots = masking.num_slots(length, m.mask_prob)
  e = c.embedding_size
  return flops + slots * (2 * c.width * e + 2 * e * c.vocab_size)


def describe_teacher(run: Run, teacher: OpenTeacher) -> str:
  """Describes a teacher and what it costs."""
  model = teacher.model
  flops = role_flops(run, model, model.mlm_role, run.config.length)
  share = flops / (row_flops(run) - flops)
  size = pretrain.count_parameters(run.abstract_aux()["teacher"])
  return (
    f"'{teacher.options.path}', {size:,} parameters, adds {share:.0%} to the"
    " FLOP of a step"
  )


def encoder_flops(model: pretrain.Model, role: str, length: int) -> float:
  """Counts the operations of one token in a forward pass of an encoder."""
  c = model.roles[role]
  window = min(length, 2 * c.window + 1)
  keys = sum(window if c.is_local(i) else length for i in range(c.layers))
  leaves = jax.tree.leaves(pretrain.param_shapes(model)[role])
  kernels = sum(x.size for x in leaves if x.ndim > 1)
  return 2 * kernels + 4 * keys * c.width


def report_lines(
  run: Run, state: step_lib.TrainState, aux: Arrays
) -> dict[str, str]:
  """Returns the lines that dry runs and starts report: name -> text."""
  c = run.config
  o = c.optim
  muon = ""
  if o.muon_lr:
    muon = f", Muon for matrices of layers, peak {o.muon_lr:g}"
  flops = mean_row_flops(run)
  rows = c.steps * c.batch_size
  steps = f"{c.steps:,}"
  if c.minutes:
    steps = f"at most {steps}, as many as fit into {c.minutes:g} minutes,"
  lines = {
    "objective": describe_objective(c),
    "devices": sharding.describe_devices(c.mesh.preset, run.mesh),
    "parameters": describe_parameters(run.model, state.params),
    "per device": describe_memory(state, aux),
    "steps": f"{steps} of {c.batch_size:,} rows of {c.length} tokens,"
    f" {rows * c.length:,} tokens in total",
    "FLOP": f"{flops:.4g} per row, {flops * c.batch_size:.4g} per step,"
    f" {flops * rows:.4g} in total",
    "optimizer": f"{o.schedule} schedule, peak {o.lr:g}, {o.warmup_steps:,}"
    f" warm-up steps, accumulation {o.accumulation}, {c.model.dtype}, remat"
    f" {c.model.remat}{muon}",
    "attention": run.attention_line,
  }
  if run.teacher:
    lines["teacher"] = describe_teacher(run, run.teacher)
  return lines


def describe_parameters(model: pretrain.Model, params: dict) -> str:
  """Describes the number of parameters of a model and of its networks."""
  shared = pretrain.count_parameters(params["embeddings"])
  texts = [f"embeddings {shared:,}"]
  for role in model.roles:
    own = [x for name, x in params.items() if name.startswith(role)]
    texts.append(f"{role} {pretrain.count_parameters(own):,}")
  if pooled := params.get("pooled"):  # for next sentences, of released weights
    texts.append(f"pooled {pretrain.count_parameters(pooled):,}")
  return f"{pretrain.count_parameters(params):,}: {', '.join(texts)}"


def describe_memory(state: step_lib.TrainState, aux: Arrays) -> str:
  """Describes the memory that one device uses between steps."""
  name = "teacher" if "teacher" in aux else "synonyms"
  return (
    f"state {format_mib(sharding.bytes_per_device(state))},"
    f" {name} {format_mib(sharding.bytes_per_device(aux))}"
  )


def format_mib(num_bytes: float) -> str:
  """Formats a size in MiB."""
  return f"{num_bytes / 2**20:,.0f} MiB"


def start_lines(
  run: Run,
  inputs: Inputs,
  state: step_lib.TrainState,
  aux: Arrays,
  scratch: int | None,
) -> dict[str, str]:
  """Returns the lines that a start reports; `scratch` is a step's memory."""
  c = run.config
  synonyms = "none"
  if run.table_builder is not None:
    options = run.table_builder.options
    synonyms = (
      f"the {options.top} nearest tokens by the model's embeddings, with a"
      f" cosine of at least {options.threshold:g}, updated every"
      f" {options.every:,} steps"
    )
  elif (table := inputs.table) is not None:
    synonyms = (
      f"{table.num_pairs:,} pairs for {table.num_rows:,} tokens"
      f" ({table.coverage}) from {table.source}"
    )
  lines = report_lines(run, state, aux)
  epochs = c.steps * c.batch_size / len(inputs.train_rows)
  lines["steps"] += f", {epochs:.1f} epochs"
  if scratch is not None:
    lines["per device"] += f", scratch {format_mib(scratch)}"
  return lines | {
    "data": f"{len(inputs.train_rows):,} rows of {c.length} tokens,"
    f" {len(inputs.held_out_rows):,} held-out rows, vocabulary of"
    f" {len(run.tokenizer.vocab):,} tokens",
    "synonyms": synonyms,
    **inputs.coverage,
  }


def describe_resume(
  run: Run, step: int, saved: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[str]:
  """Yields what differs from the run that saved a step, by descriptions."""
  names = ("versions", "devices")
  before, after = ({name: x[name] for name in names} for x in (saved, now))
  if changed := files.find_changes(before, after):
    yield (
      "warning: The run is resumed in another environment"
      f" ({', '.join(map(str, changed))}). Data and draws are the same, but"
      " sums may be rounded differently."
    )
  earlier = saved["config"]["steps"]
  steps = run.config.steps
  if steps > earlier and not run.config.minutes:
    yield (
      f"This run had {earlier:,} steps and gets {steps:,}. After step {step:,}"
      " it continues with their schedule: the learning rate is"
      f" {run.learning_rate(step):.3g}, and {run.learning_rate(steps):.3g} at"
      " the end."
    )


def describe_text(manifest: dict[str, Any]) -> list[str]:
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


def dry_run(run: Run, console: Console) -> None:
  """Prints the plan of a run in seconds, with a step that is only traced."""
  state = run.abstract_state()
  aux = run.abstract_aux()
  traced = run
  if run.teacher_options and not run.teacher:  # its sizes are not known here
    off = {"smoothing": 0.0, "hard_correction": False}
    off |= {"discriminator_label": 1.0}
    changes = {f"negatives.{name}": value for name, value in off.items()}
    traced = dataclasses.replace(run, config=run.config.replace(changes))
  jax.eval_shape(traced.train_step, state, run.abstract_batch(), aux)
  data = run.config.data
  text = "missing: set --config.data.sources=FILES"
  if data.sources != REQUIRED:
    text = describe_sources(data.sources)
  lines = {
    "dry run": "reads no text, writes nothing",
    **report_lines(run, state, aux),
    "text": text,
    "vocabulary": f"{len(run.tokenizer.vocab):,} entries of {data.vocab!r}",
    "needs": "; ".join(["text", *_list_needs(run)]),
  }
  console.print(progress.make_table(lines))


def _list_needs(run: Run) -> Iterator[str]:
  """Yields what a run needs besides text, and whether it is here."""
  init = run.config.init
  if init == REQUIRED:
    yield "weights: --config.init=FOLDER"
  elif init:
    yield f"weights: {find.describe(init)}"
  if options := run.teacher_options:
    yield f"teacher: {find.describe(options.path)}"
  if request := run.table_request:
    try:
      request.check()
      yield f"synonyms: {request.identity}, here"
    except errors.TrueNegsError as e:
      yield f"synonyms: {errors.printable(e)}"
