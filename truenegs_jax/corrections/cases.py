"""Corrections for people to judge: the cases of the paper's figure 3."""

import collections
import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from rich.table import Table

from truenegs_jax.corrections import predict_slots
from truenegs_jax.corrections.predict_slots import Predictions
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms.stop_words import is_word
from truenegs_jax.synonyms.table import SynonymTable, get_synonyms

WINDOW = 12  # tokens shown on either side of the mask
SHEET_WINDOW = 40  # in the sheet: to judge takes more than to look at
SHEET = (
  "number",
  "sentence",
  "gold",
  "prediction",
  "probability",
  "right? (y, n, or ? where you cannot tell)",
)
PairFilter = tuple[tuple[int, int | None], ...]


@dataclasses.dataclass(frozen=True)
class Case:
  """One prediction, and how hard correction treats it."""

  sentence: str  # with [MASK] in the slot, some tokens around it
  gold: str
  prediction: str
  probability: float
  synonyms: tuple[str, ...]
  verdict: str  # "corrected", "right": it is the gold, or "wrong"


def find_cases(
  predict: Callable,
  params: Any,
  batches: Iterable[predict_slots.Batch],
  *,
  table: SynonymTable,
  tokenizer: Tokenizer,
  limit: int,
  seed: int,
) -> tuple[list[Case], int]:
  """Searches batches for corrections until there are `limit` different ones.

  Args:
    predict: by `make_predict_slots`.

  Returns:
    The cases, no two of the same gold and prediction, and how many predictions
    were searched for them.
  """
  cases: dict[tuple[str, str], Case] = {}
  searched = 0
  key = jax.random.key(seed)
  for batch in batches:
    filled = predict_slots.predict_batch(predict, params, batch, key)
    searched += len(filled.gold_M)
    for m in np.flatnonzero(filled.corrected_M(table)).tolist():
      case = _case(filled, m, table, tokenizer)
      cases.setdefault((case.gold, case.prediction), case)
    if len(cases) >= limit:
      break
  return list(cases.values())[:limit], searched


def choose_cases(
  filled: Predictions,
  table: SynonymTable,
  tokenizer: Tokenizer,
  *,
  limit: int,
  only: PairFilter = (),
) -> list[Case]:
  """Returns the corrected predictions, or all those of some words.

  Args:
    limit: of the cases; different pairs of gold and prediction come first, and
      then as one reads.
    only: pairs by `parse_filter`; none: the corrected ones.
  """
  chosen_M = filled.corrected_M(table)
  if only:
    chosen_M = np.zeros(len(filled.gold_M), bool)
  for gold, prediction in only:
    is_pair_M = prediction is None or filled.predicted_M == prediction
    chosen_M |= (filled.gold_M == gold) & is_pair_M
  times: collections.Counter[tuple[int, int]] = collections.Counter()
  order = []
  for m in np.flatnonzero(chosen_M).tolist():
    pair = int(filled.gold_M[m]), int(filled.predicted_M[m])
    order.append((times[pair], m))
    times[pair] += 1
  return [_case(filled, m, table, tokenizer) for _, m in sorted(order)[:limit]]


def parse_filter(text: str, tokenizer: Tokenizer) -> PairFilter:
  """Parses "primary, stay:remain": a gold word, or gold:prediction, to ids.

  A word is lower-cased for a vocabulary that is.

  Raises:
    InputError: a word that is not one token of the vocabulary.
  """
  ids = {token: i for i, token in enumerate(tokenizer.vocab)}
  pairs = []
  for part in filter(None, map(str.strip, text.split(","))):
    words = [word.strip() for word in part.split(":")]
    if tokenizer.lowercase:  # but for [UNK] and the like
      words = [w.lower() if is_word(w) else w for w in words]
    for word in words:
      if word not in ids or len(words) > 2:
        raise InputError(
          f"corrections.only: {word!r} of {part!r} is not one token of this"
          " vocabulary; give words of it, gold or gold:prediction, such as"
          " 'primary, stay:remain'."
        )
    pairs.append((ids[words[0]], ids[words[1]] if words[1:] else None))
  return tuple(pairs)


def render_cases(cases: list[Case], searched: int) -> Table:
  """The cases as figure 3 of the paper shows them."""
  kind = "predictions" if cases else "nothing found"
  if {case.verdict for case in cases} == {"corrected"}:
    kind = "corrections, not punished"
  t = Table(
    title=f"{kind}: {len(cases)} shown of {searched:,} predictions searched",
    title_justify="left",
    show_lines=True,
  )
  for name in ("sentence", "gold", "prediction", "verdict", "synonyms of gold"):
    t.add_column(name, overflow="fold")
  for case in cases:
    t.add_row(
      case.sentence,
      case.gold,
      f"{case.prediction} ({case.probability:.0%})",
      case.verdict,
      ", ".join(case.synonyms),
    )
  return t


def build_sheet(
  filled: Predictions,
  tables: Sequence[SynonymTable],
  tokenizer: Tokenizer,
  *,
  size: int,
  seed: int,
) -> str:
  """CSV of corrections for people to judge, in an order drawn at random.

  They are drawn among those by any of the tables, and nothing says which: the
  judge is not to know. A prediction is right if, in the place of the **marked**
  word, it keeps the meaning of the sentence.
  """
  corrected_M = np.any([filled.corrected_M(table) for table in tables], axis=0)
  [hits_N] = np.nonzero(corrected_M)
  drawn = np.random.default_rng(seed).permutation(hits_N)[:size]
  file = io.StringIO()
  writer = csv.writer(file, lineterminator="\n")
  writer.writerow(SHEET)
  for number, m in enumerate(drawn, start=1):
    gold = tokenizer.vocab[filled.gold_M[m]]
    predicted = tokenizer.vocab[filled.predicted_M[m]]
    text = _sentence(filled, m, tokenizer, f"**{gold}**", window=SHEET_WINDOW)
    # With a quote a spreadsheet takes them for text, and for no formula.
    cells = (f"'{x}" if x[0] in "=+-@" else x for x in (text, gold, predicted))
    writer.writerow([number, *cells, f"{filled.probability_M[m]:.3f}", ""])
  return file.getvalue()


def _case(
  filled: Predictions, m: int, table: SynonymTable, tokenizer: Tokenizer
) -> Case:
  gold, predicted = int(filled.gold_M[m]), int(filled.predicted_M[m])
  synonyms = get_synonyms(table, gold)
  is_corrected = predicted in synonyms and filled.eligible_M[m]
  verdict = "corrected" if is_corrected else "wrong"
  mask = tokenizer.vocab[tokenizer.mask]
  return Case(
    sentence=_sentence(filled, m, tokenizer, mask, window=WINDOW),
    gold=tokenizer.vocab[gold],
    prediction=tokenizer.vocab[predicted],
    probability=float(filled.probability_M[m]),
    synonyms=tuple(tokenizer.vocab[i] for i in synonyms),
    verdict="right" if predicted == gold else verdict,
  )


def _sentence(
  filled: Predictions, m: int, tokenizer: Tokenizer, shown: str, *, window: int
) -> str:
  """The tokens around a slot as text, `shown` in its place."""
  row, position = (
    filled.sequences[filled.sequence_M[m]],
    int(filled.position_M[m]),
  )
  start = max(position - window, 1)  # without [CLS], and the last [SEP]
  end = min(position + window, len(row) - 1)
  words = [tokenizer.vocab[i] for i in row[start:end]]
  words[position - start] = shown
  return " ".join(words).replace(" ##", "")
