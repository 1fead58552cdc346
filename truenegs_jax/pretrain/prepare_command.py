"""Prepares the rows of a config: text -> vocabulary -> rows on disk.

  truenegs prepare --config=electra_small
  truenegs prepare --config=... --config.data.rows=gs://bucket/rows \\
    --runner=DataflowRunner --beam=--region=us-central1 \\
    --beam=--temp_location=gs://bucket/tmp

Rows that exist are reused, and a preparation that was stopped is resumed.
"""

import dataclasses
import os
import sys

from absl import flags

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.config.sections import FROM_WEIGHTS, PretrainConfig
from truenegs_jax.data import prepare as prepare_lib
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.synonyms.wordnet import open_wordnet


def _choose_machines(plan: prepare_lib.Plan) -> prepare_lib.Plan:
  """Returns a plan for the machines of --runner."""
  runner = flags.FLAGS.runner
  if not runner:
    return plan
  if runner == "DataflowRunner" and not is_bucket(plan.folder):
    raise InputError(
      f"--runner={runner} needs --config.data.rows=gs://BUCKET/FOLDER: its"
      f" workers do not have the disk of this machine, with '{plan.folder}'."
    )
  # Local workers import the same modules, also without an installed package.
  os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
  return dataclasses.replace(plan, runner=runner, beam=tuple(flags.FLAGS.beam))


def main(argv: list[str]) -> None:
  """Prepares the rows of --config and prints their folder."""
  del argv
  config = PretrainConfig.read(flags.FLAGS.config)
  if config.task != "pretrain":
    raise InputError(
      f"The config has task={config.task}, but rows are of a pre-training. Pass"
      " its config; that of a study is in study.base."
    )
  if config.data.vocab == FROM_WEIGHTS:  # these import jax
    from truenegs_jax.pretrain.resolve import replace_init
    from truenegs_jax.weights.find import Weights

    # Standard output is only for the folder of the rows.
    weights = Weights(config.init, progress.say)
    config = replace_init(config, weights, saved=None)
  plan = prepare_lib.make_plan(config.data, config.length, open_wordnet)
  plan = _choose_machines(plan)
  if config.dry_run:
    state = "are prepared" if plan.is_prepared() else "would be prepared"
    print(f"dry run: the rows {state} in '{plan.folder}'")
    return
  folder, _ = prepare_lib.execute_plan(plan)
  manifest = rows_folder.read_manifest(folder)
  if warning := rows_folder.padding_warning(manifest):
    print(warning, file=sys.stderr)
  print(folder)


def run_command() -> None:
  """Defines the flags and runs `main`."""
  flags_lib.define_config()
  flags.DEFINE_string("runner", "", "Name of Apache Beam's runner to use.")
  flags.DEFINE_multi_string(
    "beam", [], "Option of the runner, such as --beam=--region=us-central1."
  )
  flags_lib.run(main)
