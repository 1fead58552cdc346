"""ELECTRA's terms and gradients equal the oracle's for all options."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import oracle, tiny
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import electra
from truenegs_jax.runtime import rng as rng_lib

ALL_ON = {"soft_weight": 1.0, "sentence_weight": 1.0}
case_of = functools.cache(oracle.make_case)


def test_the_published_recipe_equals_the_oracle():
  recipe = oracle.make_options(**ALL_ON)
  mode = {"pair": True, "train": True, "compiled": True}
  expected = oracle.check_terms(recipe, case_of(0), **mode)
  false, wrong = expected["corrected_of_mismatches"]
  assert 0 < false < wrong < expected["soft"][1]
  oracle.check_gradients(recipe, case_of(0), pair=True)


@pytest.mark.parametrize(
  "fields",
  [
    {
      "prediction": "sample",
      "discriminator_label": 0.0,
      "smoothing": 0.3,
    },
    {
      "discriminator_label": -1.0,
      "smoothing": 1.0,
      "smoothing_by": "set",
      "strict_subword": False,
      "sampling_temperature": 3.0,
      "vocabulary_chunk": 9,
    },
    pytest.param(
      {
        "smoothing": 0.9,
        "smoothing_by": "model",
        "drop_prob": 0.3,
      },
      marks=pytest.mark.slow,
    ),
    pytest.param(
      {
        "prediction": "sample",
        "hard_correction": False,
        "smoothing": 0.3,
        "smoothing_by": "balanced",
        "vocabulary_chunk": 9,
      },
      marks=pytest.mark.slow,
    ),
  ],
)
def test_terms_and_gradients_of_other_readings_equal_the_oracle(fields):
  recipe = oracle.make_options(**ALL_ON | fields)
  oracle.check_terms(recipe, case_of(0), pair=True, train=True)
  oracle.check_gradients(recipe, case_of(0), pair=True)


RECIPES = {
  "prediction": st.sampled_from(("argmax", "sample")),
  "discriminator_label": st.sampled_from((-1.0, 0.0, 0.5, 1.0)),
  "style": st.sampled_from(("80_10_10", "electra_85_15")),
  "hard_correction": st.booleans(),
  "strict_subword": st.booleans(),
  "sampling_temperature": st.sampled_from((1.0, 0.5, 3.0)),
  "smoothing": st.sampled_from((0.0, 0.1, 1.0)),
  "smoothing_by": st.sampled_from(("uniform", "model", "balanced", "set")),
  "drop_prob": st.sampled_from((0.0, 0.3)),
  "vocabulary_chunk": st.sampled_from((0, 9, 32)),
  "soft_weight": st.sampled_from((0.0, 1.0)),
  "sentence_weight": st.sampled_from((0.0, 0.5)),
}


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=25)
@given(
  st.fixed_dictionaries(RECIPES).filter(oracle.is_recipe),
  st.sampled_from(("bits", "ids")),
)
def test_random_recipes_equal_the_oracle(fields, layout):
  case = case_of(1, layout=layout)
  oracle.check_terms(
    oracle.make_options(**fields), case, pair=True, train=False
  )


def test_terms_of_a_batch_of_padding_are_zero():
  case = case_of(1)
  case = dataclasses.replace(case, documents_BxL=0 * case.documents_BxL)
  recipe = oracle.make_options(smoothing=0.5, discriminator_label=0.0, **ALL_ON)
  expected = oracle.check_terms(recipe, case, pair=True, train=False)
  for name in expected.keys() - {"detect_histogram"}:
    assert expected[name] == (0, 0), name


@pytest.mark.parametrize(
  ("pair", "prediction", "train", "passes"),
  [
    # Hidden states of detection are reused if they are of the same rows.
    (True, "sample", True, 2),
    (True, "argmax", False, 3),
    (False, "argmax", True, 2),
  ],
)
def test_both_sentences_are_encoded_with_the_same_dropout(
  pair, prediction, train, passes
):
  recipe = oracle.make_options(sentence_weight=1.0, prediction=prediction)
  model = oracle.StubModel()
  oracle.compute_terms(recipe, case_of(1), pair=pair, train=train, model=model)
  keys = [keys_B for _, keys_B in model.encoded]
  assert len(keys) == passes
  for keys_B in keys:
    assert (keys_B == keys[0]).all() if train else keys_B is None


def test_the_histograms_count_each_real_token_once():
  case = case_of(3)
  case = oracle.set_params(case, detect_bias=9 * case.params["detect_bias"])
  recipe = oracle.make_options()
  expected = oracle.check_terms(recipe, case, pair=True, train=True)
  replaced_C, original_C = expected["detect_histogram"]
  assert replaced_C.sum() == expected["replaced"][0] > 0
  assert (replaced_C + original_C).sum() == expected["detect"][1]
  assert original_C[0] and original_C[-1]  # beyond the range
  assert len(original_C) == electra.HISTOGRAM_BINS


PARAMS = tiny.random_params(tiny.make_model(layers=1))


@functools.cache
def compiled(train, dtype="float32"):
  model = tiny.make_model(dtype=dtype, layers=1)
  objective = tiny.make_objective(model, tiny.make_options(), train=train)

  def evaluate(params, batch):
    keys_B = rng_lib.row_keys(jax.random.key(0), 0, batch["row"])
    inputs = {name: batch[name] for name in batch if name != "row"}
    return objective(params, inputs, keys_B, tiny.make_aux())

  return jax.jit(evaluate)


def terms_of(batch, *, train=True, dtype="float32"):
  return jax.device_get(compiled(train, dtype)(PARAMS, batch))


def mean_losses(terms):
  names = ("mlm_uncorrected", "detect")
  return np.array([terms[name][0] / terms[name][1] for name in names])


def test_padding_and_the_order_of_rows_have_no_effect():
  batch = tiny.make_batch(2)
  junk = {name: array.copy() for name, array in batch.items()}
  padding = batch["documents"] == 0
  rng = np.random.default_rng(0)
  junk["tokens"][padding] = rng.integers(0, tiny.V, padding.sum())
  junk["types"][padding] = 1
  base = terms_of(batch)
  jax.tree.map(np.testing.assert_array_equal, base, terms_of(junk))
  order = np.array([5, 2, 7, 0, 1, 6, 3, 4])
  reordered = terms_of({name: x[order] for name, x in batch.items()})
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
  jax.tree.map(close, base, reordered)


def test_dropout_is_on_in_training_only():
  batch = tiny.make_batch(0)
  evaluated, trained = terms_of(batch, train=False), terms_of(batch)
  for name in ("mlm", "detect"):
    assert abs(trained[name][0] / evaluated[name][0] - 1) > 1e-4
  other_rows = {**batch, "row": batch["row"] + 100}
  moved = terms_of(other_rows, train=False)["mlm_uncorrected"]
  assert moved[0] != evaluated["mlm_uncorrected"][0]  # other masks


@pytest.mark.parametrize(
  "sharing",
  ["full", *(pytest.param(x, marks=pytest.mark.slow) for x in pretrain.OWN)],
)
def test_each_term_trains_its_own_networks(sharing):
  recipe = oracle.make_options(**ALL_ON)
  arrays = "word", "position", "type", "norm"
  shared = {f"embeddings/{x}" for x in arrays}
  own = {f"{pretrain.OWN.get(sharing, 'embeddings')}/{x}" for x in arrays}
  generator = {"generator", "generator_head"}
  model = tiny.make_model(layers=1, sharing=sharing)
  assert tiny.params_with_gradient(model, recipe) == {
    "mlm": shared | generator,
    "soft": {"embeddings/word"},  # equation 3 is of the generator's
    "sentence": own | {"discriminator"},
    "detect": own | {"discriminator", "discriminator_head"},
    "pair_cosine": set(),
  }


@pytest.mark.slow
def test_bfloat16_agrees_with_float32():
  losses = []
  for dtype in ("float32", "bfloat16"):
    terms = terms_of(tiny.make_batch(0), dtype=dtype)
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(terms))
    losses.append(mean_losses(terms))
  np.testing.assert_allclose(*losses, rtol=2e-2, equal_nan=False)
  assert (losses[0] != losses[1]).any()
