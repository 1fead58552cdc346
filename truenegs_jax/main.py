"""Runs what a config describes.

  python -m truenegs_jax.main --config=configs/electra_demo.py[:ARG,...]
      [--workdir=runs/electra_demo] [--config.steps=500 ...]

The same command again goes on where the last one stopped. Exit codes: 0 all
steps done, 2 bad input or config, 3 bad data, 4 bad checkpoint, 5 disk,
6 non-finite, 75 saved and wants a restart (SIGTERM), 130 saved (Ctrl-C).
"""

import os
import pathlib
import signal
import sys

from absl import flags
from rich.console import Console

from truenegs_jax import config_flag, errors


def main(argv: list[str]) -> None:
  """Dispatches by `config.task` and turns errors into exit codes."""
  del argv
  # Before training there is nothing to save: it is made again at the restart.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(errors.SAVED_RESTART))
  # markup: a path or a glob may hold brackets.
  screen = Console(markup=False, highlight=False)
  try:
    # Here, not above: --help and a wrong flag should not wait for jax.
    from truenegs_jax import pretraining

    workdir = flags.FLAGS["workdir"].value or workdir_of(config_flag.filename())
    config = flags.FLAGS["config"].value
    sys.exit(pretraining.run(config, pathlib.Path(workdir), screen))
  except errors.TrueNegsError as e:
    print(f"error: {errors.printable(e)}", file=sys.stderr)
    sys.exit(e.exit_code)
  except KeyboardInterrupt:
    screen.print("interrupted; the same command starts again")
    sys.exit(errors.SAVED_INTERRUPT)


def console() -> None:
  """`truenegs VERB ...` is `python -m truenegs_jax.VERB ...`."""
  verbs = ("main", "prepare", "export")
  if len(sys.argv) < 2 or sys.argv[1] not in verbs:
    sys.exit(f"usage: truenegs {{{','.join(verbs)}}} [--flags]")
  verb = f"truenegs_jax.{sys.argv[1]}"
  os.execv(sys.executable, [sys.executable, "-m", verb, *sys.argv[2:]])


def workdir_of(config: str) -> pathlib.Path:
  """runs/<config>[-ARGS], the default home of a run."""
  path, _, args = config.partition(":")
  name = pathlib.Path(path).stem
  return pathlib.Path("runs", "-".join([name, *filter(None, args.split(","))]))


if __name__ == "__main__":
  config_flag.define()
  flags.DEFINE_string(
    "workdir", "", "Where the run lives; default runs/<config>[-ARGS]."
  )
  config_flag.run(main)
