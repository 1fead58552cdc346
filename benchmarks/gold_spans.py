"""What SQuAD scores if every span is predicted right: the bound of our cutting.

  python benchmarks/gold_spans.py --data=dev-v1.1.json --vocab=vocab.txt

Logits that are 1 where a gold answer begins and ends and 0 elsewhere go the way
of a network's: windows, the best answers, texts, scores. "first" takes the
first answer of each question, as training does, "best" the one that scores
best. What is not exact is listed by cause.

Measured with the uncased vocabulary of BERT, at length 512 and at 384 alike:
the dev set has EM 99.74 and F1 99.80 with the first answers (18 begin or end
inside a piece, 9 are longer than 30 pieces), and EM 99.98, F1 99.98 with the
best (one of each cause is left). The training set at 512 has EM 99.56, F1 99.60
(206 are longer, 181 inside a piece, 1 needs a character that the vocabulary
lacks).
"""

import argparse
import collections
import sys
from collections.abc import Sequence

import numpy as np

from truenegs_jax.data.tokens.tokenizer import load_tokenizer
from truenegs_jax.tasks import scoring
from truenegs_jax.tasks.squad import MOVED, read_squad
from truenegs_jax.tasks.squad_windows import (
  Windows,
  best_answers,
  find_answer_span,
  make_windows,
)

MAX_ANSWER = 30


def main(argv: Sequence[str] | None = None) -> int:
  """Prints EM, F1 and what is not exact; returns 1 for an EM below 99.5."""
  flags = _flags(argv)
  tokenizer = load_tokenizer(flags.vocab, lowercase=not flags.cased)
  moved: collections.Counter[str] = collections.Counter()
  questions = read_squad(flags.data, anomalies=moved)[: flags.questions]
  windows = make_windows(questions, tokenizer, length=flags.length, train=False)
  print(
    f"{len(questions):,} questions, {len(windows.question_N):,} windows of up"
    f" to {flags.length}, {moved[MOVED]:,} {MOVED}"
  )
  golds = {q.key: [text for text, _ in q.answers] for q in questions}
  found = [
    predict(windows, turn) for turn in range(max(map(len, golds.values())))
  ]
  best = {
    key: max((x[key] for x in found), key=lambda text: _score(text, texts))
    for key, texts in golds.items()
  }
  _report("first", found[0], windows, golds, flags.shown)
  return int(_report("best", best, windows, golds, flags.shown) < 99.5)


def _report(
  name: str,
  predictions: dict[str, str],
  windows: Windows,
  golds: dict[str, list[str]],
  shown: int,
) -> float:
  """Prints the scores and the causes of what is not exact; gives EM."""
  scores = scoring.squad_scores(predictions, golds)
  print(f"{name}: EM {scores['em']:.2f}, F1 {scores['f1']:.2f}; not exact:")
  causes: collections.Counter[str] = collections.Counter()
  for number, question in enumerate(windows.questions):
    predicted, texts = predictions[question.key], golds[question.key]
    if _score(predicted, texts)[0] < 100:
      turns = 1 if name == "first" else len(texts)
      causes[why := cause(windows, number, turns)] += 1
      if causes[why] <= shown:
        print(f"    {question.key}: {predicted!r} for {texts[:turns]}: {why}")
  for why, count in causes.most_common():
    print(f"  {count:5}  {why}")
  return scores["em"]


def predict(windows: Windows, turn: int) -> dict[str, str]:
  """Answers from perfect logits of gold answer number `turn`, or the last."""
  spans = [_span(windows, n, turn) for n in range(len(windows.questions))]
  logits = []
  for number, first, offset, tokens, best in zip(
    windows.question_N,
    windows.first_N,
    windows.offset_N,
    windows.encoded.tokens,
    windows.is_max_context,
    strict=True,
  ):
    scores_2xn = np.zeros((2, len(tokens)), np.float32)
    start, after = spans[number] - first
    if 0 <= start and after <= len(best):
      scores_2xn[[0, 1], [start + offset, after - 1 + offset]] = 1
    logits.append(tuple(scores_2xn))
  found = best_answers(windows, logits, max_answer=MAX_ANSWER)
  return {key: answers[0][0] for key, answers in found.items()}


def cause(windows: Windows, number: int, turns: int) -> str:
  """Why none of the first gold answers of a question comes out exactly."""
  question, context = windows.questions[number], windows.contexts[number]
  tokenizer = windows.tokenizer
  spans = [_span(windows, number, n) for n in range(turns)]
  if all(after - first > MAX_ANSWER for first, after in spans):
    return f"longer than {MAX_ANSWER} pieces"
  for (text, _), (first, after) in zip(question.answers, spans, strict=False):
    pieces = context.pieces_T[first:after].tolist()
    if tokenizer.encode_lines([text])[0] == pieces:
      edges = np.isin(context.word_T, context.word_T[[first, after - 1]])
      has_unknown = tokenizer.unk in context.pieces_T[edges]
      return "a character that the vocabulary lacks" if has_unknown else "text"
  return "begins or ends inside a piece"


def _span(windows: Windows, number: int, turn: int) -> np.ndarray:
  answers = windows.questions[number].answers
  text, start = answers[min(turn, len(answers) - 1)]
  [ids] = windows.tokenizer.encode_lines([text])
  context = windows.contexts[number]
  span = find_answer_span(context, start, start + len(text), ids)
  return np.array(span or (-1, -1))


def _score(text: str, golds: list[str]) -> tuple[float, float]:
  return max(
    (scoring.exact_match(text, gold), scoring.token_f1(text, gold))
    for gold in golds
  )


def _flags(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--data", required=True, help="as dev-v1.1.json")
  parser.add_argument("--vocab", required=True, help="vocab.txt, its folder")
  parser.add_argument("--cased", action="store_true")
  parser.add_argument("--length", type=int, default=512)
  parser.add_argument("--questions", type=int, help="at most; all if not given")
  parser.add_argument("--shown", type=int, default=10, help="of each cause")
  return parser.parse_args(argv)


if __name__ == "__main__":
  sys.exit(main())
