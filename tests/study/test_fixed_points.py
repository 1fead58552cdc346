"""Tests the fixed points of losses against what can be derived on paper."""

import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax import SynonymTable, mlm_loss

STUDIES = pathlib.Path(__file__).parents[2] / "studies"
NUMBERS = json.loads((STUDIES / "fixed_points.json").read_text())
CLASS_V = np.array([0, 0, 0, 1, 1, 2, 3, 3, 3, 3])


@pytest.fixture
def fixed_points(monkeypatch):
  """Returns the module."""
  monkeypatch.syspath_prepend(STUDIES)
  import fixed_points

  return fixed_points


@pytest.fixture
def exact_MxV():
  return np.random.default_rng(0).dirichlet(np.ones(len(CLASS_V)), 20)


def partition():
  same_VxV = CLASS_V[:, None] == CLASS_V
  return same_VxV & ~np.eye(len(CLASS_V), dtype=bool)


def random_lexicon(seed):
  """Draws pairs of any words, most in one direction only."""
  rng = np.random.default_rng(seed)
  listed_VxV = rng.random((len(CLASS_V), len(CLASS_V))) < 0.2
  return listed_VxV & ~np.eye(len(CLASS_V), dtype=bool)


def sum_by_class(p_MxV):
  return p_MxV @ np.eye(4)[CLASS_V]


@pytest.mark.parametrize("name", ["plain", "drop_prob", "balanced"])
def test_proper_losses_lead_to_the_truth_with_every_lexicon(
  fixed_points, exact_MxV, name
):
  for table_VxV in (partition(), *map(random_lexicon, range(5))):
    p_MxV = fixed_points.find_fixed_point(name, exact_MxV, table_VxV)
    np.testing.assert_allclose(p_MxV, exact_MxV, atol=1e-10)


def test_what_model_and_set_keep_depends_on_the_lexicon(
  fixed_points, exact_MxV
):
  p_MxV = fixed_points.find_fixed_point("model", exact_MxV, partition())
  np.testing.assert_allclose(p_MxV, exact_MxV, atol=1e-10)
  p_MxV = fixed_points.find_fixed_point("set", exact_MxV, partition())
  truth_MxC = sum_by_class(exact_MxV)
  np.testing.assert_allclose(sum_by_class(p_MxV), truth_MxC, atol=1e-10)
  assert np.abs(p_MxV - exact_MxV).max() > 0.1  # the words are arbitrary
  p_MxV = fixed_points.find_fixed_point("model", exact_MxV, random_lexicon(0))
  assert np.abs(p_MxV - exact_MxV).max() > 0.01


def test_uniform_keeps_the_classes_and_levels_out_their_words(
  fixed_points, exact_MxV
):
  p_MxV = fixed_points.find_fixed_point("uniform", exact_MxV, partition())
  truth_MxC = sum_by_class(exact_MxV)
  np.testing.assert_allclose(sum_by_class(p_MxV), truth_MxC, atol=1e-12)
  for p_V, exact_V in zip(p_MxV, exact_MxV, strict=True):
    assert np.ptp(p_V[3:5]) < np.ptp(exact_V[3:5])


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_hard_correction_leaves_the_likeliest_word_of_its_synonyms(
  fixed_points, exact_MxV, seed
):
  table_VxV = partition() if seed is None else random_lexicon(seed)
  p_MxV = fixed_points.find_fixed_point("hc", exact_MxV, table_VxV)
  for p_V, exact_V in zip(p_MxV, exact_MxV, strict=True):
    likeliest = p_V.argmax()
    kept_V = np.where(table_VxV[:, likeliest], 0.0, exact_V)
    np.testing.assert_allclose(p_V, kept_V / kept_V.sum(), atol=1e-9)


def test_gradient_descent_leads_hard_correction_there_and_costs_the_class(
  fixed_points, exact_MxV
):
  table_VxV, rows = partition(), np.arange(len(exact_MxV))
  p_MxV = fixed_points.find_fixed_point("hc", exact_MxV, table_VxV)
  path = fixed_points.follow_hard_correction(exact_MxV, table_VxV)
  reached_MxV = next(itertools.islice(path, 800, None))
  np.testing.assert_allclose(reached_MxV, p_MxV, atol=0.03)
  likeliest_M = exact_MxV.argmax(axis=1)
  word_M = exact_MxV[rows, likeliest_M]
  class_MxC = sum_by_class(exact_MxV)
  class_M = class_MxC[rows, CLASS_V[likeliest_M]]
  kept_M = 1 - class_M + word_M
  kl_M = np.log(kept_M) + class_M * np.log(class_M / word_M)
  kl, moved = fixed_points.compare(class_MxC, sum_by_class(p_MxV))
  assert kl == pytest.approx(kl_M.mean())
  assert moved == pytest.approx((class_M - word_M / kept_M).mean())
  kl, moved = fixed_points.compare(exact_MxV, p_MxV)
  assert kl == np.inf
  assert moved == pytest.approx(1 - kept_M.mean())


def test_the_example_of_the_figure_is_reproduced(fixed_points):
  for lexicon, points in NUMBERS["example"].items():
    for name, point in points.items():
      assert fixed_points.solve_example(name, lexicon) == pytest.approx(
        point, abs=2e-4
      )


@pytest.mark.slow
@pytest.mark.parametrize("lexicon", ["perfect", "wrong"])
def test_the_gradient_of_the_losses_that_train_is_zero_at_fixed_points(
  fixed_points, lexicon
):
  words = fixed_points.WORDS
  table = SynonymTable.from_pairs(
    [(words[a], words[b]) for a, b in fixed_points.PAIRS[lexicon]],
    words,
    stop_words=(),
    symmetric=True,
  )
  gold_1xK = jnp.arange(len(words))[None]

  def mean_loss(z_V, options):
    z_1xKxV = jnp.broadcast_to(z_V, (1, len(words), len(words)))
    weight_1xK = jnp.array([fixed_points.EXACT])
    arrays = table.arrays(rates=True)
    return mlm_loss(z_1xKxV, gold_1xK, weight_1xK, arrays, **options)[0]

  for name in ("plain", "hc", "uniform", "model", "balanced"):
    options = {"hard_correction": name == "hc"}
    if name not in ("plain", "hc"):
      options |= {"smoothing": fixed_points.SHARE, "smoothing_by": name}
    point_V = np.array(fixed_points.solve_example(name, lexicon))
    z_V = jnp.log(np.maximum(point_V, 1e-9))
    gradient_V = jax.grad(mean_loss)(z_V, options)
    np.testing.assert_allclose(gradient_V, 0, atol=2e-4)
    away_V = jax.grad(mean_loss)(z_V.at[0].add(0.1), options)
    assert np.abs(away_V).max() > 2e-3


@pytest.mark.slow
def test_the_numbers_of_a_seed_are_reproduced(fixed_points):
  rows = NUMBERS["languages"]["50 perfect"]
  for name, values in fixed_points.measure_seed(3, 50, 1.0).items():
    for key, value in values.items():
      assert value == pytest.approx(rows[name][key][3], abs=2e-6), (name, key)
