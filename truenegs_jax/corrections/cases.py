"""Corrections as people can judge them: the cases of the paper's figure 3."""

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
from truenegs_jax.synonyms.table import SynonymTable, synonyms_of

WINDOW = 12  # tokens shown on either side of the mask
SHEET_WINDOW = 40  # of the sheet: to judge takes more than to look at
SHEET = (
  "number",
  "sentence",
  "gold",
  "prediction",
  "probability",
  "right? (y, n, or ? where you cannot tell)",
)
Only = tuple[tuple[int, int | None], ...]


@dataclasses.dataclass(frozen=True)
class Case:
  """One prediction, and what hard correction makes of it."""

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
    predict: by `slots.make_predict_slots`.

  Returns:
    The cases, no two of the same gold and prediction, and how many predictions
    were searched for them.
  """
  cases: dict[tuple[str, str], Case] = {}
  searched = 0
  key = jax.random.key(seed)
  for batch in batches:
    said = predict_slots.predict_batch(predict, params, batch, key)
    searched += len(said.gold_M)
    for m in np.flatnonzero(said.corrected_M(table)).tolist():
      case = _case(said, m, table, tokenizer)
      cases.setdefault((case.gold, case.prediction), case)
    if len(cases) >= limit:
      break
  return list(cases.values())[:limit], searched


def choose_cases(
  said: Predictions,
  table: SynonymTable,
  tokenizer: Tokenizer,
  *,
  limit: int,
  only: Only = (),
) -> list[Case]:
  """Corrected predictions, or all those of the words asked for.

  Args:
    said: what the model said.
    limit: of the cases; different pairs of gold and prediction come first, and
      then as one reads.
    only: pairs by `parse_only`; none: the corrected ones.
  """
  chosen_M = _chosen(said, only) if only else said.corrected_M(table)
  times: collections.Counter[tuple[int, int]] = collections.Counter()
  order = []
  for m in np.flatnonzero(chosen_M).tolist():
    pair = int(said.gold_M[m]), int(said.predicted_M[m])
    order.append((times[pair], m))
    times[pair] += 1
  return [_case(said, m, table, tokenizer) for _, m in sorted(order)[:limit]]


def parse_only(text: str, tokenizer: Tokenizer) -> Only:
  """The ids of "primary, stay:remain": a gold word, or gold:prediction.

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


def show(cases: list[Case], searched: int) -> Table:
  """The cases as figure 3 of the paper shows them."""
  found = "predictions" if cases else "nothing found"
  if {case.verdict for case in cases} == {"corrected"}:
    found = "corrections, not punished"
  t = Table(
    title=f"{found}: {len(cases)} shown of {searched:,} predictions searched",
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


def sheet(
  said: Predictions,
  tables: Sequence[SynonymTable],
  tokenizer: Tokenizer,
  *,
  size: int,
  seed: int,
) -> str:
  """CSV of corrections for people to judge, in an order drawn at random.

  They are drawn among what any of the tables corrects, and nothing says which:
  who judges is not to know. Right is a prediction that, in the place of the
  **marked** word, says what the sentence says.
  """
  [hits_N] = np.nonzero(
    np.logical_or.reduce([said.corrected_M(table) for table in tables])
  )
  drawn = np.random.default_rng(seed).permutation(hits_N)[:size]
  file = io.StringIO()
  write = csv.writer(file, lineterminator="\n").writerow
  write(SHEET)
  for number, m in enumerate(drawn, start=1):
    gold = tokenizer.vocab[said.gold_M[m]]
    predicted = tokenizer.vocab[said.predicted_M[m]]
    marked = f"**{gold}**"
    text = _sentence(said, m, tokenizer, marked, window=SHEET_WINDOW)
    write(
      [
        number,
        *map(_no_formula, (text, gold, predicted)),
        f"{said.probability_M[m]:.3f}",
        "",
      ]
    )
  return file.getvalue()


def _no_formula(text: str) -> str:
  """What a spreadsheet takes for text, and for no formula."""
  return f"'{text}" if text[0] in "=+-@" else text


def _chosen(said: Predictions, only: Only) -> np.ndarray:
  chosen_M = np.zeros(len(said.gold_M), bool)
  for gold, prediction in only:
    chosen_M |= (said.gold_M == gold) & (
      prediction is None or said.predicted_M == prediction
    )
  return chosen_M


def _case(
  said: Predictions, m: int, table: SynonymTable, tokenizer: Tokenizer
) -> Case:
  gold, predicted = int(said.gold_M[m]), int(said.predicted_M[m])
  synonyms = synonyms_of(table, gold)
  is_corrected = predicted in synonyms and said.eligible_M[m]
  verdict = "corrected" if is_corrected else "wrong"
  mask = tokenizer.vocab[tokenizer.mask]
  return Case(
    sentence=_sentence(said, m, tokenizer, mask, window=WINDOW),
    gold=tokenizer.vocab[gold],
    prediction=tokenizer.vocab[predicted],
    probability=float(said.probability_M[m]),
    synonyms=tuple(tokenizer.vocab[i] for i in synonyms),
    verdict="right" if predicted == gold else verdict,
  )


def _sentence(
  said: Predictions, m: int, tokenizer: Tokenizer, shown: str, *, window: int
) -> str:
  """The tokens around a slot as a reader wants them, `shown` in its place."""
  row, position = said.sequences[said.sequence_M[m]], int(said.position_M[m])
  start = max(position - window, 1)  # without [CLS], and the last [SEP]
  end = min(position + window, len(row) - 1)
  words = [tokenizer.vocab[i] for i in row[start:end]]
  words[position - start] = shown
  return " ".join(words).replace(" ##", "")
