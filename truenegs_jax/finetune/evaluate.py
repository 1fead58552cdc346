"""Evaluates a network on examples: its answers, their scores and mistakes.

split = encode_split(options, task, examples, tokenizer)
predictor = Predictor(options, model)
outputs, answers = predictor.answer(params, split, console=c, title="Rows")
split.score(answers)["accuracy"]
find_mistakes(split, outputs, answers)
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
from rich.console import Console
from scipy import special

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.finetune.options import FinetuneOptions
from truenegs_jax.models import attention, encoder, finetune
from truenegs_jax.runtime import distributed, progress
from truenegs_jax.tasks import batches, scoring, squad_windows
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks.task import CLASSES, SPANS, EncodedRows, Question, Task
from truenegs_jax.train import sharding

CONSTANT = 0.01  # share of the gold scores' range; a smaller range is constant
SHOWN = 500  # characters of a text to read
MOST = 100  # mistakes to read; result.json has all answers, without texts
Answer = str | float  # class name, answer text or score


@dataclasses.dataclass(frozen=True)
class EvalSplit:
  """A split to evaluate on, with Q examples."""

  options: FinetuneOptions
  task: Task  # with labels in the order of the model's outputs
  examples: Sequence[Any]  # Example or, of SPANS, Question
  encoded: EncodedRows  # more than Q rows if contexts have several windows
  windows: squad_windows.Windows | None = None  # of the questions

  @functools.cached_property
  def golds(self) -> tuple[Answer | tuple[str, ...], ...]:
    """Class, score or answer texts of each example; empty if not public."""
    return tuple(x.gold for x in self.examples if x.gold is not None)

  def decode_answers(self, outputs: Sequence[Any]) -> Sequence[Answer]:
    """Returns the answers to the examples, given the outputs for the rows."""
    if self.windows:
      return squad_windows.best_answers(
        self.windows,
        outputs,
        num_best=self.options.finetune.num_best,
        max_answer=self.options.finetune.max_answer,
      )
    if self.task.kind == CLASSES:
      return [self.task.labels[int(x_C.argmax())] for x_C in outputs]
    offset, scale = self.task.scale
    return [float(offset + scale * x_C[0]) for x_C in outputs]

  def show_texts(self, number: int) -> str:
    """Returns an example's texts, cut to SHOWN characters each."""
    x = self.examples[number]
    if not isinstance(x, Question):
      texts = (x.first, x.second)
      return "\n".join(text[:SHOWN] for text in texts if text is not None)
    _, start = x.answers[0]
    first = max(min(start - SHOWN // 2, len(x.context) - SHOWN), 0)
    return f"{x.text[:SHOWN]}\n{x.context[first : first + SHOWN]}"

  def score(self, answers_Q: Sequence[Answer]) -> dict[str, float]:
    """Returns the value of each metric, in percent."""
    metrics, labels = self.task.metrics, self.task.labels
    return scoring.score_answers(metrics, self.golds, answers_Q, labels)

  def to_json(self, answers_Q: Sequence[Answer]) -> dict[str, Any]:
    """Returns answers with their keys and golds, in JSON's types."""
    keys, golds = [x.key for x in self.examples], list(self.golds)
    return {"keys": keys, "golds": golds, "answers": list(answers_Q)}


def encode_split(
  options: FinetuneOptions,
  task: Task,
  examples: Sequence[Any],
  tokenizer: Tokenizer,
  *,
  train: bool = False,
) -> EvalSplit:
  """Encodes examples, with `train` as they are trained on."""
  length = options.length
  if task.kind != SPANS:
    both = train and task.both_orders
    encoded = batches.encode(
      examples, task, tokenizer, length=length, both_orders=both
    )
    return EvalSplit(options, task, examples, encoded)
  windows = squad_windows.make_windows(
    examples,
    tokenizer,
    train=train,
    length=length,
    stride=options.finetune.stride,
    question_length=options.finetune.question_length,
  )
  return EvalSplit(options, task, examples, windows.encoded, windows)


class Predictor:
  """A model's compiled forward pass, for any parameters of that model.

  Its `attention` names the implementation of attention, which `model` has.
  """

  def __init__(self, options: FinetuneOptions, model: finetune.DownstreamModel):
    self.options, self.mesh = options, sharding.make_mesh(options.mesh_spec)
    implementation, self.attention = attention.choose(
      options.model.attention,
      [model.config],
      self.mesh,
      length=options.length,
      check=True,
    )
    attending = encoder.replace_configs(model, attention=implementation)
    self.model = attending

    def predict_batch(params, inputs):
      return attending.apply({"params": params}, inputs, None, method="logits")

    self.predict_batch = jax.jit(
      predict_batch, out_shardings=sharding.replicated_sharding(self.mesh)
    )

  def answer(
    self,
    params: optax.Params,
    split: EvalSplit,
    *,
    console: Console,
    title: str,
    check: Callable[[], None] = lambda: None,
  ) -> tuple[list[np.ndarray], Sequence[Answer]]:
    """Returns the outputs for the rows of a split, and its answers.

    Calls `check` before each batch.
    """
    o, rows = self.options, len(split.encoded.tokens)
    by_row: dict[int, np.ndarray] = {}
    with progress.counting(console, title, rows, brief=True) as advance:
      for batch in batches.batches_in_order(
        split.encoded, batch_size=o.batch_size, limit=o.length
      ):
        with distributed.watch_step():
          check()
          inputs = {name: batch[name] for name in batches.INPUTS}
          on_device = sharding.place_batch(inputs, self.mesh)
          output_B = jax.device_get(self.predict_batch(params, on_device))
        pairs = zip(batch["row"].tolist(), output_B, strict=True)
        by_row |= {row: output for row, output in pairs if row >= 0}
        advance(int((batch["row"] >= 0).sum()))
      outputs = [by_row[row] for row in range(rows)]
      return outputs, split.decode_answers(outputs)


def find_failure(golds: Sequence[Any], answers: Sequence[Answer]) -> str:
  """Returns why answers are useless (not finite or constant), else ""."""
  gold_N = np.array([x[0] if isinstance(x, tuple) else x for x in golds])
  predicted_N = np.asarray(answers)
  is_score = predicted_N.dtype.kind == "f"
  if is_score and not np.isfinite(predicted_N).all():
    return "scores are not finite"
  if is_score and np.ptp(predicted_N) < CONSTANT * np.ptp(gold_N):
    return f"all scores lie within {CONSTANT:.0%} of the gold scores' range"
  if len(set(predicted_N.tolist())) == 1 < len(set(gold_N.tolist())):
    return f"all {len(predicted_N)} predictions are {predicted_N[0].item()!r}"
  return ""


def find_mistakes(
  split: EvalSplit, outputs: Sequence[np.ndarray], answers_Q: Sequence[Any]
) -> list[dict[str, Any]]:
  """Returns up to MOST wrong answers, the same in each call.

  They are drawn from the whole split, in its order; of scores, those farthest
  from the gold scores are taken, the farthest first. A class has its
  probability by the outputs for the rows.
  """
  kind, golds = split.task.kind, list[Any](split.golds)
  if kind == task_lib.SCORE:
    error_Q = np.abs(np.array(answers_Q) - np.array(golds))
    order_Q = np.argsort(-error_Q, kind="stable")
    numbers = order_Q[error_Q[order_Q] != 0][:MOST].tolist()
  else:
    if kind == SPANS:
      is_wrong_Q = scoring.question_scores(golds, answers_Q)["em"] == 0
    else:
      is_wrong_Q = np.array(golds) != np.array(answers_Q)
    wrong = np.flatnonzero(is_wrong_Q)
    drawn = np.random.default_rng(0).permutation(len(wrong))[:MOST]
    numbers = wrong[np.sort(drawn)].tolist()
  mistakes = []
  for number in numbers:
    gold, text = golds[number], split.show_texts(number)
    if isinstance(gold, tuple):
      gold = " | ".join(dict.fromkeys(gold))
    key, answer = split.examples[number].key, answers_Q[number]
    mistake = {"key": key, "text": text, "gold": gold, "answer": answer}
    if kind == CLASSES:
      probabilities_C = special.softmax(np.float64(outputs[number]))
      mistake["probability"] = float(probabilities_C.max())
    mistakes.append(mistake)
  return mistakes
