"""Collects corrections in their sentences, and prints them (figure 3)."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from rich.table import Table

from truenegs_jax.corrections.predict_slots import Predictions
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.synonyms.table import SynonymTable

WINDOW = 12  # tokens shown on either side of the mask
MAX_SAVED = 5_000  # in cases.json: some 3 MB, which a browser searches at once


@dataclasses.dataclass(frozen=True)
class Case:
  """A prediction that one of the sources corrects.

  Attributes:
    sentence: tokens around the slot, [MASK] in the slot.
    synonyms: list of the gold token by the first source that corrects.
    verdicts: by source: "corrected" or "wrong".
    count: corrections of this pair in all predictions searched, by any source.
  """

  sentence: str
  gold: str
  prediction: str
  probability: float
  synonyms: tuple[str, ...]
  verdicts: Mapping[str, str]
  count: int = 0


@dataclasses.dataclass(frozen=True)
class Search:
  """Cases found among predictions; the content of cases.json.

  Attributes:
    searched: number of predictions.
    corrected: number of predictions that any of the sources corrects.
    sources: in the order of `Case.verdicts`.
    cases: of different (gold, prediction) pairs first, then repeated ones.
  """

  searched: int
  corrected: int
  sources: tuple[str, ...]
  cases: list[Case]


class CaseFinder:
  """Collects corrections by any of several sources.

  Corrections of different (gold, prediction) pairs come first, then repeated
  ones, each in the order of the predictions. `counts` has the number of
  corrections of each pair.

  Args:
    tables: synonym tables by source.
    tokenizer: its vocabulary is that of the tables.
    limit: maximum number of cases to keep.
  """

  def __init__(
    self,
    tables: Mapping[str, SynonymTable],
    tokenizer: Tokenizer,
    *,
    limit: int = MAX_SAVED,
  ):
    self.tables, self.tokenizer, self.limit = tables, tokenizer, limit
    self.searched = 0
    self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
    # By their order: repetition of the pair, number of the slot.
    self._cases: dict[tuple[int, int], Case] = {}

  def add(self, p: Predictions) -> None:
    """Searches predictions."""
    vocab, slots = self.tokenizer.vocab, {}
    corrected = [p.corrected_M(table) for table in self.tables.values()]
    for m in np.flatnonzero(np.any(corrected, axis=0)).tolist():
      pair = vocab[p.gold_M[m]], vocab[p.predicted_M[m]]
      slots[self.counts[pair], self.searched + m] = m
      self.counts[pair] += 1
    self.searched += len(p.gold_M)
    first = sorted(self._cases.keys() | slots.keys())[: self.limit]
    self._cases = {
      order: self._cases.get(order) or self._make_case(p, slots[order])
      for order in first
    }

  def finish(self) -> Search:
    """Returns the cases, with the counts of their pairs."""
    cases = [
      dataclasses.replace(case, count=self.counts[case.gold, case.prediction])
      for case in self._cases.values()
    ]
    corrected = self.counts.total()
    return Search(self.searched, corrected, tuple(self.tables), cases)

  def _make_case(self, p: Predictions, m: int) -> Case:
    tokenizer, vocab = self.tokenizer, self.tokenizer.vocab
    gold, predicted = int(p.gold_M[m]), int(p.predicted_M[m])
    lists = {name: x.synonym_ids(gold) for name, x in self.tables.items()}
    row, position = p.sequences[p.sequence_M[m]], int(p.position_M[m])
    start = max(position - WINDOW, 1)  # without [CLS]
    end = min(position + WINDOW, len(row) - 1)  # without the last [SEP]
    words = [vocab[i] for i in row[start:end]]
    words[position - start] = vocab[tokenizer.mask]
    synonyms = next(ids for ids in lists.values() if predicted in ids)
    return Case(
      " ".join(words).replace(" ##", ""),
      gold=vocab[gold],
      prediction=vocab[predicted],
      probability=float(p.probability_M[m]),
      synonyms=tuple(vocab[i] for i in synonyms),
      verdicts={
        name: "corrected" if predicted in ids else "wrong"
        for name, ids in lists.items()
      },
    )


def render_cases(cases: Sequence[Case], searched: int) -> Table | str:
  """Renders cases like the paper's figure 3; one sentence if there are none."""
  if not cases:
    return f"No corrections found in {searched:,} predictions."
  title = (
    f"corrections, taken out of the loss: {len(cases)} shown of {searched:,}"
    " predictions searched"
  )
  grid = Table(title=title, title_justify="left", show_lines=True)
  # One column for both words, since at 80 columns two would break words.
  for name in ("sentence", "gold\nprediction", "synonyms of gold"):
    grid.add_column(name, overflow="fold", no_wrap="\n" in name)
  for case in cases:
    prediction = f"{case.prediction} ({case.probability:.0%})"
    words = f"{case.gold}\n{prediction}"
    grid.add_row(case.sentence, words, ", ".join(case.synonyms))
  return grid
