"""Finds or prepares the rows of a config."""

import pathlib

from rich.console import Console

from truenegs_jax.config.sections import Data
from truenegs_jax.configs import common
from truenegs_jax.data import prepare
from truenegs_jax.data.prepare import Plan
from truenegs_jax.data.sources import check_code, named_sources
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError, program

PREPARE = f"First run {program()} prepare with the same --config flags."


def plan_rows(data: Data, length: int) -> Plan:
  """Checks a config's data, and plans its rows."""
  if data.sources == common.REQUIRED:
    raise InputError(
      "data.sources is not set: this config trains on your own text. Set"
      " --config.data.sources='texts/*.txt', for example: files, folders, globs"
      " or hf:NAME, separated by commas."
    )
  reader = None
  if "wordnet" in named_sources(data.sources):
    from truenegs_jax.synonyms.wordnet import open_wordnet  # imports NLTK

    reader = open_wordnet(data.wordnet_dir)
  check_code(data.language)
  return prepare.make_plan(data, length, reader)


def find_or_prepare_rows(
  data: Data, length: int, console: Console
) -> tuple[pathlib.Path, Tokenizer]:
  """Returns the rows folder and the tokenizer of a run that is starting.

  Raises:
    InputError: rows are missing, and must be prepared by another command.
  """
  from truenegs_jax.runtime import distributed  # imports jax

  with distributed.raise_everywhere("rows"):
    with progress.working(console, "Opening text and rows"):
      plan = plan_rows(data, length)
      is_prepared = plan.is_prepared()
    if not is_prepared and distributed.process_count() > 1:
      raise InputError(
        f"'{plan.folder}' has no rows, and a run of many processes does not"
        f" prepare them. {PREPARE} Choose a folder that all machines share."
      )
    if not is_prepared and plan.corpus and not plan.corpus.is_local():
      raise InputError(
        f"data.sources: {plan.corpus} is not on this machine, and its rows are"
        f" not prepared yet. {PREPARE} Or set --config.data.sources=PATH to a"
        " local copy."
      )
    return prepare.execute_plan(plan)
