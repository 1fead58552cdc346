"""Whether fine-tuning is what it is in PyTorch with transformers, and as fast.

  python benchmarks/finetune_peer.py --init=FOLDER --data=glue --threads=2

Both sides start from one folder in Hugging Face's format (BERT or a
discriminator) with one new head, ours, and see the same batches. Ours is what
configs/finetune_glue.py runs, with the head that transformers has; its
optimizer is written a second time, in PyTorch.

1. Without dropout: the losses of --plain_steps steps. As the first step has a
   rate of 0, the first two compare the networks; the others the gradients and
   the optimizer, too. Returns 1 where the first two differ by more than 1e-4.
2. Speed, with dropout: --pairs turns of --turn_steps steps of each side, A B B
   A, in one process, on the first --threads cores that it may use; the first
   turn, which compiles, does not count. Where others use these cores PyTorch's
   threads wait for one another, and nothing is learned.
3. Whole runs with dropout, which is drawn in another way on each side: the dev
   set's score for each of --seeds, and how far the means are apart beside their
   standard error. --seeds= leaves this out.

On the CPU, without the network; writes nothing. Needs PyTorch, transformers.
"""

import argparse
import dataclasses
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
import torch  # noqa: E402
import transformers  # noqa: E402

from truenegs_jax.configs import finetune_glue  # noqa: E402
from truenegs_jax.finetune import (  # noqa: E402
  initial_weights,
  loop,
  task_data,
)
from truenegs_jax.finetune.config_checks import FinetuneOptions  # noqa: E402
from truenegs_jax.tasks import batches, glue, task  # noqa: E402
from truenegs_jax.train import sharding  # noqa: E402
from truenegs_jax.weights.formats import hf_names  # noqa: E402

Batch = dict[str, np.ndarray]
Sides = dict[str, Any]  # "torch" and "ours"
TASKS = [name for name, t in glue.TASKS.items() if t.kind == task.CLASSES]
TOLERANCE = 1e-4


def main(argv: Sequence[str] | None = None) -> int:
  """Prints what was found; returns 1 where the two are different networks."""
  flags = _flags(argv)
  if hasattr(os, "sched_setaffinity"):  # Linux; XLA then has as many threads
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: flags.threads])
  torch.set_num_threads(flags.threads)
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  c = finetune_glue.get_config(flags.task)
  c.init, c.init_skip, c.optim.lr = flags.init, "head", flags.lr
  c.finetune.data, c.finetune.epochs = flags.data, flags.epochs
  initial = initial_weights.open_weights(c, report=print)
  recipe = FinetuneOptions.from_config(c)
  data = task_data.read_task_data(recipe, flags.task, initial.tokenizer)
  sides = make_sides(initial, recipe, data)
  steps = sides["ours"].steps
  print(
    f"{data.task.title}: {len(data.train.tokens):,} rows to train on,"
    f" {len(data.dev.keys):,} to judge by, {steps:,} steps of"
    f" {recipe.batch_size}, lr {flags.lr:g}; jax {jax.__version__}, torch"
    f" {torch.__version__}, transformers {transformers.__version__},"
    f" {flags.threads} threads"
  )
  gap = same_losses(sides, batches_of(recipe, data, flags.plain_steps))
  compare_speed(sides, batches_of(recipe, data, flags.turn_steps), flags.pairs)
  scores: dict[str, list[float]] = {name: [] for name in sides}
  for seed in flags.seeds:
    run(sides, batches_of(recipe, data, steps, seed), seed, data.dev, scores)
  summarize(scores)
  return int(not gap <= TOLERANCE)


def _flags(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--init", required=True, help="folder of the weights")
  parser.add_argument("--data", required=True, help="folder with MRPC/ ...")
  parser.add_argument("--task", choices=TASKS, default="mrpc")
  parser.add_argument("--threads", type=int, default=1)
  parser.add_argument("--seeds", default="0,1,2")
  parser.add_argument("--epochs", type=float, default=0.0)
  parser.add_argument("--lr", type=float, default=3e-4)
  parser.add_argument("--plain_steps", type=int, default=20)
  parser.add_argument("--pairs", type=int, default=10)
  parser.add_argument("--turn_steps", type=int, default=10)
  flags = parser.parse_args(argv)
  flags.seeds = [int(seed) for seed in flags.seeds.split(",") if seed]
  return flags


def make_sides(
  initial: initial_weights.InitialWeights,
  recipe: FinetuneOptions,
  data: task_data.TaskData,
) -> Sides:
  """Both sides; ends the program where they do not load the same weights."""
  model = initial.make_model(data.num_outputs)
  params = initial.make_params(model, data.task, 0, report=print)
  auto = transformers.AutoModelForSequenceClassification
  theirs, info = auto.from_pretrained(
    initial.weights.init,
    num_labels=data.num_outputs,
    ignore_mismatched_sizes=True,
    output_loading_info=True,
  )
  values = hf_names.to_huggingface(params, model, initial.role)
  for name, p in theirs.named_parameters():
    value = torch.from_numpy(np.array(values[name]))
    if name in info["missing_keys"] or name.startswith("classifier."):
      p.data.copy_(value)
    elif not torch.equal(p, value):
      raise SystemExit(f"{name} is not the same on both sides.")
  ours = Ours(initial, recipe, data, params)
  decay = recipe.decay(model.config.width)
  return {"torch": Theirs(recipe, theirs, decay, ours.steps), "ours": ours}


class Ours:
  """The fine-tuning of truenegs_jax."""

  def __init__(
    self,
    initial: initial_weights.InitialWeights,
    recipe: FinetuneOptions,
    data: task_data.TaskData,
    params: dict[str, Any],
  ):
    self._params, self._setups = params, {}
    for dropout in (0.0, 0.1):
      names = ("dropout", "attention_dropout", "head_dropout")
      options = {**initial.model_options, **dict.fromkeys(names, dropout)}
      changed = dataclasses.replace(initial, model_options=options)
      model = changed.make_model(data.num_outputs)
      self._setups[dropout > 0] = loop.make_setup(recipe, model, data)
    self.steps = self._setups[True].steps

  def start(self, seed: int) -> None:
    self._state = self._setups[True].init_state(self._params, seed)

  def step(self, batch: Batch, *, dropout: bool = True) -> Any:
    t = self._setups[dropout]
    on_device = sharding.shard_batch(batch, t.mesh)
    self._state, terms = t.train_step(self._state, on_device, {})
    total, count = terms["loss"]
    return total / count

  def predict(self, encoded: task.EncodedRows) -> list[np.ndarray]:
    return loop.predict(self._setups[True], self._state.params, encoded)


class Theirs:
  """The model of transformers, and ELECTRA's optimizer in PyTorch."""

  def __init__(
    self,
    recipe: FinetuneOptions,
    model: torch.nn.Module,
    decay: float,
    steps: int,
  ):
    self._recipe, self._model, self._steps = recipe, model, steps
    self._saved = {k: v.clone() for k, v in model.state_dict().items()}
    top = model.config.num_hidden_layers + 2
    depths = [depth(name, top) for name, _ in model.named_parameters()]
    self._factors = [decay ** (top - depth) for depth in depths]

  def start(self, seed: int) -> None:
    torch.manual_seed(seed)
    self._model.load_state_dict(self._saved)
    zeros = lambda: [torch.zeros_like(p) for p in self._model.parameters()]
    self._done, self._means, self._squares = 0, zeros(), zeros()

  def step(self, batch: Batch, *, dropout: bool = True) -> Any:
    self._model.train(dropout)
    real = {name: x[batch["row"] >= 0] for name, x in batch.items()}
    label_B = torch.from_numpy(real["label"]).long()
    loss = torch.nn.functional.cross_entropy(self._forward(real), label_B)
    self._model.zero_grad()
    loss.backward()
    self._update()
    return loss.detach()

  @torch.no_grad()
  def predict(self, encoded: task.EncodedRows) -> list[np.ndarray]:
    self._model.eval()
    found = {}
    for batch in batches.batches_in_order(
      encoded, batch_size=self._recipe.batch_size, limit=self._recipe.length
    ):
      said = self._forward(batch).numpy()
      found |= dict(zip(batch["row"].tolist(), said, strict=True))
    return [found[row] for row in range(len(encoded.tokens))]

  def _forward(self, batch: Batch) -> torch.Tensor:
    names = ("tokens", "documents", "types")  # in the order of their arguments
    return self._model(*(torch.from_numpy(batch[k]) for k in names)).logits

  @torch.no_grad()
  def _update(self) -> None:
    adam, t, warmup = self._recipe.adam, self._done, self._recipe.warmup
    rate = self._recipe.lr * max(1 - t / self._steps, 0)
    rate *= min(1, t / max(round(warmup * self._steps), 1))
    params = list(self._model.parameters())
    norm = torch.stack([p.grad.norm() for p in params]).norm()
    scale = 1 / max(float(norm), 1.0)
    for p, factor, m, v in zip(
      params, self._factors, self._means, self._squares, strict=True
    ):
      g = p.grad.mul_(scale)
      m.lerp_(g, 1 - adam["b1"])
      v.mul_(adam["b2"]).addcmul_(g, g, value=1 - adam["b2"])
      p.addcdiv_(m, v.sqrt().add_(adam["epsilon"]), value=-rate * factor)
    self._done += 1


def depth(name: str, top: int) -> int:
  """Of a parameter of transformers: 0 the embeddings, `top` the head."""
  part, *inner = name.split(".")[1:]
  if part in ("embeddings", "embeddings_project"):
    return 0
  return int(inner[1]) + 1 if part == "encoder" else top


def batches_of(
  recipe: FinetuneOptions, data: task_data.TaskData, steps: int, seed: int = 0
) -> list[Batch]:
  """The first batches of a run."""
  sizes = dict(batch_size=recipe.batch_size, limit=recipe.length)
  return [
    batches.batch_at(data.train, t, seed=seed, **sizes) for t in range(steps)
  ]


def same_losses(sides: Sides, given: list[Batch]) -> float:
  """Without dropout; returns how far apart the first two losses are."""
  losses = []
  for side in sides.values():
    side.start(0)
    losses.append([float(side.step(b, dropout=False)) for b in given])
  print("Without dropout:\nstep  length  torch       ours        apart")
  for t, (a, b) in enumerate(zip(*losses, strict=True)):
    length = given[t]["tokens"].shape[1]
    print(f"{t:4}  {length:6}  {a:.8f}  {b:.8f}  {abs(a - b):.1e}")
  return float(np.abs(np.subtract(*losses))[:2].max())


def compare_speed(sides: Sides, given: list[Batch], pairs: int) -> None:
  """Rows of training a second in turns, and their ratios."""
  rows = sum(batch["weight"].sum() for batch in given)
  speeds: dict[str, list[float]] = {name: [] for name in sides}
  for turn in range(pairs + 1):
    for name, side in list(sides.items())[:: -1 if turn % 2 else 1]:
      if turn == 0:  # compiles, and does not count
        side.start(0)
      start = time.perf_counter()
      losses = [side.step(batch) for batch in given]
      _ = [float(loss) for loss in losses]  # waits for them
      speeds[name].append(rows / (time.perf_counter() - start))
  ratios = [b / a for a, b in zip(*speeds.values(), strict=True)]
  print(f"With dropout, rows/s, {pairs} pairs of {len(given)} steps each:")
  for name, values in {**speeds, "ours / torch": ratios}.items():
    first, *rest = values
    print(
      f"{name:12}  {statistics.median(rest):.3g} ({min(rest):.3g} to"
      f" {max(rest):.3g}); the first turn {first:.3g}"
    )


def run(
  sides: Sides, given: list[Batch], seed: int, dev: Any, scores: dict[str, list]
) -> None:
  """Trains both with dropout; adds their scores of the dev set."""
  for name, side in sides.items():
    start = time.perf_counter()
    side.start(seed)
    losses = [float(side.step(batch)) for batch in given]
    secs = time.perf_counter() - start
    found = dev.score(dev.decode_answers(side.predict(dev.encoded)))
    metric, value = next(iter(found.items()))
    scores[name].append(value)
    print(
      f"seed {seed}  {name:5}  {metric} {value:.2f}, mean loss of the last 20"
      f" steps {np.mean(losses[-20:]):.4f}, {secs:.0f} s"
    )


def summarize(scores: dict[str, list[float]]) -> None:
  """Means of the seeds, and how far apart they are by chance alone."""
  if (num := len(scores["ours"])) < 2:
    return
  theirs, ours = map(statistics.mean, scores.values())
  error = (sum(map(statistics.variance, scores.values())) / num) ** 0.5
  print(
    f"means: torch {theirs:.2f}, ours {ours:.2f}, {ours - theirs:+.2f} with a"
    f" standard error of {error:.2f}"
  )


if __name__ == "__main__":
  sys.exit(main())
