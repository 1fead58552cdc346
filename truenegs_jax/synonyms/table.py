"""Synonym tables: sorted (token, synonym) pairs and their layouts on a device.

A table stores each pair as the integer `token * V + synonym`. A device looks
pairs up with one gather, in one of two layouts:

  bits_VxW  bit `b % 32` of word `b // 32` of row `w` is set if token `b` is a
            synonym of token `w`; 116 MB for 30,522 tokens
  ids_VxS   row `w` holds the ids of the synonyms of `w`, padded with -1; S is
            the length of the longest list: 55 for WordNet, so 7 MB

  table = build_table(pairs, tokens, source="wordnet")
  save_table(table, path)
  table = load_table(path, tokens)  # needs neither NLTK nor WordNet
  aux = build_arrays(table, "auto")
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

from truenegs_jax.runtime import errors, json_text
from truenegs_jax.runtime.errors import DataError, DiskError, InputError
from truenegs_jax.runtime.files import atomic_file, disk_errors, short_sha256
from truenegs_jax.synonyms.vocabulary import (
  STOP_WORDS,
  fingerprint,
  is_word,
  may_have_synonyms,
)

FilePath = str | os.PathLike[str]

LAYOUTS = ("auto", "bits", "ids")
BITS_LIMIT = 512 << 20  # bytes of the largest bit matrix that "auto" chooses

FORMAT = 2  # of saved tables; files with another number are refused
HEADER = ("source", "options", "vocabulary", "fingerprint")
MAX_FILE_BYTES = 1 << 30  # unpacked; guards against zip bombs


@dataclasses.dataclass(frozen=True, eq=False)
class SynonymTable:
  """The synonyms of every token of one vocabulary.

  Attributes:
    keys_Q: int64, ascending, read-only: the pairs, `token * V + synonym`.
    vocab_size: V.
    source: the expression of sources that the pairs come from.
    options: options of `build_table`, as JSON types.
    vocabulary: fingerprint of the vocabulary, see `vocabulary_fingerprint`.
    fingerprint: 16 hex digits over the pairs and the vocabulary only.
  """

  keys_Q: np.ndarray
  vocab_size: int
  source: str
  options: Mapping[str, str | bool | int]
  vocabulary: str
  fingerprint: str

  @property
  def num_pairs(self) -> int:
    """Number of (token, synonym) pairs; both directions count."""
    return len(self.keys_Q)

  @property
  def num_rows(self) -> int:
    """Number of tokens with at least one synonym."""
    return int(np.count_nonzero(count_synonyms(self)))

  @property
  def width(self) -> int:
    """Length of the longest list, at least 1: S of `ids_VxS`."""
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
  """Builds the table of a vocabulary from pairs of words.

  Drops pairs of equal words and pairs with a word that is not a whole-word
  token. Keeps the direction of pairs: if only (houses, house) is given, the
  list of *houses* has *house*, but the list of *house* has no *houses*.

  Args:
    pairs: (word, synonym), in any order, possibly repeated.
    tokens: the vocabulary, token `i` at position `i`.
    source: the expression of sources of the pairs, stored in the table.
    keep_stop_words: keep the lists of stop words. The paper removes them; stop
      words stay in the lists of other words either way.
    stop_words: words in lower case.
    symmetric: add the reverse of every pair.
    include_self: add each word that has a list to its own list. Then correct
      predictions of the word leave the loss, too: the naive reading of the
      paper's Figure 3, not the default.

  Raises:
    InputError: the vocabulary is empty or contains a token twice.
  """
  size = len(tokens)
  keys_Q = np.fromiter(_pair_keys(pairs, tokens), np.int64)
  if symmetric:
    keys_Q = np.union1d(keys_Q, keys_Q % size * size + keys_Q // size)
  may_have_list_V = may_have_synonyms(
    tokens, keep_stop_words=keep_stop_words, stop_words=stop_words
  )
  keys_Q = keys_Q[may_have_list_V[keys_Q // size]]
  if include_self:
    keys_Q = np.union1d(keys_Q, keys_Q // size * (size + 1))
  options: dict[str, str | bool] = {
    "keep_stop_words": keep_stop_words,
    "stop_words": fingerprint(stop_words),
    "symmetric": symmetric,
    "include_self": include_self,
  }
  return _make_table(keys_Q, tokens, source, options)


def from_ids(
  ids_VxS: np.ndarray,
  tokens: Sequence[str],
  *,
  source: str,
  options: Mapping[str, str | bool | int],
) -> SynonymTable:
  """Builds a table from `ids_VxS`: rows in any order, -1 for no synonym."""
  ids_VxS = np.asarray(ids_VxS)
  keys_VxS = np.arange(len(tokens))[:, None] * len(tokens) + ids_VxS
  keys_Q = np.unique(keys_VxS[ids_VxS >= 0])
  return _make_table(keys_Q, tokens, source, options)


def get_synonyms(table: SynonymTable, token_id: int) -> list[int]:
  """Returns the ids of the synonyms of a token, ascending.

  Raises:
    InputError: the id is not in the vocabulary.
  """
  size = table.vocab_size
  if not 0 <= token_id < size:
    raise InputError(f"Token id {token_id} is not from 0 to {size - 1:,}.")
  keys = [token_id * size, (token_id + 1) * size]
  first, last = np.searchsorted(table.keys_Q, keys)
  return (table.keys_Q[first:last] % size).tolist()


def count_synonyms(table: SynonymTable) -> np.ndarray:
  """Returns lengths_V, int64: the number of synonyms of each token."""
  token_Q = table.keys_Q // table.vocab_size
  return np.bincount(token_Q, minlength=table.vocab_size)


def contains(
  table: SynonymTable, gold_M: np.ndarray, other_M: np.ndarray
) -> np.ndarray:
  """Returns bool_M: whether the other token is a synonym of the gold token.

  Ids outside the vocabulary, such as -1, are in no list and have no list.
  """
  keys_M = gold_M.astype(np.int64) * table.vocab_size + other_M
  exists_M = (other_M >= 0) & (other_M < table.vocab_size)
  return exists_M & np.isin(keys_M, table.keys_Q)


def build_bits(table: SynonymTable) -> np.ndarray:
  """Returns bits_VxW, uint32, W = ceil(V / 32); see the module docstring."""
  size = table.vocab_size
  token_Q, synonym_Q = np.divmod(table.keys_Q, size)
  bits_VxW = np.zeros((size, -(-size // 32)), np.uint32)
  bit_Q = np.uint32(1) << (synonym_Q % 32).astype(np.uint32)
  np.bitwise_or.at(bits_VxW, (token_Q, synonym_Q // 32), bit_Q)
  return bits_VxW


def build_ids(table: SynonymTable) -> np.ndarray:
  """Returns ids_VxS, int32: ascending lists, padded with -1; S = width."""
  token_Q, synonym_Q = np.divmod(table.keys_Q, table.vocab_size)
  ids_VxS = np.full((table.vocab_size, table.width), -1, np.int32)
  first_Q = np.searchsorted(token_Q, token_Q)
  ids_VxS[token_Q, np.arange(len(token_Q)) - first_Q] = synonym_Q
  return ids_VxS


def choose_layout(vocab_size: int, width: int, layout: str) -> str:
  """Resolves `negatives.layout` to "bits" or "ids".

  "auto" chooses bits, the faster look-up, up to BITS_LIMIT bytes, and the
  smaller layout beyond. `width` is S, the length of the longest list.

  Raises:
    InputError: the layout is unknown.
  """
  errors.one_of("negatives.layout", layout, LAYOUTS)
  if layout != "auto":
    return layout
  words = -(-vocab_size // 32)
  fits = vocab_size * words * 4 <= BITS_LIMIT
  return "bits" if fits or words <= width else "ids"


def build_arrays(table: SynonymTable, layout: str) -> dict[str, np.ndarray]:
  """Returns {"bits_VxW": ...} or {"ids_VxS": ...}; see `choose_layout`."""
  if choose_layout(table.vocab_size, table.width, layout) == "bits":
    return {"bits_VxW": build_bits(table)}
  return {"ids_VxS": build_ids(table)}


def vocabulary_fingerprint(tokens: Sequence[str]) -> str:
  """Returns 16 hex digits over the tokens and their order."""
  return short_sha256("\n".join(tokens))


def save_table(table: SynonymTable, path: FilePath) -> None:
  """Writes a table as `.npz`, atomically.

  Raises:
    DiskError: the file cannot be written, or `path` is not a regular file.
  """
  path = pathlib.Path(path).resolve()  # replaces a link's target, not the link
  if path.exists() and not path.is_file():
    raise DiskError(f"'{path}' is not a regular file. Choose another path.")
  header = {"format": FORMAT} | {name: getattr(table, name) for name in HEADER}
  header |= {"options": dict(table.options)}
  header |= {"rows": table.num_rows, "pairs": table.num_pairs}
  with disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
  with atomic_file(path, several_writers=True) as file:
    np.savez_compressed(file, header=json.dumps(header), keys=table.keys_Q)


def load_table(path: FilePath, tokens: Sequence[str]) -> SynonymTable:
  """Reads a table written by `save_table` for the vocabulary `tokens`.

  Raises:
    DataError: the file is missing, damaged, of an unknown format, or of another
      vocabulary.
  """
  header, keys_Q = read_file(path)
  vocabulary = vocabulary_fingerprint(tokens)
  if header["vocabulary"] != vocabulary:
    raise DataError(
      f"'{path}' is a synonym table of vocabulary {header['vocabulary']}, not"
      f" {vocabulary} ({len(tokens):,} tokens). Use the vocabulary that it was"
      " built for, or remove the file and build the table again."
    )
  if len(keys_Q) and not 0 <= keys_Q.min() <= keys_Q.max() < len(tokens) ** 2:
    raise _damaged(path, "it contains pairs outside its vocabulary")
  table = _make_table(keys_Q, tokens, header["source"], header["options"])
  if table.fingerprint != header["fingerprint"]:
    raise _damaged(path, "its content does not match its fingerprint")
  return table


def read_file(path: FilePath) -> tuple[dict[str, Any], np.ndarray]:
  """Reads the fields of HEADER and keys_Q of a table of any vocabulary.

  Raises:
    DataError: the file is missing, damaged or of an unknown format. Values are
      not checked.
  """
  try:
    with zipfile.ZipFile(path) as file:
      size = sum(member.file_size for member in file.infolist())
    if size > MAX_FILE_BYTES:
      raise ValueError(f"{size:,} bytes unpacked")
    with np.load(path, allow_pickle=False) as file:
      header, keys_Q = json_text.parse(str(file["header"])), file["keys"]
    if header["format"] != FORMAT:
      raise ValueError(f"format {header['format']}, not {FORMAT}")
    if keys_Q.ndim != 1 or keys_Q.dtype != np.int64:
      raise ValueError(f"keys are {keys_Q.dtype} of shape {keys_Q.shape}")
    return {name: header[name] for name in HEADER}, keys_Q
  except FileNotFoundError as error:
    raise DataError(f"There is no synonym table '{path}'.") from error
  except Exception as error:  # numpy, zipfile and zlib raise unrelated types
    raise _damaged(path, f"{type(error).__name__}: {error}") from error


def _damaged(path: FilePath, reason: str) -> DataError:
  return DataError(
    f"'{path}' is not a complete synonym table ({reason}). Remove the file and"
    " build the table again."
  )


def _pair_keys(
  pairs: Iterable[tuple[str, str]], tokens: Sequence[str]
) -> Iterator[int]:
  if not tokens:
    raise InputError("The vocabulary is empty. Pass one with tokens.")
  if len(set(tokens)) != len(tokens):
    [(twice, _)] = collections.Counter(tokens).most_common(1)
    raise InputError(
      f"The vocabulary contains {twice!r} twice. Remove one of the two."
    )
  ids = {token: i for i, token in enumerate(tokens) if is_word(token)}
  for word, synonym in pairs:
    if word != synonym and word in ids and synonym in ids:
      yield ids[word] * len(tokens) + ids[synonym]


def _make_table(
  keys_Q: np.ndarray,
  tokens: Sequence[str],
  source: str,
  options: Mapping[str, str | bool | int],
) -> SynonymTable:
  keys_Q, vocabulary = np.unique(keys_Q), vocabulary_fingerprint(tokens)
  keys_Q.flags.writeable = False
  digest = short_sha256(vocabulary, keys_Q.astype("<i8").tobytes())
  frozen = types.MappingProxyType(dict(options))
  return SynonymTable(keys_Q, len(tokens), source, frozen, vocabulary, digest)
