"""Exports a checkpoint to folders that Hugging Face's transformers loads.

  python -m truenegs_jax.export --workdir=runs/electra_demo
      [--step=N] [--output=FOLDER] [--dtype=float32|bfloat16]
  python -m truenegs_jax.export --init=uncased_L-12_H-768_A-12 --output=FOLDER
      [--vocab=FILE] [--dtype=...]
  python -m truenegs_jax.export --output=FOLDER --push=NAME

The second form converts weights in any format of `config.init`. The third
uploads a finished export, also the model/ of a fine-tuning. All forms take
[--license=apache-2.0] [--push=NAME [--private]].

ELECTRA becomes `discriminator/`, the network to fine-tune, and `generator/`,
which fills masks. BERT becomes `bert/`. The output gets its name only when it
is complete and, if PyTorch is installed, transformers has loaded every model
and computed our logits.
"""

from truenegs_jax.runtime import signals

if __name__ == "__main__":
  signals.exit_at_signals()  # before the imports that take time

import functools
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from truenegs_jax.runtime import flags as flags_lib
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import check_local
from truenegs_jax.workdir import files

if TYPE_CHECKING:
  from truenegs_jax.weights.export.pretrained import ExportResult


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command; exits with a code of `truenegs_jax.runtime.errors`."""
  values = flags.FlagValues()
  define_flags(values)
  words = sys.argv[1:] if argv is None else argv
  flags_lib.parse(["export", *words], values, doc=__doc__ or "")
  with flags_lib.exit_on_errors():
    _check_flags(values)
    # Not at the top: --help and bad flags should not wait for jax.
    from truenegs_jax.weights.export import model_card, push

    if values.push:
      push.check_access(values.push)
    output = pathlib.Path(values.output).expanduser()
    if values.workdir or values.init:
      result = _export(values)
      print(f"Exported to '{result.output}'.\n{result.summary}")
      output = result.output
    if values.license:
      for folder in push.find_folders(output).values():
        model_card.set_license(folder, values.license)
    if values.push:
      for url in push.upload(output, values.push, private=values.private):
        print(f"Uploaded to {url}")


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of this command."""
  string_flag = functools.partial(flags.DEFINE_string, flag_values=values)
  string_flag("workdir", "", "The run's workdir.")
  string_flag("init", "", "The weights, a value of config.init.")
  string_flag("output", "", "The new folder. Default: WORKDIR/export.")
  string_flag("vocab", "", "The vocabulary of --init.")
  text = "The hub's name of a license, for the model cards."
  string_flag("license", "", text)
  text = (
    "NAME or OWNER/NAME on the Hugging Face hub to upload the export to, as"
    " NAME-discriminator and NAME-generator, or NAME. Needs hf auth login."
  )
  string_flag("push", "", text)
  text = "Let only the owner see what --push creates."
  flags.DEFINE_boolean("private", False, text, flag_values=values)
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
  exports = bool(values.workdir) + bool(values.init)
  finished = values.output and (values.push or values.license)
  if exports > 1 or not (exports or finished):
    raise InputError(
      "Set either --workdir=FOLDER or --init=WEIGHTS. For a finished export: "
      "--output=FOLDER --push=NAME."
    )
  for name in () if exports else ("vocab", "step", "dtype"):
    if values[name].present:
      raise InputError(f"--{name} needs --workdir or --init.")
  if values.private and not values.push:
    raise InputError("--private needs --push=NAME.")
  if values.license and not re.fullmatch(
    r"[a-z0-9][a-z0-9.-]*", values.license
  ):
    raise InputError(
      f"--license={values.license!r} is no license of the hub. Use a name of"
      " https://huggingface.co/docs/hub/repositories-licenses, such as"
      " apache-2.0."
    )
  if values.workdir and values.vocab:
    raise InputError("--vocab needs --init. A run has its own vocabulary.")
  if values.init and values.step is not None:
    raise InputError("--step needs --workdir.")
  if values.init and not values.output:
    raise InputError("--init needs --output=FOLDER.")
  for name in ("workdir", "output"):
    check_local(f"--{name}", str(values[name].value))


def _export(values: flags.FlagValues) -> "ExportResult":
  from truenegs_jax.pretrain import export_run
  from truenegs_jax.weights.export import convert

  output = pathlib.Path(values.output) if values.output else None
  run = files.parse_run_path(pathlib.Path(values.init).expanduser())
  if values.workdir:
    run = pathlib.Path(values.workdir), values.step
  if run and values.vocab:
    raise InputError(
      f"init: {values.init!r} is a run, which has its own vocabulary. Remove"
      " --vocab."
    )
  with progress.working(progress.log_console(), "Exporting"):
    if run:
      return export_run.export_workdir(
        run[0], step=run[1], output=output, dtype=values.dtype
      )
    assert output is not None  # see _check_flags
    return convert.export_weights(
      values.init, output, vocab=values.vocab, dtype=values.dtype
    )


if __name__ == "__main__":
  main()
