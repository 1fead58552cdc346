"""Scores SQuAD with perfect predictions: the upper bound set by tokenization.

  python benchmarks/gold_spans.py --data=dev-v1.1.json --vocab=vocab.txt

Logits that are 1 at the first and last piece of a gold answer, and 0 elsewhere,
pass through windows, best answers, texts and scores as a network's logits do.
"first" predicts the first answer of each question, which training uses; "best"
the answer with the best score. Inexact predictions are listed by cause.

Measured with BERT's uncased vocabulary, at lengths 512 and 384: the dev set has
EM 99.74 and F1 99.80 with the first answers (18 begin or end inside a piece, 9
are longer than 30 pieces), EM 99.98 and F1 99.98 with the best (one of each
cause is left). The training set at length 512 has EM 99.56 and F1 99.60 (206
too long, 181 inside a piece, 1 with a character that is not in the vocabulary).
"""

import argparse
import collections
import sys
from collections.abc import Sequence

import numpy as np

from truenegs_jax.data.tokens.tokenizer import load_tokenizer
from truenegs_jax.tasks import scoring, squad_windows
from truenegs_jax.tasks.squad import MOVED, read_squad

Windows = squad_windows.Windows
MAX_ANSWER = 30  # pieces
MIN_EM = 99.5
Texts = dict[str, str]  # question key -> predicted text
Golds = dict[str, list[str]]  # question key -> gold texts


def main(argv: Sequence[str] | None = None) -> int:
  """Prints EM, F1 and inexact predictions; returns 1 if EM is below MIN_EM."""
  args = _parse_arguments(argv)
  tokenizer = load_tokenizer(args.vocab, lowercase=not args.cased)
  moved: list[str] = []
  questions = read_squad(args.data, moved=moved)[: args.questions]
  windows = squad_windows.make_windows(
    questions, tokenizer, length=args.length, train=False
  )
  print(
    f"{len(questions):,} questions, {len(windows.question_N):,} windows of up"
    f" to {args.length} pieces, {len(moved):,} {MOVED}"
  )
  golds = {q.key: [text for text, _ in q.answers] for q in questions}
  num_answers = max(map(len, golds.values()))
  predictions = [predict(windows, index) for index in range(num_answers)]
  best = {}
  for key, texts in golds.items():
    scores = {p[key]: _score(p[key], texts) for p in predictions}
    best[key] = max(scores, key=scores.__getitem__)
  _print_scores("first", predictions[0], windows, golds, args.shown)
  return int(_print_scores("best", best, windows, golds, args.shown) < MIN_EM)


def _print_scores(
  name: str, predictions: Texts, windows: Windows, golds: Golds, shown: int
) -> float:
  """Prints scores and causes of inexact predictions; returns EM."""
  answers = [predictions[key] for key in golds]
  scores = scoring.score_answers(["em", "f1"], [*golds.values()], answers)
  print(f"{name}: EM {scores['em']:.2f}, F1 {scores['f1']:.2f}; not exact:")
  causes: collections.Counter[str] = collections.Counter()
  for number, question in enumerate(windows.questions):
    predicted, texts = predictions[question.key], golds[question.key]
    if _score(predicted, texts)[0] < 100:
      answers = texts[:1] if name == "first" else texts
      cause = find_cause(windows, number, len(answers))
      causes[cause] += 1
      if causes[cause] <= shown:
        print(f"    {question.key}: {predicted!r} for {answers}: {cause}")
  for cause, count in causes.most_common():
    print(f"  {count:5}  {cause}")
  return scores["em"]


def predict(windows: Windows, index: int) -> Texts:
  """Predicts texts from perfect logits of gold answer `index`, or the last."""
  numbers = range(len(windows.questions))
  spans = [_gold_span(windows, number, index) for number in numbers]
  logits = []
  for number, first, offset, tokens, is_max_context in zip(
    windows.question_N,
    windows.first_N,
    windows.offset_N,
    windows.encoded.tokens,
    windows.is_max_context,
    strict=True,
  ):
    logits_nx2 = np.zeros((len(tokens), 2), np.float32)
    start, end = spans[number] - first
    if 0 <= start and end <= len(is_max_context):
      logits_nx2[[start + offset, end - 1 + offset], [0, 1]] = 1
    logits.append(logits_nx2)
  answers = squad_windows.best_answers(windows, logits, max_answer=MAX_ANSWER)
  keys = (question.key for question in windows.questions)
  return dict(zip(keys, answers, strict=True))


def find_cause(windows: Windows, number: int, num_answers: int) -> str:
  """Returns why none of a question's first answers is predicted exactly."""
  question, context = windows.questions[number], windows.contexts[number]
  tokenizer = windows.tokenizer
  spans = [_gold_span(windows, number, n) for n in range(num_answers)]
  if all(end - start > MAX_ANSWER for start, end in spans):
    return f"longer than {MAX_ANSWER} pieces"
  for (text, _), (start, end) in zip(question.answers, spans, strict=False):
    pieces = context.pieces_T[start:end].tolist()
    if tokenizer.encode_lines([text])[0] == pieces:
      edges = np.isin(context.word_T, context.word_T[[start, end - 1]])
      has_unknown = tokenizer.unk in context.pieces_T[edges]
      return "character not in the vocabulary" if has_unknown else "text"
  return "begins or ends inside a piece"


def _gold_span(windows: Windows, number: int, index: int) -> np.ndarray:
  """Returns start and end in pieces of the context; (-1, -1) if not found."""
  answers = windows.questions[number].answers
  text, start = answers[min(index, len(answers) - 1)]
  [ids] = windows.tokenizer.encode_lines([text])
  context = windows.contexts[number]
  span = squad_windows.find_answer_span(context, start, start + len(text), ids)
  return np.array(span or (-1, -1))


def _score(text: str, golds: list[str]) -> tuple[float, float]:
  exact_match, f1 = scoring.exact_match, scoring.token_f1
  return max((exact_match(text, gold), f1(text, gold)) for gold in golds)


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--data", required=True, help="SQuAD v1.1 file.")
  parser.add_argument("--vocab", required=True, help="vocab.txt or its folder.")
  parser.add_argument("--cased", action="store_true")
  parser.add_argument("--length", type=int, default=512)
  parser.add_argument("--questions", type=int, help="At most; default: all.")
  parser.add_argument("--shown", type=int, default=10, help="Of each cause.")
  return parser.parse_args(argv)


if __name__ == "__main__":
  sys.exit(main())
