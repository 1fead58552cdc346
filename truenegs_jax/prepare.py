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

from truenegs_jax import config_flag, preparation
from truenegs_jax.data.corpus import needs
from truenegs_jax.data.rows import verify_rows
from truenegs_jax.data.tokenizer import ACCENTS, Tokenizer
from truenegs_jax.errors import (
  SAVED_INTERRUPT,
  SAVED_RESTART,
  InputError,
  TrueNegsError,
  printable,
)


def plan_of(config: Any) -> preparation.Plan:
  """The plan of the `data` section and length of a ConfigDict."""
  data = config.data
  resources = {}
  if "wordnet" in needs(data.sources):
    from truenegs_jax.synonyms.wordnet import open_wordnet  # imports NLTK

    resources["reader"] = open_wordnet(data.wordnet_dir)
  names = (
    "sources vocab vocab_size lowercase layout overflow held_out rows seed"
    " errors stopping tokenizer"
  )
  if data.accents not in ACCENTS:
    known = ", ".join(ACCENTS)
    raise InputError(f"data.accents={data.accents!r}: choose one of {known}.")
  request = preparation.Request(
    **{name: data[name] for name in names.split()},
    strip_accents=ACCENTS[data.accents],
    length=config.length,
    num_workers=data.workers,
    resources=resources,
  )
  return preparation.make_plan(request)


def prepare_config(config: Any) -> tuple[pathlib.Path, Tokenizer]:
  """The rows of a config for a run that wants to train on them now.

  Raises:
    InputError: they would be made of a download, or by each of many processes,
      which is a step of its own.
  """
  from truenegs_jax import distributed  # imports jax

  with distributed.together("rows"):
    return _prepare_config(config, several=distributed.count() > 1)


def _prepare_config(
  config: Any, *, several: bool
) -> tuple[pathlib.Path, Tokenizer]:
  plan = plan_of(config)
  if several and not plan.whole():
    raise InputError(
      f"a run of many processes makes no rows, and {plan.folder} holds none."
      " Prepare them first, where all machines see them: python -m"
      " truenegs_jax.prepare --config=... with the same values."
    )
  if plan.corpus and not plan.corpus.is_local() and not plan.whole():
    raise InputError(
      f"data.sources: {plan.corpus.names()} is on the Hugging Face hub and its"
      " rows are not here yet. Prepare them first: python -m"
      " truenegs_jax.prepare --config=... with the same values, or give the"
      " path of a local copy."
    )
  return preparation.carry_out(plan)


def _resolved(config: Any) -> Any:
  """The config with the vocabulary of the weights, where it asks for that."""
  if config.data.vocab != "init":
    return config
  from truenegs_jax.weights import sizes  # imports jax

  # The folder of the rows alone goes to stdout.
  tell = functools.partial(print, file=sys.stderr)
  return sizes.resolve(config, saved=None, say=tell)


def _carry_out(
  plan: preparation.Plan, shard: str
) -> tuple[pathlib.Path, Tokenizer] | None:
  if not shard:
    return preparation.carry_out(plan)
  return preparation.carry_out_share(plan, share_of(shard))


def share_of(text: str) -> tuple[int, int]:
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
    plan = plan_of(_resolved(flags.FLAGS["config"].value))
    made = _carry_out(plan, flags.FLAGS.shard)
    if made and flags.FLAGS.verify:
      verify_rows(made[0])
      print(f"{made[0]}: every file is as it was written.", file=sys.stderr)
  except TrueNegsError as error:
    print(f"error: {printable(error)}", file=sys.stderr)
    sys.exit(error.exit_code)
  except KeyboardInterrupt:
    print("interrupted; the same command goes on from here", file=sys.stderr)
    sys.exit(SAVED_INTERRUPT)
  print(made[0] if made else f"share {flags.FLAGS.shard} is done")


if __name__ == "__main__":
  config_flag.define()
  flags.DEFINE_string(
    "shard", "", "i/n: build the i-th of n shares; the last one merges them."
  )
  flags.DEFINE_boolean("verify", False, "Read every file and check it.")
  config_flag.run(main)
