"""What the ELECTRA objective charges, and what it must not look at."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import (
  electra,
  masking,
  output_softmax,
  soft_regularization,
)
from truenegs_jax.objectives.fill_slots import guess_slots
from truenegs_jax.runtime import rng as rng_lib


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
    keys_B = rng_lib.row_keys(jax.random.key(0), 0, batch["row"])
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
  """Stands for a network: gives the logits that it was made with.

  It encodes a token by its row of the table, and counts what it encodes.
  """

  def __init__(self, params=None, encoded=None):
    self.params = params
    self.encoded = [] if encoded is None else encoded

  def bind(self, variables):
    return FixedModel(variables["params"], self.encoded)

  def generate_logits(self, inputs, positions_BxK, dropout_keys_B):
    return self.params["logits"]

  def generate_vectors(self, inputs, positions_BxK, dropout_keys_B):
    return self.params["logits"]

  def output_layer(self):
    return jnp.eye(tiny.V), jnp.zeros(tiny.V)  # the vectors are the logits

  def encode(self, inputs, dropout_keys_B, words_BxLxE=None):
    self.encoded.append((inputs["tokens"], dropout_keys_B))
    return self.params["table"][inputs["tokens"]]

  def judge(self, hidden_BxLxD):
    return self.params["detected"]

  def token_embedding(self, ids):
    return self.params["table"][ids]


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
  keys_1 = rng_lib.row_keys(jax.random.key(3), 0, jnp.arange(1))
  slots = masking.choose_slots(
    tokens_1xL,
    np.ones((1, 6), np.int32),
    rng_lib.purpose_keys(keys_1, rng_lib.MASK),
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
    model=FixedModel(),
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
  keys_1 = rng_lib.row_keys(jax.random.key(3), 0, jnp.arange(1))
  sampled_K = output_softmax.sample(
    params["logits"], rng_lib.purpose_keys(keys_1, rng_lib.SAMPLE), 1.0
  )[0]
  logits_KxV = np.asarray(params["logits"])[0]
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
    evaluate.keywords["options"], prediction="sample", sampling_temperature=1e-3
  )
  terms = evaluate({**params, "logits": logits}, options=options)
  assert tuple(terms["corrected_of_slots"]) == (1, 4)
  # So hot that the sample is another token than the likeliest one.
  hot = dataclasses.replace(options, sampling_temperature=1e6)
  again = evaluate({**params, "logits": logits}, options=hot)
  assert again["soft"][0] != terms["soft"][0]


def test_a_term_trains_its_own_network_and_the_shared_embeddings():
  options = tiny.make_options(sentence_weight=1.0)
  evaluate, batch = evaluator(options, True), tiny.make_batch(0)

  @jax.jit
  def gradients(params):
    sums = lambda params: {
      name: evaluate(params, batch)[name][0]
      for name in ("mlm", "detect", "sentence")
    }
    return jax.jacrev(sums)(params)

  trained = {
    name: {
      f"{part}/{leaf}" if part == "embeddings" else part
      for part in grads
      for leaf, grad in grads[part].items()
      if any(np.any(x) for x in jax.tree.leaves(grad))
    }
    for name, grads in gradients(params_of()).items()
  }
  shared = {f"embeddings/{x}" for x in ("word", "position", "type", "norm")}
  assert trained == {
    "mlm": shared | {"generator", "generator_head"},
    "detect": shared | {"discriminator", "discriminator_head"},
    "sentence": shared | {"discriminator"},
  }


def sentence_oracle(table_VxE, predicted_L, original_L):
  """KL(P_p || P_s) of each token, and its gradient to H_p, both f64."""
  log_p, log_q = (
    log_softmax(table_VxE[predicted_L]),
    log_softmax(table_VxE[original_L]),
  )
  p, difference = np.exp(log_p), log_p - log_q
  loss_L = (p * difference).sum(axis=-1)
  return loss_L, p * (difference - loss_L[:, None])


@pytest.mark.parametrize("prediction", ["argmax", "sample"])
def test_the_sentence_term_equals_a_numpy_oracle(prediction):
  evaluate, params, positions_K, tokens_L = six_tokens()
  options = dataclasses.replace(
    evaluate.keywords["options"],
    prediction=prediction,
    sentence_weight=1.0,
    sampling_temperature=9.0,  # a sample that differs from the likeliest
  )
  guess = guess_slots(
    FixedModel(params),
    evaluate.keywords["batch"],
    evaluate.keywords["keys_B"],
    options,
    train=True,
  )
  found = {
    "argmax": np.asarray(params["logits"])[0].argmax(axis=-1),
    "sample": np.asarray(guess.sampled_BxK)[0],
  }
  assert (found["argmax"] != found["sample"]).any()
  filled_L = tokens_L.copy()
  filled_L[positions_K] = found[prediction]
  table = np.asarray(params["table"], np.float64)
  loss_L, to_states = sentence_oracle(table, filled_L, tokens_L)
  evaluate = functools.partial(evaluate, options=options)
  total, count = evaluate(params)["sentence"]
  np.testing.assert_allclose(total, loss_L.sum(), rtol=1e-5)
  assert count == 6 and (loss_L[filled_L == tokens_L] == 0).all()
  # The gradient goes to the predicted tokens' states, not to the original's.
  grads = jax.grad(lambda p: evaluate(p)["sentence"][0])(params)
  want = np.zeros_like(table)
  np.add.at(want, filled_L, to_states)
  np.testing.assert_allclose(grads["table"], want, rtol=1e-4, atol=1e-6)
  assert not np.asarray(grads["logits"]).any()
  assert not np.asarray(grads["detected"]).any()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
  ("weight", "prediction", "passes"),
  [
    (0.0, "argmax", 1),
    (0.0, "sample", 1),
    (1.0, "argmax", 3),
    (1, "sample", 2),
  ],
)
def test_a_sentence_is_encoded_once_and_with_the_same_dropout(
  weight, prediction, passes, train
):
  evaluate, params, _, tokens_L = six_tokens()
  options = dataclasses.replace(
    evaluate.keywords["options"],
    sentence_weight=weight,
    prediction=prediction,
  )
  model = FixedModel()
  terms = evaluate(params, model=model, options=options, train=train)
  assert ("sentence" in terms) == bool(weight)
  assert len(model.encoded) == passes
  if weight:
    np.testing.assert_array_equal(model.encoded[-1][0][0], tokens_L)
  want = rng_lib.purpose_keys(
    evaluate.keywords["keys_B"], rng_lib.DISCRIMINATOR_DROPOUT
  )
  for _, keys_B in model.encoded:
    assert (keys_B is None) or train
    assert (keys_B is None) or (keys_B == want).all()
    assert (keys_B is not None) or not train


def test_a_sentence_predicted_right_costs_nothing_under_dropout():
  model = tiny.make_model(dropout=0.3)
  batch = {name: jnp.asarray(x) for name, x in tiny.make_batch(0).items()}
  keys_B = rng_lib.row_keys(jax.random.key(0), 0, batch["row"])
  options = tiny.make_options()

  @jax.jit
  def cost(params, tokens_BxL, other_keys_B):
    bound = model.bind({"params": params})
    predicted = {**batch, "tokens": tokens_BxL}
    hidden_BxLxD = bound.encode(predicted, keys_B)
    return soft_regularization.sentence_term(
      bound.encode, hidden_BxLxD, batch, None, other_keys_B, options
    )[0]

  right = batch["tokens"]
  assert abs(cost(params_of(), right, keys_B)) < 1e-5
  wrong = right.at[:, 2].set((right[:, 2] + 1) % tiny.V)
  assert cost(params_of(), wrong, keys_B) > 1e-2
  assert cost(params_of(), right, keys_B[::-1]) > 1.0  # charges the dropout


def test_slots_of_one_place_hold_one_sample_and_count_for_each():
  options = tiny.make_options(
    masking=dataclasses.replace(
      tiny.MASKING, with_replacement=True, mask_prob=0.7
    ),
    sampling_temperature=1e6,  # any token alike: or they would differ
    prediction="sample",
  )
  batch = tiny.make_batch(0, rows=64)
  inputs = {name: jnp.asarray(x) for name, x in batch.items() if name != "row"}
  keys_B = rng_lib.row_keys(jax.random.key(0), 0, batch["row"])
  bound = tiny.make_model().bind({"params": params_of()})

  @jax.jit
  def guess_and_logits():
    guess = guess_slots(bound, inputs, keys_B, options, train=False)
    logits_BxKxV = bound.generate_logits(
      {**inputs, "tokens": guess.masked_BxL}, guess.slots.positions_BxK, None
    )
    return vars(guess), logits_BxKxV

  guess, logits_BxKxV = guess_and_logits()
  slots = guess["slots"]
  filled_BxL = masking.fill_slots(inputs["tokens"], slots, guess["sampled_BxK"])
  held_BxK = np.take_along_axis(
    np.asarray(filled_BxL), np.asarray(slots.positions_BxK), axis=1
  )
  used_BxK = np.asarray(slots.weight_BxK) > 0
  places = [
    len(set(row[used].tolist()))
    for row, used in zip(slots.positions_BxK, used_BxK, strict=True)
  ]
  assert sum(places) < 0.9 * used_BxK.sum()  # many slots share one
  # What is judged is what the row holds; a draw, never a mean of two.
  for name in ("sampled_BxK", "predicted_BxK"):
    np.testing.assert_array_equal(
      np.asarray(guess[name])[used_BxK], held_BxK[used_BxK]
    )
  plain = output_softmax.sample(
    logits_BxKxV,
    rng_lib.purpose_keys(keys_B, rng_lib.SAMPLE),
    options.sampling_temperature,
  )
  for row in range(64):
    position_K = np.asarray(slots.positions_BxK)[row][used_BxK[row]]
    _, first = np.unique(position_K, return_index=True)
    np.testing.assert_array_equal(
      np.asarray(plain)[row, first], held_BxK[row, first]
    )
  terms = terms_of(batch, options)
  assert terms["mlm_uncorrected"][1] == terms["soft"][1] == used_BxK.sum()
  assert 0 < terms["replaced"][0] <= sum(places)
  assert terms["detect"][1] == (batch["documents"] != 0).sum()


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
  del whole["pair_cosine"]  # of the parameters, whatever the rows
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
  keys_B = rng_lib.row_keys(jax.random.key(0), 0, batch["row"])
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
  keys_B = rng_lib.row_keys(jax.random.key(0), 0, jnp.arange(rows))
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
