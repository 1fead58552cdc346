"""Selects wrong answers to a dev set, for people to read."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from truenegs_jax.finetune.eval_splits import Answer, EvalSplit
from truenegs_jax.tasks import scoring
from truenegs_jax.tasks.task import CLASSES, SCORE

MOST = 100  # enough to read; all answers are in result.json without texts


def find_mistakes(
  kind: str,
  split: EvalSplit,
  outputs: Sequence[Any],
  answers_Q: Sequence[Answer],
) -> list[dict[str, Any]]:
  """Returns up to MOST wrong answers, the same in each call.

  They are drawn from the whole split, in its order; of scores, those farthest
  from the gold scores are taken, the farthest first.

  Args:
    kind: of the task.
    outputs: of the rows of the split.
    answers_Q: decoded from the outputs.

  Returns:
    Key, text, gold and answer of each, and the probability of a class. Several
    gold answers to a question are separated by " | ".
  """
  mistakes = []
  for number in _select(kind, split.golds, answers_Q):
    gold, answer = split.golds[number], answers_Q[number]
    mistake = {
      "key": split.keys[number],
      "text": split.show_texts(number),
      "gold": " | ".join(dict.fromkeys(gold))
      if isinstance(gold, tuple)
      else gold,
      "answer": answer,
    }
    if kind == CLASSES:
      probabilities_C = special.softmax(np.float64(outputs[number]))
      mistake["probability"] = float(probabilities_C.max())
    mistakes.append(mistake)
  return mistakes


def _select(
  kind: str, golds: Sequence[Any], answers_Q: Sequence[Answer]
) -> list[int]:
  """Returns the indices of the examples of `find_mistakes`."""
  if kind == SCORE:
    error_Q = np.abs(np.array(answers_Q) - np.array(golds))
    order_Q = np.argsort(-error_Q, kind="stable")
    return order_Q[error_Q[order_Q] != 0][:MOST].tolist()
  pairs = zip(golds, answers_Q, strict=True)
  wrong = [q for q, (gold, x) in enumerate(pairs) if not _is_right(gold, x)]
  drawn = np.random.default_rng(0).permutation(len(wrong))[:MOST]
  return [wrong[i] for i in sorted(drawn.tolist())]


def _is_right(gold: Any, answer: Any) -> bool:
  if isinstance(gold, tuple):
    return any(scoring.exact_match(answer, text) for text in gold)
  return gold == answer
