"""Checks of what the losses get, for JAX and PyTorch."""

from truenegs_jax.runtime.errors import InputError

PADDING = 128  # to a multiple of which models round their vocabularies


def check_smoothing(share: float, by: str) -> None:
  """Raises InputError if a kind of smoothing does not have this share."""
  fits = {
    "uniform": 0 <= share <= 1,
    "model": 0 < share < 1,
    "balanced": 0 < share < 1,
    "set": share == 1,
  }
  if not fits.get(by, False):
    raise InputError(
      f"smoothing={share:g} does not go with smoothing_by={by!r}: model and"
      " balanced need a share between 0 and 1, such as 0.3; set needs 1;"
      " uniform takes any from 0 to 1."
    )


def check_entries(num: int, tokens: int) -> None:
  """Raises InputError for logits that are not of a table, nor padded."""
  if not tokens <= num < tokens + PADDING:
    raise InputError(
      f"logits have {num:,} entries, but the table has {tokens:,} tokens (fewer"
      f" than {PADDING} may pad it). Build it with the tokenizer of the model."
    )
