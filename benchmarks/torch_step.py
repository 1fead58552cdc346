"""Runs ELECTRA's training step in PyTorch, on the models of transformers.

The peer of benchmarks/step_peer.py, which shares no code with truenegs_jax. It
uses what is fastest in PyTorch without changing the results: slots are gathered
before the output layer (except in "stock"), samples are drawn by inverting the
cumulative distribution (50 times as fast as `multinomial`), AdamW is fused, and
attention is "eager", as "sdpa" is slower on a CPU, with or without dropout.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

ARCHITECTURES = {
  "generator": transformers.ElectraForMaskedLM,
  "discriminator": transformers.ElectraForPreTraining,
}
# ELECTRA's Adam has no bias correction. From this step on, AdamW's correction
# factors are exactly 1.
UNCORRECTED_STEP = 1e6


class Electra(nn.Module):
  """Generator and discriminator with shared embeddings, and their loss."""

  def __init__(self, inputs: Mapping[str, Any], *, stock: bool):
    """Loads the networks from the inputs of `TorchStep`."""
    super().__init__()
    self._stock = stock
    self._detect_weight = inputs["detect_weight"]
    for role, architecture in ARCHITECTURES.items():
      config = transformers.ElectraConfig(
        **inputs["configs"][role], attn_implementation="eager"
      )
      network = architecture(config)
      weights = {
        name: torch.from_numpy(x) for name, x in inputs["tensors"][role].items()
      }
      missing, unexpected = network.load_state_dict(weights, strict=False)
      if unexpected or set(missing) - {"generator_lm_head.weight"}:
        raise SystemExit(
          f"error: Weights of the {role} do not fit: {missing} are missing,"
          f" {unexpected} are unexpected."
        )
      setattr(self, role, network)
    embeddings = self.discriminator.electra.embeddings
    embeddings.word_embeddings.padding_idx = None  # [PAD]'s row is trained, too
    self.generator.electra.embeddings = embeddings
    self.generator.generator_lm_head.weight = embeddings.word_embeddings.weight

  def forward(
    self,
    tokens_BxL: Tensor,
    masked_BxL: Tensor,
    positions_BxK: Tensor,
    sampled_BxK: Tensor | None = None,
  ) -> Tensor:
    """Computes the total loss (Clark et al. 2020, section 3) without padding.

    Samples from the generator unless samples are given.
    """
    generate = self._generate_everywhere if self._stock else self._generate
    logits_BxKxV, mlm = generate(tokens_BxL, masked_BxL, positions_BxK)
    if sampled_BxK is None:
      sampled_BxK = sample(logits_BxKxV.detach())
    corrupted_BxL = tokens_BxL.scatter(1, positions_BxK, sampled_BxK)
    detect = nn.functional.binary_cross_entropy_with_logits(
      self.discriminator(corrupted_BxL).logits,
      (corrupted_BxL != tokens_BxL).float(),
    )
    return mlm + self._detect_weight * detect

  def _generate(
    self, tokens_BxL: Tensor, masked_BxL: Tensor, positions_BxK: Tensor
  ) -> tuple[Tensor, Tensor]:
    """Returns the generator's logits at the slots only, and its loss."""
    network = self.generator
    hidden_BxLxD = network.electra(masked_BxL).last_hidden_state
    size = hidden_BxLxD.shape[-1]
    index_BxKxD = positions_BxK[..., None].expand(-1, -1, size)
    hidden_BxKxD = hidden_BxLxD.gather(1, index_BxKxD)
    predictions_BxKxE = network.generator_predictions(hidden_BxKxD)
    logits_BxKxV = network.generator_lm_head(predictions_BxKxE)
    gold_BxK = tokens_BxL.gather(1, positions_BxK)
    mlm = nn.functional.cross_entropy(
      logits_BxKxV.flatten(0, 1), gold_BxK.flatten()
    )
    return logits_BxKxV, mlm

  def _generate_everywhere(
    self, tokens_BxL: Tensor, masked_BxL: Tensor, positions_BxK: Tensor
  ) -> tuple[Tensor, Tensor]:
    """Returns the same from ElectraForMaskedLM's logits at all positions."""
    gold_BxK = tokens_BxL.gather(1, positions_BxK)
    labels_BxL = torch.full_like(tokens_BxL, -100).scatter(
      1, positions_BxK, gold_BxK
    )
    output = self.generator(masked_BxL, labels=labels_BxL)
    rows_Bx1 = torch.arange(len(tokens_BxL))[:, None]
    return output.logits.detach()[rows_Bx1, positions_BxK], output.loss


def sample(logits_BxKxV: Tensor) -> Tensor:
  """Draws a token per slot from the softmax; PyTorch accumulates in f64."""
  cumulative_BxKxV = logits_BxKxV.softmax(dim=-1).cumsum(dim=-1)
  total_BxKx1 = cumulative_BxKxV[..., -1:]
  uniform_BxKx1 = torch.rand_like(total_BxKx1) * total_BxKx1
  index_BxKx1 = torch.searchsorted(cumulative_BxKxV, uniform_BxKx1, right=True)
  return index_BxKx1[..., 0].clamp_max(logits_BxKxV.shape[-1] - 1)


class TorchStep:
  """Forward, backward, gradient clipping and AdamW."""

  def __init__(
    self, inputs: Mapping[str, Any], *, mode: str, threads: int, dtype: str
  ):
    """Builds the networks; "compiled" compiles them in the first step.

    Args:
      inputs: `configs` and `tensors`: role -> Hugging Face's config and
        weights; `detect_weight`; `tokens`: arrays `[B, L]`; `slots`, `mask_id`
        and `kept`: how rows are masked; `optim`: values by the keys of
        `c.optim`, and `total_steps`.
      mode: "eager", "compiled" or "stock".
      threads: number of PyTorch's threads.
      dtype: "float32", or "bfloat16" by autocast.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # as XLA does
    torch.manual_seed(0)
    self._inputs = inputs
    self._dtype = getattr(torch, dtype)
    self._count = 0
    self._tokens = [torch.from_numpy(x).long() for x in inputs["tokens"]]
    self._model = Electra(inputs, stock=mode == "stock").train()
    self._loss = self._model
    if mode == "compiled":
      self._loss = torch.compile(self._model, dynamic=False)
    self._params = list(self._model.parameters())
    self._optimizer = self._make_optimizer()

  def step(self, draws: tuple[np.ndarray, ...] | None = None) -> float:
    """Updates the weights once; returns the loss.

    Args:
      draws: tokens, masked tokens, positions and samples; None: draws them.
    """
    if draws is None:
      inputs = self._mask(self._tokens[self._count % len(self._tokens)])
    else:
      inputs = tuple(torch.from_numpy(x).long() for x in draws)
    is_half = self._dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=self._dtype, enabled=is_half):
      loss = self._loss(*inputs)
    self._optimizer.zero_grad(set_to_none=True)
    loss.backward()
    o = self._inputs["optim"]
    t = self._count
    nn.utils.clip_grad_norm_(self._params, o["clip_norm"], foreach=True)
    rate = o["lr"] * (1 - t / o["total_steps"])
    for group in self._optimizer.param_groups:
      group["lr"] = rate * min(1, t / o["warmup_steps"])
    self._optimizer.step()
    self._count += 1
    return loss.item()

  def product(self, size: int) -> Callable[[], Tensor]:
    """Returns a call that multiplies two square matrices of `size`."""
    x, w = torch.randn(2, size, size).to(self._dtype)
    return lambda: x @ w

  def _mask(self, tokens_BxL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns tokens, masked tokens and slots, never the first or last."""
    inputs = self._inputs
    score_BxL = torch.rand(tokens_BxL.shape)[:, 1:-1]
    positions_BxK = score_BxL.topk(inputs["slots"]).indices + 1
    gold_BxK = tokens_BxL.gather(1, positions_BxK)
    is_kept_BxK = torch.rand(gold_BxK.shape) < inputs["kept"]
    input_BxK = torch.where(is_kept_BxK, gold_BxK, inputs["mask_id"])
    masked_BxL = tokens_BxL.scatter(1, positions_BxK, input_BxK)
    return tokens_BxL, masked_BxL, positions_BxK

  def _make_optimizer(self) -> torch.optim.Optimizer:
    """Makes ELECTRA's Adam: no bias correction, no decay of vectors."""
    o = self._inputs["optim"]
    matrices = [p for p in self._params if p.ndim > 1]
    vectors = [p for p in self._params if p.ndim == 1]  # of biases and norms
    groups = [
      {"params": matrices, "weight_decay": o["weight_decay"]},
      {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
      groups, betas=(o["b1"], o["b2"]), eps=o["epsilon"], fused=True
    )
    for p in self._params:
      optimizer.state[p] = {
        "step": torch.tensor(UNCORRECTED_STEP),
        "exp_avg": torch.zeros_like(p),
        "exp_avg_sq": torch.zeros_like(p),
      }
    return optimizer
