"""Trains our tagger and transformers' on the same batches, and compares losses.

  python studies/ner/lockstep.py MODEL TRAIN DEV STEPS

Both start from the same weights and head, without dropout. PyTorch gets our
batches, our learning rates and an Adam without bias correction, written
here. Each step prints both losses and norms of gradients.
"""

import sys
from typing import Any

import jax
import numpy as np
import torch
import transformers

from truenegs_jax.config.load import load_config
from truenegs_jax.finetune import loop, start, task_data
from truenegs_jax.tasks import batches
from truenegs_jax.train import optim, sharding

SETTINGS = {
  "finetune.layer_decay": 1.0,
  "optim.lr": 1e-4,
  "model.dropout": 0.0,
  "finetune.head_dropout": 0.0,
}


def make_peer(folder: str, labels: int, params: dict[str, Any]) -> Any:
  """Returns the model of transformers with our head, without dropout."""
  model = transformers.AutoModelForTokenClassification.from_pretrained(
    folder,
    num_labels=labels,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    classifier_dropout=0.0,
  )
  head = params["task_head"]["output"]
  with torch.no_grad():
    model.classifier.weight.copy_(torch.tensor(np.array(head["kernel"]).T))
    model.classifier.bias.copy_(torch.tensor(np.array(head["bias"])))
  return model.train()


class PlainAdam:
  """Adam without bias correction."""

  def __init__(self, params: list[torch.Tensor], b2: float):
    self._params = params
    self._b2 = b2
    self._means = [torch.zeros_like(x) for x in params]
    self._squares = [torch.zeros_like(x) for x in params]

  @torch.no_grad()
  def step(self, rate: float) -> None:
    """Updates all parameters that have gradients."""
    b1 = optim.MEAN_DECAY
    parts = zip(self._params, self._means, self._squares, strict=True)
    for x, mean, square in parts:
      if x.grad is not None:
        mean.mul_(b1).add_(x.grad, alpha=1 - b1)
        square.mul_(self._b2).addcmul_(x.grad, x.grad, value=1 - self._b2)
        x.sub_(rate * mean / (square.sqrt() + optim.EPSILON))


def main(folder: str, train: str, dev: str, steps: str) -> None:
  c = load_config("finetune_ner")
  files = {"init": folder, "finetune.train": train, "finetune.dev": dev}
  c.update_from_flattened_dict(SETTINGS | files)
  options = task_data.parse_options(c.to_dict())
  started = start.resolve(options, print)
  data = task_data.read_task_data(options, "own", started.tokenizer)
  setup = loop.TrainingSetup(options, started.make_model(data.task), data, {})
  params = started.make_params(data.task, 0)
  peer = make_peer(folder, len(data.task.labels), params)
  peer_params = [*peer.parameters()]
  adam = PlainAdam(peer_params, options.optim.b2)
  state = setup.init_state(jax.tree.map(np.array, params), 0)
  for step in range(int(steps)):
    batch = batches.batch_at(
      data.train, step, batch_size=32, seed=0, limit=options.length
    )
    on_device = sharding.place_batch(batch, setup.predictor.mesh)
    state, terms = setup.train_step(state, on_device, {})
    total, count = terms["loss"]
    tags = np.where(batch["tags"] < 0, -100, batch["tags"])
    output = peer(
      input_ids=torch.tensor(batch["tokens"]).long(),
      attention_mask=torch.tensor(batch["documents"]).long(),
      labels=torch.tensor(tags).long(),
    )
    peer.zero_grad()
    output.loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(peer_params, optim.CLIP_NORM)
    adam.step(float(setup.learning_rate(step)))
    print(
      f"{step}: loss {total / count:.6f} and {output.loss:.6f}, norm"
      f" {terms['grad_norm'][0]:.5f} and {norm:.5f}",
      flush=True,
    )


if __name__ == "__main__":
  main(*sys.argv[1:])
