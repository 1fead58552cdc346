"""Fills the masks of sentences with the likeliest tokens."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.data.words import read_words
from truenegs_jax.models.pretrain import Model
from truenegs_jax.report.page import Table
from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights import match

MASK_TEXT = "[MASK]"
NUM_TOKENS = 5  # likeliest tokens per sentence


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

  >>> model, params, tokenizer = load("runs/demo", report=str)
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
