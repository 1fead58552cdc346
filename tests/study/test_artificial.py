"""Tests the artificial language against enumeration and naive loops."""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from absl import flags

from support import tiny
from truenegs_jax.data.tokens.tokenizer import SPECIALS, load_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.study.artificial import __main__ as command
from truenegs_jax.study.artificial import (
  files,
  language,
  measure_run,
  measures,
)
from truenegs_jax.synonyms import sources
from truenegs_jax.synonyms.vocabulary import STOP_WORDS, Vocabulary

HALF = language.draw_language(3, synonym_share=0.5)


def tiny_language():
  """Draws 3 classes; some have several words."""
  drawn = language.draw_language(1, synonym_share=0.8, num_classes=3)
  assert 0 < drawn.synonym_share < 1
  return drawn


def line_probability(drawn, words):
  """Multiplies the probabilities of a line's classes and words."""
  classes = drawn.class_V[list(words)]
  p = drawn.start_C[classes[0]] * math.prod(drawn.share_V[list(words)])
  for before, after in itertools.pairwise(classes):
    p *= drawn.next_CxC[before, after]
  return p


def test_exact_distribution_equals_enumeration_and_is_exchangeable():
  drawn = tiny_language()
  num_words, length = len(drawn.class_V), 4
  words_L = language.sample_lines(drawn, rows=1, length=length, seed=0)[0]
  lines = list(itertools.product(range(num_words), repeat=length))
  p_N = np.array([line_probability(drawn, line) for line in lines])
  assert p_N.sum() == pytest.approx(1)
  lines_NxL = np.array(lines)
  for mask in itertools.product([True, False], repeat=length):
    p_LxC = measures.class_posterior(drawn, words_L[None], np.array([mask]))[0]
    p_LxV = np.exp(measures.word_log_probs(drawn, p_LxC))
    for i in range(length):
      others = [j for j in range(length) if mask[j] and j != i]
      agrees_N = (lines_NxL[:, others] == words_L[others]).all(axis=1)
      p_V = np.bincount(lines_NxL[agrees_N, i], p_N[agrees_N], num_words)
      np.testing.assert_allclose(p_LxV[i], p_V / p_V.sum(), rtol=1e-9)
      # Words of a class differ by a factor that is the same in all contexts.
      for c in range(3):
        own_V = drawn.class_V == c
        share_V = p_V[own_V] / p_V[own_V].sum()
        np.testing.assert_allclose(share_V, drawn.share_V[own_V])


def test_sampled_lines_have_the_probabilities_of_the_language():
  drawn = tiny_language()
  words_RxL = language.sample_lines(drawn, rows=40_000, length=2, seed=0)
  num_words = len(drawn.class_V)
  pairs = list(itertools.product(range(num_words), repeat=2))
  p_Q = np.array([line_probability(drawn, pair) for pair in pairs])
  count_Q = np.bincount(words_RxL @ [num_words, 1], minlength=len(p_Q))
  error_Q = np.sqrt(p_Q * (1 - p_Q) / 40_000)
  assert (np.abs(count_Q / 40_000 - p_Q) < 4.5 * error_Q).all()


def test_the_dial_adds_synonyms_and_keeps_the_chain():
  dials = np.linspace(0, 1, 21)
  drawn = [language.draw_language(5, synonym_share=x) for x in dials]
  shares = [each.synonym_share for each in drawn]
  assert (shares[0], shares[-1]) == (0, 1)
  assert np.abs(shares - dials).max() < 0.13 and shares == sorted(shares)
  sizes = np.array([np.bincount(each.class_V) for each in drawn])
  assert (np.diff(sizes, axis=0) >= 0).all() and sizes.max() <= 5
  for each in drawn:
    np.testing.assert_array_equal(each.next_CxC, drawn[0].next_CxC)
    np.testing.assert_allclose(np.bincount(each.class_V, each.share_V), 1)
  assert not STOP_WORDS & set(drawn[-1].names)
  assert len(set(drawn[-1].names)) == len(drawn[-1].class_V)


def score_lexicon(drawn, pairs_Nx2):
  """Returns precision and recall."""
  is_true_VxV = drawn.is_synonym_VxV
  num_true = is_true_VxV[tuple(pairs_Nx2.T)].sum()
  return num_true / len(pairs_Nx2), num_true / is_true_VxV.sum()


@pytest.mark.parametrize(
  ("precision", "recall"), [(1, 1), (1, 0.4), (0.5, 1), (0.7, 0.6), (0.2, 0.2)]
)
def test_a_lexicon_has_the_precision_and_recall_asked_for(precision, recall):
  pairs = language.draw_lexicon(
    HALF, precision=precision, recall=recall, seed=0
  )
  scores = score_lexicon(HALF, pairs)
  num_true = HALF.is_synonym_VxV.sum()
  assert scores == pytest.approx((precision, recall), abs=2 / num_true + 0.01)
  both = {tuple(pair) for pair in pairs.tolist()}
  assert len(both) == len(pairs) and all(a != b for a, b in both)
  assert {(b, a) for a, b in both} == both


@pytest.mark.parametrize("text", ["100", "1:2:3", "a:b"])
def test_a_lexicon_flag_has_two_percentages(text):
  with pytest.raises(InputError, match=f"--lexicons='{text}' is not"):
    command.parse_lexicon(text)
  assert command.parse_lexicon("80:50") == (80, 50)


@pytest.mark.parametrize("share", [0, 0.5])
def test_an_impossible_lexicon_is_refused(share):
  drawn = language.draw_language(0, synonym_share=share)
  for precision, recall in ((0.001, 1), (0, 1), (1, 1.1), (1, 1e-9)):
    with pytest.raises(InputError, match="is impossible"):
      language.draw_lexicon(drawn, precision=precision, recall=recall, seed=0)


def write(folder):
  files.write_language(
    folder, HALF, rows=50, length=6, lexicons=[(100, 100), (60, 50)], seed=3
  )


def test_files_are_read_by_training_and_equal_under_two_hash_seeds(tmp_path):
  write(tmp_path / "one")
  words = [sys.executable, "-m", "truenegs_jax.study.artificial", "--seed=3"]
  words += ["--rows=50", "--length=6", "--lexicons=100:100,60:50"]
  subprocess.run(
    [*words, f"--folder={tmp_path / 'two'}"],
    check=True,
    env={**os.environ, "PYTHONHASHSEED": "7"},
  )
  hashes = [
    {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in f.iterdir()}
    for f in sorted(tmp_path.iterdir())
  ]
  assert hashes[0] == hashes[1] and len(hashes[0]) == 6
  folder = tmp_path / "one"
  tokenizer = load_tokenizer(str(folder / files.VOCABULARY), lowercase=True)
  drawn, held_out_RxL = files.read_language(folder)
  lines = (folder / files.HELD_OUT).read_text().split("\n\n")
  ids = np.array(tokenizer.encode_lines(lines))
  np.testing.assert_array_equal(ids - len(SPECIALS), held_out_RxL)
  np.testing.assert_array_equal(drawn.next_CxC, HALF.next_CxC)
  assert len((folder / files.TEXT).read_text().split("\n\n")) == 50
  vocabulary = Vocabulary(tokenizer.vocab)
  path = str(folder / files.LEXICON.format(60, 50))
  pairs = [
    [tokenizer.vocab.index(x) - len(SPECIALS) for x in pair]
    for pair in sources.pairs(vocabulary, path=path)
  ]
  scores = score_lexicon(HALF, np.array(pairs))
  assert scores == pytest.approx((0.6, 0.5), abs=0.05)
  with pytest.raises(InputError, match="exists. Remove it"):
    write(folder)
  with pytest.raises(InputError, match="no run|not the workdir"):
    measure_run.measure_run(tmp_path, folder, report=print)
  (folder / files.HELD_OUT).unlink()
  with pytest.raises(InputError, match="has no held_out.txt"):
    files.read_language(folder)


def random_predictions(seed=0, size=200):
  """Returns log p_MxV, exact p_MxC and gold_M of HALF."""
  rng = np.random.default_rng(seed)
  num_words = len(HALF.class_V)
  log_p_MxV = np.log(rng.dirichlet(np.full(num_words, 0.2), size) + 1e-6)
  p_MxC = rng.dirichlet(np.full(len(HALF.start_C), 0.3), size) + 1e-6
  p_MxC /= p_MxC.sum(axis=1, keepdims=True)
  return log_p_MxV, p_MxC, rng.integers(0, num_words, size)


def test_scores_equal_naive_loops():
  log_p_MxV, p_MxC, gold_M = random_predictions()
  scores = measures.score_predictions(HALF, log_p_MxV, p_MxC, gold_M)
  class_V, share_V = HALF.class_V, HALF.share_V
  lists = {
    name: [] for name in ("word", "class", "kl", "kl_c", "best", "false")
  }
  for log_p_V, p_C, gold in zip(log_p_MxV, p_MxC, gold_M, strict=True):
    exact_V = [p_C[c] * s for c, s in zip(class_V, share_V, strict=True)]
    p_by_class = [
      sum(math.exp(x) for x, k in zip(log_p_V, class_V, strict=True) if k == c)
      for c in range(len(p_C))
    ]
    lists["word"].append(-log_p_V[gold])
    lists["class"].append(-math.log(p_by_class[class_V[gold]]))
    lists["kl"].append(
      sum(p * (math.log(p) - x) for p, x in zip(exact_V, log_p_V, strict=True))
    )
    lists["kl_c"].append(
      sum(p * math.log(p / q) for p, q in zip(p_C, p_by_class, strict=True))
    )
    lists["best"].append(-sum(p * math.log(p) for p in exact_V))
    if (best := int(np.argmax(log_p_V))) != gold:
      lists["false"].append(class_V[best] == class_V[gold])
  names = ("loss_word", "loss_class", "kl_word", "kl_class", "best_word")
  expected = [np.mean(x) for x in lists.values()]
  computed = [scores[x] for x in (*names, "false_negatives")]
  assert computed == pytest.approx(expected)
  mismatches = len(lists["false"]) / len(gold_M)
  assert scores["accuracy_word"] == pytest.approx(1 - mismatches)
  assert scores["best_class"] < scores["best_word"]
  # Chain rule: the rest of the divergence is within classes.
  assert scores["kl_class"] < scores["kl_word"]
  exact_MxV = measures.word_log_probs(HALF, p_MxC)
  ideal = measures.score_predictions(HALF, exact_MxV, p_MxC, gold_M)
  assert (ideal["kl_word"], ideal["kl_class"]) == pytest.approx((0, 0))
  assert ideal["false_negatives"] == ideal["exact_false_negatives"]


def test_calibration_and_auc_equal_naive_loops():
  rng = np.random.default_rng(0)
  confidence_M = np.append(rng.random(300), [0.0, 1 / 5, 2 / 5, 1.0])
  correct_M = rng.random(304) < 0.6
  error = 0.0
  for low in range(5):
    is_in_M = (confidence_M > low / 5) & (confidence_M <= (low + 1) / 5)
    is_in_M |= (confidence_M == 0) & (low == 0)
    gap = correct_M[is_in_M].mean() - confidence_M[is_in_M].mean()
    error += abs(gap) * is_in_M.sum() / 304
  computed = measures.calibration_error(confidence_M, correct_M, bins=5)
  assert computed == pytest.approx(error)
  score_M = rng.integers(0, 20, 304)
  wins = [
    (a > b) + (a == b) / 2
    for a in score_M[correct_M]
    for b in score_M[~correct_M]
  ]
  auc = measures.detection_auc(score_M, correct_M)
  assert auc == pytest.approx(np.mean(wins))


def test_a_probe_on_new_words_needs_vectors_of_classes():
  words_M = language.sample_lines(HALF, rows=300, length=8, seed=0).ravel()
  word_VxD = np.random.default_rng(0).normal(size=(len(HALF.names), 64))
  by_word = measures.probe_new_words(HALF, words_M, word_VxD[words_M])
  class_M = HALF.class_V[words_M]
  by_class = measures.probe_new_words(HALF, words_M, word_VxD[class_M])
  assert by_class > 0.99 > 0.4 > by_word
  single = language.draw_language(3, synonym_share=0)
  scored = measures.probe_new_words(single, class_M, word_VxD[class_M])
  assert math.isnan(scored)


def test_the_file_of_measures_is_json_without_synonyms(tmp_path, monkeypatch):
  scores = {"kl_word": 0.1, "probe_new_words": math.nan}
  monkeypatch.setattr(measure_run, "measure_run", lambda *_, **__: scores)
  values = flags.FlagValues()
  command.define_flags(values)
  path = tmp_path / "results.json"
  values(["program", f"--measure={tmp_path}", f"--output={path}"])
  command.run(values)
  saved = json.loads(path.read_text(), parse_constant=pytest.fail)
  assert saved == {"kl_word": 0.1, "probe_new_words": None}


@pytest.mark.parametrize(
  ("kind", "names"), [("bert", set()), ("electra", {"auc", "auc_class"})]
)
def test_a_model_that_knows_nothing_is_measured(tmp_path, kind, names):
  write(tmp_path / "language")
  path = tmp_path / "language" / files.VOCABULARY
  tokenizer = load_tokenizer(str(path), lowercase=True)
  size = dict(vocab_size=len(tokenizer.vocab), variant="tiny")
  model = pretrain.make_bert(**size)
  if kind == "electra":
    model = pretrain.make_electra(generator_multiplier=0.5, **size)
  params = tiny.random_params(model)
  head = params[f"{model.mlm_role}_head"]
  for name in head["norm"]:  # logits of 0
    head["norm"][name] = 0 * head["norm"][name]
  head["bias"] = 0 * head["bias"]
  masking = tiny.masking.MaskingOptions(
    mask_id=tokenizer.mask,
    never_masked=(tokenizer.cls, tokenizer.sep, tokenizer.mask),
    vocab_size=len(tokenizer.vocab),
    style="electra_85_15",
    mask_prob=0.25,
  )
  random_words = dataclasses.replace(masking, style="80_10_10")
  drawn, words_RxL = files.read_language(tmp_path / "language")
  scores, same = (
    measure_run.measure_model(
      model,
      params,
      tiny.make_options(masking=options),
      tokenizer,
      drawn,
      words_RxL[:300],
    )
    for options in (masking, random_words)
  )
  assert scores == same  # the best loss is known without random words only
  uniform = math.log(len(tokenizer.vocab))
  assert scores["loss_word"] == pytest.approx(uniform, rel=1e-5)
  best = scores["best_word"]
  assert scores["kl_word"] == pytest.approx(uniform - best, rel=1e-5)
  assert 0 < scores["best_class"] < best < uniform
  assert {"auc", "auc_class"} & set(scores) == names
  if names:
    assert 0.4 < scores["auc"] < 0.6 and scores["auc"] != scores["auc_class"]
