"""States what the comparison of two models on the same sets supports."""

from collections.abc import Mapping
from typing import NamedTuple

from truenegs_jax.finetune.bootstrap import Comparison
from truenegs_jax.robustness.scores import PairedTest, SetScores, mcnemar

LEVEL = 0.05  # of all sets together


class SetComparison(NamedTuple):
  """Two models on one set.

  Attributes:
    drops: differences of the drops, one for each metric; of the scores if the
      set has no originals.
    has_drops: which of the two they are.
    tests: of the answers to the original and the transformed questions, as far
      as there are any; none for regression.
  """

  drops: tuple[Comparison, ...]
  has_drops: bool
  tests: Mapping[str, PairedTest]


def compare_sets(ours: SetScores, theirs: SetScores) -> SetComparison:
  """Compares the drops of two models on a set."""
  has_drops = bool(ours.original)
  pair = [x.drops() if has_drops else x.transformed for x in (ours, theirs)]
  compared = tuple(x.compare(m, pair[1][m]) for m, x in pair[0].items())
  tests = {k: mcnemar(x, theirs.correct[k]) for k, x in ours.correct.items()}
  return SetComparison(compared, has_drops, tests)


def conclude(compared: Mapping[str, SetComparison]) -> str:
  """Returns one sentence on the first metric of all sets, by title.

  A difference counts if its p-value, over runs if there are several, is below
  LEVEL divided by the number of sets (Bonferroni).
  """
  seen, unseen = list[str](), list[str]()
  for title, x in compared.items():
    c = x.drops[0]
    p = c.p if c.p_runs is None else c.p_runs
    low, high = (
      (c.low, c.high) if c.low_runs is None else (c.low_runs, c.high_runs)
    )
    is_seen = p < LEVEL / len(compared)
    verb = "loses" if x.has_drops else "scores"
    amount = f"{abs(c.difference):.2f} points of {c.metric}"
    more = "more" if c.difference > 0 else "less"
    text = f"{verb} {amount} {more}" if is_seen else f"{c.difference:+.2f}"
    text += f" ({low:+.2f} to {high:+.2f}, p = {p:.2g})"
    (seen if is_seen else unseen).append(f"{text} on {title}")
  parts = []
  if seen:
    parts.append(f"This model {', and '.join(seen)} than the other")
  if unseen:
    no_more = "no further difference" if seen else "no difference"
    parts.append(f"{no_more} can be seen: {', '.join(unseen)}")
  single = any(x.drops[0].low_runs is None for x in compared.values())
  scope = "questions only, as a model has one run"
  if not single:
    scope = "questions and fine-tuning seeds"
  text = "; ".join(parts)
  return (
    f"{text[0].upper()}{text[1:]}. Intervals are of 95 % over {scope}, not over"
    " pre-trainings."
  )
