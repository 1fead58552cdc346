"""Measures how much of a vocabulary and of a text has synonyms."""

import contextlib
import json
from collections.abc import Sequence

import numpy as np

from truenegs_jax.data.corpus.sources import WordNetReader
from truenegs_jax.runtime import cache
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.files import atomic_file, disk_errors, short_sha256
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.run_table import TableRequest, file_state
from truenegs_jax.synonyms.table import (
  SynonymTable,
  vocabulary_fingerprint,
)
from truenegs_jax.synonyms.vocabulary import STOP_WORDS, may_have_synonyms

# Share of a text's words below which a warning is due. English has 76 to 82 %
# with WordNet; French has 20 to 22 % with it, and 42 to 44 % with a thesaurus.
MIN_SHARE = 0.3
NUM_EXAMPLES = 8


def describe(
  request: TableRequest,
  table: SynonymTable,
  tokens: Sequence[str],
  counts_V: np.ndarray | None = None,
) -> tuple[dict[str, str], str]:
  """Describes how much of a vocabulary and of a text has synonyms.

  Args:
    request: the request of the table.
    table: the synonym table.
    tokens: the vocabulary, token `i` at position `i`.
    counts_V: occurrences of each token in the text, if there is one.

  Returns:
    Lines of a report, name -> text, and a warning, "" for none.
  """
  try:
    stops = request.load_stop_words()
  except (InputError, DataError):  # lost since the table was built
    stops = STOP_WORDS
  is_counted_V = may_have_synonyms(tokens, stop_words=stops)
  lines, warning = {}, ""
  has_synset_V = load_synsets(request, tokens)
  if has_synset_V is not None:
    size, count = len(tokens), np.count_nonzero(has_synset_V)
    without = np.count_nonzero(has_synset_V & is_counted_V)
    # The paper's share includes the stop words that it calls removed.
    lines["in WordNet"] = (
      f"{count:,} tokens have a synset: {count / size:.2%} of the vocabulary;"
      f" {without:,} are no stop words: {without / size:.2%} (the paper's"
      " footnote 5, of BERT's vocabulary: 62.51%)"
    )
  if counts_V is not None:
    share, uncovered = measure_text(table, tokens, counts_V * is_counted_V)
    examples = ", ".join(uncovered) or "none"
    lines["text"] = (
      f"{share:.1%} of its tokens have synonyms (not counted: stop words,"
      f" symbols, ## pieces); frequent ones without: {examples}"
    )
    if share < MIN_SHARE:
      warning = (
        f"warning: {request.key}={request.sources!r} has synonyms for only"
        f" {share:.1%} of the text's tokens, none for {examples}. Corrections"
        " will be rare. Use sources, such as 'pairs path=FILE', and a"
        " vocabulary of the text's language."
      )
  return lines, warning


def measure_text(
  table: SynonymTable, tokens: Sequence[str], counts_V: np.ndarray
) -> tuple[float, list[str]]:
  """Measures how many of a text's words have synonyms.

  Words are tokens with a letter. `counts_V` are the occurrences of the `tokens`
  of the table's vocabulary in the text, 0 for those that are not counted.

  Returns:
    Their share, 1 in a text without words; and some words without synonyms, the
    most frequent first.
  """
  has_letter_V = [any(map(str.isalpha, token)) for token in tokens]
  counts_V = counts_V * has_letter_V
  uncovered_V = np.where(table.lengths_V > 0, 0, counts_V)
  order = np.argsort(-uncovered_V, kind="stable")[:NUM_EXAMPLES]
  num_words = counts_V.sum()
  share = (num_words - uncovered_V.sum()) / num_words if num_words else 1.0
  return float(share), [tokens[i] for i in order if uncovered_V[i]]


def find_synsets(tokens: Sequence[str], reader: WordNetReader) -> np.ndarray:
  """Returns bool_V: the token, or a word it is a form of, is in WordNet."""
  return np.array(
    [
      any(
        wordnet.find_stems(token.lower(), pos, reader)
        for pos in wordnet.PARTS_OF_SPEECH
      )
      for token in tokens
    ],
    bool,
  )


def load_synsets(
  request: TableRequest, tokens: Sequence[str]
) -> np.ndarray | None:
  """Returns `find_synsets` for the WordNet of a request; None without WordNet.

  The result is cached, because opening WordNet takes seconds. A WordNet that
  is missing or damaged counts as none: a resumed run has its table.

  Raises:
    DiskError: the cache cannot be written.
  """
  options = request.wordnet_options
  if options is None:
    return None
  try:
    files = wordnet.list_files(options["folder"])
    states = short_sha256(json.dumps([file_state(file) for file in files]))
    name = f"synsets-{vocabulary_fingerprint(tokens)}-{states}.npy"
    path = cache.folder() / "synonyms" / name
    with contextlib.suppress(OSError, ValueError, EOFError):  # none, or damaged
      return np.load(path)
    with wordnet.session(options["folder"]) as reader:
      has_synset_V = find_synsets(tokens, reader)
  except (InputError, DataError):
    return None
  with disk_errors(path):
    path.parent.mkdir(parents=True, exist_ok=True)
  with atomic_file(path, several_writers=True) as file:
    np.save(file, has_synset_V)
  return has_synset_V
