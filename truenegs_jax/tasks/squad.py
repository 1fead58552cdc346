"""Reads questions of SQuAD v1.1, cuts windows, and finds texts of spans.

  questions = read_squad("dev-v1.1.json")  # or .xz, or hf:rajpurkar/squad
  windows = make_windows(questions, tokenizer, train=False)
  best_answers(windows, [logits_nx2, ...])  # ["Denver Broncos", ...]

A row is [CLS] question [SEP] window [SEP]. A long context has several windows,
each of which starts `stride` pieces after the one before.

Source: google-research/bert `run_squad.py`; google-research/electra
`finetune/qa`. Hugging Face's `stride` is the overlap of windows instead.
"""

import codecs
import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from unicodedata import category

import numpy as np

from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import parse_json
from truenegs_jax.runtime.text import open_bytes
from truenegs_jax.tasks.records import HUB, read_dataset, read_file
from truenegs_jax.tasks.task import EncodedRows, Question

NO_ANSWER = "empty"  # if no candidate is left, also in BERT's code
_WORD = re.compile("[^ \t\r\n\u202f]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_squad(where: str, *, split: str = "train") -> list[Question]:
  """Reads all questions, in order.

  `where` is a file, plain or compressed; or a data set, "hf:NAME split=S". A
  file is SQuAD's JSON, or has a question with its context on each line, in an
  array or in the list "data".
  """
  is_hub = where.startswith(HUB)
  records = read_dataset(where, split=split) if is_hub else _read_json(where)
  questions: dict[str, Question] = {}
  numbered = enumerate(_find_questions(records), start=1)
  for number, (location, context, record) in numbered:
    question = parse_question(location, context, record, key=f"number {number}")
    known = questions.setdefault(question.key, question)
    if known is not question:
      raise DataError(
        f"{question.location}: the id is already in {known.location}. Give each"
        " question a unique id."
      )
  if not questions:
    raise DataError(f"{where}: no questions. Choose another file.")
  return list(questions.values())


def _read_json(where: str) -> Iterator[tuple[str, Any]]:
  """Yields location and value of each article or question of a file."""
  path = os.path.expanduser(where)
  with open_bytes(path) as file:
    content = file.read().removeprefix(codecs.BOM_UTF8).lstrip()
  if content.startswith(b"["):
    content = b'{"data": ' + content + b"}"
  try:
    value = parse_json(content, strict=False)
  except ValueError as error:
    if "Extra data" not in str(error):
      raise DataError(
        f"{where}: {error}. Download it again, or write an object with context,"
        " question, answers and id on each line."
      ) from error
    yield from read_file(path)
    return
  with _form_errors(where):
    for number, entry in enumerate(value.get("data", [value]), start=1):
      title = f" ({entry['title']})" if "title" in entry else ""
      yield f"{where}: article {number}{title}", entry


def _find_questions(
  records: Iterable[tuple[str, Any]],
) -> Iterator[tuple[str, Any, Any]]:
  """Yields location, context and question of the records of a file."""
  for location, record in records:
    if "paragraphs" not in record:
      yield location, None, record
      continue
    with _form_errors(location):
      for number, paragraph in enumerate(record["paragraphs"], start=1):
        place = f"{location}, paragraph {number}"
        for question in paragraph["qas"]:
          yield place, paragraph["context"], question


@contextlib.contextmanager
def _form_errors(location: str) -> Iterator[None]:
  """Turns errors of values that are not as in SQuAD into DataErrors."""
  try:
    yield
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise DataError(
      f"{location}: not in the form of SQuAD ({error!r:.200}), which is data /"
      " paragraphs / context, qas / id, question, answers / text, answer_start."
    ) from error


def parse_question(
  location: str, context: Any, record: Any, *, key: str
) -> Question:
  """Returns the question of a record; DataError if it is invalid.

  `context` is None for that of the record, and `key` stands for an id that the
  record lacks. An answer that is not at its answer_start moves to its nearest
  occurrence.
  """
  with _form_errors(location):
    given = record.get("id", record.get("sample_id"))
  key = key if given is None else str(given)
  location = f"{location}, question {key}"
  with _form_errors(location):
    context = record["context"] if context is None else context
    text = record["question"]
    answers = record["answers"]
    if isinstance(answers, dict):  # `datasets` has an object of lists
      pairs = [*zip(answers["text"], answers["answer_start"], strict=True)]
    else:
      pairs = [(x["text"], x["answer_start"]) for x in answers]
    spans = [(x, _find_answer(context, x, start)) for x, start in pairs]
    is_blank = not (text.strip() and context.strip())
  if record.get("is_impossible") or not spans:
    reason = "the question has no answer. SQuAD v2.0 is not supported"
  elif is_blank:
    reason = "the question or its context is blank"
  else:
    return Question(key, text, context, tuple(spans), location)
  raise DataError(f"{location}: {reason}. Remove such questions.")


def _find_answer(context: str, answer: str, start: int) -> int:
  """Returns the occurrence of an answer that is nearest to `start`."""
  if start >= 0 and context.startswith(answer, start):
    return start
  starts = [i for i in range(len(context)) if context.startswith(answer, i)]
  if not starts:
    raise ValueError(f"{answer!r} does not occur in the context")
  return min(starts, key=lambda i: abs(i - start))


@dataclasses.dataclass(frozen=True)
class Context:
  """A context as T pieces and W words, which white space separates."""

  text: str
  words_Wx2: np.ndarray  # int; start and end of each word in the text
  pieces_T: np.ndarray  # int32 ids
  spans_Tx2: np.ndarray  # int; start and end of each piece in the text
  word_T: np.ndarray  # int64; index of each piece's word; some have no pieces


@dataclasses.dataclass(frozen=True)
class Windows:
  """N windows of Q questions, with all that maps them back to texts."""

  questions: Sequence[Question]
  contexts: Sequence[Context]  # Q; questions on the same text share its context
  # The N rows. Types are 1 from the window on. Targets, for training, are
  # "start" and "end", both 0 if the window does not contain the whole answer.
  # `num_cut` counts the rows with truncated questions.
  encoded: EncodedRows
  question_N: np.ndarray  # int32; index of each window's question, ascending
  first_N: np.ndarray  # int32; start of each window in its context
  offset_N: np.ndarray  # int32; start of each window in its row
  # N bool arrays: the pieces that have more context in this window than in any
  # other window of the question.
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
  """Makes rows of at most `length` pieces from questions and their contexts.

  Args:
    train: add targets, from the first answer of each question.
    stride: number of pieces from the start of one window to the next.
    question_length: maximum number of pieces of a question, at most half a
      row; more are cut off.
  """
  question_length = min(question_length, length // 2)
  by_text = tokenize_contexts({q.context for q in questions}, tokenizer)
  contexts = [by_text[q.context] for q in questions]
  question_ids = tokenizer.encode_lines([q.text for q in questions])
  tokens = []
  types = []
  masks = []
  positions = []
  num_cut = 0
  pairs = zip(contexts, question_ids, strict=True)
  for number, (context, ids) in enumerate(pairs):
    prefix = [tokenizer.cls, *ids[:question_length], tokenizer.sep]
    room = length - len(prefix) - 1
    starts, window_masks = plan_windows(len(context.pieces_T), room, stride)
    num_cut += len(starts) if len(ids) > question_length else 0
    for start, mask in zip(starts, window_masks, strict=True):
      window = context.pieces_T[start : start + len(mask)]
      row = np.concatenate([prefix, window, [tokenizer.sep]], dtype=np.int32)
      tokens.append(row)
      types.append((np.arange(len(row)) >= len(prefix)).astype(np.int32))
      masks.append(mask)
      positions.append((number, start, len(prefix)))
  encoded = EncodedRows(tokens, types, {}, num_cut)
  question_N, first_N, offset_N = np.array(positions, np.int32).T
  windows = Windows(
    questions, contexts, encoded, question_N, first_N, offset_N, masks
  )
  if train:
    encoded = dataclasses.replace(encoded, targets=_targets(windows, tokenizer))
    windows = dataclasses.replace(windows, encoded=encoded)
  return windows


@functools.lru_cache(maxsize=2**14)
def plan_windows(
  num_pieces: int, room: int, stride: int
) -> tuple[list[int], list[np.ndarray]]:
  """Places windows of up to `room` pieces: starts, and `is_max_context`.

  A piece has as much context as there are pieces before it or after it,
  whichever is less, plus 0.01 times the window's size. Ties go to the first.
  """
  step = min(stride, room)
  starts = [0, *range(step, num_pieces - room + step, step)]
  ends = [min(start + room, num_pieces) for start in starts]
  position_1xT = np.arange(num_pieces)[None]
  start_Kx1, end_Kx1 = np.array([starts, ends])[:, :, None]
  context_KxT = np.minimum(position_1xT - start_Kx1, end_Kx1 - 1 - position_1xT)
  score_KxT = context_KxT + 0.01 * (end_Kx1 - start_Kx1)
  window_T = np.where(context_KxT < 0, -1.0, score_KxT).argmax(0)
  spans = zip(starts, ends, strict=True)
  return starts, [window_T[a:b] == k for k, (a, b) in enumerate(spans)]


def tokenize_contexts(
  texts: Collection[str], tokenizer: Tokenizer
) -> dict[str, Context]:
  """Splits texts into words and pieces.

  For another tokenizer than BERT's, each piece counts as a word. A piece of a
  word with an unknown piece stands for the whole word.
  """
  backend = tokenizer.make_backend()
  contexts = {}
  for text in texts:
    # BERT's drops U+FFFD like half of a surrogate pair, and keeps its place.
    encoded = backend.encode(
      _SURROGATE.sub("\ufffd", text), add_special_tokens=False
    )
    pieces_T = np.array(encoded.ids, np.int32)
    spans_Tx2 = np.array(encoded.offsets, int).reshape(-1, 2)
    if tokenizer.definition:
      spans = [_strip_span(text, *span) for span in spans_Tx2.tolist()]
      words_Wx2 = spans_Tx2 = np.array(spans, int).reshape(-1, 2)
      word_T = np.arange(len(spans))
    else:
      words = [x.span() for x in _WORD.finditer(text)]
      words_Wx2 = np.array(words, int).reshape(-1, 2)
      word_T = words_Wx2[:, 0].searchsorted(spans_Tx2[:, 0], "right") - 1
      unknown = set(word_T[pieces_T == tokenizer.unk].tolist())
      is_unknown_T = np.isin(word_T, [*unknown])
      spans_Tx2[is_unknown_T] = words_Wx2[word_T[is_unknown_T]]
    contexts[text] = Context(text, words_Wx2, pieces_T, spans_Tx2, word_T)
  return contexts


def _strip_span(text: str, start: int, end: int) -> tuple[int, int]:
  """Returns a span of a text without the white space at its ends."""
  first = end - len(text[start:end].lstrip())
  return first, first + len(text[first:end].rstrip())


def find_answer_span(
  context: Context, start: int, end: int, answer: list[int]
) -> tuple[int, int] | None:
  """Finds the pieces of an answer: index of the first, and after the last.

  These are all pieces of the words that the characters `start` to `end` touch,
  or the pieces `answer` if the words contain them: "1895" of "(1895-1943).",
  but all of "sixth" for "six". None if the words have no pieces.
  """
  starts_W, ends_W = context.words_Wx2.T
  first_word = np.searchsorted(ends_W, start, "right")
  after_word = np.searchsorted(starts_W, end, "left")
  first, after = np.searchsorted(context.word_T, (first_word, after_word))
  pieces = context.pieces_T[first:after].tolist()
  size = len(answer)
  for i in range(len(pieces) - size + 1):
    if pieces[i : i + size] == answer and answer:
      return int(first + i), int(first + i + size)
  return (int(first), int(after)) if pieces else None


def _targets(
  windows: Windows, tokenizer: Tokenizer
) -> Mapping[str, np.ndarray]:
  """Returns `Windows.encoded.targets` for training."""
  answers = [q.answers[0] for q in windows.questions]
  ids = tokenizer.encode_lines([text for text, _ in answers])
  known = zip(windows.contexts, answers, ids, strict=True)
  span_Qx2 = [
    find_answer_span(context, start, start + len(text), pieces) or (-1, -1)
    for context, (text, start), pieces in known
  ]
  piece_N, after_N = np.array(span_Qx2)[windows.question_N].T - windows.first_N
  size_N = np.array([len(mask) for mask in windows.is_max_context])
  fits_N = (piece_N >= 0) & (after_N <= size_N)
  start_N = np.where(fits_N, windows.offset_N + piece_N, 0)
  end_N = np.where(fits_N, windows.offset_N + after_N - 1, 0)
  return {"start": start_N.astype(np.int32), "end": end_N.astype(np.int32)}


def best_answers(
  windows: Windows,
  logits: Sequence[np.ndarray],
  *,
  num_best: int = 20,
  max_answer: int = 30,
) -> list[str]:
  """Returns the best answer to each question, over all of its windows.

  An answer starts and ends in the context, has at most `max_answer` pieces and
  starts at a piece of `Windows.is_max_context`. Without any it is NO_ANSWER.

  `logits` are those of start and end, f32 [n, 2], of each window in order, of
  which the `num_best` best starts and ends are combined. Positions after the
  row's tokens are ignored.
  """
  by_question: list[list[np.ndarray]] = [[] for _ in windows.questions]
  for number, logits_nx2 in enumerate(logits):
    spans_3xC = _candidates(windows, number, logits_nx2, num_best, max_answer)
    by_question[windows.question_N[number]].append(spans_3xC)
  answers = []
  for context, spans in zip(windows.contexts, by_question, strict=True):
    spans_3xC = np.concatenate(spans, axis=1)
    if spans_3xC.size:
      best = np.argsort(-spans_3xC[2], kind="stable")[0]  # NaN comes last
      first, last = spans_3xC[:2, best].astype(int)
      answers.append(_extract_text(context, first, last))
    else:
      answers.append(NO_ANSWER)
  return answers


def _candidates(
  windows: Windows,
  number: int,
  logits_nx2: np.ndarray,
  num_best: int,
  max_answer: int,
) -> np.ndarray:
  """Returns first and last piece in the context, and score, f64 [3, C]."""
  tokens_n = windows.encoded.tokens[number]
  start_n, end_n = logits_nx2[: len(tokens_n)].astype(np.float64).T
  starts_S, ends_E = (
    np.argsort(-x, kind="stable")[:num_best] for x in (start_n, end_n)
  )
  scores_SxE = start_n[starts_S, None] + end_n[ends_E]
  spans = np.broadcast_arrays(starts_S[:, None], ends_E[None], scores_SxE)
  spans_3xC = np.stack(spans, dtype=np.float64).reshape(3, -1)
  spans_3xC[:2] -= windows.offset_N[number]
  mask = windows.is_max_context[number]
  first_C, last_C, _ = spans_3xC
  fits_C = (0 <= first_C) & (first_C <= last_C) & (last_C < len(mask))
  spans_3xC = spans_3xC[:, fits_C & (last_C < first_C + max_answer)]
  spans_3xC = spans_3xC[:, mask[spans_3xC[0].astype(int)]]
  spans_3xC[:2] += windows.first_N[number]
  return spans_3xC


def _extract_text(context: Context, first: int, last: int) -> str:
  """Returns the original text of the pieces `first` to `last`."""
  start = context.spans_Tx2[first, 0]
  end = context.spans_Tx2[last, 1]
  after = [*context.spans_Tx2[last + 1 :, 0], len(context.text)][0]
  # Stripped accents (category Mn) belong to the letter before them.
  while end < after and category(context.text[end]) == "Mn":
    end += 1
  return context.text[start:end]
