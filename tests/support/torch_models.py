"""ELECTRA and BERT on true negatives in PyTorch, one slot at a time.

It shares no code with truenegs_jax: the networks are those of transformers, of
ELECTRA with one embedding block, and the losses follow the paper, from given
masks and samples.
"""

import dataclasses

import numpy as np
import torch
from transformers import (
  BertConfig,
  BertForMaskedLM,
  ElectraConfig,
  ElectraForMaskedLM,
  ElectraForPreTraining,
  ModernBertConfig,
  ModernBertForMaskedLM,
)


@dataclasses.dataclass(frozen=True)
class Draws:
  """The masks and samples of a batch."""

  positions_BxK: np.ndarray
  used_BxK: np.ndarray  # bool
  masked_BxL: np.ndarray
  sampled_BxK: np.ndarray


class TorchNetworks:
  """Networks in f64 without dropout, each an attribute named by its role."""

  def gradients(self, role: str) -> dict[str, np.ndarray]:
    """Returns the gradients of one network by Hugging Face's names."""
    return {
      name: np.zeros(x.shape) if x.grad is None else x.grad.numpy()
      for name, x in getattr(self, role).named_parameters()
    }


class TorchPair(TorchNetworks):
  """Generator and discriminator in f64 on one embedding block, dropout off."""

  def __init__(self, configs: dict, tensors: dict):
    """Builds both networks from fields of `config.json` and named arrays."""
    for role, network_class in (
      ("generator", ElectraForMaskedLM),
      ("discriminator", ElectraForPreTraining),
    ):
      config = ElectraConfig(**configs[role], attn_implementation="eager")
      network = network_class(config).double().eval()
      weights = {name: torch.tensor(x) for name, x in tensors[role].items()}
      missing, unexpected = network.load_state_dict(weights, strict=False)
      assert not unexpected and set(missing) <= {"generator_lm_head.weight"}
      setattr(self, role, network)
    embeddings = self.discriminator.electra.embeddings
    # Otherwise [PAD] tokens that are not padding would get no gradient.
    embeddings.word_embeddings.padding_idx = None
    self.generator.electra.embeddings = embeddings
    self.generator.generator_lm_head.weight = embeddings.word_embeddings.weight


class TorchBert(TorchNetworks):
  """BertForMaskedLM or ModernBertForMaskedLM in f64, dropout off."""

  def __init__(self, config: dict, tensors: dict):
    """Builds the network from fields of `config.json` and named arrays."""
    make_config, network_class, decoder = {
      "bert": (BertConfig, BertForMaskedLM, "cls.predictions.decoder"),
      "modernbert": (ModernBertConfig, ModernBertForMaskedLM, "decoder"),
    }[config["model_type"]]
    # ModernBERT's "eager" softmax is f32, and NaN where all keys are masked.
    attention = "sdpa" if network_class is ModernBertForMaskedLM else "eager"
    config = make_config(**config, attn_implementation=attention)
    self.bert = network_class(config).double().eval()
    weights = {name: torch.tensor(x) for name, x in tensors.items()}
    missing, unexpected = self.bert.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {f"{decoder}.weight", f"{decoder}.bias"}
    embeddings = self.bert.get_input_embeddings()
    # Otherwise [PAD] tokens that are not padding would get no gradient.
    embeddings.padding_idx = None
    assert self.bert.get_output_embeddings().weight is embeddings.weight


def total_loss(
  networks: TorchNetworks,
  batch: dict,
  draws: Draws,
  dense_VxV: np.ndarray,
  *,
  detect_weight: float = 50.0,
  soft_weight: float,
  **options,
) -> tuple[torch.Tensor, dict[str, float], dict[str, int]]:
  """Returns the total loss, its terms, and the number of slots of each case.

  Equations 2 and 3 of Zhang et al. 2023 with the loss of ELECTRA (Clark et al.
  2020), or of BERT (Devlin et al. 2019) without next sentences; options as in
  `slot_losses`.
  """
  masked = getattr(networks, "bert", None) or networks.generator
  table_VxE = masked.get_input_embeddings().weight
  terms, cases = slot_losses(
    masked, table_VxE, batch, draws, dense_VxV, **options
  )
  total = terms["mlm"] + soft_weight * terms["soft"]
  if isinstance(networks, TorchPair):
    corrupted_BxL = batch["tokens"].copy()
    for b, k in zip(*np.nonzero(draws.used_BxK), strict=True):
      corrupted_BxL[b, draws.positions_BxK[b, k]] = draws.sampled_BxK[b, k]
    detect_BxL = _logits(networks.discriminator, batch, corrupted_BxL)
    # A sample that equals the gold token counts as original.
    replaced_BxL = torch.tensor(corrupted_BxL != batch["tokens"]).double()
    real_BxL = torch.tensor(batch["documents"] > 0)
    terms["detect"] = torch.nn.functional.binary_cross_entropy_with_logits(
      detect_BxL[real_BxL], replaced_BxL[real_BxL]
    )
    total = total + detect_weight * terms["detect"]
  return total, {name: x.item() for name, x in terms.items()}, cases


def slot_losses(
  network,
  table_VxE: torch.Tensor,
  batch: dict,
  draws: Draws,
  dense_VxV: np.ndarray,
  *,
  hard_correction: bool,
  prediction: str,
) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
  """Returns the terms `mlm` and `soft`, and the number of slots of each case.

  Equations 2 and 3 of Zhang et al. 2023.
  """
  logits_BxLxV = _logits(network, batch, draws.masked_BxL)
  cases = dict.fromkeys(("slots", "false_negatives", "lucky", "right"), 0)
  mlm, soft = [], []
  for b, k in zip(*np.nonzero(draws.used_BxK), strict=True):
    position = int(draws.positions_BxK[b, k])
    gold = int(batch["tokens"][b, position])
    sampled = int(draws.sampled_BxK[b, k])
    logits_V = logits_BxLxV[b, position]
    predicted = sampled if prediction == "sample" else int(logits_V.argmax())
    is_false_negative = predicted != gold and bool(dense_VxV[gold, predicted])
    if not (hard_correction and is_false_negative):
      mlm.append(torch.logsumexp(logits_V, 0) - logits_V[gold])
    soft.append(
      1 - torch.cosine_similarity(table_VxE[gold], table_VxE[predicted], dim=0)
    )
    cases["slots"] += 1
    cases["false_negatives"] += hard_correction and is_false_negative
    cases["lucky"] += sampled == gold
    cases["right"] += predicted == gold
  terms = {
    "mlm": torch.stack(mlm).mean(),
    "soft": torch.stack(soft).mean(),
  }
  return terms, cases


def _logits(network, batch, tokens_BxL: np.ndarray) -> torch.Tensor:
  inputs = {
    "input_ids": tokens_BxL,
    "token_type_ids": batch["types"],
    "attention_mask": batch["documents"] > 0,
  }
  if network.config.model_type == "modernbert":
    del inputs["token_type_ids"]
  tensors = {name: torch.tensor(x).long() for name, x in inputs.items()}
  return network(**tensors).logits
