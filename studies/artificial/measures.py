"""Compares a model's predictions with those of the language that it learned.

Shapes: M hidden words, V words of the language, C classes. Special tokens are
no columns: probability that a model gives them is lost.
"""

import numpy as np
from language import Language
from scipy import stats

BINS = 15  # of calibration errors, of equal width (Guo et al. 2017)
RIDGE = 1e-3  # of a probe, times the number of examples
FOLDS = 5  # of a probe; a class has at most as many words


def class_posterior(
  language: Language, words_RxL: np.ndarray, visible_RxL: np.ndarray
) -> np.ndarray:
  """Returns the exact probability `[R, L, C]` of each position's class.

  Given are the other positions of the line that are visible, whether or not the
  position itself is. They show their classes, so it is computed by the forward
  and backward passes of a hidden Markov model (Rabiner 1989). A line has no
  other information: no model predicts better.
  """
  shape = (*words_RxL.shape, len(language.start_C))
  is_shown_RxLxC = np.eye(shape[-1])[language.class_V[words_RxL]]
  evidence_RxLxC = np.where(visible_RxL[..., None], is_shown_RxLxC, 1.0)
  before_RxLxC, after_RxLxC = np.empty(shape), np.ones(shape)
  before_RxLxC[:, 0] = language.start_C
  for i in range(1, shape[1]):
    seen_RxC = before_RxLxC[:, i - 1] * evidence_RxLxC[:, i - 1]
    before_RxLxC[:, i] = _normalize(seen_RxC @ language.next_CxC)
  for i in reversed(range(shape[1] - 1)):
    seen_RxC = after_RxLxC[:, i + 1] * evidence_RxLxC[:, i + 1]
    after_RxLxC[:, i] = _normalize(seen_RxC @ language.next_CxC.T)
  return _normalize(before_RxLxC * after_RxLxC)


def word_log_probs(language: Language, p_MxC: np.ndarray) -> np.ndarray:
  """Returns log probabilities `[M, V]` of words from those of classes."""
  return np.log(p_MxC[:, language.class_V]) + np.log(language.share_V)


def score_predictions(
  language: Language,
  log_p_MxV: np.ndarray,
  exact_MxC: np.ndarray,
  gold_M: np.ndarray,
) -> dict[str, float]:
  """Scores predictions of hidden words; losses in nats per word.

  Args:
    language: of C classes.
    log_p_MxV: log probabilities of the model.
    exact_MxC: exact probabilities of the classes.
    gold_M: the words.

  Returns:
    For words and classes (NAME_word, NAME_class): `loss`; `best`, the lowest
    expected loss, an entropy; `kl`, divergence of the model from the exact
    distribution, by which its expected loss is above the best; `ece`, see
    `calibration_error`; `accuracy` of the likeliest. And `false_negatives`, the
    share of synonyms among the likeliest words that are not gold;
    `exact_false_negatives`, that of the exact distribution.
  """
  class_V = language.class_V
  exact_MxV = word_log_probs(language, exact_MxC)
  by_class = sum_by_class(log_p_MxV, class_V), np.log(exact_MxC)
  scores: dict[str, float] = {}
  for name, log_q_MxQ, log_exact_MxQ, gold in (
    ("word", log_p_MxV, exact_MxV, gold_M),
    ("class", *by_class, class_V[gold_M]),
  ):
    correct_M = log_q_MxQ.argmax(axis=1) == gold
    exact_MxQ = np.exp(log_exact_MxQ)
    loss_M = -log_q_MxQ[np.arange(len(gold)), gold]
    best_M = -(exact_MxQ * log_exact_MxQ).sum(axis=1)
    kl_M = (exact_MxQ * (log_exact_MxQ - log_q_MxQ)).sum(axis=1)
    confidence_M = np.exp(log_q_MxQ.max(axis=1))
    scores |= {
      f"loss_{name}": float(loss_M.mean()),
      f"best_{name}": float(best_M.mean()),
      f"kl_{name}": float(kl_M.mean()),
      f"ece_{name}": calibration_error(confidence_M, correct_M),
      f"accuracy_{name}": float(correct_M.mean()),
    }
  for name, log_q_MxV in (("", log_p_MxV), ("exact_", exact_MxV)):
    predicted_M = log_q_MxV.argmax(axis=1)
    is_synonym_M = language.is_synonym_VxV[gold_M, predicted_M]
    mismatches = max(1, (predicted_M != gold_M).sum())
    scores[f"{name}false_negatives"] = float(is_synonym_M.sum() / mismatches)
  return scores


def sum_by_class(log_p_MxV: np.ndarray, class_V: np.ndarray) -> np.ndarray:
  """Returns log probabilities `[M, C]` of classes; `class_V` is ascending."""
  first_C = np.unique(class_V, return_index=True)[1]
  return np.logaddexp.reduceat(log_p_MxV, first_C, axis=1)


def calibration_error(confidence_M: np.ndarray, correct_M: np.ndarray) -> float:
  """Returns the expected calibration error (Guo et al. 2017).

  It is the mean of |accuracy - confidence| over bins of equal width from 0 to
  1, (b / BINS, (b + 1) / BINS], weighted by their predictions.
  """
  bin_M = np.ceil(confidence_M * BINS).astype(int).clip(1, BINS)
  gap_M = correct_M - confidence_M
  return float(np.abs(np.bincount(bin_M, gap_M)).sum() / len(gap_M))


def detection_auc(score_M: np.ndarray, replaced_M: np.ndarray) -> float:
  """Returns the area under the ROC curve; ties count half.

  It is nan if no token, or each one, was replaced.
  """
  positive_N, negative_N = score_M[replaced_M], score_M[~replaced_M]
  u = stats.mannwhitneyu(positive_N, negative_N).statistic
  return float(u / (len(positive_N) * len(negative_N)))


def probe_new_words(
  language: Language, words_M: np.ndarray, hidden_MxD: np.ndarray
) -> float:
  """Returns the accuracy of a linear probe on the class of words it never saw.

  The words that have synonyms are divided among FOLDS, those of a class among
  different ones. For each fold a probe, ridge regression with a bias on one-hot
  classes, is fitted to the first half of the M words without those of the fold,
  and tested on these in the second half; nan if no word has synonyms.
  """
  class_V, has_synonym_V = language.class_V, language.is_synonym_VxV.any(axis=1)
  first_C = np.unique(class_V, return_index=True)[1]
  fold_V = (np.arange(len(class_V)) - first_C[class_V]) % FOLDS
  is_first_M = np.arange(len(words_M)) < len(words_M) // 2
  x_MxD = np.column_stack([hidden_MxD, np.ones(len(hidden_MxD))])
  y_MxC = np.eye(len(first_C))[class_V[words_M]]
  correct = []
  for fold in range(FOLDS):
    is_fold_M = ((fold_V == fold) & has_synonym_V)[words_M]
    fit_M, test_M = is_first_M & ~is_fold_M, ~is_first_M & is_fold_M
    x_NxD = x_MxD[fit_M]
    ridge_DxD = RIDGE * len(x_NxD) * np.eye(x_NxD.shape[1])
    w_DxC = np.linalg.solve(x_NxD.T @ x_NxD + ridge_DxD, x_NxD.T @ y_MxC[fit_M])
    predicted_N = (x_MxD[test_M] @ w_DxC).argmax(axis=1)
    correct.append(predicted_N == class_V[words_M[test_M]])
  correct_N = np.concatenate(correct)
  return float(correct_N.mean()) if len(correct_N) else float("nan")


def _normalize(p: np.ndarray) -> np.ndarray:
  return p / p.sum(axis=-1, keepdims=True)
