"""Measures WordNet's first senses as synonyms by other lexicons.

  python benchmarks/senses.py --vocab=vocab.txt --text=wiki.test.raw \\
      --pairs=ppdb-xl.txt.xz --vectors=glove.6B.50d.txt

Prints a row of a Markdown table for each table `wordnet senses=N`, whose pairs
are (word, synonym) of the vocabulary:

  text       share of the text's tokens that have synonyms, counted as by
             `truenegs synonyms --text`
  precision  of the pairs whose two words both occur anywhere in --pairs, the
             share that --pairs lists, in either direction
  recall     of the pairs that --pairs lists, in both directions, between words
             of the vocabulary, the first no stop word: the share in the table
  cosine     mean over the pairs of two words that have vectors
"""

import pathlib

import numpy as np
from absl import app, flags

from truenegs_jax.data.corpus.files import stat_file
from truenegs_jax.data.corpus.sources_spec import open_corpus
from truenegs_jax.data.tokens.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.synonyms import lexicons
from truenegs_jax.synonyms.run_table import TableRequest, describe_text
from truenegs_jax.synonyms.vocabulary import Vocabulary

VOCAB = flags.DEFINE_string("vocab", None, "vocabulary in lower case")
TEXT = flags.DEFINE_string("text", None, "like data.sources")
PAIRS = flags.DEFINE_string("pairs", None, "file of the source pairs")
VECTORS = flags.DEFINE_string("vectors", None, "file of the source vectors")
SENSES = flags.DEFINE_list("senses", ["1", "2", "3", "all"], "values of N")

TITLES = ("senses", "pairs", "words", "text", "precision", "recall", "cosine")


def count_tokens(text: str, tokenizer: Tokenizer) -> np.ndarray:
  """Returns counts_V: occurrences of the tokens in a text."""
  counts_V = np.zeros(len(tokenizer.vocab), np.int64)
  for document in open_corpus(text, key="--text"):
    for ids in tokenizer.encode_lines(document.split("\n")):
      np.add.at(counts_V, ids, 1)
  return counts_V


def find_words(path: str, tokenizer: Tokenizer) -> np.ndarray:
  """Returns bool_V: tokens that occur in a file of pairs."""
  groups = lexicons.read_groups(stat_file(pathlib.Path(path)))
  words = {x for group in groups for words in group for x in words}
  return np.array([token in words for token in tokenizer.vocab])


def read_directions(path: str, tokenizer: Tokenizer) -> np.ndarray:
  """Returns directions_VxD: vectors of length 1, or 0 for tokens without."""
  file = stat_file(pathlib.Path(path))
  vocabulary = Vocabulary(tokenizer.vocab, tokenizer.normalize)
  entries = lexicons.read_entries(file)
  names, vectors_GxD = lexicons.read_vectors(
    entries, vocabulary.words, vocabulary, file
  )
  vectors_GxD = vectors_GxD.astype(np.float64)
  directions_VxD = np.zeros((len(tokenizer.vocab), vectors_GxD.shape[1]))
  ids_G = [tokenizer.vocab.index(name) for name in names]
  norms_Gx1 = np.linalg.norm(vectors_GxD, axis=1, keepdims=True)
  directions_VxD[ids_G] = vectors_GxD / norms_Gx1
  return directions_VxD


def main(argv: list[str]) -> None:
  """Prints the table."""
  del argv
  tokenizer = load_tokenizer(VOCAB.value, lowercase=True)
  size, counts_V = len(tokenizer.vocab), count_tokens(TEXT.value, tokenizer)
  # The table of the pairs without lists of stop words, then with them.
  listed, all_listed = (
    TableRequest(
      f"pairs path={PAIRS.value}", symmetric=True, keep_stop_words=keep
    ).build(tokenizer)
    for keep in (False, True)
  )
  occurs_V = find_words(PAIRS.value, tokenizer)
  directions_VxD = read_directions(VECTORS.value, tokenizer)
  has_vector_V = directions_VxD.any(axis=1)
  print("|", " | ".join(TITLES), "|")
  print("|", " | ".join("---" for _ in TITLES), "|")
  for senses in SENSES.value:
    option = "" if senses == "all" else f" senses={senses}"
    request = TableRequest(f"wordnet{option}")
    table = request.build(tokenizer)
    text, _ = describe_text(request, table, counts_V)
    word_Q, synonym_Q = np.divmod(table.keys_Q, size)
    judged_Q = occurs_V[word_Q] & occurs_V[synonym_Q]
    precision = np.isin(table.keys_Q[judged_Q], all_listed.keys_Q).mean()
    recall = np.isin(listed.keys_Q, table.keys_Q).mean()
    both_Q = has_vector_V[word_Q] & has_vector_V[synonym_Q]
    cosine_Q = (
      directions_VxD[word_Q[both_Q]] * directions_VxD[synonym_Q[both_Q]]
    ).sum(axis=1)
    cells = (
      *(senses, f"{table.num_pairs:,}", f"{table.num_rows:,}"),
      *(text.partition(" ")[0], f"{precision:.1%}", f"{recall:.1%}"),
      f"{cosine_Q.mean():.3f}",
    )
    print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
  flags.mark_flags_as_required(["vocab", "text", "pairs", "vectors"])
  app.run(main)
