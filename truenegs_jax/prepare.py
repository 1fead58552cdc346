"""Text -> vocabulary -> rows on disk, as a config describes.

  python -m truenegs_jax.prepare --config=configs/electra_small.py
  python -m truenegs_jax.prepare --config=... --shard=3/8   # of 0/8 to 7/8
  python -m truenegs_jax.prepare --config=... --verify

The same text and options find the rows that an earlier run wrote; a run that
was stopped is continued. The jobs of an array share the work; the one that
finishes last merges what all have made.
"""

import functools
import pathlib
import re
import signal
import sys
from typing import Any

from absl import flags

from truenegs_jax.data.rows import prepare_rows
from truenegs_jax.data.rows.rows_folder import verify_rows
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime import flags as flags_lib
from truenegs_jax.runtime.errors import (
  SAVED_INTERRUPT,
  SAVED_RESTART,
  InputError,
  TrueNegsError,
  printable,
)
from truenegs_jax.train.prepare_data import make_rows_plan


def _resolved(config: Any) -> Any:
  """The config with the vocabulary of the weights, where it asks for that."""
  if config.data.vocab != "init":
    return config
  # These import jax.
  from truenegs_jax.weights.formats.find import Weights
  from truenegs_jax.weights.init import config_sizes

  # The folder of the rows alone goes to stdout.
  tell = functools.partial(print, file=sys.stderr)
  weights = Weights(config.init, tell)
  return config_sizes.resolve(config, weights, saved=None)


def _carry_out(
  plan: prepare_rows.Plan, shard: str
) -> tuple[pathlib.Path, Tokenizer] | None:
  if not shard:
    return prepare_rows.execute_plan(plan)
  return prepare_rows.execute_job(plan, parse_job(shard))


def parse_job(text: str) -> tuple[int, int]:
  """Parses --shard=i/n, 0 <= i < n."""
  found = re.fullmatch(r"(\d+)/(\d+)", text)
  if not found or not int(found[1]) < int(found[2]):
    raise InputError(
      f"--shard={text}: give i/n with i from 0 to n - 1, such as 0/8."
    )
  return int(found[1]), int(found[2])


def main(argv: list[str]) -> None:
  """The verb: prepares what --config describes and prints the folder."""
  del argv
  # What is made stays, so that a launcher may start this again.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(SAVED_RESTART))
  try:
    plan = make_rows_plan(_resolved(flags.FLAGS["config"].value))
    result = _carry_out(plan, flags.FLAGS.shard)
    if result and flags.FLAGS.verify:
      verify_rows(result[0])
      print(f"{result[0]}: every file is as it was written.", file=sys.stderr)
  except TrueNegsError as error:
    print(f"error: {printable(error)}", file=sys.stderr)
    sys.exit(error.exit_code)
  except KeyboardInterrupt:
    print("interrupted; the same command goes on from here", file=sys.stderr)
    sys.exit(SAVED_INTERRUPT)
  print(result[0] if result else f"share {flags.FLAGS.shard} is done")


if __name__ == "__main__":
  flags_lib.define_config()
  flags.DEFINE_string(
    "shard", "", "i/n: build the i-th of n shares; the last one merges them."
  )
  flags.DEFINE_boolean("verify", False, "Read every file and check it.")
  flags_lib.run(main)
