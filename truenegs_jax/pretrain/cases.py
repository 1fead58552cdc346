"""Counts corrections of M slots (table 2), and shows sentences (figure 3)."""

import collections
import dataclasses
import functools
import operator
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
from rich.console import Console

from truenegs_jax.data import batches
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.data.vocabulary import read_words
from truenegs_jax.pretrain import predict_slots
from truenegs_jax.pretrain.evaluate import Trained
from truenegs_jax.pretrain.predict_slots import Predictions
from truenegs_jax.report import page, tables
from truenegs_jax.report.tables import print_table
from truenegs_jax.runtime import distributed, progress
from truenegs_jax.stats.intervals import Rate, estimate_rate
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import guards
from truenegs_jax.workdir import files

WINDOW = 12  # tokens shown on either side of the mask
MAX_SAVED = 5_000  # in cases.json: some 3 MB, which a browser searches at once
SEARCHED = 20  # rows for each of `eval.rows`
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
  """Maps percentages of TABLE_2 to indices of `steps`; 100 to the last one."""
  rows = {
    percent: index
    for percent in TABLE_2
    for index, (step, done) in enumerate(steps[:-1])
    if step and done and round(step / done * percent) == step
  }
  return rows | {100.0: len(steps) - 1}


def make_rates_table(
  checkpoints: Sequence[CheckpointRates], source: str
) -> tables.Table:
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
  return tables.Table(title, rows, [TABLE_2_NOTE])


@dataclasses.dataclass(frozen=True)
class Case:
  """A corrected prediction."""

  sentence: str  # tokens around the slot, [MASK] in the slot
  gold: str
  prediction: str
  probability: float
  synonyms: tuple[str, ...]  # of gold
  count: int  # corrections of this pair in all predictions


@dataclasses.dataclass(frozen=True)
class Search:
  """Cases found among predictions; the content of cases.json."""

  searched: int  # predictions
  corrected: int  # predictions
  source: str  # of the synonyms
  cases: list[Case]  # of different (gold, prediction) pairs first


def find_cases(
  predictions: Iterable[Predictions],
  table: SynonymTable,
  tokenizer: Tokenizer,
  *,
  limit: int = MAX_SAVED,
) -> Search:
  """Finds corrections, at most `limit`, in the order of the predictions.

  Those of different (gold, prediction) pairs come first.
  """
  texts = read_words(tokenizer.vocab).texts
  searched = 0
  counts: collections.Counter[tuple[str, str]] = collections.Counter()
  found = []  # repetition of the pair, predictions, slot
  for p in predictions:
    searched += len(p.gold_M)
    for m in np.flatnonzero(p.corrected_M(table)).tolist():
      pair = texts[p.gold_M[m]], texts[p.predicted_M[m]]
      found.append((counts[pair], p, m))
      counts[pair] += 1
  found.sort(key=operator.itemgetter(0))
  cases = []
  for _, p, m in found[:limit]:
    gold = int(p.gold_M[m])
    prediction = texts[p.predicted_M[m]]
    case = Case(
      _show_slot(p, m, tokenizer),
      gold=texts[gold],
      prediction=prediction,
      probability=float(p.probability_M[m]),
      synonyms=tuple(texts[i] for i in table.synonym_ids(gold)),
      count=counts[texts[gold], prediction],
    )
    cases.append(case)
  return Search(searched, len(found), table.source, cases)


def _show_slot(p: Predictions, m: int, tokenizer: Tokenizer) -> str:
  """Returns the tokens around a slot, with [MASK] in the slot."""
  row = p.sequences[p.sequence_M[m]]
  position = int(p.position_M[m])
  start = max(position - WINDOW, 1)  # without [CLS]
  end = min(position + WINDOW, len(row) - 1)  # without the last [SEP]
  ids = row[start:end].tolist()
  ids[position - start] = tokenizer.mask
  mask = tokenizer.vocab[tokenizer.mask]
  sentence = tokenizer.decode(ids).replace(mask, f" {mask}")
  return " ".join(sentence.split())


def make_cases_table(search: Search, cases: Sequence[Case]) -> tables.Table:
  """Makes a table like the paper's figure 3; its title counts all cases."""
  title = page.describe_search(search.searched, search.corrected, len(cases))
  rows = []
  for case in cases:
    synonyms = page.abridge(case.synonyms, case.prediction)
    prediction = f"{case.prediction} ({case.probability:.0%})"
    rows.append(
      {
        "sentence": case.sentence,
        # One column for both, since at 80 columns two would break words.
        "gold, prediction": f"{case.gold}\n{prediction}",
        "synonyms of gold": ", ".join(synonyms),
      }
    )
  return tables.Table(title, rows)


def save_cases(
  trained: Trained,
  workdir: pathlib.Path,
  clock: guards.Clock,
  console: Console,
) -> None:
  """Searches a run for corrections; prints and saves them."""
  table = trained.find_table()
  with progress.working(console, "Searching for corrections"):
    predictions = predict_rows(trained, table, clock)
    search = find_cases(predictions, table, trained.run.tokenizer)
  if distributed.is_first_process():
    saved = dataclasses.asdict(search)
    files.save_json(workdir / files.CASES, saved, indent=None)
  if count := trained.run.config.eval.cases:
    print_table(make_cases_table(search, search.cases[:count]), console)


def predict_rows(
  trained: Trained, table: SynonymTable, clock: guards.Clock
) -> list[Predictions]:
  """Predicts the slots of at most SEARCHED times `eval.rows` rows.

  These are held-out rows, then training rows until there are enough corrections
  to print or the time of the run is over. All processes read the same rows, in
  batches as large as a micro-batch of training.
  """
  run = trained.run
  c = run.config
  rows = trained.inputs.train_rows
  held_out_rows = trained.inputs.held_out_rows
  size = c.batch_size // c.optim.accumulation
  predict = functools.partial(
    predict_slots.predict_batch,
    predict_slots.build_predict_step(run),
    trained.state.params,
    run.mesh,
  )
  limit = SEARCHED * c.eval.rows
  held_out = batches.held_out_batches(held_out_rows, size, limit=limit)
  predictions = [*map(predict, held_out)]
  pairs = {pair for p in predictions for pair in p.corrected_pairs(table)}
  epoch_rows = len(rows) // c.batch_size * c.batch_size
  left = min(limit - len(held_out_rows), epoch_rows)
  for step in range(-(-left // size)):
    if len(pairs) >= c.eval.cases or clock.is_over(f"search {step}"):
      break
    batch = batches.batch_at(rows, step, batch_size=size, seed=c.seed)
    batch["documents"][left - step * size :] = 0  # no slots beyond the limit
    predictions.append(predict(batch))
    pairs.update(predictions[-1].corrected_pairs(table))
  return predictions
