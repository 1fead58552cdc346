"""Shows corrections to people, as in the paper's figure 3 or as a CSV sheet."""

import collections
import csv
import dataclasses
import io
import pathlib
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
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import is_word
from truenegs_jax.workdir import files

WINDOW = 12  # tokens shown on either side of the mask
SHEET_WINDOW = 40  # in the sheet: judging needs more context
SHEET_COLUMNS = ["number", "sentence", "gold", "prediction", "probability"]
SHEET_COLUMNS += ["right? (y, n, or ? where you cannot tell)"]
MAX_SAVED = 5_000  # in cases.json: some 3 MB, which a browser searches at once
# (gold id, prediction id) pairs; None stands for any prediction.
PairFilter = tuple[tuple[int, int | None], ...]


@dataclasses.dataclass(frozen=True)
class Case:
  """A prediction and its verdicts by hard correction.

  Attributes:
    sentence: tokens around the slot, [MASK] in the slot.
    verdicts: by source: "corrected", "right" (the gold token), or "wrong".
    synonyms: list of the gold token by the first source that corrects, or else
      by the first.
    count: corrections of this pair in all predictions searched, by any source.
    part_of_speech: of the gold token, one of `rates.TOKEN_CLASSES`, or "".
    lemmas: WordNet's list of the gold token, if shown.
  """

  sentence: str
  gold: str
  prediction: str
  probability: float
  synonyms: tuple[str, ...]
  verdicts: Mapping[str, str]
  count: int = 0
  part_of_speech: str = ""
  lemmas: tuple[str, ...] = ()

  @property
  def verdict(self) -> str:
    """The verdict of the first source."""
    return next(iter(self.verdicts.values()))

  @property
  def marked_list(self) -> str:
    """The synonyms, and in parentheses WordNet's other lemmas (figure 3)."""
    listed = {synonym.lower() for synonym in self.synonyms}
    others = ", ".join(x for x in self.lemmas if x.lower() not in listed)
    text = ", ".join(self.synonyms)
    return f"{text} ({others})".strip() if others else text


@dataclasses.dataclass(frozen=True)
class Search:
  """Cases found among predictions; the content of cases.json.

  Attributes:
    searched: number of predictions.
    corrected: number of those that any of the sources corrects.
    sources: in the order of `Case.verdicts`.
    cases: of different (gold, prediction) pairs first, then repeated ones.
  """

  searched: int
  corrected: int
  sources: tuple[str, ...]
  cases: list[Case]


class CaseFinder:
  """Collects corrections, or predictions that match a filter.

  Those of different (gold, prediction) pairs come first, then repeated ones,
  each in the order of the predictions. No more than `limit` cases are kept.

  Args:
    tables: synonym tables by source; a correction is one by any of them.
    only: built by `parse_filter`; empty, it selects corrections.
    token_classes: those of `rates.classify_tokens`, or empty.
  """

  def __init__(
    self,
    tables: Mapping[str, SynonymTable],
    tokenizer: Tokenizer,
    *,
    limit: int,
    only: PairFilter = (),
    token_classes: Sequence[str] = (),
  ):
    self.tables, self.tokenizer, self.limit = tables, tokenizer, limit
    self.only, self.token_classes = only, token_classes
    self.searched = 0
    # Numbers of slots by gold and prediction.
    self.chosen: collections.Counter[tuple[str, str]] = collections.Counter()
    self.corrected: collections.Counter[tuple[str, str]] = collections.Counter()
    # By their order: repetition of the pair, number of the slot.
    self._cases: dict[tuple[int, int], Case] = {}

  def add(self, p: Predictions) -> None:
    """Searches predictions."""
    corrected_M = _corrected_by_any(p, self.tables.values())
    chosen_M = np.zeros(len(p.gold_M), bool) if self.only else corrected_M
    for gold, prediction in self.only:
      is_pair_M = prediction is None or p.predicted_M == prediction
      chosen_M = chosen_M | (p.gold_M == gold) & is_pair_M
    vocab, slots = self.tokenizer.vocab, {}
    for m in np.flatnonzero(chosen_M | corrected_M).tolist():
      pair = vocab[p.gold_M[m]], vocab[p.predicted_M[m]]
      self.corrected[pair] += int(corrected_M[m])
      if chosen_M[m]:
        slots[self.chosen[pair], self.searched + m] = m
        self.chosen[pair] += 1
    self.searched += len(p.gold_M)
    first = sorted(self._cases.keys() | slots.keys())[: self.limit]
    self._cases = {
      order: self._cases.get(order) or self._make_case(p, slots[order])
      for order in first
    }

  def finish(self) -> Search:
    """Returns the cases, with the counts of their pairs."""
    cases = [
      dataclasses.replace(
        case, count=self.corrected[case.gold, case.prediction]
      )
      for case in self._cases.values()
    ]
    corrected = sum(self.corrected.values())
    return Search(self.searched, corrected, tuple(self.tables), cases)

  def _make_case(self, p: Predictions, m: int) -> Case:
    tokenizer, vocab = self.tokenizer, self.tokenizer.vocab
    gold, predicted = int(p.gold_M[m]), int(p.predicted_M[m])
    lists = {name: x.synonym_ids(gold) for name, x in self.tables.items()}
    verdicts = dict.fromkeys(lists, "right" if predicted == gold else "wrong")
    if predicted != gold and p.eligible_M[m]:
      names = [name for name, ids in lists.items() if predicted in ids]
      verdicts |= dict.fromkeys(names, "corrected")
    shown = max(lists, key=lambda name: verdicts[name] == "corrected")
    return Case(
      _sentence(p, m, tokenizer, vocab[tokenizer.mask], window=WINDOW),
      gold=vocab[gold],
      prediction=vocab[predicted],
      probability=float(p.probability_M[m]),
      synonyms=tuple(vocab[i] for i in lists[shown]),
      verdicts=verdicts,
      part_of_speech=self.token_classes[gold] if self.token_classes else "",
    )


def choose_cases(
  p: Predictions,
  tables: Mapping[str, SynonymTable],
  tokenizer: Tokenizer,
  **options: Any,
) -> Search:
  """Searches predictions; `options` are those of `CaseFinder`."""
  finder = CaseFinder(tables, tokenizer, **options)
  finder.add(p)
  return finder.finish()


def find_cases(
  finder: CaseFinder,
  predict: Callable,
  params: Mapping[str, Any],
  held_out: Iterable[predict_slots.Batch],
  training: Iterable[predict_slots.Batch],
  *,
  enough: int,
  seed: int,
) -> Search:
  """Searches held-out batches, then training ones until `enough` pairs.

  `predict` is built by `make_predict_slots`; `seed` is that of the masking.
  """
  key = jax.random.key(seed)
  for batch in held_out:
    finder.add(predict_slots.predict_batch(predict, params, batch, key))
  for batch in training:
    if len(finder.chosen) >= enough:
      break
    finder.add(predict_slots.predict_batch(predict, params, batch, key))
  return finder.finish()


def save_cases(workdir: pathlib.Path, search: Search) -> pathlib.Path:
  """Writes cases.json in one line, and returns its path."""
  path = workdir / files.CASES
  files.save_json(path, dataclasses.asdict(search), indent=None)
  return path


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
  [corrected_N] = np.nonzero(_corrected_by_any(p, tables))
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


def _corrected_by_any(
  p: Predictions, tables: Iterable[SynonymTable]
) -> np.ndarray:
  return np.any([p.corrected_M(table) for table in tables], axis=0)


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
