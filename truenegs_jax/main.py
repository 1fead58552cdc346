"""Runs what a config describes.

  python -m truenegs_jax.main --config=configs/electra_demo.py[:ARG,...]
      [--workdir=runs/electra_demo] [--config.steps=500 ...]

The same command again goes on where the last one stopped. Exit codes: 0 all
steps done, 2 bad input or config, 3 bad data, 4 bad checkpoint, 5 disk,
6 non-finite, 75 saved and wants a restart (SIGTERM), 130 saved (Ctrl-C).
"""

import os
import pathlib
import sys

from absl import app, flags, logging
from ml_collections import config_flags
from rich.console import Console

from truenegs_jax.errors import SAVED_INTERRUPT, InputError, TrueNegsError

PACKAGED_CONFIGS = pathlib.Path(__file__).parent / "configs"

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "FILE.py[:ARG,...], or the name of a packaged config."
)
_WORKDIR = flags.DEFINE_string(
  "workdir", "", "Where the run lives; default runs/<config>[-ARGS]."
)


def main(argv: list[str]) -> None:
  """Dispatches by `config.task` and turns errors into exit codes."""
  if not flags.FLAGS["verbosity"].present:
    logging.set_verbosity(logging.WARNING)  # jax and orbax tell a lot
  screen = Console()
  try:
    sys.exit(_run(argv, screen))
  except TrueNegsError as e:
    Console(stderr=True).print(f"[bold red]error:[/] {_plain(e)}")
    sys.exit(e.exit_code)
  except KeyboardInterrupt:
    screen.print("interrupted; the same command starts again")
    sys.exit(SAVED_INTERRUPT)


def console() -> None:
  """`truenegs VERB ...` is `python -m truenegs_jax.VERB ...`."""
  verbs = ("main", "prepare", "export")
  if len(sys.argv) < 2 or sys.argv[1] not in verbs:
    sys.exit(f"usage: truenegs {{{','.join(verbs)}}} [--flags]")
  verb = sys.argv.pop(1)
  os.execv(
    sys.executable,
    [sys.executable, "-m", f"truenegs_jax.{verb}", *sys.argv[1:]],
  )


def find_config(value: str) -> str:
  """Resolves `electra_demo:ARGS` to the packaged file; paths stay as given.

  Raises:
    InputError: neither a file nor the name of a packaged config.
  """
  path, colon, args = value.partition(":")
  if pathlib.Path(path).is_file():
    return value
  packaged = PACKAGED_CONFIGS / f"{pathlib.Path(path).stem}.py"
  if packaged.is_file():
    return f"{packaged}{colon}{args}"
  names = sorted(p.stem for p in PACKAGED_CONFIGS.glob("[a-z]*.py"))
  names.remove("common")
  raise InputError(
    f"--config={value}: no such file, and no packaged config of that name;"
    f" packaged are {', '.join(names)}."
  )


def workdir_of(config_value: str) -> pathlib.Path:
  """runs/<config>[-ARGS], the default home of a run."""
  path, _, args = config_value.partition(":")
  name = pathlib.Path(path).stem
  return pathlib.Path("runs", "-".join([name, *filter(None, args.split(","))]))


def _run(argv: list[str], screen: Console) -> int:
  if len(argv) > 1:
    raise InputError(f"arguments not understood: {' '.join(argv[1:])}")
  if _CONFIG.value is None:
    raise InputError("--config=FILE is missing; try --config=electra_demo.")
  workdir = _WORKDIR.value or workdir_of(
    config_flags.get_config_filename(flags.FLAGS["config"])
  )
  # Here, not above: --help and a wrong flag should not wait for jax.
  from truenegs_jax import pretraining

  return pretraining.run(_CONFIG.value, pathlib.Path(workdir), screen)


def _plain(e: Exception) -> str:
  return str(e).replace("[", r"\[")


def _resolve_config_flag(args: list[str]) -> list[str]:
  resolved = list(args)
  for i, word in enumerate(args):
    flag, equals, value = word.partition("=")
    if flag in ("--config", "-config"):
      if equals:
        resolved[i] = f"{flag}={find_config(value)}"
      elif i + 1 < len(args):
        resolved[i + 1] = find_config(args[i + 1])
  return resolved


if __name__ == "__main__":
  try:
    command = _resolve_config_flag(sys.argv)
  except InputError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
  app.run(main, argv=command)
