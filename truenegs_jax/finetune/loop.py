"""Fine-tunes a network on a task, with the training step of pre-training.

All seeds of a task share its compiled functions. Batches and random draws are
functions of seed and step.
"""

import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import optax

from truenegs_jax.finetune.config_checks import FinetuneOptions
from truenegs_jax.finetune.predict import Predictor, make_predictor
from truenegs_jax.finetune.task_data import TaskData
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.objectives import task_losses
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.tasks import batches
from truenegs_jax.train import guards, metrics, optim, sharding, speed
from truenegs_jax.train import step as step_lib


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
  """Everything that the runs of a task share, without seed and weights.

  Attributes:
    model: the network with its head.
    data: the rows of the task.
    steps: number of steps of a run.
    eval_steps: steps after which the dev set is scored, evenly spaced.
    learning_rate: learning rate of the head, by step.
    init_state: parameters and seed -> the state of step 0.
    train_step: jitted, `(state, batch, aux) -> (state, terms)`.
    predictor: computes the outputs of the head; its mesh is that of training.
  """

  options: FinetuneOptions
  model: finetune.DownstreamModel
  data: TaskData
  steps: int
  eval_steps: frozenset[int]
  learning_rate: optim.Schedule
  init_state: Callable[[optax.Params, int], step_lib.TrainState]
  train_step: Callable[..., tuple[step_lib.TrainState, step_lib.Terms]]
  predictor: Predictor


@dataclasses.dataclass(frozen=True)
class TrainedRun:
  """The outcome of a run's training.

  Attributes:
    params: the selected parameters, on the devices.
    step: the step of `params`.
    failure: why the run failed, or "".
    evaluations: scores of the dev set during training, by step.
    losses: means of the first training record that is not NaN, and of the last.
    secs: duration of the training steps, in seconds.
    rows_per_s: training rows per second, with compilation.
  """

  params: optax.Params
  step: int
  failure: str
  evaluations: dict[int, dict[str, float]]
  losses: tuple[float, float]
  secs: float
  rows_per_s: float


def make_setup(
  options: FinetuneOptions, model: finetune.DownstreamModel, data: TaskData
) -> TrainingSetup:
  """Builds what the runs of a task share; compiles nothing yet."""
  epochs = options.epochs or data.task.epochs
  steps = batches.num_steps(len(data.train.tokens), options.batch_size, epochs)
  tx, learning_rate = make_optimizer(options, model, steps)
  predictor = make_predictor(options, model)
  mesh = predictor.mesh
  is_joint = model.head == "joint"
  terms = functools.partial(
    task_losses.task_terms,
    kind="joint" if is_joint else data.task.kind,
    model=predictor.model,
    train=True,
    reduction=options.loss,
  )
  step = step_lib.make_train_step(
    sharding.gather_params(terms, mesh, options.mesh),
    {"loss": 1.0},
    tx,
    options.accumulation,
  )

  def init_state(params: optax.Params, seed: int) -> step_lib.TrainState:
    return step_lib.init_state(lambda _: params, tx, seed)

  shapes = jax.eval_shape(init_state, pretrain.param_shapes(model), 0)
  shardings = sharding.tree_shardings(shapes, mesh, options.mesh)
  replicated = sharding.replicated_sharding(mesh)

  return TrainingSetup(
    options=options,
    model=model,
    data=data,
    steps=steps,
    eval_steps=_evaluation_steps(steps, epochs, options.evals_per_epoch),
    learning_rate=learning_rate,
    init_state=jax.jit(init_state, out_shardings=shardings),
    train_step=jax.jit(
      step, donate_argnums=0, out_shardings=(shardings, replicated)
    ),
    predictor=predictor,
  )


def _evaluation_steps(
  steps: int, epochs: float, per_epoch: int
) -> frozenset[int]:
  """Spreads evaluations over a run, at least one unless `per_epoch` is 0."""
  count = max(round(per_epoch * epochs), min(per_epoch, 1))
  return frozenset(round(steps * (i + 1) / count) for i in range(count))


def make_optimizer(
  options: FinetuneOptions, model: finetune.DownstreamModel, total_steps: int
) -> tuple[optax.GradientTransformation, optim.Schedule]:
  """Makes Adam with a learning rate per layer, and the head's schedule."""
  width = model.config.width
  schedule = optim.make_schedule(
    options.schedule,
    peak=options.peak_rate(width),
    warmup_steps=round(options.warmup * total_steps),
    total_steps=total_steps,
  )
  shapes = pretrain.param_shapes(model)
  factors = optim.layer_lr_factors(
    shapes, decay=options.decay(width), exponent=options.layer_exponent
  )
  tx = optim.make_optimizer(schedule, lr_factors=factors, **options.adam)
  return tx, schedule


def fine_tune(
  setup: TrainingSetup,
  params: optax.Params,
  seed: int,
  folder: pathlib.Path,
  *,
  write: Callable[[dict[str, Any]], None],
  check: Callable[[], None],
) -> TrainedRun:
  """Trains one run, to its last step or until patience runs out.

  Args:
    params: initial parameters, arrays of numpy.
    seed: seed of the order of rows and of dropout.
    folder: receives the rows of steps with gradients that are not finite.
    write: receives the records of training and of the dev set.
    check: called before each batch; an exception from it ends the run.
  """
  options = setup.options
  state = setup.init_state(params, seed)
  guard = guards.SkipGuard(folder, options.max_skips)
  clock = speed.Clock(setup.steps)
  clock.start(0)
  progress = _Progress(setup, write, clock, check)
  done, failure, recent = 0, "", []
  try:
    while done < setup.steps and not progress.is_out_of_patience():
      check()
      batch = batches.batch_at(
        setup.data.train,
        done,
        batch_size=options.batch_size,
        seed=seed,
        limit=options.length,
        window=options.window,
      )
      on_device = sharding.shard_batch(batch, setup.predictor.mesh)
      state, terms = setup.train_step(state, on_device, {})
      guard.add(done, terms["skipped"][0], on_device["row"])
      recent.append(terms)
      done += 1
      if not done % options.every_steps or done == setup.steps:
        progress.write_losses(done, recent)
        recent = []
      if done in setup.eval_steps and done < setup.steps:
        with clock.paused():
          progress.evaluate(done, state.params)
    guard.check_pending()
  except NonFiniteError:
    failure = f"gradients that are not finite at step {done:,}"
  secs = clock.secs_per_step(done) * done
  selected, step = progress.select_params(done, state.params)
  return TrainedRun(
    params=selected,
    step=step,
    failure=failure,
    evaluations=progress.evaluations,
    losses=(progress.first_loss, progress.last_loss),
    secs=secs,
    rows_per_s=done * options.batch_size / secs,
  )


@dataclasses.dataclass
class _Progress:
  """Losses and evaluations of a run so far, and its best parameters."""

  setup: TrainingSetup
  write: Callable[[dict[str, Any]], None]
  clock: speed.Clock
  check: Callable[[], None]
  evaluations: dict[int, dict[str, float]] = dataclasses.field(
    default_factory=dict
  )
  first_loss: float = math.nan  # of the first record that has a number
  last_loss: float = math.nan
  # Score, step and, if they are kept, parameters.
  best: tuple[float, int, optax.Params | None] | None = None

  def write_losses(self, done: int, recent: list[step_lib.Terms]) -> None:
    """Writes a record of training."""
    values = metrics.compute_ratios(metrics.merge_terms(jax.device_get(recent)))
    secs = self.clock.secs_per_step(done)
    self.last_loss = values["loss"]
    if math.isnan(self.first_loss):
      self.first_loss = self.last_loss
    self.write(
      {
        "step": done,
        "time": round(time.time(), 3),
        "split": "train",
        "total": values.pop("loss"),
        **values,
        "lr": float(self.setup.learning_rate(done - 1)),
        "rows_per_s": self.setup.options.batch_size / secs,
        "eta_s": self.clock.eta_secs(done),
      }
    )

  def evaluate(self, done: int, params: optax.Params) -> None:
    """Scores the dev set and writes a record."""
    task, dev = self.setup.data.task, self.setup.data.dev
    predictor = self.setup.predictor
    outputs = predictor.predict(params, dev.encoded, check=self.check)
    scores = dev.score(dev.decode_answers(outputs))
    self.evaluations[done] = scores
    self.write({"step": done, "split": "dev", **scores})
    value = scores[task.metrics[0]]
    if self.best is None or value > self.best[0]:
      keeps_best = self.setup.options.keep == "best"
      self.best = value, done, jax.device_get(params) if keeps_best else None

  def is_out_of_patience(self) -> bool:
    """Whether the last `patience` evaluations were no better than the best."""
    patience = self.setup.options.patience
    if not patience or self.best is None:
      return False
    return sum(step > self.best[1] for step in self.evaluations) >= patience

  def select_params(
    self, done: int, params: optax.Params
  ) -> tuple[optax.Params, int]:
    """Returns the last or the best parameters, by `keep`, and their step."""
    if self.setup.options.keep == "last":
      return params, done
    if done not in self.evaluations:
      self.evaluate(done, params)
    assert self.best is not None
    shardings = jax.tree.map(lambda x: x.sharding, params)
    return jax.device_put(self.best[2], shardings), self.best[1]
