"""From what a network says of windows to texts: the best answers.

  found = best_answers(windows, [(start_n, end_n), ...])
  found[windows.questions[0].key][0]  # ("Denver Broncos", 17.3)

Source: google-research/bert `run_squad.py`; google-research/electra
`finetune/qa`.
"""

import dataclasses
import functools
import unicodedata
from collections.abc import Sequence

import numpy as np
from tokenizers import normalizers

from truenegs_jax.data.tokens.tokenizer import Tokenizer, without_surrogates
from truenegs_jax.tasks.squad_windows import Context, Windows

NOTHING = "empty"  # the answer where none is left; BERT gives it, too


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
  texts = Texts(windows.tokenizer)
  parts: list[list[np.ndarray]] = [[] for _ in windows.questions]
  for number, scores in enumerate(span_scores):
    part = _candidates(windows, number, scores, num_best, max_answer)
    parts[windows.question_N[number]].append(part)
  found = {}
  for question, context, spans in zip(
    windows.questions, windows.contexts, parts, strict=True
  ):
    spans_3xC = np.concatenate(spans, axis=1)
    order_C = np.argsort(-spans_3xC[2], kind="stable")
    answers: dict[str, float] = {}
    for first, last, score in spans_3xC.T[order_C].tolist():
      answers.setdefault(texts.span(context, int(first), int(last)), score)
      if len(answers) == num_best:
        break
    found[question.key] = list(answers.items()) or [(NOTHING, 0.0)]
  return found


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
  offset, best = windows.offset_N[number], windows.best[number]
  starts_S, ends_SxE = starts_S - offset, ends_SxE - offset
  is_in_S = (starts_S >= 0) & (starts_S < len(best))
  is_in_S[is_in_S] = best[starts_S[is_in_S]]
  starts_Sx1 = starts_S[:, None]
  is_good_SxE = is_in_S[:, None] & (ends_SxE < len(best))
  is_good_SxE &= ends_SxE >= starts_Sx1
  is_good_SxE &= ends_SxE < starts_Sx1 + max_answer
  first_SxE = (
    np.broadcast_to(starts_Sx1, ends_SxE.shape) + windows.first_N[number]
  )
  found = (first_SxE, ends_SxE + windows.first_N[number], scores_SxE)
  return np.stack([x[is_good_SxE] for x in found]).astype(np.float64)


def _top(scores_n: np.ndarray, count: int) -> np.ndarray:
  return np.argsort(-scores_n, kind="stable")[:count]


@dataclasses.dataclass(frozen=True)
class Texts:
  """From pieces back to the text that they were made of."""

  tokenizer: Tokenizer
  _normal: dict[str, str] = dataclasses.field(default_factory=dict)
  _words: dict[tuple, list[tuple[int, int]]] = dataclasses.field(
    default_factory=dict
  )

  def span(self, context: Context, first: int, last: int) -> str:
    """The text of the pieces `first` to `last` of a context, as it has it."""
    start, _ = self._characters(context, first)
    _, end = self._characters(context, last)
    return context.text[start:end]

  def _characters(self, context: Context, place: int) -> tuple[int, int]:
    """Where the text of a piece begins and has ended."""
    word = context.word_T[place]
    first, after = np.searchsorted(context.word_T, (word, word + 1))
    start, end = context.words_Wx2[word].tolist()
    key = context.text[start:end], *context.pieces_T[first:after].tolist()
    if key not in self._words:
      self._words[key] = self.align(*key)
    a, b = self._words[key][place - first]
    return start + a, start + b

  def align(self, word: str, *ids: int) -> list[tuple[int, int]]:
    """Where in a word each of its pieces begins and has ended.

    The characters of the pieces are those of the word, lower-cased and so on,
    in the same order. Where they are not, as with [UNK], each piece stands for
    the whole word.
    """
    pieces = [self.tokenizer.vocab[i].removeprefix("##") for i in ids]
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

  def _normalized(self, character: str) -> str:
    if character not in self._normal:
      known = without_surrogates(character)
      text = self._normalizer.normalize_str(known)
      self._normal[character] = "".join(text.split())
    return self._normal[character]

  @functools.cached_property
  def _normalizer(self) -> normalizers.BertNormalizer:
    return normalizers.BertNormalizer(
      lowercase=self.tokenizer.lowercase,
      strip_accents=self.tokenizer.strip_accents,
    )


def _is_accent(character: str) -> bool:
  return unicodedata.category(character) == "Mn"
