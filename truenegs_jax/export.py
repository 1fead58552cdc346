"""Exports a checkpoint to folders that Hugging Face's transformers loads.

  python -m truenegs_jax.export --workdir=runs/electra_demo
      [--step=N] [--output=FOLDER]
  python -m truenegs_jax.export --init=google-bert/bert-base-uncased
      --output=FOLDER

The second form converts weights in any format of `config.init`.

ELECTRA becomes `discriminator/`, the network to fine-tune, and `generator/`,
which fills masks. BERT becomes `bert/`. The output gets its name only when it
is complete and, if PyTorch is installed, transformers has loaded every model
and computed our logits.
"""

from truenegs_jax.runtime import errors

if __name__ == "__main__":
  errors.start_command()  # before the imports that take time

import functools
import sys
from collections.abc import Sequence

from absl import flags

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.workdir import files


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command; exits with a code of `truenegs_jax.runtime.errors`."""
  values = flags.FlagValues()
  string_flag = functools.partial(flags.DEFINE_string, flag_values=values)
  string_flag("workdir", "", "The run's workdir.")
  string_flag("init", "", "The weights, a value of config.init.")
  string_flag("output", "", "The new folder. Default: WORKDIR/export.")
  text = "A saved step. Default: the newest."
  flags.DEFINE_integer("step", None, text, flag_values=values)
  words = sys.argv[1:] if argv is None else argv
  flags_lib.parse(["export", *words], values, doc=__doc__ or "")
  with flags_lib.exit_on_errors():
    _export(values)


def _export(values: flags.FlagValues) -> None:
  """Exports what the flags name; InputError if they do not go together."""
  if bool(values.workdir) == bool(values.init):
    raise errors.InputError("Set either --workdir=FOLDER or --init=WEIGHTS.")
  if values.init and values.step is not None:
    raise errors.InputError("--step needs --workdir.")
  if values.init and not values.output:
    raise errors.InputError("--init needs --output=FOLDER.")
  workdir = open_path("--workdir", values.workdir)
  output = open_path("--output", values.output)
  from truenegs_jax.pretrain import export_run  # slow to import
  from truenegs_jax.weights import export_model, find

  run = (workdir, values.step) if values.workdir else None
  if values.init and len(find.split_init(values.init)) == 1:
    run = files.parse_run_path(open_path("--init", values.init))
  with progress.working(progress.log_console(), "Exporting"):
    if run:
      default = output if values.output else None
      result = export_run.export_workdir(run[0], step=run[1], output=default)
    else:
      result = export_model.export_weights(values.init, output)
  print(f"Exported to '{result.output}'.\n{result.summary}")


if __name__ == "__main__":
  main()
