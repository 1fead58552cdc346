"""Which parameters each term trains, in every reading, and how much."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle, tiny
from truenegs_jax.objectives import options
from truenegs_jax.runtime import rng as rng_lib

LOSSES = ("mlm", "soft", "sentence", "detect")
ALL_ON = {"soft_weight": 1.0, "sentence_weight": 1.0}
STEP = 1e-5


@functools.cache
def case_of(seed, layout="bits"):
  """A full, a packed and a short row."""
  return oracle.take_rows(oracle.make_case(seed, layout=layout), [0, 2, 4])


def gradients(recipe, case, *, pair=True):
  """Term -> gradients of its sum, by the stub's arrays."""
  terms = oracle.objective(recipe, case, pair=pair, train=True)
  sums = lambda params: {
    name: total
    for name, (total, _) in terms(params).items()
    if name in (*LOSSES, "pair_cosine")
  }
  values, pull = jax.vjp(sums, jax.tree.map(jnp.asarray, case.params))
  seeds = {name: {n: jnp.float32(n == name) for n in values} for name in values}
  return {name: jax.device_get(pull(seeds[name])[0]) for name in values}


def slopes(recipe, case, draws, name, direction, *, pair):
  """Term -> f64 change of its sum as an array moves in a direction."""
  held = {n: np.float64(x) for n, x in case.params.items()}
  ends = [
    oracle.expected(
      recipe,
      case,
      pair=pair,
      train=True,
      live={**held, name: held[name] + step * direction},
      draws=draws,
    )
    for step in (STEP, -STEP)
  ]
  return {
    loss: (ends[0][loss][0] - ends[1][loss][0]) / (2 * STEP)
    for loss in LOSSES
    if loss in ends[0]
  }


def check(recipe, case, *, pair):
  """Compares all gradients with the oracle's."""
  got = gradients(recipe, case, pair=pair)
  draws, rng = oracle.draw(recipe, case), np.random.default_rng(0)
  for name, array in case.params.items():
    direction = rng.normal(size=array.shape)
    wanted = slopes(recipe, case, draws, name, direction, pair=pair)
    for loss, slope in wanted.items():
      grad = np.float64(got[loss][name])
      scale = np.linalg.norm(grad)
      np.testing.assert_allclose(
        (grad * direction).sum(),
        slope,
        rtol=1e-4,
        atol=1e-5 * (1 + scale),
        err_msg=f"{loss} by {name}",
      )
      if slope == 0.0:
        assert not grad.any(), f"{loss} by {name}"
  assert not any(grad.any() for grad in got["pair_cosine"].values())


CHANGES = [
  (name, value)
  for name, values in options.CHOICES.items()
  for value in values[1:]
] + [
  ("hard_correction", False),
  ("include_self", True),
  ("strict_subword", False),
  ("sampling_temperature", 3.0),
  ("temperature", 0.5),
  ("smoothing", 0.3),
  ("soft_weight", 1.0),  # the default recipe
]


@pytest.mark.parametrize(("name", "value"), CHANGES)
def test_gradients_of_each_reading_equal_differences_of_the_oracle(name, value):
  recipe = oracle.make_options(**ALL_ON | {name: value})
  check(recipe, case_of(0), pair=True)


@pytest.mark.parametrize("seed", range(10))
def test_gradients_of_random_recipes_equal_differences_of_the_oracle(seed):
  rng = np.random.default_rng(seed)
  fields = {
    name: values[rng.integers(len(values))]
    for name, values in options.CHOICES.items()
  }
  recipe = oracle.make_options(
    repeats=bool(seed % 2),
    temperature=rng.uniform(0.5, 2),
    smoothing=rng.uniform(),
    **ALL_ON,
    **fields,
  )
  case = case_of(100 + seed, ("bits", "ids")[seed // 2 % 2])
  check(recipe, case, pair=seed % 4 > 0)


# --- who trains what ---------------------------------------------------------

WORD = {"predicted": {"word"}, "expected": {"word", "logits"}}


@pytest.mark.parametrize("side", options.CHOICES["soft_gradient"])
@pytest.mark.parametrize("prediction", WORD)
def test_soft_trains_the_sides_it_should(prediction, side):
  recipe = oracle.make_options(
    soft_weight=1.0,
    soft_prediction=prediction,
    soft_gradient=side,
  )
  want = {"word"} if side == "gold" else set(WORD[prediction])
  case = case_of(1)
  grads = gradients(recipe, case)
  assert {n for n, x in grads["soft"].items() if x.any()} == want
  slots = oracle.draw(recipe, case).slots
  gold, judged = {s.gold for s in slots}, {s.judged for s in slots}
  rows = {"gold": gold, "predicted": judged, "both": gold | judged}[side]
  touched = set(np.nonzero(grads["soft"]["word"].any(axis=-1))[0])
  if prediction == "predicted" or side == "gold":
    assert touched and touched <= rows
    # A correct prediction moves nothing.
    right = gold - {s.gold for s in slots if s.judged != s.gold} - judged
    assert not touched & right


def test_the_expected_embedding_teaches_the_slots_alone():
  recipe = oracle.make_options(soft_weight=1.0, soft_prediction="expected")
  case = case_of(1)
  grad = gradients(recipe, case)["soft"]["logits"]
  places = {(s.row, s.position) for s in oracle.draw(recipe, case).slots}
  assert set(map(tuple, np.argwhere(grad.any(axis=-1)))) == places


@pytest.mark.parametrize("layout", ["bits", "ids"])
@pytest.mark.parametrize(
  "reading",
  [
    {},
    {"prediction": "sample", "sampling_temperature": 3.0},
    {"include_self": True},
    {"strict_subword": False},
  ],
)
def test_a_corrected_slot_sends_nothing_and_the_others_what_they_did(
  reading, layout
):
  recipe = oracle.make_options(**reading)
  plain = dataclasses.replace(recipe, hard_correction=False)
  case = case_of(2, layout)
  got = gradients(recipe, case)["mlm"]["logits"]
  want = gradients(plain, case)["mlm"]["logits"]
  corrected = {
    (s.row, s.position): oracle.is_false(recipe, case, s)
    for s in oracle.draw(recipe, case).slots
  }
  assert 0 < sum(corrected.values()) < len(corrected)
  for place in np.ndindex(case.tokens_BxL.shape):
    assert want[place].any() == (place in corrected)
    if corrected.get(place):
      assert not got[place].any()
    else:
      np.testing.assert_array_equal(got[place], want[place])


@pytest.mark.parametrize("layout", ["bits", "ids"])
@pytest.mark.parametrize(
  ("temperature", "smoothing"), [(0.5, 0.0), (1.0, 0.2), (2.0, 0.7), (1.0, 1.0)]
)
def test_the_loss_pulls_to_its_target_and_no_further(
  temperature, smoothing, layout
):
  recipe = oracle.make_options(
    hard_correction=False, temperature=temperature, smoothing=smoothing
  )
  case = case_of(3, layout)
  grad = gradients(recipe, case)["mlm"]["logits"]
  slots = oracle.draw(recipe, case).slots
  lists = [np.nonzero(case.listed_VxV[s.gold])[0] for s in slots]
  assert any(map(len, lists)) and not all(map(len, lists))
  for slot, synonyms in zip(slots, lists, strict=True):
    place = slot.row, slot.position
    z_V = np.float64(case.params["logits"][place]) / temperature
    p_V = np.exp(z_V - z_V.max())
    target_V = np.zeros(tiny.V)
    share = smoothing if len(synonyms) else 0.0
    target_V[slot.gold] = 1 - share
    target_V[synonyms] += share / max(1, len(synonyms))
    np.testing.assert_allclose(
      grad[place],
      (p_V / p_V.sum() - target_V) / temperature,
      rtol=1e-5,
      atol=1e-6,
    )


@pytest.mark.parametrize("reading", options.CHOICES["discriminator"])
def test_a_spared_token_is_judged_as_the_reading_says(reading):
  recipe = oracle.make_options(discriminator=reading, sampling_temperature=9.0)
  case = case_of(2)
  case = dataclasses.replace(
    case, documents_BxL=case.documents_BxL * (np.arange(oracle.L) < 20)
  )
  grad = gradients(recipe, case)["detect"]["opinion"]
  spared = {
    (s.row, s.position)
    for s in oracle.draw(recipe, case).slots
    if s.sampled != s.gold and case.listed_VxV[s.gold, s.sampled]
  }
  assert spared
  sign = {"none": -1, "relabel": 1, "ignore": 0}[reading]
  for place in np.ndindex(grad.shape):
    if place in spared:
      assert np.sign(grad[place]) == sign
    else:
      assert (grad[place] != 0) == (case.documents_BxL[place] != 0)


@pytest.mark.parametrize("prediction", WORD)
def test_a_zero_vector_sends_no_gradient_and_nothing_explodes(prediction):
  case = case_of(1)
  word_VxE = case.params["word"].copy()
  word_VxE[::2] = 0.0
  case = oracle.set_params(case, word=word_VxE)
  recipe = oracle.make_options(soft_weight=1.0, soft_prediction=prediction)
  grads = gradients(recipe, case)["soft"]
  assert grads["word"].any()
  if prediction == "predicted":  # a mean of rows is no zero vector
    assert not grads["word"][::2].any()
  for grad in grads.values():
    assert np.isfinite(grad).all() and np.abs(grad).max() < 1e3


# --- the real networks -------------------------------------------------------

SHARED = {f"embeddings/{x}" for x in ("word", "position", "type", "norm")}
GENERATOR = {"generator", "generator_head"}


def trained_parts(recipe, model):
  """Term -> the parts of a real model that it has a gradient for."""
  batch = tiny.make_batch(0, rows=3)
  keys_B = rng_lib.row_keys(jax.random.key(0), 0, batch.pop("row"))
  inputs = jax.tree.map(jnp.asarray, batch)
  terms = tiny.make_objective(model, recipe, train=True)

  def sums(params):
    aux = tiny.make_aux() | {"continues_V": jnp.zeros(tiny.V, bool)}
    found = terms(params, inputs, keys_B, aux)
    return {n: found[n][0] for n in (*LOSSES, "pair_cosine") if n in found}

  quickly = {"xla_backend_optimization_level": 0}
  pull = jax.jit(jax.jacrev(sums), compiler_options=quickly)
  return {
    name: {
      f"{part}/{leaf}" if part == "embeddings" else part
      for part in tree
      for leaf, grad in tree[part].items()
      if any(np.any(x) for x in jax.tree.leaves(grad))
    }
    for name, tree in jax.device_get(pull(oracle.random_params(model))).items()
  }


def test_a_term_of_electra_trains_its_own_networks():
  recipe = oracle.make_options(
    soft_prediction="expected",
    sentence_encoder="generator",
    discriminator="ignore",
    **ALL_ON,
  )
  model = tiny.make_model(layers=1)
  assert trained_parts(recipe, model) == {
    "mlm": SHARED | GENERATOR,
    "soft": SHARED | GENERATOR,
    "sentence": SHARED | {"generator"},
    "detect": SHARED | {"discriminator", "discriminator_head"},
    "pair_cosine": set(),
  }


def test_a_term_of_bert_trains_its_one_network():
  recipe = oracle.make_options(
    smoothing=0.1,
    temperature=2.0,
    sentence_encoder="generator",  # which is the one there is
    **ALL_ON,
  )
  assert trained_parts(recipe, tiny.make_bert(layers=1)) == {
    "mlm": SHARED | {"bert", "bert_head"},
    "soft": {"embeddings/word"},
    "sentence": SHARED | {"bert"},
    "pair_cosine": set(),
  }
