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
from truenegs_jax.runtime import rng as rng_lib

ALL_ON = {"soft_weight": 1.0, "sentence_weight": 1.0}
case_of = functools.cache(oracle.make_case)


@pytest.mark.parametrize(
  "fields",
  [
    {"discriminator_label": 0.0, "unit": "word"},
    {"prediction": "sample", "discriminator_label": 0.25, "smoothing": 0.3},
    {
      "discriminator_label": -1.0,
      "smoothing": 1.0,
      "smoothing_by": "set",
      "strict_subword": False,
      "vocabulary_chunk": 9,
    },
  ],
)
def test_terms_and_gradients_equal_the_oracle(fields):
  recipe = oracle.make_options(**ALL_ON | fields)
  expected = oracle.check_terms(recipe, case_of(0), pair=True, train=True)
  false, wrong = expected["corrected_of_mismatches"]
  assert 0 < false < wrong < expected["soft"][1]
  oracle.check_gradients(recipe, case_of(0), pair=True)


RECIPES = {
  "prediction": st.sampled_from(("argmax", "sample")),
  "discriminator_label": st.sampled_from((-1.0, 0.0, 0.5, 1.0)),
  "style": st.sampled_from(("80_10_10", "electra_85_15")),
  "unit": st.sampled_from(("token", "word")),
  "hard_correction": st.booleans(),
  "strict_subword": st.booleans(),
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
  st.booleans(),
  st.booleans(),
)
def test_random_recipes_equal_the_oracle(fields, layout, pair, train):
  case = case_of(1, layout=layout)
  recipe = oracle.make_options(**fields)
  oracle.check_terms(recipe, case, pair=pair, train=train)


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


def test_padding_and_the_order_of_rows_have_no_effect():
  model = tiny.make_model(layers=1)
  params = tiny.random_params(model)
  objective = tiny.make_objective(model, tiny.make_options(), train=True)

  @jax.jit
  def terms_of(batch):
    keys_B = rng_lib.row_keys(jax.random.key(0), 0, batch["row"])
    inputs = {name: batch[name] for name in batch if name != "row"}
    return objective(params, inputs, keys_B, tiny.make_aux())

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


@pytest.mark.parametrize("sharing", ["full", "disentangled"])
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
