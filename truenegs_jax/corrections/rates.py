"""Counts corrections, and shows them beside table 2 of the paper."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from truenegs_jax.pretrain.cases import Predictions
from truenegs_jax.report import page
from truenegs_jax.stats.intervals import Rate, estimate_rate
from truenegs_jax.synonyms.table import SynonymTable

# The paper's table 2: percent of the steps, then Iter and Pred of BERT-base and
# of BERT-large, in percent.
TABLE_2 = {
  6.25: (6.90, 1.31, 7.46, 1.50),
  12.5: (6.96, 1.34, 7.58, 1.55),
  25.0: (6.97, 1.36, 7.31, 1.49),
  50.0: (7.05, 1.36, 7.46, 1.56),
  80.0: (7.06, 1.40, 7.38, 1.57),
  100.0: (7.07, 1.41, 7.44, 1.60),
}
TABLE_2_NOTE = (
  "The paper's table 2 leaves open which split was measured, how it was cut and"
  " masked, and whether predictions were sampled."
)


@dataclasses.dataclass(frozen=True)
class Rates:
  """Corrections among a model's predictions.

  A correction predicts a synonym of the gold token in an eligible slot. Shares
  are of all slots, eligible or not, like in training.
  """

  mismatch_rate: Rate  # the paper's prediction level
  slot_rate: Rate
  sequence_rate: Rate  # the paper's iteration level; only sequences with slots


@dataclasses.dataclass(frozen=True)
class CheckpointRates:
  """Corrections among the predictions of a checkpoint."""

  step: int | None  # None for weights without a run
  percent: float | None  # of the run's steps
  rates: Rates


def count_corrections(p: Predictions, table: SynonymTable) -> Rates:
  """Counts the predictions that a table of synonyms corrects."""
  corrected_M = p.corrected_M(table)
  wrong_M = p.mismatch_M
  sequences = np.unique(p.sequence_M)
  has_correction = np.isin(sequences, p.sequence_M[corrected_M])
  return Rates(
    mismatch_rate=estimate_rate(corrected_M[wrong_M], p.sequence_M[wrong_M]),
    slot_rate=estimate_rate(corrected_M, p.sequence_M),
    sequence_rate=estimate_rate(has_correction, sequences),
  )


def find_table_2(
  steps: Sequence[tuple[int | None, float | None]],
) -> dict[float, int]:
  """Maps percentages of TABLE_2 to indices of `steps`, numbers and percents.

  Weights without a run count as trained to the end.
  """
  if steps[-1][0] is None:
    return {100.0: len(steps) - 1}
  return {
    percent: index
    for percent in TABLE_2
    for index, (step, done) in enumerate(steps)
    if step and done and round(step / done * percent) == step
  }


def make_rates_table(
  checkpoints: Sequence[CheckpointRates], source: str
) -> page.Table:
  """Makes a row for each checkpoint; "Iter" and "Pred" are the paper's."""
  shares = find_table_2([(x.step, x.percent) for x in checkpoints])
  paper = {index: TABLE_2[percent] for percent, index in shares.items()}
  rows = []
  for index, checkpoint in enumerate(checkpoints):
    rates = checkpoint.rates
    row = {"step (%)": "-"}
    if checkpoint.step is not None:
      row["step (%)"] = f"{checkpoint.step:,} ({checkpoint.percent:.3g})"
    shown = {"Iter": rates.sequence_rate, "Pred": rates.mismatch_rate}
    for name, x in shown.items():
      interval = f"{100 * x.low:.2f}-{100 * x.high:.2f}"
      row[name] = f"{100 * x.rate:.2f} {interval}" if x.total else "-"
    published = [f"{x:.2f}" for x in paper.get(index, ())]
    row["BERT base"] = " ".join(published[:2])
    row["BERT large"] = " ".join(published[2:])
    rows.append(row)
  title = f"Corrections by {source} (%, with 95 % intervals), and in the paper"
  return page.Table(title, rows, [TABLE_2_NOTE])
