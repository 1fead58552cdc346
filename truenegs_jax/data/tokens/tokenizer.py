"""WordPiece: a vocabulary, and the ids of lines of text under it.

The algorithm is the Rust one of `tokenizers` (what `BertTokenizer` of
transformers runs); ours are the checks of the vocabulary and its fingerprint.

  tokenizer = load_tokenizer("vocab.txt", lowercase=True)
  tokenizer.encode_lines(["a mute swan"])  # [[1037, 20101, 10677]]
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import atomic_file, short_sha256
from truenegs_jax.runtime.hub_names import is_hub_name

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# data.accents of a config -> strip_accents; BERT strips where it lower-cases.
ACCENTS = {"auto": None, "strip": True, "keep": False}
# Longer words become [UNK], as in transformers (the TF code of BERT has 200).
MAX_WORD_CHARACTERS = 100
MAX_VOCABULARY_BYTES = 64 << 20
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """A WordPiece vocabulary; `load_tokenizer` and `make_tokenizer` check it.

  The id of an entry is its place; `pad` to `mask` are ids of the specials.
  BERT strips accents where it lower-cases; some languages want one of the two.
  """

  vocab: tuple[str, ...]
  lowercase: bool
  strip_accents: bool
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
    if self.strip_accents != self.lowercase:
      text += f" strip_accents={self.strip_accents}"
    return short_sha256(text)

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
      encoded = encode([drop_surrogates(line) for line in lines])
    return [encoding.ids for encoding in encoded]

  def decode(self, ids: Iterable[int]) -> str:
    """The text of ids for a reader: words apart, `##` pieces joined."""
    return " ".join(self.vocab[i] for i in ids).replace(" ##", "")

  @functools.cached_property
  def model(self) -> models.WordPiece:
    """The vocabulary as the Rust library has it."""
    return models.WordPiece(
      vocab={entry: i for i, entry in enumerate(self.vocab)},
      unk_token="[UNK]",
      max_input_chars_per_word=MAX_WORD_CHARACTERS,
    )

  @functools.cached_property
  def _backend(self) -> tokenizers.Tokenizer:
    # Without added tokens: a literal "[MASK]" in a text stays text.
    backend = tokenizers.Tokenizer(self.model)
    backend.normalizer = normalizers.BertNormalizer(
      lowercase=self.lowercase, strip_accents=self.strip_accents
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend


def make_tokenizer(
  vocab: Iterable[str],
  *,
  lowercase: bool,
  strip_accents: bool | None = None,
  origin: str = "vocabulary",
) -> Tokenizer:
  """Checks a vocabulary given as entries; `origin` names it in errors.

  Args:
    strip_accents: "é" becomes "e"; None does it where text is lower-cased.

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
  strip_accents = lowercase if strip_accents is None else strip_accents
  return Tokenizer(tuple(lines), lowercase, strip_accents, *special_ids)


def load_tokenizer(
  path_or_name: str, *, lowercase: bool, strip_accents: bool | None = None
) -> Tokenizer:
  """Reads a vocabulary.

  Args:
    path_or_name: a `vocab.txt`; a `tokenizer.json`; a folder with one of the
      two; or the name of a model on the Hugging Face hub (needs internet).
    lowercase: lower-case text ("uncased").
    strip_accents: strip its accents; None, as BERT: where it is lower-cased.

  Raises:
    InputError: nothing there, or not a usable WordPiece vocabulary, or one
      that a tokenizer.json normalises text for in another way.
  """
  strip_accents = lowercase if strip_accents is None else strip_accents
  options = {"lowercase": lowercase, "strip_accents": strip_accents}
  path = pathlib.Path(path_or_name).expanduser()
  if path_or_name and path.exists():
    file = _file_in_folder(path) if path.is_dir() else path
    return _load_file(file, options)
  if path.suffix in (".txt", ".json") or not is_hub_name(path_or_name):
    raise InputError(
      f"data.vocab: {path_or_name!r} is neither a file, a folder nor a name"
      ' on the Hugging Face hub: give the path of a vocab.txt, or "train".'
    )
  return _load_file(_download(path_or_name), options)


def write_vocabulary(vocab: Sequence[str], path: str | pathlib.Path) -> None:
  """Writes a `vocab.txt`: one entry a line, UTF-8, line n holds id n - 1."""
  with atomic_file(pathlib.Path(path)) as file:
    file.writelines(f"{entry}\n".encode() for entry in vocab)


def drop_surrogates(line: str) -> str:
  """Leaves out what no UTF-8 holds, so that Rust can take the rest."""
  return line.encode("utf-8", "ignore").decode("utf-8")


def _file_in_folder(folder: pathlib.Path) -> pathlib.Path:
  for name in ("vocab.txt", "tokenizer.json"):
    if (folder / name).is_file():
      return folder / name
  raise InputError(f"{folder} holds neither vocab.txt nor tokenizer.json.")


def _load_file(path: pathlib.Path, options: dict[str, bool]) -> Tokenizer:
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
    vocab = _entries_of_json(data, path, options)
  else:
    vocab = _entries_of_lines(data, path)
  return make_tokenizer(vocab, **options, origin=str(path))


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
  data: bytes, path: pathlib.Path, options: dict[str, bool]
) -> list[str]:
  try:
    content: Any = json.loads(data)
    ids: dict[str, int] = dict(content["model"]["vocab"])
    entries = sorted(ids, key=ids.__getitem__)
    kind = content["model"].get("type", "WordPiece")
    normalizer = dict(content.get("normalizer") or {})
  except _MALFORMED as error:
    raise InputError(
      f"{path}: is not a WordPiece tokenizer.json: give a vocab.txt instead."
    ) from error
  if kind != "WordPiece" or sorted(ids.values()) != list(range(len(ids))):
    raise InputError(
      f"{path}: a {kind} tokenizer with {len(ids)} entries; WordPiece with"
      " ids 0, 1, 2, ... is needed: give a BERT or ELECTRA vocab.txt."
    )
  _check_normalizer(normalizer, path, options)
  return entries


def _check_normalizer(
  normalizer: dict[str, Any], path: pathlib.Path, options: dict[str, bool]
) -> None:
  """Refuses a vocabulary that is meant for text normalised in another way."""
  lowercase, strip = options["lowercase"], options["strip_accents"]
  if normalizer and normalizer.get("strip_accents") is None:
    # BERT's null stands for "as lower-casing says".
    normalizer["strip_accents"] = normalizer.get("lowercase", lowercase)
  if (found := normalizer.get("lowercase", lowercase)) != lowercase:
    raise InputError(
      f"data.lowercase={lowercase}, but {path} has {found}: set that."
    )
  if (found := normalizer.get("strip_accents", strip)) != strip:
    raise InputError(
      f"strip_accents={strip} was asked for, but {path} has {found}: set"
      f' data.accents="{"strip" if found else "keep"}".'
    )
  berts = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
  }
  for name, value in berts.items():
    if (found := normalizer.get(name, value)) != value:
      raise InputError(
        f"{path}: its normalizer has {name}={found}, and text is normalised as"
        f" BERT does, with {value}: give the vocabulary of another model."
      )


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
