"""Computes the exact distribution of hidden words, and the best losses.

A visible word shows its class, so the forward and backward passes of a hidden
Markov model (Rabiner 1989) give the class of a hidden word. A line has no other
information: no model predicts better.
"""

import numpy as np

from truenegs_jax.study.artificial.language import Language


def class_posterior(
  language: Language, words_RxL: np.ndarray, visible_RxL: np.ndarray
) -> np.ndarray:
  """Returns the probability `[R, L, C]` of each position's class.

  Given are the other positions of the line that are visible, whether or not the
  position itself is.
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


def entropy(log_p_MxQ: np.ndarray) -> np.ndarray:
  """Returns the entropy `[M]` of distributions, in nats.

  It is the best expected loss of a word, or with classes its part that is the
  class.
  """
  return -(np.exp(log_p_MxQ) * log_p_MxQ).sum(axis=1)


def detection_bound(p_M: np.ndarray, num_tokens: int) -> float:
  """Returns a detection loss, in nats per token, that no discriminator beats.

  Args:
    p_M: for each hidden word, the exact probability, given the visible words,
      of the word that was sampled for it: that it is the original.
    num_tokens: of all rows.

  The bound is reached by a discriminator that sees the generator's input. Given
  only the corrupted row, the best loss is higher: it is not known which
  positions were hidden.
  """
  p_M = p_M[(p_M > 0) & (p_M < 1)]
  return float(-(p_M * np.log(p_M) + (1 - p_M) * np.log1p(-p_M)).sum()) / (
    num_tokens
  )


def _normalize(p: np.ndarray) -> np.ndarray:
  return p / p.sum(axis=-1, keepdims=True)
