"""Fills the [MASK] of sentences with the masked language model."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models.pretrain import Model
from truenegs_jax.runtime.errors import InputError

MASK_TEXT = "[MASK]"


@dataclasses.dataclass(frozen=True)
class MaskFill:
  """A sentence and the likeliest tokens of its first [MASK]."""

  sentence: str
  tokens: tuple[str, ...]
  probabilities: tuple[float, ...]


def fill_masks(
  model: Model,
  params: Any,
  tokenizer: Tokenizer,
  sentences: Sequence[str],
  *,
  max_length: int,
  top: int = 5,
) -> list[MaskFill]:
  """Returns the `top` likeliest tokens of the first [MASK] of each sentence.

  Raises:
    InputError: a sentence has no [MASK] or is too long for the model.
  """
  if not sentences:
    return []
  rows = encode_sentences(tokenizer, sentences, max_length=max_length)
  length = max(map(len, rows))
  tokens_BxL = np.full((len(rows), length), tokenizer.pad, np.int32)
  for row_L, row in zip(tokens_BxL, rows, strict=True):
    row_L[: len(row)] = row
  real_BxL = np.arange(length)[None] < [[len(row)] for row in rows]
  inputs = {
    "tokens": tokens_BxL,
    "types": np.zeros_like(tokens_BxL),
    "documents": real_BxL.astype(np.int32),
  }
  positions_Bx1 = (tokens_BxL == tokenizer.mask).argmax(axis=1)[:, None]
  logits_Bx1xV = model.bind({"params": params}).generate_logits(
    jax.tree.map(jnp.asarray, inputs), jnp.asarray(positions_Bx1), None
  )
  p_BxV = np.asarray(jax.nn.softmax(logits_Bx1xV[:, 0]))
  best_BxT = np.argsort(-p_BxV)[:, :top]
  return [
    MaskFill(
      sentence=sentence,
      tokens=tuple(tokenizer.vocab[i] for i in best_T),
      probabilities=tuple(p_V[best_T].tolist()),
    )
    for sentence, p_V, best_T in zip(sentences, p_BxV, best_BxT, strict=True)
  ]


def fills_table(fills: list[MaskFill]) -> Table:
  """Makes a table with one line per sentence."""
  table = Table(title="Predictions for [MASK]", title_justify="left")
  for name in ("sentence", "likeliest tokens"):
    table.add_column(name, overflow="fold")
  for fill in fills:
    pairs = zip(fill.tokens, fill.probabilities, strict=True)
    table.add_row(
      fill.sentence, ", ".join(f"{token} {p:.0%}" for token, p in pairs)
    )
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
