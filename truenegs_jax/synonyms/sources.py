"""Sources of synonym pairs.

A source is a function `fn(vocabulary, **options)` that yields `(word, synonym)`
pairs: predicting `synonym` where `word` is gold counts as correct. Both are
different words of the vocabulary, compared with the entries of
files by `Vocabulary.match`, in the same order on every call. A call checks
options and files; the pairs are found on iteration. To add a source, write its
function here and list it in SOURCES: its parameters with a default are the
options in `negatives.sources`.
"""

import os
import pathlib
from collections.abc import Callable, Iterable

from truenegs_jax.data.corpus.files import File, stat_file
from truenegs_jax.data.tokens.words import read_words
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import lexicons
from truenegs_jax.synonyms import wordnet as wordnet_lib
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import Vocabulary

Pairs = Iterable[tuple[str, str]]


def wordnet(
  vocabulary: Vocabulary,
  *,
  folder: str = "",
  pos: str = "nvar",
  senses: int = wordnet_lib.ALL_SENSES,
  inflections: bool = False,
) -> Pairs:
  """Yields tokens that share a WordNet synset (paper, "Hard Correction")."""
  pos = wordnet_lib.parse_parts_of_speech(pos)
  if senses < 1:
    raise InputError(
      f"source of synonyms: wordnet senses={senses} leaves no senses. Set 1 or"
      " more, or leave it out for all."
    )
  wordnet_lib.find_wordnet(folder)

  def find() -> Pairs:
    with wordnet_lib.session(folder) as reader:
      yield from wordnet_lib.find_pairs(
        vocabulary, reader, pos=pos, senses=senses, inflections=inflections
      )

  return find()


def vectors(
  vocabulary: Vocabulary,
  *,
  path: str = "",
  top: int = 10,
  threshold: float = -1.0,
  symbols: bool = False,
) -> Pairs:
  """Yields each token with the tokens whose word vectors are nearest.

  The paper's footnote 9 uses the 10 nearest by GloVe 6B with 50 dimensions. The
  nearest come first. The same word in another form (`Cat`) counts for `top` but
  is not yielded. `threshold` is the least cosine; `symbols` includes
  punctuation, numbers and stop words.
  """
  if top < 1 or not -1 <= threshold <= 1:
    raise InputError(
      f"source of synonyms: vectors top={top} threshold={threshold} is out of"
      " range. Set top to 1 or more, and threshold from -1 to 1."
    )
  file = find_file("vectors", path)
  first, entries = lexicons.peek(lexicons.read_entries(file), file)
  lexicons.parse_vector(first)
  words = vocabulary.words
  if not symbols:
    words = dict.fromkeys(filter(vocabulary.may_have_neighbours, words))

  def find() -> Pairs:
    names, vectors_GxD = lexicons.read_vectors(entries, words, vocabulary, file)
    ranked = lexicons.rank_neighbours(vectors_GxD, top=top, threshold=threshold)
    for name, neighbours_J in zip(names, ranked, strict=True):
      for j in neighbours_J:
        if not vocabulary.are_forms(name, names[j]):
          yield name, names[j]

  return find()


def pairs(vocabulary: Vocabulary, *, path: str = "") -> Pairs:
  """Yields the pairs of a file of synonyms or paraphrases, such as PPDB's."""
  file = find_file("pairs", path)
  return lexicons.select_pairs(lexicons.read_groups(file), vocabulary, file)


def omw(
  vocabulary: Vocabulary,
  *,
  path: str = "",
  language: str = "",
  pos: str = "nvar",
) -> Pairs:
  """Yields tokens that share a synset in a file, or in NLTK's `omw-1.4`."""
  pos = wordnet_lib.parse_parts_of_speech(pos)
  file = find_file("omw", path or str(wordnet_lib.find_omw(language)))
  synsets = lexicons.read_omw(file, pos=pos)
  return lexicons.select_pairs(synsets, vocabulary, file)


def saved_table(vocabulary: Vocabulary, *, path: str = "") -> Pairs:
  """Yields the pairs of a saved table; its tokens must be the same, if any."""
  find_file("table", path)
  saved = SynonymTable.load(path, vocabulary.tokens or None)
  words, size = read_words(saved.tokens).words, saved.vocab_size
  ids = (divmod(key, size) for key in saved.keys_Q.tolist())
  return ((words[a], words[b]) for a, b in ids if a != b)


SOURCES: dict[str, Callable[..., Pairs]] = {
  "wordnet": wordnet,
  "vectors": vectors,
  "pairs": pairs,
  "omw": omw,
  "table": saved_table,
}


def find_file(source: str, path: str) -> File:
  """Returns the file of the option `path`; InputError if there is none."""
  if not os.path.isfile(path):
    raise InputError(
      f"source of synonyms: there is no file {path!r}. Set path= of {source};"
      " docs/reference/sources.md says which files it reads, and where they"
      " come from."
    )
  return stat_file(pathlib.Path(path))
