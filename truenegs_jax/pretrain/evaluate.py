"""Evaluates a run: its verdict, predictions for [MASK], and corrections."""

import dataclasses
import functools
import math
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.data import batches
from truenegs_jax.pretrain import cases, predict_slots
from truenegs_jax.pretrain.fill_masks import fill_masks, make_fills_table
from truenegs_jax.pretrain.plan import Trained
from truenegs_jax.report.page import Table, format_estimate, print_table
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.stats.intervals import jackknife_error
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import guards, metrics
from truenegs_jax.workdir import files

SHOWN = 12  # corrections to print at the end
ENOUGH = 50  # corrections of different pairs to choose these from
SEARCHED = 20  # rows to search for corrections, for each of `eval.rows`
MIN_ERRORS = 3.0  # standard errors by which a metric must beat guessing
RULE = f"Better means by more than {MIN_ERRORS:g} standard errors."
YES = "yes"
NO = "no"
UNKNOWN = "unknown: one batch"


class Score(NamedTuple):
  """A held-out metric, and what guessing without context reaches.

  The error is the standard error of their difference, inf for a single batch.
  The answer says whether the metric is better: YES, or why not.
  """

  value: float
  error: float
  guess: float
  answer: str


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Held-out scores of a finished run; losses in nats."""

  scores: Mapping[str, Score]  # by metric; BERT has no "detect" and "auc"
  slots: int
  tokens: int = 0  # of the discriminator
  replaced: float = 0.0  # share of these tokens

  @property
  def passed(self) -> bool:
    """Whether all metrics are better than guessing without context."""
    return all(score.answer == YES for score in self.scores.values())

  @property
  def summary(self) -> str:
    """Whether the model has learned."""
    failed = [
      f"{name} ({score.answer})"
      for name, score in self.scores.items()
      if score.answer != YES
    ]
    if failed:
      return (
        f"This run does not show that the model learned: {', '.join(failed)}."
      )
    return "This run shows that the model learned: all metrics beat guessing."

  @property
  def table(self) -> Table:
    """A table that compares each metric with guessing."""
    unigram = "unigram entropy {guess:.3f}"
    labels = f"label entropy {{guess:.4f}} ({self.replaced:.1%} replaced)"
    texts = {  # title, description of the guess and digits
      "mlm": (f"MLM loss, {self.slots:,} slots", unigram, 3),
      "mlm_hidden": ("MLM loss, slots with [MASK]", unigram, 3),
      "detect": (f"detection loss, {self.tokens:,} tokens", labels, 4),
      "auc": ("detection AUC", "{guess:g}", 4),
    }
    rows = []
    for name, score in self.scores.items():
      title, guess, digits = texts[name]
      row = {
        "metric": title,
        "model": format_estimate(score.value, score.error, digits),
        "guessing without context": guess.format(guess=score.guess),
        "better": score.answer,
      }
      rows.append(row)
    return Table("Held-out rows", rows, [RULE])

  def to_json(self) -> dict[str, Any]:
    """Returns the verdict in JSON's types, with its texts."""
    scores = {name: x._asdict() for name, x in self.scores.items()}
    return files.finite_or_null(vars(self) | {"scores": scores}) | {
      "passed": self.passed,
      "summary": self.summary,
      "table": dataclasses.asdict(self.table),
    }


def evaluate(
  trained: Trained, workdir: pathlib.Path, console: Console
) -> Verdict:
  """Prints and saves the verdict, and what `eval.sentences` are filled with.

  Saves the synonym table, too, if the run has built it.
  """
  run = trained.run
  unigram_V = trained.inputs.train_rows.unigram_V
  verdict = compute_verdict(trained.held_out, unigram_V)
  with progress.working(console, "Filling [MASK] in sentences"):
    fills = fill_masks(
      run.model, trained.state.params, run.tokenizer, run.config.eval.sentences
    )
  tables = [make_fills_table(fills)] if fills else []
  for table in (verdict.table, *tables):
    print_table(table, console)
  results = {
    "command": errors.rerun_command(),
    "seed": run.config.seed,
    "steps": trained.steps,
    "fingerprints": dict(trained.fingerprints),
    "verdict": verdict.to_json(),
    "fills": [fill._asdict() for fill in fills],
    "tables": [*map(dataclasses.asdict, tables)],
  }
  if distributed.is_first_process():
    files.save_json(workdir / files.RESULTS, results)
    if run.table_builder:
      trained.find_table().save(workdir / files.SYNONYMS)
  return verdict


def compute_verdict(
  held_out: Sequence[metrics.Terms], unigram_V: np.ndarray
) -> Verdict:
  """Computes the verdict from the terms of each held-out batch.

  Corrected slots count: without these right predictions the loss would be too
  low. Visible slots lower it as well, so the loss of slots with [MASK] must be
  below the unigram entropy, too. `unigram_V` counts the tokens of the training
  rows; 0 for tokens that are never masked.
  """
  total = metrics.merge_terms(held_out)
  left_out = leave_out(held_out)
  values = metrics.compute_ratios(total)
  unigram = metrics.entropy(unigram_V)
  mlm_name = "mlm_uncorrected" if "mlm_uncorrected" in total else "mlm"
  slots = int(total[mlm_name][1])
  scores = {}
  for name, source in (("mlm", mlm_name), ("mlm_hidden", "mlm_hidden")):
    error = jackknife_error(left_out[source])
    scores[name] = _judge(values[source], error, unigram)
  if "detect" not in total:
    return Verdict(scores, slots)
  # The guess is the loss of knowing only how many are replaced.
  rates = (values["replaced"], *left_out["replaced"])
  entropy, *entropies = (metrics.entropy([x, 1 - x]) for x in rates)
  gains = np.subtract(entropies, left_out["detect"]).tolist()
  scores["detect"] = _judge(values["detect"], jackknife_error(gains), entropy)
  error = jackknife_error(left_out["auc"])
  scores["auc"] = _judge(values["auc"], error, 0.5, sign=1)
  if scores["mlm_hidden"].answer == NO:
    # Its tokens are easy to detect without any context.
    for name in ("detect", "auc"):
      if scores[name].answer == YES:
        scores[name] = scores[name]._replace(answer="no: the generator guesses")
  return Verdict(scores, slots, int(total["detect"][1]), values["replaced"])


def _judge(value: float, error: float, guess: float, sign: int = -1) -> Score:
  """Compares a metric with a guess; `sign` is 1 if larger is better."""
  answer = NO
  if math.isinf(error):
    answer = UNKNOWN
  elif sign * (value - guess) > MIN_ERRORS * error:
    answer = YES
  return Score(value, error, guess, answer)


def leave_out(terms: Sequence[metrics.Terms]) -> dict[str, list[float]]:
  """Returns each metric without each of the batches, for the jackknife.

  The tokens of a text are dependent; batches are nearly independent.
  """
  merged = metrics.merge_terms(terms)
  ratios = [
    metrics.compute_ratios(
      {k: (a - x[k][0], b - x[k][1]) for k, (a, b) in merged.items()}
    )
    for x in terms
  ]
  return {name: [x[name] for x in ratios] for name in ratios[0]}


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
    search = cases.find_cases(predictions, table, trained.run.tokenizer)
  if distributed.is_first_process():
    saved = dataclasses.asdict(search)
    files.save_json(workdir / files.CASES, saved, indent=None)
  print_table(cases.make_cases_table(search, search.cases[:SHOWN]), console)


def predict_rows(
  trained: Trained, table: SynonymTable, clock: guards.Clock
) -> list[cases.Predictions]:
  """Predicts the slots of at most SEARCHED times `eval.rows` rows.

  These are held-out rows, then training rows until there are ENOUGH
  corrections, and no more when the time of the run is over. All processes read
  the same rows, in batches as large as a micro-batch of training.
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
  predictions: list[cases.Predictions] = []
  for batch in batches.held_out_batches(held_out_rows, size, limit=limit):
    if predictions and clock.is_over():
      return predictions
    predictions.append(predict(batch))
  pairs = {pair for p in predictions for pair in p.corrected_pairs(table)}
  epoch_rows = len(rows) // c.batch_size * c.batch_size
  left = min(limit - len(held_out_rows), epoch_rows)
  for step in range(-(-left // size)):
    if len(pairs) >= ENOUGH or clock.is_over():
      break
    batch = batches.batch_at(rows, step, batch_size=size, seed=c.seed)
    batch["documents"][left - step * size :] = 0  # no slots beyond the limit
    predictions.append(predict(batch))
    pairs.update(predictions[-1].corrected_pairs(table))
  return predictions


def describe_outcome(
  verdict: Verdict, c: PretrainConfig, done: int, workdir: pathlib.Path
) -> str:
  """Returns what a run of `done` steps has shown, and what to type for more."""
  text = f"{verdict.summary} {RULE}"
  answers = {score.answer for score in verdict.scores.values()}
  if UNKNOWN in answers:
    text += (
      "\nOne batch holds all rows that were evaluated. Set"
      f" --config.eval.rows=NUMBER above {c.batch_size:,}, or if the text has"
      " no more held-out rows, a smaller --config.batch_size=NUMBER and another"
      " --workdir=FOLDER."
    )
  if NO in answers:
    text += (
      "\nUntil it does, a model knows little more than how frequent each word"
      " is."
    )
  if done < c.steps:
    command = errors.rerun_command("--config.minutes=0")
    text += (
      f"\n{done:,} of {c.steps:,} steps fit into minutes={c.minutes:g}. To take"
      f" all, go on from here:\n{command}"
    )
  elif NO in answers:
    saved = shlex.quote(str(workdir / files.CONFIG))
    text += (
      " Start with more text, or go on with more steps:\n"
      f"{errors.program()} main --config={saved} --config.steps=NUMBER"
    )
  return text


def describe_results(verdict: Verdict, workdir: pathlib.Path) -> str:
  """Returns where the results of a run are, and commands that use them."""
  text = (
    f"Results are in '{workdir}'. Open {workdir / files.REPORT} in a browser to"
    " see them all."
  )
  if not verdict.passed:
    return text
  main = f"{errors.program()} main"
  folder = shlex.quote(str(workdir))
  return f"""\
{text}
# To fine-tune on your own classified texts:
{main} --config=finetune_own --config.init={folder} \\
  --config.finetune.train=train.csv --config.finetune.dev=dev.csv \\
  --config.finetune.text=sentence --config.finetune.label=label
# To measure corrections in a text, as in the paper's table 2:
{main} --config=corrections \\
  --config.corrections.run={folder} --config.corrections.text=text.txt"""
