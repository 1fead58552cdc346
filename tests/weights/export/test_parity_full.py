"""Released sizes with random weights compared with transformers.

TRUENEGS_LARGE=1 adds the larger models; -rP prints the differences.
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
SIZES = ["electra-small", "bert-base"]
if os.environ.get("TRUENEGS_LARGE") == "1":
  SIZES += ["electra-base", "electra-large", "bert-large"]
MULTIPLIERS = {"small": 1 / 4, "base": 1 / 3, "large": 1 / 4}
# Relative to max(1, largest logit). Measured: 1e-7 to 3e-6, and 2e-5 in 24
# layers with weights several times as large.
TOLERANCE = 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_logits_match_transformers(size, tmp_path, monkeypatch):
  pytest.importorskip("torch")
  monkeypatch.setattr(torch_parity, "TOLERANCE", TOLERANCE)
  kind, variant = size.split("-")
  # A scan over the layers compiles faster.
  fields = dict(vocab_size=V, variant=variant, scan=True)
  model = (
    pretrain.make_bert(pooler=True, **fields)
    if kind == "bert"
    else pretrain.make_electra(
      generator_multiplier=MULTIPLIERS[variant], **fields
    )
  )

  def scale(path, x):
    names = {entry.key for entry in path}
    # 0.02 as at initialization, but larger for queries and keys: otherwise
    # attention is nearly uniform and errors in it would not show.
    return x if "scale" in names else x * (0.6 if "query" in names else 0.2)

  params = jax.tree_util.tree_map_with_path(scale, random_params(model))
  exported = pretrained.export_model(
    model,
    jax.tree.map(np.float32, params),
    make_tokenizer(
      [*SPECIALS, *(f"w{i}" for i in range(5, V))], lowercase=True
    ),
    tmp_path / "export",
    origin=model_card.ModelOrigin(),
  )
  assert "computes our logits" in exported.summary
  print(exported.summary)
