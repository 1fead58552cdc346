"""Reads the lines of a text, and predicts the slots of each."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import optax

from truenegs_jax.data.sources import open_corpus
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.pretrain import predict_slots
from truenegs_jax.pretrain.cases import Predictions
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.files import short_sha256

TEXT = "corrections.text"  # the config key
NARROW = (4, 2)  # batches of short lines have 1/4 or 1/2 of the length


@dataclasses.dataclass(frozen=True)
class Lines:
  """The lines of a text, each as a sequence `[CLS] line [SEP]`."""

  sequences: tuple[np.ndarray, ...]  # int32, the tokens of each line
  length: int  # of a sequence, at most
  num_cut: int  # lines that were cut to this length
  fingerprint: str  # 16 hex digits over all tokens


def read_lines(
  text: str,
  tokenizer: Tokenizer,
  *,
  length: int,
  limit: int = 0,
  open_wordnet: Callable[[], Any] | None = None,
) -> Lines:
  """Tokenizes up to `limit` lines (0: all) of a value like `data.sources`."""
  documents = open_corpus(text, key=TEXT, open_wordnet=open_wordnet)
  lines = (line for document in documents for line in document.split("\n"))
  chosen = [*itertools.islice(lines, limit or None)]
  encoded = [ids for ids in tokenizer.encode_lines(chosen) if ids]
  if not encoded:
    raise DataError(f"{TEXT}={text!r} has no tokens. Use other text.")
  sequences = tuple(
    np.array([tokenizer.cls, *ids[: length - 2], tokenizer.sep], np.int32)
    for ids in encoded
  )
  return Lines(
    sequences=sequences,
    length=length,
    num_cut=sum(len(ids) > length - 2 for ids in encoded),
    fingerprint=short_sha256(b"\n".join(s.tobytes() for s in sequences)),
  )


def predict_lines(
  predict: Callable,
  params: optax.Params,
  sequences: Sequence[np.ndarray],
  *,
  length: int,
  batch_size: int,
  mesh: jax.sharding.Mesh,
  advance: Callable[[int], object] = lambda lines: None,
) -> Predictions:
  """Predicts the slots of every line of a text, in the order of the text.

  The index of a line determines its masking, `length` (L) and the share of
  masking the number of its slots. `advance` gets the number of lines of each
  batch. Raises NonFiniteError for a probability that is not finite.
  """
  parts = []
  for batch, width in _batches(sequences, length, batch_size):
    part = predict_slots.read_slots(predict, params, mesh, batch, width)
    part["sequence"] = batch["row"][part["row"]]
    parts.append(part)
    advance(int((batch["row"] >= 0).sum()))
  slots = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
  order_M = np.lexsort([slots["position"], slots["sequence"]])
  slots = {name: x_M[order_M] for name, x_M in slots.items()}
  return predict_slots.make_predictions(slots, sequences)


def _batches(
  sequences: Sequence[np.ndarray], length: int, batch_size: int
) -> Iterator[tuple[dict[str, np.ndarray], int]]:
  """Yields batches `[B, L]` of lines of similar length, and their width."""
  order = np.argsort([len(row) for row in sequences], kind="stable")
  for first in range(0, len(order), batch_size):
    numbers = order[first : first + batch_size]
    batch: dict[str, np.ndarray] = {}
    for name in ("tokens", "types", "documents"):
      batch[name] = np.zeros((batch_size, length), np.int32)
    batch["row"] = np.full(batch_size, -1, np.int32)
    batch["row"][: len(numbers)] = numbers
    for b, number in enumerate(numbers):  # the last line is the longest
      size = len(sequences[number])
      batch["tokens"][b, :size] = sequences[number]
      batch["documents"][b, :size] = 1
    widths = (length // divisor for divisor in NARROW)
    yield batch, next((w for w in widths if w >= size), length)
