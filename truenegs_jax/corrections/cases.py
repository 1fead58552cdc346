"""Shows corrections to people, as in the paper's figure 3 or as a CSV sheet."""

import collections
import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from rich.table import Table

from truenegs_jax.corrections import predict_slots
from truenegs_jax.corrections.predict_slots import Predictions
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError, InputError, printable
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.synonyms.table import SynonymTable, get_synonyms
from truenegs_jax.synonyms.vocabulary import is_word

WINDOW = 12  # tokens shown on either side of the mask
SHEET_WINDOW = 40  # in the sheet: judging needs more context
SHEET_COLUMNS = ["number", "sentence", "gold", "prediction", "probability"]
SHEET_COLUMNS += ["right? (y, n, or ? where you cannot tell)"]
# (gold id, prediction id) pairs; None stands for any prediction.
PairFilter = tuple[tuple[int, int | None], ...]


@dataclasses.dataclass(frozen=True)
class Case:
  """A prediction and its verdict by hard correction."""

  sentence: str  # tokens around the slot, [MASK] in the slot
  gold: str
  prediction: str
  probability: float
  synonyms: tuple[str, ...]
  verdict: str  # "corrected", "right" (the gold token), or "wrong"
  lemmas: tuple[str, ...] = ()  # WordNet's list of the gold token, if shown

  @property
  def marked_list(self) -> str:
    """The synonyms, and in parentheses WordNet's other lemmas (figure 3)."""
    listed = {synonym.lower() for synonym in self.synonyms}
    others = ", ".join(x for x in self.lemmas if x.lower() not in listed)
    text = ", ".join(self.synonyms)
    return f"{text} ({others})".strip() if others else text


def find_cases(
  predict: Callable,
  params: Mapping[str, Any],
  batches: Iterable[predict_slots.Batch],
  *,
  table: SynonymTable,
  tokenizer: Tokenizer,
  limit: int,
  seed: int,
) -> tuple[list[Case], int]:
  """Searches batches for `limit` corrections, one per (gold, prediction).

  `predict` is built by `make_predict_slots`; `seed` is that of the masking.
  Returns the cases and the number of predictions searched.
  """
  cases: dict[tuple[str, str], Case] = {}
  searched = 0
  key = jax.random.key(seed)
  for batch in batches:
    p = predict_slots.predict_batch(predict, params, batch, key)
    searched += len(p.gold_M)
    for m in np.flatnonzero(p.corrected_M(table)).tolist():
      case = _make_case(p, m, table, tokenizer)
      cases.setdefault((case.gold, case.prediction), case)
    if len(cases) >= limit:
      break
  return list(cases.values())[:limit], searched


def choose_cases(
  p: Predictions,
  table: SynonymTable,
  tokenizer: Tokenizer,
  *,
  limit: int,
  only: PairFilter = (),
) -> list[Case]:
  """Returns up to `limit` corrections, or predictions that match a filter.

  Those of different (gold, prediction) pairs come first, then repeated ones,
  each in the order of the predictions. `only` is built by `parse_filter`;
  empty, it selects corrections.
  """
  chosen_M = np.zeros(len(p.gold_M), bool) if only else p.corrected_M(table)
  for gold, prediction in only:
    is_pair_M = prediction is None or p.predicted_M == prediction
    chosen_M |= (p.gold_M == gold) & is_pair_M
  counts: collections.Counter[tuple[int, int]] = collections.Counter()
  order = []
  for m in np.flatnonzero(chosen_M).tolist():
    pair = int(p.gold_M[m]), int(p.predicted_M[m])
    order.append((counts[pair], m))
    counts[pair] += 1
  chosen = sorted(order)[:limit]
  return [_make_case(p, m, table, tokenizer) for _, m in chosen]


def parse_filter(text: str, tokenizer: Tokenizer) -> PairFilter:
  """Parses a filter such as "primary, stay:remain": gold or gold:prediction.

  Raises:
    InputError: a word is not one token of the vocabulary.
  """
  ids = {token: i for i, token in enumerate(tokenizer.vocab)}
  pairs = []
  for part in filter(None, map(str.strip, text.split(","))):
    words = [word.strip() for word in part.split(":")]
    if tokenizer.lowercase:  # but not special tokens
      words = [w.lower() if is_word(w) else w for w in words]
    for word in words:
      if word not in ids or len(words) > 2:
        raise InputError(
          f"corrections.only={text!r}: {word!r} of {part!r} is not one token of"
          " the vocabulary. Use gold or gold:prediction with tokens, such as"
          " 'primary, stay:remain'."
        )
    pairs.append((ids[words[0]], ids[words[1]] if words[1:] else None))
  return tuple(pairs)


def add_lemmas(
  cases: list[Case],
  request: TableRequest,
  report: Callable[[str], object],
) -> list[Case]:
  """Adds WordNet's lists of the gold tokens if it is the request's only source.

  WordNet is opened if there are cases. If it is missing or damaged, as it may
  be for a run that has a table, this is reported.
  """
  options = request.wordnet_options
  if not cases or options is None or len(request.expression.sources) > 1:
    return cases
  try:
    with wordnet.session(options["folder"]) as reader:
      return [
        dataclasses.replace(
          case,
          lemmas=wordnet.find_lemma_names(
            case.gold, reader, pos=options["pos"]
          ),
        )
        for case in cases
      ]
  except (InputError, DataError) as e:
    report(f"warning: no lists of WordNet: {printable(e)}")
    return cases


def render_cases(cases: list[Case], searched: int) -> Table | str:
  """Renders cases like the paper's figure 3; one sentence if there are none."""
  if not cases:
    return f"No corrections found in {searched:,} predictions."
  all_corrected = {case.verdict for case in cases} == {"corrected"}
  kind = (
    "corrections, taken out of the loss" if all_corrected else "predictions"
  )
  title = f"{kind}: {len(cases)} shown of {searched:,} predictions searched"
  grid = Table(title=title, title_justify="left", show_lines=True)
  if any(case.lemmas for case in cases):
    grid.caption = (
      "In parentheses, never corrected: the gold word itself, words outside the"
      " vocabulary, and the whole list of a stop word."
    )
    grid.caption_justify = "left"
  verdict = () if all_corrected else ("verdict",)
  # One column, since at 80 columns more would break words.
  words = "\n".join(("gold", "prediction", *verdict))
  for name in ("sentence", words, "synonyms of gold"):
    grid.add_column(name, overflow="fold", no_wrap=name == words)
  for case in cases:
    prediction = f"{case.prediction} ({case.probability:.0%})"
    verdict = () if all_corrected else (case.verdict,)
    words = "\n".join((case.gold, prediction, *verdict))
    grid.add_row(case.sentence, words, case.marked_list)
  return grid


def build_sheet(
  p: Predictions,
  tables: Sequence[SynonymTable],
  tokenizer: Tokenizer,
  *,
  size: int,
  seed: int,
) -> str:
  """Builds a CSV sheet of corrections for people to judge.

  Draws `size` corrections by any of the tables, in random order. The sheet does
  not say by which table, so that judges are not biased. A prediction is right
  if it keeps the meaning of the sentence in place of the **marked** word.
  """
  corrected_M = np.any([p.corrected_M(table) for table in tables], axis=0)
  [corrected_N] = np.nonzero(corrected_M)
  drawn = np.random.default_rng(seed).permutation(corrected_N)[:size]
  file = io.StringIO()
  writer = csv.writer(file, lineterminator="\n")
  writer.writerow(SHEET_COLUMNS)
  for number, m in enumerate(drawn, start=1):
    gold = tokenizer.vocab[p.gold_M[m]]
    predicted = tokenizer.vocab[p.predicted_M[m]]
    text = _sentence(p, m, tokenizer, f"**{gold}**", window=SHEET_WINDOW)
    # Without a quote, spreadsheets would read these as formulas.
    cells = (f"'{x}" if x[0] in "=+-@" else x for x in (text, gold, predicted))
    writer.writerow([number, *cells, f"{p.probability_M[m]:.3f}", ""])
  return file.getvalue()


def _make_case(
  p: Predictions, m: int, table: SynonymTable, tokenizer: Tokenizer
) -> Case:
  vocab = tokenizer.vocab
  gold, predicted = int(p.gold_M[m]), int(p.predicted_M[m])
  synonyms = get_synonyms(table, gold)
  is_corrected = predicted in synonyms and p.eligible_M[m]
  verdict = "corrected" if is_corrected else "wrong"
  return Case(
    _sentence(p, m, tokenizer, vocab[tokenizer.mask], window=WINDOW),
    gold=vocab[gold],
    prediction=vocab[predicted],
    probability=float(p.probability_M[m]),
    synonyms=tuple(vocab[i] for i in synonyms),
    verdict="right" if predicted == gold else verdict,
  )


def _sentence(
  p: Predictions, m: int, tokenizer: Tokenizer, word: str, *, window: int
) -> str:
  """Returns the text around a slot, with `word` in the slot."""
  row = p.sequences[p.sequence_M[m]]
  position = int(p.position_M[m])
  start = max(position - window, 1)  # without [CLS]
  end = min(position + window, len(row) - 1)  # without the last [SEP]
  words = [tokenizer.vocab[i] for i in row[start:end]]
  words[position - start] = word
  return " ".join(words).replace(" ##", "")
