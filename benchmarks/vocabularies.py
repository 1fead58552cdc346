"""Measures WordNet's synonyms in vocabularies that mark words in other ways.

  python benchmarks/vocabularies.py --vocab=vocab.txt --train=wikipedia.txt \\
      --text=wiki.test.raw

Trains a byte-level BPE and a Unigram with Metaspace on --train, of the size of
the WordPiece in --vocab, and prints a row of a Markdown table for each:

  ids        tokens that have synonyms, and their share of the vocabulary
  words      of the tokens of letters that follow a space (no piece), the share
  pairs      of tokens
  tokens     of --text
  corrected  of these, the share that are whole words and have synonyms
"""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import tokenizers
from absl import app, flags
from tokenizers import models, normalizers, pre_tokenizers, trainers

import truenegs_jax as tn
from truenegs_jax.data.corpus.sources_spec import open_corpus
from truenegs_jax.data.tokens.words import read_words

VOCAB = flags.DEFINE_string("vocab", None, "a WordPiece in lower case")
TRAIN = flags.DEFINE_string("train", None, "text, like data.sources")
TEXT = flags.DEFINE_string("text", None, "text, like data.sources")

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TITLES = ("vocabulary", "ids", "words", "pairs", "tokens", "corrected")


def read_lines(text: str, key: str) -> Iterator[str]:
  """Yields the lines of a text that are not empty."""
  for document in open_corpus(text, key=key):
    yield from filter(None, document.split("\n"))


def train_bpe(lines: Iterator[str], size: int) -> tokenizers.Tokenizer:
  """Trains a byte-level BPE, as GPT-2 and ModernBERT have it."""
  backend = tokenizers.Tokenizer(models.BPE())
  backend.normalizer = normalizers.NFC()
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  trainer = trainers.BpeTrainer(
    vocab_size=size,
    special_tokens=SPECIALS,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  backend.train_from_iterator(lines, trainer)
  return backend


def train_unigram(lines: Iterator[str], size: int) -> tokenizers.Tokenizer:
  """Trains a Unigram with Metaspace, as SentencePiece does."""
  backend = tokenizers.Tokenizer(models.Unigram())
  backend.normalizer = normalizers.NFKC()
  backend.pre_tokenizer = pre_tokenizers.Metaspace()
  trainer = trainers.UnigramTrainer(
    vocab_size=size,
    special_tokens=SPECIALS,
    unk_token="[UNK]",
    show_progress=False,
  )
  backend.train_from_iterator(lines, trainer)
  return backend


def measure(backend: tokenizers.Tokenizer, lines: list[str]) -> list[str]:
  """Returns the cells of a vocabulary."""
  table = tn.build_table(backend)
  has_list_V, words = table.lengths_V > 0, read_words(table.tokens)
  begins_V = np.array([word.isalpha() for word in words.words])
  begins_V &= words.classes_V % 2 == 1
  rows = [
    encoding.ids
    for encoding in backend.encode_batch(lines, add_special_tokens=False)
  ]
  document_T = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
  tokens_T = np.concatenate(rows).astype(int)
  [is_word_T] = tn.is_whole_word(
    {"tokens": tokens_T[None], "documents": document_T[None]},
    jnp.arange(len(tokens_T))[None],
    words.edges_V,
  )
  return [
    f"{table.num_rows:,} ({table.num_rows / table.vocab_size:.1%})",
    f"{has_list_V[begins_V].mean():.1%}",
    f"{table.num_pairs:,}",
    f"{len(tokens_T):,}",
    f"{(has_list_V[tokens_T] & is_word_T).mean():.1%}",
  ]


def main(argv: list[str]) -> None:
  """Prints the table."""
  del argv
  tokenizer = tn.load_tokenizer(VOCAB.value, lowercase=True)
  lines = [*read_lines(TEXT.value, "--text")]
  print("|", " | ".join(TITLES), "|")
  print("|", " | ".join("---" for _ in TITLES), "|")
  for name, make in {"BPE": train_bpe, "Unigram": train_unigram}.items():
    size, train = len(tokenizer.vocab), read_lines(TRAIN.value, "--train")
    cells = measure(make(train, size), lines)
    print("|", " | ".join([name, *cells]), "|", flush=True)
  cells = measure(tokenizer.make_backend(), lines)
  print("|", " | ".join(["WordPiece", *cells]), "|")


if __name__ == "__main__":
  flags.mark_flags_as_required(["vocab", "train", "text"])
  app.run(main)
