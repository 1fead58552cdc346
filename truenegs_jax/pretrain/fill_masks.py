"""The masked language model's words for the [MASK] of a sentence."""

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
  """The likeliest tokens of a sentence's first [MASK]."""

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
  """Fills one [MASK] of each sentence with the likeliest tokens.

  Raises:
    InputError: a sentence without [MASK], or too long for the model.
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
  fills = []
  for sentence, p_V in zip(sentences, p_BxV, strict=True):
    best = np.argsort(-p_V)[:top]
    fills.append(
      MaskFill(
        sentence=sentence,
        tokens=tuple(tokenizer.vocab[i] for i in best),
        probabilities=tuple(float(p_V[i]) for i in best),
      )
    )
  return fills


def fills_table(fills: list[MaskFill]) -> Table:
  """One line a sentence."""
  t = Table(title="[MASK] filled", title_justify="left")
  for name in ("sentence", "likeliest tokens"):
    t.add_column(name, overflow="fold")
  for fill in fills:
    pairs = zip(fill.tokens, fill.probabilities, strict=True)
    t.add_row(
      fill.sentence,
      ", ".join(f"{token} {p:.0%}" for token, p in pairs),
    )
  return t


def encode_sentences(
  tokenizer: Tokenizer, sentences: Sequence[str], *, max_length: int
) -> list[list[int]]:
  """Ids of each sentence between [CLS] and [SEP], its first [MASK] the token.

  Raises:
    InputError: a sentence without [MASK], or too long for the model.
  """
  rows = []
  for sentence in sentences:
    # Split by hand: in a corpus a literal "[MASK]" is text, never the token.
    before, mask, after = sentence.partition(MASK_TEXT)
    if not mask:
      raise InputError(f"eval.sentences: {sentence!r} holds no {MASK_TEXT}.")
    ids = tokenizer.encode_lines([before, after])
    row = [tokenizer.cls, *ids[0], tokenizer.mask, *ids[1], tokenizer.sep]
    if len(row) > max_length:
      raise InputError(
        f"eval.sentences: {sentence!r} has {len(row)} tokens; the model takes"
        f" {max_length}."
      )
    rows.append(row)
  return rows
