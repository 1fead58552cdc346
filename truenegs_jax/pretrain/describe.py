"""Describes a run before it starts: sizes, memory, FLOPs, data, needs.

Dry runs and starts print the lines, and about.json has them.
"""

import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from rich.console import Console

from truenegs_jax.config.sections import Negatives, PretrainConfig
from truenegs_jax.configs.common import REQUIRED
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.sources import describe_sources
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import masking, output_softmax
from truenegs_jax.pretrain.plan import LOGIT_BYTES, Inputs, Run
from truenegs_jax.runtime import errors, progress
from truenegs_jax.runtime.paths import is_hub_name
from truenegs_jax.synonyms.run_table import resolve_auto
from truenegs_jax.train import metrics, sharding
from truenegs_jax.train import step as step_lib
from truenegs_jax.weights import find
from truenegs_jax.workdir import files

Arrays = Mapping[str, jax.Array | jax.ShapeDtypeStruct]
TRAINING_PASSES = 3  # forward, and twice as many products backward
# Keys of `negatives` that `describe_objective` puts into words or leaves out.
DESCRIBED = (
  *("sources", "hard_correction", "prediction", "soft"),
  *("soft_weight", "sentence_weight", "smoothing", "smoothing_by"),
)


def describe_objective(config: PretrainConfig) -> str:
  """Describes the objective of a config in words."""
  n = config.negatives
  temperature = config.generator.temperature
  sources = resolve_auto(n.sources, config.data.language)
  parts = {
    f"hard correction by {sources} ({n.prediction})": n.hard_correction,
    f"synonyms of {sources}": n.needs_table and not n.hard_correction,
    f"soft regularization ({n.soft}) x {n.soft_weight:g}": n.soft_weight,
    f"sentence regularization x {n.sentence_weight:g}": n.sentence_weight,
    f"smoothing over synonyms ({n.smoothing_by}) x {n.smoothing:g}": (
      n.smoothing
    ),
    f"sampled at temperature {temperature:g}": temperature != 1,
  }
  for name, key in Negatives.list_keys().items():
    value = getattr(n, name)
    parts[f"{name} {value}"] = name not in DESCRIBED and value != key.default
  name = {"electra": "ELECTRA", "mlm": "BERT"}[config.objective]
  terms = [part for part, is_used in parts.items() if is_used]
  recipe = " + ".join([name, *terms]) if terms else f"plain {name}"
  masked = f"{config.masking.prob:.0%} masked ({config.masking.style})"
  return f"{recipe}; {masked}"


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
  run: Run, state: step_lib.TrainState, aux: Arrays
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
    "devices": sharding.describe_devices(c.mesh.preset, run.mesh),
    "parameters": describe_parameters(run.model, state.params),
    "per device": describe_memory(state, aux),
    "steps": f"{steps} of {c.batch_size:,} rows of {c.length} tokens,"
    f" {rows * c.length:,} tokens in total",
    "FLOP": f"{flops:.4g} per row, {flops * c.batch_size:.4g} per step,"
    f" {flops * rows:.4g} in total",
    "optimizer": f"{o.schedule} schedule, peak {o.lr:g}, {o.warmup_steps:,}"
    f" warm-up steps, accumulation {o.accumulation}, {c.model.dtype}, remat"
    f" {c.model.remat}",
    "attention": run.attention_line,
    "logits": describe_logits(run),
  }


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


def describe_memory(state: step_lib.TrainState, aux: Arrays) -> str:
  """Describes the memory that one device uses between steps."""
  return (
    f"state {format_mib(sharding.bytes_per_device(state))},"
    f" synonyms {format_mib(sharding.bytes_per_device(aux))}"
  )


def describe_logits(run: Run) -> str:
  """Describes how many of a micro-batch's logits are in memory at a time."""
  c = run.config
  options = run.options
  rows = c.batch_size // c.optim.accumulation
  slots = masking.num_slots(c.length, options.masking.mask_prob)
  count = output_softmax.count_chunks(rows, slots, options.vocabulary_chunk)
  size = LOGIT_BYTES * rows * slots * len(run.tokenizer.vocab) / count
  size /= run.mesh.shape[sharding.DATA_AXIS]
  how = f"in {count} chunks" if count > 1 else "at once"
  return f"of {rows * slots:,} slots {how}, {format_mib(size)} with gradients"


def format_mib(num_bytes: float) -> str:
  """Formats a size in MiB."""
  return f"{num_bytes / 2**20:,.0f} MiB"


def describe_inputs(
  run: Run, inputs: Inputs, workdir: pathlib.Path
) -> dict[str, str]:
  """Returns lines about rows, synonyms and files of a start: name -> text."""
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
  return {
    "data": f"{len(inputs.train_rows):,} rows of {run.config.length} tokens,"
    f" {len(inputs.held_out_rows):,} held-out rows, vocabulary of"
    f" {len(run.tokenizer.vocab):,} tokens",
    "synonyms": synonyms,
    **inputs.coverage,
    "workdir": f"{workdir}/ ({files.CONFIG}, metrics.jsonl,"
    f" {files.CHECKPOINTS}/, {files.EXPORT}/)",
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
      f" {run.learning_rate(step):.3g} and falls to 0."
    )


def about(run: Run, inputs: Inputs) -> dict[str, Any]:
  """Returns what about.json has beside the lines of a start."""
  rows = inputs.train_rows
  manifest = rows.manifest
  return {
    "row_flops": row_flops(run),
    "uniform_entropy": math.log(len(run.tokenizer.vocab)),
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


def dry_run(run: Run, console: Console) -> None:
  """Prints the plan of a run in seconds, with a step that is only traced."""
  state = run.abstract_state()
  aux = run.abstract_aux()
  jax.eval_shape(run.train_step, state, run.abstract_batch(), aux)
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
  vocab = run.config.data.vocab
  if init == REQUIRED:
    yield "weights: --config.init=FOLDER"
  elif init:
    yield f"weights: {find.describe(init)}"
  if is_hub_name(vocab) and vocab != "train" and not os.path.exists(vocab):
    yield f"vocabulary: {vocab} of the Hugging Face hub"
  if request := run.table_request:
    try:
      request.check()
      yield f"synonyms: {request.identity}, here"
    except errors.TrueNegsError as e:
      yield f"synonyms: {errors.printable(e)}"
