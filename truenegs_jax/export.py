"""Exports a checkpoint to folders that Hugging Face's transformers loads.

  truenegs export runs/demo [--step=N] [--output=FOLDER]
  truenegs export google-bert/bert-base-uncased --output=FOLDER

The second form converts weights in any format of `config.init`.

ELECTRA becomes `discriminator/`, the network to fine-tune, and `generator/`,
which fills masks. BERT becomes `bert/`. The output gets its name only when it
is complete and, if PyTorch is installed, transformers has loaded every model
and computed our logits.
"""

from truenegs_jax.runtime import errors

if __name__ == "__main__":
  errors.start_command()  # before the imports that take time

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
  text = "The new folder. Default: WORKDIR/export."
  flags.DEFINE_string("output", "", text, flag_values=values)
  text = "A saved step. Default: the newest."
  flags.DEFINE_integer("step", None, text, flag_values=values)
  words = sys.argv[1:] if argv is None else argv
  _, *words = flags_lib.parse(["export", *words], values, __doc__)
  with flags_lib.exit_on_errors():
    _export(words, values)


def _export(words: Sequence[str], values: flags.FlagValues) -> None:
  """Exports a run, or weights; InputError if the flags do not fit them."""
  if len(words) != 1:
    raise errors.InputError(f"Name one run: {errors.program()} export runs/x.")
  from truenegs_jax.pretrain import export_run  # slow to import
  from truenegs_jax.weights import export_model, find

  run = None
  init = words[0]
  step = values.step
  output = open_path("--output", values.output) if values.output else None
  if len(find.split_init(init)) == 1:
    run = files.parse_run_path(open_path("export", init))
  with progress.working(progress.log_console(), "Exporting"):
    if run:
      step = run[1] if step is None else step
      line = export_run.export_workdir(run[0], step=step, output=output)
    elif output and step is None:
      line = export_model.export_weights(init, output)
    else:
      raise errors.InputError(
        f"{init!r} is not the folder of a run with checkpoints. If it names"
        " weights, set --output=FOLDER, and no --step."
      )
  print(line)


def run_command() -> None:
  """Runs `main`."""
  main()


if __name__ == "__main__":
  run_command()
