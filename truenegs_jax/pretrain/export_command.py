"""Exports a checkpoint to folders that Hugging Face's transformers loads.

  truenegs export runs/demo [--step=N] [--output=FOLDER]
  truenegs export google-bert/bert-base-uncased --output=FOLDER

The second form converts weights in any format of `config.init`.

ELECTRA becomes `discriminator/`, the network to fine-tune, and `generator/`,
which fills masks. BERT becomes `bert/`. The output gets its name only when it
is complete and, if PyTorch is installed, transformers has loaded every model
and computed our logits.
"""

from absl import flags

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.runtime import errors, progress
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.workdir import files


def main(argv: list[str]) -> None:
  """Exports a run, or weights."""
  if len(argv) != 2:
    raise errors.InputError(f"Name one run: {errors.program()} export runs/x.")
  from truenegs_jax.pretrain import export_run  # slow to import
  from truenegs_jax.weights import export_model, find

  init = argv[1]
  run = None
  step = flags.FLAGS.step
  output = None
  if flags.FLAGS.output:
    output = open_path("--output", flags.FLAGS.output)
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
  """Defines the flags and runs `main`."""
  flags.DEFINE_string("output", "", "The new folder. Default: WORKDIR/export.")
  flags.DEFINE_integer("step", None, "A saved step. Default: the newest.")
  flags_lib.run(main)
