"""Tests the programs in studies/ against enumeration and their results."""

import csv
import importlib
import itertools
import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest

STUDIES = pathlib.Path(__file__).parents[2] / "studies"
NUMBERS = json.loads((STUDIES / "fixed_points.json").read_text())
CLASS_V = np.array([0, 0, 0, 1, 1, 2, 3, 3, 3, 3])


@pytest.fixture
def load(monkeypatch):
  """Returns a function that imports a program by its path."""

  def load(path):
    monkeypatch.syspath_prepend((STUDIES / path).parent)
    return importlib.import_module(pathlib.Path(path).stem)

  return load


@pytest.fixture
def exact_MxV():
  return np.random.default_rng(0).dirichlet(np.ones(len(CLASS_V)), 20)


def make_lexicon(seed):
  """Makes all pairs of a class, or draws pairs, most in one direction only."""
  pairs_VxV = CLASS_V[:, None] == CLASS_V
  if seed is not None:
    pairs_VxV = np.random.default_rng(seed).random(pairs_VxV.shape) < 0.2
  return pairs_VxV & ~np.eye(len(CLASS_V), dtype=bool)


def test_the_exact_distribution_is_that_of_all_lines_and_has_the_best_scores(
  load,
):
  language = load("artificial/language")
  measures = load("artificial/measures")
  drawn = language.draw_language(1, synonym_share=0.8, num_classes=3)
  num_words, length = len(drawn.class_V), 4
  words_L = language.sample_lines(drawn, rows=1, length=length, seed=0)[0]
  lines_NxL = np.array([*itertools.product(range(num_words), repeat=length)])
  class_NxL = drawn.class_V[lines_NxL]
  p_N = drawn.start_C[class_NxL[:, 0]] * drawn.share_V[lines_NxL].prod(1)
  p_N *= drawn.next_CxC[class_NxL[:, :-1], class_NxL[:, 1:]].prod(1)
  assert p_N.sum() == pytest.approx(1)
  exact = []
  for mask in itertools.product([True, False], repeat=length):
    p_LxC = measures.class_posterior(drawn, words_L[None], np.array([mask]))[0]
    p_LxV = np.exp(measures.word_log_probs(drawn, p_LxC))
    exact.append(p_LxC)
    for i in range(length):
      others = [j for j in range(length) if mask[j] and j != i]
      agrees_N = (lines_NxL[:, others] == words_L[others]).all(axis=1)
      p_V = np.bincount(lines_NxL[agrees_N, i], p_N[agrees_N], num_words)
      np.testing.assert_allclose(p_LxV[i], p_V / p_V.sum(), rtol=1e-9)
  exact_MxC = np.concatenate(exact)
  gold_M = np.tile(words_L, len(exact))
  log_p_MxV = measures.word_log_probs(drawn, exact_MxC)
  scores = measures.score_predictions(drawn, log_p_MxV, exact_MxC, gold_M)
  assert (scores["kl_word"], scores["kl_class"]) == pytest.approx((0, 0))
  uniform_MxV = np.full_like(log_p_MxV, -math.log(num_words))
  other = measures.score_predictions(drawn, uniform_MxV, exact_MxC, gold_M)
  best = other["best_word"]
  assert other["kl_word"] == pytest.approx(math.log(num_words) - best)


@pytest.mark.slow
def test_models_are_measured_on_the_languages_of_their_seeds(tmp_path):
  program = STUDIES / "artificial"
  config = tmp_path / "study.py"
  config.write_text(
    "import runpy\n"
    f"study = runpy.run_path({str(program / 'study.py')!r})\n"
    "def get_config():\n"
    "  c = study['get_config']('all')\n"
    "  c.study.arms = {'a': c.study.arms['hc_p50']}\n"
    "  c.study.overrides = {'steps': 4, 'optim.warmup_steps': 1,"
    " 'eval.rows': 8}\n"
    "  return c\n"
  )
  command = [
    *(sys.executable, str(program / "run.py"), f"--workdir={tmp_path}"),
    *("--seeds=1", "--rows=300", f"--study={config}"),
  ]
  subprocess.run(command, check=True)
  with (tmp_path / "measures.csv").open() as file:
    values = {
      (x["arm"], x["step"], x["measure"]): float(x["value"])
      for x in csv.DictReader(file)
    }
  assert 0 < values["a", "4", "kl_word"] < 5
  assert values["a", "1", "kl_class"] != values["a", "4", "kl_class"]


def test_the_result_of_corrections_is_that_of_the_committed_files(load):
  summarize = load("corrections/summarize")
  assert summarize.OUT.read_text() == summarize.render()


@pytest.mark.parametrize("name", ["plain", "drop_prob", "balanced"])
def test_proper_losses_lead_to_the_truth_with_every_lexicon(
  load, exact_MxV, name
):
  fixed_points = load("fixed_points")
  for lexicon_VxV in map(make_lexicon, (None, *range(5))):
    p_MxV = fixed_points.find_fixed_point(name, exact_MxV, lexicon_VxV)
    np.testing.assert_allclose(p_MxV, exact_MxV, atol=1e-10)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_hard_correction_leaves_the_likeliest_word_of_its_synonyms(
  load, exact_MxV, seed
):
  lexicon_VxV = make_lexicon(seed)
  fixed_points = load("fixed_points")
  p_MxV = fixed_points.find_fixed_point("hc", exact_MxV, lexicon_VxV)
  for p_V, exact_V in zip(p_MxV, exact_MxV, strict=True):
    kept_V = np.where(lexicon_VxV[:, p_V.argmax()], 0.0, exact_V)
    np.testing.assert_allclose(p_V, kept_V / kept_V.sum(), atol=1e-9)


def test_the_example_of_the_figure_is_reproduced(load):
  fixed_points = load("fixed_points")
  for lexicon, points in NUMBERS["example"].items():
    for name, point in points.items():
      solved = fixed_points.solve_example(name, lexicon)
      assert solved == pytest.approx(point, abs=2e-4)
