"""Makes lexicons of an artificial language that are as wrong as desired."""

import numpy as np

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.study.artificial.language import Language


def draw_lexicon(
  language: Language, *, precision: float, recall: float, seed: int
) -> np.ndarray:
  """Draws a symmetric lexicon: pairs (word, synonym), int64 `[N, 2]`, sorted.

  Precision is the share of its pairs that are synonyms, recall the share of the
  synonyms that it has; both are met up to rounding to a number of pairs. Wrong
  pairs are uniform over words of different classes. With one seed, a lexicon of
  higher recall has the true pairs of one of lower recall.

  Raises:
    InputError: a share out of range, a language without synonyms, or with too
      few words for so many wrong pairs.
  """
  if not (0 < precision <= 1 and 0 < recall <= 1):
    raise InputError(
      f"A lexicon of precision {precision:.0%} and recall {recall:.0%} is"
      " impossible. Use more than 0 % and at most 100 %."
    )
  rng = np.random.default_rng(seed)
  true_Nx2, false_Nx2 = (
    rng.permutation(np.argwhere(np.triu(relation_VxV, 1)))
    for relation_VxV in (language.is_synonym_VxV, ~language.is_synonym_VxV)
  )
  num_true = round(recall * len(true_Nx2))
  num_false = round(num_true * (1 / precision - 1))
  if not num_true or num_false > len(false_Nx2):
    raise InputError(
      f"A lexicon of precision {precision:.0%} and recall {recall:.0%} is"
      f" impossible: the language has {len(true_Nx2):,} pairs of synonyms and"
      f" {len(false_Nx2):,} of other words. Use higher values or another share"
      " of words with synonyms."
    )
  pairs_Nx2 = np.concatenate([true_Nx2[:num_true], false_Nx2[:num_false]])
  both_Nx2 = np.concatenate([pairs_Nx2, pairs_Nx2[:, ::-1]])
  return both_Nx2[np.lexsort(both_Nx2.T[::-1])]


def score_lexicon(
  language: Language, pairs_Nx2: np.ndarray
) -> tuple[float, float]:
  """Returns precision and recall of pairs of different words, without repeats.

  Recall is 1 in a language without synonyms, precision in a lexicon without
  pairs.
  """
  is_true_VxV = language.is_synonym_VxV
  num_true = is_true_VxV[tuple(pairs_Nx2.T)].sum()
  return (
    float(num_true / len(pairs_Nx2)) if len(pairs_Nx2) else 1.0,
    float(num_true / is_true_VxV.sum()) if is_true_VxV.any() else 1.0,
  )
