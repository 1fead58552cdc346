"""What the ELECTRA objective charges, and what it must not look at."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from truenegs_jax import randomness
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import electra, masking


@functools.cache
def params_of():
  init = functools.partial(pretrain.init_params, tiny.make_model())
  return jax.jit(init)(jax.random.key(0))


@functools.cache
def evaluator(options, train, dtype="float32"):
  """(params, batch) -> terms of the tiny model, compiled."""
  objective = tiny.make_objective(
    tiny.make_model(dtype=dtype), options, train=train
  )

  def evaluate(params, batch):
    keys_B = randomness.row_keys(jax.random.key(0), 0, batch["row"])
    inputs = {name: batch[name] for name in batch if name != "row"}
    return objective(params, inputs, keys_B, tiny.make_aux())

  return jax.jit(evaluate)


def terms_of(batch, options=None, *, train=True, dtype="float32"):
  """The objective of a tiny model on a batch, as numpy pairs."""
  evaluate = evaluator(options or tiny.make_options(), train, dtype)
  return jax.device_get(evaluate(params_of(), batch))


def assert_equal_terms(a, b, **tolerance):
  assert a.keys() == b.keys()
  for name in a:
    for x, y in zip(a[name], b[name], strict=True):
      np.testing.assert_allclose(x, y, err_msg=name, **tolerance)


def take(batch, rows):
  return {name: array[rows] for name, array in batch.items()}


class FixedModel:
  """Stands for a network: gives the logits that it was made with."""

  def __init__(self, logits_BxKxV, detect_BxL, table_VxE):
    self.logits, self.detected, self.table = logits_BxKxV, detect_BxL, table_VxE

  def bind(self, variables):
    p = variables["params"]
    return FixedModel(p["logits"], p["detected"], p["table"])

  def generate_logits(self, inputs, positions_BxK, dropout_keys_B):
    return self.logits

  def detect_logits(self, inputs, dropout_keys_B):
    return self.detected

  def token_embedding(self, ids):
    return self.table[ids]


def six_tokens():
  """A row of six tokens, [CLS] 5 6 7 8 [SEP], all four words predicted.

  Predictions by position 1..4: 5 (right), 16 (synonym of 6), 17 (listed, but
  of another gold), 9 (wrong). The table lists 16 for 6, and 5 for itself.
  """
  tokens_1xL = np.array([[tiny.CLS, 5, 6, 7, 8, tiny.SEP]], np.int32)
  predicted = {1: 5, 2: 16, 3: 17, 4: 9}
  dense_VxV = np.zeros((tiny.V, tiny.V), bool)
  dense_VxV[6, 16] = dense_VxV[5, 5] = dense_VxV[16, 7] = True
  options = dataclasses.replace(
    tiny.make_options(),  # round(0.7 * 6) = 4 slots
    masking=dataclasses.replace(tiny.MASKING, mask_prob=0.7),
  )
  keys_1 = randomness.row_keys(jax.random.key(3), 0, jnp.arange(1))
  slots = masking.choose_slots(
    tokens_1xL,
    np.ones((1, 6), np.int32),
    randomness.purpose_keys(keys_1, randomness.MASK),
    options.masking,
  )
  positions_K = np.asarray(slots.positions_BxK)[0]
  rng = np.random.default_rng(0)
  logits_1xKxV = rng.normal(size=(1, 4, tiny.V)).astype(np.float32)
  for k, position in enumerate(positions_K):
    logits_1xKxV[0, k, predicted[position]] = 9.0
  params = {
    "logits": jnp.asarray(logits_1xKxV),
    "detected": jnp.asarray(rng.normal(size=(1, 6)), jnp.float32),
    "table": jnp.asarray(rng.normal(size=(tiny.V, 8)), jnp.float32),
  }
  batch = {
    "tokens": jnp.asarray(tokens_1xL),
    "types": jnp.zeros((1, 6), jnp.int32),
    "documents": jnp.ones((1, 6), jnp.int32),
  }
  aux = {"bits_VxW": jnp.asarray(tiny.pack_bits(dense_VxV))}
  evaluate = functools.partial(
    electra.electra_terms,
    batch=batch,
    keys_B=keys_1,
    aux=aux,
    model=FixedModel(None, None, None),
    options=options,
    train=True,
  )
  return evaluate, params, positions_K, tokens_1xL[0]


def log_softmax(x):
  x = x.astype(np.float64)
  return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def test_hard_correction_removes_exactly_the_false_negatives():
  evaluate, params, positions_K, tokens_L = six_tokens()
  assert sorted(positions_K) == [1, 2, 3, 4]
  terms = evaluate(params)
  gold_K = tokens_L[positions_K]
  loss_K = -log_softmax(np.asarray(params["logits"])[0])[np.arange(4), gold_K]
  kept_K = positions_K != 2
  np.testing.assert_allclose(terms["mlm"][0], loss_K[kept_K].sum(), rtol=1e-6)
  np.testing.assert_allclose(
    terms["mlm_uncorrected"][0], loss_K.sum(), rtol=1e-6
  )
  assert terms["mlm"][1] == 3 and terms["mlm_uncorrected"][1] == 4
  assert tuple(terms["corrected_of_slots"]) == (1, 4)
  assert tuple(terms["corrected_of_mismatches"]) == (1, 3)
  assert tuple(terms["corrected_rows"]) == (1, 1)


def test_a_corrected_slot_sends_no_gradient_and_every_other_one_does():
  evaluate, params, positions_K, _ = six_tokens()
  grads = jax.grad(lambda p: evaluate(p)["mlm"][0])(params)
  size_K = np.abs(np.asarray(grads["logits"])[0]).sum(axis=-1)
  np.testing.assert_array_equal(size_K[positions_K == 2], 0.0)
  assert (size_K[positions_K != 2] > 0).all()
  assert not np.asarray(grads["detected"]).any()


def test_every_slot_corrected_is_a_loss_of_zero_with_zero_gradients():
  evaluate, params, positions_K, tokens_L = six_tokens()
  gold_K = tokens_L[positions_K]
  logits = params["logits"].at[0, np.arange(4), gold_K].set(-9.0)
  aux = {"bits_VxW": tiny.pack_bits(np.ones((tiny.V, tiny.V), bool))}

  def mean(params):
    mlm, count = evaluate(params, aux=jax.tree.map(jnp.asarray, aux))["mlm"]
    return mlm / jnp.maximum(count, 1.0), count

  (value, count), grads = jax.value_and_grad(mean, has_aux=True)(
    {**params, "logits": logits}
  )
  assert value == 0.0 and count == 0.0
  for name, grad in grads.items():
    np.testing.assert_array_equal(grad, 0.0, err_msg=name)


def test_a_correct_prediction_is_kept_though_the_table_lists_the_gold():
  evaluate, params, positions_K, tokens_L = six_tokens()
  gold_K = tokens_L[positions_K]
  logits = params["logits"].at[0, np.arange(4), gold_K].set(99.0)
  aux = {"bits_VxW": tiny.pack_bits(np.ones((tiny.V, tiny.V), bool))}
  terms = evaluate(
    {**params, "logits": logits}, aux=jax.tree.map(jnp.asarray, aux)
  )
  assert terms["mlm"][1] == 4
  assert terms["corrected_of_slots"][0] == 0
  assert tuple(terms["corrected_of_mismatches"]) == (0, 0)


def test_losses_equal_a_numpy_oracle():
  evaluate, params, positions_K, tokens_L = six_tokens()
  terms = jax.device_get(evaluate(params))
  keys_1 = randomness.row_keys(jax.random.key(3), 0, jnp.arange(1))
  uniform_KxV = np.asarray(
    randomness.uniform(
      randomness.purpose_keys(keys_1, randomness.SAMPLE), (4, tiny.V)
    )
  )[0]
  logits_KxV = np.asarray(params["logits"])[0]
  sampled_K = (logits_KxV - np.log(-np.log(uniform_KxV))).argmax(axis=-1)
  replaced_L = np.zeros(6, bool)
  replaced_L[positions_K] = sampled_K != tokens_L[positions_K]
  x_L = np.asarray(params["detected"], np.float64)[0]
  detect = np.where(replaced_L, np.log1p(np.exp(-x_L)), np.log1p(np.exp(x_L)))
  np.testing.assert_allclose(terms["detect"][0], detect.sum(), rtol=1e-6)
  assert terms["detect"][1] == 6  # [CLS] and [SEP] are judged too
  assert terms["replaced"] == (replaced_L.sum(), 6)
  table = np.asarray(params["table"], np.float64)
  a, b = table[tokens_L[positions_K]], table[logits_KxV.argmax(axis=-1)]
  cosine_K = (a * b).sum(-1)
  cosine_K /= np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
  np.testing.assert_allclose(
    terms["soft"][0], (1 - cosine_K).sum(), rtol=1e-5, atol=1e-6
  )
  assert terms["soft"][1] == 4


def test_slots_as_normalizer_change_the_count_alone():
  evaluate, params, *_ = six_tokens()
  options = evaluate.keywords["options"]
  kept = evaluate(params)
  slots = evaluate(
    params, options=dataclasses.replace(options, normalizer="slots")
  )
  assert kept["mlm"][0] == slots["mlm"][0]
  assert (kept["mlm"][1], slots["mlm"][1]) == (3, 4)


def test_the_sampled_token_is_judged_where_the_recipe_says_so():
  evaluate, params, positions_K, tokens_L = six_tokens()
  # Sampled as good as surely: 16, the synonym of 6, in every slot.
  logits = params["logits"].at[..., 16].set(99.0)
  options = dataclasses.replace(
    evaluate.keywords["options"], prediction="sample", temperature=1e-3
  )
  terms = evaluate({**params, "logits": logits}, options=options)
  assert tuple(terms["corrected_of_slots"]) == (1, 4)
  # So hot that the sample is another token than the likeliest one.
  hot = dataclasses.replace(options, temperature=1e6)
  again = evaluate({**params, "logits": logits}, options=hot)
  assert again["soft"][0] != terms["soft"][0]


def test_the_generator_gets_no_gradient_from_detection():
  evaluate = evaluator(tiny.make_options(), True)
  batch = tiny.make_batch(0)
  gradient = lambda name: jax.jit(
    jax.grad(lambda params: evaluate(params, batch)[name][0])
  )(params_of())
  any_nonzero = lambda tree: any(np.any(x) for x in jax.tree.leaves(tree))
  detect, mlm = gradient("detect"), gradient("mlm")
  for part in ("generator", "generator_head"):
    assert not any_nonzero(detect[part]) and any_nonzero(mlm[part])
  for part in ("discriminator", "discriminator_head"):
    assert any_nonzero(detect[part]) and not any_nonzero(mlm[part])
  for part in ("word", "position", "type", "norm"):  # shared
    assert any_nonzero(detect["embeddings"][part])
    assert any_nonzero(mlm["embeddings"][part])


def test_what_stands_in_padding_changes_nothing():
  batch = tiny.make_batch(2)
  junk = {name: array.copy() for name, array in batch.items()}
  padding = batch["documents"] == 0
  assert padding.any()
  rng = np.random.default_rng(0)
  junk["tokens"][padding] = rng.integers(0, tiny.V, padding.sum())
  junk["types"][padding] = 1
  assert_equal_terms(terms_of(batch), terms_of(junk), rtol=0)


def test_terms_are_sums_over_rows_whatever_their_order():
  batch = tiny.make_batch(3)
  whole = terms_of(batch)
  order = np.array([5, 2, 7, 0, 1, 6, 3, 4])
  shuffled = terms_of(take(batch, order))
  assert_equal_terms(whole, shuffled, rtol=1e-5, atol=1e-5)
  single = [terms_of(take(batch, np.array([i]))) for i in range(tiny.B)]
  for name, pair in whole.items():
    for i in range(2):
      added = sum(terms[name][i] for terms in single)
      np.testing.assert_allclose(
        pair[i], added, rtol=1e-5, atol=1e-5, err_msg=name
      )


def test_a_row_of_padding_and_a_row_without_words_add_nothing_to_train():
  batch = tiny.make_batch(4)
  more = {
    name: np.concatenate([array, array[:2]]) for name, array in batch.items()
  }
  more["row"][-2:] = 900, 901
  more["documents"][-2:] = 0
  more["documents"][-1, :2] = 1  # [CLS] [SEP] alone
  more["tokens"][-2:] = tiny.PAD
  more["tokens"][-1, :2] = tiny.CLS, tiny.SEP
  a, b = terms_of(batch), terms_of(more)
  for name in ("mlm", "soft", "corrected_of_slots", "corrected_rows"):
    np.testing.assert_allclose(a[name], b[name], rtol=1e-5, err_msg=name)
  assert b["detect"][1] == a["detect"][1] + 2
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(b))
  evaluate = evaluator(tiny.make_options(), True)
  total = lambda params: sum(
    evaluate(params, more)[name][0] for name in ("mlm", "detect", "soft")
  )
  grads = jax.jit(jax.grad(total))(params_of())
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(grads))


def test_a_lucky_sample_counts_as_original():
  evaluate, params, positions_K, tokens_L = six_tokens()
  logits = np.zeros((1, 4, tiny.V), np.float32)
  logits[0, np.arange(4), tokens_L[positions_K]] = 100.0  # always the gold
  terms = evaluate({**params, "logits": jnp.asarray(logits)})
  assert terms["replaced"][0] == 0
  x_L = np.asarray(params["detected"], np.float64)[0]
  np.testing.assert_allclose(
    terms["detect"][0], np.log1p(np.exp(x_L)).sum(), rtol=1e-6
  )


def test_the_histogram_holds_each_real_token_once():
  terms = terms_of(tiny.make_batch(5))
  replaced_C, original_C = terms["detect_histogram"]
  assert replaced_C.sum() == terms["replaced"][0] > 0
  assert (replaced_C + original_C).sum() == terms["detect"][1]
  # A logit of 0.3 lies in the bin that spans it, those far out at the ends.
  evaluate, params, *_ = six_tokens()
  logits = jnp.array([[0.31, -99.0, 99.0, 0.31, 0.31, 0.31]])
  pair = evaluate({**params, "detected": logits})["detect_histogram"]
  found = np.flatnonzero(np.asarray(pair[0] + pair[1]))
  width = 2 * electra.HISTOGRAM_RANGE / electra.HISTOGRAM_BINS
  middle = electra.HISTOGRAM_BINS // 2 + int(0.31 / width)
  assert found.tolist() == [0, middle, electra.HISTOGRAM_BINS - 1]


def test_dropout_is_on_in_training_alone():
  batch = tiny.make_batch(0)
  quiet, noisy = terms_of(batch, train=False), terms_of(batch)
  plain = tiny.make_model(dropout=0.0, attention_dropout=0.0)
  objective = tiny.make_objective(plain, tiny.make_options(), train=True)
  keys_B = randomness.row_keys(jax.random.key(0), 0, batch["row"])
  inputs = {name: jnp.asarray(batch[name]) for name in batch if name != "row"}
  without = jax.jit(objective)(params_of(), inputs, keys_B, tiny.make_aux())
  for name in ("mlm", "detect"):
    np.testing.assert_allclose(quiet[name][0], without[name][0], rtol=1e-6)
    assert abs(noisy[name][0] / quiet[name][0] - 1) > 1e-4


def test_losses_of_an_untrained_pair_are_those_of_guessing():
  vocab_size, rows, length = 4_096, 16, 32
  model = pretrain.make_pair(
    vocab_size=vocab_size, variant="tiny", generator_multiplier=0.5
  )
  rng = np.random.default_rng(0)
  batch = {
    "tokens": rng.integers(5, vocab_size, (rows, length), np.int32),
    "types": np.zeros((rows, length), np.int32),
    "documents": np.ones((rows, length), np.int32),
  }
  keys_B = randomness.row_keys(jax.random.key(0), 0, jnp.arange(rows))
  objective = tiny.make_objective(
    model, tiny.make_options(hard_correction=False), train=True
  )
  init = functools.partial(pretrain.init_params, model)
  params = jax.jit(init)(jax.random.key(1))
  terms = jax.jit(objective)(params, batch, keys_B, {})
  mean = {
    name: float(terms[name][0] / terms[name][1])
    for name in ("mlm", "detect", "soft")
  }
  assert mean["mlm"] == pytest.approx(math.log(vocab_size), rel=0.01)
  assert mean["detect"] == pytest.approx(math.log(2), rel=0.25)
  assert mean["soft"] == pytest.approx(1.0, abs=0.15)  # random directions


def test_bfloat16_agrees_with_float32():
  batch = tiny.make_batch(0)
  losses = {}
  for dtype in ("float32", "bfloat16"):
    terms = terms_of(batch, dtype=dtype)
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(terms))
    losses[dtype] = [
      terms[name][0] / terms[name][1] for name in ("mlm_uncorrected", "detect")
    ]
  np.testing.assert_allclose(losses["bfloat16"], losses["float32"], rtol=2e-2)
  assert losses["bfloat16"] != losses["float32"]
