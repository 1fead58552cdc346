"""Counts corrections of M slots (table 2), and shows sentences (figure 3)."""

import collections
import dataclasses
import operator
from collections.abc import Iterable, Sequence

import numpy as np

from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.data.vocabulary import read_words
from truenegs_jax.report import page
from truenegs_jax.stats.intervals import Rate, estimate_rate
from truenegs_jax.synonyms.table import SynonymTable

WINDOW = 12  # tokens shown on either side of the mask
MAX_SAVED = 5_000  # in cases.json: some 3 MB, which a browser searches at once
# The paper's table 2: percent of the steps, then Iter and Pred of BERT-base and
# of BERT-large, in percent.
TABLE_2 = {
  6.25: (6.90, 1.31, 7.46, 1.50),
  12.5: (6.96, 1.34, 7.58, 1.55),
  25.0: (6.97, 1.36, 7.31, 1.49),
  50.0: (7.05, 1.36, 7.46, 1.56),
  80.0: (7.06, 1.40, 7.38, 1.57),
  100.0: (7.07, 1.41, 7.44, 1.60),
}
TABLE_2_NOTE = (
  "The paper's table 2 leaves open which split was measured, how it was cut and"
  " masked, and whether predictions were sampled."
)


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
class Rates:
  """Corrections among a model's predictions.

  A correction predicts a synonym of the gold token in an eligible slot. Shares
  are of all slots, eligible or not, like in training.
  """

  mismatch_rate: Rate  # the paper's prediction level
  slot_rate: Rate
  sequence_rate: Rate  # the paper's iteration level; only sequences with slots


@dataclasses.dataclass(frozen=True)
class CheckpointRates:
  """Corrections among the predictions of a checkpoint."""

  step: int | None  # None for weights without a run
  percent: float | None  # of the run's steps
  rates: Rates


def count_corrections(p: Predictions, table: SynonymTable) -> Rates:
  """Counts the predictions that a table of synonyms corrects."""
  corrected_M = p.corrected_M(table)
  wrong_M = p.mismatch_M
  sequences = np.unique(p.sequence_M)
  has_correction = np.isin(sequences, p.sequence_M[corrected_M])
  return Rates(
    mismatch_rate=estimate_rate(corrected_M[wrong_M], p.sequence_M[wrong_M]),
    slot_rate=estimate_rate(corrected_M, p.sequence_M),
    sequence_rate=estimate_rate(has_correction, sequences),
  )


def find_table_2(
  steps: Sequence[tuple[int | None, float | None]],
) -> dict[float, int]:
  """Maps percentages of TABLE_2 to indices of `steps`; 100 to the last one."""
  rows = {
    percent: index
    for percent in TABLE_2
    for index, (step, done) in enumerate(steps[:-1])
    if step and done and round(step / done * percent) == step
  }
  return rows | {100.0: len(steps) - 1}


def make_rates_table(
  checkpoints: Sequence[CheckpointRates], source: str
) -> page.Table:
  """Makes a row for each checkpoint; "Iter" and "Pred" are the paper's."""
  shares = find_table_2([(x.step, x.percent) for x in checkpoints])
  paper = {index: TABLE_2[percent] for percent, index in shares.items()}
  rows = []
  for index, checkpoint in enumerate(checkpoints):
    rates = checkpoint.rates
    row = {"step (%)": "-"}
    if checkpoint.step is not None:
      row["step (%)"] = f"{checkpoint.step:,} ({checkpoint.percent:.3g})"
    shown = {"Iter": rates.sequence_rate, "Pred": rates.mismatch_rate}
    for name, x in shown.items():
      interval = f"{100 * x.low:.2f}-{100 * x.high:.2f}"
      row[name] = f"{100 * x.rate:.2f} {interval}" if x.total else "-"
    published = [f"{x:.2f}" for x in paper.get(index, ())]
    row["BERT base"] = " ".join(published[:2])
    row["BERT large"] = " ".join(published[2:])
    rows.append(row)
  title = f"Corrections by {source} (%, with 95 % intervals), and in the paper"
  return page.Table(title, rows, [TABLE_2_NOTE])


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
