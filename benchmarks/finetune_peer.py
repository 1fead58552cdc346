"""Compares fine-tuning with PyTorch and transformers: losses, speed, scores.

  python benchmarks/finetune_peer.py --init=FOLDER --data=glue --threads=2

Both sides start from one folder in Hugging Face's format (BERT or a
discriminator) with the same new head, and see the same batches. "jax" is the
fine-tuning of configs/finetune_glue.py with the head of transformers; "torch"
the model of transformers with an optimizer that is written here in PyTorch.

1. Losses of --plain_steps steps without dropout. The first update has a rate of
   0: the first two losses compare the networks, the others also the gradients
   and the optimizer. Returns 1 if the first two differ by more than 1e-4.
2. Speed with dropout: --pairs turns of --turn_steps steps of each side, on the
   first --threads cores. Useless if other processes use these cores, as
   PyTorch's threads then wait for each other.
3. Whole runs with dropout, which each side draws in its own way: the dev score
   for each of --seeds (none with --seeds=), and the difference of the means.

Runs on the CPU, offline, and writes nothing. Needs PyTorch and transformers.
"""

import argparse
import dataclasses
import functools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import numpy as np  # noqa: E402
import steps  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from rich.console import Console  # noqa: E402
from torch import nn  # noqa: E402

from truenegs_jax.configs import finetune_glue  # noqa: E402
from truenegs_jax.finetune import loop, task_data  # noqa: E402
from truenegs_jax.finetune.start import Start, resolve  # noqa: E402
from truenegs_jax.finetune.task_data import (  # noqa: E402
  EvalSplit,
  FinetuneOptions,
  TaskData,
  parse_options,
)
from truenegs_jax.tasks import batches, task  # noqa: E402
from truenegs_jax.train import optim, sharding  # noqa: E402
from truenegs_jax.weights import hf_names  # noqa: E402

Batch = dict[str, np.ndarray]
TASKS = [name for name, t in task.TASKS.items() if t.kind == task.CLASSES]
TOLERANCE = 1e-4


def main(argv: Sequence[str] | None = None) -> int:
  """Compares both sides; returns 1 if the losses differ."""
  args = _parse_arguments(argv)
  if hasattr(os, "sched_setaffinity"):  # Linux; XLA starts a thread per core
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
  torch.set_num_threads(args.threads)
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  c = finetune_glue.get_config(args.task)
  c.init = args.init
  c.init_skip = "head"
  c.optim.lr = args.lr
  c.finetune.data = args.data
  c.finetune.epochs = args.epochs
  recipe = parse_options(c.to_dict())
  initial = resolve(recipe, print)
  data = task_data.read_task_data(recipe, args.task, initial.tokenizer)
  sides = make_sides(initial, recipe, data)
  num_steps = sides["jax"].num_steps
  print(
    f"{data.task.title}: {len(data.train.tokens):,} training rows,"
    f" {len(data.dev.examples):,} dev rows, {num_steps:,} steps of"
    f" {recipe.batch_size}, lr {args.lr:g}; jax {jax.__version__}, torch"
    f" {torch.__version__}, transformers {transformers.__version__},"
    f" {args.threads} threads"
  )
  plain_batches = make_batches(recipe, data, args.plain_steps)
  difference = compare_losses(sides, plain_batches)
  compare_speed(sides, make_batches(recipe, data, args.turn_steps), args.pairs)
  scores: dict[str, list[float]] = {name: [] for name in sides}
  for seed in args.seeds:
    run_batches = make_batches(recipe, data, num_steps, seed)
    for name, side in sides.items():
      scores[name].append(score_run(name, side, run_batches, seed, data.dev))
  print_means(scores)
  return int(not difference <= TOLERANCE)


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  add = parser.add_argument
  add("--init", required=True, help="Folder of the weights.")
  add("--data", required=True, help="Folder with MRPC/ etc.")
  add("--task", choices=TASKS, default="mrpc")
  add("--threads", type=int, default=1)
  add("--seeds", default="0,1,2")
  add("--epochs", type=float, default=0.0)
  add("--lr", type=float, default=3e-4)
  add("--plain_steps", type=int, default=20)
  add("--pairs", type=int, default=10)
  add("--turn_steps", type=int, default=10)
  args = parser.parse_args(argv)
  args.seeds = [int(seed) for seed in args.seeds.split(",") if seed]
  return args


class JaxSide:
  """The fine-tuning of truenegs_jax."""

  def __init__(self, initial: Start, data: TaskData, params: dict[str, Any]):
    self._params = params
    self._setups = {}
    for dropout in (0.0, 0.1):
      names = ("dropout", "attention_dropout", "head_dropout")
      network = {**initial.network, **dict.fromkeys(names, dropout)}
      changed = dataclasses.replace(initial, network=network)
      self._setups[dropout > 0] = loop.TrainingSetup(
        changed.options, changed.make_model(data.task), data, {}
      )
    self.num_steps = self._setups[True].steps

  def start(self, seed: int) -> None:
    """Begins a run with the first weights and a new optimizer."""
    self._state = self._setups[True].init_state(self._params, seed)

  def step(self, batch: Batch, *, dropout: bool = True) -> jax.Array:
    """Updates the weights once; returns the loss, not waited for."""
    setup = self._setups[dropout]
    on_device = sharding.shard_batch(batch, setup.predictor.mesh)
    self._state, terms = setup.train_step(self._state, on_device, {})
    total, count = terms["loss"]
    return total / count

  def answer(self, split: EvalSplit) -> Sequence[Any]:
    """Returns the answers to a split."""
    predictor = self._setups[True].predictor
    console = Console(quiet=True)
    params = self._state.params
    return predictor.answer(params, split, console=console, title="Rows")


class TorchSide:
  """The model of transformers with ELECTRA's optimizer, as a `JaxSide`."""

  def __init__(
    self, recipe: FinetuneOptions, model: nn.Module, decay: float, count: int
  ):
    self._recipe = recipe
    self._model = model
    self._num_steps = count
    self._weights = {k: v.clone() for k, v in model.state_dict().items()}
    top = model.config.num_hidden_layers + 2
    depths = [get_depth(name, top) for name, _ in model.named_parameters()]
    self._factors = [decay ** (top - depth) for depth in depths]

  def start(self, seed: int) -> None:
    torch.manual_seed(seed)
    self._model.load_state_dict(self._weights)
    params = list(self._model.parameters())
    self._count = 0
    self._means = [torch.zeros_like(p) for p in params]
    self._squares = [torch.zeros_like(p) for p in params]

  def step(self, batch: Batch, *, dropout: bool = True) -> torch.Tensor:
    self._model.train(dropout)
    real = {name: x[batch["row"] >= 0] for name, x in batch.items()}
    label_B = torch.from_numpy(real["label"]).long()
    loss = nn.functional.cross_entropy(self._forward(real), label_B)
    self._model.zero_grad()
    loss.backward()
    self._update()
    return loss.detach()

  @torch.no_grad()
  def answer(self, split: EvalSplit) -> Sequence[Any]:
    self._model.eval()
    logits_by_row: dict[int, np.ndarray] = {}
    for batch in batches.batches_in_order(
      split.encoded,
      batch_size=self._recipe.batch_size,
      limit=self._recipe.length,
    ):
      logits_BxC = self._forward(batch).numpy()
      logits_by_row |= dict(zip(batch["row"].tolist(), logits_BxC, strict=True))
    rows = range(len(split.encoded.tokens))
    return split.decode_answers([logits_by_row[row] for row in rows])

  def _forward(self, batch: Batch) -> torch.Tensor:
    names = ("tokens", "documents", "types")  # ids, attention mask, types
    return self._model(*(torch.from_numpy(batch[k]) for k in names)).logits

  @torch.no_grad()
  def _update(self) -> None:
    adam = self._recipe.optim
    t = self._count
    warmup_steps = round(self._recipe.finetune.warmup * self._num_steps)
    rate = adam.lr * max(1 - t / self._num_steps, 0)
    rate *= min(1, t / max(warmup_steps, 1))
    params = list(self._model.parameters())
    norm = torch.stack([p.grad.norm() for p in params]).norm()
    scale = 1 / max(float(norm), 1.0)
    for p, factor, m, v in zip(
      params, self._factors, self._means, self._squares, strict=True
    ):
      g = p.grad.mul_(scale)
      m.lerp_(g, 1 - optim.MEAN_DECAY)
      v.mul_(adam.b2).addcmul_(g, g, value=1 - adam.b2)
      p.addcdiv_(m, v.sqrt().add_(optim.EPSILON), value=-rate * factor)
    self._count += 1


Side = JaxSide | TorchSide
Sides = dict[str, Side]  # "torch" and "jax", in this order


def get_depth(name: str, top: int) -> int:
  """Returns a parameter's depth: 0 for the embeddings, `top` for the head."""
  module, *inner = name.split(".")[1:]
  if module in ("embeddings", "embeddings_project"):
    return 0
  return int(inner[1]) + 1 if module == "encoder" else top


def make_sides(
  initial: Start, recipe: FinetuneOptions, data: TaskData
) -> Sides:
  """Makes both sides; exits if they do not load the same weights."""
  model = initial.make_model(data.task)
  params = initial.make_params(data.task, 0)
  auto = transformers.AutoModelForSequenceClassification
  torch_model, info = auto.from_pretrained(
    initial.weights.init,
    num_labels=len(data.task.labels),
    ignore_mismatched_sizes=True,
    output_loading_info=True,
  )
  values = hf_names.to_huggingface(params, model, initial.role)
  for name, p in torch_model.named_parameters():
    value = torch.from_numpy(np.array(values[name]))
    if name in info["missing_keys"] or name.startswith("classifier."):
      p.data.copy_(value)
    elif not torch.equal(p, value):
      raise SystemExit(f"error: The sides loaded different values of {name!r}.")
  jax_side = JaxSide(initial, data, params)
  decay = recipe.decay(model.config.width)
  torch_side = TorchSide(recipe, torch_model, decay, jax_side.num_steps)
  return {"torch": torch_side, "jax": jax_side}


def make_batches(
  recipe: FinetuneOptions, data: TaskData, count: int, seed: int = 0
) -> list[Batch]:
  """Makes the batches of a run's first steps."""
  sizes = {"batch_size": recipe.batch_size, "limit": recipe.length}
  return [
    batches.batch_at(data.train, t, seed=seed, **sizes) for t in range(count)
  ]


def compare_losses(sides: Sides, run_batches: list[Batch]) -> float:
  """Prints losses without dropout; returns the first two's difference."""
  losses = []
  for side in sides.values():
    side.start(0)
    losses.append([float(side.step(b, dropout=False)) for b in run_batches])
  print("Without dropout:\nstep  length  torch       jax         difference")
  for t, (a, b) in enumerate(zip(*losses, strict=True)):
    length = run_batches[t]["tokens"].shape[1]
    print(f"{t:4}  {length:6}  {a:.8f}  {b:.8f}  {abs(a - b):.1e}")
  return float(np.abs(np.subtract(*losses))[:2].max())


def compare_speed(sides: Sides, run_batches: list[Batch], pairs: int) -> None:
  """Prints each side's rows/s with dropout, in turns, and their ratio."""

  def run_steps(side: Side) -> None:
    losses = [side.step(batch) for batch in run_batches]
    _ = [float(loss) for loss in losses]  # waits for them

  for side in sides.values():
    side.start(0)
  calls = {name: functools.partial(run_steps, x) for name, x in sides.items()}
  secs = steps.time_in_turns(calls, pairs)
  rows = sum(batch["weight"].sum() for batch in run_batches)
  print(f"With dropout, {pairs} pairs of {len(run_batches)} steps:")
  for name, values in secs.items():
    print(f"{name:5}  {rows / np.median(values):.1f} rows/s")
  ratio = steps.paired_ratio(secs["torch"], secs["jax"])
  print(f"jax / torch: {ratio} times as many")


def score_run(
  name: str, side: Side, run_batches: list[Batch], seed: int, dev: EvalSplit
) -> float:
  """Trains a side with dropout; prints and returns its score on the dev set."""
  start = time.perf_counter()
  side.start(seed)
  losses = [float(side.step(batch)) for batch in run_batches]
  secs = time.perf_counter() - start
  scores = dev.score(side.answer(dev))
  metric, score = next(iter(scores.items()))
  print(
    f"seed {seed}  {name:5}  {metric} {score:.2f}, mean loss of the last 20"
    f" steps {np.mean(losses[-20:]):.4f}, {secs:.0f} s"
  )
  return score


def print_means(scores: dict[str, list[float]]) -> None:
  """Prints the means over seeds, and their difference with standard error."""
  if len(scores["jax"]) < 2:
    return
  torch_mean, jax_mean = map(statistics.mean, scores.values())
  variances = map(statistics.variance, scores.values())
  error = (sum(variances) / len(scores["jax"])) ** 0.5
  print(
    f"means: torch {torch_mean:.2f}, jax {jax_mean:.2f}, difference"
    f" {jax_mean - torch_mean:+.2f} with a standard error of {error:.2f}"
  )


if __name__ == "__main__":
  sys.exit(main())
