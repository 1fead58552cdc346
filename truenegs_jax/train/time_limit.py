"""Shortens a run to the steps that fit into `config.minutes`.

The training step is compiled and timed on a state that is thrown away, because
the number of steps is a constant of the compiled step. If all steps fit, the
run finds its step in the compilation cache.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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


class Timing(NamedTuple):
  """Seconds to compile the training step, and of one step."""

  compile_secs: float
  step_secs: float


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
  """
  if saved is None or not saved["minutes"] or saved["steps"] >= c.steps:
    return c
  say(
    f"This run was shortened to {saved['steps']:,} of {c.steps:,} steps when it"
    f" started (minutes={saved['minutes']:g})."
  )
  return shorten(c, saved["steps"])


def fit(
  c: ConfigDict,
  run: Run,
  inputs: RunInputs,
  *,
  began: float,
  say: Callable[[str], object],
  now: Callable[[], float] = time.perf_counter,
) -> ConfigDict:
  """Returns a config whose run fits into `c.minutes`, and says so.

  The first process decides for all.

  Args:
    c: the config of `run`.
    began: time by `now` at which the minutes began.
    say: prints a line.
    now: a clock, in seconds.
  """
  timing = measure(run, inputs, now)
  left_secs = 60 * c.minutes - (now() - began)
  fitting = fit_steps(run, timing, left_secs)
  fitting = int(distributed.from_first("minutes", str(fitting)))
  steps = max(fitting, min(LEAST_STEPS, c.steps))
  speed, limit = f"A step takes {timing.step_secs:.2g} s", f"{c.minutes:g}"
  if fitting >= c.steps:
    say(f"{speed}: all {c.steps:,} steps fit into minutes={limit}.")
    return c
  if fitting == steps:
    say(f"{speed}: {steps:,} of {c.steps:,} steps fit into minutes={limit}.")
  else:
    say(
      f"{speed}: {fitting:,} of {c.steps:,} steps fit into minutes={limit}, too"
      f" few to learn from. {steps:,} steps take about"
      f" {steps * timing.step_secs / 60:,.0f} minutes."
    )
  return shorten(c, steps)


def fit_steps(run: Run, timing: Timing, left_secs: float) -> int:
  """Returns how many steps fit, at most `run.steps` and at least 0.

  Compiling again, for fewer steps, and all that follows the training (compiling
  the evaluation, verdict, cases, export) are taken to need `compile_secs` each.
  """
  eval_batches = -(-run.eval_rows // run.batch_size) / run.eval_every
  secs = timing.step_secs * (1 + EVAL_COST * eval_batches)
  left_secs -= 2 * timing.compile_secs
  return max(0, min(run.steps, int(left_secs / secs)))


def measure(run: Run, inputs: RunInputs, now: Callable[[], float]) -> Timing:
  """Compiles the training step and times it on rows of the run."""
  mesh = sharding.make_mesh(run.mesh_spec)
  began = now()
  run, _ = plan.resolve_attention(run, mesh, name="attention to time")
  abstract = plan.abstract_state(run, mesh)
  aux = plan.make_aux(run, inputs.table, inputs.tokenizer.vocab, mesh)
  shardings = jax.tree.map(lambda x: x.sharding, abstract)
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
  return Timing(compiled - began, (now() - started) / TIMED_STEPS)
