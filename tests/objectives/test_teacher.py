"""Corrections by a teacher equal loops in f64, and distillation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import softmax

from support import tiny
from truenegs_jax.objectives import masking
from truenegs_jax.objectives.slot_predictions import mask_and_predict
from truenegs_jax.objectives.teacher import Teacher
from truenegs_jax.runtime import rng

MLM = tiny.make_bert(layers=1)
PAIR = tiny.make_model(layers=1)
LABEL = 0.25


def predict(params, inputs, positions_BxK):
  bound = MLM.bind({"params": params})
  vectors_BxKxE = bound.generate_vectors(inputs, positions_BxK, None)
  return vectors_BxKxE, *bound.output_layer()


def make_case(model, *, teacher=None, chunk=0, **recipe):
  """Returns options, parameters, inputs, (slots, samples) and logits."""
  teacher = Teacher(predict, **teacher or {})
  recipe = {"soft_weight": 0.0, "vocabulary_chunk": chunk} | recipe
  options = tiny.make_options(teacher=teacher, **recipe)
  params = tiny.random_params(model)
  # The teacher knows other words, and some of the gold ones.
  own = jax.tree.map(lambda x: 2 * x[::-1], tiny.random_params(MLM))
  batch = jax.tree.map(jnp.asarray, tiny.make_batch(0))
  keys_B = rng.row_keys(jax.random.key(0), 0, batch["row"])
  inputs = batch, keys_B, {"teacher": own}

  @jax.jit
  def draw(params, *inputs):
    bound = model.bind({"params": params})
    drawn = mask_and_predict(bound, *inputs, options, train=False)
    return drawn.slots, drawn.masked_BxL, drawn.sampled_BxK

  slots, masked_BxL, sampled_BxK = draw(params, *inputs)
  masked = batch | {"tokens": masked_BxL}
  positions_BxK = slots.positions_BxK
  taught_BxKxV = np.float64(read_logits(MLM, masked, positions_BxK, own))
  read = functools.partial(read_logits, model, masked, positions_BxK)
  return options, params, inputs, (slots, sampled_BxK), taught_BxKxV, read


@functools.partial(jax.jit, static_argnums=0)
def read_logits(model, inputs, positions_BxK, params):
  """Returns a model's logits; can be differentiated."""
  bound = model.bind({"params": params})
  return bound.generate_logits(inputs, positions_BxK, None)


@pytest.mark.parametrize(
  "recipe",
  [
    {"smoothing": 0.4, "teacher": {"top": 20, "temperature": 2.0}, "chunk": 9},
    {"smoothing": 0.0, "teacher": {"ratio": 0.1}},
    {"smoothing": 1.0, "hard_correction": False, "teacher": {"top": 999}},
  ],
)
def test_values_and_gradients_are_those_of_a_loop(recipe):
  options, params, inputs, drawn, taught, read = make_case(MLM, **recipe)
  slots, _ = drawn
  teacher = options.teacher
  logits_BxKxV, pull = jax.vjp(read, params)
  change_BxKxV = np.zeros(logits_BxKxV.shape)
  total, kept, listed = 0.0, 0, 0
  for b, k in zip(*np.nonzero(slots.weight_BxK), strict=True):
    gold = int(slots.gold_BxK[b, k])
    z_V = np.float64(logits_BxKxV[b, k])
    q_V = softmax(taught[b, k] / teacher.temperature)
    guess = int(np.argmax(z_V))
    is_false = guess != gold and q_V[guess] >= teacher.ratio * q_V[gold]
    if options.hard_correction and is_false:
      continue
    target_V = np.eye(tiny.V)[gold]
    best = np.argsort(-q_V)[: teacher.top]
    if options.smoothing and gold in best:
      listed += 1
      target_V *= 1 - options.smoothing
      target_V[best] += options.smoothing * q_V[best] / q_V[best].sum()
    total -= (target_V * np.log(softmax(z_V))).sum()
    change_BxKxV[b, k] = softmax(z_V) - target_V
    kept += 1
  slots_in_use = int(slots.weight_BxK.sum())
  assert 0 < kept <= slots_in_use
  assert (kept < slots_in_use) == options.hard_correction
  assert bool(listed) == bool(options.smoothing)

  def compute(params):
    terms = tiny.make_objective(MLM, options, train=False)(params, *inputs)
    return terms["mlm"]

  differentiate = jax.jit(jax.value_and_grad(compute, has_aux=True))
  (value, count), gradients = differentiate(params)
  assert count == kept
  assert value == pytest.approx(total, rel=1e-5)
  [expected] = pull(jnp.float32(change_BxKxV))
  for x, y in zip(*map(jax.tree.leaves, (gradients, expected)), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


def test_all_words_and_the_whole_share_are_distillation():
  options, params, inputs, (slots, _), taught, read = make_case(
    MLM, smoothing=1.0, hard_correction=False, teacher={"top": tiny.V}
  )
  compute = tiny.make_objective(MLM, options, train=False)
  terms = jax.jit(compute)(params, *inputs)
  loss_BxK = optax.softmax_cross_entropy(read(params), jax.nn.softmax(taught))
  expected = (loss_BxK * slots.weight_BxK).sum()
  assert terms["mlm"][0] == pytest.approx(float(expected), rel=1e-5)


def test_a_sample_that_the_teacher_allows_is_no_error():
  options, params, inputs, (slots, sampled_BxK), taught, _ = make_case(
    PAIR, discriminator_label=LABEL, teacher={"ratio": 0.2}
  )
  batch = inputs[0]
  tokens_BxL = masking.fill_slots(batch["tokens"], slots, sampled_BxK)
  target_BxL = np.float64(tokens_BxL != batch["tokens"])
  spared = 0
  for b, k in zip(*np.nonzero(slots.weight_BxK), strict=True):
    gold, sample = int(slots.gold_BxK[b, k]), int(sampled_BxK[b, k])
    q_V = softmax(taught[b, k])
    if sample != gold and q_V[sample] >= 0.2 * q_V[gold]:
      target_BxL[b, slots.positions_BxK[b, k]] = LABEL
      spared += 1
  compute = tiny.make_objective(PAIR, options, train=False)
  terms = jax.jit(compute)(params, *inputs)
  bound = PAIR.bind({"params": params})
  logits_BxL = bound.detect_logits(batch | {"tokens": tokens_BxL}, None)
  loss_BxL = optax.sigmoid_binary_cross_entropy(logits_BxL, target_BxL)
  assert 0 < spared < slots.weight_BxK.sum()
  assert terms["spared"][0] == spared
  expected = (loss_BxL * batch["documents"]).sum()
  assert terms["detect"][0] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(("wrong", "top"), [(0.0, 5), (0.0, 999), (0.3, 5)])
def test_the_mean_target_is_the_truth_of_a_right_teacher(wrong, top):
  """The page of proper corrections says by how much it moves else."""
  size = 12
  rng = np.random.default_rng(0)
  log_p_V = np.log(rng.dirichlet(np.ones(size)))
  p_V = np.exp(log_p_V)
  taught_V = log_p_V + wrong * rng.normal(size=size)
  gold_1xV = jnp.arange(size)[None]
  outputs = jnp.zeros((1, size, 1)), jnp.zeros((size, 1)), jnp.float32(taught_V)
  judged = Teacher(lambda *_: outputs, top=top).judge(
    {}, {}, gold_1xV, gold_1xV
  )
  mean_V = np.zeros(size)
  for g in range(size):
    np.add.at(
      mean_V, judged.token_BxKxS[0, g], p_V[g] * judged.share_BxKxS[0, g]
    )
  in_V = np.isin(np.arange(size), np.argsort(-taught_V)[:top])
  moved_V = np.zeros(size)
  moved_V[in_V] = softmax(taught_V[in_V]) - p_V[in_V] / p_V[in_V].sum()
  np.testing.assert_allclose(mean_V, p_V + p_V[in_V].sum() * moved_V, atol=1e-6)
  assert (np.abs(mean_V - p_V).max() < 1e-6) == (not wrong)
  # Of a right teacher, hard correction keeps the likeliest word only.
  likeliest_1xV = jnp.full((1, size), int(np.argmax(taught_V)))
  assert int((~judged.fits(likeliest_1xV)).sum()) == 1
