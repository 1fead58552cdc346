"""Compares a model's predictions with those of the language that it learned.

Shapes: M hidden words, V words of the language, C classes. Special tokens are
no columns: probability that a model gives them is lost.
"""

import numpy as np

from truenegs_jax.study.artificial import exact
from truenegs_jax.study.artificial.language import Language
from truenegs_jax.train import metrics

BINS = 15  # of calibration errors, of equal width (Guo et al. 2017)
RIDGE = 1e-3  # of a probe, times the number of examples


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
    expected loss; `kl`, divergence of the model from the exact distribution,
    by which its expected loss is above the best; `ece`, see
    `calibration_error`; `accuracy` of the likeliest. And `mismatches`, the
    share of slots whose likeliest word is not gold; `false_negatives`, the
    share of the mismatches that are synonyms; `exact_false_negatives`, the same
    share of the exact distribution's likeliest words.
  """
  class_V = language.class_V
  exact_MxV = exact.word_log_probs(language, exact_MxC)
  scores: dict[str, float] = {}
  for name, log_q_MxQ, exact_MxQ, gold in (
    ("word", log_p_MxV, exact_MxV, gold_M),
    (
      "class",
      sum_by_class(log_p_MxV, class_V),
      np.log(exact_MxC),
      class_V[gold_M],
    ),
  ):
    best_M, loss_M = log_q_MxQ.argmax(axis=1), -_pick(log_q_MxQ, gold)
    confidence_M = np.exp(_pick(log_q_MxQ, best_M))
    divergence_MxQ = np.exp(exact_MxQ) * (exact_MxQ - log_q_MxQ)
    scores |= {
      f"loss_{name}": float(loss_M.mean()),
      f"best_{name}": float(exact.entropy(exact_MxQ).mean()),
      f"kl_{name}": float(divergence_MxQ.sum(axis=1).mean()),
      f"ece_{name}": calibration_error(confidence_M, best_M == gold),
      f"accuracy_{name}": float((best_M == gold).mean()),
    }
  predicted_M = log_p_MxV.argmax(axis=1)
  return scores | {
    "mismatches": float((predicted_M != gold_M).mean()),
    "false_negatives": false_negative_rate(language, gold_M, predicted_M),
    "exact_false_negatives": false_negative_rate(
      language, gold_M, exact_MxV.argmax(axis=1)
    ),
  }


def sum_by_class(log_p_MxV: np.ndarray, class_V: np.ndarray) -> np.ndarray:
  """Returns log probabilities `[M, C]` of classes; `class_V` is ascending."""
  first_C = class_V.searchsorted(np.arange(class_V[-1] + 1))
  return np.logaddexp.reduceat(log_p_MxV, first_C, axis=1)


def false_negative_rate(
  language: Language, gold_M: np.ndarray, predicted_M: np.ndarray
) -> float:
  """Returns the share of wrong predictions that are synonyms; 0 without any."""
  is_synonym_M = language.is_synonym_VxV[gold_M, predicted_M]
  return float(is_synonym_M.sum() / max(1, (predicted_M != gold_M).sum()))


def calibration_error(
  confidence_M: np.ndarray, correct_M: np.ndarray, *, bins: int = BINS
) -> float:
  """Returns the expected calibration error (Guo et al. 2017).

  It is the mean of |accuracy - confidence| over bins of equal width from 0 to
  1, (b / bins, (b + 1) / bins], weighted by their predictions.
  """
  bin_M = np.ceil(confidence_M * bins).astype(int).clip(1, bins)
  gap_M = correct_M - confidence_M
  return float(np.abs(np.bincount(bin_M, gap_M)).sum() / len(gap_M))


def detection_auc(score_M: np.ndarray, replaced_M: np.ndarray) -> float:
  """Returns the exact area under the ROC curve; ties count half."""
  values, rank_M = np.unique(score_M, return_inverse=True)
  positive_Q, negative_Q = (
    np.bincount(rank_M[chosen_M], minlength=len(values))
    for chosen_M in (replaced_M, ~replaced_M)
  )
  return metrics.auc(positive_Q, negative_Q)


def probe_accuracy(
  hidden_MxD: np.ndarray,
  class_M: np.ndarray,
  is_train_M: np.ndarray,
  is_test_M: np.ndarray,
) -> float:
  """Returns the accuracy of a linear probe, fitted in closed form.

  The probe is ridge regression, with a bias, on one-hot classes. The result is
  nan without test examples.
  """
  if not is_test_M.any():
    return float("nan")
  x_MxD = np.column_stack([hidden_MxD, np.ones(len(hidden_MxD))])
  x_NxD, y_NxC = x_MxD[is_train_M], np.eye(class_M.max() + 1)[class_M]
  ridge_DxD = RIDGE * len(x_NxD) * np.eye(x_NxD.shape[1])
  w_DxC = np.linalg.solve(
    x_NxD.T @ x_NxD + ridge_DxD, x_NxD.T @ y_NxC[is_train_M]
  )
  predicted_M = (x_MxD[is_test_M] @ w_DxC).argmax(axis=1)
  return float((predicted_M == class_M[is_test_M]).mean())


def _pick(values_MxQ: np.ndarray, index_M: np.ndarray) -> np.ndarray:
  return np.take_along_axis(values_MxQ, index_M[:, None], axis=1)[:, 0]
