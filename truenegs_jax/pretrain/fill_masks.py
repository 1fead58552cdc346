"""Fills the [MASK] of sentences with the masked language model."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models.pretrain import Model
from truenegs_jax.runtime.errors import InputError

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
  *,
  max_length: int = 512,
) -> list[MaskFill]:
  """Returns the likeliest tokens of the first [MASK] of each sentence.

  >>> model, params, tokenizer = load("runs/electra_demo", report=str)
  >>> [fill] = fill_masks(model, params, tokenizer, ["the [MASK] house"])
  >>> len(fill.tokens), fill.probabilities == sorted(fill.probabilities)[::-1]
  (5, True)

  Raises:
    InputError: a sentence has no [MASK] or is too long for the model.
  """
  if not sentences:
    return []
  rows = encode_sentences(tokenizer, sentences, max_length=max_length)
  shape = len(rows), max(map(len, rows))
  tokens_BxL = np.full(shape, tokenizer.pad, np.int32)
  documents_BxL = np.zeros(shape, np.int32)
  for i, row in enumerate(rows):
    tokens_BxL[i, : len(row)] = row
    documents_BxL[i, : len(row)] = 1
  inputs = {
    "tokens": jnp.asarray(tokens_BxL),
    "types": jnp.zeros(shape, jnp.int32),
    "documents": jnp.asarray(documents_BxL),
  }
  positions_Bx1 = (tokens_BxL == tokenizer.mask).argmax(axis=1)[:, None]
  logits_Bx1xV = model.bind({"params": params}).generate_logits(
    inputs, jnp.asarray(positions_Bx1), None
  )
  p_BxV = np.asarray(jax.nn.softmax(logits_Bx1xV[:, 0]))
  best_BxT = np.argsort(-p_BxV)[:, :NUM_TOKENS]
  fills = []
  for sentence, p_V, best_T in zip(sentences, p_BxV, best_BxT, strict=True):
    tokens = [tokenizer.vocab[i] for i in best_T]
    fills.append(MaskFill(sentence, tokens, p_V[best_T].tolist()))
  return fills


def fills_table(fills: list[MaskFill]) -> Table:
  """Makes a table with one line per sentence."""
  table = Table(title="Predictions for [MASK]", title_justify="left")
  for name in ("sentence", "likeliest tokens"):
    table.add_column(name, overflow="fold")
  for fill in fills:
    pairs = zip(fill.tokens, fill.probabilities, strict=True)
    likeliest = ", ".join(f"{token} {p:.0%}" for token, p in pairs)
    table.add_row(fill.sentence, likeliest)
  return table


def encode_sentences(
  tokenizer: Tokenizer, sentences: Sequence[str], *, max_length: int
) -> list[list[int]]:
  """Encodes sentences; the first [MASK] of each becomes the mask token.

  Raises:
    InputError: a sentence has no [MASK] or is too long for the model.
  """
  rows = []
  for sentence in sentences:
    # The tokenizer encodes the text "[MASK]" as text, not as the mask token.
    before, mask, after = sentence.partition(MASK_TEXT)
    if not mask:
      raise InputError(
        f"eval.sentences: {sentence!r} has no {MASK_TEXT}. Add one or remove"
        " the sentence."
      )
    ids = tokenizer.encode_lines([before, after])
    row = [tokenizer.cls, *ids[0], tokenizer.mask, *ids[1], tokenizer.sep]
    if len(row) > max_length:
      raise InputError(
        f"eval.sentences: {sentence!r} has {len(row)} tokens, and the model"
        f" takes at most {max_length}. Use a shorter sentence."
      )
    rows.append(row)
  return rows
