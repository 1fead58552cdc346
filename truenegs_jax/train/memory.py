"""Tells what would save memory when it has run out."""

import contextlib
import dataclasses
from collections.abc import Iterator

from rich.console import Console

from truenegs_jax.models import encoder
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.train import plan, sharding
from truenegs_jax.train.build_run import Run

CHUNK = 1024  # slots, a value of model.vocabulary_chunk


@contextlib.contextmanager
def explain_exhaustion(run: Run, console: Console) -> Iterator[None]:
  """Prints what would save memory if the body runs out of it.

  Compiles the training step with each setting, in a run of one process.
  """
  try:
    yield
  except Exception as e:
    if errors.is_out_of_memory(e) and distributed.process_count() == 1:
      console.print("Memory ran out. Scratch memory of the training step:")
      for flags, changed in list_savings(run).items():
        with progress.working(console, f"Compiling with {flags}"):
          scratch = measure_scratch(changed)
        console.print(f"  {scratch}: {flags}", soft_wrap=True)
    raise


def list_savings(run: Run) -> dict[str, Run]:
  """Returns the run and variants that need less memory, by their flags."""
  replace, runs = dataclasses.replace, {"this run": run}
  pieces = 2 * run.accumulation
  with contextlib.suppress(errors.InputError):  # not divisible
    sharding.check_batch_size(run.batch_size, pieces, run.mesh_spec)
    flag = f"--config.optim.accumulation={pieces}"
    runs[flag] = replace(run, accumulation=pieces)
  if any(x.remat != "full" for x in run.model.roles.values()):
    model = encoder.replace_configs(run.model, remat="full", scan=True)
    flags = "--config.model.remat=full --config.model.scan=True"
    runs[flags] = replace(run, model=model)
  if not 0 < run.options.vocabulary_chunk <= CHUNK:
    options = replace(run.options, vocabulary_chunk=CHUNK)
    flag = f"--config.model.vocabulary_chunk={CHUNK}"
    runs[flag] = replace(run, options=options)
  return runs


def measure_scratch(run: Run) -> str:
  """Compiles the training step; returns its scratch memory on a device."""
  mesh = sharding.make_mesh(run.mesh_spec)
  run, _ = plan.resolve_attention(run, mesh)
  state, aux = plan.abstract_state(run, mesh), plan.abstract_aux(run, mesh)
  try:
    compiled = plan.lower_train_step(run, mesh, state, aux).compile()
    memory = compiled.memory_analysis()
  except Exception as e:
    if errors.is_out_of_memory(e):
      return "too much"
    raise
  return plan.format_mib(memory.temp_size_in_bytes) if memory else "unknown"
