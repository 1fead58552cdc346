"""Prints a run in seconds, without text, rows or a compiler.

  python -m truenegs_jax.main --config=bert_large --config.dry_run=True

The step is traced, so that shapes are known to fit. What the compiler adds for
activations is printed by benchmarks/memory.py, which compiles.
"""

import pathlib

import jax
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.data.tokens.tokenizer import (
  SPECIALS,
  Tokenizer,
  make_tokenizer,
)
from truenegs_jax.objectives.options import needs_table
from truenegs_jax.synonyms import sources
from truenegs_jax.train import build_run, checks, plan, sharding
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.workdir.from_config import build_tokenizer


def dry_run(c: ConfigDict, weights: Weights, console: Console) -> int:
  """Prints shapes, bytes a device, steps, tokens and FLOPs; returns 0.

  Raises:
    InputError: as a run of this config would, for what can be known beforehand.
  """
  if c.init and _is_here(c.init):
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
  lines["per device"] += (
    f", batch {plan.format_mib(sharding.bytes_per_device(batch))}, beside the"
    " activations"
  )
  lines = {
    "dry run": "no text is read, nothing written or compiled",
    **lines,
    "attention": attention,
    "vocabulary": f"{len(tokenizer.vocab):,} entries, {source}",
    "optimizer": f"{c.optim.schedule} schedule, peak {c.optim.lr:g},"
    f" {c.optim.warmup_steps:,} steps of warm-up; {c.optim.accumulation}"
    f" micro-batch(es), {c.model.dtype}, remat {c.model.remat}",
    "needs": ", ".join(_needs(c)) or "nothing but text",
  }
  console.print(plan.report_table(lines))
  console.print(plan.parameter_table(state))
  return 0


def placeholder_tokenizer(c: ConfigDict) -> tuple[Tokenizer, str]:
  """A vocabulary of the right size, and how the size is known."""
  size, source = c.data.vocab_size, "as data.vocab_size says"
  path = pathlib.Path(c.data.vocab).expanduser()
  paths = (path, path / "vocab.txt", path / "tokenizer.json")
  file = next(filter(pathlib.Path.is_file, paths), None)
  if c.data.vocab != "train" and file:
    size, source = _count(c, file), f"as {file} has"
  words = [f"word{i}" for i in range(size - len(SPECIALS))]
  return make_tokenizer([*SPECIALS, *words], lowercase=True), source


def _count(c: ConfigDict, path: pathlib.Path) -> int:
  """The entries of a vocabulary."""
  if path.suffix == ".json":
    return len(build_tokenizer(c, str(path)).vocab)
  with path.open("rb") as file:
    return sum(1 for _ in file)


def _needs(c: ConfigDict) -> list[str]:
  """Files that a run of this config would ask the user for."""
  needed = []
  if c.init:
    needed.append(f"weights: {_weights(c.init)}")
  if needs_table(c.negatives):
    for source in sources.parse_expression(c.negatives.sources).sources:
      needed += [f"{source.name} {k}={x}" for k, x in source.paths.items()]
  return needed


def _weights(init: str) -> str:
  """Where they are, and what to give if they are not here."""
  if init == checks.REQUIRED:
    return "--config.init=FOLDER"
  if _is_here(init):
    return f"{init}, which fit"
  return (
    f"{init}, which are looked up on the Hugging Face hub; without internet,"
    " --config.init=FOLDER"
  )


def _is_here(init: str) -> bool:
  exists = lambda place: pathlib.Path(place.strip()).expanduser().exists()
  return exists(init) or all(map(exists, init.split(",")))
