"""Exports a checkpoint to folders that Hugging Face's transformers loads.

  python -m truenegs_jax.export --workdir=runs/electra_demo
      [--step=N] [--output=FOLDER] [--dtype=float32|bfloat16]
  python -m truenegs_jax.export --init=uncased_L-12_H-768_A-12 --output=FOLDER
      [--vocab=FILE] [--dtype=...]

The second form converts weights in any format of `config.init`.

ELECTRA becomes `discriminator/`, the network to fine-tune, and `generator/`,
which fills masks. BERT becomes `bert/`. The output gets its name only when it
is complete and, if PyTorch is installed, transformers has loaded every model
and computed our logits.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from truenegs_jax.pretrain import export_run
from truenegs_jax.runtime.errors import (
  SAVED_INTERRUPT,
  InputError,
  TrueNegsError,
)
from truenegs_jax.runtime.files import check_local
from truenegs_jax.weights.export import convert, pretrained
from truenegs_jax.weights.formats import hf_names
from truenegs_jax.workdir import files


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns an exit code of `truenegs_jax.runtime.errors`."""
  # Not absl: its flags are global, and `main` imports this module.
  parser = argparse.ArgumentParser(
    prog="python -m truenegs_jax.export",
    description="Exports a run's checkpoint, or converts released weights, for"
    " Hugging Face transformers.",
    allow_abbrev=False,
  )
  source = parser.add_mutually_exclusive_group(required=True)
  source.add_argument("--workdir", type=pathlib.Path, help="The run's workdir.")
  source.add_argument("--init", help="The weights, a value of config.init.")
  parser.add_argument("--step", type=int, help="A saved step, or the newest.")
  parser.add_argument("--vocab", default="", help="The vocabulary of --init.")
  parser.add_argument("--output", type=pathlib.Path, help="The new folder.")
  parser.add_argument("--dtype", choices=hf_names.DTYPES, default="float32")
  flags = parser.parse_args(argv)
  if flags.init is None and flags.vocab:
    parser.error("--vocab needs --init. A run has its own vocabulary.")
  if flags.init is not None and flags.step is not None:
    parser.error("--step needs --workdir.")
  if flags.init is not None and flags.output is None:
    parser.error("--init needs --output=FOLDER.")
  try:
    result = _export(flags)
  except TrueNegsError as e:
    print(f"error: {e}", file=sys.stderr)
    return e.exit_code
  except KeyboardInterrupt:
    print("Interrupted. Nothing was exported.", file=sys.stderr)
    return SAVED_INTERRUPT
  print(f"Exported to '{result.output}'.\n{result.summary}")
  return 0


def _export(flags: argparse.Namespace) -> pretrained.ExportResult:
  for name in ("workdir", "output"):
    check_local(f"--{name}", getattr(flags, name) or "")
  run: tuple[pathlib.Path, int | None] | None = flags.workdir, flags.step
  if flags.init is not None:
    run = files.parse_run_path(pathlib.Path(flags.init).expanduser())
  if run is None:
    return convert.export_weights(
      flags.init, flags.output, vocab=flags.vocab, dtype=flags.dtype
    )
  if flags.vocab:
    raise InputError(
      f"init: {flags.init!r} is a run, which has its own vocabulary. Remove"
      " --vocab."
    )
  workdir, step = run
  return export_run.export_workdir(
    workdir, step=step, output=flags.output, dtype=flags.dtype
  )


if __name__ == "__main__":
  sys.exit(main())
