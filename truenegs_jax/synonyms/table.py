"""Synonym tables: sorted (token, synonym) pairs and their layouts on a device.

A table stores each pair as the integer `token * V + synonym`. A device looks
pairs up with one gather, in one of two layouts:

  bits_VxW  bit `b % 32` of word `b // 32` of row `w` is set if token `b` is a
            synonym of token `w`; 116 MB for 30,522 tokens
  ids_VxS   row `w` holds the ids of the synonyms of `w`, padded with -1; S is
            the length of the longest list: 55 for WordNet, so 7 MB
  rates_VxS beside them, what balanced smoothing needs of each pair
"""

import dataclasses
import importlib
import itertools
import json
import os
import pathlib
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from truenegs_jax.data.tokenizer import check_tokens
from truenegs_jax.data.words import read_words
from truenegs_jax.runtime import errors, files
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.paths import is_bucket, open_path
from truenegs_jax.synonyms import vocabulary as vocabulary_lib
from truenegs_jax.synonyms.vocabulary import may_have_synonyms

FilePath = str | os.PathLike[str]

LAYOUTS = ("auto", "bits", "ids")
BITS_LIMIT = 512 << 20  # bytes of the largest bit matrix that "auto" chooses

FORMAT = 4  # of saved tables; files with another number are refused
VERSION: str = importlib.import_module("truenegs_jax").__version__
SUFFIX = ".safetensors"
FIELDS = ("source", "fingerprint", "vocabulary", "tokens")  # of a saved table
FIX = "Build the table with the tokenizer of the model."
MAX_FILE_BYTES = 2**28  # WordNet's for BERT's vocabulary has 0.8 MB
LICENCE = (
  "That of the sources. WordNet is copyright Princeton University:"
  " https://wordnet.princeton.edu/license-and-commercial-use"
)


@dataclasses.dataclass(frozen=True, eq=False)
class SynonymTable:
  """The synonyms of every token of one vocabulary.

  >>> pairs = [("main", "primary"), ("primary", "main"), ("main", "chief")]
  >>> table = SynonymTable.from_pairs(pairs, ["chief", "main", "primary"])
  >>> table
  SynonymTable(3 tokens, 3 pairs, source='pairs')
  >>> table.synonyms("main")
  ['chief', 'primary']
  >>> table.contains(np.array([2, 0]), np.array([1, 1]))  # ids: gold, predicted
  array([ True, False])
  >>> table.arrays()["bits_VxW"]  # of a device: see `false_negatives`
  array([[0],
         [5],
         [2]], dtype=uint32)

  `build_table` builds one from WordNet and other sources.
  """

  keys_Q: np.ndarray  # int64, ascending, read-only: `token * V + synonym`
  tokens: tuple[str, ...]  # the vocabulary, V tokens
  source: str  # the list of sources that the pairs come from
  options: Mapping[str, str | bool | int]  # that it was built with
  vocabulary: str  # 16 hex digits over the tokens and their order
  fingerprint: str  # 16 hex digits over the pairs and the vocabulary only

  def __repr__(self) -> str:
    size = f"{self.vocab_size:,} tokens, {self.num_pairs:,} pairs"
    return f"SynonymTable({size}, source={self.source!r})"

  @property
  def vocab_size(self) -> int:
    """Number of tokens, V."""
    return len(self.tokens)

  @property
  def num_pairs(self) -> int:
    """Number of (token, synonym) pairs; both directions count."""
    return len(self.keys_Q)

  @property
  def num_rows(self) -> int:
    """Number of tokens with at least one synonym."""
    return int(np.count_nonzero(self.lengths_V))

  @property
  def coverage(self) -> str:
    """The share of tokens with a list."""
    return f"{self.num_rows / self.vocab_size:.2%} of the vocabulary"

  @property
  def width(self) -> int:
    """Length of the longest list, at least 1: S of `ids_VxS`."""
    return max(1, int(self.lengths_V.max()))

  @property
  def lengths_V(self) -> np.ndarray:
    """The number of synonyms of each token, int64."""
    token_Q = self.keys_Q // self.vocab_size
    return np.bincount(token_Q, minlength=self.vocab_size)

  @classmethod
  def from_pairs(
    cls,
    pairs: Iterable[tuple[str, str]],
    tokens: Sequence[str],
    *,
    source: str = "pairs",
    stop_words: Collection[str] = vocabulary_lib.STOP_WORDS,
    symmetric: bool = False,
  ) -> "SynonymTable":
    """Builds the table of a vocabulary from pairs of words.

    Drops pairs of equal words and pairs with a word that is not a whole-word
    token. Where the tokens mark spaces, a pair joins all ids of its words that
    have the same boundary and casing: (main, chief) joins `ĠMain` and `ĠChief`.

    Args:
      pairs: (word, synonym), in any order, possibly repeated.
      tokens: the vocabulary, token `i` at position `i`.
      source: the list of sources of the pairs, stored in the table.
      stop_words: words in lower case, which get no lists, as in the paper. They
        stay in the lists of other words.
      symmetric: add the reverse of every pair.

    Raises:
      InputError: the vocabulary is empty, or has a token twice.
    """
    size = len(tokens)
    if not size or len(set(tokens)) != size:
      raise InputError(
        f"The vocabulary of {size:,} tokens is empty or has a token twice."
        " Pass each once."
      )
    keys_Q = np.fromiter(_pair_keys(pairs, tokens), np.int64)
    if symmetric:
      keys_Q = np.union1d(keys_Q, keys_Q % size * size + keys_Q // size)
    keys_Q = keys_Q[may_have_synonyms(tokens, stop_words)[keys_Q // size]]
    options: dict[str, str | bool | int] = {
      "stop_words": vocabulary_lib.fingerprint(stop_words),
      "symmetric": symmetric,
    }
    return _make_table(keys_Q, tokens, source, options)

  @classmethod
  def from_ids(
    cls,
    ids_VxS: np.ndarray,
    tokens: Sequence[str],
    *,
    source: str,
    options: Mapping[str, str | bool | int],
  ) -> "SynonymTable":
    """Builds a table from `ids_VxS`: rows in any order, -1 for no synonym."""
    keys_VxS = np.arange(len(tokens))[:, None] * len(tokens) + ids_VxS
    return _make_table(keys_VxS[ids_VxS >= 0], tokens, source, options)

  @classmethod
  def load(cls, path: FilePath, tokenizer: Any = None) -> "SynonymTable":
    """Reads a saved table; DataError for a missing or damaged one.

    Refuses a table of other tokens than `tokenizer`, the model's or its tokens;
    without it, only sizes can be compared later.
    """
    opened = open_path("path", path)
    try:
      table = _read_table(opened)
    except Exception as error:  # of safetensors, json and checks
      raise DataError(
        f"'{path}' cannot be read as a synonym table ({type(error).__name__}:"
        f" {error}). Build the table again, or name another file."
      ) from error
    check_tokens(f"The synonym table '{path}'", table.tokens, tokenizer, FIX)
    return table

  def synonyms(self, word: str) -> list[str]:
    """Returns the synonyms of a word, in the order of the vocabulary.

    Where the tokens mark spaces, *main* stands for `Ġmain`, `ĠMain` and `main`.
    A token that is no word, such as `Ġmain`, has the tokens of its own list.
    """
    words = read_words(self.tokens)
    if ids := words.ids.get(words.fold(word)):
      synonym_ids = sorted({j for i in ids for j in self.synonym_ids(i)})
      return list(dict.fromkeys(words.words[j] for j in synonym_ids))
    if word not in self.tokens:
      raise InputError(
        f"The vocabulary of {self.vocab_size:,} tokens has no {word!r}. Pass"
        " one whole word, or a token, written as in the vocabulary."
      )
    return [self.tokens[j] for j in self.synonym_ids(self.tokens.index(word))]

  def synonym_ids(self, token_id: int) -> list[int]:
    """Returns the ids of the synonyms of a token, ascending."""
    size = self.vocab_size
    keys = [token_id * size, (token_id + 1) * size]
    first, last = np.searchsorted(self.keys_Q, keys)
    return (self.keys_Q[first:last] % size).tolist()

  def contains(self, gold_M: np.ndarray, other_M: np.ndarray) -> np.ndarray:
    """Returns bool_M: whether the other token is a synonym of the gold token.

    Ids outside the vocabulary, such as -1, are in no list and have no list.
    """
    gold_M = np.asarray(gold_M)
    other_M = np.asarray(other_M)
    keys_M = gold_M.astype(np.int64) * self.vocab_size + other_M
    exists_M = (other_M >= 0) & (other_M < self.vocab_size)
    return exists_M & np.isin(keys_M, self.keys_Q)

  def build_bits(self) -> np.ndarray:
    """Returns bits_VxW, uint32, W = ceil(V / 32); see the module docstring."""
    size = self.vocab_size
    token_Q, synonym_Q = np.divmod(self.keys_Q, size)
    bits_VxW = np.zeros((size, -(-size // 32)), np.uint32)
    bit_Q = np.uint32(1) << (synonym_Q % 32).astype(np.uint32)
    np.bitwise_or.at(bits_VxW, (token_Q, synonym_Q // 32), bit_Q)
    return bits_VxW

  def build_ids(self) -> np.ndarray:
    """Returns ids_VxS, int32: ascending lists, padded with -1; S = width."""
    return self._lists(self.keys_Q % self.vocab_size, np.int32(-1))

  def build_rates(self) -> np.ndarray:
    """Returns rates_VxS, f32: 1 / the longer list of both tokens of a pair.

    Pairs stand where `build_ids` has them. Only mutual pairs count; others and
    padding have 0.
    """
    token_Q, synonym_Q = np.divmod(self.keys_Q, self.vocab_size)
    mutual_Q = self.contains(synonym_Q, token_Q) & (token_Q != synonym_Q)
    num_V = np.bincount(token_Q[mutual_Q], minlength=self.vocab_size)
    longer_Q = np.maximum(num_V[token_Q], num_V[synonym_Q])
    return self._lists(mutual_Q / np.maximum(longer_Q, 1), np.float32(0))

  def _lists(self, value_Q: np.ndarray, padding: np.generic) -> np.ndarray:
    """Returns the values of the pairs as a list for each token, `[V, S]`."""
    token_Q = self.keys_Q // self.vocab_size
    lists_VxS = np.full((self.vocab_size, self.width), padding)
    first_Q = np.searchsorted(token_Q, token_Q)
    lists_VxS[token_Q, np.arange(len(token_Q)) - first_Q] = value_Q
    return lists_VxS

  def arrays(
    self, layout: str = "auto", *, rates: bool = False, tokenizer: Any = None
  ) -> dict[str, np.ndarray]:
    """Returns the table for a device, by name.

    Args:
      layout: of `choose_layout`: "bits" for `bits_VxW`, "ids" for `ids_VxS`.
      rates: add `rates_VxS`, for balanced smoothing; the layout is then "ids".
      tokenizer: the model's; a table of other tokens is refused. The arrays
        have no tokens, so what uses them can compare only sizes.
    """
    check_tokens("The synonym table", self.tokens, tokenizer, FIX)
    if rates:
      return {"ids_VxS": self.build_ids(), "rates_VxS": self.build_rates()}
    if choose_layout(self.vocab_size, self.width, layout) == "bits":
      return {"bits_VxW": self.build_bits()}
    return {"ids_VxS": self.build_ids()}

  def save(self, path: FilePath) -> None:
    """Writes the table atomically; the name of the file ends in SUFFIX."""
    # Replaces a link's target, not the link.
    path = open_output("path", path).resolve()
    header = {"format": FORMAT, "version": VERSION, "licence": LICENCE}
    header |= {"rows": self.num_rows, "pairs": self.num_pairs}
    header |= {name: getattr(self, name) for name in FIELDS}
    text = json.dumps(header | {"options": dict(self.options)})
    arrays = {"header": np.frombuffer(text.encode(), np.uint8)}
    data = safetensors.numpy.save(arrays | {"keys": self.keys_Q})
    with files.disk_errors(path):
      path.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_file(path, several_writers=True) as file:
      file.write(data)


def open_output(name: str, path: FilePath) -> pathlib.Path:
  """Returns the path of a table to write; InputError for another format."""
  opened = open_path(name, path)
  errors.one_of(f"{name}='{path}': suffix", opened.suffix, [SUFFIX])
  return opened


def choose_layout(vocab_size: int, width: int, layout: str) -> str:
  """Resolves a layout to "bits" or "ids".

  "auto" chooses bits, the faster look-up, up to BITS_LIMIT bytes, and the
  smaller layout beyond. `width` is S, the length of the longest list.
  """
  errors.one_of("layout", layout, LAYOUTS)
  if layout != "auto":
    return layout
  words = -(-vocab_size // 32)
  fits = vocab_size * words * 4 <= BITS_LIMIT
  return "bits" if fits or words <= width else "ids"


def _read_table(path: pathlib.Path) -> SynonymTable:
  """Reads a file, which may be damaged or made to do harm, and checks it."""
  if not is_bucket(path):
    size = path.stat().st_size
    if size > MAX_FILE_BYTES or not path.is_file():
      raise ValueError(f"it has {size:,} bytes, or is no file")
  arrays = safetensors.numpy.load(path.read_bytes())
  header = files.parse_json(arrays["header"].tobytes())
  keys_Q = arrays["keys"].astype(np.int64)
  if header["format"] != FORMAT:
    raise ValueError(
      f"format {header['format']} of truenegs_jax {header.get('version')}, but"
      f" this is {VERSION} with format {FORMAT}"
    )
  tokens = header["tokens"]
  is_inside = np.all((keys_Q >= 0) & (keys_Q < len(tokens) ** 2))
  table = _make_table(keys_Q, tokens, header["source"], header["options"])
  expected = header["vocabulary"], header["fingerprint"]
  if not is_inside or (table.vocabulary, table.fingerprint) != expected:
    raise ValueError("its content does not match its fingerprint")
  return table


def _pair_keys(
  pairs: Iterable[tuple[str, str]], tokens: Sequence[str]
) -> Iterator[int]:
  words = read_words(tuple(tokens))
  for pair in pairs:
    word, synonym = map(words.fold, pair)
    ids = words.ids.get(word, ()), words.ids.get(synonym, ())
    for a, b in itertools.product(*ids):
      if word != synonym and words.classes_V[a] == words.classes_V[b]:
        yield a * len(tokens) + b


def _make_table(
  keys_Q: np.ndarray,
  tokens: Sequence[str],
  source: str,
  options: Mapping[str, str | bool | int],
) -> SynonymTable:
  keys_Q = np.unique(keys_Q)
  vocabulary = files.short_sha256("\n".join(tokens))
  keys_Q.flags.writeable = False
  digest = files.short_sha256(vocabulary, keys_Q.astype("<i8").tobytes())
  frozen = types.MappingProxyType(dict(options))
  return SynonymTable(keys_Q, tuple(tokens), source, frozen, vocabulary, digest)
