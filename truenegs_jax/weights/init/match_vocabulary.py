"""Compares the vocabulary of weights with the run's, and copies rows over."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.data.tokens.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats.network import Network

Flat = dict[str, np.ndarray]  # parameters by path

# Arrays with a row for every word.
WORD_ARRAYS = ("embeddings/word", "bert_head/bias", "generator_head/bias")
POSITIONS = "embeddings/position"
MAX_LISTED = 10  # new words that are listed


def check_vocabularies(
  networks: Mapping[str, Network],
  tokenizer: Tokenizer,
  *,
  skip: Iterable[str] = (),
) -> dict[str, Sequence[str] | None]:
  """Refuses weights whose vocabulary is known and is not the run's.

  Args:
    skip: values of `check_fit.SKIPS`; with "words" the vocabularies may differ.

  Returns:
    The vocabulary next to the weights of each role; None if there is none.

  Raises:
    InputError: another vocabulary; other normalization of case or accents; no
      vocabulary although `skip` has "words".
  """
  vocabs: dict[str, Sequence[str] | None] = {}
  for role, network in networks.items():
    vocabs[role] = vocab = _read_vocabulary(network, tokenizer)
    _check_normalization(network, vocab, tokenizer)
    if vocab is None and "words" in skip:
      raise InputError(
        f"init: {network.location} has no vocabulary file, but"
        " init_skip=words copies the rows of known words. Copy the vocab.txt"
        " of the weights there."
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


def _read_vocabulary(
  network: Network, tokenizer: Tokenizer
) -> tuple[str, ...] | None:
  if network.vocabulary is None:
    return None
  return load_tokenizer(
    str(network.vocabulary),
    lowercase=tokenizer.lowercase,
    strip_accents=tokenizer.strip_accents,
  ).vocab


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
      f"init: {network.location} was trained with"
      f" strip_accents={network.strip_accents}, but this run has"
      f" strip_accents={tokenizer.strip_accents}. Set"
      f" --config.data.accents={accents}."
    )


def carry_words(
  flat: Flat,
  init_params: Callable[[], Flat],
  vocab: Sequence[str],
  old_vocab: Sequence[str],
  report: Callable[[str], Any],
) -> Flat:
  """Returns `WORD_ARRAYS` with the rows in the order of another vocabulary.

  Args:
    flat: arrays of the weights, `[rows, ...]`. There may be more rows than
      words: some tables are padded to a round number.
    init_params: returns the parameters of a run from scratch, `[V, ...]`.
    vocab: the V words of the run.
    old_vocab: the words of the weights.
    report: receives a line about new words and dropped rows.

  Raises:
    InputError: the weights have fewer rows than words.
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
  new = [token for token, row in zip(vocab, rows_V, strict=True) if row < 0]
  kept = len(vocab) - len(new)
  listed = ", ".join(new[:MAX_LISTED]) + (", ..." if new[MAX_LISTED:] else "")
  if new or kept < num_rows:
    report(
      f"init: copied the rows of {kept:,} of {len(vocab):,} words. Dropped"
      f" {num_rows - kept:,} rows. Words drawn at random:"
      f" {len(new):,}{f' ({listed})' if new else ''}."
    )
  names = [name for name in WORD_ARRAYS if name in flat]
  return {n: _select_rows(flat[n], rows_V, init_params()[n]) for n in names}


def carry_positions(
  flat: Flat,
  init_params: Callable[[], Flat],
  size: int,
  report: Callable[[str], Any],
) -> Flat:
  """Returns a table of `size` positions that begins with the weights' rows."""
  if POSITIONS not in flat or (old_size := len(flat[POSITIONS])) == size:
    return {}
  if size > old_size:
    report(f"init: positions {old_size:,} to {size - 1:,} are drawn at random.")
  else:
    report(f"init: dropped positions {size:,} to {old_size - 1:,}.")
  rows_P = np.where(np.arange(size) < old_size, np.arange(size), -1)
  table_PxE = init_params()[POSITIONS]
  return {POSITIONS: _select_rows(flat[POSITIONS], rows_P, table_PxE)}


def _select_rows(
  x: np.ndarray, rows: np.ndarray, default: np.ndarray
) -> np.ndarray:
  """Returns `x[rows]`, with the rows of `default` where `rows` is -1."""
  is_known = (rows >= 0).reshape(-1, *[1] * (x.ndim - 1))
  return np.where(is_known, x[np.maximum(rows, 0)], default)
