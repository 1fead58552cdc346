"""Are the words of weights those of a run? The rows of a table do not say."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.data.tokens.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats.network import Network


def check_vocabularies(
  networks: Mapping[str, Network],
  tokenizer: Tokenizer,
  *,
  skip: Iterable[str] = (),
) -> dict[str, Sequence[str] | None]:
  """Refuses weights whose words, as far as known, are not the run's.

  Args:
    skip: of `fit.SKIPS`; with "words" they may be others.

  Returns:
    The vocabulary that lies beside the weights of each role, if one does.

  Raises:
    InputError: another vocabulary or treatment of case and accents; none, where
      rows are to be carried over by word.
  """
  found: dict[str, Sequence[str] | None] = {}
  for role, network in networks.items():
    found[role] = vocab = _vocabulary(network, tokenizer)
    _check_text(network, vocab, tokenizer)
    if vocab is None and "words" in skip:
      raise InputError(
        f"init: {network.location} has no vocabulary beside it, so no row of it"
        " can be told by its word, as init_skip=words wants: put its vocab.txt"
        " there."
      )
    if vocab not in (None, tokenizer.vocab) and "words" not in skip:
      raise InputError(
        f"init: {network.vocabulary} is not the run's vocabulary, in which the"
        " rows of the word table would be other words; take that of the"
        f" weights, --config.data.vocab={network.vocabulary}, or carry rows"
        " over by word, --config.init_skip=words."
      )
  return found


def is_cased(vocab: Iterable[str]) -> bool:
  """Whether there are words that no lower-cased text can hold."""
  return any(w != w.lower() for w in vocab if not w.startswith("["))


def _vocabulary(
  network: Network, tokenizer: Tokenizer
) -> tuple[str, ...] | None:
  if network.vocabulary is None:
    return None
  found = load_tokenizer(
    str(network.vocabulary),
    lowercase=tokenizer.lowercase,
    strip_accents=tokenizer.strip_accents,
  )
  return found.vocab


def _check_text(
  network: Network, vocab: Sequence[str] | None, tokenizer: Tokenizer
) -> None:
  """Refuses another treatment of text, by what is said or what words show."""
  lowercase = network.lowercase
  if lowercase is None and vocab and is_cased(vocab):
    lowercase = False
  if lowercase not in (None, tokenizer.lowercase):
    raise InputError(
      f"init: {network.location} lower-cases its text: {lowercase}, this run:"
      f" {tokenizer.lowercase}; its words would be others:"
      f" --config.data.lowercase={lowercase}."
    )
  if network.strip_accents not in (None, tokenizer.strip_accents):
    how = "strip" if network.strip_accents else "keep"
    raise InputError(
      f"init: {network.location} strips accents of its text:"
      f" {network.strip_accents}, this run: {tokenizer.strip_accents}; its"
      f" words would be others: --config.data.accents={how}."
    )


Flat = dict[str, np.ndarray]  # parameters by path

# What has a row for every word.
WORD_ARRAYS = ("embeddings/word", "bert_head/bias", "generator_head/bias")
POSITIONS = "embeddings/position"
NAMED = 10  # new words that are said by name


def carry_words(
  flat: Flat,
  fresh: Callable[[], Flat],
  vocab: Sequence[str],
  old: Sequence[str],
  report: Callable[[str], Any],
) -> Flat:
  """The arrays of `WORD_ARRAYS` for another vocabulary, row by row.

  Args:
    flat: of the weights, `[rows, ...]`. There may be more rows than words: some
      are padded to a round number.
    fresh: gives the parameters of a run from scratch, `[V, ...]`.
    vocab: the V words of the run.
    old: those of the weights.
    report: told how many words are new, and some of them.

  Raises:
    InputError: the weights have fewer rows than words.
  """
  num_rows = len(flat[WORD_ARRAYS[0]])
  if len(old) > num_rows:
    raise InputError(
      f"init: the vocabulary beside the weights has {len(old):,} words, their"
      f" table {num_rows:,} rows; put the one there that belongs to them."
    )
  place = {token: i for i, token in enumerate(old)}
  rows_V = np.array([place.get(token, -1) for token in vocab])
  new = [token for token, row in zip(vocab, rows_V, strict=True) if row < 0]
  kept = len(vocab) - len(new)
  named = ", ".join(new[:NAMED]) + (", ..." if len(new) > NAMED else "")
  if new or kept < num_rows:
    report(
      f"init: {kept:,} of {len(vocab):,} words have their rows of the weights,"
      f" {num_rows - kept:,} rows are left out; new, drawn at random:"
      f" {len(new):,}{f' ({named})' if new else ''}"
    )
  there = (name for name in WORD_ARRAYS if name in flat)
  return {name: _chosen(flat[name], rows_V, fresh()[name]) for name in there}


def carry_positions(
  flat: Flat,
  fresh: Callable[[], Flat],
  size: int,
  report: Callable[[str], Any],
) -> Flat:
  """The table of `size` positions, the first of which are the weights'."""
  if POSITIONS not in flat or (old := len(flat[POSITIONS])) == size:
    return {}
  if size > old:
    report(f"init: positions {old:,} to {size - 1:,} are new, drawn at random")
  else:
    report(f"init: positions {size:,} to {old - 1:,} are left out")
  rows_P = np.where(np.arange(size) < old, np.arange(size), -1)
  return {POSITIONS: _chosen(flat[POSITIONS], rows_P, fresh()[POSITIONS])}


def _chosen(x: np.ndarray, rows: np.ndarray, fresh: np.ndarray) -> np.ndarray:
  """The rows of `x` that `rows` names; -1 stands for a fresh one."""
  known = (rows >= 0).reshape(-1, *[1] * (x.ndim - 1))
  return np.where(known, x[np.maximum(rows, 0)], fresh)
