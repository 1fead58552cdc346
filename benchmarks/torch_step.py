"""ELECTRA's training step in PyTorch, on the models of transformers.

The other side of benchmarks/step_peer.py; shares no code with truenegs_jax.
All that is faster in PyTorch at no loss is done: slots are gathered before the
vocabulary (but in "stock"), samples are drawn by inverting the cumulative
distribution (50 times as fast as `multinomial`, which draws a number a word),
AdamW is the fused one, and attention is transformers' "eager" one, as on a CPU
"sdpa" takes longer (dropout or not).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import transformers

Tensor = torch.Tensor

MODES = ("eager", "compiled", "stock")
CLASSES = {
  "generator": transformers.ElectraForMaskedLM,
  "discriminator": transformers.ElectraForPreTraining,
}
# AdamW's corrections for the zeros that it starts from are 1 after so many
# steps, to the last bit: ELECTRA's Adam has none.
LATE = 1e6


class Pair(torch.nn.Module):
  """Generator and discriminator on one embedding block, and their loss."""

  def __init__(self, given: Mapping[str, Any], attention: str, *, stock: bool):
    """Takes `configs` and `tensors` of both networks, as files have them."""
    super().__init__()
    self._stock, self._detect_weight = stock, given["detect_weight"]
    for role, architecture in CLASSES.items():
      config = transformers.ElectraConfig(
        **given["configs"][role], attn_implementation=attention
      )
      network = architecture(config)
      weights = {
        name: torch.from_numpy(x) for name, x in given["tensors"][role].items()
      }
      missing, unexpected = network.load_state_dict(weights, strict=False)
      if unexpected or set(missing) - {"generator_lm_head.weight"}:
        raise SystemExit(f"{role}: {missing} or {unexpected} are not ours.")
      setattr(self, role, network)
    embeddings = self.discriminator.electra.embeddings
    embeddings.word_embeddings.padding_idx = None  # [PAD] is a row like others
    self.generator.electra.embeddings = embeddings
    self.generator.generator_lm_head.weight = embeddings.word_embeddings.weight

  def forward(
    self,
    tokens_BxL: Tensor,
    masked_BxL: Tensor,
    positions_BxK: Tensor,
    sampled_BxK: Tensor | None = None,
  ) -> Tensor:
    """The whole loss (Clark et al. 2020, section 3); no row has padding."""
    guess = self._guess_everywhere if self._stock else self._guess
    logits_BxKxV, mlm = guess(tokens_BxL, masked_BxL, positions_BxK)
    if sampled_BxK is None:
      sampled_BxK = sample(logits_BxKxV.detach())
    corrupted_BxL = tokens_BxL.scatter(1, positions_BxK, sampled_BxK)
    detect = torch.nn.functional.binary_cross_entropy_with_logits(
      self.discriminator(corrupted_BxL).logits,
      (corrupted_BxL != tokens_BxL).float(),
    )
    return mlm + self._detect_weight * detect

  def _guess(
    self, tokens_BxL: Tensor, masked_BxL: Tensor, positions_BxK: Tensor
  ) -> tuple[Tensor, Tensor]:
    """Logits at the slots alone, and their loss."""
    network = self.generator
    hidden_BxLxD = network.electra(masked_BxL).last_hidden_state
    index_BxKxD = positions_BxK[..., None].expand(
      -1, -1, hidden_BxLxD.shape[-1]
    )
    hidden_BxKxD = hidden_BxLxD.gather(1, index_BxKxD)
    logits_BxKxV = network.generator_lm_head(
      network.generator_predictions(hidden_BxKxD)
    )
    original_BxK = tokens_BxL.gather(1, positions_BxK)
    mlm = torch.nn.functional.cross_entropy(
      logits_BxKxV.flatten(0, 1), original_BxK.flatten()
    )
    return logits_BxKxV, mlm

  def _guess_everywhere(
    self, tokens_BxL: Tensor, masked_BxL: Tensor, positions_BxK: Tensor
  ) -> tuple[Tensor, Tensor]:
    """The same by ElectraForMaskedLM itself: logits at all positions."""
    original_BxK = tokens_BxL.gather(1, positions_BxK)
    labels_BxL = torch.full_like(tokens_BxL, -100).scatter(
      1, positions_BxK, original_BxK
    )
    output = self.generator(masked_BxL, labels=labels_BxL)
    rows_Bx1 = torch.arange(len(tokens_BxL))[:, None]
    return output.logits.detach()[rows_Bx1, positions_BxK], output.loss


def sample(logits_BxKxV: Tensor) -> Tensor:
  """One draw a slot from the softmax; PyTorch adds up in f64."""
  upto_BxKxV = logits_BxKxV.softmax(dim=-1).cumsum(dim=-1)
  total_BxKx1 = upto_BxKxV[..., -1:]
  drawn_BxKx1 = torch.rand_like(total_BxKx1) * total_BxKx1
  index_BxKx1 = torch.searchsorted(upto_BxKxV, drawn_BxKx1, right=True)
  return index_BxKx1[..., 0].clamp_max(logits_BxKxV.shape[-1] - 1)


class TorchStep:
  """Forward, backward, clipping and AdamW, on given rows."""

  def __init__(
    self, given: Mapping[str, Any], *, mode: str, attention: str, threads: int
  ):
    """Compiles nothing yet: the first step does.

    Args:
      given: `configs`, `tensors`, `detect_weight` (`Pair`); `tokens`: arrays
        `[B, L]`; `slots`, `mask_id`, `kept`: how rows are masked; `optim`:
        numbers by the names of `c.optim`, and `total_steps`.
      mode: one of MODES.
      attention: of transformers, "sdpa" or "eager".
      threads: that PyTorch computes with.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # as XLA does
    torch.manual_seed(0)
    self._given, self._done = given, 0
    self._tokens = [torch.from_numpy(x).long() for x in given["tokens"]]
    self._pair = Pair(given, attention, stock=mode == "stock").train()
    self._loss = (
      torch.compile(self._pair, dynamic=False)
      if mode == "compiled"
      else self._pair
    )
    self._params = list(self._pair.parameters())
    self._optimizer = self._make_optimizer()

  def step(self, draws: tuple[np.ndarray, ...] | None = None) -> float:
    """One update; returns its loss.

    Args:
      draws: tokens, the same masked, positions and samples, that chance is not
        to decide.
    """
    if draws is None:
      loss = self._loss(*self._mask(self._tokens[self._done % 4]))
    else:
      loss = self._loss(*(torch.from_numpy(x).long() for x in draws))
    self._optimizer.zero_grad(set_to_none=True)
    loss.backward()
    o, t = self._given["optim"], self._done
    torch.nn.utils.clip_grad_norm_(self._params, o["clip_norm"], foreach=True)
    rate = o["lr"] * (1 - t / o["total_steps"])
    for group in self._optimizer.param_groups:
      group["lr"] = rate * min(1, t / o["warmup_steps"])
    self._optimizer.step()
    self._done += 1
    return loss.item()

  def product(self, size: int) -> Callable[[], Tensor]:
    """A call that multiplies two square matrices of `size`."""
    x, w = torch.randn(2, size, size)
    return lambda: x @ w

  def _mask(self, tokens_BxL: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draws the slots of each row, never its first and last token."""
    g, score_BxL = self._given, torch.rand(tokens_BxL.shape)[:, 1:-1]
    positions_BxK = score_BxL.topk(g["slots"]).indices + 1
    original_BxK = tokens_BxL.gather(1, positions_BxK)
    shown_BxK = torch.where(
      torch.rand(original_BxK.shape) < g["kept"], original_BxK, g["mask_id"]
    )
    return (
      tokens_BxL,
      tokens_BxL.scatter(1, positions_BxK, shown_BxK),
      positions_BxK,
    )

  def _make_optimizer(self) -> torch.optim.Optimizer:
    """ELECTRA's Adam: no bias correction, nothing decays in biases and norms.

    All that is of one dimension is a bias or a norm's gain.
    """
    o = self._given["optim"]
    groups = [
      {"params": [p for p in self._params if p.ndim > 1]},
      {"params": [p for p in self._params if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
      groups,
      betas=(o["b1"], o["b2"]),
      eps=o["epsilon"],
      weight_decay=o["weight_decay"],
      fused=True,
    )
    for p in self._params:
      optimizer.state[p] = {
        "step": torch.tensor(LATE),
        "exp_avg": torch.zeros_like(p),
        "exp_avg_sq": torch.zeros_like(p),
      }
    return optimizer
