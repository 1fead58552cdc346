"""Fine-tunes a network on a task, with the step and the loop of pre-training.

setup = TrainingSetup(options, model, data, provenance)
with fine_tune(setup, seed, folder, ...) as trained:
  result = trained.make_result()

All seeds of a task share its compiled functions. Batches and random draws are
functions of seed and step.
"""

import contextlib
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import optax
from rich.console import Console

from truenegs_jax.finetune import evaluate, leaderboard, results
from truenegs_jax.finetune.options import FinetuneOptions
from truenegs_jax.finetune.task_data import TaskData
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.objectives import task_losses
from truenegs_jax.runtime import cpu
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.tasks import batches
from truenegs_jax.train import guards, metrics, optim, sharding, speed
from truenegs_jax.train import loop as loop_lib
from truenegs_jax.train import step as step_lib
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import files
from truenegs_jax.workdir.lock import Lease

LOSS_WEIGHTS = {"loss": 1.0}
PROVENANCE, PROGRESS = "provenance", "run"  # keys of checkpoints' descriptions


class TrainingSetup:
  """Everything that the runs of a task share, without seed and weights.

  Attributes:
    provenance: what the runs depend on, saved with their checkpoints.
    eval_steps: steps after which the dev set is scored, but the last.
    learning_rate: learning rate of the head, by step.
    init_state: jitted, parameters and seed -> the state of step 0.
    abstract: shapes, dtypes and shardings of a state.
    train_step: jitted, `(state, batch, aux) -> (state, terms)`.
  """

  def __init__(
    self,
    options: FinetuneOptions,
    model: finetune.DownstreamModel,
    data: TaskData,
    provenance: Mapping[str, Any],
  ):
    self.options, self.model, self.data = options, model, data
    self.name, self.provenance = data.task.name, provenance
    epochs = options.finetune.epochs or data.task.epochs
    size = len(data.train.tokens)
    self.steps = batches.num_steps(size, options.batch_size, epochs)
    # At least one evaluation, unless there are 0 per epoch.
    count = max(round(options.finetune.evals_per_epoch * epochs), 1)
    evals = {round(self.steps * (i + 1) / count) for i in range(count)}
    self.eval_steps = evals - {0, self.steps}
    self.predictor = evaluate.Predictor(options, model)
    mesh, spec = self.predictor.mesh, options.mesh_spec
    tx, self.learning_rate = make_optimizer(options, model, self.steps)

    def init_state(params: optax.Params, seed: int) -> step_lib.TrainState:
      return step_lib.init_state(lambda _: params, tx, seed)

    shapes = jax.eval_shape(init_state, pretrain.param_shapes(model), 0)
    shardings = sharding.tree_shardings(shapes, mesh, spec)
    self.init_state = jax.jit(init_state, out_shardings=shardings)
    self.abstract = jax.tree.map(
      lambda x, y: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=y),
      shapes,
      shardings,
    )
    terms = functools.partial(
      task_losses.task_terms,
      kind=data.task.kind,
      model=self.predictor.model,
      train=True,
      reduction=options.finetune.loss,
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
      compiler_options=cpu.compiler_options(),
    )

  def describe(self) -> str:
    """Describes rows and recipe in one line."""
    o, data, width = self.options, self.data, self.model.config.width
    texts = (
      f"{data.task.title}: {len(data.train.tokens):,} training rows",
      f"{len(data.dev.examples):,} dev examples",
      f"{self.steps:,} steps of {o.batch_size} rows",
      f"peak learning rate {o.peak_rate(width):g}",
      f"layer decay {o.decay(width):g}, head {self.model.head!r}",
      f"attention {self.predictor.attention}",
      f"{data.train.num_cut:,} rows truncated",
      *data.notes,
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
  check: Callable[[], None],
  console: Console,
  lease: Lease,
) -> Iterator["SeedRun"]:
  """Trains one run to its last step, and yields it.

  It continues from its newest undamaged checkpoint. When `check`, which is
  called before each batch, raises Stopped, in the body, too, a checkpoint is
  saved; before an export, too, which may fail. The folder receives metrics,
  checkpoints, and the rows of skipped updates.
  """
  with contextlib.ExitStack() as stack:
    checkpoints = checkpoints_lib.Checkpoints(
      folder / files.CHECKPOINTS, lease=lease
    )
    stack.callback(checkpoints.close)
    run = SeedRun(setup, seed, check, console)
    state = run.restore_newest(checkpoints)
    if state is None:
      state = setup.init_state(make_params(), seed)

    def describe(record: metrics.Record) -> str:
      scores = run.evaluations[str(record["step"])]
      return f"dev at {record['step']:,}: {leaderboard.format_scores(scores)}"

    first, config = run.first_step, setup.provenance[results.CONFIG]
    line = metrics.ProgressLine(
      console, setup.steps, first_step=first, describe=describe
    )
    logged = metrics.LoggedRun(folder, first, config, owner=lease.owner)
    run.write, run.flush_log = stack.enter_context(
      metrics.open_writers(setup.options.log.writers, logged, line)
    )
    # A stop after an evaluation may have come before the next checkpoint.
    records = files.read_records(folder)
    steps = {x["step"] for x in records if x["split"] == "dev"}
    run.written = {step for step in steps if step <= first}
    loop = run.make_loop(state, checkpoints, folder)
    try:
      run.train(loop)
      if setup.options.finetune.export == "all":
        run.save(loop)
      yield run
    except Stopped:
      run.save(loop, last=True)
      raise


class SeedRun:
  """A run of a task with a seed, and the functions of its training loop.

  Attributes:
    first_step: number of steps of the checkpoint that it continues.
    earlier_secs: duration of these steps.
    written: steps of the evaluations that metrics.jsonl has from the start.
    params: at the end, those of `step`.
  """

  params: optax.Params
  step: int
  secs: float

  def __init__(
    self,
    setup: TrainingSetup,
    seed: int,
    check: Callable[[], None],
    console: Console,
  ):
    self.setup, self.seed, self.check = setup, seed, check
    self.clock = speed.Clock(setup.steps)
    self.report = functools.partial(console.print, soft_wrap=True)
    self.answer = functools.partial(
      setup.predictor.answer, console=console, check=check
    )
    self.first_step, self.earlier_secs, self.failure = 0, 0.0, ""
    self.write: Callable[[metrics.Record], None] = print
    self.flush_log: Callable[[], None] = print
    self.written, self.evaluations = set[int](), dict[str, dict[str, float]]()
    self.losses: tuple[float, float] = (math.nan, math.nan)

  def make_loop(
    self,
    state: step_lib.TrainState,
    checkpoints: checkpoints_lib.Checkpoints,
    folder: pathlib.Path,
  ) -> loop_lib.Loop:
    """Makes the training loop; `folder` receives rows of skipped updates."""
    options, mesh = self.setup.options, self.setup.predictor.mesh
    timer = guards.SaveTimer(60 * options.finetune.save_minutes, mesh)
    return loop_lib.Loop(
      state=state,
      take_step=self.take_step,
      loss_weights=LOSS_WEIGHTS,
      learning_rate=self.setup.learning_rate,
      log_every=options.log.every_steps,
      log=self.log,
      flush_log=self.flush_log,
      is_evaluated=lambda done: done in self.setup.eval_steps,
      evaluate=self.evaluate,
      poll=self.check,
      is_saved=lambda _: timer.is_due(),
      content=self.content,
      checkpoints=checkpoints,
      report=self.report,
      guard=guards.SkipGuard(folder, options.optim.max_skips),
      clock=self.clock,
    )

  def content(
    self, state: step_lib.TrainState
  ) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns arrays and description of a checkpoint."""
    resumable = {
      "evaluations": dict(self.evaluations),
      "losses": self.losses,
      "secs": self._measure_secs(int(state.step)),
    }
    description = {PROVENANCE: self.setup.provenance, PROGRESS: resumable}
    return vars(state), description

  def save(self, loop: loop_lib.Loop, *, last: bool = False) -> None:
    """Saves a checkpoint, unless something is not finite."""
    if not self.failure:
      with contextlib.suppress(NonFiniteError):
        loop.save(last=last)

  def restore_newest(
    self, checkpoints: checkpoints_lib.Checkpoints
  ) -> step_lib.TrainState | None:
    """Restores the newest undamaged step; None without steps."""

    def restore(step: int) -> step_lib.TrainState:
      saved = checkpoints.read_description(step)[PROGRESS]
      self.evaluations = saved["evaluations"]
      self.losses, self.earlier_secs = tuple(saved["losses"]), saved["secs"]
      arrays = checkpoints.restore_state(step, vars(self.setup.abstract))
      return step_lib.TrainState(**arrays)

    resumed = checkpoints.read_newest(restore, self.report)
    if resumed is None:
      return None
    self.first_step, state = resumed
    self.report(f"  resuming at step {self.first_step:,}")
    return state

  def train(self, loop: loop_lib.Loop) -> None:
    """Trains to the end."""
    try:
      # A signal may have come in the evaluation.
      if self.first_step in self.setup.eval_steps:
        self.evaluate(loop.done, loop.state)
      loop.run()
    except NonFiniteError:
      self.failure = f"loss or gradients not finite at step {loop.done:,}"
    self.params, self.step = loop.state.params, loop.done
    self.secs = self._measure_secs(loop.done)

  def make_result(self) -> results.Result:
    """Answers and scores the splits after training."""
    setup, data = self.setup, self.setup.data
    answers, scores, mistakes = {}, {}, list[dict[str, Any]]()
    for name, split in data.splits.items():
      title = f"Answering {name}, rows"
      outputs, answers_Q = self.answer(self.params, split, title=title)
      answers[name] = split.to_json(answers_Q)
      if split is data.dev:
        mistakes = evaluate.find_mistakes(split, outputs, answers_Q)
      if split.golds:
        scores[name] = split.score(answers_Q)
    dev = answers["dev"]
    useless = evaluate.find_failure(dev["golds"], dev["answers"])
    return results.Result(
      task=setup.name,
      seed=self.seed,
      failure=self.failure or useless,
      scores=scores,
      step=self.step,
      steps=setup.steps,
      evaluations=self.evaluations,
      losses=self.losses,
      secs=self.secs,
      rows_per_s=self.step * setup.options.batch_size / self.secs,
      answers=answers,
      provenance=setup.provenance,
      notes=list(data.notes),
      mistakes=mistakes,
    )

  def take_step(
    self, state: step_lib.TrainState, done: int
  ) -> loop_lib.StepResult:
    """Trains on the batch of a step."""
    setup, options = self.setup, self.setup.options
    batch = batches.batch_at(
      setup.data.train,
      done,
      batch_size=options.batch_size,
      seed=self.seed,
      limit=options.length,
      window=options.finetune.window,
    )
    on_device = sharding.place_batch(batch, setup.predictor.mesh)
    return *setup.train_step(state, on_device, {}), on_device["row"]

  def log(self, record: dict[str, Any]) -> None:
    """Writes a record of training."""
    loss, done = record.pop("loss"), record["step"]
    first = loss if math.isnan(self.losses[0]) else self.losses[0]
    self.losses = first, loss
    secs = self.clock.secs_per_step(done)
    record["rows_per_s"] = self.setup.options.batch_size / secs
    self.write(record | {"eta_s": self.clock.eta_secs(done)})

  def evaluate(self, done: int, state: step_lib.TrainState) -> None:
    """Scores the dev set and writes a record."""
    if str(done) not in self.evaluations:
      dev = self.setup.data.dev
      _, answers_Q = self.answer(state.params, dev, title="Evaluating, rows")
      self.evaluations[str(done)] = scores = dev.score(answers_Q)
      if done not in self.written:
        self.write({"step": done, "split": "dev", **scores})

  def _measure_secs(self, done: int) -> float:
    steps = done - self.first_step
    return self.earlier_secs + self.clock.secs_per_step(done) * steps
