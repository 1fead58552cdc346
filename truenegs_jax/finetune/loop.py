"""Fine-tunes a network on a task, with the step and the loop of pre-training.

All seeds of a task share its compiled functions. Batches and random draws are
functions of seed and step.
"""

import contextlib
import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from rich.console import Console

from truenegs_jax.finetune import leaderboard, results
from truenegs_jax.finetune.config_checks import FinetuneOptions
from truenegs_jax.finetune.predict import Predictor, make_predictor
from truenegs_jax.finetune.task_data import TaskData
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.objectives import task_losses
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.tasks import batches
from truenegs_jax.train import guards, metrics, optim, sharding, speed, writers
from truenegs_jax.train import loop as loop_lib
from truenegs_jax.train import step as step_lib
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import files, metrics_file

LOSS_WEIGHTS = {"loss": 1.0}
PROVENANCE, PROGRESS = "provenance", "run"  # keys of checkpoints' descriptions


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
  """Everything that the runs of a task share, without seed and weights.

  Attributes:
    model: the network with its head.
    data: the rows of the task.
    steps: number of steps of a run.
    eval_steps: steps after which the dev set is scored, but the last.
    learning_rate: learning rate of the head, by step.
    init_state: parameters and seed -> the state of step 0.
    abstract: shapes, dtypes and shardings of a state.
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
  abstract: step_lib.TrainState
  train_step: Callable[..., tuple[step_lib.TrainState, dict[str, Any]]]
  predictor: Predictor


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
    LOSS_WEIGHTS,
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
    eval_steps=_evaluation_steps(steps, epochs, options.evals_per_epoch)
    - {0, steps},
    learning_rate=learning_rate,
    init_state=jax.jit(init_state, out_shardings=shardings),
    abstract=jax.tree.map(
      lambda x, y: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=y),
      shapes,
      shardings,
    ),
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


def read_description(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the description of a run's newest good checkpoint, or {}."""
  if not files.has_checkpoint(folder):
    return {}
  with contextlib.closing(
    checkpoints_lib.Checkpoints(folder / files.CHECKPOINTS, read_only=True)
  ) as checkpoints:
    newest = checkpoints.read_newest(
      checkpoints.read_description, report=lambda line: None
    )
    return newest[1] if newest else {}


class Stopped(Exception):
  """Ends a run after a signal, the only argument."""


@contextlib.contextmanager
def fine_tune(
  setup: TrainingSetup,
  seed: int,
  folder: pathlib.Path,
  *,
  make_params: Callable[[], optax.Params],
  provenance: Mapping[str, Any],
  check: Callable[[], None],
  console: Console,
  save_end: bool,
) -> Iterator["SeedRun"]:
  """Trains one run, to its last step or until patience runs out, and yields it.

  It continues from its newest undamaged checkpoint. When `check` stops it, in
  the body, too, a checkpoint is saved.

  Args:
    seed: seed of the order of rows and of dropout.
    folder: receives metrics, checkpoints, and the rows of skipped updates.
    make_params: makes the initial parameters, arrays of numpy.
    provenance: what the run depends on, saved with its checkpoints.
    check: called before each batch; raises Stopped after a signal.
    save_end: whether the end is saved during the body, too, so that what comes
      after it can be repeated.

  Raises:
    CheckpointError: all its checkpoints are damaged.
    DiskError: a file could not be written.
  """
  with contextlib.ExitStack() as stack:
    checkpoints = checkpoints_lib.Checkpoints(folder / files.CHECKPOINTS)
    stack.callback(checkpoints.close)
    run = SeedRun(setup, seed, check, console, provenance)
    state = run.restore_newest(checkpoints)
    if state is None:
      state = setup.init_state(make_params(), seed)
    line = metrics.ProgressLine(
      console,
      setup.steps,
      first_step=run.first_step,
      describe=_describe_evaluation,
    )
    logged = writers.LoggedRun(
      folder, run.first_step, provenance[results.CONFIG]
    )
    run.write = stack.enter_context(
      writers.open_writers(setup.options.writers, logged, line)
    )
    # A stop after an evaluation may have come before the next checkpoint.
    records = metrics_file.read_records(folder)
    run.written = {x["step"] for x in records if x["split"] == "dev"}
    loop = run.make_loop(state, checkpoints, folder)
    try:
      run.train(loop)
      if save_end:
        run.save(loop)
      yield run
    except Stopped:
      run.save(loop, last=True)
      raise


@dataclasses.dataclass
class SeedRun:
  """A run of a task with a seed, and the functions of its training loop.

  Attributes:
    check, console, provenance: as in `fine_tune`.
    first_step: number of steps of the checkpoint that it continues.
    write: writes a record.
    written: steps of the evaluations that metrics.jsonl has from the start.
    evaluations: scores of the dev set during training, by step.
    losses: means of the first training record that is not NaN, and of the last.
    earlier_secs: duration of the steps before `first_step`, in seconds.
    best: the parameters with the best score, if they are kept.
    failure: why the training failed, or "".
    params, step: at the end, the selected parameters and their step.
    secs, rows_per_s: at the end, duration and speed of all steps.
  """

  setup: TrainingSetup
  seed: int
  check: Callable[[], None]
  console: Console
  provenance: Mapping[str, Any]
  first_step: int = 0
  write: Callable[[metrics.Record], None] = print
  written: set[int] = dataclasses.field(default_factory=set)
  evaluations: dict[int, dict[str, float]] = dataclasses.field(
    default_factory=dict
  )
  losses: tuple[float, float] = (math.nan, math.nan)
  earlier_secs: float = 0.0
  best: optax.Params | None = None
  failure: str = ""
  params: optax.Params = dataclasses.field(default_factory=dict)
  step: int = 0
  secs: float = 0.0
  rows_per_s: float = 0.0

  def __post_init__(self) -> None:
    self.clock = speed.Clock(self.setup.steps)
    self._keeps_best = self.setup.options.keep == "best"

  def report(self, text: str) -> None:
    """Prints a line."""
    self.console.print(text, soft_wrap=True)

  def make_loop(
    self,
    state: step_lib.TrainState,
    checkpoints: checkpoints_lib.Checkpoints,
    folder: pathlib.Path,
  ) -> loop_lib.Loop:
    """Makes the training loop; arguments as in `fine_tune`."""
    options, eval_steps = self.setup.options, self.setup.eval_steps
    mesh = self.setup.predictor.mesh
    timer = guards.SaveTimer(60 * options.save_minutes, mesh)
    return loop_lib.Loop(
      state=state,
      steps=self.setup.steps,
      take_step=self.take_step,
      loss_weights=LOSS_WEIGHTS,
      learning_rate=self.setup.learning_rate,
      log_every=options.every_steps,
      log=self.log,
      is_evaluated=lambda done: done in eval_steps,
      evaluate=self.evaluate,
      poll=self.check,
      is_saved=lambda _: timer.is_due(),
      content=self.content,
      checkpoints=checkpoints,
      report=self.report,
      guard=guards.SkipGuard(folder, options.max_skips),
      clock=self.clock,
    )

  def content(
    self, state: step_lib.TrainState
  ) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns arrays and description of a checkpoint."""
    resumable = {
      "evaluations": {str(n): x for n, x in self.evaluations.items()},
      "losses": self.losses,
      "secs": self._measure_secs(int(state.step)),
    }
    best = {"best": self.best} if self.best else {}
    description = {PROVENANCE: self.provenance, PROGRESS: resumable}
    return vars(state) | best, description

  def save(self, loop: loop_lib.Loop, *, last: bool = False) -> None:
    """Saves a checkpoint, as `Loop.save`, unless something is not finite."""
    if not self.failure:
      with contextlib.suppress(NonFiniteError):
        loop.save(last=last)

  def restore_newest(
    self, checkpoints: checkpoints_lib.Checkpoints
  ) -> step_lib.TrainState | None:
    """Restores the newest undamaged step; None without steps."""
    restore = functools.partial(self._restore, checkpoints)
    resumed = checkpoints.read_newest(restore, self.report)
    if resumed is None:
      return None
    self.first_step, state = resumed
    self.report(f"  resuming at step {self.first_step:,}")
    return state

  def _restore(
    self, checkpoints: checkpoints_lib.Checkpoints, step: int
  ) -> step_lib.TrainState:
    """Restores what `content` saved at a step; returns the state."""
    saved = checkpoints.read_description(step)[PROGRESS]
    self.evaluations = {int(n): x for n, x in saved["evaluations"].items()}
    self.losses, self.earlier_secs = tuple(saved["losses"]), saved["secs"]
    abstract = self.setup.abstract
    has_best = self._keeps_best and self.evaluations
    best = {"best": abstract.params} if has_best else {}
    arrays = checkpoints.restore_state(step, vars(abstract) | best)
    self.best = arrays.pop("best", None)
    return step_lib.TrainState(**arrays)

  def train(self, loop: loop_lib.Loop) -> None:
    """Trains to the end, and selects the last or the best parameters."""
    try:
      # A signal may have come in the evaluation, or after the last one.
      if self.first_step in self.setup.eval_steps and self.evaluate(
        loop.done, loop.state
      ):
        loop.steps = loop.done
      loop.run()
    except NonFiniteError:
      self.failure = f"loss or gradients not finite at step {loop.done:,}"
    self.finish(loop.done, loop.state)

  def take_step(
    self, state: step_lib.TrainState, done: int
  ) -> loop_lib.StepResult:
    """Trains on the batch of a step."""
    options = self.setup.options
    batch = batches.batch_at(
      self.setup.data.train,
      done,
      batch_size=options.batch_size,
      seed=self.seed,
      limit=options.length,
      window=options.window,
    )
    on_device = sharding.place_batch(batch, self.setup.predictor.mesh)
    return *self.setup.train_step(state, on_device, {}), on_device["row"]

  def log(self, record: dict[str, Any]) -> None:
    """Writes a record of training."""
    loss, done = record.pop("loss"), record["step"]
    first = loss if math.isnan(self.losses[0]) else self.losses[0]
    self.losses = first, loss
    secs = self.clock.secs_per_step(done)
    record["rows_per_s"] = self.setup.options.batch_size / secs
    self.write(record | {"eta_s": self.clock.eta_secs(done)})

  def evaluate(self, done: int, state: step_lib.TrainState) -> bool:
    """Scores the dev set and writes a record; says if patience runs out."""
    if done not in self.evaluations:
      dev = self.setup.data.dev
      rows = len(dev.encoded.tokens)
      with progress.counting(
        self.console, "Evaluating, rows", rows, brief=True
      ) as advance:
        outputs = self.setup.predictor.predict(
          state.params, dev.encoded, check=self.check, advance=advance
        )
      self.evaluations[done] = dev.score(dev.decode_answers(outputs))
      if done not in self.written:
        self.write({"step": done, "split": "dev", **self.evaluations[done]})
      if self._keeps_best and self._best_step() == done:
        self.best = jax.tree.map(jnp.copy, state.params)
    patience, best = self.setup.options.patience, self._best_step()
    return 0 < patience <= sum(step > best for step in self.evaluations)

  def finish(self, done: int, state: step_lib.TrainState) -> None:
    """Selects the last or the best parameters, by `keep`."""
    self.params, self.step = state.params, done
    self.secs = self._measure_secs(done)
    self.rows_per_s = done * self.setup.options.batch_size / self.secs
    if self._keeps_best:
      self.evaluate(done, state)
      self.params, self.step = self.best or {}, self._best_step()

  def _best_step(self) -> int:
    """Returns the step of the best score of the main metric, the first one."""
    metric, scores = self.setup.data.task.metrics[0], self.evaluations
    return max(scores, key=lambda step: scores[step][metric])

  def _measure_secs(self, done: int) -> float:
    steps = done - self.first_step
    return self.earlier_secs + self.clock.secs_per_step(done) * steps


def _describe_evaluation(record: metrics.Record) -> str:
  return f"dev at {record['step']:,}: {leaderboard.format_scores(record)}"
