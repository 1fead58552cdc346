"""Released sizes against transformers, with random weights.

TRUENEGS_LARGE=1 adds the large models; -rP shows what was measured.
"""

import os

import jax
import numpy as np
import pytest

from support.weight_files import random_params
from truenegs_jax.data.tokens.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.weights.export import model_card, pretrained, torch_parity

V = 30_522
SIZES = ["electra-small", "electra-base", "bert-base"]
if os.environ.get("TRUENEGS_LARGE") == "1":
  SIZES += ["electra-large", "bert-large"]
MULTIPLIERS = {"small": 1 / 4, "base": 1 / 3, "large": 1 / 4}
# Of max(1, largest logit). Measured 1e-7 to 3e-6; earlier runs with weights
# several times as large came to 2e-5 in 24 layers.
TOLERANCE = 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_logits_are_those_of_transformers(size, tmp_path, monkeypatch):
  pytest.importorskip("torch")
  monkeypatch.setattr(torch_parity, "TOLERANCE", TOLERANCE)
  kind, variant = size.split("-")
  # One loop over the layers, as it compiles sooner.
  fields = dict(vocab_size=V, variant=variant, scan=True)
  model = (
    pretrain.make_bert(pooler=True, **fields)
    if kind == "bert"
    else pretrain.make_pair(generator_multiplier=MULTIPLIERS[variant], **fields)
  )

  def scale(path, x):
    names = {entry.key for entry in path}
    # As initialized, 0.02, but for queries and keys: else all attention is
    # nearly even, and says little.
    return x if "scale" in names else x * (0.6 if "query" in names else 0.2)

  params = jax.tree_util.tree_map_with_path(scale, random_params(model))
  exported = pretrained.export_model(
    jax.tree.map(np.float32, params),
    model,
    make_tokenizer(
      [*SPECIALS, *(f"w{i}" for i in range(5, V))], lowercase=True
    ),
    tmp_path / "export",
    origin=model_card.ModelOrigin("", trained=True),
  )
  assert exported.compared
  print(exported.summary)
