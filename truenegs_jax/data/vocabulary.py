"""Trains vocabularies, and tells what the tokens of any vocabulary are.

  vocab = train_vocabulary(corpus, size=30_522, lowercase=True)
  edges_V = word_edges(vocab)

Training counts words, which are normalized once per 2 MB; the trainer of
`tokenizers` then merges pieces. Its random choices are fixed, so that every
process gets the same vocabulary.

The tokens of a vocabulary show how it marks the boundaries of words:

  ##  before pieces that continue a word (WordPiece)
  Ġ   for a space before a token, which is spelled in bytes (byte-level BPE)
  ▁   for a space before a token (Metaspace: Unigram, some BPE)

Without marks every token is a word. Where spaces are marked, a word has several
ids, such as `main`, `Ġmain` and `ĠMain`, and `main` may also be a piece.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import operator
import pathlib
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from truenegs_jax.runtime import files
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.paths import join_inside

if TYPE_CHECKING:
  import pyarrow

Json = Mapping[str, Any]
Counts = collections.Counter[str]
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
UNUSED = "[unused row {}]"  # no text is encoded to it, as it has spaces
MAX_UNUSED = 2**16  # ids without a token, beyond as many as with one
BATCH_CHARACTERS = 2_000_000  # many, so that most words are repeated
_CHINESE = re.compile("[\u4e00-\u9fff]")  # the most common characters
_SPACES = bytes.maketrans(b"\t\r", b"  ")
# Distinct words in memory, about 200 bytes each. Beyond it, all but the most
# frequent half are dropped, which may change the last entries.
MAX_WORDS = 3 * 2**19
# The trainer must be fed each word as often as it occurs. Larger totals are
# scaled down to this number of words.
MAX_FED_WORDS = 100_000_000
# Characters with entries, as in trainers for BERT; others become [UNK]. A text
# of which these cover less than MIN_COVERAGE, such as Chinese, gets more.
MAX_ALPHABET = 1000
MIN_COVERAGE = 0.9995
ADDED = "added_tokens.json"
CONFIG = "tokenizer_config.json"
FIX = "Use the original files of the tokenizer."
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")  # of added tokens
# BERT's tokenizer.json, whatever its entries, and what it does to case.
BERT: dict[str, dict[str, Any]] = {
  "model": {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": MAX_WORD_CHARACTERS,
  },
  "normalizer": {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
  },
  "pre_tokenizer": {"type": "BertPreTokenizer"},
}
MARKS = ("##", "Ġ", "▁")
NO_TEXT = "\ufffd"  # for bytes that are only a part of a character
Row = tuple[str, str, int, int]  # text, word, class, edges
_SPECIAL = re.compile(r"\[.+\]", re.DOTALL)
_SPACED_SPECIAL = re.compile(r"\[.+\]|<.+>|", re.DOTALL)  # or a byte, or ""
_LETTERS = "<0x", "<unk>", "[UNK]"  # bytes and others that may be a letter
_decode_bytes = decoders.ByteLevel().decode


def batch_texts(texts: Iterable[str]) -> Iterator[list[str]]:
  """Groups texts into lists of at least BATCH_CHARACTERS, except the last."""
  batch: list[str] = []
  size = 0
  for text in texts:
    batch.append(text)
    size += len(text)
    if size >= BATCH_CHARACTERS:
      yield batch
      batch = []
      size = 0
  if batch:
    yield batch


def split_lines(lines: list[str], *, lowercase: bool) -> "pyarrow.ListArray":
  """Splits one or more lines at ASCII and common Chinese, like BERT.

  BERT may split these words further, but never joins two of them. Spaces, tabs,
  line ends and punctuation separate words, some of which are empty. Lone
  surrogates have no UTF-8 and are dropped.
  """
  import pyarrow
  import pyarrow.compute

  text = "\n".join([line.replace("\n", " ") for line in lines])
  text = _CHINESE.sub(r" \g<0> ", text)
  data = text.encode("utf-8", "ignore").translate(_SPACES)
  if lowercase:
    data = data.lower()
  for mark in string.punctuation:
    data = data.replace(mark.encode(), f" {mark} ".encode())
  text_1 = pyarrow.scalar(data, pyarrow.large_string())
  lines_N = pyarrow.compute.split_pattern(text_1, "\n").values
  return pyarrow.compute.split_pattern(lines_N, " ")


def train_vocabulary(
  texts: Iterable[str],
  *,
  size: int,
  lowercase: bool,
  strip_accents: bool | None = None,
  progress: Callable[[str], object] = lambda _: None,
) -> tuple[str, ...]:
  """Trains a WordPiece vocabulary of at most `size` entries.

  Special entries come first (ids 0 to 4), then single characters, then pieces
  by frequency. It has fewer entries if the texts have too few distinct words.

  Args:
    strip_accents: whether "é" becomes "e"; None for the value of `lowercase`.
    progress: called about every 2 MB with a note for the user.
  """
  normalizer = normalizers.BertNormalizer(
    lowercase=lowercase, strip_accents=strip_accents
  )
  counts = _count_words(texts, normalizer, progress)
  characters = _choose_characters(counts, limit=size // 2)
  inner = {c for word in counts for c in word[1:]} & characters
  fixed = [*SPECIALS, *sorted(characters), *("##" + c for c in sorted(inner))]
  if size < len(fixed):
    raise InputError(
      f"data.vocab_size={size} is too small: special entries and characters of"
      f" this text take {len(fixed):,}. Set --config.data.vocab_size to"
      f" {2 * len(fixed)} or more."
    )
  backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
  backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  # The trainer numbers characters in the order of a randomly seeded hash table
  # and breaks ties between merges by these numbers. Passing the characters as
  # special tokens fixes the numbers, and with them the result.
  trainer = trainers.WordPieceTrainer(
    vocab_size=size,
    min_frequency=2,
    show_progress=False,
    special_tokens=fixed,
    limit_alphabet=0,
  )
  backend.train_from_iterator(_repeat_words(counts), trainer)
  ids = backend.get_vocab()
  return tuple(sorted(ids, key=ids.__getitem__))


def _count_words(
  texts: Iterable[str],
  normalizer: normalizers.BertNormalizer,
  progress: Callable[[str], object],
) -> Counts:
  split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
  counts = Counts()
  num_words = 0
  for batch in batch_texts(texts):
    lines = split_lines(batch, lowercase=normalizer.lowercase)
    words = lines.values.value_counts().to_pylist()
    for word, number in map(operator.itemgetter("values", "counts"), words):
      if word.isascii() and word.isprintable():
        tokens = [word]
      else:
        tokens = [token for token, _ in split(normalizer.normalize_str(word))]
      for token in tokens:
        if 0 < len(token) <= MAX_WORD_CHARACTERS:
          counts[token] += number
          num_words += number
    if len(counts) > MAX_WORDS:
      # Words of equal count are dropped together: their order is irrelevant.
      least = sorted(counts.values())[-MAX_WORDS // 2]
      counts = Counts({word: n for word, n in counts.items() if n > least})
    progress(f"counting, {num_words:,} words")
  progress(f"learning, {num_words:,} words")
  return counts


def _choose_characters(counts: Counts, *, limit: int) -> set[str]:
  """Chooses the MAX_ALPHABET characters most frequent in distinct words.

  If they cover too little of the text, chooses the most frequent characters of
  the text instead: enough for MIN_COVERAGE, or `limit` if that is fewer.
  """
  in_words = collections.Counter("".join(counts))
  by_words = sorted(in_words, key=lambda c: (-in_words[c], c))
  kept = set(by_words[:MAX_ALPHABET])
  if len(kept) == len(in_words):
    return kept
  in_text = Counts()
  for word, number in counts.items():
    for character in word:
      in_text[character] += number
  needed = MIN_COVERAGE * in_text.total()
  if sum(in_text[c] for c in kept) >= needed:
    return kept
  by_text = sorted(in_text, key=lambda c: (-in_text[c], c))
  covered = itertools.accumulate(in_text[c] for c in by_text)
  least = sum(value < needed for value in covered) + 1
  return set(by_text[: max(MAX_ALPHABET, min(least, limit))])


def _repeat_words(counts: Counts) -> Iterator[str]:
  """Yields each word as often as it occurs, in strings of bounded length."""
  scale = -(-counts.total() // MAX_FED_WORDS) or 1
  for word in sorted(counts):
    remaining = counts[word] // scale
    while remaining > 0:
      yield " ".join([word] * min(remaining, 10_000))
      remaining -= 10_000


@dataclasses.dataclass(frozen=True, eq=False)
class Words:
  """Texts, words and boundaries of the tokens of a vocabulary."""

  marks_spaces: bool
  texts: tuple[str, ...]  # of tokens, readable; `##` stays
  # Lower case where spaces are marked; "" for `##` pieces and special tokens.
  words: tuple[str, ...]
  classes_V: np.ndarray  # int8, by boundary and casing; odd: at a boundary
  edges_V: np.ndarray  # uint8, of `word_edges`

  @functools.cached_property
  def ids(self) -> dict[str, list[int]]:
    """The ids of each word, in the order of the vocabulary."""
    ids: dict[str, list[int]] = {}
    for i in filter(self.words.__getitem__, range(len(self.words))):
      ids.setdefault(self.words[i], []).append(i)
    return ids

  def fold(self, word: str) -> str:
    """Returns a word as `words` has it."""
    return word.strip("▁ ").lower() if self.marks_spaces else word


@functools.lru_cache(maxsize=4)
def read_words(tokens: tuple[str, ...]) -> Words:
  """Reads texts and boundaries of tokens, by the most frequent mark.

  >>> words = read_words(("Ġmain", "ĠMain", "main", "ly", "<s>"))
  >>> words.texts, words.ids["main"]
  (('main', 'Main', 'main', 'ly', '<s>'), [0, 1, 2])
  """
  counts = [sum(x.startswith(m) and x != m for x in tokens) for m in MARKS]
  mark = MARKS[np.argmax(counts)] if any(counts) else ""
  rows = [_read_token(token, mark) for token in tokens]
  texts, words, classes, edges = zip(*rows, strict=True) if rows else [()] * 4
  arrays = np.array(classes, np.int8), np.array(edges, np.uint8)
  return Words(mark in MARKS[1:], texts, words, *arrays)


def word_edges(tokens: Sequence[str]) -> np.ndarray:
  """Returns edges_V, uint8: 1 continues a word, 2 can be continued, 3 both.

  >>> word_edges(["[PAD]", "swan", "##s"])
  array([2, 2, 3], dtype=uint8)

  Where spaces are marked, letters and digits without a mark continue others.
  """
  return read_words(tuple(tokens)).edges_V


def _read_token(token: str, mark: str) -> Row:
  if mark not in MARKS[1:]:
    if mark and token.startswith(mark):
      return token, "", 0, 3
    return token, "" if _SPECIAL.fullmatch(token) else token, 1, 2
  if _SPACED_SPECIAL.fullmatch(token):
    return token, "", 1, 3 * token.startswith(_LETTERS)
  spaced = _decode_bytes([token]) if mark == "Ġ" else token.replace(mark, " ")
  text = spaced.removeprefix(" ")
  first, last = (
    x == NO_TEXT or unicodedata.category(x)[0] in "LMN"  # accents are M
    for x in (spaced[0], spaced[-1])
  )
  forms = text.lower(), text.capitalize(), text.upper()
  casing = forms.index(text) if text in forms else len(forms)
  word = "" if NO_TEXT in text or text.split() != [text] else text.lower()
  shown = text if text.split() else token
  return shown, word, 2 * casing + (text != spaced), first + 2 * last


def list_tokens(ids: Mapping[str, int], size: int = 0) -> list[str]:
  """Returns a token for each id, at least `size`; ValueError for odd ids."""
  tokens = {i: token for token, i in ids.items()}
  num_rows = max((size, *(i + 1 for i in tokens)))
  if len(tokens) < len(ids) or min(tokens, default=0) < 0:
    raise ValueError("two tokens have one id")
  if num_rows > 2 * len(ids) + MAX_UNUSED:
    raise ValueError(f"{len(ids):,} entries, but ids up to {num_rows - 1:,}")
  return [tokens.get(i, UNUSED.format(i)) for i in range(num_rows)]


def name_roles(content: Json, config: Json) -> dict[str, str]:
  """Returns the name of the token of each role; "" for none."""
  if not content["model"]["vocab"]:
    raise ValueError("no entries")
  added = {token["content"] for token in content.get("added_tokens") or ()}
  others = {"unk": content["model"].get("unk_token")}
  names = {}
  for role, (keys, usual) in ROLES.items():
    given = [config.get(key) for key in keys]
    named = [x["content"] if isinstance(x, dict) else x for x in given]
    known = (name for name in usual if name in added)
    names[role] = next(filter(None, [*named, others.get(role), *known]), "")
  # Where text gets a token on one side only, it gets it on both.
  names["cls"] = names["cls"] or names["sep"]
  names["sep"] = names["sep"] or names["cls"]
  return names


def check_roles(names: dict[str, str], path: pathlib.Path) -> None:
  """Raises InputError if a role has no token, or that of another."""
  fix = "in a tokenizer_config.json beside it; a new token is added"
  for role in ("mask", "pad", "cls", "sep"):
    if not names[role]:
      raise InputError(
        f"data.vocab: '{path}' has no {role} token. Name a {role}_token {fix}."
      )
  for one, other in itertools.combinations(("pad", "mask", "sep", "cls"), 2):
    if names[one] == names[other] and one != "sep":
      raise InputError(
        f"data.vocab: '{path}' has one token for {one} and {other},"
        f" {names[one]!r}. Name another {one}_token {fix}."
      )


def is_bert(content: Json) -> bool:
  """Whether a tokenizer is BERT's, whatever it does to case and accents."""
  vocab = content["model"]["vocab"]
  parts = [(content.get(name, {}), own) for name, own in BERT.items()]
  return (
    isinstance(vocab, dict)
    and vocab.keys() >= {*SPECIALS}
    and all(x is not None and {**x, **own} == {**own, **x} for x, own in parts)
    and all(
      token["special"] and token["content"] in vocab
      for token in content.get("added_tokens") or ()
    )
  )


@contextlib.contextmanager
def read_beside(folder: pathlib.Path, name: str) -> Iterator[Json]:
  """Yields the JSON object of a folder's file; {} if there is no such file."""
  if (folder / name).exists():
    path = join_inside(folder, name)
    with files.read_json(path, InputError, FIX) as values:
      yield values
  else:
    yield {}


def read_added_tokens(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Reads the tokens beside a vocab.txt that users added, sorted by id.

  transformers finds them in a text before it splits the text into words.
  """
  plain = {"special": False, **dict.fromkeys(FLAGS, False)}
  added: dict[str, Any] = {}
  with read_beside(folder, ADDED) as ids:
    for name, i in ids.items():
      added[name] = {**plain, "normalized": True, "id": int(i)}
  with read_beside(folder, CONFIG) as config:
    for i, token in config.get("added_tokens_decoder", {}).items():
      flags = {name: bool(token.get(name)) for name in plain}
      added[token["content"]] = {**flags, "id": int(i)}
  by_id = sorted(added.items(), key=lambda item: item[1]["id"])
  return [{**token, "content": name} for name, token in by_id]
