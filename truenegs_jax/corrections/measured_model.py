"""The model under test and its checkpoints."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import (
  DamagedStepError,
  InputError,
  printable,
)
from truenegs_jax.synonyms.sources import parse_expression
from truenegs_jax.train import build_run
from truenegs_jax.weights.formats import find
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.init import config_sizes, load
from truenegs_jax.workdir import files, saved_model
from truenegs_jax.workdir.from_config import build_model, build_tokenizer

KEPT, LAST = "kept", "last"  # values of corrections.steps


@dataclasses.dataclass(frozen=True)
class MeasuredModel:
  """A model and a function that reads its parameters.

  Attributes:
    config: of the model's training, as far as predictions and corrections
      depend on it.
    steps: saved steps, ascending; `(None,)` for weights without a run.
    read_params: returns the parameters of a step as numpy arrays; None, with a
      warning, if they are damaged or the run, which may still be training, has
      deleted them meanwhile.
  """

  config: ConfigDict
  tokenizer: Tokenizer
  model: pretrain.Model
  steps: tuple[int | None, ...]
  read_params: Callable[[Any], dict[str, Any] | None]


def resolve_config(c: ConfigDict, weights: Weights) -> ConfigDict:
  """Fills in language and sources of a run, or sizes and vocabulary of `init`.

  Raises:
    InputError: the config sets neither or both of a run and weights; see also
      `config_sizes.resolve`.
  """
  if bool(c.corrections.run) == bool(c.init) or c.init == config_sizes.REQUIRED:
    raise InputError(
      "Exactly one of corrections.run and init is needed. Set"
      " --config.corrections.run=WORKDIR to measure a run, or --config.init="
      "FOLDER and --config.objective to measure weights."
    )
  if c.dry_run and c.init and not find.is_local(c.init):
    return c  # nothing is downloaded
  if c.corrections.run:
    c = c.copy_and_resolve_references()
    workdir = pathlib.Path(c.corrections.run).expanduser()
    if saved := files.read_saved_config(workdir):
      c.data.language = saved["data"]["language"]
      trained = saved["negatives"]["sources"]
      if parse_expression(trained, language=c.data.language).model is None:
        c.negatives.sources = trained
    return c
  return config_sizes.resolve(c, weights, saved=None)


@contextlib.contextmanager
def open_model(c: ConfigDict, weights: Weights) -> Iterator[MeasuredModel]:
  """Opens the model of `c.corrections.run` or `c.init` for reading.

  Raises:
    InputError: no such run, folder or step; sizes differ from the weights'; the
      run's list of stop words is missing.
    CheckpointError: the run has no saved step, or another vocabulary.
  """
  if c.init:
    tokenizer = build_tokenizer(c, c.data.vocab)
    model = build_model(c, vocab_size=len(tokenizer.vocab))
    params = load.load_params(
      weights, model, tokenizer=tokenizer, complete=True, report=weights.report
    )
    yield MeasuredModel(c, tokenizer, model, (None,), lambda step: params)
    return
  workdir = pathlib.Path(c.corrections.run).expanduser()
  with saved_model.open_run(workdir) as checkpoints:
    steps = choose_steps(c.corrections.steps, checkpoints.steps())
    if c.corrections.steps == LAST:
      last, last_params = saved_model.load(
        checkpoints, None, report=weights.report
      )
      steps = (last.step,)
    else:
      last = saved_model.read_newest_model(checkpoints, weights.report)

    def read_params(step: int) -> dict[str, Any] | None:
      if c.corrections.steps == LAST:
        return last_params
      try:
        return saved_model.read_params(checkpoints, last.model, step)
      except DamagedStepError as e:
        if c.corrections.steps != KEPT:
          raise
        weights.report(f"warning: {printable(e)} It is skipped.")
        return None

    config = _complete_config(last.config, c)
    yield MeasuredModel(config, last.tokenizer, last.model, steps, read_params)


def _complete_config(saved: ConfigDict, c: ConfigDict) -> ConfigDict:
  """Returns a run's config; keys newer than the run have the values of `c`."""
  complete = c.copy_and_resolve_references()
  with complete.unlocked(), complete.ignore_type():
    complete.update(saved)
  complete.data.wordnet_dir = c.data.wordnet_dir
  if c.negatives.stop_words:  # the run's list in another folder
    complete.negatives.stop_words = c.negatives.stop_words
  try:
    build_run.build_table_request(complete).load_stop_words()
  except InputError as e:
    raise InputError(
      f"corrections.run={c.corrections.run!r} was trained with a list of stop"
      " words that is missing. Restore it, or set"
      f" --config.negatives.stop_words=FILE. {e}"
    ) from e
  return complete


def choose_steps(text: str, saved_steps: list[int]) -> tuple[int, ...]:
  """Returns the saved steps selected by "kept", "last" or "100,200"."""
  if text == KEPT:
    return tuple(saved_steps)
  if text == LAST:
    return tuple(saved_steps[-1:])
  words = text.replace(" ", "").split(",")
  if not set(words) <= set(map(str, saved_steps)):
    raise InputError(
      f"corrections.steps={text!r} is unknown. Choose kept, last, or some of"
      f" the saved steps {', '.join(map(str, saved_steps))}."
    )
  return tuple(sorted(set(map(int, words))))
