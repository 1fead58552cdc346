"""Which tokens are synonyms of which: a sorted list of pairs, and its layouts.

A table keeps its pairs as whole numbers, `token * V + synonym`. A device looks
them up in one of two arrays, by a gather each:

  bits_VxW  token `b` is a synonym of `w` if bit `b % 32` of word `b // 32` of
            row `w` is set; 116 MB for 30,522 tokens, whatever they list
  ids_VxS   row `w` holds the ids of the synonyms of `w`, then -1; S is the
            length of the longest list: 55 for WordNet's, so 7 MB

  table = build_table(pairs, tokens, source="wordnet")
  save_table(table, path)
  table = load_table(path, tokens)  # needs neither NLTK nor WordNet
  aux = arrays(table, "auto")
"""

import collections
import dataclasses
import json
import os
import pathlib
import types
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.runtime.errors import DataError, DiskError, InputError
from truenegs_jax.runtime.files import atomic_file, disk_errors, short_sha256
from truenegs_jax.synonyms.stop_words import (
  STOP_WORDS,
  fingerprint,
  is_word,
  may_have_synonyms,
)

LAYOUTS = ("auto", "bits", "ids")
BITS_LIMIT = 512 << 20  # bytes of a bit matrix that "auto" puts up with

FORMAT = 2  # of a saved table; a reader refuses what it does not know
HEADER = ("source", "options", "vocabulary", "fingerprint")
MAX_FILE_BYTES = 1 << 30  # unpacked; a file that claims more is not ours


@dataclasses.dataclass(frozen=True, eq=False)
class SynonymTable:
  """The synonyms of every token of one vocabulary.

  Attributes:
    keys_Q: int64, ascending, read-only: the pairs, `token * V + synonym`.
    vocab_size: V.
    source: where the pairs are from.
    options: what the table was built with, in JSON's types.
    vocabulary: fingerprint of the vocabulary, see `vocabulary_fingerprint`.
    fingerprint: 16 hex digits over the pairs and the vocabulary alone.
  """

  keys_Q: np.ndarray
  vocab_size: int
  source: str
  options: Mapping[str, Any]
  vocabulary: str
  fingerprint: str

  @property
  def num_pairs(self) -> int:
    """(token, synonym) pairs, direction counted."""
    return len(self.keys_Q)

  @property
  def num_rows(self) -> int:
    """Tokens with at least one synonym."""
    return int(np.count_nonzero(count_synonyms(self)))

  @property
  def width(self) -> int:
    """Length of the longest list, at least 1: the S of `ids_VxS`."""
    return max(1, int(count_synonyms(self).max()))


def build_table(
  pairs: Iterable[tuple[str, str]],
  tokens: Sequence[str],
  *,
  source: str,
  keep_stop_words: bool = False,
  stop_words: Collection[str] = STOP_WORDS,
  symmetric: bool = False,
  include_self: bool = False,
) -> SynonymTable:
  """Makes the table of a vocabulary from pairs of words.

  A pair is left out where one of its words is not a whole-word token of the
  vocabulary, or where both are the same. The relation is kept as directed as
  the pairs are: *houses* lists *house*, whose own list lacks *houses*.

  Args:
    pairs: (word, synonym); the order and repetitions do not matter.
    tokens: the vocabulary, token `i` at position `i`.
    source: where the pairs are from, for the record.
    keep_stop_words: give stop words lists, too. The paper removes theirs; they
      stay in the lists of others.
    stop_words: words in lower case.
    symmetric: each synonym lists the words that list it.
    include_self: put each word that has a list into it. Then the loss of a
      correct prediction of such a word is dropped: the naive reading of the
      paper's Figure 3, not the default.

  Raises:
    InputError: the vocabulary is empty or names a token twice.
  """
  size = len(tokens)
  keys_Q = np.fromiter(_keys(pairs, _word_ids(tokens), size), np.int64)
  if symmetric:
    keys_Q = np.union1d(keys_Q, keys_Q % size * size + keys_Q // size)
  golds_V = may_have_synonyms(
    tokens, keep_stop_words=keep_stop_words, stop_words=stop_words
  )
  keys_Q = keys_Q[golds_V[keys_Q // size]]
  if include_self:
    keys_Q = np.union1d(keys_Q, keys_Q // size * (size + 1))
  options = {
    "keep_stop_words": keep_stop_words,
    "stop_words": fingerprint(stop_words),
    "symmetric": symmetric,
    "include_self": include_self,
  }
  return _table(keys_Q, tokens, source, options)


def from_ids(
  ids_VxS: np.ndarray,
  tokens: Sequence[str],
  *,
  source: str,
  options: Mapping[str, Any],
) -> SynonymTable:
  """Makes the table of `ids_VxS`, in any order of a row; -1 is nothing."""
  ids_VxS = np.asarray(ids_VxS)
  keys_VxS = np.arange(len(tokens))[:, None] * len(tokens) + ids_VxS
  keys_Q = np.unique(keys_VxS[ids_VxS >= 0])
  return _table(keys_Q, tokens, source, options)


def get_synonyms(table: SynonymTable, token_id: int) -> list[int]:
  """Returns the ids of the synonyms of a token, ascending.

  Raises:
    InputError: the vocabulary has no such id.
  """
  size = table.vocab_size
  if not 0 <= token_id < size:
    raise InputError(
      f"Token id {token_id} is not in the table; ids are 0 to {size - 1}."
    )
  first, last = np.searchsorted(
    table.keys_Q, [token_id * size, (token_id + 1) * size]
  )
  return (table.keys_Q[first:last] % size).tolist()


def count_synonyms(table: SynonymTable) -> np.ndarray:
  """lengths_V, int64: how many synonyms each token has."""
  gold_Q = table.keys_Q // table.vocab_size
  return np.bincount(gold_Q, minlength=table.vocab_size)


def contains(
  table: SynonymTable, gold_M: np.ndarray, other_M: np.ndarray
) -> np.ndarray:
  """bool_M: whether the list of each gold token names the other one.

  An id that the vocabulary lacks, such as -1, is in no list and has none.
  """
  size = table.vocab_size
  keys_M = np.asarray(gold_M, np.int64) * size + other_M
  exists_M = (np.asarray(other_M) >= 0) & (np.asarray(other_M) < size)
  return exists_M & np.isin(keys_M, table.keys_Q)


def build_bits(table: SynonymTable) -> np.ndarray:
  """bits_VxW, uint32, W = ceil(V / 32); see the module docstring."""
  size = table.vocab_size
  gold_Q, other_Q = table.keys_Q // size, table.keys_Q % size
  bits_VxW = np.zeros((size, -(-size // 32)), np.uint32)
  flags_Q = np.uint32(1) << (other_Q % 32).astype(np.uint32)
  np.bitwise_or.at(bits_VxW, (gold_Q, other_Q // 32), flags_Q)
  return bits_VxW


def build_ids(table: SynonymTable) -> np.ndarray:
  """ids_VxS, int32: each list ascending, then -1; S = `table.width`."""
  gold_Q, other_Q = np.divmod(table.keys_Q, table.vocab_size)
  ids_VxS = np.full((table.vocab_size, table.width), -1, np.int32)
  first_Q = np.searchsorted(gold_Q, gold_Q)
  ids_VxS[gold_Q, np.arange(len(gold_Q)) - first_Q] = other_Q
  return ids_VxS


def choose_layout(vocab_size: int, width: int, layout: str) -> str:
  """The layout, "bits" or "ids", that `layout` stands for.

  "auto" is bits, whose look-up is the shorter, as far as BITS_LIMIT, and beyond
  what is smaller. `width` is S, the length of the longest list.

  Raises:
    InputError: no such layout.
  """
  if layout not in LAYOUTS:
    known = ", ".join(LAYOUTS)
    raise InputError(f"negatives.layout {layout!r} is unknown; known: {known}.")
  if layout != "auto":
    return layout
  words = -(-vocab_size // 32)
  fits = vocab_size * words * 4 <= BITS_LIMIT
  return "bits" if fits or words <= width else "ids"


def build_arrays(table: SynonymTable, layout: str) -> dict[str, np.ndarray]:
  """{"bits_VxW": ...} or {"ids_VxS": ...}, as `choose_layout` says."""
  if choose_layout(table.vocab_size, table.width, layout) == "bits":
    return {"bits_VxW": build_bits(table)}
  return {"ids_VxS": build_ids(table)}


def vocabulary_fingerprint(tokens: Sequence[str]) -> str:
  """16 hex digits over words and their order."""
  return short_sha256("\n".join(tokens))


def save_table(table: SynonymTable, path: str | os.PathLike[str]) -> None:
  """Writes a table as `.npz`; it appears under its name only when complete.

  Raises:
    DiskError: the file could not be written, or `path` is no file.
  """
  path = pathlib.Path(path).resolve()  # a link's file, not the link
  if path.exists() and not path.is_file():
    raise DiskError(f"{path} is no file that could be replaced; name another.")
  header = {"format": FORMAT} | {name: getattr(table, name) for name in HEADER}
  header |= {"options": dict(table.options), "rows": table.num_rows}
  text = np.array(json.dumps(header | {"pairs": table.num_pairs}))
  with disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
  with atomic_file(path, several_writers=True) as file:
    np.savez_compressed(file, header=text, keys=table.keys_Q)


def load_table(
  path: str | os.PathLike[str], tokens: Sequence[str]
) -> SynonymTable:
  """Reads a table that `save_table` wrote, for the vocabulary it was built for.

  Raises:
    DataError: the file is missing, damaged, of an unknown format, or of another
      vocabulary.
  """
  header, keys_Q = _read(path)
  vocabulary = vocabulary_fingerprint(tokens)
  if header["vocabulary"] != vocabulary:
    raise DataError(
      f"{path} is a synonym table for vocabulary {header['vocabulary']}; this "
      f"run has vocabulary {vocabulary} ({len(tokens)} tokens). Use the "
      "vocabulary it was built for, or remove it to have it built anew."
    )
  if len(keys_Q) and not 0 <= keys_Q.min() <= keys_Q.max() < len(tokens) ** 2:
    raise _damaged(path, "it has pairs outside its vocabulary")
  table = _table(keys_Q, tokens, header["source"], header["options"])
  if table.fingerprint != header["fingerprint"]:
    raise _damaged(path, "its content does not match its fingerprint")
  return table


def check_file(path: str | os.PathLike[str]) -> None:
  """Refuses a file that is no saved table, of whatever vocabulary.

  Raises:
    DataError: the file is missing, damaged or of an unknown format.
  """
  _read(path)


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], np.ndarray]:
  """The fields of HEADER, and keys_Q, int64, of any values."""
  try:
    with zipfile.ZipFile(path) as file:
      size = sum(member.file_size for member in file.infolist())
    if size > MAX_FILE_BYTES:
      raise ValueError(f"it claims {size} bytes")
    with np.load(path, allow_pickle=False) as file:
      header, keys_Q = json.loads(str(file["header"])), file["keys"]
    if header["format"] != FORMAT:
      raise ValueError(f"format {header['format']}, not {FORMAT}")
    if keys_Q.ndim != 1 or keys_Q.dtype != np.int64:
      raise ValueError(f"keys are {keys_Q.dtype} of shape {keys_Q.shape}")
    return {name: header[name] for name in HEADER}, keys_Q
  except FileNotFoundError as error:
    raise DataError(f"There is no synonym table {path}.") from error
  except Exception as error:  # zipfile and zlib have exceptions of their own
    raise _damaged(path, f"{type(error).__name__}: {error}") from error


def _damaged(path: str | os.PathLike[str], reason: str) -> DataError:
  return DataError(
    f"{path} is not a whole synonym table ({reason}). Remove it to have it"
    " built anew."
  )


def _word_ids(tokens: Sequence[str]) -> dict[str, int]:
  if not tokens:
    raise InputError("The vocabulary is empty; a synonym table needs tokens.")
  if len(set(tokens)) != len(tokens):
    [(twice, _)] = collections.Counter(tokens).most_common(1)
    raise InputError(
      f"The vocabulary names {twice!r} twice; every token must have one id."
    )
  return {token: i for i, token in enumerate(tokens) if is_word(token)}


def _keys(
  pairs: Iterable[tuple[str, str]], places: Mapping[str, int], size: int
) -> Iterator[int]:
  for word, synonym in pairs:
    if word != synonym and word in places and synonym in places:
      yield places[word] * size + places[synonym]


def _table(
  keys_Q: np.ndarray,
  tokens: Sequence[str],
  source: str,
  options: Mapping[str, Any],
) -> SynonymTable:
  keys_Q, vocabulary = np.unique(keys_Q), vocabulary_fingerprint(tokens)
  keys_Q.flags.writeable = False
  return SynonymTable(
    keys_Q=keys_Q,
    vocab_size=len(tokens),
    source=source,
    options=types.MappingProxyType(dict(options)),
    vocabulary=vocabulary,
    fingerprint=short_sha256(vocabulary, keys_Q.astype("<i8").tobytes()),
  )
