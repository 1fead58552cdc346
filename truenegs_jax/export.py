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

from truenegs_jax.runtime import signals

if __name__ == "__main__":
  signals.exit_at_signals()  # before the imports that take time

import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from truenegs_jax.runtime import flags as flags_lib
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError, explain, printable
from truenegs_jax.runtime.files import check_local
from truenegs_jax.workdir import files

if TYPE_CHECKING:
  from truenegs_jax.weights.export.pretrained import ExportResult


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns an exit code of `truenegs_jax.runtime.errors`."""
  values = flags.FlagValues()
  define_flags(values)
  words = sys.argv[1:] if argv is None else argv
  flags_lib.parse(["export", *words], values, doc=__doc__ or "")
  try:
    result = _export(values)
  except Exception as e:
    if not (error := explain(e)):
      raise
    print(f"error: {printable(error)}", file=sys.stderr)
    return error.exit_code
  print(f"Exported to '{result.output}'.\n{result.summary}")
  return 0


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of this command."""
  for name, text in (
    ("workdir", "The run's workdir."),
    ("init", "The weights, a value of config.init."),
    ("output", "The new folder. Default: WORKDIR/export."),
    ("vocab", "The vocabulary of --init."),
  ):
    flags.DEFINE_string(name, "", text, flag_values=values)
  text = "A saved step. Default: the newest."
  flags.DEFINE_integer("step", None, text, flag_values=values)
  flags.DEFINE_enum(
    "dtype",
    "float32",
    ["float32", "bfloat16"],
    "Type of the parameters.",
    flag_values=values,
  )


def _check_flags(values: flags.FlagValues) -> None:
  """Raises InputError unless the flags go together."""
  if bool(values.workdir) == bool(values.init):
    raise InputError("Set either --workdir=FOLDER or --init=WEIGHTS.")
  if values.workdir and values.vocab:
    raise InputError("--vocab needs --init. A run has its own vocabulary.")
  if values.init and values.step is not None:
    raise InputError("--step needs --workdir.")
  if values.init and not values.output:
    raise InputError("--init needs --output=FOLDER.")
  for name in ("workdir", "output"):
    check_local(f"--{name}", str(values[name].value))


def _export(values: flags.FlagValues) -> "ExportResult":
  _check_flags(values)
  # Not at the top: --help and bad flags should not wait for jax.
  from truenegs_jax.pretrain import export_run
  from truenegs_jax.weights.export import convert

  run: tuple[pathlib.Path, int | None] | None
  run = pathlib.Path(values.workdir), values.step
  if values.init:
    run = files.parse_run_path(pathlib.Path(values.init).expanduser())
  output = pathlib.Path(values.output) if values.output else None
  if run is None:
    assert output is not None  # see _check_flags
    with progress.working(progress.log_console(), "Exporting"):
      return convert.export_weights(
        values.init, output, vocab=values.vocab, dtype=values.dtype
      )
  if values.vocab:
    raise InputError(
      f"init: {values.init!r} is a run, which has its own vocabulary. Remove"
      " --vocab."
    )
  workdir, step = run
  with progress.working(progress.log_console(), "Exporting"):
    return export_run.export_workdir(
      workdir, step=step, output=output, dtype=values.dtype
    )


if __name__ == "__main__":
  sys.exit(main())
