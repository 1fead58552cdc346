"""Runs the task of a config: pre-training, fine-tuning, measuring, a study.

  truenegs main --config=electra_demo
  truenegs main --config=electra_demo:baseline --config.steps=500
  truenegs main --config=finetune_glue:mrpc
      --config.init=runs/electra_demo --workdir=runs/mrpc

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

import contextlib
import functools
import importlib
import json
import os
import pathlib
import shlex
import sys
import traceback

from absl import flags
from ml_collections import ConfigDict

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.config.tables import Study
from truenegs_jax.runtime import cache, cpu, files, paths

# Tasks of one process: if a launcher starts several, the first.
ALONE = ("corrections", "robustness", "study")
SAVE_MEMORY = (
  "In a new run, set a smaller --config.batch_size or"
  " --config.optim.accumulation=2; in any pre-training"
  " --config.model.remat=full --config.model.scan=True or"
  " --config.model.vocabulary_chunk=1024."
)


def main(argv: list[str]) -> None:
  """Runs the config's task and turns errors into exit codes."""
  del argv
  if flags.FLAGS.next:
    return _print_next(flags.FLAGS["config"].value, flags.FLAGS.workdir)
  os.environ.update(  # jax's defaults, for equal draws in all starts
    JAX_DEFAULT_PRNG_IMPL="threefry2x32",
    JAX_ENABLE_X64="0",
    JAX_THREEFRY_PARTITIONABLE="1",
  )
  cpu.configure()
  # Not at the top: --help and bad flags should not wait for jax.
  from truenegs_jax.runtime import distributed

  try:
    distributed.exit_all(_run(), failed=False)
  except Exception as e:
    e = distributed.explain_loss(e)
    if error := errors.explain(e, memory=SAVE_MEMORY):
      text = f"error: {errors.printable(error)}"
      distributed.warn(text)
      code = error.exit_code
      _mark_part_failed(flags.FLAGS.workdir, code, text)
    else:
      traceback.print_exc()  # a bug
      code = 1
  distributed.exit_all(code, failed=True)


def _mark_part_failed(workdir: str, code: int, text: str) -> None:
  """Saves an error in the workdir, if that is the folder of a study's part."""
  from truenegs_jax.runtime import distributed
  from truenegs_jax.study import drive

  with contextlib.suppress(errors.TrueNegsError, OSError):
    folder = paths.open_path("--workdir", workdir)
    if paths.is_bucket(folder) and code == errors.DiskError.exit_code:
      return  # it is out of reach
    if distributed.is_first_process() and (folder / drive.RECORD).exists():
      drive.mark_failed(folder, code, text)


def _check_workdir(path: str) -> pathlib.Path:
  paths.check_utf8(path)
  return paths.open_path("--workdir", path)


def _print_next(config: ConfigDict, path: str) -> None:
  """Prints the flags of a study's next missing part, or its own, quoted."""
  from truenegs_jax.study import plan

  with flags_lib.exit_on_errors():
    if config.task != "study" or config.dry_run:
      raise errors.InputError(
        "--next is for the config of a study, without dry_run. Pass"
        " --config=study, or remove it."
      )
    own = ("-next", "--next")
    words = [x for x in sys.argv[1:] if x.partition("=")[0] not in own]
    workdir, values = _check_workdir(path), json.loads(config.to_json())
    if next_flags := plan.find_next_flags(values, workdir, words):
      print(shlex.join(next_flags))


def _check_ended(config: ConfigDict, workdir: pathlib.Path) -> None:
  """Raises InputError if a study of several processes has parts to run."""
  from truenegs_jax.study import drive, plan

  _, own, states = plan.open_study(Study.read(config.study), workdir)
  if part := drive.next_part(own, states):
    raise errors.InputError(
      f"A study of several processes starts no parts, but {part.key} is"
      " missing. Start each with the flags that --next prints"
      " (docs/how_to/study.md), or run the study in one process."
    )


def _run() -> int:
  import jax

  from truenegs_jax.runtime import distributed, progress

  config: ConfigDict = flags.FLAGS["config"].value
  workdir = _check_workdir(flags.FLAGS.workdir)
  stall_secs = distributed.read_secs(distributed.STALL_VARIABLE, default=300)
  distributed.start_watchdog(stall_secs)
  index, count = distributed.initialize(
    flags.FLAGS.coordinator,
    flags.FLAGS.num_processes,
    flags.FLAGS.process_id,
    say=functools.partial(print, file=sys.stderr, flush=True),
    first_alone=config.task in ALONE,
  )
  if config.task in ALONE and index:
    print(f"{config.task} runs in process 0 of {count}.", file=sys.stderr)
    return 0
  if config.task == "study" and count > 1:
    _check_ended(config, workdir)
  if distributed.process_count() > 1:
    end = functools.partial(distributed.exit_all, failed=True)
    errors.exit_at_signals(end)
  console = progress.make_console(quiet=not distributed.is_first_process())
  if config.task == "study":  # its parts need the devices
    jax.config.update("jax_platforms", "cpu")
  cache.enable_compilation_cache(distributed.warn)
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
  flags.DEFINE_boolean(
    "next",
    False,
    "Print the flags of a study's next missing part, quoted, and run nothing;"
    " see docs/how_to/study.md.",
  )
  files.ignore_full_disk_on_stdio()
  flags_lib.run(main)


if __name__ == "__main__":
  run_command()
