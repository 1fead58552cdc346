"""Are the words of weights those of a run? The rows of a table do not say."""

from collections.abc import Iterable, Mapping, Sequence

from truenegs_jax.data.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.errors import InputError
from truenegs_jax.weights.networks import Network


def check(
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
        f"init: {network.place} has no vocabulary beside it, so no row of it"
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
      f"init: {network.place} lower-cases its text: {lowercase}, this run:"
      f" {tokenizer.lowercase}; its words would be others:"
      f" --config.data.lowercase={lowercase}."
    )
  if network.strip_accents not in (None, tokenizer.strip_accents):
    how = "strip" if network.strip_accents else "keep"
    raise InputError(
      f"init: {network.place} strips accents of its text:"
      f" {network.strip_accents}, this run: {tokenizer.strip_accents}; its"
      f" words would be others: --config.data.accents={how}."
    )
