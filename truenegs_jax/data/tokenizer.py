"""Loads and checks vocabularies, and encodes text with them.

The Rust library `tokenizers` encodes, like for tokenizers of transformers; but
special tokens written in a text, such as "[MASK]", are spelled out in pieces.
"""

import bisect
import dataclasses
import functools
import itertools
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from truenegs_jax.data.vocabulary import (
  ADDED,
  CONFIG,
  FIX,
  FLAGS,
  MAX_WORD_CHARACTERS,
  ROLES,
  SPECIALS,
  UNUSED,
  check_roles,
  is_bert,
  list_tokens,
  name_roles,
  read_added_tokens,
  read_beside,
)
from truenegs_jax.runtime import files
from truenegs_jax.runtime.errors import FAILING, DataError, InputError
from truenegs_jax.runtime.paths import is_hub_name, join_inside, open_path
from truenegs_jax.runtime.trial import try_tokenizer

VOCABULARY = "vocab.txt"
JSON = "tokenizer.json"
FILES = [VOCABULARY, JSON]
# Those that a tokenizer.json needs beside it, and of a model on the hub.
SETTINGS = ["config.json", "special_tokens_map.json", CONFIG]
HUB_FILES = [*FILES, *SETTINGS, ADDED]
# `data.accents` of a config -> strip_accents; None follows `lowercase`.
ACCENTS = {"auto": None, "strip": True, "keep": False}
MAX_VALUES = 2**22  # of a tokenizer.json; Gemma's has 2 million
# White space for Rust, which reads entries; for Python also \x1c to \x1f.
WHITE = "".join(
  c for c in map(chr, range(0x3001)) if c.isspace() and not "\x1b" < c < " "
)
Json = Mapping[str, Any]


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


def load_tokenizer(
  path_or_name: str, *, lowercase: bool, strip_accents: bool | None = None
) -> Tokenizer:
  """Reads a vocabulary, and returns its tokenizer.

  >>> len(load_tokenizer("rows/vocab.txt", lowercase=True).vocab)
  38

  Args:
    path_or_name: a `vocab.txt`, a `tokenizer.json`, a folder that contains one
      of them, or the name of a model on the Hugging Face hub (needs internet).
    lowercase, strip_accents: of BERT's, as for `make_tokenizer`. Other files
      say themselves what they do to case and accents.
  """
  strip_accents = lowercase if strip_accents is None else strip_accents
  options = {"lowercase": lowercase, "strip_accents": strip_accents}
  path = open_path("data.vocab", path_or_name)
  is_hub = path.suffix not in (".txt", ".json") and is_hub_name(path_or_name)
  if is_hub and not path.exists():
    path = _download(path_or_name)
  problem = "does not exist"
  if path_or_name and path.is_dir():
    problem = "has no vocab.txt and no tokenizer.json"
    path = find_file(path) or path / VOCABULARY
  if not path_or_name or not path.exists():
    raise InputError(
      f"data.vocab={path_or_name!r} {problem}. Set --config.data.vocab=FILE, a"
      " vocab.txt or a tokenizer.json, or to its folder, a model on the hub or"
      " train; --vocab of `truenegs synonyms` to one of these files or a run."
    )
  if path.suffix != ".json":
    entries = _read_entries(path)
    tokenizer = make_tokenizer(entries, **options, origin=str(path))
    return _add_tokens(tokenizer, path.parent)
  with files.read_json(path, InputError, FIX, MAX_VALUES) as content:
    if is_bert(content):
      _check_options(content.get("normalizer", {}), path, options)
      vocab = list_tokens(content["model"]["vocab"])
      return make_tokenizer(vocab, **options, origin=str(path))
    config: dict[str, Any] = {}
    for name in SETTINGS:
      with read_beside(path.parent, name) as values:
        config |= values
    names = name_roles(content, config)
    check_roles(names, path)
    return _define(content, names, config.get("vocab_size", 0))


def find_file(folder: pathlib.Path) -> pathlib.Path | None:
  """Returns the file of a folder's vocabulary: a vocab.txt only if BERT's."""
  text, json_file = (join_inside(folder, name) for name in FILES)
  if not json_file.is_file():
    return text if text.is_file() else None
  with files.read_json(json_file, InputError, FIX, MAX_VALUES) as content:
    return text if text.is_file() and is_bert(content) else json_file


def build_tokenizer(data: Any, vocab: str) -> Tokenizer:
  """Loads a vocabulary with the options of `c.data`."""
  strip_accents = ACCENTS[data.accents]
  return load_tokenizer(
    vocab, lowercase=data.lowercase, strip_accents=strip_accents
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


def normalize(backend: tokenizers.Tokenizer, text: str) -> str:
  """Returns text as a tokenizer writes it in its vocabulary."""
  text = drop_surrogates(text)
  return backend.normalizer.normalize_str(text) if backend.normalizer else text


def drop_surrogates(text: str) -> str:
  """Removes lone surrogates, which Rust strings (UTF-8) cannot hold."""
  return text.encode("utf-8", "ignore").decode("utf-8")


def _read_entries(path: pathlib.Path) -> list[str]:
  """Returns the entries of a vocab.txt, without white space at their ends."""
  try:
    text = files.read_file(path).decode("utf-8-sig").rstrip("\r\n")
  except (OSError, ValueError) as error:
    if isinstance(error, OSError) and error.errno in FAILING:
      raise
    raise InputError(
      f"{path}: cannot be read ({files.describe_error(error)}). It must have an"
      " entry a line. If it is compressed, unpack it (gunzip, xz -d)."
    ) from error
  return [line.rstrip(WHITE) for line in text.split("\n")]


def _add_tokens(tokenizer: Tokenizer, folder: pathlib.Path) -> Tokenizer:
  """Adds the tokens that users added to BERT's, in files beside a vocab.txt."""
  added = read_added_tokens(folder)
  new = [token for token in added if token["content"] not in tokenizer.vocab]
  if not new:
    return tokenizer
  backend = tokenizer.make_backend()
  backend.decoder = decoders.WordPiece()
  content = json.loads(backend.to_str()) | {"added_tokens": new}
  try:
    return _define(content, dict(zip(ROLES, SPECIALS, strict=True)), 0)
  except ValueError as error:
    raise InputError(
      f"'{folder}': the tokens in {ADDED} or {CONFIG} do not fit the"
      f" {VOCABULARY} ({error}). {FIX}"
    ) from error


def _check_options(
  normalizer: Json, path: pathlib.Path, options: Mapping[str, bool]
) -> None:
  """Raises InputError if BERT's normalizer differs from the options."""
  own = dict(normalizer)
  if own.get("strip_accents") is None:  # it means the value of lowercase
    own["strip_accents"] = own.get("lowercase", options["lowercase"])
  for name, value in options.items():
    if own.get(name, value) != value:
      raise InputError(
        f"data: {name}={value} differs from {name}={own[name]} in '{path}'. Set"
        " --config.data.lowercase or --config.data.accents to its value, or use"
        " another vocabulary."
      )


def _define(content: Json, names: dict[str, str], num_rows: int) -> Tokenizer:
  """Completes a tokenizer.json with special tokens and `num_rows` rows."""
  text = json.dumps(content, ensure_ascii=False)
  # It may be a stranger's, and a panic in Rust would end this process.
  if reason := try_tokenizer(text.encode()):
    raise ValueError(f"a trial failed: {reason}")
  backend = tokenizers.Tokenizer.from_str(text)
  specials = [name for name in names.values() if name]
  backend.add_special_tokens(specials)
  vocab = list_tokens(backend.get_vocab(), num_rows)
  ids = {name: i for i, name in enumerate(vocab)}
  model = {**content["model"], "dropout": None}
  size = len(model["vocab"])
  if isinstance(model["vocab"], dict):  # `tokenizers` would fill its holes
    size = max(model["vocab"].values()) + 1
    model["vocab"] = {name: i for i, name in enumerate(vocab[:size])}
  given = {x["content"]: x for x in content.get("added_tokens") or ()}
  added = []
  for i, name in enumerate(vocab):
    if i >= size or name in specials or name in given:
      token = {"special": True, **dict.fromkeys(FLAGS, False)}
      token |= given.get(name, {}) | {"id": i, "content": name}
      token["special"] |= name in specials
      added.append(token)
  steps = str({**content, "model": "", "added_tokens": ""})
  if "ByteLevel" in steps or "▁" in steps:
    mask = next(x for x in added if x["content"] == names["mask"])
    mask["lstrip"] = True  # it stands for a word with the space before it
  # [CLS] A [SEP], or [CLS] A [SEP] B [SEP].
  ends = {role: [names[role], ids[names[role]]] for role in ("cls", "sep")}
  complete = {
    **content,
    **dict.fromkeys(("truncation", "padding")),
    "added_tokens": added,
    "post_processor": {"type": "BertProcessing", **ends},
    "model": model,
  }
  return Tokenizer(
    tuple(vocab),
    lowercase="a" in normalize(backend, "A"),
    strip_accents="e" in normalize(backend, "é"),
    **{role: ids.get(name, -1) for role, name in names.items()},
    definition=json.dumps(complete, ensure_ascii=False),
  )


def _download(name: str) -> pathlib.Path:
  from huggingface_hub import snapshot_download  # slow to import

  try:
    return pathlib.Path(snapshot_download(name, allow_patterns=HUB_FILES))
  except Exception as error:  # the library raises many kinds of errors
    raise InputError(
      f"data.vocab={name!r} is no file or folder, and downloading it from the"
      f" hub failed ({type(error).__name__}). Run `hf download {name}"
      " --local-dir FOLDER` elsewhere, and set --config.data.vocab=FOLDER."
    ) from error
