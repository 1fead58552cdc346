"""The rows of a config, made where they are missing."""

import pathlib
from typing import Any

from truenegs_jax.data.corpus.sources_spec import named_sources
from truenegs_jax.data.rows import prepare_rows
from truenegs_jax.data.tokens.tokenizer import ACCENTS, Tokenizer
from truenegs_jax.runtime.errors import (
  InputError,
)


def make_rows_plan(config: Any) -> prepare_rows.Plan:
  """The plan of the `data` section and length of a ConfigDict."""
  data = config.data
  resources = {}
  if "wordnet" in named_sources(data.sources):
    from truenegs_jax.synonyms.wordnet import open_wordnet  # imports NLTK

    resources["reader"] = open_wordnet(data.wordnet_dir)
  if data.accents not in ACCENTS:
    known = ", ".join(ACCENTS)
    raise InputError(f"data.accents={data.accents!r}: choose one of {known}.")
  request = prepare_rows.PrepareOptions(
    sources=data.sources,
    length=config.length,
    vocab=data.vocab,
    vocab_size=data.vocab_size,
    lowercase=data.lowercase,
    strip_accents=ACCENTS[data.accents],
    layout=data.layout,
    overflow=data.overflow,
    held_out=data.held_out,
    seed=data.seed,
    errors=data.errors,
    stopping=data.stopping,
    tokenizer=data.tokenizer,
    num_workers=data.workers,
    rows=data.rows,
    resources=resources,
  )
  return prepare_rows.make_plan(request)


def find_or_prepare_rows(config: Any) -> tuple[pathlib.Path, Tokenizer]:
  """The rows of a config for a run that wants to train on them now.

  Raises:
    InputError: they would be made of a download, or by each of many processes,
      which is a step of its own.
  """
  from truenegs_jax.runtime import distributed  # imports jax

  with distributed.raise_everywhere("rows"):
    return _prepare_config(config, several=distributed.process_count() > 1)


def _prepare_config(
  config: Any, *, several: bool
) -> tuple[pathlib.Path, Tokenizer]:
  plan = make_rows_plan(config)
  if several and not plan.is_prepared():
    raise InputError(
      f"a run of many processes makes no rows, and {plan.folder} holds none."
      " Prepare them first, where all machines see them: python -m"
      " truenegs_jax.prepare --config=... with the same values."
    )
  if plan.corpus and not plan.corpus.is_local() and not plan.is_prepared():
    raise InputError(
      f"data.sources: {plan.corpus.names()} is on the Hugging Face hub and its"
      " rows are not here yet. Prepare them first: python -m"
      " truenegs_jax.prepare --config=... with the same values, or give the"
      " path of a local copy."
    )
  return prepare_rows.execute_plan(plan)
