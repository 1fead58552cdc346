"""Downloads a model of the Hugging Face hub by its name.

  folder = hf_hub.download("google-bert/bert-base-uncased", report=print)

The files are stored in the hub's own cache ($HF_HOME). Later calls need no
network.
"""

import errno
import os
import pathlib
from collections.abc import Callable

from truenegs_jax.runtime.errors import DiskError, InputError, TrueNegsError
from truenegs_jax.runtime.hub_names import is_hub_name, is_revision
from truenegs_jax.weights.formats.hf_safetensors import INDEX, PICKLE, WEIGHTS

FILES = (
  "README.md",  # names language and license
  "config.json",
  "vocab.txt",
  "tokenizer.json",
  "tokenizer_config.json",
  "special_tokens_map.json",
  WEIGHTS,
  INDEX,
  "model-*-of-*.safetensors",
)
_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_ALTERNATIVES = (
  "To work without the hub, pass a folder, --config.init=FOLDER: one that"
  " `hf download NAME --local-dir FOLDER` wrote on another machine, or a TF1"
  " checkpoint as Google released it. For a pair in two folders, pass"
  " --config.init=DISCRIMINATOR,GENERATOR. Or set HF_HOME to a copy of a cache"
  " that holds the model."
)


def is_model_name(text: str) -> bool:
  """Whether this could name a model: NAME or OWNER/NAME, maybe @REVISION."""
  repo, at, revision = text.partition("@")
  return is_hub_name(repo) and (not at or is_revision(revision))


def download(name: str, *, report: Callable[[str], object]) -> pathlib.Path:
  """Downloads card, config, vocabulary and weights into the hub's cache.

  `pytorch_model.bin` is downloaded only if the model has no safetensors.

  Args:
    name: as in `is_model_name`; a revision is a branch, tag, commit or
      refs/pr/3. $HF_TOKEN gives access to private models.
    report: receives a line that names the model.

  Returns:
    The folder in the cache. If the hub does not answer, this is the folder of
    an earlier download.

  Raises:
    InputError: no such model or revision, no access, no connection to the hub,
      or the model lacks config.json or weights.
    DiskError: the cache cannot be written.
  """
  import huggingface_hub  # slow to import

  repo, _, revision = name.partition("@")
  report(f"Looking up {name!r} on the Hugging Face hub.")
  try:
    for files in (FILES, (*FILES, PICKLE)):
      folder = pathlib.Path(
        huggingface_hub.snapshot_download(
          repo, revision=revision or None, allow_patterns=list(files)
        )
      )
      if any((folder / x).exists() for x in (WEIGHTS, INDEX)):
        break
  except Exception as error:  # every network failure has its own class
    raise _explain(repo, revision, error) from error
  has_weights = any((folder / x).exists() for x in (WEIGHTS, INDEX, PICKLE))
  if not (has_weights and (folder / "config.json").exists()):
    raise InputError(
      f"init: {repo!r} has no config.json with {WEIGHTS} or {PICKLE} on the hub"
      f" or, if the hub cannot be reached, in its cache. {_ALTERNATIVES}"
    )
  return folder


def _explain(repo: str, revision: str, error: Exception) -> TrueNegsError:
  """Explains a failed download; leaves out its text, which may hold a token."""
  from huggingface_hub import constants, errors

  if isinstance(error, errors.LocalEntryNotFoundError):
    error = error.__cause__ if isinstance(error.__cause__, Exception) else error
  status = getattr(getattr(error, "response", None), "status_code", None)
  kind = type(error).__name__
  kind += f", HTTP {status}" if status else ""
  is_full = any(os.strerror(number) in str(error) for number in _DISK_ERRNOS)
  if isinstance(error, PermissionError) or is_full:
    return DiskError(
      f"init: {repo!r} could not be written to '{constants.HF_HUB_CACHE}'"
      f" ({kind}). Free some space, or set HF_HOME to another folder, and run"
      " the same command again."
    )
  if isinstance(error, errors.RevisionNotFoundError):
    why = f"The model on the hub has no branch, tag or commit {revision!r}"
  elif isinstance(error, errors.GatedRepoError) or status == 403:
    why = (
      "You have no access to the model on the hub. Request access on its page"
      " and set HF_TOKEN"
    )
  elif isinstance(error, errors.RepositoryNotFoundError) or status == 401:
    why = "The hub has no such public model. For a private one, set HF_TOKEN"
  else:
    why = "It could not be downloaded from the hub and is not in the cache"
  return InputError(
    f"init: there is no folder {repo!r}. {why} ({kind}). {_ALTERNATIVES}"
  )
