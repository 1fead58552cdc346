"""Generated documents as a corpus; nothing is read from disk."""

import bz2
import gzip
import lzma
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow

from truenegs_jax.data.corpus.corpus import Document, Meter

# Makes a file of each suffix of its content.
PACK = {
  "": lambda data: data,
  ".bz2": bz2.compress,
  ".gz": gzip.compress,
  ".xz": lzma.compress,
  ".zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Texts:
  """A corpus of one part: the given documents, again at every pass."""

  def __init__(self, texts: Iterable[str]) -> None:
    self._texts = texts

  def read(self, meter: Meter) -> Iterator[Document]:
    meter.part_documents, meter.part_bytes = [0], [0]
    meter.part_passes = [1]
    for number, text in enumerate(self._texts):
      meter.part_documents[0] += 1
      meter.part_bytes[0] += len(text.encode("utf-8", "replace"))
      yield Document(text, 0, number, 0)

  def state(self) -> list[dict]:
    return []

  def names(self) -> str:
    return "generated"

  def is_local(self) -> bool:
    return True


def make_texts(count: int, seed: int = 0) -> list[str]:
  """Documents of 1 to 11 lines of 1 to 29 one-letter words."""
  rng = np.random.default_rng(seed)
  letters = np.array(list(LETTERS))
  return [
    "\n".join(
      " ".join(rng.choice(letters, size))
      for size in rng.integers(1, 30, rng.integers(1, 12))
    )
    for _ in range(count)
  ]
