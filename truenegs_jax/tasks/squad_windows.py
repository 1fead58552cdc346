"""Questions on contexts as windows of ids, cut as BERT and ELECTRA cut them.

A row is [CLS] question [SEP] window [SEP]; a context that is longer than its
window has several, each `stride` pieces after the one before.

  windows = make_windows(questions, tokenizer, train=True)
  windows.encoded.tokens[0], windows.encoded.targets["start"][0]

Source: google-research/bert `run_squad.py`; google-research/electra
`finetune/qa`. The `stride` of Hugging Face is another number: by how much
windows overlap.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from truenegs_jax.data.tokens.split_words import take_spans
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks.squad import Question
from truenegs_jax.tasks.task import Encoded

_WORD = re.compile("[^ \t\r\n\u202f]+")


@dataclasses.dataclass(frozen=True)
class Context:
  """A context as words between white space, and those as pieces.

  Attributes:
    text: as it was read.
    words_Wx2: int32; where in `text` a word begins and has ended.
    pieces_T: int32 ids.
    word_T: int64; the word of each piece. A word may have none.
  """

  text: str
  words_Wx2: np.ndarray
  pieces_T: np.ndarray
  word_T: np.ndarray


@dataclasses.dataclass(frozen=True)
class Windows:
  """N windows of Q questions, and what leads from them back to texts.

  Attributes:
    questions, contexts: Q each; questions on one text share its context.
    encoded: the rows, N; types are 1 from the window on, and the targets of
      training are "start" and "end", both 0 where a window does not hold the
      whole answer. `num_cut` counts the rows of questions that were cut.
    question_N: int32; the question of each window, in order.
    first_N: int32; where in its context a window begins.
    offset_N: int32; where in its row a window begins.
    best: N arrays, bool; which pieces of a window have the most context there,
      of all windows of the question.
  """

  questions: Sequence[Question]
  contexts: Sequence[Context]
  tokenizer: Tokenizer
  encoded: Encoded
  question_N: np.ndarray
  first_N: np.ndarray
  offset_N: np.ndarray
  best: Sequence[np.ndarray]


def make_windows(
  questions: Sequence[Question],
  tokenizer: Tokenizer,
  *,
  train: bool,
  length: int = 512,
  stride: int = 128,
  question_length: int = 64,
) -> Windows:
  """Cuts questions and their contexts to rows of at most `length` pieces.

  Args:
    train: give targets, of the first answer of each question.
    stride: pieces from the start of a window to that of the next.
    question_length: pieces of a question that are kept.

  Raises:
    InputError: no room for a context, or no way to get on in it.
  """
  if length < question_length + 4:
    raise InputError(
      f"length={length} leaves no room for a context: questions have up to"
      f" {question_length} pieces, and 3 are special; take"
      f" {question_length + 4} or more, or a smaller question_length."
    )
  if min(stride, question_length) < 1:
    raise InputError(
      f"stride={stride}, question_length={question_length}: both are at least"
      " 1 (BERT has 128 and 64)."
    )
  known = read_contexts({q.context for q in questions}, tokenizer)
  contexts = [known[q.context] for q in questions]
  asked = tokenizer.encode_lines([q.text for q in questions])
  heads, rows = [], []
  for number, (context, ids) in enumerate(zip(contexts, asked, strict=True)):
    kept = [tokenizer.cls, *ids[:question_length], tokenizer.sep]
    heads.append(np.array(kept, np.int32))
    plan = window_starts(len(context.pieces_T), length - len(kept) - 1, stride)
    rows += [(number, start, best) for start, best in zip(*plan, strict=True)]
  question_N = np.array([number for number, _, _ in rows], np.int32)
  first_N = np.array([start for _, start, _ in rows], np.int32)
  best = [mask for _, _, mask in rows]
  tokens, types = _rows(heads, contexts, rows, tokenizer.sep)
  offset_N = np.array([len(x) for x in heads], np.int32)[question_N]
  targets: Mapping[str, np.ndarray] = {}
  if train:
    span_Nx2 = _answer_spans(questions, contexts, tokenizer)[question_N]
    targets = _targets(span_Nx2, first_N, offset_N, best)
  is_cut_Q = np.array([len(ids) > question_length for ids in asked], bool)
  encoded = Encoded(tokens, types, targets, int(is_cut_Q[question_N].sum()))
  return Windows(
    questions,
    contexts,
    tokenizer,
    encoded,
    question_N,
    first_N,
    offset_N,
    best,
  )


@functools.lru_cache(maxsize=2**14)
def window_starts(
  num_pieces: int, room: int, stride: int
) -> tuple[list[int], list[np.ndarray]]:
  """Where windows of up to `room` pieces begin in a context.

  Returns:
    The starts, and for each window a bool array: whether no other window has
    more around a piece; the lesser of what stands before and after it counts,
    then the length of the window. Of equals the first has it.
  """
  step = min(stride, room)
  starts = [0, *range(step, num_pieces - room + step, step)]
  ends = [min(start + room, num_pieces) for start in starts]
  place_1xT = np.arange(num_pieces)[None]
  start_Kx1, end_Kx1 = np.array([starts, ends])[:, :, None]
  around_KxT = np.minimum(place_1xT - start_Kx1, end_Kx1 - 1 - place_1xT)
  score_KxT = around_KxT + 0.01 * (end_Kx1 - start_Kx1)
  holder_T = np.where(around_KxT < 0, -1.0, score_KxT).argmax(0)
  spans = zip(starts, ends, strict=True)
  return starts, [holder_T[a:b] == k for k, (a, b) in enumerate(spans)]


def read_contexts(
  texts: Iterable[str], tokenizer: Tokenizer
) -> dict[str, Context]:
  """Words and pieces of different texts; a word is looked at once for all."""
  numbers: dict[str, int] = {}
  found = []
  for text in texts:
    words = list(_WORD.finditer(text))
    known = [numbers.setdefault(w.group(), len(numbers)) for w in words]
    spans = [word.span() for word in words]
    found.append((text, spans, np.array(known, np.int64)))
  ids = tokenizer.encode_lines(list(numbers))
  size_M = np.array([len(x) for x in ids], np.int64)
  first_M = np.cumsum(size_M) - size_M
  flat = np.array([piece for word in ids for piece in word], np.int32)
  contexts = {}
  for text, spans, number_W in found:
    pieces_T, _ = take_spans(flat, first_M[number_W], size_M[number_W])
    words_Wx2 = np.array(spans, np.int32).reshape(-1, 2)
    word_T = np.repeat(np.arange(len(spans)), size_M[number_W])
    contexts[text] = Context(text, words_Wx2, pieces_T, word_T)
  return contexts


def answer_span(
  context: Context, start: int, end: int, answer: list[int]
) -> tuple[int, int] | None:
  """The pieces of an answer: the first, and that after the last.

  These are the pieces of the words that the characters `start` to `end` lie
  in; or those among them that the answer has by itself, if they are there:
  "1895" of "(1895-1943).", but all of "sixth" for "six". None where its words
  have no pieces.
  """
  starts_W, ends_W = context.words_Wx2.T
  first_word = np.searchsorted(ends_W, start, "right")
  after_word = np.searchsorted(starts_W, end, "left")
  first, after = np.searchsorted(context.word_T, (first_word, after_word))
  pieces, size = context.pieces_T[first:after].tolist(), len(answer)
  for skip in range(len(pieces) - size + 1):
    if pieces[skip : skip + size] == answer and answer:
      return int(first + skip), int(first + skip + size)
  return (int(first), int(after)) if pieces else None


def _rows(
  heads: Sequence[np.ndarray],
  contexts: Sequence[Context],
  rows: Sequence[tuple[int, int, np.ndarray]],
  sep: int,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """Tokens and types of (question, start, one bool a piece)."""
  tokens, types = [], []
  for number, start, best in rows:
    window = contexts[number].pieces_T[start : start + len(best)]
    row = np.concatenate([heads[number], window, [sep]], dtype=np.int32)
    tokens.append(row)
    types.append((np.arange(len(row)) >= len(heads[number])).astype(np.int32))
  return tokens, types


def _answer_spans(
  questions: Sequence[Question],
  contexts: Sequence[Context],
  tokenizer: Tokenizer,
) -> np.ndarray:
  """`answer_span` of first answers, int64 [Q, 2]; (-1, -1) is for None."""
  answers = [q.answers[0] for q in questions]
  encoded = tokenizer.encode_lines([text for text, _ in answers])
  spans = [
    answer_span(context, start, start + len(text), ids) or (-1, -1)
    for context, (text, start), ids in zip(
      contexts, answers, encoded, strict=True
    )
  ]
  return np.array(spans, np.int64).reshape(-1, 2)


def _targets(
  span_Nx2: np.ndarray,
  first_N: np.ndarray,
  offset_N: np.ndarray,
  best: Sequence[np.ndarray],
) -> Mapping[str, np.ndarray]:
  """Where each row has the answer, first and last piece; else 0 and 0."""
  start_N, after_N = span_Nx2.T - first_N
  size_N = np.array([len(mask) for mask in best], np.int64)
  is_whole_N = (start_N >= 0) & (after_N <= size_N)
  places = {"start": start_N + offset_N, "end": after_N - 1 + offset_N}
  return {
    name: np.where(is_whole_N, place_N, 0).astype(np.int32)
    for name, place_N in places.items()
  }
