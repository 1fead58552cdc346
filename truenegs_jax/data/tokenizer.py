"""Encodes text with a vocabulary, and checks vocabularies.

The Rust library `tokenizers` encodes, like for tokenizers of transformers; but
special tokens written in a text, such as "[MASK]", are spelled out in pieces.
"""

import bisect
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from truenegs_jax.runtime import files
from truenegs_jax.runtime.errors import DataError, InputError

# Role -> keys of tokenizer_config.json, and usual names of its token.
ROLES = {
  "pad": (["pad_token"], ["[PAD]", "<pad>", "<|pad|>", "<|padding|>"]),
  "unk": (["unk_token"], ["[UNK]", "<unk>", "<|unk|>"]),
  "cls": (["cls_token", "bos_token"], ["[CLS]", "<s>", "<cls>", "<bos>"]),
  "sep": (["sep_token", "eos_token"], ["[SEP]", "</s>", "<sep>", "<eos>"]),
  "mask": (["mask_token"], ["[MASK]", "<mask>", "<|mask|>"]),
}
SPECIALS = tuple(names[0] for _, names in ROLES.values())
# Longer words become [UNK], as in transformers (BERT's TF code allows 200).
MAX_WORD_CHARACTERS = 100
VOCABULARY = "vocab.txt"
JSON = "tokenizer.json"
CONFIG = "tokenizer_config.json"
# `data.accents` of a config -> strip_accents; None follows `lowercase`.
ACCENTS = {"auto": None, "strip": True, "keep": False}
UNUSED = "[unused row {}]"  # no text is encoded to it, as it has spaces
MAX_UNUSED = 2**16  # ids without a token, beyond as many as with one
# White space for Rust, which reads entries; for Python also \x1c to \x1f.
WHITE = "".join(
  c for c in map(chr, range(0x3001)) if c.isspace() and not "\x1b" < c < " "
)


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """A vocabulary, checked by `load_tokenizer` or `make_tokenizer`.

  >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "swan", "##s"]
  >>> tokenizer = make_tokenizer(words, lowercase=True)
  >>> tokenizer.encode("Swans")
  [5, 6]
  >>> tokenizer.mask
  4

  Attributes:
    vocab: the entries; the id of an entry is its index.
    strip_accents: whether "é" becomes "e". BERT sets it to `lowercase`; some
      languages need only one of the two.
    unk: the id of the unknown token, as of other special ones; -1 for none.
    definition: the tokenizer.json; "" for BERT's WordPiece.
  """

  vocab: tuple[str, ...]
  lowercase: bool
  strip_accents: bool
  pad: int
  unk: int
  cls: int
  sep: int
  mask: int
  definition: str = dataclasses.field(default="", repr=False)

  def __getstate__(self) -> dict[str, Any]:
    # Without the backend, which would forget that text has no special tokens.
    return {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}

  @property
  def special_ids(self) -> tuple[int, ...]:
    """The ids of padding, [UNK], [CLS], [SEP] and [MASK], if it has them."""
    ids = self.pad, self.unk, self.cls, self.sep, self.mask
    return tuple(i for i in dict.fromkeys(ids) if i >= 0)

  @property
  def line_end(self) -> str:
    """Where to split lines, as a regular expression; "Ċ" is a token for it."""
    return r"(?<=\n)" if "Ċ" in self.vocab else r"\n"

  @functools.cached_property
  def files(self) -> dict[str, str]:
    """The files that `load_tokenizer` reads: their names and contents."""
    if not self.definition:
      return {VOCABULARY: "".join(f"{entry}\n" for entry in self.vocab)}
    ids = {f"{role}_token": getattr(self, role) for role in ROLES}
    config = {name: self.vocab[i] for name, i in ids.items() if i >= 0}
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    return {JSON: self.definition, CONFIG: json.dumps(config, indent=2) + "\n"}

  @functools.cached_property
  def fingerprint(self) -> str:
    """16 hex digits of a hash of everything that decides the ids of a text."""
    if self.definition:
      return files.short_sha256(self.definition, str(self.special_ids))
    text = "\n".join(self.vocab) + f"\n\nlowercase={self.lowercase}"
    if self.strip_accents != self.lowercase:
      text += f" strip_accents={self.strip_accents}"
    return files.short_sha256(text)

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text, without [CLS] and [SEP]."""
    return self.encode_lines([text])[0]

  def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
    """Returns the ids of every line, without [CLS] and [SEP].

    A literal "[MASK]" in a text is encoded as ordinary characters. Lone
    surrogates have no UTF-8 and are dropped, like control characters.
    """
    texts = self._clean(lines)
    encoded = self._backend.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encoded]

  def encode_words(
    self, sentences: Sequence[Sequence[str]]
  ) -> Iterator[tuple[list[int], list[int]]]:
    """Yields the ids of every sentence, and of each the number of its word.

    A space divides words; its own tokens belong to the word that follows.
    """
    cleaned = [self._clean(words) for words in sentences]
    encoded = self._backend.encode_batch(
      [" ".join(words) for words in cleaned], add_special_tokens=False
    )
    for words, encoding in zip(cleaned, encoded, strict=True):
      ends = [*itertools.accumulate(len(word) + 1 for word in words)]
      yield (
        encoding.ids,
        [bisect.bisect(ends, end) for _, end in encoding.offsets],
      )

  def _clean(self, lines: Sequence[str]) -> list[str]:
    """Returns texts that hold no surrogates and no special tokens."""
    texts = [*map(drop_surrogates, lines)]
    if self._insides:
      texts = [self._insides.sub(" ", text) for text in texts]
    return texts

  def normalize(self, text: str) -> str:
    """Returns text as it is written in the vocabulary: case and accents."""
    return normalize(self._backend, text)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns readable text: words separated by spaces, `##` pieces joined."""
    if self.definition:
      return self._backend.decode([*ids], skip_special_tokens=False)
    return " ".join(self.vocab[i] for i in ids).replace(" ##", "")

  def make_backend(self) -> tokenizers.Tokenizer:
    """Returns a new tokenizer of `tokenizers` that knows no special tokens."""
    if self.definition:  # a literal "[MASK]" in a text stays text
      backend = tokenizers.Tokenizer.from_str(self.definition)
      backend.encode_special_tokens = True
      return backend
    model = models.WordPiece(
      vocab={entry: i for i, entry in enumerate(self.vocab)},
      unk_token="[UNK]",
      max_input_chars_per_word=MAX_WORD_CHARACTERS,
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(
      lowercase=self.lowercase, strip_accents=self.strip_accents
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend

  _backend = functools.cached_property(make_backend)

  @functools.cached_property
  def _insides(self) -> re.Pattern[str] | None:
    """Finds where to part special tokens that are pieces, as in Unigram."""
    places = []
    for i in {*self.special_ids} - {self.unk} if self.definition else ():
      name = self.vocab[i]
      if i in self._backend.encode(name, add_special_tokens=False).ids:
        places.append(f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})")
    return re.compile("|".join(places)) if places else None


def read_tokens(tokenizer: Any) -> tuple[tuple[str, ...], Callable[[str], str]]:
  """Returns the tokens of a tokenizer, and how it writes a word.

  It may be ours, a fast one of transformers, or of the library tokenizers.
  """
  if isinstance(tokenizer, Tokenizer):
    return tokenizer.vocab, tokenizer.normalize
  backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
  if not isinstance(backend, tokenizers.Tokenizer):
    raise InputError(
      f"tokenizer: {type(tokenizer).__name__} is not supported. Pass a fast one"
      " of transformers, or load_tokenizer's."
    )
  tokens = tuple(list_tokens(backend.get_vocab()))
  return tokens, functools.partial(normalize, backend)


def check_tokens(owner: str, given: Any, tokenizer: Any, fix: str) -> None:
  """Raises DataError if a tokenizer is of another vocabulary than `given`.

  Both are tokenizers or tokens; None is not compared. `owner` has `given`.
  """
  if given is None or tokenizer is None:
    return
  tokens, expected = (
    tuple(x) if isinstance(x, Sequence) else read_tokens(x)[0]
    for x in (given, tokenizer)
  )
  differ = sum(a != b for a, b in itertools.zip_longest(tokens, expected))
  both_ours = {type(given), type(tokenizer)} == {Tokenizer}
  if differ or (both_ours and given != tokenizer):
    case = "" if differ else ", but they split text differently"
    raise DataError(
      f"{owner} and the tokenizer have different vocabularies: {differ:,} of"
      f" {len(tokens):,} ids stand for other tokens{case}. {fix}"
    )


def make_tokenizer(
  vocab: Iterable[str],
  *,
  lowercase: bool,
  strip_accents: bool | None = None,
  origin: str = "vocabulary",
) -> Tokenizer:
  """Builds a tokenizer from the entries of a vocabulary and checks them.

  >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "swan"]
  >>> make_tokenizer(words, lowercase=False).encode_lines(["Swan"])
  [[1]]

  BERT's `strip_accents`, for None, is the value of `lowercase`. An entry that
  no text can have (it is empty, ends with white space or is repeated later) is
  replaced by the name of an unused row, so that other entries keep their ids.
  """
  entries = [*vocab]
  ids = {entry: i for i, entry in enumerate(entries)}  # the last one counts
  if missing := [name for name in SPECIALS if name not in ids]:
    raise InputError(
      f"{origin}: {len(ids):,} entries, but no {' '.join(missing)}. Use the"
      " vocab.txt of a BERT or ELECTRA model, or set --config.data.vocab=train"
      " to train one."
    )
  for i, entry in enumerate(entries):
    is_empty = not entry.rstrip(WHITE) or entry[-1] in WHITE or "\n" in entry
    if is_empty or ids[entry] != i:
      entries[i] = UNUSED.format(i)
  strips = lowercase if strip_accents is None else strip_accents
  pad, unk, cls, sep, mask = (ids[name] for name in SPECIALS)
  return Tokenizer(tuple(entries), lowercase, strips, pad, unk, cls, sep, mask)


def list_tokens(ids: Mapping[str, int], size: int = 0) -> list[str]:
  """Returns a token for each id, at least `size`; ValueError for odd ids."""
  tokens = {i: token for token, i in ids.items()}
  num_rows = max((size, *(i + 1 for i in tokens)))
  if len(tokens) < len(ids) or min(tokens, default=0) < 0:
    raise ValueError("two tokens have one id")
  if num_rows > 2 * len(ids) + MAX_UNUSED:
    raise ValueError(f"{len(ids):,} entries, but ids up to {num_rows - 1:,}")
  return [tokens.get(i, UNUSED.format(i)) for i in range(num_rows)]


def normalize(backend: tokenizers.Tokenizer, text: str) -> str:
  """Returns text as a tokenizer writes it in its vocabulary."""
  text = drop_surrogates(text)
  return backend.normalizer.normalize_str(text) if backend.normalizer else text


def drop_surrogates(text: str) -> str:
  """Removes lone surrogates, which Rust strings (UTF-8) cannot hold."""
  return text.encode("utf-8", "ignore").decode("utf-8")
