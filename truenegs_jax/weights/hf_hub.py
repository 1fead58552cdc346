"""Downloads a model of the Hugging Face hub by its name.

  folder = hf_hub.download("google-bert/bert-base-uncased", report=print)

The files are stored in the hub's own cache ($HF_HOME). Later calls need no
network.
"""

import errno
import os
import pathlib
import re
from collections.abc import Callable

from truenegs_jax.runtime.errors import DiskError, InputError, TrueNegsError
from truenegs_jax.runtime.files import is_hub_name
from truenegs_jax.weights.arrays import INDEX, PICKLE, WEIGHTS

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
# A branch, a tag, a commit or refs/pr/N.
REVISION = re.compile(r"(?!.*\.\.)\w([\w./-]*[\w-])?", re.ASCII)
_ALTERNATIVES = (
  "To work without the hub, pass a folder, --config.init=FOLDER: one that"
  " `hf download NAME --local-dir FOLDER` wrote on another machine. For a pair"
  " in two folders, pass --config.init=DISCRIMINATOR,GENERATOR. Or set HF_HOME"
  " to a copy of a cache that holds the model."
)


def is_model_name(text: str) -> bool:
  """Whether this could name a model: NAME or OWNER/NAME, maybe @REVISION."""
  repo, at, revision = text.partition("@")
  return is_hub_name(repo) and bool(not at or REVISION.fullmatch(revision))


def download(name: str, *, report: Callable[[str], object]) -> pathlib.Path:
  """Downloads card, config, vocabulary and weights into the hub's cache.

  `pytorch_model.bin` is downloaded only if the model has no safetensors.

  If the hub does not answer, an earlier download is used. `report` receives a
  line that names the model. Returns the folder in the cache.

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
    raise _explain(repo, error) from error
  has_weights = any((folder / x).exists() for x in (WEIGHTS, INDEX, PICKLE))
  if not (has_weights and (folder / "config.json").exists()):
    raise InputError(
      f"init: {repo!r} has no config.json with {WEIGHTS} or {PICKLE} on the hub"
      f" or, if the hub cannot be reached, in its cache. {_ALTERNATIVES}"
    )
  return folder


def _explain(repo: str, error: Exception) -> TrueNegsError:
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
  return InputError(
    f"init: there is no folder {repo!r}, and the hub gives no such model"
    f" ({kind}). If it is private or gated, request access and set HF_TOKEN."
    f" {_ALTERNATIVES}"
  )
