"""Every option of the objectives against numpy: the value of every term."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle, tiny
from truenegs_jax.objectives import options, soft_regularization

NUMBERS = {
  "sampling_temperature": (1.0, 0.5, 3.0),
  "temperature": (1.0, 0.5, 2.0),
  "smoothing": (0.0, 0.1, 1.0),
  "soft_weight": (0.0, 1.0),
  "sentence_weight": (0.0, 0.5),
}
SWITCHES = {
  name: (False, True)
  for name in ("hard_correction", "include_self", "strict_subword")
}
VALUES = {
  **options.CHOICES,
  **NUMBERS,
  **SWITCHES,
  "soft": tuple(soft_regularization.REGULARIZERS),
  "vocabulary_chunk": (0, 9),
}
SINGLE = [(name, value) for name in VALUES for value in VALUES[name]]
ALL_ON = {"soft_weight": 1.0, "sentence_weight": 1.0}
SHARES = (
  "corrected_of_slots",
  "corrected_of_mismatches",
  "corrected_rows",
  "replaced",
  "spared",
)
NOT_OURS = {"pair_cosine"}  # of pairs drawn inside; has a test of its own


def compare(got, want):
  """Asserts that terms agree: 1e-6 in f32 sums, counts to the letter.

  One logit may lie on the edge of two bins of a histogram, and on either side.
  """
  assert got.keys() - NOT_OURS == want.keys()
  for name, (total, count) in want.items():
    if name == "detect_histogram":
      for a, b in zip(got[name], (total, count), strict=True):
        off_C = np.abs(np.cumsum(a) - np.cumsum(b))
        assert off_C[-1] == 0 and off_C.sum() <= 1
      continue
    exact = name in SHARES
    np.testing.assert_allclose(
      got[name][0],
      total,
      rtol=0 if exact else 1e-6,
      atol=0 if exact else 1e-6,
      err_msg=name,
    )
    np.testing.assert_array_equal(got[name][1], count, err_msg=name)


@functools.cache
def case_of(seed, layout):
  return oracle.make_case(seed, layout=layout)


def check(recipe, case, *, pair, train):
  """Compares one case; returns the oracle's terms."""
  mode = {"pair": pair, "train": train}
  got = jax.device_get(oracle.terms_of(recipe, case, **mode))
  want = oracle.expected(recipe, case, **mode)
  compare(got, want)
  return want


def test_every_option_is_tried():
  fields = {f.name for f in dataclasses.fields(options.Options)}
  assert VALUES.keys() == fields - {"masking"}


@pytest.mark.parametrize(("name", "value"), SINGLE)
def test_each_value_of_each_option_equals_the_oracle(name, value):
  recipe = oracle.make_options(**ALL_ON | {name: value})
  check(recipe, case_of(0, "bits"), pair=True, train=True)
  check(recipe, case_of(0, "ids"), pair=False, train=False)


@pytest.mark.parametrize("seed", range(60))
def test_random_recipes_equal_the_oracle(seed):
  rng = np.random.default_rng(seed)
  fields = {
    name: values[rng.integers(len(values))] for name, values in VALUES.items()
  }
  recipe = oracle.make_options(
    style=("80_10_10", "electra_85_15")[rng.integers(2)],
    repeats=bool(rng.integers(2)),
    **fields,
  )
  layout = ("bits", "ids")[rng.integers(2)]
  case = oracle.make_case(100 + seed, layout=layout)
  check(recipe, case, pair=bool(seed % 4), train=bool(rng.integers(2)))


# --- corners -----------------------------------------------------------------

MODES = [(pair, train) for pair in (True, False) for train in (True, False)]
EVERYTHING = np.ones((tiny.V, tiny.V), bool)
NOTHING = np.zeros((tiny.V, tiny.V), bool)


def predict(case, tokens_BxL):
  """The case with a surely predicted token at each place."""
  logits = case.params["logits"].copy()
  np.put_along_axis(logits, tokens_BxL[..., None], 30.0, axis=-1)
  return oracle.set_params(case, logits=logits)


@pytest.mark.parametrize(("pair", "train"), MODES)
@pytest.mark.parametrize("layout", ["bits", "ids"])
@pytest.mark.parametrize("normalizer", ["kept", "slots"])
def test_every_slot_can_be_corrected(normalizer, layout, pair, train):
  case = case_of(1, layout)
  case = dataclasses.replace(case, listed_VxV=EVERYTHING)
  last = tiny.V - 1  # of the list, and of the vocabulary
  case = predict(case, np.where(case.tokens_BxL == last, 5, last))
  recipe = oracle.make_options(normalizer=normalizer, **ALL_ON)
  want = check(recipe, case, pair=pair, train=train)
  slots = want["corrected_of_slots"][1]
  assert slots and want["mlm"] == (0, slots if normalizer == "slots" else 0)
  assert want["corrected_of_slots"] == want["corrected_of_mismatches"]


@pytest.mark.parametrize(("pair", "train"), MODES)
@pytest.mark.parametrize("layout", ["bits", "ids"])
def test_words_without_synonyms_are_never_corrected(layout, pair, train):
  case = dataclasses.replace(case_of(1, layout), listed_VxV=NOTHING)
  recipe = oracle.make_options(
    discriminator="ignore", smoothing=0.5, include_self=True, **ALL_ON
  )
  want = check(recipe, case, pair=pair, train=train)
  assert want["mlm"] == want["mlm_uncorrected"]
  assert want["corrected_of_mismatches"][0] == 0
  assert not pair or want["spared"][0] == 0


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("layout", ["bits", "ids"])
def test_right_predictions_are_dropped_by_the_naive_reading_alone(
  include_self, layout
):
  case = dataclasses.replace(case_of(1, layout), listed_VxV=EVERYTHING)
  case = predict(case, case.tokens_BxL)
  recipe = oracle.make_options(include_self=include_self, **ALL_ON)
  want = check(recipe, case, pair=True, train=False)
  slots = want["corrected_of_slots"][1]
  assert slots and want["mlm"][1] == (0 if include_self else slots)
  assert want["corrected_of_mismatches"] == (0, 0)
  assert want["soft"] == (0, slots) and want["sentence"][0] == 0


@pytest.mark.parametrize(("pair", "train"), MODES)
@pytest.mark.parametrize("layout", ["bits", "ids"])
def test_a_batch_without_slots_is_all_zeros(layout, pair, train):
  case = case_of(1, layout)
  case = dataclasses.replace(
    case, documents_BxL=np.zeros_like(case.documents_BxL)
  )
  recipe = oracle.make_options(
    smoothing=0.5, temperature=2.0, discriminator="relabel", **ALL_ON
  )
  want = check(recipe, case, pair=pair, train=train)
  for name in want.keys() - {"detect_histogram"}:
    assert want[name] == (0, 0), name


@pytest.mark.parametrize(("pair", "train"), MODES)
def test_a_recipe_that_looks_nothing_up_needs_no_table(pair, train):
  recipe = oracle.make_options(hard_correction=False, temperature=2.0, **ALL_ON)
  case, mode = case_of(1, "bits"), {"pair": pair, "train": train}
  terms = oracle.objective(recipe, case, **mode)
  got = jax.device_get(terms(case.params, aux={}))
  compare(got, oracle.expected(recipe, case, **mode))


@pytest.mark.parametrize("prediction", options.CHOICES["soft_prediction"])
def test_zero_rows_are_orthogonal_to_all_but_each_other(prediction):
  case = case_of(1, "bits")
  word_VxE = case.params["word"].copy()
  word_VxE[::2] = 0.0
  case = oracle.set_params(case, word=word_VxE)
  recipe = oracle.make_options(soft_prediction=prediction, **ALL_ON)
  check(recipe, case, pair=True, train=True)
  case = oracle.set_params(case, word=np.zeros_like(word_VxE))
  want = check(recipe, case, pair=True, train=True)
  assert np.isclose(want["soft"][0], 0)


@pytest.mark.parametrize("prediction", options.CHOICES["prediction"])
@pytest.mark.parametrize("pair", [True, False])
def test_slots_that_share_a_place(prediction, pair):
  recipe = oracle.make_options(
    repeats=True,
    prediction=prediction,
    sampling_temperature=9.0,
    discriminator="ignore",
    **ALL_ON,
  )
  case = case_of(1, "bits")
  check(recipe, case, pair=pair, train=True)
  slots = oracle.draw(recipe, case).slots
  assert len({(s.row, s.position) for s in slots}) < 0.9 * len(slots)


def split_words(case):
  """Words 6, one `##` piece, and where a wrong look would find another.

  Returns:
    The case, all predictions of which are false negatives by its table, and
    the places that a `##` piece follows: in the same document (True) or not.
  """
  piece = int(oracle.PIECES[0])
  tokens_BxL = np.full_like(case.tokens_BxL, 6)
  documents_BxL = np.ones_like(case.documents_BxL)
  tokens_BxL[:, 0] = piece  # what follows the end of the row, if rolled
  tokens_BxL[:, 8] = piece  # goes on with the word at 7
  tokens_BxL[3:, 12] = piece  # begins a second document
  documents_BxL[3:, 12:] = 2
  tokens_BxL[3:, 18:] = piece  # padding
  documents_BxL[3:, 18:] = 0
  case = dataclasses.replace(
    case,
    tokens_BxL=tokens_BxL,
    documents_BxL=documents_BxL,
    listed_VxV=EVERYTHING,
  )
  follows = {(row, 7): True for row in range(oracle.B)}
  follows |= {(row, 23): False for row in range(3)}
  follows |= {(row, i): False for row in range(3, oracle.B) for i in (11, 17)}
  return predict(case, np.full_like(tokens_BxL, 7)), follows


@pytest.mark.parametrize("pair", [True, False])
def test_a_word_that_goes_on_is_not_corrected_but_at_the_end_it_is(pair):
  case, follows = split_words(case_of(2, "bits"))
  recipe = oracle.make_options(discriminator="ignore", **ALL_ON)
  places = [(s.row, s.position) for s in oracle.draw(recipe, case).slots]
  met = [place for place in places if place in follows]
  going_on = sum(follows[place] for place in met)
  assert going_on and {i for _, i in met} == {7, 11, 17, 23}, met
  for strict in (False, True):
    recipe = dataclasses.replace(recipe, strict_subword=strict)
    want = check(recipe, case, pair=pair, train=True)
    false = len(places) - strict * going_on
    assert want["corrected_of_slots"] == (false, len(places))
    assert not pair or want["spared"][0] == false


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("encoder", options.CHOICES["sentence_encoder"])
@pytest.mark.parametrize("prediction", options.CHOICES["prediction"])
def test_both_sentences_are_encoded_with_the_same_dropout(
  prediction, encoder, pair, train
):
  recipe = oracle.make_options(
    sentence_weight=1.0, sentence_encoder=encoder, prediction=prediction
  )
  model = oracle.StubModel()
  oracle.terms_of(
    recipe, case_of(1, "bits"), pair=pair, train=train, model=model
  )
  name = "generator" if pair and encoder == "generator" else "state"
  keys = [keys_B for network, _, keys_B in model.encoded if network == name]
  again = pair and (encoder, prediction) != ("kept", "sample")
  assert len(model.encoded) == 2 + again  # what detection encodes is reused
  for keys_B in keys:
    assert (keys_B == keys[0]).all() if train else keys_B is None


def watched(word_VxE, seed=1, **mode):
  case = oracle.set_params(oracle.make_case(seed), word=word_VxE)
  recipe = oracle.make_options()
  total, count = oracle.terms_of(
    recipe, case, **{"pair": True, "train": True} | mode
  )["pair_cosine"]
  assert count > 500
  return float(total / count)


def test_the_watched_pairs_tell_a_collapsed_table_from_a_sound_one():
  rng = np.random.default_rng(0)
  assert watched(np.eye(tiny.V)) == 0  # no word is paired with itself
  assert np.isclose(watched(np.ones((tiny.V, 3))), 1)
  signs = rng.choice([-1.0, 1.0], (tiny.V, 1))
  assert abs(watched(signs)) < 0.2
  one_way = np.eye(2)[np.arange(tiny.V) % 2]
  assert 0.4 < watched(one_way) < 0.6
  # The same pairs for every batch and in every mode.
  table = rng.normal(size=(tiny.V, 3))
  for mode in ({"seed": 2}, {"pair": False}, {"train": False}):
    assert watched(table, **mode) == watched(table)


def test_the_mean_embedding_is_that_of_the_table():
  model = tiny.make_bert(layers=1)
  bound = model.bind({"params": oracle.random_params(model)})
  p_BxKxV = np.random.default_rng(0).dirichlet(np.ones(tiny.V), (oracle.B, 9))
  np.testing.assert_allclose(
    bound.mean_embedding(jnp.asarray(p_BxKxV)),
    p_BxKxV @ bound.token_embedding(jnp.arange(tiny.V)),
    rtol=1e-4,
    atol=1e-6,
  )
