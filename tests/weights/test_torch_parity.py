"""Logits and gradients compared with PyTorch and transformers."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from support.weight_files import edit_config, write_export
from truenegs_jax.models import encoder, pretrain
from truenegs_jax.objectives import electra, mlm
from truenegs_jax.objectives.slot_predictions import mask_and_predict
from truenegs_jax.runtime import rng as rng_lib
from truenegs_jax.runtime.errors import TrueNegsError
from truenegs_jax.train import step
from truenegs_jax.weights import export_model, hf_config, hf_names

# Embeddings narrower than both networks, as wide as the discriminator, as the
# generator, and as both.
WIDTHS = {
  "projected": dict(embedding_size=24),
  "base": dict(embedding_size=32),
  "tiny": dict(),
  "square": dict(embedding_size=32, generator_multiplier=1.0),
}
BERTS = {
  "bert": dict(),
  "pooled": dict(pooler=True),
  "modern": dict(backbone="modern", layers=4, window=5, global_rope_theta=99.0),
}
# BERT's masking, with random tokens.
BERT_MASKING = dataclasses.replace(
  tiny.MASKING, style="80_10_10", vocab_size=tiny.V
)
ROUNDING = 1e-6  # relative to the norm of all gradients
COMMON_TOKENS = np.arange(10, 14)


@pytest.fixture(scope="module")
def torch_models():
  """Imports the PyTorch implementation; skips the test without PyTorch."""
  pytest.importorskip("torch")
  from support import torch_models

  return torch_models


@pytest.mark.parametrize(
  ("name", "length"),
  [
    *[(name, 24) for name in ("tiny", "base", *BERTS)],
    pytest.param("base", 130, marks=pytest.mark.slow),
  ],
)
def test_logits_match_transformers(
  torch_models, tmp_path, monkeypatch, name, length
):
  model, params = _model_and_params(name)
  _check_logits(tmp_path, monkeypatch, model, params, _batch(length))


EPSILONS = {"tiny": 1e-12, "bert": 1e-12, "modern": 1e-5}


@pytest.mark.parametrize("name", EPSILONS)
def test_logits_match_with_small_variances(
  torch_models, tmp_path, monkeypatch, name
):
  # With variances near 1e-6, another epsilon of layer norms changes the logits.
  # config.json gets it from here, as a wrong one of ours would be written, too.
  model, params = _model_and_params(name)
  for table in params["embeddings"].keys() - {"norm"}:
    params["embeddings"][table] *= 0.005
  field = "norm_eps" if name == "modern" else "layer_norm_eps"
  fields = {field: EPSILONS[name]}
  check = functools.partial(
    _check_logits, monkeypatch=monkeypatch, params=params, fields=fields
  )
  check(tmp_path / "ours", model=model, batch=_batch(24))
  other = encoder.replace_configs(model, norm_epsilon=1e-6)
  with pytest.raises(TrueNegsError, match="differ from ours"):
    check(tmp_path / "other", model=other, batch=_batch(24))


# Name of the model, options and layers; gradients of the quickest cases.
GRADIENTS = [
  ("tiny", {}, 2),
  ("bert", {"masking": BERT_MASKING}, 1),
  *(
    pytest.param(*case, marks=pytest.mark.slow)
    for case in (
      ("tiny", {"prediction": "sample"}, 1),
      ("projected", {}, 1),
      ("square", {}, 1),
      ("modern", {"masking": BERT_MASKING}, 1),
    )
  ),
]


def _check_logits(tmp_path, monkeypatch, model, params, batch, fields=None):
  assert not (batch["documents"] > 0).all()
  inputs = {name: x for name, x in batch.items() if name != "row"}
  monkeypatch.setattr(export_model, "TOLERANCE", 1e-5)
  monkeypatch.setattr(export_model, "_random_inputs", lambda config: inputs)
  write_export(tmp_path, model, params)
  folders = {role: tmp_path / role for role in model.roles}
  for folder in folders.values():
    edit_config(folder, fields or {})
  summary = export_model.compare_logits(folders, params, model)
  largest = [float(x) for x in re.findall(r"largest ([\d.e-]+)\)", summary)]
  assert largest and min(largest) > 0.5  # small logits would hide differences


@pytest.mark.parametrize(("name", "changed", "layers"), GRADIENTS)
def test_losses_and_gradients_match_pytorch(
  torch_models, name, changed, layers
):
  model, params = _model_and_params(name, layers)
  batch, dense_VxV = _batch(length=48), tiny.dense_table(share=0.5)
  np.fill_diagonal(dense_VxV, True)  # WordNet's lists contain the word itself
  options = tiny.make_options(**changed)
  network = _torch_network(torch_models, model, params)
  is_pair = isinstance(model, pretrain.ElectraPair)
  weights = {**tiny.WEIGHTS, "soft": options.soft_weight}
  if not options.soft_weight:
    del weights["soft"]
  if not is_pair:
    del weights["detect"]
  compute_terms = electra.electra_terms if is_pair else mlm.mlm_terms
  keys_B = rng_lib.row_keys(jax.random.key(5), 3, jnp.array(batch["row"]))

  @functools.partial(jax.value_and_grad, has_aux=True)
  def loss(params):
    aux = {"bits_VxW": jnp.array(tiny.pack_bits(dense_VxV))}
    terms = compute_terms(
      params,
      _inputs(batch),
      keys_B,
      aux,
      model=model,
      options=options,
      train=False,
    )
    return step.total_loss(terms, weights), terms

  total, parts, cases = torch_models.total_loss(
    network,
    batch,
    _make_draws(torch_models, model, params, batch, keys_B, options),
    dense_VxV,
    hard_correction=options.hard_correction,
    prediction=options.prediction,
    soft_weight=options.soft_weight,
  )
  total.backward()
  # The batch must contain every case of the objective.
  assert cases["slots"] > cases["lucky"] > 0
  assert cases["slots"] > cases["right"] > 0
  wrong = cases["slots"] - cases["right"]
  assert wrong > cases["false_negatives"] >= options.hard_correction
  (value, terms), grads = jax.jit(loss)(params)
  assert float(value) == pytest.approx(total.item(), rel=1e-5)
  for name in weights:
    term = float(terms[name][0] / terms[name][1])
    assert term == pytest.approx(parts[name], rel=1e-5)
  scale = np.sqrt(sum(np.sum(x**2) for x in jax.tree.leaves(grads)))
  for role in model.roles:
    tensors = hf_names.to_huggingface(grads, model, role)
    expected = network.gradients(role)
    assert set(tensors) == set(expected)
    for name, x in expected.items():
      norm = np.linalg.norm(x)
      difference = np.linalg.norm(tensors[name] - x)
      # For example, the gradient of the bias of keys is zero but for rounding.
      bound = ROUNDING * scale if norm < ROUNDING * scale else 1e-4 * norm
      assert difference <= bound, f"{role} {name}"


def _model_and_params(name: str, layers: int = 2):
  """Makes one of WIDTHS or BERTS without parameters at zero or one."""
  sizes = dict(vocab_size=tiny.V, variant="tiny", max_positions=140)
  sizes["layers"] = layers
  if name in BERTS:
    model = pretrain.make_bert(**{**sizes, **BERTS[name]})
  else:
    fields = {**dict(generator_multiplier=0.5), **WIDTHS[name]}
    model = pretrain.make_electra(**sizes, **fields)
  params = jax.tree_util.tree_map_with_path(
    lambda path, x: 0.7 * x + (path[-1].key == "scale"),
    tiny.random_params(model),
  )
  # The masked language model often predicts the gold token or a synonym.
  head = params["bert_head" if name in BERTS else "generator_head"]
  head["bias"] = head["bias"].at[COMMON_TOKENS].add(6.0)
  return model, params


def _batch(length: int) -> dict:
  """Makes padded rows of few different tokens and both token types."""
  batch = tiny.make_batch(3, length=length)
  rng = np.random.default_rng(4)
  ordinary_BxL = batch["tokens"] >= 5
  common_BxL = ordinary_BxL & (rng.random(ordinary_BxL.shape) < 0.9)
  tokens_BxL = np.where(
    common_BxL, rng.choice(COMMON_TOKENS, common_BxL.shape), batch["tokens"]
  )
  half_BxL = np.arange(length)[None] >= batch["documents"].sum(1)[:, None] // 2
  return batch | {
    "tokens": tokens_BxL.astype(np.int32),
    "types": (half_BxL & (batch["documents"] > 0)).astype(np.int32),
  }


def _inputs(batch):
  return {name: jnp.array(batch[name]) for name in batch if name != "row"}


def _make_draws(torch_models, model, params, batch, keys_B, options):
  """Returns the masks and samples that the objective draws with these keys."""

  @jax.jit
  def draw(params):
    predictions = mask_and_predict(
      model.bind({"params": params}),
      _inputs(batch),
      keys_B,
      {},
      options,
      train=False,
    )
    return predictions.slots, predictions.masked_BxL, predictions.sampled_BxK

  slots, masked_BxL, sampled_BxK = jax.device_get(draw(params))
  return torch_models.Draws(
    positions_BxK=slots.positions_BxK,
    used_BxK=slots.weight_BxK > 0,
    masked_BxL=masked_BxL,
    sampled_BxK=sampled_BxK,
  )


def _torch_network(torch_models, model, params):
  """Returns the same network in PyTorch."""
  configs, tensors = {}, {}
  for role in model.roles:
    configs[role] = hf_config.make_fields(model, role, pad=tiny.PAD)
    tensors[role] = hf_names.to_huggingface(params, model, role)
  if "bert" in configs:
    return torch_models.TorchBert(configs["bert"], tensors["bert"])
  return torch_models.TorchPair(configs, tensors)
