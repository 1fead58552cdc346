"""Fine-tunes a network on a task, with the step and the loop of pre-training.

All seeds of a task share its compiled functions. Batches and random draws are
functions of seed and step, so an interrupted run is repeated from its start.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import optax
from rich.console import Console

from truenegs_jax.finetune import results, task_data
from truenegs_jax.finetune.start import Predictor
from truenegs_jax.finetune.task_data import FinetuneOptions, TaskData
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.objectives import task_losses
from truenegs_jax.runtime import cpu
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.tasks import batches
from truenegs_jax.train import (
  guards,
  loggers,
  optim,
  sharding,
)
from truenegs_jax.train import loop as loop_lib
from truenegs_jax.train import step as step_lib
from truenegs_jax.workdir import files, metrics_file

LOSS_WEIGHTS = {"loss": 1.0}


@dataclasses.dataclass
class TrainingSetup:
  """Everything that the runs of a task share, without seed and weights.

  `provenance` is saved with their results. `init_state` (parameters, seed ->
  state) and `train_step` (state, batch, aux -> state, terms) are jitted.
  """

  options: FinetuneOptions
  model: finetune.DownstreamModel
  data: TaskData
  provenance: Mapping[str, Any]

  def __post_init__(self) -> None:
    """Prepares steps, evaluations and jitted functions."""
    options = self.options
    model = self.model
    data = self.data
    epochs = options.finetune.epochs or data.task.epochs
    size = len(data.train.tokens)
    self.steps = batches.num_steps(size, options.batch_size, epochs)
    count = round(options.finetune.evals_per_epoch * epochs)
    evals = {round(self.steps * (i + 1) / count) for i in range(count)}
    self.eval_steps = evals - {0, self.steps}
    self.predictor = Predictor(options, model)
    mesh = self.predictor.mesh
    spec = options.mesh_spec
    tx, self.learning_rate = make_optimizer(options, model, self.steps)

    def init_state(params: optax.Params, seed: int) -> step_lib.TrainState:
      return step_lib.init_state(lambda _: params, tx, seed)

    shapes = jax.eval_shape(init_state, pretrain.param_shapes(model), 0)
    shardings = sharding.tree_shardings(shapes, mesh, spec)
    self.init_state = jax.jit(init_state, out_shardings=shardings)
    terms = functools.partial(
      task_losses.task_terms,
      kind=data.task.kind,
      model=self.predictor.model,
      train=True,
    )
    step = step_lib.make_train_step(
      sharding.gather_params(terms, mesh, spec),
      LOSS_WEIGHTS,
      tx,
      options.optim.accumulation,
    )
    outputs = shardings, sharding.replicated_sharding(mesh)
    self.train_step = jax.jit(
      step,
      donate_argnums=0,
      out_shardings=outputs,
      compiler_options=cpu.compiler_options(self.model.config.dtype),
    )

  def describe(self) -> str:
    """Describes rows and recipe in one line."""
    o = self.options
    width = self.model.config.width
    texts = (
      *self.data.describe(),
      f"{self.steps:,} steps of {o.batch_size} rows",
      f"peak learning rate {o.peak_rate(width):g}",
      f"layer decay {o.decay(width):g}, head {self.model.head!r}",
      f"attention {self.predictor.attention}",
    )
    return ", ".join(texts)


def make_optimizer(
  options: FinetuneOptions, model: finetune.DownstreamModel, total_steps: int
) -> tuple[optax.GradientTransformation, optim.Schedule]:
  """Makes Adam with a learning rate per layer, and the head's schedule."""
  width = model.config.width
  schedule = optim.make_schedule(
    options.optim.schedule,
    peak=options.peak_rate(width),
    warmup_steps=round(options.finetune.warmup * total_steps),
    total_steps=total_steps,
  )
  shapes = pretrain.param_shapes(model)
  factors = optim.layer_lr_factors(shapes, decay=options.decay(width))
  tx = optim.make_optimizer(schedule, options.optim, lr_factors=factors)
  return tx, schedule


class Stopped(Exception):
  """Ends a run after a signal, the only argument."""


@dataclasses.dataclass
class SeedRun:
  """A run of a task with a seed, and the functions of its training loop."""

  setup: TrainingSetup
  seed: int
  folder: pathlib.Path  # receives metrics
  check: Callable[[], None]  # called before each batch; may raise Stopped
  console: Console
  failure: str = ""

  def fine_tune(
    self,
    make_params: Callable[[], optax.Params],
    check_lock: Callable[[], None],
  ) -> tuple[optax.Params, results.Result]:
    """Trains to the last step and scores; returns parameters and result.

    `check_lock` raises DiskError if the workdir's lock was lost. A loss that is
    not finite ends the run as failed.
    """
    setup = self.setup
    options = setup.options
    self.clock = guards.Clock(setup.steps)
    line = loggers.ProgressLine(
      self.console, setup.steps, first_step=0, describe=self.describe
    )
    config = setup.provenance[files.CONFIG]
    logged = loggers.LoggedRun(self.folder, 0, config, check_lock)
    with loggers.open_writers(options.log.writers, logged, line) as writers:
      self.write, flush_log = writers
      loop = loop_lib.Loop(
        state=setup.init_state(make_params(), self.seed),
        take_step=self.take_step,
        loss_weights=LOSS_WEIGHTS,
        learning_rate=setup.learning_rate,
        log_every=options.log.every_steps,
        log=self.log,
        flush_log=flush_log,
        is_evaluated=lambda done: done in setup.eval_steps,
        evaluate=self.evaluate,
        poll=self.check,
        report=functools.partial(self.console.print, soft_wrap=True),
        guard=guards.SkipGuard(options.optim.max_skips),
        clock=self.clock,
      )
      try:
        loop.run()
      except NonFiniteError:
        self.failure = f"loss or gradients not finite at step {loop.done:,}"
    params = loop.state.params
    return params, self.make_result(params, loop.done)

  def make_result(self, params: optax.Params, step: int) -> results.Result:
    """Answers and scores the splits after training."""
    setup = self.setup
    secs = self.clock.secs_per_step(step) * step  # answers are no training
    answers: dict[str, Any] = {}
    scores: dict[str, dict[str, float]] = {}
    for name, split in setup.data.splits.items():
      answers_Q = self.answer(params, split, f"Answering {name}, rows")
      if split.golds:
        scores[name] = split.score(answers_Q)
      answers[name] = {
        "keys": [x.key for x in split.examples],
        "golds": [*split.golds],
        "answers": [*answers_Q],
      }
    dev = answers["dev"]
    useless = task_data.find_failure(dev["golds"], dev["answers"])
    return results.Result(
      task=setup.data.task.name,
      seed=self.seed,
      failure=self.failure or useless,
      scores=scores,
      step=step,
      secs=secs,
      answers=answers,
      provenance=setup.provenance,
    )

  def answer(
    self, params: optax.Params, split: task_data.EvalSplit, title: str
  ) -> Sequence[task_data.Answer]:
    """Returns the answers to a split."""
    return self.setup.predictor.answer(
      params, split, console=self.console, title=title, check=self.check
    )

  def take_step(
    self, state: step_lib.TrainState, done: int
  ) -> loop_lib.StepResult:
    """Trains on the batch of a step."""
    setup = self.setup
    options = setup.options
    batch = batches.batch_at(
      setup.data.train,
      done,
      batch_size=options.batch_size,
      seed=self.seed,
      limit=options.length,
    )
    on_device = sharding.place_batch(batch, setup.predictor.mesh)
    return setup.train_step(state, on_device, {})

  def log(self, record: dict[str, Any]) -> None:
    """Writes a record of training."""
    del record["loss"]  # the same as its total
    done = record["step"]
    secs = self.clock.secs_per_step(done)
    record["rows_per_s"] = self.setup.options.batch_size / secs
    self.write(record | {"eta_s": self.clock.eta_secs(done)})

  def evaluate(self, done: int, state: step_lib.TrainState) -> None:
    """Scores the dev set and writes a record."""
    dev = self.setup.data.dev
    answers_Q = self.answer(state.params, dev, "Evaluating, rows")
    self.write({"step": done, "split": "dev", **dev.score(answers_Q)})

  def describe(self, record: metrics_file.Record) -> str:
    """Describes a record of an evaluation for the terminal."""
    scores = {x: record[x] for x in self.setup.data.task.metrics}
    return f"dev at {record['step']:,}: {results.format_scores(scores)}"
