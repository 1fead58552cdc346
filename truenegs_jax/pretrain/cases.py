"""Finds corrections among predictions, and shows them like figure 3."""

import collections
import dataclasses
import operator
from collections.abc import Iterable, Sequence

import numpy as np

from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.data.words import read_words
from truenegs_jax.report import page
from truenegs_jax.synonyms.table import SynonymTable

WINDOW = 12  # tokens shown on either side of the mask
MAX_SAVED = 5_000  # in cases.json: some 3 MB, which a browser searches at once


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
  """A model's predictions for M slots of T sequences, in any order."""

  sequence_M: np.ndarray  # int32, the slot's sequence, 0 to T - 1
  position_M: np.ndarray  # int32, in this sequence
  gold_M: np.ndarray  # int32
  predicted_M: np.ndarray  # int32, the likeliest token or a sample
  probability_M: np.ndarray  # float32, of the predicted token
  eligible_M: np.ndarray  # bool, whether hard correction is allowed
  # T arrays, the tokens before masking, from [CLS] to [SEP]; maybe without slot
  sequences: tuple[np.ndarray, ...]

  @property
  def mismatch_M(self) -> np.ndarray:
    """bool: the predicted token is not the gold token."""
    return self.predicted_M != self.gold_M

  def corrected_M(self, table: SynonymTable) -> np.ndarray:
    """Returns bool_M: hard correction takes a wrong one out of the loss."""
    is_synonym_M = table.contains(self.gold_M, self.predicted_M)
    return self.eligible_M & self.mismatch_M & is_synonym_M

  def corrected_pairs(self, table: SynonymTable) -> set[tuple[int, int]]:
    """Returns the different (gold, prediction) ids of the corrections."""
    corrected_M = self.corrected_M(table)
    golds = self.gold_M[corrected_M].tolist()
    return set(zip(golds, self.predicted_M[corrected_M].tolist(), strict=True))


@dataclasses.dataclass(frozen=True)
class Case:
  """A corrected prediction."""

  sentence: str  # tokens around the slot, [MASK] in the slot
  gold: str
  prediction: str
  probability: float
  synonyms: tuple[str, ...]  # of gold
  count: int  # corrections of this pair in all predictions


@dataclasses.dataclass(frozen=True)
class Search:
  """Cases found among predictions; the content of cases.json."""

  searched: int  # predictions
  corrected: int  # predictions
  source: str  # of the synonyms
  cases: list[Case]  # in the order of `find_cases`


def find_cases(
  predictions: Iterable[Predictions],
  table: SynonymTable,
  tokenizer: Tokenizer,
  *,
  limit: int = MAX_SAVED,
) -> Search:
  """Finds corrections, at most `limit`, the most probable predictions first.

  One of each pair (gold, prediction) comes before the second of any.
  """
  texts = read_words(tokenizer.vocab).texts
  searched = 0
  by_probability = []  # probability, predictions, slot
  for p in predictions:
    searched += len(p.gold_M)
    slots = np.flatnonzero(p.corrected_M(table)).tolist()
    by_probability += [(p.probability_M[m], p, m) for m in slots]
  by_probability.sort(key=operator.itemgetter(0), reverse=True)
  counts: collections.Counter[tuple[str, str]] = collections.Counter()
  corrected = []  # repetition of the pair, predictions, slot
  for _, p, m in by_probability:
    pair = texts[p.gold_M[m]], texts[p.predicted_M[m]]
    corrected.append((counts[pair], p, m))
    counts[pair] += 1
  corrected.sort(key=operator.itemgetter(0))
  cases = []
  for _, p, m in corrected[:limit]:
    gold = int(p.gold_M[m])
    prediction = texts[p.predicted_M[m]]
    case = Case(
      _show_slot(p, m, tokenizer),
      gold=texts[gold],
      prediction=prediction,
      probability=float(p.probability_M[m]),
      synonyms=tuple(texts[i] for i in table.synonym_ids(gold)),
      count=counts[texts[gold], prediction],
    )
    cases.append(case)
  return Search(searched, len(corrected), table.source, cases)


def _show_slot(p: Predictions, m: int, tokenizer: Tokenizer) -> str:
  """Returns the tokens around a slot, with [MASK] in the slot."""
  row = p.sequences[p.sequence_M[m]]
  position = int(p.position_M[m])
  start = max(position - WINDOW, 1)  # without [CLS]
  end = min(position + WINDOW, len(row) - 1)  # without the last [SEP]
  ids = row[start:end].tolist()
  ids[position - start] = tokenizer.mask
  mask = tokenizer.vocab[tokenizer.mask]
  sentence = tokenizer.decode(ids).replace(mask, f" {mask}")
  return " ".join(sentence.split())


def make_cases_table(search: Search, cases: Sequence[Case]) -> page.Table:
  """Makes a table like the paper's figure 3; its title counts all cases."""
  title = page.describe_search(search.searched, search.corrected, len(cases))
  rows = []
  for case in cases:
    synonyms = page.abridge(case.synonyms, case.prediction)
    prediction = f"{case.prediction} ({case.probability:.0%})"
    rows.append(
      {
        "sentence": case.sentence,
        # One column for both, since at 80 columns two would break words.
        "gold, prediction": f"{case.gold}\n{prediction}",
        "synonyms of gold": ", ".join(synonyms),
      }
    )
  return page.Table(title, rows)
