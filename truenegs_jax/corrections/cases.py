"""Collects corrections in their sentences, and prints them (figure 3)."""

import collections
import dataclasses
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
from truenegs_jax.workdir import files

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
  ones, each in the order of the predictions.

  Args:
    tables: synonym tables by source.
    tokenizer: its vocabulary is that of the tables.
    limit: maximum number of cases to keep.
    token_classes: one of `rates.TOKEN_CLASSES` per token, or empty.
  """

  def __init__(
    self,
    tables: Mapping[str, SynonymTable],
    tokenizer: Tokenizer,
    *,
    limit: int,
    token_classes: Sequence[str] = (),
  ):
    self.tables, self.tokenizer, self.limit = tables, tokenizer, limit
    self.token_classes = token_classes
    self.searched = 0
    # Numbers of corrections by gold and prediction.
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
    return Case(
      " ".join(words).replace(" ##", ""),
      gold=vocab[gold],
      prediction=vocab[predicted],
      probability=float(p.probability_M[m]),
      synonyms=next(
        tuple(vocab[i] for i in ids)
        for ids in lists.values()
        if predicted in ids
      ),
      verdicts={
        name: "corrected" if predicted in ids else "wrong"
        for name, ids in lists.items()
      },
      part_of_speech=self.token_classes[gold] if self.token_classes else "",
    )


def choose_cases(
  p: Predictions,
  tables: Mapping[str, SynonymTable],
  tokenizer: Tokenizer,
  *,
  limit: int,
  token_classes: Sequence[str] = (),
) -> Search:
  """Searches predictions at once, with the arguments of `CaseFinder`."""
  finder = CaseFinder(
    tables, tokenizer, limit=limit, token_classes=token_classes
  )
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

  `predict` is built by `make_predict_slots`; `seed` decides the masking.
  """
  key = jax.random.key(seed)
  for batch in held_out:
    finder.add(predict_slots.predict_batch(predict, params, batch, key))
  for batch in training:
    if len(finder.counts) >= enough:
      break
    finder.add(predict_slots.predict_batch(predict, params, batch, key))
  return finder.finish()


def save_cases(workdir: pathlib.Path, search: Search) -> pathlib.Path:
  """Writes cases.json in one line, and returns its path."""
  path = workdir / files.CASES
  files.save_json(path, dataclasses.asdict(search), indent=None)
  return path


def add_lemmas(
  cases: list[Case],
  request: TableRequest,
  report: Callable[[str], object],
) -> list[Case]:
  """Adds WordNet's lists of the gold tokens if it is the request's only source.

  If WordNet is missing or damaged, as it may be for a run that has a table,
  this is reported.
  """
  sources = request.expression.sources
  if not cases or [source.name for source in sources] != ["wordnet"]:
    return cases
  options = sources[0].options
  pos = wordnet.parse_parts_of_speech(options["pos"])
  try:
    with wordnet.session(options["folder"]) as reader:
      lists = [
        wordnet.find_lemma_names(case.gold, reader, pos=pos) for case in cases
      ]
  except (InputError, DataError) as e:
    report(f"warning: no lists of WordNet: {printable(e)}")
    return cases
  return [
    dataclasses.replace(case, lemmas=lemmas)
    for case, lemmas in zip(cases, lists, strict=True)
  ]


def render_cases(cases: list[Case], searched: int) -> Table | str:
  """Renders cases like the paper's figure 3; one sentence if there are none."""
  if not cases:
    return f"No corrections found in {searched:,} predictions."
  title = (
    f"corrections, taken out of the loss: {len(cases)} shown of {searched:,}"
    " predictions searched"
  )
  grid = Table(title=title, title_justify="left", show_lines=True)
  if any(case.lemmas for case in cases):
    grid.caption = (
      "In parentheses, never corrected: the gold word itself, words outside the"
      " vocabulary, and the whole list of a stop word."
    )
    grid.caption_justify = "left"
  # One column for both words, since at 80 columns two would break words.
  for name in ("sentence", "gold\nprediction", "synonyms of gold"):
    grid.add_column(name, overflow="fold", no_wrap="\n" in name)
  for case in cases:
    prediction = f"{case.prediction} ({case.probability:.0%})"
    words = f"{case.gold}\n{prediction}"
    grid.add_row(case.sentence, words, case.marked_list)
  return grid
