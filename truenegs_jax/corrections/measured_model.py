"""The model under test and its checkpoints."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import stop_words
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.init import config_sizes, load
from truenegs_jax.workdir import saved_model
from truenegs_jax.workdir.from_config import build_model, build_tokenizer


@dataclasses.dataclass(frozen=True)
class MeasuredModel:
  """A model, and how to read its parameters.

  Attributes:
    config: of its training, as far as predictions and corrections depend on it;
      the sources of synonyms are those of the task.
    steps: ascending; None stands for weights that no run of ours has saved.
    read: returns the parameters of a step, arrays of numpy; None where the run,
      still at work, has deleted them meanwhile.
  """

  config: ConfigDict
  tokenizer: Tokenizer
  model: pretrain.Model
  steps: tuple[int | None, ...]
  read: Callable[[Any], dict[str, Any] | None]


def resolve_sizes(c: ConfigDict, weights: Weights) -> ConfigDict:
  """Returns the config with sizes and vocabulary of the weights that it names.

  Raises:
    InputError: neither a run nor weights are given, or both; as
      `config_sizes.resolve`.
  """
  if bool(c.corrections.run) == bool(c.init) or c.init == config_sizes.REQUIRED:
    raise InputError(
      "give what to measure, one of the two: --config.corrections.run=WORKDIR"
      " of a run, or --config.init=FOLDER of weights and their"
      " --config.objective."
    )
  if c.corrections.run:
    return c
  return config_sizes.resolve(c, weights, saved=None)


@contextlib.contextmanager
def open_measured_model(
  c: ConfigDict, weights: Weights
) -> Iterator[MeasuredModel]:
  """Opens the model of `c.corrections.run`, or of `c.init`; only reads.

  Raises:
    InputError: no such run, folder or step; sizes other than the weights'; the
      run's list of stop words is gone.
    CheckpointError: the run has saved no step yet, or another vocabulary.
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
    steps = _choose_steps(c.corrections.steps, checkpoints.steps())
    last = saved_model.read_saved_model(checkpoints, steps[-1])

    def read(step: int) -> dict[str, Any] | None:
      if not (checkpoints.folder / str(step)).exists():
        return None
      return saved_model.read_params(checkpoints, last.model, step)

    config = _completed(last.config, c)
    yield MeasuredModel(config, last.tokenizer, last.model, steps, read)


def _completed(saved: ConfigDict, c: ConfigDict) -> ConfigDict:
  """A run's config; keys that its code did not have are those of `c`."""
  complete = c.copy_and_resolve_references()
  with complete.unlocked(), complete.ignore_type():
    complete.update(saved)
  # The run's own sources are not used, nor need their files exist.
  complete.negatives.sources = c.negatives.sources
  complete.data.wordnet_dir = c.data.wordnet_dir
  if c.negatives.stop_words:  # the run's list, in another place
    complete.negatives.stop_words = c.negatives.stop_words
  try:
    stop_words.load(complete.negatives.stop_words)
  except InputError as e:
    raise InputError(
      f"corrections.run={c.corrections.run} was trained with a list of stop"
      f" words; put it back, or give --config.negatives.stop_words=FILE. {e}"
    ) from e
  return complete


def _choose_steps(text: str, known: list[int]) -> tuple[int, ...]:
  """The saved steps that "kept", "last" or "100,200" stands for."""
  if text == "kept":
    return tuple(known)
  if text == "last":
    return tuple(known[-1:])
  words = text.replace(" ", "").split(",")
  steps = {int(word) for word in words if word.isdecimal()}
  if not all(map(str.isdecimal, words)) or not steps <= set(known):
    raise InputError(
      f"corrections.steps={text}: give kept, last, or some of the saved steps:"
      f" {', '.join(map(str, known))}."
    )
  return tuple(sorted(steps))
