"""Measures how often predictions are corrected, and how far sources agree.

Rates with intervals (the paper's Table 2), by pair and by class of gold token.

Axes: M slots, N some of them, T sequences, V tokens of the vocabulary.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from scipy import special

from truenegs_jax.corrections.predict_slots import Predictions
from truenegs_jax.data.corpus.sources import WordNetReader
from truenegs_jax.runtime import install, intervals
from truenegs_jax.runtime.errors import DataError, InputError, printable
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

# Bands of ranks by frequency: the last rank of each but the open one.
BAND_ENDS = (100, 1_000, 10_000)
BANDS = ("1-100", "101-1,000", "1,001-10,000", "rarer")


@dataclasses.dataclass(frozen=True)
class Rate:
  """A share with its 95 % confidence interval."""

  rate: float  # hits / total, or 0
  low: float
  high: float
  hits: int
  total: int


def estimate_rate(
  hit_N: np.ndarray, sequence_N: np.ndarray, weight_N: np.ndarray | None = None
) -> Rate:
  """Estimates a share and a 95 % interval that accounts for sequences.

  Slots of one sequence are similar, so N slots carry less information than N
  independent trials. The interval is Wilson's (1927) for the effective number
  of independent trials, as Franco, Little, Louis & Slud (2019, Journal of
  Survey Statistics and Methodology 7) recommend for clustered samples:

    p = sum x_t / sum n_t           x_t hits among n_t trials in sequence t
    var p = T / (T - 1) * sum (x_t - p n_t)^2 / (sum n_t)^2
    n = min(p (1 - p) / var p, sum n_t) * (z / t)^2

  var p is the variance of a ratio of sums over clusters (Cochran 1977, section
  6). Since it is an estimate, n is reduced by (z / t)^2, where t is Student's
  quantile of T - 1 degrees of freedom (Korn & Graubard 1998, Survey Methodology
  24). If there is nothing to estimate it from (no hit, only hits, or one
  sequence), n assumes the worst case, that all trials of a sequence are equal:
  (sum n_t)^2 / sum n_t^2.

  Trials have results `hit_N` (bool), sequences `sequence_N` (int, in any order)
  and weights `weight_N` (None: 1).
  """
  if not len(hit_N):
    return Rate(rate=0.0, low=0.0, high=1.0, hits=0, total=0)
  weight_N = np.ones(len(hit_N)) if weight_N is None else weight_N
  _, sequence_N = np.unique(sequence_N, return_inverse=True)
  totals_T = np.bincount(sequence_N, weight_N)
  hits_T = np.bincount(sequence_N, weight_N * hit_N)
  hits, total = hits_T.sum(), totals_T.sum()
  share = float(hits / total)
  low, high = intervals.wilson(share, _effective_size(hits_T, totals_T))
  return Rate(
    rate=share,
    low=min(max(float(low), 0.0), share),  # without hits it is off by 1e-18
    high=max(min(float(high), 1.0), share),
    hits=round(hits),
    total=round(total),
  )


def _effective_size(hits_T: np.ndarray, totals_T: np.ndarray) -> float:
  """Returns the effective number of independent trials; see `estimate_rate`."""
  hits, total, clusters = hits_T.sum(), totals_T.sum(), len(totals_T)
  if 0 < hits < total and clusters > 1:
    p = hits / total
    spread = np.sum((hits_T - p * totals_T) ** 2) * clusters / (clusters - 1)
    size = p * (1 - p) / max(spread / total**2, p * (1 - p) / total)
  else:
    size = min(total**2 / np.sum(totals_T**2), total)
  t = special.stdtrit(max(clusters - 1, 1), 0.975)
  return float(size * (special.ndtri(0.975) / t) ** 2)


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
  of_mismatches: Rate
  of_slots: Rate


@dataclasses.dataclass(frozen=True)
class Rates:
  """Corrections among a model's predictions.

  A correction is a prediction that is a synonym of the gold token, not the gold
  token itself, in an eligible slot (see `Predictions`). As in training, shares
  are of all slots, eligible or not.
  """

  of_mismatches: Rate  # the paper's prediction level
  of_slots: Rate
  of_sequences: Rate  # the paper's iteration level; only sequences with slots
  pairs: tuple[Pair, ...]  # most frequent first
  by_speech: tuple[GroupRates, ...]
  by_frequency: tuple[GroupRates, ...]


def count_corrections(
  p: Predictions,
  table: SynonymTable,
  tokens: Sequence[str],
  *,
  token_classes: Sequence[str] = (),
  top: int = 20,
) -> Rates:
  """Counts corrections: in total, by pair, and by class of gold token.

  `token_classes` are those of `classify_tokens`, or empty for no `by_speech`;
  `top` is the maximum number of pairs in the result.
  """
  corrected_M = p.corrected_M(table)

  def rate_groups(
    names: Sequence[str], group_M: np.ndarray
  ) -> tuple[GroupRates, ...]:
    groups = []
    for i, name in enumerate(names):
      in_M = group_M == i
      wrong_M = in_M & p.mismatch_M
      of_mismatches = estimate_rate(corrected_M[wrong_M], p.sequence_M[wrong_M])
      of_slots = estimate_rate(corrected_M[in_M], p.sequence_M[in_M])
      groups.append(GroupRates(name, of_mismatches, of_slots))
    return tuple(groups)

  by_speech: tuple[GroupRates, ...] = ()
  if token_classes:
    class_V = np.array([TOKEN_CLASSES.index(name) for name in token_classes])
    by_speech = rate_groups(TOKEN_CLASSES, class_V[p.gold_M])
  band_V = np.searchsorted(BAND_ENDS, _frequency_ranks(p, len(tokens)))
  sequences = np.unique(p.sequence_M)
  has_correction = np.isin(sequences, p.sequence_M[corrected_M])
  [total] = rate_groups(("all",), np.zeros(len(p.gold_M)))
  return Rates(
    of_mismatches=total.of_mismatches,
    of_slots=total.of_slots,
    of_sequences=estimate_rate(has_correction, sequences),
    pairs=_count_pairs(p, corrected_M, tokens)[:top],
    by_speech=by_speech,
    by_frequency=rate_groups(BANDS, band_V[p.gold_M]),
  )


def find_classes(
  request: TableRequest,
  tokens: Sequence[str],
  report: Callable[[str], object],
) -> tuple[str, ...]:
  """Does `classify_tokens` for English; nothing for others or without WordNet.

  WordNet and stop words are those of the request. If they are missing or
  damaged, this is reported.
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


@dataclasses.dataclass(frozen=True)
class Agreement:
  """Agreement of a source's corrections with those of a judge, another source.

  No source is the truth: a low precision means that one of the two is wrong.
  """

  source: str
  judge: str
  golds: str  # "all", or "shared": gold tokens with synonyms in both
  by: str  # "occurrence", or "pair": each (gold, prediction) counts once
  precision: Rate  # share of the source's corrections that the judge makes, too
  recall: Rate  # share of the judge's corrections that the source makes, too
  kappa: float | None  # Cohen's (1960); None if all verdicts are equal


def compare_sources(
  p: Predictions, tables: Mapping[str, SynonymTable], tokens: Sequence[str]
) -> tuple[Agreement, ...]:
  """Compares the corrections of each source with those of each other source.

  Compares verdicts on a model's mismatches in eligible slots whose gold token
  is a whole word. By "pair", each of a pair's c occurrences has weight 1 / c.
  All `tables`, by the name of their source, are of the vocabulary `tokens`.
  """
  word_V = np.array([is_word(token) for token in tokens])
  [slot_N] = np.nonzero(p.eligible_M & p.mismatch_M & word_V[p.gold_M])
  gold_N, predicted_N = p.gold_M[slot_N], p.predicted_M[slot_N]
  _, pair_N, counts = np.unique(
    gold_N.astype(np.int64) * len(tokens) + predicted_N,
    return_inverse=True,
    return_counts=True,
  )
  weights = {"occurrence": np.ones(len(gold_N)), "pair": 1 / counts[pair_N]}
  corrected, has_list = {}, {}
  for name, table in tables.items():
    corrected[name] = table.contains(gold_N, predicted_N)
    has_list[name] = table.lengths_V[gold_N] > 0
  agreements = []
  for source, judge in itertools.permutations(tables, 2):
    shared_N = has_list[source] & has_list[judge]
    for golds, in_N in (("all", np.ones_like(shared_N)), ("shared", shared_N)):
      for by, weight_N in weights.items():
        figures = _compare_verdicts(
          corrected[source][in_N],
          corrected[judge][in_N],
          p.sequence_M[slot_N][in_N],
          weight_N[in_N],
        )
        agreements.append(Agreement(source, judge, golds, by, *figures))
  return tuple(agreements)


def _frequency_ranks(p: Predictions, vocab_size: int) -> np.ndarray:
  """Returns rank_V, 1 for the most frequent token; skips [CLS] and [SEP]."""
  counts_V = np.zeros(vocab_size, np.int64)
  for row in p.sequences:
    np.add.at(counts_V, row[1:-1], 1)
  rank_V = np.empty(vocab_size, np.int64)
  rank_V[np.argsort(-counts_V, kind="stable")] = np.arange(1, vocab_size + 1)
  return rank_V


def _count_pairs(
  p: Predictions, corrected_M: np.ndarray, tokens: Sequence[str]
) -> tuple[Pair, ...]:
  golds = p.gold_M[corrected_M].tolist()
  predicted = p.predicted_M[corrected_M].tolist()
  counts = collections.Counter(zip(golds, predicted, strict=True))
  ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
  return tuple(Pair(tokens[g], tokens[s], n) for (g, s), n in ordered)


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
      f" speech. Remove this WordNet. {install.WORDNET_FIX}"
    ) from error
  return counts


def _compare_verdicts(
  a_N: np.ndarray, b_N: np.ndarray, sequence_N: np.ndarray, weight_N: np.ndarray
) -> tuple[Rate, Rate, float | None]:
  """Returns precision, recall and kappa of verdicts `a_N`, judged by `b_N`."""
  precision = estimate_rate(b_N[a_N], sequence_N[a_N], weight_N[a_N])
  recall = estimate_rate(a_N[b_N], sequence_N[b_N], weight_N[b_N])
  if len(np.unique([a_N, b_N])) < 2:
    return precision, recall, None
  share_a, share_b, same = (
    np.average(x_N, weights=weight_N) for x_N in (a_N, b_N, a_N == b_N)
  )
  chance = share_a * share_b + (1 - share_a) * (1 - share_b)
  return precision, recall, float((same - chance) / (1 - chance))
