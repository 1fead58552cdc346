"""BERT on true negatives in PyTorch, one slot at a time.

It shares no code with truenegs_jax: the network is that of transformers, and
the loss of a slot is `torch_electra`'s.
"""

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

from support import torch_electra


class TorchBert:
  """BertForMaskedLM in f64, dropout off."""

  def __init__(self, config: dict, tensors: dict):
    """Builds the network from fields of `config.json` and named arrays."""
    config = BertConfig(**config, attn_implementation="eager")
    self.bert = BertForMaskedLM(config).double().eval()
    weights = {name: torch.tensor(x) for name, x in tensors.items()}
    missing, unexpected = self.bert.load_state_dict(weights, strict=False)
    decoder = "cls.predictions.decoder"
    assert not unexpected
    assert set(missing) <= {f"{decoder}.weight", f"{decoder}.bias"}
    embeddings = self.bert.bert.embeddings.word_embeddings
    # Otherwise [PAD] tokens that are not padding would get no gradient.
    embeddings.padding_idx = None
    assert self.bert.cls.predictions.decoder.weight is embeddings.weight

  def gradients(self, role: str) -> dict[str, np.ndarray]:
    """Returns the gradients by Hugging Face's names."""
    return {
      name: x.grad.numpy() for name, x in getattr(self, role).named_parameters()
    }


def bert_loss(
  network: TorchBert,
  batch: dict,
  draws: torch_electra.Draws,
  dense_VxV: np.ndarray,
  *,
  soft_weight: float,
  **options,
) -> tuple[torch.Tensor, dict[str, float], dict[str, int]]:
  """Returns the total loss, its terms, and the number of slots of each case.

  BERT's loss without next sentences (Devlin et al. 2019), with equations 2 and
  3 of Zhang et al. 2023; options as in `torch_electra.slot_losses`.
  """
  terms, cases = torch_electra.slot_losses(
    network.bert,
    network.bert.bert.embeddings.word_embeddings.weight,
    batch,
    draws,
    dense_VxV,
    **options,
  )
  total = terms["mlm"] + soft_weight * terms["soft"]
  return total, {name: x.item() for name, x in terms.items()}, cases
