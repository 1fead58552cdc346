"""Tests the study of artificial languages against enumeration."""

import csv
import itertools
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest

STUDY = pathlib.Path(__file__).parents[2] / "studies" / "artificial"


@pytest.fixture
def modules(monkeypatch):
  """Returns the modules `language` and `measures`."""
  monkeypatch.syspath_prepend(STUDY)
  import language
  import measures

  return language, measures


def test_the_exact_distribution_is_that_of_all_lines_and_has_the_best_scores(
  modules,
):
  language, measures = modules
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
  assert other["kl_class"] < other["kl_word"]  # the rest is within classes


def test_the_probe_finds_classes_of_unseen_words_if_states_tell_them(modules):
  language, measures = modules
  drawn = language.draw_language(1, synonym_share=1.0)
  words_M = language.sample_lines(drawn, rows=200, length=14, seed=0).ravel()
  of_class_MxD = np.eye(len(drawn.start_C))[drawn.class_V[words_M]]
  of_word_MxD = np.eye(len(drawn.class_V))[words_M]
  probe = measures.probe_new_words
  assert probe(drawn, words_M, of_class_MxD) == 1
  assert probe(drawn, words_M, of_word_MxD) < 0.2  # as if it guessed
  single = language.draw_language(1, synonym_share=0.0)
  words_M = language.sample_lines(single, rows=9, length=14, seed=0).ravel()
  assert math.isnan(probe(single, words_M, of_word_MxD[: len(words_M)]))


def test_languages_without_synonyms_are_skipped(modules):
  language, _ = modules
  numbers = language.number_languages(10, 5, synonym_share=0.1)
  assert numbers == [10, 11, 15, 17, 18]  # as in the study of corrections
  shares = [
    language.draw_language(x, synonym_share=0.1).synonym_share
    for x in (*numbers, 12)
  ]
  assert all(shares[:-1]) and not shares[-1]
  assert language.number_languages(12, 2, synonym_share=0.0) == [12, 13]


@pytest.mark.slow
def test_the_program_measures_models_on_the_languages_of_their_seeds(tmp_path):
  config = tmp_path / "study.py"
  config.write_text(
    "import runpy\n"
    f"study = runpy.run_path({str(STUDY / 'study.py')!r})\n"
    "def get_config():\n"
    "  c = study['get_config']('all')\n"
    "  c.study.arms = {'a': c.study.arms['hc_p50']}\n"
    "  c.study.overrides = {'steps': 4, 'optim.warmup_steps': 1,"
    " 'eval.rows': 8}\n"
    "  return c\n"
  )
  command = [
    *(sys.executable, str(STUDY / "run.py"), f"--workdir={tmp_path}"),
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
