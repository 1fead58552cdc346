"""BERT's objective: equal to an oracle, plain where nothing is corrected."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import masking, output_softmax
from truenegs_jax.objectives.fill_slots import guess_slots
from truenegs_jax.runtime import rng
from truenegs_jax.train import step

WEIGHTS = {"mlm": 1.0, "soft": 1.0, "sentence": 1.0}
FREQUENT = 9  # a word


def make_bert(**overrides):
  return tiny.make_bert(**{"layers": 1, **overrides})


def options_of(*, style="80_10_10", with_replacement=False, **overrides):
  return tiny.make_options(
    masking=dataclasses.replace(
      tiny.MASKING,
      mask_prob=0.5,
      style=style,
      with_replacement=with_replacement,
    ),
    **{"sentence_weight": 1.0, **overrides},
  )


@functools.cache
def params_of(*, pooler=False):
  """Parameters that predict many a word, and often FREQUENT."""
  model = make_bert(pooler=pooler)
  # At an initial deviation of 0.02 all predictions would be alike.
  init = lambda key: jax.tree.map(
    lambda p: 5 * p, pretrain.init_params(model, key)
  )
  params = jax.jit(init)(jax.random.key(0))
  bias_V = params["bert_head"]["bias"].at[FREQUENT].add(6.0)
  head = {**params["bert_head"], "bias": bias_V}
  return {**params, "bert_head": head}


def batch_of():
  """A batch without row numbers, a quarter of its words FREQUENT, and keys."""
  batch = tiny.make_batch(0, rows=32)
  tokens_BxL = batch["tokens"]
  tokens_BxL[(tokens_BxL > tiny.MASK) & (tokens_BxL % 4 == 0)] = FREQUENT
  keys_B = rng.row_keys(jax.random.key(0), 0, batch["row"])
  inputs = {name: jnp.asarray(x) for name, x in batch.items() if name != "row"}
  return inputs, keys_B


def dense_table():
  """Every word its own synonym too, as in WordNet's lists read literally."""
  return tiny.dense_table() | np.eye(tiny.V, dtype=bool)


def bind_terms(options, *, train=True, pooler=False):
  """params -> terms of the tiny BERT on one batch."""
  inputs, keys_B = batch_of()
  aux = {"bits_VxW": jnp.asarray(tiny.pack_bits(dense_table()))}
  model = make_bert(pooler=pooler)
  objective = tiny.make_objective(model, options, train=train)
  return lambda params: objective(params, inputs, keys_B, aux)


# --- the oracle: numpy in f64, but for the draws and the network itself -----


def log_softmax(x):
  x = np.float64(x)
  x = x - x.max(axis=-1, keepdims=True)
  return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@functools.partial(jax.jit, static_argnames="train")
def logits_and_states(masked_BxL, positions_BxK, *, train):
  inputs, keys_B = batch_of()
  keys_B = rng.purpose_keys(keys_B, rng.GENERATOR_DROPOUT)
  bound = make_bert().bind({"params": params_of()})
  masked = {**inputs, "tokens": masked_BxL}
  keys_B = keys_B if train else None
  return (
    bound.generate_logits(masked, positions_BxK, keys_B),
    bound.encode(masked, keys_B),
  )


def predictions(options, logits_BxKxV, positions_BxK):
  if options.prediction == "argmax":
    return logits_BxKxV.argmax(axis=-1)
  _, keys_B = batch_of()
  keys_B = rng.purpose_keys(keys_B, rng.SAMPLE)
  sampled_BxK = output_softmax.sample(
    jnp.asarray(logits_BxKxV), keys_B, options.sampling_temperature
  )
  sampled_BxK = np.array(sampled_BxK)
  for sampled_K, positions_K in zip(sampled_BxK, positions_BxK, strict=True):
    first = {}
    for k, position in enumerate(positions_K):
      sampled_K[k] = first.setdefault(position, sampled_K[k])
  return sampled_BxK


def oracle(options, *, train):
  """name -> (sum, count), and what the terms were made of."""
  inputs, keys_B = batch_of()
  slots, masked_BxL = masking.hide_slots(
    inputs["tokens"],
    inputs["documents"],
    rng.purpose_keys(keys_B, rng.MASK),
    options.masking,
  )
  logits_BxKxV, _ = logits_and_states(
    masked_BxL, slots.positions_BxK, train=train
  )
  slots, masked_BxL, logits_BxKxV, tokens_BxL = jax.tree.map(
    np.asarray, (slots, masked_BxL, logits_BxKxV, inputs["tokens"])
  )
  predicted_BxK = predictions(options, logits_BxKxV, slots.positions_BxK)
  table = np.asarray(params_of()["embeddings"]["word"], np.float64)
  dense = dense_table()
  names = "mlm uncorrected hidden soft false wrong used sentence real".split()
  total = dict.fromkeys(names, 0.0)
  counts, false_rows = {"kept": 0, "hidden": 0}, set()
  filled_BxL = tokens_BxL.copy()
  for b, k in zip(*np.nonzero(slots.weight_BxK), strict=True):
    position = slots.positions_BxK[b, k]
    gold, guess = tokens_BxL[b, position], predicted_BxK[b, k]
    loss = -log_softmax(logits_BxKxV[b, k])[gold]
    is_false = dense[gold, guess] and gold != guess
    total["used"] += 1
    total["uncorrected"] += loss
    total["wrong"] += gold != guess
    if is_false:
      total["false"] += 1
      false_rows.add(b)
    if not (is_false and options.hard_correction):
      total["mlm"] += loss
      counts["kept"] += 1
    if masked_BxL[b, position] == tiny.MASK:
      total["hidden"] += loss
      counts["hidden"] += 1
    x, y = table[gold], table[guess]
    total["soft"] += 1 - x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    filled_BxL[b, position] = guess
  states = [
    np.asarray(logits_and_states(x, slots.positions_BxK, train=train)[1])
    for x in (filled_BxL, tokens_BxL)
  ]
  log_p, log_q = map(log_softmax, states)
  loss_BxL = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)
  real_BxL = np.asarray(inputs["documents"]) != 0
  total["sentence"], total["real"] = loss_BxL[real_BxL].sum(), real_BxL.sum()
  used_rows = np.any(slots.weight_BxK > 0, axis=1).sum()
  return total, counts | {"rows": (len(false_rows), used_rows)}


CASES = {
  "published": dict(),
  "paper_family": dict(style="80_20_0", normalizer="slots"),
  "sampled": dict(
    prediction="sample", sampling_temperature=2.0, soft_weight=0.5
  ),
  "repeated": dict(
    prediction="sample", style="electra_85_15", with_replacement=True
  ),
  "plain": dict(hard_correction=False, soft_weight=0.0, sentence_weight=0.0),
}


@pytest.mark.parametrize(
  ("case", "train"),
  [
    ("published", True),
    ("published", False),
    ("paper_family", False),
    ("sampled", True),
    ("repeated", True),
    ("plain", False),
  ],
)
def test_terms_equal_a_numpy_oracle(case, train):
  options = options_of(**CASES[case])
  got = jax.device_get(jax.jit(bind_terms(options, train=train))(params_of()))
  want, counts = oracle(options, train=train)
  assert want["used"] > want["wrong"] > want["false"] > 0
  by_slots = options.normalizer == "slots" and options.hard_correction
  pairs = {"mlm": (want["mlm"], want["used"] if by_slots else counts["kept"])}
  if options.hard_correction:
    assert counts["kept"] < want["used"]
    pairs["mlm_uncorrected"] = want["uncorrected"], want["used"]
    pairs["corrected_of_slots"] = want["false"], want["used"]
    pairs["corrected_of_mismatches"] = want["false"], want["wrong"]
    pairs["corrected_rows"] = counts["rows"]
  if options.soft_weight or not train:
    pairs["soft"] = want["soft"], want["used"]
  if options.sentence_weight:
    pairs["sentence"] = want["sentence"], want["real"]
  if not train:
    assert 0 < counts["hidden"] < want["used"]
    pairs["mlm_hidden"] = want["hidden"], counts["hidden"]
  assert got.keys() == pairs.keys() | {"pair_cosine"}
  for name, (total, count) in pairs.items():
    np.testing.assert_allclose(got[name][0], total, rtol=2e-5, err_msg=name)
    assert got[name][1] == count, name


# --- where gradients flow -----------------------------------------------------


def trained_parts(grads):
  """Names of the parts with a gradient; of the embeddings, each table's."""
  return {
    f"embeddings/{leaf}" if part == "embeddings" else part
    for part in grads
    for leaf, grad in grads[part].items()
    if any(np.any(x) for x in jax.tree.leaves(grad))
  }


def test_each_term_trains_what_it_should_and_none_the_next_sentence_head():
  terms = bind_terms(options_of(), pooler=True)
  sums = lambda params: {name: terms(params)[name][0] for name in WEIGHTS}
  grads = jax.device_get(jax.jit(jax.jacrev(sums))(params_of(pooler=True)))
  tables = {f"embeddings/{x}" for x in ("word", "position", "type", "norm")}
  assert {name: trained_parts(grads[name]) for name in WEIGHTS} == {
    "mlm": tables | {"bert", "bert_head"},
    "soft": {"embeddings/word"},
    "sentence": tables | {"bert"},
  }
  assert jax.tree.leaves(grads["mlm"]["pooled"])


def test_a_corrected_slot_teaches_nothing():
  inputs, keys_B = batch_of()
  options = options_of(soft_weight=0.0, sentence_weight=0.0)
  bound = lambda params: make_bert().bind({"params": params})
  guess = lambda params: guess_slots(
    bound(params), inputs, keys_B, options, train=True
  )
  fixed = guess(params_of())
  dense = tiny.dense_table()  # not the words themselves
  original_BxK = np.asarray(fixed.slots.original_BxK)
  false_BxK = dense[original_BxK, np.asarray(fixed.predicted_BxK)]
  weight_BxK = jnp.asarray(fixed.slots.weight_BxK * ~false_BxK)
  assert 0 < weight_BxK.sum() < fixed.slots.weight_BxK.sum()

  def expected(params):
    loss_BxK = guess(params).loss_BxK
    return jnp.where(weight_BxK > 0, loss_BxK, 0.0).sum()

  got = jax.jit(jax.grad(lambda p: bind_terms(options)(p)["mlm"][0]))
  for a, b in zip(
    jax.tree.leaves(got(params_of())),
    jax.tree.leaves(jax.jit(jax.grad(expected))(params_of())),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# --- what it must be where nothing is on, and must not depend on ------------


def plain_bert(params):
  """Mean loss of BERT's masked tokens, without a word about negatives."""
  inputs, keys_B = batch_of()
  keys = functools.partial(rng.purpose_keys, keys_B)
  slots, masked_BxL = masking.hide_slots(
    inputs["tokens"],
    inputs["documents"],
    keys(rng.MASK),
    options_of().masking,
  )
  bound = make_bert().bind({"params": params})
  vectors_BxKxE = bound.generate_vectors(
    {**inputs, "tokens": masked_BxL},
    slots.positions_BxK,
    keys(rng.GENERATOR_DROPOUT),
  )
  loss_BxK = output_softmax.read(
    vectors_BxKxE,
    *bound.output_layer(),
    slots.original_BxK,
    keys(rng.SAMPLE),
  ).loss_BxK
  loss = jnp.where(slots.weight_BxK > 0, loss_BxK, 0.0).sum()
  return loss / jnp.maximum(slots.weight_BxK.sum(), 1.0)


def test_baseline_is_plain_bert_bit_for_bit_and_computes_nothing_else():
  options = options_of(
    hard_correction=False, soft_weight=0.0, sentence_weight=0.0
  )
  terms = bind_terms(options)
  baseline = lambda params: step.total_loss(terms(params), {"mlm": 1.0})
  compiled = {
    name: jax.jit(jax.value_and_grad(fn)).lower(params_of()).compile()
    for name, fn in (("ours", baseline), ("plain", plain_bert))
  }
  results = [jax.device_get(fn(params_of())) for fn in compiled.values()]
  for a, b in zip(*map(jax.tree.leaves, results), strict=True):
    np.testing.assert_array_equal(a, b)
  cost = {name: fn.cost_analysis() for name, fn in compiled.items()}
  for figure in ("flops", "transcendentals"):
    assert cost["plain"][figure] > 1e4
    extra = cost["ours"][figure] / cost["plain"][figure]
    assert extra < 1.001, (figure, extra)


def trained(num_microbatches):
  """Terms and parameters after three steps of the whole recipe."""
  model, tx = make_bert(pooler=True), tiny.make_tx()
  objective = tiny.make_objective(model, options_of(), train=True)
  train_step = jax.jit(
    step.make_train_step(objective, WEIGHTS, tx, num_microbatches)
  )
  state = tiny.init_state(model, tx)
  start, aux = jax.device_get(state.params), tiny.make_aux()
  history = []
  for i in range(3):
    state, terms = train_step(state, tiny.make_batch(i, rows=16), aux)
    history.append(jax.device_get(terms))
  return history, start, jax.device_get(state.params)


def test_a_step_does_not_depend_on_accumulation():
  expected, start, expected_params = trained(1)
  got, _, params = trained(2)
  for a, b in zip(expected, got, strict=True):
    assert a.keys() == b.keys() and a["skipped"][0] == 0
    for name in (*WEIGHTS, "corrected_of_slots", "grad_norm"):
      assert a[name][1] == b[name][1], name
      np.testing.assert_allclose(a[name][0], b[name][0], rtol=1e-4)
  for a, b in zip(
    jax.tree.leaves(expected_params), jax.tree.leaves(params), strict=True
  ):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
  # All parts have moved but the next-sentence head, which is carried.
  for part, tree in params.items():
    moved = [
      np.any(a != b)
      for a, b in zip(
        jax.tree.leaves(start[part]), jax.tree.leaves(tree), strict=True
      )
    ]
    assert any(moved) if part != "pooled" else not any(moved), part
