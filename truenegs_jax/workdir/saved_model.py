"""Builds the model of a config, and reads that of a checkpoint.

A run may still be training:

with saved_model.open_run(workdir) as checkpoints:
  last, params = saved_model.load(checkpoints, None, report=print)
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from truenegs_jax.config.load import load_saved
from truenegs_jax.config.sections import Model, PretrainConfig
from truenegs_jax.data import tokenizer_files
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.runtime.paths import join_inside
from truenegs_jax.workdir import files
from truenegs_jax.workdir.checkpoints import Checkpoints, Result

# Keys of the section `model` that are fields of both ELECTRA and BERT.
MODEL_KEYS = {x.name for x in dataclasses.fields(Model)}
MODEL_KEYS -= {"attention", "sharing"}


class SavedModel(NamedTuple):
  """Config, tokenizer and model of a checkpoint. Arrays are not loaded."""

  step: int
  config: PretrainConfig
  tokenizer: Tokenizer
  model: pretrain.Model


def read_config(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Returns the config of the run to resume, or None without a checkpoint.

  Its `data.vocab` is the copy in the workdir.
  """
  path = workdir / files.CONFIG
  if not (files.has_checkpoint(workdir) and path.is_file()):
    return None
  fix = "Remove it, and run the run's own command, which writes it again."
  config = load_saved(path, CheckpointError, fix).to_dict()
  config["data"]["vocab"] = str(files.vocabulary_path(workdir))
  return config


@contextlib.contextmanager
def open_run(workdir: pathlib.Path) -> Iterator[Checkpoints]:
  """Opens the checkpoints of a workdir for reading."""
  vocabulary = files.vocabulary_path(workdir)
  for path in (workdir / files.CHECKPOINTS, vocabulary):
    if not path.exists():
      raise InputError(
        f"'{workdir}' is not the workdir of a run: it has no {path.name}."
        " Choose the workdir of a run that has saved a checkpoint."
      )
  folder = workdir / files.CHECKPOINTS
  with contextlib.closing(Checkpoints(folder, read_only=True)) as checkpoints:
    if checkpoints.latest_step() is None:
      raise CheckpointError(
        f"'{folder}' has no checkpoint yet. The run saves the first one after"
        " config.checkpoint.every_steps steps."
      )
    yield checkpoints


def load(
  checkpoints: Checkpoints, step: int | None, *, report: Callable[[str], object]
) -> tuple[SavedModel, dict[str, Any]]:
  """Reads a step with its parameters; None: the newest that is undamaged."""

  def read(step: int) -> tuple[SavedModel, dict[str, Any]]:
    saved = _read_model(checkpoints, step)
    return saved, read_params(checkpoints, saved.model, step)

  return _read_step(checkpoints, step, read, report)


def read_model(
  checkpoints: Checkpoints, step: int | None, report: Callable[[str], object]
) -> SavedModel:
  """Reads the config of a step and its run's vocabulary; None: as `load`."""
  read = functools.partial(_read_model, checkpoints)
  return _read_step(checkpoints, step, read, report)


def _read_step(
  checkpoints: Checkpoints,
  step: int | None,
  read: Callable[[int], Result],
  report: Callable[[str], object],
) -> Result:
  """Returns what `read` reads of a step; None: of the newest undamaged one."""
  if step is not None:
    return read(step)
  newest = checkpoints.read_newest(read, report)
  assert newest is not None  # `open_run` refuses a run without steps
  return newest[1]


def _read_model(checkpoints: Checkpoints, step: int) -> SavedModel:
  description = checkpoints.read_description(step)
  workdir = checkpoints.folder.parent
  vocab = join_inside(workdir, files.vocabulary_path(workdir).name)
  config = PretrainConfig.read(description["config"])
  tokenizer = tokenizer_files.build_tokenizer(config.data, str(vocab))
  model = build_model(config, vocab_size=len(tokenizer.vocab))
  expected = description["fingerprints"]["vocabulary"]
  if tokenizer.fingerprint != expected:
    raise CheckpointError(
      f"'{vocab}' has the fingerprint {tokenizer.fingerprint}, but step {step}"
      f" was trained with {expected}. Restore the file of the run."
    )
  return SavedModel(step, config, tokenizer, model)


def read_params(
  checkpoints: Checkpoints, model: pretrain.Model, step: int
) -> dict[str, Any]:
  """Returns the verified parameters of a step as NumPy arrays."""
  one_device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  shapes = pretrain.param_shapes(model)
  like = jax.tree.map(lambda x: x.update(sharding=one_device), shapes)
  return jax.device_get(checkpoints.restore_params(step, like))


def build_model(config: PretrainConfig, *, vocab_size: int) -> pretrain.Model:
  """Builds ELECTRA's two networks or BERT."""
  c = config
  fields: dict[str, Any] = {"vocab_size": vocab_size}
  for name in MODEL_KEYS:
    value = getattr(c.model, name)
    if value or name == "dropout":  # what else is 0 is the network's default
      fields[name] = value
  fields["attention_dropout"] = c.model.dropout
  if c.objective != "electra":
    # Released weights have a pooler, which is carried to the export.
    has_pooler = bool(c.init) and c.task == "pretrain"
    return pretrain.make_bert(pooler=has_pooler, **fields)
  fields["generator_multiplier"] = c.generator.multiplier
  fields["generator_sizes"] = c.generator.sizes
  fields["sharing"] = c.model.sharing
  return pretrain.make_electra(**fields)
