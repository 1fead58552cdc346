"""Loads and checks WordPiece vocabularies, and encodes text with them.

The Rust library `tokenizers` encodes, like for `BertTokenizer` of transformers;
but special tokens written in a text, such as "[MASK]", are spelled out in
pieces.
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from truenegs_jax.runtime import files
from truenegs_jax.runtime.errors import FAILING, DataError, InputError
from truenegs_jax.runtime.paths import is_hub_name, open_path

FILES = ["vocab.txt", "tokenizer.json"]  # in a folder, the first one counts
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# `data.accents` of a config -> strip_accents; None follows `lowercase`.
ACCENTS = {"auto": None, "strip": True, "keep": False}
# Longer words become [UNK], as in transformers (BERT's TF code allows 200).
MAX_WORD_CHARACTERS = 100


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """A WordPiece vocabulary, checked by `load_tokenizer` or `make_tokenizer`.

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
    pad, unk, cls, sep, mask: the ids of the special entries.
    mark: the prefix in `vocab` of pieces that continue a word ("##"), or that
      follow a space: "Ġ" of byte-level BPE, "▁" of SentencePiece. "": neither.
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

  @property
  def special_ids(self) -> tuple[int, ...]:
    """The ids of [PAD] [UNK] [CLS] [SEP] [MASK], in this order."""
    return self.pad, self.unk, self.cls, self.sep, self.mask

  @functools.cached_property
  def fingerprint(self) -> str:
    """16 hex digits of a hash of everything that decides the ids of a text."""
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
    encode = self._backend.encode_batch_fast
    try:
      encoded = encode(list(lines), add_special_tokens=False)
    except (TypeError, UnicodeEncodeError):  # Rust strings are valid UTF-8
      lines = list(map(drop_surrogates, lines))
      encoded = encode(lines, add_special_tokens=False)
    return [encoding.ids for encoding in encoded]

  def normalize(self, text: str) -> str:
    """Returns text as it is written in the vocabulary: case and accents."""
    return self._normalizer.normalize_str(drop_surrogates(text))

  def decode(self, ids: Iterable[int]) -> str:
    """Returns readable text: words separated by spaces, `##` pieces joined."""
    return " ".join(self.vocab[i] for i in ids).replace(" ##", "")

  def make_backend(self) -> tokenizers.Tokenizer:
    """Returns a new tokenizer of `tokenizers` that knows no special tokens."""
    # So a literal "[MASK]" in a text stays text.
    model = models.WordPiece(
      vocab={entry: i for i, entry in enumerate(self.vocab)},
      unk_token="[UNK]",
      max_input_chars_per_word=MAX_WORD_CHARACTERS,
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = self._normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend

  _backend = functools.cached_property(make_backend)

  @functools.cached_property
  def _normalizer(self) -> normalizers.BertNormalizer:
    return normalizers.BertNormalizer(
      lowercase=self.lowercase, strip_accents=self.strip_accents
    )


def read_word_pieces(
  tokenizer: Any,
) -> tuple[tuple[str, ...], Callable[[str], str]]:
  """Returns the tokens of a tokenizer, and how it writes a word.

  It may be ours, a fast one of transformers, or of the library tokenizers.
  """
  if isinstance(tokenizer, Tokenizer):
    return tokenizer.vocab, tokenizer.normalize
  backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
  model = getattr(backend, "model", tokenizer)
  ids = backend.get_vocab() if isinstance(model, models.WordPiece) else {}
  prefix = getattr(model, "continuing_subword_prefix", "")
  if prefix != "##" or sorted(ids.values()) != [*range(len(ids))]:
    raise InputError(
      f"tokenizer: {type(tokenizer).__name__} ({type(model).__name__}) is not"
      " supported. It must be WordPiece with ## pieces and ids 0, 1, 2, ..., so"
      " that words are tokens. Pass a fast one of BERT, or load_tokenizer's."
    )
  normalizer = backend.normalizer or normalizers.Sequence([])
  return (
    tuple(sorted(ids, key=ids.__getitem__)),
    lambda text: normalizer.normalize_str(drop_surrogates(text)),
  )


def check_tokens(owner: str, given: Any, tokenizer: Any, fix: str) -> None:
  """Raises DataError if a tokenizer is of another vocabulary than `given`.

  Both are tokenizers or tokens; None is not compared. `owner` has `given`.
  """
  if given is None or tokenizer is None:
    return
  tokens, expected = (
    tuple(x) if isinstance(x, Sequence) else read_word_pieces(x)[0]
    for x in (given, tokenizer)
  )
  differ = sum(a != b for a, b in itertools.zip_longest(tokens, expected))
  both_ours = {type(given), type(tokenizer)} == {Tokenizer}
  if differ or (both_ours and given != tokenizer):
    case = "" if differ else ", but lowercase or strip_accents differ"
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
  strip_accents = lowercase if strip_accents is None else strip_accents
  special_ids = (ids[name] for name in SPECIALS)
  return Tokenizer(tuple(ids), lowercase, strip_accents, *special_ids)


def load_tokenizer(
  path_or_name: str, *, lowercase: bool, strip_accents: bool | None = None
) -> Tokenizer:
  """Reads a vocabulary, and returns its tokenizer.

  >>> len(load_tokenizer("rows/vocab.txt", lowercase=True).vocab)
  38

  Args:
    path_or_name: a `vocab.txt`, a `tokenizer.json`, a folder that contains one
      of them, or the name of a model on the Hugging Face hub (needs internet).
    strip_accents: None for BERT's, the value of `lowercase`.
  """
  strip_accents = lowercase if strip_accents is None else strip_accents
  options = {"lowercase": lowercase, "strip_accents": strip_accents}
  path = open_path("data.vocab", path_or_name)
  if not path_or_name or not path.exists():
    if path.suffix in (".txt", ".json") or not is_hub_name(path_or_name):
      raise InputError(
        f"data.vocab={path_or_name!r} is neither a file, a folder nor the name"
        " of a model on the hub. Set --config.data.vocab to a vocab.txt or"
        " train, --vocab of `truenegs synonyms` to a vocab.txt or a run."
      )
    path = _download(path_or_name)
  if path.is_dir():
    paths = [path / name for name in FILES]
    path = next((x for x in paths if x.is_file()), paths[0])
  is_json = path.suffix == ".json"
  vocab = _read_json(path, options) if is_json else _read_lines(path)
  return make_tokenizer(vocab, **options, origin=str(path))


def write_vocabulary(vocab: Sequence[str], path: pathlib.Path) -> None:
  """Writes a `vocab.txt`: UTF-8, the entry with id n - 1 in line n."""
  with files.atomic_file(path) as file:
    file.writelines(f"{entry}\n".encode() for entry in vocab)


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


def _read_json(path: pathlib.Path, options: dict[str, bool]) -> list[str]:
  """Returns the vocabulary of a tokenizer.json that is like BERT's."""
  fix = "Use the vocab.txt of a BERT or ELECTRA model."
  with files.read_json(path, InputError, fix) as content:
    ids: dict[str, int] = dict(content["model"]["vocab"])
    entries = sorted(ids, key=ids.__getitem__)
    kind = content["model"].get("type", "WordPiece")
    normalizer = dict(content.get("normalizer") or {})
  if kind != "WordPiece" or sorted(ids.values()) != list(range(len(ids))):
    raise InputError(
      f"{path}: a {kind} tokenizer with {len(ids):,} entries. It must be"
      f" WordPiece with ids 0, 1, 2, .... {fix}"
    )
  if normalizer and normalizer.get("strip_accents") is None:
    # null in BERT's tokenizer.json means the value of lowercase.
    lowercase = normalizer.get("lowercase", options["lowercase"])
    normalizer["strip_accents"] = lowercase
  expected: dict[str, object] = {
    **options,
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
  }
  for name, value in expected.items():
    if (other := normalizer.get(name, value)) != value:
      raise InputError(
        f"data: {name}={value} differs from {name}={other} in '{path}'. Set"
        " --config.data.lowercase or --config.data.accents to its value, or use"
        " another vocabulary."
      )
  return entries


def _download(name: str) -> pathlib.Path:
  from huggingface_hub import snapshot_download  # slow to import

  try:
    return pathlib.Path(snapshot_download(name, allow_patterns=FILES))
  except Exception as error:  # the library raises many kinds of errors
    raise InputError(
      f"data.vocab={name!r} is no file or folder, and downloading its vocab.txt"
      f" from the Hugging Face hub failed ({type(error).__name__}). Download it"
      " elsewhere and set --config.data.vocab=FILE."
    ) from error
