"""Synonym sources as judges of one another's corrections."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich.table import Table

from truenegs_jax.corrections.predict_slots import Predictions
from truenegs_jax.corrections.rates import Rate, percents, rate
from truenegs_jax.synonyms.stop_words import is_word
from truenegs_jax.synonyms.table import SynonymTable, contains

OPTION = re.compile(r" +\w+=\S+")  # of a source, as in "pairs path=a.tsv"
WIDEST = 12  # name in a table


@dataclasses.dataclass(frozen=True)
class Judgement:
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


def compare(
  p: Predictions, tables: Mapping[str, SynonymTable], tokens: Sequence[str]
) -> tuple[Judgement, ...]:
  """Lets each source judge the corrections of each other one.

  Asked about are the pairs that a model really produces: its predictions that
  are not the gold, where the gold is a whole word and the slot one that hard
  correction may touch. Intervals are those of
  `intervals.rate`; a pair that occurs c times counts 1 / c in each place.

  Args:
    p: what the model said.
    tables: the sources' tables by name, all of the same vocabulary.
    tokens: that vocabulary.
  """
  word_V = np.array([is_word(token) for token in tokens])
  [asked_N] = np.nonzero(p.eligible_M & p.mismatch_M & word_V[p.gold_M])
  gold_N, predicted_N = p.gold_M[asked_N], p.predicted_M[asked_N]
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
          p.sequence_M[asked_N][in_N],
          weight_N[in_N],
        )
        judgements.append(Judgement(source, judge, golds, by, *agreement))
  return tuple(judgements)


def show_judgements(
  judgements: Iterable[Judgement], *, golds: str = "all", by: str = "occurrence"
) -> Table:
  """Those over these golds, counted this way; one line a source and judge.

  Sources go by their names without options, or, where these are long or not
  different, by letters; the caption says which is which.
  """
  judgements = list(judgements)
  labels = _labels(dict.fromkeys(j.source for j in judgements))
  what = "predictions" if by == "occurrence" else "different pairs"
  where = "" if golds == "all" else ", where both know the gold"
  t = Table(
    title=f"Corrections that a judge confirms: {what}{where}",
    caption="\n".join(
      [
        "The recall of a line is the precision of the reverse one.",
        *(f"{x}: {name}" for name, x in labels.items() if x != name),
      ]
    ),
    title_justify="left",
    caption_justify="left",
  )
  for name in ("source", "judge"):
    t.add_column(name, overflow="fold")
  for name in ("precision", "95 % interval", "kappa"):
    t.add_column(name, justify="right", no_wrap=True)
  for j in judgements:
    if (j.golds, j.by) == (golds, by):
      share, interval = percents(j.precision)
      counts = f"{j.precision.hits:,}/{j.precision.of:,} {share}"
      kappa = "-" if j.kappa is None else f"{j.kappa:.2f}"
      t.add_row(labels[j.source], labels[j.judge], counts, interval, kappa)
  return t


def _labels(names: Iterable[str]) -> dict[str, str]:
  """A short name for each source."""
  names = list(names)
  short = [OPTION.sub("", name) for name in names]
  if len(set(short)) < len(names) or max(map(len, short), default=0) > WIDEST:
    short = [chr(ord("A") + i) for i in range(len(names))]
  return dict(zip(names, short, strict=True))


def _agreement(
  source_N: np.ndarray,
  judge_N: np.ndarray,
  sequence_N: np.ndarray,
  weight_N: np.ndarray,
) -> tuple[Rate, Rate, float | None]:
  """Precision, recall and kappa of two verdicts on the same pairs."""
  a, b = source_N, judge_N
  precision = rate(b[a], sequence_N[a], weight_N[a])
  recall = rate(a[b], sequence_N[b], weight_N[b])
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
