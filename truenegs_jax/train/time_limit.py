"""Shortens a run to the steps that fit into `config.minutes`.

The training step is compiled and timed on a state that is thrown away, because
the number of steps is a constant of the compiled step. If all steps fit, the
run finds its step in the compilation cache.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from truenegs_jax.data.rows import batches
from truenegs_jax.runtime import distributed
from truenegs_jax.train import plan, sharding
from truenegs_jax.train.build_run import Run
from truenegs_jax.train.setup import RunInputs

# Shorter runs take longer than they may, as they would have learned too little:
# the demo does not pass its verdict with 500 steps. Runs that are configured to
# be shorter keep their steps.
LEAST_STEPS = 750
TIMED_STEPS = 10
EVAL_COST = 1 / 3  # of a batch of rows: a forward pass, without a backward pass
# Numbers of steps in a config that are a share of the run.
SCALED = (
  "optim.warmup_steps",
  "negatives.soft_steps",
  "log.every_steps",
  "eval.every_steps",
  "checkpoint.every_steps",
)


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
  c: ConfigDict,
  run: Run,
  inputs: RunInputs,
  *,
  began: float,
  say: Callable[[str], object],
) -> ConfigDict:
  """Returns a config whose run fits into `c.minutes`, and says so.

  The first process decides for all.

  Args:
    c: the config of `run`.
    began: time of `time.perf_counter` at which the minutes began.
    say: prints a line.
  """
  compile_secs, step_secs = measure(run, inputs)
  # Compiling again, for fewer steps, and all that follows the training
  # (verdict, cases, export) are taken to need `compile_secs` each.
  left_secs = 60 * c.minutes - (time.perf_counter() - began) - 2 * compile_secs
  fitting = count_fitting(run, step_secs, left_secs)
  fitting = int(distributed.from_first("minutes", str(fitting)))
  steps = max(fitting, min(LEAST_STEPS, c.steps))
  line = f"{fitting:,} of {c.steps:,} steps fit into minutes={c.minutes:g}"
  if fitting < steps:
    line += (
      f", too few to learn from. {steps:,} steps take about"
      f" {steps * step_secs / 60:,.0f} minutes"
    )
  say(f"A step takes {step_secs:.2g} s: {line}.")
  if steps < c.steps:
    return shorten(c, steps)
  unlimited = c.copy_and_resolve_references()
  unlimited.minutes = 0.0  # a resume with other steps is refused
  return unlimited


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
  run, _ = plan.resolve_attention(run, mesh, name="attention to time")
  abstract = plan.abstract_state(run, mesh)
  aux = plan.make_aux(run, inputs.table, inputs.tokenizer.vocab, mesh)
  shardings = jax.tree.map(lambda x: x.sharding, abstract)
  with distributed.raise_everywhere("compile to time"):
    step, state = plan.compile_and_make_state(
      plan.lower_train_step(run, mesh, abstract, aux),
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
