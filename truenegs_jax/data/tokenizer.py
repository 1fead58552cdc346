"""WordPiece: a vocabulary, and the ids of lines of text under it.

The algorithm is the Rust one of `tokenizers` (what `BertTokenizer` of
transformers runs); ours are the checks of the vocabulary and its fingerprint.

  tokenizer = load_tokenizer("vocab.txt", lowercase=True)
  tokenizer.encode_lines(["a mute swan"])  # [[1037, 20101, 10677]]
"""

import collections
import dataclasses
import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from truenegs_jax.errors import InputError, disk_errors

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Longer words become [UNK], as in transformers (the TF code of BERT has 200).
MAX_WORD_CHARACTERS = 100
MAX_ALPHABET = 1000  # default of BERT-like trainers; rarer characters: [UNK]
MAX_VOCABULARY_BYTES = 64 << 20
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """A WordPiece vocabulary; `load_tokenizer` and `make_tokenizer` check it.

  The id of an entry is its place; `pad` to `mask` are ids of the specials.
  """

  vocab: tuple[str, ...]
  lowercase: bool
  pad: int
  unk: int
  cls: int
  sep: int
  mask: int

  @property
  def special_ids(self) -> tuple[int, ...]:
    """Ids of [PAD] [UNK] [CLS] [SEP] [MASK], in this order."""
    return self.pad, self.unk, self.cls, self.sep, self.mask

  @functools.cached_property
  def fingerprint(self) -> str:
    """16 hex digits; equal exactly when texts get the same ids."""
    text = "\n".join(self.vocab) + f"\n\nlowercase={self.lowercase}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
    """Ids of every line, without [CLS] and [SEP].

    A "[MASK]" typed in a text is encoded as ordinary characters. Lone
    surrogates, which no UTF-8 holds, are dropped like control characters.
    """
    encode = functools.partial(
      self._backend.encode_batch_fast, add_special_tokens=False
    )
    try:
      encoded = encode(list(lines))
    except (TypeError, UnicodeEncodeError):  # Rust strings are valid UTF-8
      encoded = encode([_without_surrogates(line) for line in lines])
    return [encoding.ids for encoding in encoded]

  def decode(self, ids: Iterable[int]) -> str:
    """The text of ids for a reader: words apart, `##` pieces joined."""
    return " ".join(self.vocab[i] for i in ids).replace(" ##", "")

  @functools.cached_property
  def _backend(self) -> tokenizers.Tokenizer:
    # Without added tokens: a literal "[MASK]" in a text stays text.
    model = models.WordPiece(
      vocab={entry: i for i, entry in enumerate(self.vocab)},
      unk_token="[UNK]",
      max_input_chars_per_word=MAX_WORD_CHARACTERS,
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend


def make_tokenizer(
  vocab: Iterable[str], *, lowercase: bool, origin: str = "vocabulary"
) -> Tokenizer:
  """Checks a vocabulary given as entries; `origin` names it in errors.

  Raises:
    InputError: empty or repeated entries, or a special one is missing.
  """
  lines: dict[str, int] = {}
  for line, entry in enumerate(vocab, start=1):
    if not entry.strip():
      raise InputError(
        f"{origin}:{line}: empty line; line n holds the entry of id n - 1:"
        " take the original file."
      )
    if entry in lines:
      raise InputError(
        f"{origin}:{line}: {entry!r} stands already in line {lines[entry]};"
        " entries must be unique: take the original file."
      )
    lines[entry] = line
  missing = [name for name in SPECIALS if name not in lines]
  if missing:
    raise InputError(
      f"{origin}: {len(lines)} entries, but no {' '.join(missing)}; a BERT"
      f" vocabulary has {' '.join(SPECIALS)} (at any id): take such a"
      ' vocab.txt, or train one with data.vocab="train".'
    )
  special_ids = (lines[name] - 1 for name in SPECIALS)
  return Tokenizer(tuple(lines), lowercase, *special_ids)


def load_tokenizer(path_or_name: str, *, lowercase: bool) -> Tokenizer:
  """Reads a vocabulary.

  Args:
    path_or_name: a `vocab.txt`; a `tokenizer.json`; a folder with one of the
      two; or the name of a model on the Hugging Face hub (needs internet).
    lowercase: lower-case text and strip its accents ("uncased").

  Raises:
    InputError: nothing there, or not a usable WordPiece vocabulary.
  """
  path = pathlib.Path(path_or_name).expanduser()
  if path_or_name and path.exists():
    file = _file_in_folder(path) if path.is_dir() else path
    return _load_file(file, lowercase=lowercase)
  if path.suffix in (".txt", ".json") or not _HUB_NAME.fullmatch(path_or_name):
    raise InputError(
      f"data.vocab: {path_or_name!r} is neither a file, a folder nor a name"
      ' on the Hugging Face hub: give the path of a vocab.txt, or "train".'
    )
  return _load_file(_download(path_or_name), lowercase=lowercase)


def write_vocabulary(vocab: Sequence[str], path: str | pathlib.Path) -> None:
  """Writes a `vocab.txt`: one entry a line, UTF-8, line n holds id n - 1."""
  path = pathlib.Path(path)
  with (
    disk_errors(path),
    path.open("w", encoding="utf-8", newline="\n") as file,
  ):
    file.writelines(entry + "\n" for entry in vocab)


def train_vocabulary(
  texts: Iterable[str], *, size: int, lowercase: bool
) -> tuple[str, ...]:
  """Learns a WordPiece vocabulary of at most `size` entries.

  Specials come first (ids 0 to 4), then single characters, then pieces by
  frequency. The same texts give the same vocabulary in every process. It is
  shorter than `size` where the texts hold too few different words.

  Raises:
    InputError: `size` does not hold the specials and the characters.
  """
  counts = _count_words(texts, lowercase=lowercase)
  first = list(SPECIALS) + _alphabet(counts)
  if size < len(first):
    raise InputError(
      f"data.vocab_size={size}: the special entries and the characters of"
      f" this text alone take {len(first)}; set at least {2 * len(first)}."
    )
  backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
  backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  # The trainer numbers the characters in the order of a randomly seeded hash
  # table and breaks ties between merges by these numbers. Handing it the
  # characters as "special" entries fixes the numbers, hence the result.
  trainer = trainers.WordPieceTrainer(
    vocab_size=size,
    min_frequency=2,
    show_progress=False,
    special_tokens=first,
    limit_alphabet=0,
  )
  backend.train_from_iterator(_repeated(counts), trainer)
  ids = backend.get_vocab()
  return tuple(sorted(ids, key=ids.__getitem__))


def _without_surrogates(line: str) -> str:
  return line.encode("utf-8", "ignore").decode("utf-8")


def _file_in_folder(folder: pathlib.Path) -> pathlib.Path:
  for name in ("vocab.txt", "tokenizer.json"):
    if (folder / name).is_file():
      return folder / name
  raise InputError(f"{folder} holds neither vocab.txt nor tokenizer.json.")


def _load_file(path: pathlib.Path, *, lowercase: bool) -> Tokenizer:
  try:
    if (size := path.stat().st_size) > MAX_VOCABULARY_BYTES:
      raise InputError(
        f"{path}: {size:,} bytes; a vocabulary has at most"
        f" {MAX_VOCABULARY_BYTES:,}: is this the right file?"
      )
    data = path.read_bytes()
  except OSError as error:
    raise InputError(f"{path}: cannot be read: {error.strerror}.") from error
  if path.suffix == ".json":
    vocab = _entries_of_json(data, path, lowercase=lowercase)
  else:
    vocab = _entries_of_lines(data, path)
  return make_tokenizer(vocab, lowercase=lowercase, origin=str(path))


def _entries_of_lines(data: bytes, path: pathlib.Path) -> list[str]:
  lines = data.removeprefix(b"\xef\xbb\xbf").rstrip().split(b"\n")
  entries = []
  for number, line in enumerate(lines, start=1):
    try:
      entries.append(line.removesuffix(b"\r").decode("utf-8"))
    except UnicodeDecodeError as error:
      bad = f"{path}:{number}: byte 0x{line[error.start]:02x}"
      raise InputError(f"{bad} is not UTF-8: save it as UTF-8.") from error
  return entries


def _entries_of_json(
  data: bytes, path: pathlib.Path, *, lowercase: bool
) -> list[str]:
  try:
    content: Any = json.loads(data)
    ids: dict[str, int] = dict(content["model"]["vocab"])
    entries = sorted(ids, key=ids.__getitem__)
    kind = content["model"].get("type", "WordPiece")
    lowers = (content.get("normalizer") or {}).get("lowercase", lowercase)
  except _MALFORMED as error:
    raise InputError(
      f"{path}: is not a WordPiece tokenizer.json: give a vocab.txt instead."
    ) from error
  if kind != "WordPiece" or sorted(ids.values()) != list(range(len(ids))):
    raise InputError(
      f"{path}: a {kind} tokenizer with {len(ids)} entries; WordPiece with"
      " ids 0, 1, 2, ... is needed: give a BERT or ELECTRA vocab.txt."
    )
  if lowers != lowercase:
    raise InputError(
      f"data.lowercase={lowercase}, but {path} has {lowers}: set that."
    )
  return entries


def _download(name: str) -> pathlib.Path:
  import huggingface_hub  # slow to import, and only this needs it

  try:
    return pathlib.Path(huggingface_hub.hf_hub_download(name, "vocab.txt"))
  except Exception as error:  # one kind per way a network can fail
    raise InputError(
      f"data.vocab: {name!r} is no local path, and fetching the vocab.txt of"
      f" this model failed ({type(error).__name__}). Without internet, give a"
      " local one: --config.data.vocab=FOLDER/vocab.txt"
    ) from error


def _count_words(
  texts: Iterable[str], *, lowercase: bool
) -> collections.Counter[str]:
  normalizer = normalizers.BertNormalizer(lowercase=lowercase)
  splitter = pre_tokenizers.BertPreTokenizer()
  counts: collections.Counter[str] = collections.Counter()
  for text in texts:
    clean = normalizer.normalize_str(_without_surrogates(text))
    words = (word for word, _ in splitter.pre_tokenize_str(clean))
    counts.update(w for w in words if len(w) <= MAX_WORD_CHARACTERS)
  return counts


def _alphabet(counts: collections.Counter[str]) -> list[str]:
  """Characters of the most words, as word starts and as `##` inside."""
  characters = collections.Counter("".join(counts))
  by_count = sorted(characters, key=lambda c: (-characters[c], c))
  kept = set(by_count[:MAX_ALPHABET])
  inner = {c for word in counts for c in word[1:]} & kept
  return sorted(kept) + ["##" + c for c in sorted(inner)]


def _repeated(counts: collections.Counter[str]) -> Iterator[str]:
  """Every word as often as it occurs, in bounded pieces."""
  for word in sorted(counts):
    left = counts[word]
    while left > 0:
      yield " ".join([word] * min(left, 10_000))
      left -= 10_000
