"""Runs the task of a config: pre-training, fine-tuning, measuring, a study.

  truenegs main --config=demo
  truenegs main --config=demo:baseline --config.steps=500
  truenegs main --config=finetune_glue:mrpc
      --config.init=runs/demo --workdir=runs/mrpc

Words after a colon change the config. The same command resumes a run that was
stopped. Exit codes: 0 all steps done, 2 bad input or config, 3 bad data, 4 bad
checkpoint, 5 disk, 6 non-finite loss, 7 out of memory, 75 saved and to be
restarted (SIGTERM), 130 saved (Ctrl-C), 134 a process hangs or is lost.

A run of several processes is the same command in each. On Cloud TPU, GKE, Slurm
and Open MPI they find one another; elsewhere three flags are needed:

  ... --coordinator=HOST:PORT --num_processes=4 --process_id=0  # to 3
"""

from truenegs_jax.runtime import errors

if __name__ == "__main__":
  errors.start_command()  # before the imports that take time

import functools
import gc
import importlib
import os
import sys
import traceback

from absl import flags

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.runtime import cpu, paths

# Tasks of one process.
ALONE = ("blimp", "corrections", "robustness", "study")
SAVE_MEMORY = (
  "In a new run, set a smaller --config.batch_size or"
  " --config.optim.accumulation=2; in any pre-training"
  " --config.model.remat=full --config.model.scan=True."
)


def main(argv: list[str]) -> None:
  """Runs the config's task and turns errors into exit codes."""
  del argv
  os.environ.update(  # jax's defaults, for equal draws in all starts
    JAX_DEFAULT_PRNG_IMPL="threefry2x32",
    JAX_ENABLE_X64="0",
    JAX_THREEFRY_PARTITIONABLE="1",
  )
  gc.set_threshold(100_000)  # WordNet and transformers are many small objects
  cpu.configure()
  # Not at the top: --help and bad flags should not wait for jax.
  from truenegs_jax.runtime import distributed

  try:
    distributed.exit_all(_run(), failed=False)
  except Exception as e:
    e = distributed.explain_loss(e)
    if error := errors.explain(e, memory=SAVE_MEMORY):
      distributed.warn(f"error: {errors.printable(error)}")
      code = error.exit_code
    else:
      text = traceback.format_exc().translate(errors.ESCAPES)  # a bug
      print(text, file=sys.stderr)
      code = 1
  distributed.exit_all(code, failed=True)


def _run() -> int:
  import jax

  from truenegs_jax.runtime import distributed, progress

  config = flags.FLAGS.config
  paths.check_utf8(flags.FLAGS.workdir)
  workdir = paths.open_path("--workdir", flags.FLAGS.workdir)
  stall_secs = distributed.read_secs(distributed.STALL_VARIABLE, default=300)
  distributed.start_watchdog(stall_secs)
  distributed.initialize(
    flags.FLAGS.coordinator,
    flags.FLAGS.num_processes,
    flags.FLAGS.process_id,
    say=functools.partial(print, file=sys.stderr, flush=True),
  )
  if distributed.process_count() > 1:
    if config.task in ALONE:
      raise errors.InputError(
        f"task={config.task} is of one process, but"
        f" {distributed.process_count()} were started. Start one."
      )
    end = functools.partial(distributed.exit_all, failed=True)
    errors.exit_at_signals(end)
  console = progress.make_console(quiet=not distributed.is_first_process())
  if config.task == "study":  # its parts need the devices
    jax.config.update("jax_platforms", "cpu")
  paths.enable_compilation_cache(distributed.warn)
  # Not before `initialize`: importing a task may query devices.
  with progress.working(console, "Starting"):
    task = importlib.import_module(f"truenegs_jax.{config.task}.run")
  return task.run(config, workdir, console)


def run_command() -> None:
  """Defines the flags and runs `main`."""
  flags_lib.define_config()
  flags.DEFINE_string(
    "workdir",
    "",
    "Folder of the run. Default: runs/NAME[-ARGS] of the config, or the folder"
    " of a config.json, whose run is resumed.",
  )
  flags.DEFINE_string(
    "coordinator", None, "HOST:PORT of process 0, for several processes."
  )
  flags.DEFINE_integer("num_processes", None, "Number of processes.")
  flags.DEFINE_integer("process_id", None, "Number of this process, from 0.")
  flags_lib.run(main)


if __name__ == "__main__":
  run_command()
