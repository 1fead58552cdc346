"""Tokenizers of every kind, made by `tokenizers` as a user would."""

import json
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

WORDS = ["swan", "Swan", "crane", "grebe", "swims", "flies", "the", "a", "é."]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SENTENCEPIECE = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]


def make_texts(count: int = 200) -> list[str]:
  """Makes texts of few words, some of which repeat parts of others."""
  rng = np.random.default_rng(0)
  return [" ".join(rng.choice(WORDS, 9)) for _ in range(count)]


def make_tokenizer(kind: str, size: int = 300) -> Tokenizer:
  """Trains "bpe" (byte-level), "unigram" or "wordpiece" (not BERT's)."""
  trainer: Any
  if kind == "bpe":
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
      vocab_size=size,
      special_tokens=BERT,
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
      show_progress=False,
    )
  elif kind == "unigram":
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
      vocab_size=60,
      unk_token="<unk>",
      special_tokens=SENTENCEPIECE,
      show_progress=False,
    )
  else:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
      vocab_size=60, special_tokens=BERT, show_progress=False
    )
  tokenizer.train_from_iterator(make_texts(), trainer)
  return tokenizer


def write_files(
  folder: pathlib.Path, kind: str = "bpe", **changes: Any
) -> pathlib.Path:
  """Writes a tokenizer.json with `changes`; returns its path."""
  folder.mkdir(exist_ok=True)
  path = folder / "tokenizer.json"
  content = json.loads(make_tokenizer(kind).to_str()) | changes
  path.write_text(json.dumps(content))
  return path


def write_vocabulary(vocab: Iterable[str], path: pathlib.Path) -> None:
  """Writes a `vocab.txt`, an entry a line."""
  path.write_text("".join(f"{entry}\n" for entry in vocab), encoding="utf-8")
