"""How often predictions are corrected, and how far sources agree on that.

Rates with intervals (the paper's Table 2), by pair and by kind of gold token.

M slots, N of them, V tokens of the vocabulary.
"""

import collections
import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from truenegs_jax.corrections.predict_slots import Predictions
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.synonyms.stop_words import STOP_WORDS, is_word
from truenegs_jax.synonyms.table import SynonymTable, contains
from truenegs_jax.synonyms.wordnet import find_stems

# WordNet's letters; the earlier one wins a tie. The digits are those of sense
# keys, where 5 is an adjective's satellite (manual page senseidx(5WN)).
PARTS = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
PART_OF_DIGIT = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
STOP_WORD, PIECE, UNKNOWN = "stop word", "## piece", "not in WordNet"
SPEECH = (*PARTS.values(), STOP_WORD, PIECE, UNKNOWN)

# Ranks by frequency: the last one of each band but the open one.
BAND_ENDS = (100, 1_000, 10_000)
BANDS = ("1-100", "101-1,000", "1,001-10,000", "rarer")


@dataclasses.dataclass(frozen=True)
class Rate:
  """`hits` of `of`, and where the true share lies with 95 % confidence."""

  rate: float  # 0 where `of` is 0
  low: float
  high: float
  hits: int
  of: int


def estimate_rate(
  hit_N: np.ndarray, sequence_N: np.ndarray, weight_N: np.ndarray | None = None
) -> Rate:
  """The share of hits and a 95 % interval that knows of sequences.

  What stands in one sequence is alike, so N slots say less than N independent
  ones. The interval is Wilson's (1927) for the number of independent slots that
  would say as much, as Franco, Little, Louis & Slud (2019, Journal of Survey
  Statistics and Methodology 7) recommend for clustered samples:

    p = sum x_t / sum n_t           x_t hits among n_t things in sequence t
    var p = T / (T - 1) * sum (x_t - p n_t)^2 / (sum n_t)^2
    n = min(p (1 - p) / var p, sum n_t) * (z / t)^2
    (p + z^2 / 2n ± z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

  var p is that of a ratio of sums over clusters (Cochran 1977, section 6), and
  (z / t)^2 pays for its being an estimate, t being Student's quantile of T - 1
  degrees of freedom (Korn & Graubard 1998, Survey Methodology 24). Where there
  is nothing to estimate it from (no hit, nothing but hits, one sequence), n is
  that of the worst case, all of a sequence alike: (sum n_t)^2 / sum n_t^2.

  Args:
    hit_N: bool.
    sequence_N: int, where each thing stands.
    weight_N: what each counts for; None: 1.
  """
  if not len(hit_N):
    return Rate(rate=0.0, low=0.0, high=1.0, hits=0, of=0)
  weight_N = np.ones(len(hit_N)) if weight_N is None else weight_N
  _, sequence_N = np.unique(sequence_N, return_inverse=True)
  totals_T = np.bincount(sequence_N, weight_N)
  hits_T = np.bincount(sequence_N, weight_N * hit_N)
  hits, total = hits_T.sum(), totals_T.sum()
  share = float(hits / total)
  low, high = _wilson(share, _independent(hits_T, totals_T))
  return Rate(
    rate=share,
    low=min(max(low, 0.0), share),  # by 1e-18 beyond it where nothing was hit
    high=max(min(high, 1.0), share),
    hits=round(hits),
    of=round(total),
  )


def _independent(hits_T: np.ndarray, totals_T: np.ndarray) -> float:
  """How many independent things would say as much; see `estimate_rate`."""
  hits, total, clusters = hits_T.sum(), totals_T.sum(), len(totals_T)
  if 0 < hits < total and clusters > 1:
    p = hits / total
    spread = np.sum((hits_T - p * totals_T) ** 2) * clusters / (clusters - 1)
    size = p * (1 - p) / max(spread / total**2, p * (1 - p) / total)
  else:
    size = min(total**2 / np.sum(totals_T**2), total)
  t = special.stdtrit(max(clusters - 1, 1), 0.975)
  return float(size * (special.ndtri(0.975) / t) ** 2)


def _wilson(p: float, n: float) -> tuple[float, float]:
  """Wilson's 95 % interval of a share of n independent trials."""
  z = special.ndtri(0.975)
  middle = p + z**2 / (2 * n)
  half = z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
  low, high = np.array([middle - half, middle + half]) / (1 + z**2 / n)
  return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Pair:
  """A prediction that was corrected, and how often."""

  gold: str
  predicted: str
  count: int


@dataclasses.dataclass(frozen=True)
class Group:
  """The corrections of the slots whose golds are of one kind."""

  name: str
  of_mismatches: Rate
  of_slots: Rate


@dataclasses.dataclass(frozen=True)
class Rates:
  """Corrections among a model's predictions.

  A correction is a prediction that is not the gold but one of its synonyms, in
  a slot that hard correction may touch. Shares are of all slots, those that it
  may not touch included, as in training.
  """

  of_mismatches: Rate  # the paper's prediction level
  of_slots: Rate
  of_sequences: Rate  # its iteration level; sequences without a slot left out
  pairs: tuple[Pair, ...]  # most frequent first
  by_speech: tuple[Group, ...]
  by_frequency: tuple[Group, ...]


def count_corrections(
  p: Predictions,
  table: SynonymTable,
  tokens: Sequence[str],
  *,
  speech: Sequence[str] = (),
  top: int = 20,
) -> Rates:
  """Counts corrections: in all, by pair, and by kind of gold token.

  Args:
    p: predictions of a model.
    table: which tokens are synonyms.
    tokens: the vocabulary, token `i` at position `i`.
    speech: the class of each token by `classify_tokens`; empty: not wanted.
    top: how many pairs to keep.
  """
  false_M = p.corrected_M(table)
  sequences = np.unique(p.sequence_M)
  every = _group("", np.ones_like(false_M), p, false_M)
  by_speech: tuple[Group, ...] = ()
  if speech:
    class_V = np.array([SPEECH.index(name) for name in speech])
    by_speech = _groups(SPEECH, class_V[p.gold_M], p, false_M)
  band_V = np.searchsorted(BAND_ENDS, _ranks(p, len(tokens)))
  return Rates(
    of_mismatches=every.of_mismatches,
    of_slots=every.of_slots,
    of_sequences=estimate_rate(
      np.isin(sequences, p.sequence_M[false_M]), sequences
    ),
    pairs=_pairs(p.gold_M[false_M], p.predicted_M[false_M], tokens)[:top],
    by_speech=by_speech,
    by_frequency=_groups(BANDS, band_V[p.gold_M], p, false_M),
  )


def classify_tokens(
  tokens: Sequence[str],
  reader: Any,
  *,
  stop_words: Collection[str] = STOP_WORDS,
) -> tuple[str, ...]:
  """The class of each token, one of SPEECH; a lexicon's guess, not a tagger's.

  A word has the part of speech in which its stems occur most often in the texts
  that WordNet's makers tagged (file cntlist.rev), or, where they do not occur,
  in which they have most senses: *said* is a verb, *houses* a noun.

  Args:
    tokens: the vocabulary.
    reader: a WordNet opened by `open_wordnet`.
    stop_words: words that make a class of their own, in lower case.

  Raises:
    DataError: this WordNet lacks cntlist.rev.
  """
  tagged = _tagged(reader)

  def classify(token: str) -> str:
    word = token.lower()
    if word.startswith("##"):
      return PIECE
    if word in stop_words:
      return STOP_WORD
    weights = {}
    for part in PARTS:
      found = find_stems(word, part, reader)
      senses = [len(reader._lemma_pos_offset_map[s][part]) for s in found]
      weights[part] = (sum(tagged[s, part] for s in found), sum(senses))
    best = max(PARTS, key=lambda part: weights[part])
    return PARTS[best] if any(weights[best]) else UNKNOWN

  return tuple(map(classify, tokens))


@dataclasses.dataclass(frozen=True)
class Agreement:
  """How far a judge agrees with the corrections of a source.

  No source is the truth: a low precision says that one of the two is wrong.
  """

  source: str
  judge: str
  golds: str  # "all", or "shared": those for which both have synonyms
  by: str  # "occurrence", or "pair": each (gold, prediction) counts once
  precision: Rate  # of the source's corrections: the judge's, too
  recall: Rate  # of the judge's corrections: the source's, too
  kappa: float | None  # Cohen's (1960), of all verdicts; None: all are alike


def compare_sources(
  p: Predictions, tables: Mapping[str, SynonymTable], tokens: Sequence[str]
) -> tuple[Agreement, ...]:
  """Lets each source judge the corrections of each other one.

  The pairs are those that a model really produces: its predictions that are not
  the gold, where the gold is a whole word and the slot one that hard correction
  may touch. Intervals are those of
  `estimate_rate`; a pair that occurs c times counts 1 / c in each place.

  Args:
    p: predictions of a model.
    tables: the sources' tables by name, all of the same vocabulary.
    tokens: that vocabulary.
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
  listed = {n: contains(t, gold_N, predicted_N) for n, t in tables.items()}
  knows = {n: np.isin(gold_N, _golds(t)) for n, t in tables.items()}
  judgements = []
  for source, judge in itertools.permutations(tables, 2):
    shared_N = knows[source] & knows[judge]
    for golds, in_N in (("all", np.ones_like(shared_N)), ("shared", shared_N)):
      for by, weight_N in weights.items():
        agreement = _agreement(
          listed[source][in_N],
          listed[judge][in_N],
          p.sequence_M[slot_N][in_N],
          weight_N[in_N],
        )
        judgements.append(Agreement(source, judge, golds, by, *agreement))
  return tuple(judgements)


def _groups(
  names: Sequence[str], class_M: np.ndarray, p: Predictions, false_M: np.ndarray
) -> tuple[Group, ...]:
  return tuple(
    _group(name, class_M == i, p, false_M) for i, name in enumerate(names)
  )


def _group(
  name: str, in_M: np.ndarray, p: Predictions, false_M: np.ndarray
) -> Group:
  wrong_M = in_M & p.mismatch_M
  return Group(
    name=name,
    of_mismatches=estimate_rate(false_M[wrong_M], p.sequence_M[wrong_M]),
    of_slots=estimate_rate(false_M[in_M], p.sequence_M[in_M]),
  )


def _ranks(p: Predictions, vocab_size: int) -> np.ndarray:
  """1 for the corpus's most frequent token; [CLS] and [SEP] do not count."""
  counts_V = np.zeros(vocab_size, np.int64)
  for row in p.sequences:
    np.add.at(counts_V, row[1:-1], 1)
  rank_V = np.empty(vocab_size, np.int64)
  rank_V[np.argsort(-counts_V, kind="stable")] = np.arange(1, vocab_size + 1)
  return rank_V


def _pairs(
  gold_N: np.ndarray, predicted_N: np.ndarray, tokens: Sequence[str]
) -> tuple[Pair, ...]:
  counts = collections.Counter(
    zip(gold_N.tolist(), predicted_N.tolist(), strict=True)
  )
  ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
  return tuple(Pair(tokens[g], tokens[s], n) for (g, s), n in ordered)


def _tagged(reader: Any) -> collections.Counter:
  """(word, part of speech) -> occurrences in WordNet's tagged texts."""
  tagged: collections.Counter = collections.Counter()
  try:
    with reader.open("cntlist.rev") as file:
      for line in file:
        key, _, occurrences = line.split()
        word, _, sense = key.partition("%")
        tagged[word, PART_OF_DIGIT[sense[0]]] += int(occurrences)
  except (OSError, LookupError, ValueError) as error:
    raise DataError(
      "WordNet's cntlist.rev, which says how often a word is a noun or a verb,"
      f" is missing or damaged ({type(error).__name__}: {error}). Run"
      " launch/wordnet.sh for a whole WordNet."
    ) from error
  return tagged


def _agreement(
  source_N: np.ndarray,
  judge_N: np.ndarray,
  sequence_N: np.ndarray,
  weight_N: np.ndarray,
) -> tuple[Rate, Rate, float | None]:
  """Precision, recall and kappa of two verdicts on the same pairs."""
  a, b = source_N, judge_N
  precision = estimate_rate(b[a], sequence_N[a], weight_N[a])
  recall = estimate_rate(a[b], sequence_N[b], weight_N[b])
  if len(np.unique([a, b])) < 2:
    return precision, recall, None
  share_a, share_b, same = (
    np.average(x, weights=weight_N) for x in (a, b, a == b)
  )
  chance = share_a * share_b + (1 - share_a) * (1 - share_b)
  return precision, recall, float((same - chance) / (1 - chance))


def _golds(table: SynonymTable) -> np.ndarray:
  """The tokens that have synonyms."""
  return np.unique(table.keys_Q // table.vocab_size)
