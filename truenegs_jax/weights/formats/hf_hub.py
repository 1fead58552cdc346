"""A model of the Hugging Face hub, downloaded by its name.

  folder = hf_hub.fetch("google-bert/bert-base-uncased", report=print)

The files lie in the hub's own cache ($HF_HOME), and need no network from then
on.
"""

import errno
import os
import pathlib
from collections.abc import Callable
from typing import Any

from truenegs_jax.runtime.errors import DiskError, InputError, TrueNegsError
from truenegs_jax.runtime.hub_names import is_hub_name, is_revision
from truenegs_jax.weights.formats.hf_safetensors import INDEX, PICKLE, WEIGHTS

FILES = (
  "config.json",
  "vocab.txt",
  "tokenizer.json",
  "tokenizer_config.json",
  "special_tokens_map.json",
  WEIGHTS,
  INDEX,
  "model-*-of-*.safetensors",
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_WITHOUT_HUB = (
  "Without the hub, give a folder that save_pretrained wrote elsewhere, or a"
  " TF1 checkpoint as Google released it, --config.init=FOLDER (of a pair that"
  " lies apart, DISCRIMINATOR,GENERATOR), or let HF_HOME name a copy of a cache"
  " that has it."
)


def is_model_name(text: str) -> bool:
  """Whether this could name a model: NAME or OWNER/NAME, maybe @REVISION."""
  repo, at, revision = text.partition("@")
  return is_hub_name(repo) and (not at or is_revision(revision))


def download(name: str, *, report: Callable[[str], Any]) -> pathlib.Path:
  """Downloads a model's config, vocabulary and weights into the hub's cache.

  `pytorch_model.bin` is downloaded only where there are no safetensors.

  Args:
    name: as in `is_model_name`; a revision is a branch, tag, commit or
      refs/pr/3.
      $HF_TOKEN opens private models.
    report: told which model is looked up.

  Returns:
    The folder in the cache; where the hub does not answer, as it was left.

  Raises:
    InputError: no such model or revision, no right to see it, no way to the
      hub, or neither config.json nor weights there.
    DiskError: the cache cannot be written.
  """
  import huggingface_hub  # slow to import, and only this needs it

  repo, _, revision = name.partition("@")
  report(f"Looking up {name} on the Hugging Face hub.")

  def download(*patterns: str) -> pathlib.Path:
    return pathlib.Path(
      huggingface_hub.snapshot_download(
        repo, revision=revision or None, allow_patterns=list(patterns)
      )
    )

  try:
    folder = download(*FILES)
    if not any((folder / file).exists() for file in (WEIGHTS, INDEX)):
      folder = download(*FILES, PICKLE)
  except Exception as error:  # one kind for each way a network can fail
    raise _explained(repo, revision, error) from error
  has_weights = any((folder / x).exists() for x in (WEIGHTS, INDEX, PICKLE))
  if not (has_weights and (folder / "config.json").exists()):
    raise InputError(
      f"init: {repo!r} gives no config.json with {WEIGHTS} or {PICKLE}, on the"
      f" hub or, if that cannot be reached, in its cache. {_WITHOUT_HUB}"
    )
  return folder


def _explained(repo: str, revision: str, error: Exception) -> TrueNegsError:
  """The error for the user; its text may hold a token, so only its kind."""
  from huggingface_hub import constants, errors

  if isinstance(error, errors.LocalEntryNotFoundError):
    error = error.__cause__ if isinstance(error.__cause__, Exception) else error
  status = getattr(getattr(error, "response", None), "status_code", None)
  kind = type(error).__name__
  kind += f", HTTP {status}" if status else ""
  full = any(os.strerror(number) in str(error) for number in _FULL)
  if isinstance(error, PermissionError) or full:
    return DiskError(
      f"init: {repo!r} could not be written to {constants.HF_HUB_CACHE}"
      f" ({kind}): free some space, or let HF_HOME name another folder, and"
      " give the same command again."
    )
  if isinstance(error, errors.RevisionNotFoundError):
    why = f"the model on the hub has no branch, tag or commit {revision!r}"
  elif isinstance(error, errors.GatedRepoError) or status == 403:
    why = (
      "the model on the hub is not open to you: ask for access on its page,"
      " and set HF_TOKEN"
    )
  elif isinstance(error, errors.RepositoryNotFoundError) or status == 401:
    why = "no model on the hub, or a private one that HF_TOKEN must open"
  else:
    why = "could not be fetched from the hub, nor is it in the cache"
  return InputError(
    f"init: {repo!r} is no folder here, and {why} ({kind}). {_WITHOUT_HUB}"
  )
