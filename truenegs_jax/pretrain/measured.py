"""Opens the model that a task measures: steps of a run, or weights."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from truenegs_jax.config import tables
from truenegs_jax.config.sections import REQUIRED, PretrainConfig
from truenegs_jax.data import tokenizer_files
from truenegs_jax.pretrain import plan, resolve
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.train import sharding
from truenegs_jax.weights import find, load, match
from truenegs_jax.workdir import files, saved_model
from truenegs_jax.workdir.checkpoints import Checkpoints

# Ascending steps with their parameters on the devices, read one by one; the
# step of weights without a run is None.
Steps = Iterator[tuple[int | None, dict[str, Any]]]


class Measured(NamedTuple):
  """The run or the weights that a task measures."""

  config: PretrainConfig  # of the task, with values of the weights
  options: tables.Measured  # of the task's section
  weights: find.Weights
  mesh: jax.sharding.Mesh

  @property
  def workdir(self) -> pathlib.Path:
    """The workdir of the run."""
    return open_path(f"{self.config.task}.run", self.options.run)

  def make_run(self, saved: saved_model.SavedModel) -> plan.Run:
    """Makes a run of a saved model with the seed and the mesh of the task."""
    own = {"seed": self.config.seed, "mesh": vars(self.config.mesh)}
    config = saved.config.replace(own)
    chunk = plan.choose_chunk(len(saved.tokenizer.vocab), self.mesh)
    return plan.Run(config, saved.tokenizer, self.mesh, vocabulary_chunk=chunk)

  def place(self, params: dict[str, Any]) -> dict[str, Any]:
    """Puts parameters on the devices of the mesh."""
    spec = plan.read_mesh_spec(self.config)
    split = sharding.param_shardings(params, self.mesh, spec)
    return jax.device_put(params, split)


def find_model(
  config: PretrainConfig,
  options: tables.Measured,
  report: Callable[[str], object],
) -> Measured:
  """Finds the model, and what `init` decides, without reading arrays."""
  if bool(options.run) == bool(config.init) or config.init == REQUIRED:
    raise errors.InputError(
      f"Exactly one of {config.task}.run and init is needed. Set"
      f" --config.{config.task}.run=WORKDIR to measure a run, or --config.init="
      "FOLDER to measure weights."
    )
  weights = find.Weights(config.init, report)
  if config.init and not (config.dry_run and not find.is_local(config.init)):
    kept = next(iter(weights.networks.values()))
    objective = "mlm" if kept.role == "bert" else "electra"
    own = {"objective": objective, "model.backbone": kept.backbone}
    config = resolve.replace_init(config.replace(own), weights, saved=None)
  mesh = sharding.make_mesh(plan.read_mesh_spec(config))
  return Measured(config, options, weights, mesh)


def describe(m: Measured) -> dict[str, str]:
  """Returns the first lines of a dry run."""
  if m.config.init:
    weights = find.describe(m.config.init)
  elif not files.has_checkpoint(m.workdir):
    weights = f"'{m.workdir}' (missing, or without a checkpoint)"
  else:
    with saved_model.open_run(m.workdir) as checkpoints:
      steps = choose_steps(m, checkpoints)
    weights = f"'{m.workdir}', steps {', '.join(map(str, steps))}"
  return {
    "dry run": "writes and compiles nothing",
    "devices": sharding.describe_devices(m.config.mesh.preset, m.mesh),
    "weights": weights,
  }


def choose_steps(m: Measured, checkpoints: Checkpoints) -> list[int]:
  """Returns the saved steps selected by "kept", "last" or "100,200"."""
  saved_steps = checkpoints.steps()
  text = m.options.steps
  if text == "kept":
    return saved_steps
  if text == "last":
    return saved_steps[-1:]
  words = text.replace(" ", "").split(",")
  if not set(words) <= set(map(str, saved_steps)):
    raise errors.InputError(
      f"{m.config.task}.steps={text!r} is unknown. Choose kept, last, or some"
      f" of the saved steps {', '.join(map(str, saved_steps))}."
    )
  return sorted(set(map(int, words)))


@contextlib.contextmanager
def open_model(
  m: Measured, *, unread: str = ""
) -> Iterator[tuple[saved_model.SavedModel, Steps]]:
  """Opens the run or the weights for reading.

  Weights may lack the network whose name is `unread`.
  """
  config = m.config
  report = m.weights.report
  if config.init:
    tokenizer = tokenizer_files.build_tokenizer(config.data, config.data.vocab)
    model = saved_model.build_model(config, vocab_size=len(tokenizer.vocab))
    networks = m.weights.for_roles(model.roles)
    for network in networks.values():
      match.check_saved(network, tokenizer)
    skip = match.skip_padding(next(iter(networks.values())))
    matched = match.match_weights(networks, model, tokenizer, init_skip=skip)
    params = load.load_params(
      matched, complete=True, unread=unread, report=report
    )
    saved = saved_model.SavedModel(0, config, tokenizer, model)
    yield saved, iter([(None, m.place(params))])
    return
  with saved_model.open_run(m.workdir) as checkpoints:
    saved = saved_model.read_model(checkpoints, None, report)
    chosen = choose_steps(m, checkpoints)
    yield saved, _read_steps(m, checkpoints, saved, chosen)


def _read_steps(
  m: Measured,
  checkpoints: Checkpoints,
  saved: saved_model.SavedModel,
  steps: list[int],
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields the chosen steps of a run, which may still be training.

  One that is damaged, or that the run has deleted, is skipped with a warning.
  """
  is_empty = True
  for step in steps:
    try:
      params = saved_model.read_params(checkpoints, saved.model, step)
    except errors.DamagedStepError as e:
      m.weights.report(f"warning: {errors.printable(e)} It is skipped.")
    else:
      is_empty = False
      yield step, m.place(params)
  if is_empty:
    raise errors.CheckpointError(
      "The run has no undamaged step to measure. Run the same command again,"
      f" or set --config.{m.config.task}.steps=STEPS."
    )
