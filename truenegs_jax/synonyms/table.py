"""Which tokens are synonyms of which: one bit for each pair of tokens.

Row `w` of `bits_VxW` lists the synonyms of token `w`: token `b` is one if bit
`b % 32` of word `b // 32` is set. A look-up on a device is then one gather. For
30,522 tokens the matrix takes 116 MB; a file keeps the pairs alone.

  table = build_table(synonym_source("wordnet")(tokens), tokens,
                      source="wordnet")
  save_table(table, path)
  table = load_table(path, tokens)  # Needs neither NLTK nor WordNet.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import tempfile
import types
import zipfile
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from truenegs_jax.errors import DataError, DiskError, InputError
from truenegs_jax.synonyms.sources import is_word
from truenegs_jax.synonyms.stop_words import STOP_WORDS

FORMAT = 1  # Of the file; a reader refuses what it does not know.
MAX_FILE_BYTES = 1 << 30  # Unpacked. A file that claims more is not ours.


@dataclasses.dataclass(frozen=True, eq=False)
class SynonymTable:
  """The synonyms of every token of one vocabulary.

  Attributes:
    bits_VxW: uint32, read-only, W = ceil(V / 32); see the module docstring.
    source: name of the source of the pairs.
    options: the options that the table was built with.
    num_rows: tokens with at least one synonym.
    num_pairs: (token, synonym) pairs, direction counted.
    vocabulary: fingerprint of the vocabulary, see `vocabulary_fingerprint`.
    fingerprint: 16 hex digits over all of the above.
  """

  bits_VxW: np.ndarray
  source: str
  options: Mapping[str, bool]
  num_rows: int
  num_pairs: int
  vocabulary: str
  fingerprint: str


def build_table(
  pairs: Iterable[tuple[str, str]],
  tokens: Sequence[str],
  *,
  source: str,
  keep_stop_words: bool = False,
  include_self: bool = False,
) -> SynonymTable:
  """Packs pairs of words into the bit matrix of a vocabulary.

  A pair is left out where one of its words is not a whole-word token of the
  vocabulary, or where both are the same. The relation is kept as directed as
  the pairs are: *houses* lists *house*, whose own list lacks *houses*.

  Args:
    pairs: (word, synonym); the order and repetitions do not matter.
    tokens: the vocabulary, token `i` at position `i`.
    source: where the pairs are from, for the record.
    keep_stop_words: give stop words lists, too. The paper removes theirs.
    include_self: put each word that has a list into it. Then the loss of a
      correct prediction of such a word is dropped: the naive reading of the
      paper's Figure 3, not the default.

  Returns:
    The table. Its memory is V * V / 8 bytes.

  Raises:
    InputError: the vocabulary is empty or names a token twice.
  """
  ids = _word_ids(tokens)
  keys: set[int] = set()
  for word, synonym in pairs:
    gold, other = ids.get(word), ids.get(synonym)
    if gold is None or other is None or gold == other:
      continue
    if word.lower() in STOP_WORDS and not keep_stop_words:
      continue
    keys.add(gold * len(tokens) + other)
    if include_self:
      keys.add(gold * len(tokens) + gold)
  options = {"keep_stop_words": keep_stop_words, "include_self": include_self}
  keys_Q = np.fromiter(sorted(keys), np.int64, len(keys))
  return _table(
    keys_Q, len(tokens), source, options, vocabulary_fingerprint(tokens)
  )


def synonyms_of(table: SynonymTable, token_id: int) -> list[int]:
  """Returns the ids of the synonyms of a token, ascending.

  Raises:
    InputError: the vocabulary has no such id.
  """
  vocab_size = len(table.bits_VxW)
  if not 0 <= token_id < vocab_size:
    raise InputError(
      f"Token id {token_id} is not in the table; ids are 0 to {vocab_size - 1}."
    )
  row_W = table.bits_VxW[token_id].astype("<u4")
  row_V = np.unpackbits(row_W.view(np.uint8), bitorder="little")
  return np.flatnonzero(row_V).tolist()


def vocabulary_fingerprint(tokens: Sequence[str]) -> str:
  """16 hex digits over the tokens and their order."""
  return _digest("\n".join(tokens).encode())


def save_table(table: SynonymTable, path: str | os.PathLike[str]) -> None:
  """Writes a table as `.npz`: its pairs and what it is, without the bits.

  The file appears under its name only when it is whole.

  Raises:
    DiskError: the file could not be written.
  """
  path = pathlib.Path(path)
  header = {
    "format": FORMAT,
    "source": table.source,
    "options": dict(table.options),
    "vocabulary": table.vocabulary,
    "fingerprint": table.fingerprint,
  }
  temporary = ""
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
      dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
      temporary = file.name
      np.savez_compressed(
        file, header=np.array(json.dumps(header)), keys=_keys(table.bits_VxW)
      )
      file.flush()
      os.fsync(file.fileno())
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
  except OSError as error:
    if temporary:
      pathlib.Path(temporary).unlink(missing_ok=True)
    raise DiskError(
      f"The synonym table could not be written to {path}: {error}. Free some "
      "space or name another folder."
    ) from error


def load_table(
  path: str | os.PathLike[str], tokens: Sequence[str]
) -> SynonymTable:
  """Reads what `save_table` wrote, for the vocabulary it was built for.

  Args:
    path: the `.npz` file.
    tokens: the vocabulary in use.

  Returns:
    A table equal to the saved one, bit for bit.

  Raises:
    DataError: the file is missing, damaged, of an unknown format, or of another
      vocabulary.
  """
  header, keys_Q = _read(pathlib.Path(path))
  vocabulary = vocabulary_fingerprint(tokens)
  if header["vocabulary"] != vocabulary:
    raise DataError(
      f"{path} is a synonym table for vocabulary {header['vocabulary']}; this "
      f"run has vocabulary {vocabulary} ({len(tokens)} tokens). Use the "
      "vocabulary it was built for, or remove it to have it built anew."
    )
  if len(keys_Q) and not 0 <= keys_Q.min() <= keys_Q.max() < len(tokens) ** 2:
    raise _damaged(path, "it has pairs outside its vocabulary")
  table = _table(
    keys_Q, len(tokens), header["source"], header["options"], vocabulary
  )
  if table.fingerprint != header["fingerprint"]:
    raise _damaged(path, "its content does not match its fingerprint")
  return table


def _word_ids(tokens: Sequence[str]) -> dict[str, int]:
  if not tokens:
    raise InputError("The vocabulary is empty; a synonym table needs tokens.")
  if len(set(tokens)) != len(tokens):
    [(twice, _)] = collections.Counter(tokens).most_common(1)
    raise InputError(
      f"The vocabulary names {twice!r} twice; every token must have one id."
    )
  return {token: i for i, token in enumerate(tokens) if is_word(token)}


def _table(
  keys_Q: np.ndarray,
  vocab_size: int,
  source: str,
  options: Mapping[str, bool],
  vocabulary: str,
) -> SynonymTable:
  """Builds the table of sorted int64 keys, `token * V + synonym`."""
  gold_Q, other_Q = np.divmod(keys_Q, vocab_size)
  bits_VxW = np.zeros((vocab_size, -(-vocab_size // 32)), np.uint32)
  flags_Q = np.uint32(1) << (other_Q % 32).astype(np.uint32)
  np.bitwise_or.at(bits_VxW, (gold_Q, other_Q // 32), flags_Q)
  bits_VxW.flags.writeable = False
  about = json.dumps([FORMAT, source, dict(options), vocabulary, vocab_size])
  return SynonymTable(
    bits_VxW=bits_VxW,
    source=source,
    options=types.MappingProxyType(dict(options)),
    num_rows=len(np.unique(gold_Q)),
    num_pairs=len(keys_Q),
    vocabulary=vocabulary,
    fingerprint=_digest(about.encode() + keys_Q.astype("<i8").tobytes()),
  )


def _keys(bits_VxW: np.ndarray) -> np.ndarray:
  """The sorted int64 keys of the set bits."""
  gold_Q, word_Q = np.nonzero(bits_VxW)
  bits_Qx32 = (bits_VxW[gold_Q, word_Q][:, None] >> np.arange(32)) & 1
  pair_Q, bit_Q = np.nonzero(bits_Qx32)
  return gold_Q[pair_Q] * len(bits_VxW) + word_Q[pair_Q] * 32 + bit_Q


def _read(path: pathlib.Path) -> tuple[dict, np.ndarray]:
  try:
    with zipfile.ZipFile(path) as archive:
      size = sum(member.file_size for member in archive.infolist())
    if size > MAX_FILE_BYTES:
      raise ValueError(f"it claims {size} bytes")
    with np.load(path, allow_pickle=False) as file:
      header, keys_Q = json.loads(str(file["header"])), file["keys"]
    if header["format"] != FORMAT:
      raise ValueError(f"format {header['format']}, not {FORMAT}")
    if keys_Q.ndim != 1 or keys_Q.dtype != np.int64:
      raise ValueError(f"keys are {keys_Q.dtype} of shape {keys_Q.shape}")
    fields = ("source", "options", "vocabulary", "fingerprint")
    return {field: header[field] for field in fields}, keys_Q
  except FileNotFoundError as error:
    raise DataError(f"There is no synonym table {path}.") from error
  except Exception as error:  # zipfile and zlib have exceptions of their own.
    raise _damaged(path, f"{type(error).__name__}: {error}") from error


def _damaged(path: str | os.PathLike[str], why: str) -> DataError:
  return DataError(
    f"{path} is not a whole synonym table ({why}). Remove it to have it built "
    "anew."
  )


def _digest(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()[:16]
