"""Evaluates a run: its verdict against guessing, and predictions for [MASK]."""

import contextlib
import dataclasses
import itertools
import json
import math
import pathlib
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.data.vocabulary import read_words
from truenegs_jax.models.pretrain import Model
from truenegs_jax.pretrain.plan import Inputs, Run
from truenegs_jax.report.page import format_estimate
from truenegs_jax.report.tables import Table, print_table
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import read_results
from truenegs_jax.stats.intervals import jackknife_error
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import metrics
from truenegs_jax.train.step import TrainState
from truenegs_jax.weights import match
from truenegs_jax.workdir import files

MASK_TEXT = "[MASK]"
NUM_TOKENS = 5  # likeliest tokens per sentence
MIN_ERRORS = 3.0  # standard errors by which a metric must beat guessing
RULE = f"Better means by more than {MIN_ERRORS:g} standard errors."
YES = "yes"
NO = "no"
UNKNOWN = "unknown: one batch"


@dataclasses.dataclass(frozen=True)
class Trained:
  """A run after its last step, or after a signal."""

  run: Run
  inputs: Inputs
  state: TrainState
  steps: int  # that are done
  held_out: list[metrics.Terms]  # of each batch
  fingerprints: Mapping[str, str | None]
  stopped_by: signal.Signals | None  # None if all steps are done
  all_secs: float  # that a run of all steps would take

  def find_table(self) -> SynonymTable:
    """Returns the synonym table that the run has read, or its last own one."""
    builder = self.run.table_builder
    if builder is None:
      assert self.inputs.table is not None
      return self.inputs.table
    ids_VxS = jax.device_get(self.state.aux["ids_VxS"])
    vocab = self.run.tokenizer.vocab
    return builder.to_synonym_table(ids_VxS, vocab, steps=self.steps)


@dataclasses.dataclass(frozen=True)
class Detection:
  """Held-out metrics of a discriminator; losses in nats."""

  loss: float
  loss_error: float  # of the difference from base_rate_entropy
  base_rate: float  # share of replaced tokens
  base_rate_entropy: float
  auc: float
  auc_error: float
  tokens: int


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Held-out metrics of a finished run; losses in nats."""

  mlm: float  # all slots, corrected or not
  mlm_error: float
  mlm_hidden: float  # only slots with [MASK] in the input
  mlm_hidden_error: float
  uniform_entropy: float
  unigram_entropy: float  # of the training rows: lowest loss without context
  slots: int
  detection: Detection | None  # None: BERT has no discriminator

  @property
  def answers(self) -> dict[str, str]:
    """Whether each metric beats guessing without context: YES, or why not.

    A generator that guesses draws tokens that are easy to detect without any
    context, so detection does not count then.
    """
    guess = self.unigram_entropy
    d = self.detection
    gains = {"mlm": (guess - self.mlm, self.mlm_error)}
    gains["mlm_hidden"] = guess - self.mlm_hidden, self.mlm_hidden_error
    if d:
      gains["detection.loss"] = d.base_rate_entropy - d.loss, d.loss_error
      gains["detection.auc"] = d.auc - 0.5, d.auc_error
    answers: dict[str, str] = {}
    for name, (gain, error) in gains.items():
      answer = YES if gain > MIN_ERRORS * error else NO
      if math.isinf(error):
        answer = UNKNOWN
      elif (
        answer == YES and "detection" in name and answers["mlm_hidden"] == NO
      ):
        answer = "no: the generator guesses"
      answers[name] = answer
    return answers

  @property
  def passed(self) -> bool:
    """Whether all metrics are better than guessing without context."""
    return {*self.answers.values()} == {YES}

  @property
  def summary(self) -> str:
    """Whether the model has learned."""
    texts = [f"{name} ({x})" for name, x in self.answers.items() if x != YES]
    if failed := ", ".join(texts):
      return f"This run does not show that the model learned: {failed}."
    return "This run shows that the model learned: all metrics beat guessing."

  @property
  def table(self) -> Table:
    """A table that compares each metric with guessing."""
    v = self
    unigram = f"unigram entropy {self.unigram_entropy:.3f}"
    mlm = f"MLM loss, {v.slots:,} slots"
    hidden = "MLM loss, slots with [MASK]"
    rows = [
      (mlm, format_estimate(v.mlm, v.mlm_error, 3), unigram),
      (hidden, format_estimate(v.mlm_hidden, v.mlm_hidden_error, 3), unigram),
    ]
    if d := v.detection:
      name = f"detection loss, {d.tokens:,} tokens"
      guess = f"base-rate entropy {d.base_rate_entropy:.4f}"
      guess += f" ({d.base_rate:.1%} replaced)"
      rows += [(name, format_estimate(d.loss, d.loss_error, 4), guess)]
      rows += [("detection AUC", format_estimate(d.auc, d.auc_error, 4), "0.5")]
    names = "metric", "model", "guessing without context", "better"
    cells = [
      dict(zip(names, (*row, answer), strict=True))
      for row, answer in zip(rows, v.answers.values(), strict=True)
    ]
    return Table("Held-out rows", cells, [RULE])


def evaluate(
  trained: Trained, workdir: pathlib.Path, console: Console
) -> Verdict:
  """Prints and saves the verdict; saves the synonym table that was built."""
  run = trained.run
  verdict = compute_verdict(
    trained.held_out, trained.inputs.train_rows.unigram_V
  )
  print_table(verdict.table, console)
  update_results(
    workdir,
    command=errors.rerun_command(),
    seed=run.config.seed,
    steps=trained.steps,
    fingerprints=trained.fingerprints,
    verdict=files.finite_or_null(dataclasses.asdict(verdict))
    | {"answers": verdict.answers, "passed": verdict.passed}
    | {"summary": verdict.summary, "table": dataclasses.asdict(verdict.table)},
    left_out=files.finite_or_null(leave_out(trained.held_out)),
  )
  if run.table_builder and distributed.is_first_process():
    trained.find_table().save(workdir / files.SYNONYMS)
  return verdict


def save_fills(
  trained: Trained, workdir: pathlib.Path, console: Console
) -> None:
  """Fills the masks of `eval.sentences`; prints and saves what it fills in."""
  run = trained.run
  with progress.working(console, "Filling [MASK] in sentences"):
    fills = fill_masks(
      run.model, trained.state.params, run.tokenizer, run.config.eval.sentences
    )
  tables = []
  if fills:
    tables.append(make_fills_table(fills))
    print_table(tables[0], console)
  update_results(
    workdir,
    fills=[fill._asdict() for fill in fills],
    tables=[*map(dataclasses.asdict, tables)],
  )


def update_results(workdir: pathlib.Path, **results: Any) -> None:
  """Replaces values of results.json, which other parts have written."""
  if distributed.is_first_process():
    path = workdir / files.RESULTS
    saved = dict[str, Any]()
    with (
      contextlib.suppress(errors.CheckpointError),  # none yet, or damaged
      read_results(path, errors.CheckpointError, "") as content,
    ):
      saved = content
    files.save_json(path, saved | results)


def compute_verdict(
  held_out: list[metrics.Terms], unigram_V: np.ndarray
) -> Verdict:
  """Computes the verdict from the terms of each held-out batch.

  Corrected slots count: without these right predictions the loss would be too
  low. Visible slots lower it as well, so the loss of slots with [MASK] must be
  below the unigram entropy, too. `unigram_V` counts the tokens of the training
  rows; 0 for tokens that are never masked.
  """
  total = metrics.merge_terms(held_out)
  left_out = leave_out(held_out)
  ratios = metrics.compute_ratios(total)
  mlm_name = "mlm_uncorrected" if "mlm_uncorrected" in total else "mlm"
  detection = None
  if "detect" in total:
    # Of the loss of knowing only how many are replaced.
    rates = ratios["replaced"], *left_out["replaced"]
    entropy, *entropies = (metrics.entropy([x, 1 - x]) for x in rates)
    gains = np.subtract(entropies, left_out["detect"]).tolist()
    detection = Detection(
      loss=ratios["detect"],
      loss_error=jackknife_error(gains),
      base_rate=ratios["replaced"],
      base_rate_entropy=entropy,
      auc=ratios["auc"],
      auc_error=jackknife_error(left_out["auc"]),
      tokens=int(total["detect"][1]),
    )
  return Verdict(
    mlm=ratios[mlm_name],
    mlm_error=jackknife_error(left_out[mlm_name]),
    mlm_hidden=ratios["mlm_hidden"],
    mlm_hidden_error=jackknife_error(left_out["mlm_hidden"]),
    uniform_entropy=math.log(len(unigram_V)),
    unigram_entropy=metrics.entropy(unigram_V),
    slots=int(total[mlm_name][1]),
    detection=detection,
  )


def leave_out(batches: Sequence[metrics.Terms]) -> dict[str, list[float]]:
  """Returns each metric without each of the batches, for the jackknife.

  The tokens of a text are dependent; batches are nearly independent.
  """
  merged = metrics.merge_terms(batches)
  ratios = [
    metrics.compute_ratios(
      {k: (a - x[k][0], b - x[k][1]) for k, (a, b) in merged.items()}
    )
    for x in batches
  ]
  return {name: [x[name] for x in ratios] for name in ratios[0]}


def describe_outcome(
  verdict: Verdict, c: PretrainConfig, done: int, all_secs: float
) -> str:
  """Returns what a run of `done` steps has shown, and what to type for more.

  All steps would take `all_secs`.
  """
  text = f"{verdict.summary} {RULE}"
  answers = {*verdict.answers.values()}
  if NO in answers:
    text += (
      "\nUntil it does, a model knows little more than how frequent each word"
      " is."
    )
  if UNKNOWN in answers:
    text += (
      "\nOne batch holds all held-out rows. Set a larger"
      " --config.eval.rows=NUMBER, or a smaller --config.batch_size."
    )
  if done < c.steps:
    minutes = max(math.ceil(all_secs / 60), math.floor(c.minutes) + 1)
    command = errors.rerun_command(f"--config.minutes={minutes}")
    return (
      f"{text}\n{done:,} of {c.steps:,} steps fit into minutes={c.minutes:g}."
      f" All would take some {minutes:,} minutes. To go on from here:\n"
      f"{command}"
    )
  if NO in answers:
    text += " Set a larger --config.steps=NUMBER, or start with more text."
  return text


def describe_results(workdir: pathlib.Path) -> str:
  """Returns where the results of a run are."""
  return (
    f"Results are in '{workdir}'. Open {workdir / files.REPORT} in a browser to"
    " see them all."
  )


def describe_next_steps(workdir: pathlib.Path) -> str:
  """Returns where the results of a run are, and commands that use them."""
  main = f"{errors.program()} main"
  folder = shlex.quote(str(workdir))
  text = f"""\
{describe_results(workdir)}
# To fine-tune on your own classified texts:
{main} --config=finetune_own --config.init={folder} \\
  --config.finetune.train=train.csv --config.finetune.dev=dev.csv \\
  --config.finetune.text=sentence --config.finetune.label=label
# To measure corrections in a text, as in the paper's table 2:
{main} --config=corrections \\
  --config.corrections.run={folder} --config.corrections.text=text.txt"""
  if (exported := workdir / files.EXPORT).exists():
    code = f"""import truenegs_jax as tn
model = tn.load({json.dumps(str(exported))})
print(*tn.fill_masks(*model, ["a [MASK] who writes books"]))"""
    python = errors.program(pathlib.Path(sys.executable).name)
    text += f"\n# To fill in a mask:\n{python} -c {shlex.quote(code)}"
  return text


class MaskFill(NamedTuple):
  """A sentence and the likeliest tokens of its first [MASK]."""

  sentence: str
  tokens: list[str]
  probabilities: list[float]


def fill_masks(
  model: Model,
  params: Mapping[str, Any],
  tokenizer: Tokenizer,
  sentences: Sequence[str],
) -> list[MaskFill]:
  """Returns the likeliest tokens of the first [MASK] of each sentence.

  >>> model, params, tokenizer = load("runs/electra_demo", report=str)
  >>> [fill] = fill_masks(model, params, tokenizer, ["the [MASK] house"])
  >>> len(fill.tokens), fill.probabilities == sorted(fill.probabilities)[::-1]
  (5, True)
  """
  if not sentences:
    return []
  match.check_tokenizer(model, tokenizer)
  [*_, config] = model.roles.values()
  rows = encode_sentences(tokenizer, sentences, max_length=config.max_positions)
  columns = itertools.zip_longest(*rows, fillvalue=tokenizer.pad)
  tokens_BxL = np.array([*columns], np.int32).T
  inputs: dict[str, Any] = {
    "tokens": tokens_BxL,
    "types": np.zeros_like(tokens_BxL),
    "documents": (tokens_BxL != tokenizer.pad).astype(np.int32),
  }
  positions_Bx1 = (tokens_BxL == tokenizer.mask).argmax(axis=1)[:, None]

  @jax.jit  # parameters may be split over devices, also of other processes
  def predict(params: Mapping[str, Any]) -> jax.Array:
    bound = model.bind({"params": params})
    logits_Bx1xV = bound.generate_logits(inputs, positions_Bx1, None)
    return jax.nn.softmax(logits_Bx1xV[:, 0])

  p_BxV = distributed.to_host(predict(params))
  best_BxT = np.argsort(-p_BxV)[:, :NUM_TOKENS]
  fills = []
  words = read_words(tokenizer.vocab)
  for sentence, p_V, best_T in zip(sentences, p_BxV, best_BxT, strict=True):
    tokens = [words.texts[i] for i in best_T]
    fills.append(MaskFill(sentence, tokens, p_V[best_T].tolist()))
  return fills


def make_fills_table(fills: Sequence[MaskFill]) -> Table:
  """Makes a table with one row per sentence."""
  rows = []
  for fill in fills:
    pairs = zip(fill.tokens, fill.probabilities, strict=True)
    likeliest = ", ".join(f"{token} {p:.0%}" for token, p in pairs)
    rows.append({"sentence": fill.sentence, "likeliest tokens": likeliest})
  return Table("Predictions for [MASK]", rows)


def encode_sentences(
  tokenizer: Tokenizer, sentences: Sequence[str], *, max_length: int
) -> list[list[int]]:
  """Encodes sentences; the first [MASK] of each becomes the mask token."""
  rows = []
  for sentence in sentences:
    # The tokenizer encodes the text "[MASK]" as text, not as the mask token.
    before, mask, after = sentence.partition(MASK_TEXT)
    if not mask:
      raise InputError(
        f"eval.sentences: {sentence!r} has no {MASK_TEXT}. Add one or remove"
        " the sentence."
      )
    ids = tokenizer.encode_lines([before.rstrip(), after])
    row = [tokenizer.cls, *ids[0], tokenizer.mask, *ids[1], tokenizer.sep]
    if len(row) > max_length:
      raise InputError(
        f"eval.sentences: {sentence!r} has {len(row)} tokens, and the model"
        f" takes at most {max_length}. Use a shorter sentence."
      )
    rows.append(row)
  return rows
