"""Measures how often predictions are corrected, and how far sources agree.

Rates with intervals (the paper's Table 2), by pair and by class of gold token.

Axes: M slots, N some of them, V tokens of the vocabulary.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from truenegs_jax.corrections.predict_slots import Predictions
from truenegs_jax.data.corpus.readers import WordNetReader
from truenegs_jax.runtime.errors import DataError, InputError, printable
from truenegs_jax.stats.intervals import Rate, estimate_rate
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import STOP_WORDS, is_word

# WordNet's letters; the earlier one wins a tie. The digits occur in sense keys,
# where 5 is a satellite of an adjective (manual page senseidx(5WN)).
POS_NAMES = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
POS_OF_DIGIT = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
STOP_WORD, PIECE, UNKNOWN = "stop word", "## piece", "not in WordNet"
TOKEN_CLASSES = (*POS_NAMES.values(), STOP_WORD, PIECE, UNKNOWN)


@dataclasses.dataclass(frozen=True)
class Pair:
  """A correction and its number of occurrences."""

  gold: str
  predicted: str
  count: int


@dataclasses.dataclass(frozen=True)
class GroupRates:
  """Corrections in the slots whose gold tokens are of one class."""

  name: str
  mismatch_rate: Rate
  slot_rate: Rate


@dataclasses.dataclass(frozen=True)
class Rates:
  """Corrections among a model's predictions.

  A correction is a prediction that is a synonym of the gold token, not the gold
  token itself, in an eligible slot. Shares are of all slots, eligible or not,
  like in training.
  """

  mismatch_rate: Rate  # the paper's prediction level
  slot_rate: Rate
  sequence_rate: Rate  # the paper's iteration level; only sequences with slots
  pairs: tuple[Pair, ...]  # most frequent first
  by_speech: tuple[GroupRates, ...]


def count_corrections(
  p: Predictions,
  table: SynonymTable,
  tokens: Sequence[str],
  *,
  token_classes: Sequence[str] = (),
  top: int = 20,
) -> Rates:
  """Counts corrections: in total, by pair, and by class of gold token.

  Args:
    p: the predictions.
    table: the synonyms.
    tokens: the vocabulary.
    token_classes: one of TOKEN_CLASSES per token, or empty for no `by_speech`.
    top: maximum number of pairs in the result.
  """
  corrected_M = p.corrected_M(table)

  def rate_group(name: str, in_M: np.ndarray) -> GroupRates:
    wrong_M = in_M & p.mismatch_M
    return GroupRates(
      name,
      estimate_rate(corrected_M[wrong_M], p.sequence_M[wrong_M]),
      estimate_rate(corrected_M[in_M], p.sequence_M[in_M]),
    )

  by_speech: tuple[GroupRates, ...] = ()
  if token_classes:
    class_M = np.array(token_classes)[p.gold_M]
    by_speech = tuple(rate_group(x, class_M == x) for x in TOKEN_CLASSES)
  total = rate_group("all", np.ones(len(p.gold_M), bool))
  sequences = np.unique(p.sequence_M)
  has_correction = np.isin(sequences, p.sequence_M[corrected_M])
  golds = p.gold_M[corrected_M].tolist()
  predicted = p.predicted_M[corrected_M].tolist()
  counts = collections.Counter(zip(golds, predicted, strict=True))
  ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
  pairs = (Pair(tokens[g], tokens[s], n) for (g, s), n in ordered[:top])
  return Rates(
    mismatch_rate=total.mismatch_rate,
    slot_rate=total.slot_rate,
    sequence_rate=estimate_rate(has_correction, sequences),
    pairs=tuple(pairs),
    by_speech=by_speech,
  )


def find_classes(
  request: TableRequest,
  tokens: Sequence[str],
  report: Callable[[str], object],
) -> tuple[str, ...]:
  """Returns one of TOKEN_CLASSES per token; nothing for other languages.

  WordNet and stop words are those of the request. If they are missing or
  damaged, this is reported, and nothing is returned.
  """
  if request.language not in ("", "en"):
    return ()
  try:
    stops = request.load_stop_words()
    with wordnet.session(request.wordnet_dir) as reader:
      return classify_tokens(tokens, reader, stop_words=stops)
  except (InputError, DataError) as e:
    report(f"warning: no parts of speech: {printable(e)}")
    return ()


def classify_tokens(
  tokens: Sequence[str],
  reader: WordNetReader,
  *,
  stop_words: Collection[str] = STOP_WORDS,
) -> tuple[str, ...]:
  """Returns one of TOKEN_CLASSES per token, by WordNet and without context.

  A word gets the part of speech in which its stems occur most often in the
  texts tagged by WordNet's authors (file cntlist.rev); without occurrences, the
  one with most senses. *said* is a verb, *houses* a noun.

  `reader` is opened by `open_wordnet`; `stop_words` are in lower case.

  Raises:
    DataError: WordNet's file cntlist.rev is missing or damaged.
  """
  tag_counts = _count_tags(reader)

  def classify(token: str) -> str:
    word = token.lower()
    if word.startswith("##"):
      return PIECE
    if word in stop_words:
      return STOP_WORD
    weights = {}
    for pos in POS_NAMES:
      stems = wordnet.find_stems(word, pos, reader)
      tagged = sum(tag_counts[stem, pos] for stem in stems)
      senses = sum(len(reader._lemma_pos_offset_map[s][pos]) for s in stems)
      weights[pos] = (tagged, senses)
    best = max(POS_NAMES, key=lambda pos: weights[pos])
    return POS_NAMES[best] if any(weights[best]) else UNKNOWN

  return tuple(map(classify, tokens))


def _count_tags(reader: WordNetReader) -> collections.Counter[tuple[str, str]]:
  """Returns (word, part of speech) -> occurrences in WordNet's tagged texts."""
  counts: collections.Counter[tuple[str, str]] = collections.Counter()
  try:
    with reader.open("cntlist.rev") as file:
      for line in file:
        key, _, occurrences = line.split()
        word, _, sense = key.partition("%")
        counts[word, POS_OF_DIGIT[sense[0]]] += int(occurrences)
  except (OSError, LookupError, ValueError) as error:
    raise DataError(
      "WordNet's file cntlist.rev is missing or damaged"
      f" ({type(error).__name__}: {error}). It has the frequencies of parts of"
      f" speech. Remove this WordNet. {wordnet.FIX}"
    ) from error
  return counts


@dataclasses.dataclass(frozen=True)
class Agreement:
  """Agreement of a source's corrections with those of a judge, another source.

  No source is the truth: a low precision means that one of the two is wrong.
  """

  source: str
  judge: str
  golds: str  # "all", or "shared": gold tokens with synonyms in both
  precision: Rate  # share of the source's corrections that the judge makes, too


def compare_sources(
  p: Predictions, tables: Mapping[str, SynonymTable], tokens: Sequence[str]
) -> tuple[Agreement, ...]:
  """Compares the corrections of each source with the other sources' ones.

  Compares verdicts on a model's mismatches in eligible slots whose gold token
  is a whole word. All `tables`, by the name of their source, are of the
  vocabulary `tokens`.
  """
  word_V = np.array([is_word(token) for token in tokens])
  [slot_N] = np.nonzero(p.eligible_M & p.mismatch_M & word_V[p.gold_M])
  gold_N, predicted_N = p.gold_M[slot_N], p.predicted_M[slot_N]
  corrected, has_list = {}, {}
  for name, table in tables.items():
    corrected[name] = table.contains(gold_N, predicted_N)
    has_list[name] = table.lengths_V[gold_N] > 0
  agreements = []
  for source, judge in itertools.permutations(tables, 2):
    shared_N = has_list[source] & has_list[judge]
    for golds, in_N in (("all", np.ones_like(shared_N)), ("shared", shared_N)):
      in_N = in_N & corrected[source]
      precision = estimate_rate(
        corrected[judge][in_N], p.sequence_M[slot_N][in_N]
      )
      agreements.append(Agreement(source, judge, golds, precision))
  return tuple(agreements)
