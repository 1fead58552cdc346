"""Prints the plan of a run in seconds, without reading text or compiling.

  python -m truenegs_jax.main --config=bert_large --config.dry_run=True

The training step is traced to check its shapes. benchmarks/memory.py compiles
it and prints the memory of activations as well.
"""

import pathlib

import jax
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.data.corpus.sources_spec import describe_sources
from truenegs_jax.data.tokens.tokenizer import (
  SPECIALS,
  Tokenizer,
  make_tokenizer,
)
from truenegs_jax.objectives.options import needs_table
from truenegs_jax.train import build_run, checks, plan, sharding, time_limit
from truenegs_jax.weights.formats import find
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.init import config_sizes
from truenegs_jax.workdir.from_config import build_tokenizer


def dry_run(c: ConfigDict, weights: Weights, console: Console) -> int:
  """Prints shapes, memory, steps, tokens and FLOPs; returns 0.

  Raises:
    InputError: a run of this config would fail before it reads its data.
  """
  if find.is_local(c.init):
    checks.check_weights(c, weights)
  tokenizer, source = placeholder_tokenizer(c)
  run = build_run.build_run(c, tokenizer)
  mesh = sharding.make_mesh(run.mesh_spec)
  run, attention = plan.resolve_attention(run, mesh)
  state = plan.abstract_state(run, mesh)
  aux = plan.abstract_aux(run, mesh)
  batch = plan.abstract_batch(run, mesh)
  jax.eval_shape(plan.build_train_step(run, mesh), state, batch, aux)
  lines = plan.report_lines(run, mesh, state, aux)
  o = c.optim
  batches = f"{o.accumulation} micro-batch" + "es" * (o.accumulation > 1)
  batch_size = plan.format_mib(sharding.bytes_per_device(batch))
  lines["per device"] += f", batch {batch_size}, without activations"
  if c.minutes:
    least = min(c.steps, time_limit.LEAST_STEPS)
    lines["steps"] += f"; at least {least:,} if minutes={c.minutes:g} is short"
  lines = {
    "dry run": "reads no text; writes and compiles nothing",
    **lines,
    "attention": attention,
    "text": "missing: set --config.data.sources=FILES"
    if c.data.sources == config_sizes.REQUIRED
    else describe_sources(c.data.sources),
    "vocabulary": f"{len(tokenizer.vocab):,} entries, {source}",
    "optimizer": f"{o.schedule} schedule, peak {o.lr:g}, {o.warmup_steps:,}"
    f" warm-up steps, {batches}, {c.model.dtype}, remat {c.model.remat}",
    "needs": ", ".join(_list_inputs(c)) or "only text",
  }
  console.print(plan.parameter_table(state))
  console.print(plan.report_table(lines))  # last, so that it stays in sight
  return 0


def placeholder_tokenizer(c: ConfigDict) -> tuple[Tokenizer, str]:
  """Returns a tokenizer with the run's vocabulary size, and its origin."""
  path = pathlib.Path(c.data.vocab).expanduser()
  paths = (path, path / "vocab.txt", path / "tokenizer.json")
  file = next(filter(pathlib.Path.is_file, paths), None)
  if c.data.vocab != "train" and file:
    return build_tokenizer(c, str(file)), f"the size of '{file}'"
  num_words = c.data.vocab_size - len(SPECIALS)
  vocab = [*SPECIALS, *(f"word{i}" for i in range(num_words))]
  tokenizer = make_tokenizer(vocab, lowercase=True)
  return tokenizer, "the size in data.vocab_size"


def _list_inputs(c: ConfigDict) -> list[str]:
  """Lists the files other than text that the user must provide."""
  inputs = []
  if c.init == config_sizes.REQUIRED:
    inputs.append("weights: --config.init=FOLDER")
  elif c.init:
    inputs.append(f"weights: {find.describe(c.init)}")
  if needs_table(c.negatives):
    for source in build_run.build_table_request(c).expression.sources:
      inputs += [f"{source.name} {k}={x}" for k, x in source.paths.items()]
  return inputs
