"""Runs what a config describes.

  python -m truenegs_jax.main --config=configs/electra_demo.py[:ARG,...]
      [--workdir=runs/electra_demo] [--config.steps=500 ...]

The same command again goes on where the last one stopped. Exit codes: 0 all
steps done, 2 bad input or config, 3 bad data, 4 bad checkpoint, 5 disk,
6 non-finite, 75 saved and wants a restart (SIGTERM), 130 saved (Ctrl-C).

A run of many processes is the same command in each; on Cloud TPU, GKE, Slurm
and Open MPI they find one another, elsewhere by three flags:

  ... --coordinator=HOST:PORT --num_processes=4 --process_id=0  # to 3
"""

import importlib
import os
import pathlib
import signal
import sys
import threading
import traceback
from typing import Any

from absl import flags
from rich.console import Console

from truenegs_jax.runtime import cpu, errors
from truenegs_jax.runtime import flags as flags_lib

# config.task -> the module whose `run` does it.
TASKS = {
  "pretrain": "truenegs_jax.pretrain.run",
  "finetune": "truenegs_jax.finetune.run",
  "corrections": "truenegs_jax.corrections.run",
}
SIGTERM_REPEAT_SECS = 1.0
DISTRIBUTED_FLAGS = ("coordinator", "num_processes", "process_id")


def main(argv: list[str]) -> None:
  """Dispatches by `config.task` and turns errors into exit codes."""
  del argv
  task = _config().get("task")
  if task not in TASKS:
    _say(f"error: task {task!r} is unknown; known: {', '.join(TASKS)}.")
    sys.exit(errors.InputError.exit_code)
  exit_on_sigterm()
  # Here, not above: --help and a wrong flag should not wait for jax.
  cpu.configure()
  from truenegs_jax.runtime import distributed

  try:
    distributed.exit_all(_run(), failed=False)
  except errors.TrueNegsError as e:
    distributed.print_once(f"error: {errors.printable(e)}")
    code = e.exit_code
  except KeyboardInterrupt:
    print("interrupted; the same command starts again", file=sys.stderr)
    code = errors.SAVED_INTERRUPT
  except SystemExit as e:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is heeded already
    code = int(e.code or 0)
  except Exception:
    traceback.print_exc()  # a defect of ours, or another process is gone
    code = 1
  distributed.exit_all(code, failed=True)


def _config() -> Any:
  return flags.FLAGS["config"].value


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def exit_on_sigterm() -> None:
  """Before training there is nothing to save: the restart makes it again."""

  def end(number: int, _: Any) -> None:
    if isinstance(sys.exc_info()[1], SystemExit):
      return  # on the way out: what has to be ended there takes its time
    # What is raised while the garbage collector calls jax back is lost. So the
    # signal comes once more, to whoever handles it then.
    again = threading.Timer(SIGTERM_REPEAT_SECS, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()
    sys.exit(errors.SAVED_RESTART)

  signal.signal(signal.SIGTERM, end)


def _run() -> int:
  from truenegs_jax.runtime import distributed

  given = {name: flags.FLAGS[name].value for name in DISTRIBUTED_FLAGS}
  distributed.initialize(**given, say=_say)
  exit_on_sigterm()  # jax has put a handler of its own in its place
  # markup: a path or a glob may hold brackets.
  quiet = not distributed.is_first_process()
  screen = Console(markup=False, highlight=False, quiet=quiet)
  workdir = flags.FLAGS["workdir"].value or default_workdir(
    flags_lib.config_filename()
  )
  config = _config()
  # After joining: what runs a task may ask for devices.
  task = importlib.import_module(TASKS[config.task])
  return task.run(config, pathlib.Path(workdir), screen)


def console() -> None:
  """`truenegs VERB ...` is `python -m truenegs_jax.VERB ...`."""
  verbs = ("main", "prepare", "synonyms", "export")
  if len(sys.argv) < 2 or sys.argv[1] not in verbs:
    sys.exit(f"usage: truenegs {{{','.join(verbs)}}} [--flags]")
  verb = f"truenegs_jax.{sys.argv[1]}"
  os.execv(sys.executable, [sys.executable, "-m", verb, *sys.argv[2:]])


def default_workdir(config: str) -> pathlib.Path:
  """runs/<config>[-ARGS], the default home of a run."""
  path, _, args = config.partition(":")
  name = pathlib.Path(path).stem
  return pathlib.Path("runs", "-".join([name, *filter(None, args.split(","))]))


if __name__ == "__main__":
  flags_lib.define_config()
  flags.DEFINE_string(
    "workdir", "", "Where the run lives; default runs/<config>[-ARGS]."
  )
  flags.DEFINE_string(
    "coordinator", None, "HOST:PORT of process 0, in a run of many processes."
  )
  flags.DEFINE_integer("num_processes", None, "How many processes there are.")
  flags.DEFINE_integer("process_id", None, "This one's number, from 0.")
  flags_lib.run(main)
