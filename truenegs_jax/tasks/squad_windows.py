"""Questions on contexts as windows of ids, and spans of windows as texts.

A row is [CLS] question [SEP] window [SEP]; a context that is longer than its
window has several, each `stride` pieces after the one before.

  windows = make_windows(questions, tokenizer, train=False)
  windows.encoded.tokens[0]
  answers = best_answers(windows, [(start_n, end_n), ...])
  answers[windows.questions[0].key][0]  # ("Denver Broncos", 17.3)

Source: google-research/bert `run_squad.py`; google-research/electra
`finetune/qa`. The `stride` of Hugging Face is another number: by how much
windows overlap.
"""

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from tokenizers import normalizers

from truenegs_jax.data.tokens.split_words import take_spans
from truenegs_jax.data.tokens.tokenizer import Tokenizer, drop_surrogates
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks.squad import Question
from truenegs_jax.tasks.task import EncodedRows

NO_ANSWER = "empty"  # the answer where none is left; BERT gives it, too
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
    is_max_context: N arrays, bool; which pieces have the most context in this
      window, of all windows of the question.
  """

  questions: Sequence[Question]
  contexts: Sequence[Context]
  tokenizer: Tokenizer
  encoded: EncodedRows
  question_N: np.ndarray
  first_N: np.ndarray
  offset_N: np.ndarray
  is_max_context: Sequence[np.ndarray]


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
  known = tokenize_contexts({q.context for q in questions}, tokenizer)
  contexts = [known[q.context] for q in questions]
  question_ids = tokenizer.encode_lines([q.text for q in questions])
  tokens, types, best, rows = [], [], [], []
  for number, (context, ids) in enumerate(
    zip(contexts, question_ids, strict=True)
  ):
    kept = [tokenizer.cls, *ids[:question_length], tokenizer.sep]
    room = length - len(kept) - 1
    plan = plan_windows(len(context.pieces_T), room, stride)
    for start, best_W in zip(*plan, strict=True):
      window = context.pieces_T[start : start + len(best_W)]
      row = np.concatenate([kept, window, [tokenizer.sep]], dtype=np.int32)
      tokens.append(row)
      types.append((np.arange(len(row)) >= len(kept)).astype(np.int32))
      best.append(best_W)
      rows.append((number, start, len(kept)))
  question_N, first_N, offset_N = np.array(rows, np.int32).T
  is_cut_Q = np.array(
    [len(ids) > question_length for ids in question_ids], bool
  )
  windows = Windows(
    questions,
    contexts,
    tokenizer,
    EncodedRows(tokens, types, {}, int(is_cut_Q[question_N].sum())),
    question_N,
    first_N,
    offset_N,
    best,
  )
  if not train:
    return windows
  encoded = dataclasses.replace(windows.encoded, targets=_targets(windows))
  return dataclasses.replace(windows, encoded=encoded)


@functools.lru_cache(maxsize=2**14)
def plan_windows(
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


def tokenize_contexts(
  texts: Iterable[str], tokenizer: Tokenizer
) -> dict[str, Context]:
  """Words and pieces of different texts; a word is looked at once for all."""
  numbers: dict[str, int] = {}
  split = []
  for text in texts:
    words = list(_WORD.finditer(text))
    known = [numbers.setdefault(w.group(), len(numbers)) for w in words]
    spans = [word.span() for word in words]
    split.append((text, spans, np.array(known, np.int64)))
  ids = tokenizer.encode_lines(list(numbers))
  size_M = np.array([len(x) for x in ids], np.int64)
  first_M = np.cumsum(size_M) - size_M
  flat = np.array([piece for word in ids for piece in word], np.int32)
  contexts = {}
  for text, spans, number_W in split:
    pieces_T, _ = take_spans(flat, first_M[number_W], size_M[number_W])
    words_Wx2 = np.array(spans, np.int32).reshape(-1, 2)
    word_T = np.repeat(np.arange(len(spans)), size_M[number_W])
    contexts[text] = Context(text, words_Wx2, pieces_T, word_T)
  return contexts


def find_answer_span(
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


def _targets(windows: Windows) -> Mapping[str, np.ndarray]:
  """Where each row has its answer, first and last piece; else 0 and 0."""
  answers = [q.answers[0] for q in windows.questions]
  ids = windows.tokenizer.encode_lines([text for text, _ in answers])
  span_Qx2 = [
    find_answer_span(context, start, start + len(text), pieces) or (-1, -1)
    for context, (text, start), pieces in zip(
      windows.contexts, answers, ids, strict=True
    )
  ]
  start_N, after_N = np.array(span_Qx2)[windows.question_N].T - windows.first_N
  size_N = np.array([len(mask) for mask in windows.is_max_context])
  is_complete_N = (start_N >= 0) & (after_N <= size_N)
  places = {"start": start_N, "end": after_N - 1}
  return {
    name: np.where(is_complete_N, place_N + windows.offset_N, 0).astype(
      np.int32
    )
    for name, place_N in places.items()
  }


def best_answers(
  windows: Windows,
  span_scores: Sequence[tuple[np.ndarray, ...]],
  *,
  num_best: int = 20,
  max_answer: int = 30,
) -> dict[str, list[tuple[str, float]]]:
  """The best answers to each question, over all of its windows.

  An answer begins and ends in the context, has at most `max_answer` pieces, and
  begins where no other window has more context. A text counts once.

  Args:
    span_scores: of each window, in order, the logits (start_n, end_n), f32 [n],
      of all places of its row; or candidates (starts_S, ends_SxE, scores_SxE):
      places in the row, and what goes by how likely an answer is. All that lies
      behind the row is left out.
    num_best: places that are tried for starts and for ends; answers returned.

  Returns:
    Key of the question -> (text, score), the best first; ("empty", 0.0) where
    no answer is left.
  """
  texts = SpanTexts(windows.tokenizer)
  parts: list[list[np.ndarray]] = [[] for _ in windows.questions]
  for number, scores in enumerate(span_scores):
    part = _candidates(windows, number, scores, num_best, max_answer)
    parts[windows.question_N[number]].append(part)
  answers: dict[str, list[tuple[str, float]]] = {}
  for question, context, spans in zip(
    windows.questions, windows.contexts, parts, strict=True
  ):
    spans_3xC = np.concatenate(spans, axis=1)
    order_C = np.argsort(-spans_3xC[2], kind="stable")
    best: dict[str, float] = {}
    for first, last, score in spans_3xC.T[order_C].tolist():
      best.setdefault(texts.span(context, int(first), int(last)), score)
      if len(best) == num_best:
        break
    answers[question.key] = list(best.items()) or [(NO_ANSWER, 0.0)]
  return answers


def _candidates(
  windows: Windows,
  number: int,
  scores: tuple[np.ndarray, ...],
  num_best: int,
  max_answer: int,
) -> np.ndarray:
  """First and last piece in the context, and score: f64 [3, C], best first."""
  size = len(windows.encoded.tokens[number])
  if len(scores) == 2:
    start_n, end_n = (x[:size].astype(np.float64) for x in scores)
    starts_S, ends_E = _top(start_n, num_best), _top(end_n, num_best)
    ends_SxE = np.broadcast_to(ends_E, (len(starts_S), len(ends_E)))
    scores_SxE = start_n[starts_S, None] + end_n[ends_E][None]
  else:
    starts_S, ends_SxE, scores_SxE = scores
  offset, best = windows.offset_N[number], windows.is_max_context[number]
  starts_S, ends_SxE = starts_S - offset, ends_SxE - offset
  is_in_S = (starts_S >= 0) & (starts_S < len(best))
  is_in_S[is_in_S] = best[starts_S[is_in_S]]
  starts_SxE = np.broadcast_to(starts_S[:, None], ends_SxE.shape)
  is_good_SxE = is_in_S[:, None] & (ends_SxE < len(best))
  is_good_SxE &= ends_SxE >= starts_SxE
  is_good_SxE &= ends_SxE < starts_SxE + max_answer
  first = windows.first_N[number]
  spans = (starts_SxE + first, ends_SxE + first, scores_SxE)
  return np.stack([x[is_good_SxE] for x in spans]).astype(np.float64)


def _top(scores_n: np.ndarray, count: int) -> np.ndarray:
  return np.argsort(-scores_n, kind="stable")[:count]


class SpanTexts:
  """From pieces back to the text that they were made of."""

  def __init__(self, tokenizer: Tokenizer):
    self._vocab = tokenizer.vocab
    self._normalizer = normalizers.BertNormalizer(
      lowercase=tokenizer.lowercase, strip_accents=tokenizer.strip_accents
    )
    self._align = functools.cache(self.align)
    self._normalized = functools.cache(self._normalize)

  def span(self, context: Context, first: int, last: int) -> str:
    """The text of the pieces `first` to `last` of a context, as it has it."""
    start, _ = self._characters(context, first)
    _, end = self._characters(context, last)
    return context.text[start:end]

  def align(self, word: str, *ids: int) -> list[tuple[int, int]]:
    """Where in a word each of its pieces begins and has ended.

    The characters of the pieces are those of the word, lower-cased and so on,
    in the same order. Where they are not, as with [UNK], each piece stands for
    the whole word.
    """
    pieces = [self._vocab[i].removeprefix("##") for i in ids]
    normal = [self._normalized(c) for c in word]
    if "".join(normal) != "".join(pieces):
      return [(0, len(word))] * len(ids)
    owner_C = [place for place, text in enumerate(normal) for _ in text]
    spans, done = [], 0
    for piece in pieces:
      start, end = owner_C[done], owner_C[done + len(piece) - 1] + 1
      # Accents that stand behind their letter and were stripped.
      while normal[end : end + 1] == [""] and _is_accent(word[end]):
        end += 1
      spans.append((start, end))
      done += len(piece)
    return spans

  def _characters(self, context: Context, place: int) -> tuple[int, int]:
    """Where the text of a piece begins and has ended."""
    word = context.word_T[place]
    first, after = np.searchsorted(context.word_T, (word, word + 1))
    start, end = context.words_Wx2[word].tolist()
    ids = context.pieces_T[first:after].tolist()
    a, b = self._align(context.text[start:end], *ids)[place - first]
    return start + a, start + b

  def _normalize(self, character: str) -> str:
    text = self._normalizer.normalize_str(drop_surrogates(character))
    return "".join(text.split())


def _is_accent(character: str) -> bool:
  return unicodedata.category(character) == "Mn"
