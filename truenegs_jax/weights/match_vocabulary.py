"""Compares the vocabulary of weights with the run's, and copies rows over."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from truenegs_jax.data.tokens.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.network import Network

Flat = dict[str, np.ndarray]  # parameters by path

# Values of `init_skip`: rows of words or positions, or a task head, that need
# not match the weights.
SKIPS = ("words", "positions", "head")

# Arrays with a row for every word.
WORD_ARRAYS = ("embeddings/word", "bert_head/bias", "generator_head/bias")
POSITIONS = "embeddings/position"
MAX_LISTED = 10  # new words that are listed


def parse_skip(text: str) -> frozenset[str]:
  """Parses the comma-separated values of `init_skip`."""
  values = frozenset(filter(None, text.replace(" ", "").split(",")))
  if unknown := values - set(SKIPS):
    raise InputError(
      f"init_skip={text!r} has unknown values: {', '.join(sorted(unknown))}."
      f" Choose from {', '.join(SKIPS)}."
    )
  return values


def check_vocabularies(
  networks: Mapping[str, Network],
  tokenizer: Tokenizer,
  *,
  skip: Iterable[str] = (),
) -> dict[str, Sequence[str] | None]:
  """Refuses weights whose vocabulary is known and is not the run's.

  Args:
    skip: values of SKIPS; with "words" the vocabularies may differ.

  Returns:
    The vocabulary next to the weights of each role; None if there is none.
  """
  vocabs: dict[str, Sequence[str] | None] = {}
  for role, network in networks.items():
    vocab = None
    if network.vocabulary is not None:
      vocab = load_tokenizer(
        str(network.vocabulary),
        lowercase=tokenizer.lowercase,
        strip_accents=tokenizer.strip_accents,
      ).vocab
    vocabs[role] = vocab
    _check_normalization(network, vocab, tokenizer)
    if vocab is None and "words" in skip:
      raise InputError(
        f"init: {network.location} has no vocabulary file. init_skip=words"
        " needs it to find the rows of known words. Copy the vocab.txt of the"
        " weights there."
      )
    if vocab not in (None, tokenizer.vocab) and "words" not in skip:
      raise InputError(
        f"init: '{network.vocabulary}' is not the run's vocabulary, so the rows"
        " of the word embeddings would stand for other words. Use the"
        f" vocabulary of the weights: --config.data.vocab={network.vocabulary}."
        " Or copy the rows of known words: --config.init_skip=words."
      )
  return vocabs


def is_cased(vocab: Iterable[str]) -> bool:
  """Whether a vocabulary has words that lower-cased text cannot contain."""
  return any(w != w.lower() for w in vocab if not w.startswith("["))


def _check_normalization(
  network: Network, vocab: Sequence[str] | None, tokenizer: Tokenizer
) -> None:
  """Refuses weights that were trained on text normalized in another way."""
  lowercase = network.lowercase
  if lowercase is None and vocab and is_cased(vocab):
    lowercase = False
  if lowercase not in (None, tokenizer.lowercase):
    raise InputError(
      f"init: {network.location} was trained with lowercase={lowercase}, but"
      f" this run has data.lowercase={tokenizer.lowercase}. Set"
      f" --config.data.lowercase={lowercase}."
    )
  if network.strip_accents not in (None, tokenizer.strip_accents):
    accents = "strip" if network.strip_accents else "keep"
    raise InputError(
      f"init: {network.location} was trained with strip_accents="
      f"{network.strip_accents}, but this run has strip_accents="
      f"{tokenizer.strip_accents}. Set --config.data.accents={accents}."
    )


def carry_words(
  flat: Flat,
  init_params: Callable[[], Flat],
  vocab: Sequence[str],
  old_vocab: Sequence[str],
  report: Callable[[str], object],
) -> Flat:
  """Returns `WORD_ARRAYS` with the rows in the order of another vocabulary.

  Args:
    flat: arrays of the weights, `[rows, ...]`. There may be more rows than
      words: some tables are padded to a round number.
    init_params: returns the parameters of a run from scratch, `[V, ...]`.
    vocab: the V words of the run.
    old_vocab: the words of the weights.
    report: receives a line about new words and dropped rows.
  """
  num_rows = len(flat[WORD_ARRAYS[0]])
  if len(old_vocab) > num_rows:
    raise InputError(
      f"init: the vocabulary next to the weights has {len(old_vocab):,} words,"
      f" but their word embeddings have {num_rows:,} rows. Use the vocabulary"
      " that belongs to the weights."
    )
  row_of = {token: i for i, token in enumerate(old_vocab)}
  rows_V = np.array([row_of.get(token, -1) for token in vocab])
  new = [token for token in vocab if token not in row_of]
  kept = len(vocab) - len(new)
  listed = ", ".join(new[:MAX_LISTED]) + (", ..." if new[MAX_LISTED:] else "")
  if new or kept < num_rows:
    report(
      f"init: copied the rows of {kept:,} of {len(vocab):,} words. Dropped"
      f" {num_rows - kept:,} rows. Words drawn at random:"
      f" {len(new):,}{f' ({listed})' if new else ''}."
    )
  carried, is_known_V = {}, rows_V >= 0
  for name in WORD_ARRAYS:
    if name in flat:
      carried[name] = init_params()[name].copy()
      carried[name][is_known_V] = flat[name][rows_V[is_known_V]]
  return carried


def carry_positions(
  flat: Flat,
  init_params: Callable[[], Flat],
  size: int,
  report: Callable[[str], object],
) -> Flat:
  """Returns a table of `size` positions that begins with the weights' rows."""
  if POSITIONS not in flat or (old_size := len(flat[POSITIONS])) == size:
    return {}
  if size > old_size:
    report(f"init: positions {old_size:,} to {size - 1:,} are drawn at random.")
  else:
    report(f"init: dropped positions {size:,} to {old_size - 1:,}.")
  table_PxE = init_params()[POSITIONS].copy()
  table_PxE[:old_size] = flat[POSITIONS][:size]
  return {POSITIONS: table_PxE}
