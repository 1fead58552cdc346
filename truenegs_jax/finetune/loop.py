"""Fine-tunes a network on a task, on the training step of pre-training.

What is compiled for a task serves all its seeds. A batch and every random draw
are functions of seed and step.
"""

import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax

from truenegs_jax.finetune.config_checks import FinetuneOptions
from truenegs_jax.finetune.task_data import TaskData
from truenegs_jax.models import choose_attention, finetune, pretrain
from truenegs_jax.objectives import task_losses
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.tasks import batches
from truenegs_jax.tasks.task import EncodedRows
from truenegs_jax.train import guards, metrics, optim, sharding, speed
from truenegs_jax.train import step as step_lib

Outputs = list[Any]  # of each row, in their order: arrays of numpy
# The method of the model that a head is read by; else "class_logits".
METHODS = {"spans": "span_logits", "joint": "joint_beam"}


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
  """A task made ready: all but the seed and the weights.

  Attributes:
    model: the network with its head.
    steps: of a run.
    due: steps after which the dev set is scored, spread evenly.
    rate: the learning rate of the head, by step.
    init_state: parameters and seed -> the state of step 0.
    train_step: jitted, `(state, batch, aux) -> (state, terms)`.
    predict_batch: jitted, `(params, batch) -> outputs`, the rows first.
    mesh: where the arrays are.
    attention: what computes it, for the report.
  """

  recipe: FinetuneOptions
  model: finetune.DownstreamModel
  data: TaskData
  steps: int
  due: frozenset[int]
  rate: optim.Schedule
  init_state: Callable[[Any, int], step_lib.TrainState]
  train_step: Callable[..., tuple[step_lib.TrainState, step_lib.Terms]]
  predict_batch: Callable[[Any, Mapping[str, jax.Array]], Any]
  mesh: jax.sharding.Mesh
  attention: str


@dataclasses.dataclass(frozen=True)
class TrainedRun:
  """A run that has ended.

  Attributes:
    params: on the devices, those that are kept.
    step: that they are of.
    failure: why the run did not get to its end, or "".
    evaluations: scores of the dev set on the way, by step.
    losses: the mean loss of the first and of the last records.
    secs: of training alone.
    rows_per_s: rows of training a second, compiling included.
  """

  params: Any
  step: int
  failure: str
  evaluations: dict[int, dict[str, float]]
  losses: tuple[float, float]
  secs: float
  rows_per_s: float


def make_setup(
  recipe: FinetuneOptions, model: finetune.DownstreamModel, data: TaskData
) -> TrainingSetup:
  """Everything that the runs of a task share; nothing is compiled yet."""
  epochs = recipe.epochs or data.task.epochs
  steps = batches.num_steps(len(data.train.tokens), recipe.batch_size, epochs)
  tx, rate = make_optimizer(recipe, model, steps)
  mesh = sharding.make_mesh(recipe.mesh)
  form, attention = choose_attention.choose_checked(
    recipe.attention, [model.config], mesh, length=recipe.length, packed=False
  )
  attending = choose_attention.with_attention(model, form)
  is_joint = model.head == "joint"

  terms = functools.partial(
    task_losses.task_terms,
    kind="joint" if is_joint else data.task.kind,
    model=attending,
    train=True,
    reduction=recipe.loss,
  )
  step = step_lib.make_train_step(
    sharding.gather_params(terms, mesh, recipe.mesh),
    {"loss": 1.0},
    tx,
    recipe.accumulation,
  )
  start = lambda params, seed: step_lib.init_state(lambda _: params, tx, seed)
  shapes = jax.eval_shape(start, pretrain.param_shapes(model), 0)
  places = sharding.tree_shardings(shapes, mesh, recipe.mesh)
  everywhere = sharding.replicated_sharding(mesh)

  def read(params, inputs):
    method = METHODS.get(model.head, "class_logits")
    more: dict[str, Any] = {"size": recipe.num_best} if is_joint else {}
    return attending.apply(
      {"params": params}, inputs, None, method=method, **more
    )

  often = recipe.evals_per_epoch
  number = max(round(often * epochs), min(often, 1))
  return TrainingSetup(
    recipe=recipe,
    model=model,
    data=data,
    steps=steps,
    due=frozenset(round(steps * (i + 1) / number) for i in range(number)),
    rate=rate,
    init_state=jax.jit(start, out_shardings=places),
    train_step=jax.jit(
      step, donate_argnums=0, out_shardings=(places, everywhere)
    ),
    predict_batch=jax.jit(read, out_shardings=everywhere),
    mesh=mesh,
    attention=attention,
  )


def make_optimizer(
  recipe: FinetuneOptions, model: finetune.DownstreamModel, total_steps: int
) -> tuple[optax.GradientTransformation, optim.Schedule]:
  """Adam with a rate for each layer, and the schedule of the head's."""
  width = model.config.width
  rate = optim.make_schedule(
    recipe.schedule,
    peak=recipe.peak_rate(width),
    warmup_steps=round(recipe.warmup * total_steps),
    total_steps=total_steps,
  )
  shapes: Any = pretrain.param_shapes(model)
  factors = optim.layer_lr_factors(
    shapes, decay=recipe.decay(width), exponent=recipe.layer_exponent
  )
  return optim.make_optimizer(rate, factors=factors, **recipe.adam), rate


def fine_tune(
  t: TrainingSetup,
  params: Mapping[str, Any],
  seed: int,
  folder: pathlib.Path,
  *,
  write: Callable[[dict[str, Any]], Any],
  check: Callable[[], Any],
) -> TrainedRun:
  """One run, to its last step or to where early stopping ends it.

  Args:
    t: what `make_setup` made.
    params: to start from, arrays of numpy.
    seed: of the order of the rows and of dropout.
    folder: where a step that is not finite leaves its rows.
    write: takes the records of training and of the dev set.
    check: called before each batch; what it raises ends the run.
  """
  state = t.init_state(params, seed)
  guard = guards.SkipGuard(folder, t.recipe.max_skips)
  clock = speed.Clock(t.steps)
  clock.start(0)
  course = _Course(t, write, clock, check)
  done, failure, recent = 0, "", []
  try:
    while done < t.steps and not course.is_over():
      check()
      batch = batches.batch_at(
        t.data.train,
        done,
        batch_size=t.recipe.batch_size,
        seed=seed,
        limit=t.recipe.length,
        window=t.recipe.window,
      )
      on_device = sharding.shard_batch(batch, t.mesh)
      state, terms = t.train_step(state, on_device, {})
      guard.add(done, terms["skipped"][0], batch["row"])
      recent.append(terms)
      done += 1
      if not done % t.recipe.every_steps or done == t.steps:
        course.record(done, recent)
        recent = []
      if done in t.due and done < t.steps:
        with clock.paused():
          course.judge(done, state.params)
    guard.check_pending()
  except NonFiniteError:
    failure = f"gradients that are not finite at step {done:,}"
  secs = clock.secs_per_step(done) * done
  kept, step = course.kept(done, state.params)
  return TrainedRun(
    params=kept,
    step=step,
    failure=failure,
    evaluations=course.evaluations,
    losses=(course.losses[0], course.losses[-1]),
    secs=secs,
    rows_per_s=done * t.recipe.batch_size / secs,
  )


class _Course:
  """The course of a run so far, and the parameters that were best."""

  def __init__(
    self, t: TrainingSetup, write: Callable, clock: speed.Clock, check: Callable
  ):
    self._t, self._write, self._clock, self._check = t, write, clock, check
    self.evaluations: dict[int, dict[str, float]] = {}
    self.losses: list[float] = [math.nan]
    self._best: tuple[float, int, Any] | None = None

  def record(self, done: int, recent: list[step_lib.Terms]) -> None:
    """Writes a record of training."""
    values = metrics.compute_ratios(metrics.merge_terms(jax.device_get(recent)))
    secs = self._clock.secs_per_step(done)
    self.losses = [x for x in self.losses if x == x] + [values["loss"]]
    self._write(
      {
        "step": done,
        "time": round(time.time(), 3),
        "split": "train",
        "total": values.pop("loss"),
        **values,
        "lr": float(self._t.rate(done - 1)),
        "rows_per_s": self._t.recipe.batch_size / secs,
        "eta_s": self._clock.eta_secs(done),
      }
    )

  def judge(self, done: int, params: Any) -> None:
    """Scores the dev set."""
    task, dev = self._t.data.task, self._t.data.dev
    outputs = predict(self._t, params, dev.encoded, check=self._check)
    scores = dev.score(dev.decode_answers(outputs))
    self.evaluations[done] = scores
    self._write({"step": done, "split": "dev", **scores})
    value = scores[task.metrics[0]]
    if self._best is None or value > self._best[0]:
      copy = jax.device_get(params) if self._t.recipe.keep == "best" else 0
      self._best = value, done, copy

  def is_over(self) -> bool:
    """Whether patience has run out."""
    patience = self._t.recipe.patience
    if not patience or self._best is None:
      return False
    since = [step for step in self.evaluations if step > self._best[1]]
    return len(since) >= patience

  def kept(self, done: int, params: Any) -> tuple[Any, int]:
    """The parameters that count, and their step."""
    if self._t.recipe.keep == "last":
      return params, done
    if done not in self.evaluations:
      self.judge(done, params)
    assert self._best is not None
    places = jax.tree.map(lambda x: x.sharding, params)
    return jax.device_put(self._best[2], places), self._best[1]


def predict(
  t: TrainingSetup,
  params: Any,
  encoded: EncodedRows,
  *,
  check: Callable[[], Any] = lambda: None,
) -> Outputs:
  """The head's outputs for each row, dropout off; `check` as in `fine_tune`."""
  outputs: Outputs = [None] * len(encoded.tokens)
  for batch in batches.batches_in_order(
    encoded, batch_size=t.recipe.batch_size, limit=t.recipe.length
  ):
    check()
    inputs = {name: batch[name] for name in ("tokens", "types", "documents")}
    read = jax.device_get(
      t.predict_batch(params, sharding.shard_batch(inputs, t.mesh))
    )
    for i, row in enumerate(batch["row"]):
      if row >= 0:
        outputs[row] = jax.tree.map(lambda x, i=i: np.asarray(x[i]), read)
  return outputs
