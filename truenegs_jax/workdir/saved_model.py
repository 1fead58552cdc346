"""The saved steps of a run, read beside whatever may be writing there.

with saved.open_run(workdir) as checkpoints:
  last = saved.describe(checkpoints, checkpoints.latest())
  params = saved.read_params(checkpoints, last.model, last.step)
"""

import contextlib
import dataclasses
import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
from ml_collections import ConfigDict

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import CheckpointError, InputError, printable
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import files
from truenegs_jax.workdir.from_config import build_model, build_tokenizer


@dataclasses.dataclass(frozen=True)
class SavedModel:
  """A saved step: config, tokenizer and model. Arrays are not loaded."""

  step: int
  config: ConfigDict
  tokenizer: Tokenizer
  model: pretrain.Model


@contextlib.contextmanager
def open_run(workdir: pathlib.Path) -> Iterator[checkpoints_lib.Checkpoints]:
  """The checkpoints of a workdir, at least one; nothing is written there.

  Raises:
    InputError: this is not the workdir of a run.
    CheckpointError: it has not saved a step yet.
  """
  for name in (files.CHECKPOINTS, files.VOCABULARY):
    if not (workdir / name).exists():
      raise InputError(
        f"{workdir} holds no {name}; give the folder of a run that has saved a"
        " checkpoint."
      )
  folder = workdir / files.CHECKPOINTS
  with _silence_log("directory is read only"):  # as it is meant to be
    opened = checkpoints_lib.Checkpoints(folder, read_only=True)
  with contextlib.closing(opened) as checkpoints:
    if checkpoints.latest() is None:
      raise CheckpointError(
        f"{folder} holds no step yet; the run saves its first"
        " after config.checkpoint.every_steps steps."
      )
    yield checkpoints


@contextlib.contextmanager
def _silence_log(text: str) -> Iterator[None]:
  """Drops the lines with this text that orbax logs, by absl."""
  other = lambda record: text not in record.getMessage()
  logger = logging.getLogger("absl")
  logger.addFilter(other)
  try:
    yield
  finally:
    logger.removeFilter(other)


def read_saved_model(
  checkpoints: checkpoints_lib.Checkpoints, step: int
) -> SavedModel:
  """Reads what describes a saved step, and the vocabulary beside it.

  Raises:
    CheckpointError: no such step, another vocabulary, an earlier code's config.
  """
  described = checkpoints.run(step)
  place = checkpoints.folder / str(step)
  vocab = checkpoints.folder.parent / files.VOCABULARY
  try:
    c = ConfigDict(files.add_missing_keys(described["config"]))
    tokenizer = build_tokenizer(c, str(vocab))
    model = build_model(c, vocab_size=len(tokenizer.vocab))
  except (AttributeError, KeyError) as e:
    raise CheckpointError(
      f"{place} is of an earlier truenegs_jax: its config has no"
      f" {printable(e)}; use the one that made it."
    ) from e
  expected = described["fingerprints"]["vocabulary"]
  if tokenizer.fingerprint != expected:
    raise CheckpointError(
      f"{vocab} has the fingerprint {tokenizer.fingerprint}, but step {step}"
      f" was trained with {expected}; put the run's own vocab.txt back."
    )
  return SavedModel(step, c, tokenizer, model)


def read_params(
  checkpoints: checkpoints_lib.Checkpoints, model: pretrain.Model, step: int
) -> dict[str, Any]:
  """The parameters of a step, arrays of numpy, seen to be what was saved."""
  one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  like = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one),
    pretrain.param_shapes(model),
  )
  return jax.device_get(checkpoints.params(step, like))
