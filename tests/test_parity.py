"""Forward pass and gradients against PyTorch and transformers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from truenegs_jax import huggingface, randomness
from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import masking, negatives
from truenegs_jax.train import step

ROLES = ("generator", "discriminator")
TOKENIZER = make_tokenizer(
  ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  + [f"w{i}" for i in range(5, tiny.V)],
  lowercase=True,
)
# Embeddings narrower than both networks, as wide as the discriminator, as wide
# as the generator, as wide as both.
WIDTHS = {
  "projected": dict(embedding_size=24),
  "base": dict(embedding_size=32),
  "tiny": dict(),
  "square": dict(embedding_size=32, generator_multiplier=1.0),
}
LARGER_THAN_ROUNDING = 1e-6  # of the norm of all gradients


@pytest.fixture(scope="module")
def torch_electra():
  """The PyTorch implementation; the test is skipped without PyTorch."""
  pytest.importorskip("torch")
  import torch_electra

  return torch_electra


@pytest.mark.parametrize(
  ("widths", "length"), [*((widths, 24) for widths in WIDTHS), ("base", 130)]
)
def test_logits_are_those_of_transformers(
  torch_electra, tmp_path, widths, length
):
  model, params = _model_and_params(widths)
  _check_logits(tmp_path, model, params, _batch(length))


def test_logits_agree_where_variances_are_small(torch_electra, tmp_path):
  # Of 1e-6, where a layer norm's epsilon of 1e-6 instead of 1e-12 would show.
  model, params = _model_and_params("tiny")
  for name in ("word", "position", "type"):
    params["embeddings"][name] *= 0.005
  _check_logits(tmp_path, model, params, _batch(24))


@pytest.mark.parametrize(
  "options",
  [
    dict(),
    dict(prediction="sample"),
    dict(normalizer="slots"),
    dict(prediction="sample", normalizer="slots"),
    dict(hard_correction=False),
    dict(soft_weight=0.0),
    dict(hard_correction=False, soft_weight=0.0),
  ],
  ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items()) or "hc+sr",
)
def test_losses_and_gradients_are_those_of_pytorch(torch_electra, options):
  _check_gradients(torch_electra, "tiny", options)


@pytest.mark.parametrize("widths", [w for w in WIDTHS if w != "tiny"])
def test_gradients_are_those_of_pytorch_at_every_width(torch_electra, widths):
  _check_gradients(torch_electra, widths, {})


def _check_logits(tmp_path, model, params, batch):
  import torch
  import transformers

  ours = _logits(model, params, batch)
  real_BxL = batch["documents"] > 0
  assert not real_BxL.all()
  for role in ROLES:
    config = huggingface.network_config(model, role)
    huggingface.write_model(tmp_path, role, params, config, TOKENIZER)
    architecture = getattr(transformers, huggingface.ARCHITECTURES[role])
    network, info = architecture.from_pretrained(
      tmp_path, output_loading_info=True
    )
    assert not {*info["missing_keys"], *info["unexpected_keys"]}
    with torch.no_grad():
      theirs = network.eval()(
        input_ids=torch.tensor(batch["tokens"]),
        token_type_ids=torch.tensor(batch["types"]),
        attention_mask=torch.tensor(batch["documents"]),
      ).logits.numpy()
    difference = np.abs(ours[role] - theirs)[real_BxL].max()
    largest = np.abs(theirs[real_BxL]).max()
    assert largest > 0.5  # else the bound below would say little
    assert difference <= 1e-5 * max(1.0, largest)


def _check_gradients(torch_electra, widths, changed):
  model, params = _model_and_params(widths)
  batch, dense_VxV = _batch(length=48), tiny.dense_table(share=0.5)
  np.fill_diagonal(dense_VxV, True)  # as WordNet's lists, read literally
  options = tiny.make_options(**changed)
  keys_B = randomness.row_keys(jax.random.key(5), 3, jnp.array(batch["row"]))

  pair = _torch_pair(torch_electra, model, params)
  total, parts, cases = torch_electra.electra_loss(
    pair,
    batch,
    _draws(torch_electra, model, params, batch, keys_B, options),
    dense_VxV,
    hard_correction=options.hard_correction,
    prediction=options.prediction,
    normalizer=options.normalizer,
    soft_weight=options.soft_weight,
  )
  total.backward()
  # The cases that the objective tells apart all have to be in the batch.
  assert cases["slots"] > cases["lucky"] > 0
  assert cases["slots"] > cases["right"] > 0
  if options.hard_correction:
    wrong = cases["slots"] - cases["right"]
    assert wrong > cases["false_negatives"] > 0

  weights = {**tiny.WEIGHTS, "soft": options.soft_weight}
  if not options.soft_weight:
    del weights["soft"]
  objective = tiny.make_objective(model, options, train=False)

  @functools.partial(jax.value_and_grad, has_aux=True)
  def loss(params):
    aux = {"bits_VxW": jnp.array(tiny.pack_bits(dense_VxV))}
    terms = objective(params, _inputs(batch), keys_B, aux)
    return step.total_loss(terms, weights), terms

  (value, terms), grads = jax.jit(loss)(params)
  assert float(value) == pytest.approx(total.item(), rel=1e-5)
  for name in weights:
    ours = float(terms[name][0] / terms[name][1])
    assert ours == pytest.approx(parts[name], rel=1e-5)
  _assert_same_gradients(model, grads, pair)


def _assert_same_gradients(model, grads, pair):
  scale = np.sqrt(sum(np.sum(x**2) for x in jax.tree.leaves(grads)))
  for role in ROLES:
    config = huggingface.network_config(model, role)
    ours = huggingface.to_huggingface(grads, role, config)
    theirs = pair.gradients(role)
    assert set(ours) == set(theirs)
    for name, expected in theirs.items():
      norm = np.linalg.norm(expected)
      difference = np.linalg.norm(ours[name] - expected)
      if norm < LARGER_THAN_ROUNDING * scale:
        # A key's bias moves all scores of a query alike: zero but for rounding.
        assert difference <= LARGER_THAN_ROUNDING * scale, f"{role} {name}"
      else:
        assert difference <= 1e-4 * norm, f"{role} {name}"


def _logits(model, params, batch) -> dict[str, np.ndarray]:
  """Both networks' logits at every position."""
  rows, length = batch["tokens"].shape
  positions_BxL = jnp.broadcast_to(jnp.arange(length), (rows, length))

  @jax.jit
  def logits(params):
    bound = model.bind({"params": params})
    return {
      "generator": bound.generate_logits(_inputs(batch), positions_BxL, None),
      "discriminator": bound.detect_logits(_inputs(batch), None),
    }

  return jax.device_get(logits(params))


def _model_and_params(widths: str):
  """A pair of one of WIDTHS with no parameter at zero or one."""
  fields = {**dict(generator_multiplier=0.5), **WIDTHS[widths]}
  model = pretrain.make_pair(
    vocab_size=tiny.V, variant="tiny", max_positions=140, **fields
  )
  params = pretrain.init_params(model, jax.random.key(1))
  rng = np.random.default_rng(2)
  params = jax.tree.map(
    lambda x: x + rng.normal(0, 0.15, x.shape).astype(np.float32), params
  )
  # A generator that is often right, by luck too, and often nearly so.
  params["generator_head"]["bias"] = (
    params["generator_head"]["bias"].at[_COMMON].add(6.0)
  )
  return model, params


_COMMON = np.arange(10, 14)


def _batch(length: int) -> dict:
  """Rows of few different tokens, padding at the end, both token types."""
  batch = tiny.make_batch(3, length=length)
  rng = np.random.default_rng(4)
  ordinary_BxL = batch["tokens"] >= 5
  common_BxL = ordinary_BxL & (rng.random(ordinary_BxL.shape) < 0.9)
  tokens_BxL = np.where(
    common_BxL, rng.choice(_COMMON, common_BxL.shape), batch["tokens"]
  )
  half_BxL = np.arange(length)[None] >= batch["documents"].sum(1)[:, None] // 2
  return batch | {
    "tokens": tokens_BxL.astype(np.int32),
    "types": (half_BxL & (batch["documents"] > 0)).astype(np.int32),
  }


def _inputs(batch):
  return {name: jnp.array(batch[name]) for name in batch if name != "row"}


def _draws(torch_electra, model, params, batch, keys_B, options):
  """The masks and samples that the objective draws from these keys."""
  inputs = _inputs(batch)

  @jax.jit
  def draw(params):
    mask_keys_B = randomness.purpose_keys(keys_B, randomness.MASK)
    sample_keys_B = randomness.purpose_keys(keys_B, randomness.SAMPLE)
    slots = masking.choose_slots(
      inputs["tokens"], inputs["documents"], mask_keys_B, options.masking
    )
    masked_BxL = masking.apply_mask(
      inputs["tokens"], slots, mask_keys_B, options.masking
    )
    logits_BxKxV = model.bind({"params": params}).generate_logits(
      {**inputs, "tokens": masked_BxL}, slots.positions_BxK, None
    )
    sampled_BxK = negatives.sample(
      logits_BxKxV, sample_keys_B, options.temperature
    )
    return slots, masked_BxL, sampled_BxK

  slots, masked_BxL, sampled_BxK = jax.device_get(draw(params))
  return torch_electra.Draws(
    positions_BxK=slots.positions_BxK,
    used_BxK=slots.weight_BxK > 0,
    masked_BxL=masked_BxL,
    sampled_BxK=sampled_BxK,
  )


def _torch_pair(torch_electra, model, params):
  configs, tensors = {}, {}
  for role in ROLES:
    config = dataclasses.replace(
      huggingface.network_config(model, role),
      dropout=0.0,
      attention_dropout=0.0,
    )
    configs[role] = huggingface.model_config(role, config, pad=tiny.PAD)
    tensors[role] = huggingface.to_huggingface(params, role, config)
  return torch_electra.TorchPair(configs, tensors)
