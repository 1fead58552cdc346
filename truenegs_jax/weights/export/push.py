"""Uploads finished exports to the Hugging Face hub.

push.check_access("me/electra")  # before work that takes long
for url in push.upload(output, "me/electra", private=True):
  print(url)
"""

import pathlib
import shlex
from collections.abc import Iterator
from typing import Any

from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import (
  InputError,
  TrueNegsError,
  UnavailableError,
)
from truenegs_jax.weights.export.model_card import CARD
from truenegs_jax.weights.export.pretrained import MODEL_FILES
from truenegs_jax.weights.formats import hf_folder, hf_names, hf_safetensors

FILES = sorted(MODEL_FILES | {hf_folder.HEAD})
REQUIRED = (CARD, hf_folder.CONFIG, hf_safetensors.WEIGHTS)
MAX_TEXT = 300  # characters of an answer of the hub that are printed


def check_access(name: str) -> None:
  """Checks the name of a model, and asks the hub about the access token.

  Raises:
    InputError: this is no name; HF_HUB_OFFLINE is set; there is no token, the
      hub refuses it, or it may only read.
    UnavailableError: the hub does not answer.
  """
  import huggingface_hub  # slow to import
  from huggingface_hub import constants, errors, utils

  try:
    utils.validate_repo_id(name_model(name, "discriminator"))  # the longest
  except errors.HFValidationError as e:
    raise InputError(
      f"--push={name!r} is no name of a model on the Hugging Face hub. Use NAME"
      " or OWNER/NAME, of letters, digits, '-', '_' and '.'."
    ) from e
  if constants.HF_HUB_OFFLINE:
    raise InputError("--push needs the hub. Remove HF_HUB_OFFLINE.")
  if not huggingface_hub.get_token():
    raise InputError(
      "--push needs an access token of the Hugging Face hub. Run hf auth login,"
      " or set HF_TOKEN."
    )
  try:
    user = huggingface_hub.HfApi().whoami()
  except Exception as e:  # every network failure has its own class
    if _status(e) in (401, 403):
      raise InputError(
        f"The hub refuses your access token ({_describe(e)}). Run hf auth"
        " login, or set HF_TOKEN to a valid one."
      ) from e
    raise UnavailableError(
      f"The hub does not answer ({_describe(e)}), so nothing was done for"
      f" --push={name}. Run the same command again."
    ) from e
  token = user.get("auth", {}).get("accessToken", {})
  if token.get("role") == "read":
    raise InputError(
      "Your access token may only read. Create one with write access at"
      f" {constants.ENDPOINT}/settings/tokens and run hf auth login."
    )


def name_model(name: str, role: str) -> str:
  """Returns a network's name on the hub, as those of google/electra-small-*."""
  return name if role == "bert" else f"{name}-{role}"


def find_folders(output: pathlib.Path) -> dict[str, pathlib.Path]:
  """Finds the models of a finished export, by role; "" for a single model.

  Raises:
    InputError: `output` is no export, misses files or differs from SHA256SUMS.
  """
  folders = {role: output / role for role in hf_names.NETWORKS}
  folders = {role: path for role, path in folders.items() if path.is_dir()}
  folders = folders or {"": output}
  for folder in folders.values():
    missing = [x for x in REQUIRED if not (folder / x).is_file()]
    if missing:
      raise InputError(
        f"'{folder}' is no finished export: it lacks {', '.join(missing)}. Pass"
        " the folder of an export, or export with --workdir or --init."
      )
    hf_folder.verify_checksums(folder)
  return folders


def upload(
  output: pathlib.Path, name: str, *, private: bool = False
) -> Iterator[str]:
  """Uploads the models of a finished export; yields their addresses.

  Creates what does not exist yet. Each model is one commit, with the files of
  the export and no others; files that the hub already has are not sent.

  Args:
    output: as `find_folders`. A single model is uploaded as `name`.
    name: NAME or OWNER/NAME; see `name_model`.
    private: whether only the owner may see what is created.

  Raises:
    InputError: as `find_folders`; no write access; the hub refuses the card; a
      model exists that is not `private`.
    UnavailableError: the upload failed.
  """
  import huggingface_hub

  api = huggingface_hub.HfApi()
  huggingface_hub.utils.disable_progress_bars()  # an error would follow on one
  for role, folder in find_folders(output).items():
    model = name_model(name, role) if role else name
    console = progress.log_console()
    try:
      with progress.working(console, f"Uploading {model}"):
        url = api.create_repo(model, private=private or None, exist_ok=True)
        if private and not api.model_info(url.repo_id).private:
          raise InputError(
            f"{url} exists and is public. Make it private in its settings, or"
            " remove --private."
          )
        api.upload_folder(
          repo_id=url.repo_id,
          folder_path=folder,
          allow_patterns=FILES,
          commit_message="Upload an export of truenegs_jax",
        )
    except TrueNegsError:
      raise
    except Exception as e:  # every network failure has its own class
      again = f"--output={shlex.quote(str(output))} --push={name}"
      again += " --private" * private
      raise _explain(e, model, again) from e
    yield str(url)


def _explain(error: Exception, model: str, again: str) -> TrueNegsError:
  """Explains a failed upload; leaves out headers, which hold the token."""
  if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
    error = error.__cause__  # of the upload of a large file
  message = f"{model!r} was not uploaded ({_describe(error)})."
  fix = (
    " The export is complete. To upload it, run python -m truenegs_jax.export"
    f" {again}"
  )
  if _status(error) in (401, 403, 404):
    return InputError(
      f"{message} Your access token may not write there.{fix} after hf auth"
      " login with one that may."
    )
  if _status(error) == 400 or CARD in str(error):
    return InputError(
      f"{message} Correct '{CARD}', for example its license.{fix}"
    )
  return UnavailableError(f"{message}{fix}")


def _status(error: Exception) -> int | None:
  return getattr(getattr(error, "response", None), "status_code", None)


def _describe(error: Exception) -> str:
  """Returns "HTTP 403", or the class and first words of another error."""
  server: Any = getattr(error, "server_message", None)
  text = server or ("" if _status(error) else str(error))
  kind = f"HTTP {_status(error)}" if _status(error) else type(error).__name__
  words = " ".join(str(text).split())[:MAX_TEXT].rstrip(".")
  return f"{kind}: {words}" if words else kind
