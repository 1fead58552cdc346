"""Released weights: a model of the Hugging Face hub, by its name.

What is downloaded lies in the hub's own cache ($HF_HOME) and needs no network
from then on. Pickled weights are never asked for: to open them is to run them.

  folder = hub.fetch("google-bert/bert-base-uncased", say=print)
"""

import contextlib
import errno
import functools
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from truenegs_jax.runtime.errors import DiskError, InputError, TrueNegsError

if TYPE_CHECKING:
  import huggingface_hub

MAIN = "main"
# Who converts pickled weights for the hub, and how it calls what it did:
# safetensors_conversion.py of transformers looks for the same.
BOT = "SFconvertbot"
BOT_TITLE = "Adding `safetensors` variant of this model"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FILES = [
  "config.json",
  "vocab.txt",
  "tokenizer.json",
  "tokenizer_config.json",
  "special_tokens_map.json",
  WEIGHTS,
  INDEX,
  "model-*-of-*.safetensors",
]
OTHER_WEIGHTS = (".bin", ".h5", ".msgpack", ".pt", ".ckpt", ".onnx", ".gguf")
_PART = r"[A-Za-z0-9]([\w.-]*\w)?"
_NAME = re.compile(
  rf"(?!.*\.\.)(?![^@]*--){_PART}(/{_PART})?(@\w([\w./-]*[\w-])?)?", re.ASCII
)
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def is_name(text: str) -> bool:
  """Whether this could name a model: NAME or OWNER/NAME, maybe @REVISION."""
  return _NAME.fullmatch(text) is not None


def fetch(name: str, *, say: Callable[[str], Any]) -> pathlib.Path:
  """Makes the files of a network lie in the cache of the hub.

  Where a model has pickled weights alone, the safetensors are those of the
  pull request that the hub's own conversion bot opened. Nobody has merged it,
  and others may push to it; so its one commit must be the bot's, its pickled
  weights still those of the main branch, and safetensors execute nothing.

  Args:
    name: as `is_name` has it; a revision is a branch, tag, commit or
      refs/pr/3. $HF_TOKEN opens private models.
    say: told, in a line each, what is downloaded and from whom.

  Returns:
    A folder with config.json, model.safetensors or its index and shards, and
    what there is of a vocabulary; made without the hub, if that cannot be
    asked, where all of it is in the cache.

  Raises:
    InputError: no such model or revision, no right to see it, no way to the
      hub, or nothing there that we read.
    DiskError: the cache cannot be written.
  """
  import huggingface_hub  # slow to import, and only this needs it

  repo, _, revision = name.partition("@")
  revision = revision or MAIN
  try:
    chosen, info = _find(repo, revision)
    if chosen != revision:
      say(f"{repo}: pickled weights alone; taking what {BOT} made ({chosen}).")
    if size := _missing_bytes(repo, info):
      say(
        f"Downloading {name} from the Hugging Face hub: {size / 1e6:,.1f} MB."
      )
    folder = pathlib.Path(
      huggingface_hub.snapshot_download(
        repo,
        revision=revision if chosen == revision else info.sha,
        allow_patterns=FILES,
      )
    )
  except InputError:
    raise
  except Exception as error:  # one kind per way a network can fail
    if cached := _cached(repo, revision):
      say(f"{name}: as it is in the cache ({type(error).__name__}).")
      return cached
    raise _explained(repo, revision, error) from error
  if chosen != revision:
    # Without the hub nothing tells whose a pull request is.
    with contextlib.suppress(OSError):
      refs = folder.parents[1] / "refs"
      refs.mkdir(exist_ok=True)
      (refs / BOT).write_text(folder.name)
  return folder


def _find(repo: str, revision: str) -> tuple[str, "huggingface_hub.ModelInfo"]:
  """The revision that has safetensors, and what the hub says of it."""
  from huggingface_hub import HfApi, constants

  api = HfApi()
  look = functools.partial(
    api.model_info,
    repo,
    files_metadata=True,
    timeout=constants.HF_HUB_ETAG_TIMEOUT,  # the library itself sets none
  )
  info = look(revision=revision)
  if "config.json" not in _blobs(info):
    raise InputError(
      f"init: {repo!r} has no config.json on the hub: it is no network in the"
      " format of transformers. Give another, or --config.init=FOLDER."
    )
  if _has_safetensors(info):
    return revision, info
  for pull in _pulls_of_bot(api, repo) if revision == MAIN else ():
    converted = look(revision=pull)
    same = _blobs(info, ".bin") == _blobs(converted, ".bin")
    if same and _has_safetensors(converted):
      mains = {one.commit_id for one in api.list_repo_commits(repo)}
      commits = api.list_repo_commits(repo, revision=pull)
      added = [one for one in commits if one.commit_id not in mains]
      if [(a.commit_id, a.authors) for a in added] == [(converted.sha, [BOT])]:
        return pull, converted
  raise _no_safetensors(repo, revision, info)


def _pulls_of_bot(api: "huggingface_hub.HfApi", repo: str) -> Iterator[str]:
  """Its open conversions, as revisions."""
  from huggingface_hub.errors import HfHubHTTPError

  try:
    threads = list(api.get_repo_discussions(repo, author=BOT))
  except HfHubHTTPError as error:
    if error.response.status_code not in (403, 404):  # turned off; a mirror
      raise
    return
  for thread in threads:
    is_its = thread.author == BOT and thread.title == BOT_TITLE
    if is_its and thread.is_pull_request and thread.status == "open":
      yield f"refs/pr/{thread.num}"


def _blobs(
  info: "huggingface_hub.ModelInfo", suffixes: str | tuple[str, ...] = ""
) -> dict[str, str | None]:
  """Name of each file that ends so -> the hash of its content."""
  return {
    file.rfilename: file.blob_id
    for file in info.siblings or ()
    if file.rfilename.endswith(suffixes)
  }


def _has_safetensors(info: "huggingface_hub.ModelInfo") -> bool:
  return bool(_blobs(info).keys() & {WEIGHTS, INDEX})


def _missing_bytes(repo: str, info: "huggingface_hub.ModelInfo") -> int:
  """How much of a revision is not in the cache yet."""
  import huggingface_hub
  from huggingface_hub.utils import filter_repo_objects

  sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
  return sum(
    sizes[file]
    for file in filter_repo_objects(sizes, allow_patterns=FILES)
    if not isinstance(
      huggingface_hub.try_to_load_from_cache(repo, file, revision=info.sha), str
    )
  )


def _cached(repo: str, revision: str) -> pathlib.Path | None:
  """The folder in the cache, if it has all the weights."""
  import huggingface_hub
  from huggingface_hub.errors import LocalEntryNotFoundError

  for known in (revision, BOT) if revision == MAIN else (revision,):
    with contextlib.suppress(LocalEntryNotFoundError):
      found = huggingface_hub.snapshot_download(
        repo, revision=known, allow_patterns=FILES, local_files_only=True
      )
      if _is_complete(folder := pathlib.Path(found)):
        return folder
  return None


def _is_complete(folder: pathlib.Path) -> bool:
  if not (folder / "config.json").is_file():
    return False
  if (folder / WEIGHTS).is_file():
    return True
  try:
    shards = json.loads((folder / INDEX).read_bytes())["weight_map"].values()
    return all((folder / shard).is_file() for shard in shards)
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return False


def _no_safetensors(
  repo: str, revision: str, info: "huggingface_hub.ModelInfo"
) -> InputError:
  others = _blobs(info, OTHER_WEIGHTS)
  kind = (info.config or {}).get("architectures") or ["AutoModelForPreTraining"]
  at = f', revision="{revision}"' if revision != MAIN else ""
  return InputError(
    f"init: {repo!r} has no safetensors on the hub, on {revision} or from its"
    f" {BOT}, only {', '.join(others) or 'no weights'}; pickled weights are"
    " never opened here. Convert them with transformers,"
    f' {kind[0]}.from_pretrained("{repo}"{at}).save_pretrained("FOLDER"), and'
    " give --config.init=FOLDER. Of ELECTRA and BERT, a folder with a TF1"
    " checkpoint as Google released it will do too."
  )


def _explained(repo: str, revision: str, error: Exception) -> TrueNegsError:
  """What to tell a user.

  Of the error only the kind: a text may hold a token or a proxy's password.
  """
  from huggingface_hub import constants, errors

  status = getattr(getattr(error, "response", None), "status_code", None)
  said = type(error).__name__ + (f", HTTP {status}" if status else "")
  is_full = any(os.strerror(number) in str(error) for number in _DISK)
  if isinstance(error, PermissionError) or is_full:
    return DiskError(
      f"init: {repo!r} could not be written to {constants.HF_HUB_CACHE}"
      f" ({said}): free some space or mend that, or let HF_HOME name another"
      " folder, and give the same command again."
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
    why = "could not be fetched from the hub, nor is it whole in the cache"
  return InputError(
    f"init: {repo!r} is no folder here, and {why} ({said})."
    " Without the hub, give a folder that save_pretrained wrote elsewhere, or a"
    " TF1 checkpoint as Google released it, --config.init=FOLDER (of a pair"
    " that lies apart, DISCRIMINATOR,GENERATOR), or let HF_HOME name a copy of"
    " a cache that has it."
  )
