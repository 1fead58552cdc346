"""Loads and checks vocabularies, and encodes text with them.

The Rust library `tokenizers` encodes, like for tokenizers of transformers; but
special tokens written in a text, such as "[MASK]", are spelled out in pieces.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from truenegs_jax.data.tokenizer_json import (
  CONFIG,
  FIX,
  MAX_WORD_CHARACTERS,
  ROLES,
  SPECIALS,
  UNUSED,
  define,
  is_bert,
)
from truenegs_jax.runtime import files
from truenegs_jax.runtime.errors import FAILING, DataError, InputError
from truenegs_jax.runtime.paths import is_hub_name, join_inside, open_path

VOCABULARY = "vocab.txt"
JSON = "tokenizer.json"
FILES = [VOCABULARY, JSON]
# Of a model on the hub: those that a tokenizer.json needs beside it.
HUB_FILES = [*FILES, "config.json", "special_tokens_map.json", CONFIG]
DECISIVE = ("model", "normalizer", "pre_tokenizer", "added_tokens")  # of ids
MAX_VALUES = 2**23  # of a tokenizer.json; Gemma's has 2 million
# `data.accents` of a config -> strip_accents; None follows `lowercase`.
ACCENTS = {"auto": None, "strip": True, "keep": False}


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
    lowercase: whether text is lower-cased ("uncased").
    strip_accents: whether "é" becomes "e". BERT sets it to `lowercase`; some
      languages need only one of the two.
    pad, unk, cls, sep, mask: the ids of the special entries; `unk` is -1 if
      there is none.
    mark: the prefix in `vocab` of pieces that continue a word ("##"), or that
      follow a space: "Ġ" of byte-level BPE, "▁" of SentencePiece. "": neither.
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
  mark: str = "##"
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
    return r"(?<=\n)" if self.mark == "Ġ" and "Ċ" in self.vocab else r"\n"

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
      content = json.loads(self.definition)
      parts = [content.get(name) for name in DECISIVE] + [self.special_ids]
      return files.short_sha256(json.dumps(parts, sort_keys=True))
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
    texts = [*map(drop_surrogates, lines)]
    if self._insides:
      texts = [self._insides.sub(" ", text) for text in texts]
    encoded = self._backend.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encoded]

  def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns ids of a text, and the characters of each without white space."""
    encoded = self._backend.encode(text, add_special_tokens=False)
    spans = []
    for start, end in encoded.offsets:
      piece = text[start:end]
      first = start + len(piece) - len(piece.lstrip())
      spans.append((first, max(first, start + len(piece.rstrip()))))
    return encoded.ids, spans

  def normalize(self, text: str) -> str:
    """Returns text as it is written in the vocabulary: case and accents."""
    text = drop_surrogates(text)
    normalizer = self._backend.normalizer
    return normalizer.normalize_str(text) if normalizer else text

  def decode(self, ids: Iterable[int]) -> str:
    """Returns readable text: words separated by spaces, `##` pieces joined."""
    if self.definition:
      return self._backend.decode([*ids], skip_special_tokens=False)
    return " ".join(self.vocab[i] for i in ids).replace(" ##", "")

  def make_backend(self) -> tokenizers.Tokenizer:
    """Returns a new tokenizer of `tokenizers` that knows no special tokens."""
    # So a literal "[MASK]" in a text stays text.
    if self.definition:
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


def read_tokens(
  tokenizer: Any,
) -> tuple[tuple[str, ...], Callable[[str], str]]:
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
  ids = {i: token for token, i in backend.get_vocab().items()}
  size = max(ids, default=-1) + 1
  normalizer = backend.normalizer or normalizers.Sequence([])
  return (
    tuple(ids.get(i, UNUSED.format(i)) for i in range(size)),
    lambda text: normalizer.normalize_str(drop_surrogates(text)),
  )


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

  BERT's `strip_accents`, for None, is the value of `lowercase`.
  """
  ids: dict[str, int] = {}
  for number, entry in enumerate(vocab):
    if not entry.strip() or entry in ids:
      raise InputError(
        f"{origin}:{number + 1}: the entry {entry!r} is empty or repeated. Use"
        " the original vocab.txt of a model, not a text."
      )
    ids[entry] = number
  if missing := [name for name in SPECIALS if name not in ids]:
    raise InputError(
      f"{origin}: {len(ids):,} entries, but no {' '.join(missing)}. Use the"
      " vocab.txt of a BERT or ELECTRA model, or set --config.data.vocab=train"
      " to train one."
    )
  cases = lowercase, lowercase if strip_accents is None else strip_accents
  pad, unk, cls, sep, mask = (ids[name] for name in SPECIALS)
  return Tokenizer(tuple(ids), *cases, pad, unk, cls, sep, mask)


def load_tokenizer(
  path_or_name: str,
  *,
  lowercase: bool,
  strip_accents: bool | None = None,
  mask_token: str = "",
) -> Tokenizer:
  """Reads a vocabulary, and returns its tokenizer.

  >>> len(load_tokenizer("rows/vocab.txt", lowercase=True).vocab)
  38

  Args:
    path_or_name: a `vocab.txt`, a `tokenizer.json`, a folder that contains one
      of them, or the name of a model on the Hugging Face hub (needs internet).
    lowercase: for BERT's WordPiece. Other files say what they do to case.
    strip_accents: None for BERT's, the value of `lowercase`.
    mask_token: is added to a `tokenizer.json` without a mask token.
  """
  strip_accents = lowercase if strip_accents is None else strip_accents
  options = {"lowercase": lowercase, "strip_accents": strip_accents}
  path = open_path("data.vocab", path_or_name)
  is_hub = path.suffix not in (".txt", ".json") and is_hub_name(path_or_name)
  if is_hub and not path.exists():
    path = _download(path_or_name)
  if path.is_dir():
    path = find_file(path) or path / VOCABULARY
  if not path_or_name or not path.exists():
    raise InputError(
      f"data.vocab={path_or_name!r} is neither a vocab.txt, a tokenizer.json, a"
      " folder of one nor a model on the hub. Set --config.data.vocab to one of"
      " these or train, --vocab of `truenegs synonyms` to one or a run."
    )
  if path.suffix != ".json":
    return make_tokenizer(_read_lines(path), **options, origin=str(path))
  with files.read_json(path, InputError, FIX, MAX_VALUES) as content:
    if is_bert(content):
      vocab = _read_bert(content, path, options)
      return make_tokenizer(vocab, **options, origin=str(path))
    config: dict[str, Any] = {}
    for name in HUB_FILES[2:]:
      if (path.parent / name).exists():
        beside = join_inside(path.parent, name)
        with files.read_json(beside, InputError, FIX) as values:
          config |= values
    return Tokenizer(**define(content, config, path, mask_token=mask_token))


def find_file(folder: pathlib.Path) -> pathlib.Path | None:
  """Returns the file of a folder's vocabulary: a vocab.txt only if BERT's."""
  text, json_file = (join_inside(folder, name) for name in FILES)
  if not json_file.is_file():
    return text if text.is_file() else None
  with files.read_json(json_file, InputError, FIX, MAX_VALUES) as content:
    return text if is_bert(content) and text.is_file() else json_file


def build_tokenizer(data: Any, vocab: str) -> Tokenizer:
  """Loads a vocabulary with the options of `c.data`."""
  return load_tokenizer(
    vocab,
    lowercase=data.lowercase,
    strip_accents=ACCENTS[data.accents],
    mask_token=data.mask_token,
  )


def write_tokenizer(tokenizer: Tokenizer, folder: pathlib.Path) -> list[str]:
  """Writes what `load_tokenizer` reads; returns the names of the files."""
  for name in {*FILES} - {*tokenizer.files}:  # of a run that has ended early
    if (folder / name).exists():
      (folder / name).unlink()
  for name, text in tokenizer.files.items():
    with files.atomic_file(folder / name) as file:
      file.write(text.encode())
  return [*tokenizer.files]


def drop_surrogates(line: str) -> str:
  """Removes lone surrogates, which Rust strings (UTF-8) cannot hold."""
  return line.encode("utf-8", "ignore").decode("utf-8")


def _read_lines(path: pathlib.Path) -> list[str]:
  try:
    data = files.read_file(path).removeprefix(b"\xef\xbb\xbf").rstrip()
    lines = data.decode("utf-8").split("\n")
  except (OSError, ValueError) as error:
    if isinstance(error, OSError) and error.errno in FAILING:
      raise
    raise InputError(
      f"{path}: cannot be read ({files.describe_error(error)}). It must have an"
      " entry a line. If it is compressed, unpack it (gunzip, xz -d)."
    ) from error
  return [line.removesuffix("\r") for line in lines]


def _read_bert(
  content: Mapping[str, Any], path: pathlib.Path, options: dict[str, bool]
) -> list[str]:
  """Returns the vocabulary of a tokenizer.json that agrees with `options`."""
  normalizer = dict(content.get("normalizer") or {})
  if normalizer and normalizer.get("strip_accents") is None:
    # null in BERT's tokenizer.json means the value of lowercase.
    lowercase = normalizer.get("lowercase", options["lowercase"])
    normalizer["strip_accents"] = lowercase
  for name, value in options.items():
    if (other := normalizer.get(name, value)) != value:
      raise InputError(
        f"data: {name}={value} differs from {name}={other} in '{path}'. Set"
        " --config.data.lowercase or --config.data.accents to its value, or use"
        " another vocabulary."
      )
  ids: dict[str, int] = content["model"]["vocab"]
  return sorted(ids, key=ids.__getitem__)


def _download(name: str) -> pathlib.Path:
  from huggingface_hub import snapshot_download  # slow to import

  try:
    return pathlib.Path(snapshot_download(name, allow_patterns=HUB_FILES))
  except Exception as error:  # the library raises many kinds of errors
    raise InputError(
      f"data.vocab={name!r} is no file or folder, and downloading its files"
      f" from the Hugging Face hub failed ({type(error).__name__}). Download it"
      " elsewhere and set --config.data.vocab=FILE."
    ) from error
