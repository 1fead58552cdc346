"""Finds and opens the weights that `config.init` names.

Weights("released/electra")               folder of one network or of a pair
Weights("google/electra-base-discriminator, google/electra-base-generator")
Weights("runs/mine"), Weights("runs/mine/checkpoints/500")

They are located and opened once, when first needed.
`match.match_weights` compares them with a model, and `load.load_params` reads
what fits.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
from flax import traverse_util

from truenegs_jax.config import grammar
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.models import pretrain
from truenegs_jax.runtime import cache
from truenegs_jax.runtime.errors import DiskError, InputError, TrueNegsError
from truenegs_jax.runtime.files import (
  CHECKSUMS,
  atomic_folder,
  disk_errors,
  short_sha256,
)
from truenegs_jax.runtime.paths import (
  is_bucket,
  is_hub_name,
  join_inside,
  open_path,
)
from truenegs_jax.weights import hf_folder, hf_names
from truenegs_jax.weights.arrays import FORMATS, Arrays
from truenegs_jax.weights.hf_folder import Network
from truenegs_jax.workdir import files, saved_model

# Models in a workdir of fine-tuning, in a folder of a task, and of one run.
TASK_MODELS = ("*/seed-*/model", "seed-*/model", "model")
PAIR = ("discriminator", "generator")  # roles of two locations
# A branch, a tag, a commit or refs/pr/N.
REVISION = re.compile(r"(?!.*\.\.)\w([\w./-]*[\w-])?", re.ASCII)
ACCESS = (
  "If it is private or gated, request access and set HF_TOKEN. Without the hub,"
  " pass a folder that `hf download NAME --local-dir FOLDER` wrote on another"
  " machine, --config.init=FOLDER, or a cache in HF_HOME."
)
INIT_FORMATS = (
  "Pass a folder that save_pretrained of transformers or `truenegs export`"
  " wrote, with all weights in one file, DISCRIMINATOR,GENERATOR for two, or"
  " the workdir of a pre-training."
)
Report = Callable[[str], object]  # prints a line, for example


@dataclasses.dataclass(frozen=True)
class Weights:
  """Weights to start from, located and opened once, when first needed."""

  init: str  # one location, or DISCRIMINATOR,GENERATOR
  report: Report = print

  @functools.cached_property
  def networks(self) -> dict[str, Network]:
    """All networks by role, the discriminator first; only headers are read."""
    by_role: dict[str, Network] = {}
    locations = split_init(self.init)
    roles = PAIR if len(locations) == 2 else [""] * len(locations)
    for location, role in zip(locations, roles, strict=True):
      for opened in _open_location(location, self.report):
        network = _assume_role(opened, role)
        if other := by_role.get(network.role):
          raise InputError(
            f"init: {other.location} and {network.location} are both a"
            f" {network.role}. Pass --config.init=DISCRIMINATOR,GENERATOR."
          )
        by_role[network.role] = network
    # The discriminator is first: its values are used where the two differ.
    return dict(sorted(by_role.items()))

  def for_roles(self, roles: Iterable[str]) -> dict[str, Network]:
    """Returns the networks for a model with these roles.

    A pair can start from a discriminator alone, which ignores a generator.
    """
    by_role = dict(self.networks)
    roles = list(roles)
    if roles == ["discriminator"] and "discriminator" in by_role:
      by_role.pop("generator", None)
    if roles[0] not in by_role or set(by_role) - set(roles):
      raise InputError(
        f"init: {self.init!r} holds {_list_roles(by_role)}, but this run trains"
        f" {hf_names.NETWORKS[roles[0]].family!r}. Pass weights of"
        f" {_list_roles(roles[:1])}, or choose another config."
      )
    return by_role

  def encoder(self) -> Network:
    """Returns the one network that can be fine-tuned."""
    encoders = [x for role, x in self.networks.items() if role != "generator"]
    if len(encoders) != 1:
      raise InputError(
        f"init: {self.init!r} holds {_list_roles(self.networks)}, but"
        " fine-tuning needs one BERT or one discriminator. Pass that one."
      )
    return encoders[0]


def is_local(init: str) -> bool:
  """Whether a value of `config.init` names paths that exist; opens none."""
  paths = (pathlib.Path(x).expanduser() for x in split_init(init))
  return bool(init) and all(path.exists() for path in paths)


def describe(init: str) -> str:
  """Describes in a dry run where weights come from; opens none."""
  if is_local(init):
    return f"'{init}', which fit this config"
  if all("://" in location for location in split_init(init)):
    return f"'{init}', which are read when the run starts"
  if all(map(is_model_name, split_init(init))):
    hub = "looked up on the Hugging Face hub (offline: --config.init=FOLDER)"
    return f"'{init}', which are {hub}"
  return f"'{init}', which are missing"


def split_init(init: str) -> list[str]:
  """Splits `config.init` into the locations of one network or of a pair."""
  if "," not in init or os.path.exists(os.path.expanduser(init)):
    return [init.strip()]
  return list(grammar.parse_names(init, key="init"))


def _open_location(location: str, report: Report) -> Iterable[Network]:
  path = open_path("init", location)
  try:
    is_there = path.exists()
  except (OSError, ValueError) as e:  # for example, the name is too long
    raise InputError(f"init: {location[:80]!r} is not a path: {e}.") from e
  if run := files.parse_run_path(path):
    return _open_run(*run, report)
  if is_there:
    return _open_folder(path)
  if is_model_name(location):
    return [hf_folder.open_network(download(location, report=report))]
  raise InputError(f"init: there is no folder {location!r}. {INIT_FORMATS}")


def _open_folder(folder: pathlib.Path) -> Iterable[Network]:
  roles = [role for role in hf_names.NETWORKS if (folder / role).is_dir()]
  if roles:
    return [_open_subfolder(folder, role) for role in roles]
  if any((folder / name).exists() for name in FORMATS):
    return [_open_network(folder)]
  if models := [x for p in TASK_MODELS for x in folder.glob(p)]:
    raise InputError(
      f"init: '{folder}' is a folder of fine-tuning. Pass one of its models:"
      f" --config.init={min(models)}."
    )
  raise InputError(f"init: '{folder}' holds no weights. {INIT_FORMATS}")


def _open_subfolder(folder: pathlib.Path, role: str) -> Network:
  """Opens a subfolder, which must hold the role that it is named after."""
  path = join_inside(folder, role, key="init")
  network = _assume_role(_open_network(path), role)
  if network.role != role:
    raise InputError(
      f"init: '{path}' holds a {network.role}, according to its config and"
      " arrays. Rename the folder."
    )
  return network


def _assume_role(network: Network, role: str) -> Network:
  """Changes the role of ModernBERT's folders, which do not tell it."""
  is_open = network.backbone == "modern" and network.role == "bert"
  is_mlm = "decoder.bias" in network.arrays.shapes
  fits = role == ("generator" if is_mlm else "discriminator")
  if fits and is_open and not network.is_ours:
    return dataclasses.replace(network, role=role)
  return network


def _open_network(folder: pathlib.Path) -> Network:
  """Opens a folder with weights; of one in a bucket, its copy in the cache."""
  if not is_bucket(folder):
    return hf_folder.open_network(folder)
  if (folder / hf_names.DETECTOR / hf_folder.CONFIG).exists():
    folder /= hf_names.DETECTOR
  objects = cast(Any, folder).find()
  names = {x for x in tokenizer_lib.HUB_FILES if x in objects}
  names.update([x for x in FORMATS if x in objects][:1])
  if CHECKSUMS in objects:  # others may be left of an earlier export
    sums = (folder / CHECKSUMS).read_bytes().decode("utf-8", "replace")
    names &= {name for _, name in hf_folder.CHECKSUM.findall(sums)}
    names.add(CHECKSUMS)
  versions = {name: objects[name] for name in sorted(names)}
  key = short_sha256(str(folder), json.dumps(versions, default=str))
  copy = cache.folder() / "buckets" / f"{folder.name}-{key}"
  if not copy.exists():
    with atomic_folder(copy) as new:
      for name in names:
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
          data = (folder / name).read_bytes()
          with disk_errors(copy):
            (new / name).write_bytes(data)
  try:
    network = hf_folder.open_network(copy)
  except InputError as e:
    raise InputError(str(e).replace(str(copy), str(folder))) from e
  return dataclasses.replace(network, location=f"'{folder}'")


def _open_run(
  workdir: pathlib.Path, step: int | None, report: Report
) -> list[Network]:
  """Opens the networks of a run's `step`; None: the newest undamaged one."""
  report = functools.cache(report)  # a damaged step once
  with saved_model.open_run(workdir) as checkpoints:
    if step is None:
      saved = saved_model.read_newest_model(checkpoints, report)
    else:
      saved = saved_model.read_saved_model(checkpoints, step)
  model = saved.model
  tokenizer = saved.tokenizer
  location = f"'{workdir}'" + ("" if step is None else f" at step {step:,}")

  @functools.cache  # both networks of a pair are in one checkpoint
  def read_params() -> dict[str, dict[str, np.ndarray]]:
    with saved_model.open_run(workdir) as checkpoints:
      _, tree = saved_model.load(checkpoints, step, report=report)
    trees = {x: pretrain.own_embeddings(tree, x) for x in model.roles}
    return {x: traverse_util.flatten_dict(trees[x], sep="/") for x in trees}

  def open_role(role: str) -> Network:
    paths = hf_names.list_paths(model, role)
    return Network(
      role=role,
      location=location,
      arrays=Arrays(
        path=workdir,
        shapes={x: shapes[x].shape for x in paths},
        load=lambda: {x: read_params()[role][x] for x in paths},
        release=read_params.cache_clear,
      ),
      fields=hf_folder.model_config(model, role, pad=tokenizer.pad),
      vocabulary=files.vocabulary_path(workdir),
      lowercase=tokenizer.lowercase,
      strip_accents=tokenizer.strip_accents,
      backbone=model.backbone,
      is_ours=True,
    )

  shapes = hf_names.flat_shapes(model)
  return [open_role(role) for role in model.roles]


def _list_roles(roles: Iterable[str]) -> str:
  return " and ".join("BERT" if x == "bert" else f"a {x}" for x in roles)


def is_model_name(text: str) -> bool:
  """Whether this could name a model: NAME or OWNER/NAME, maybe @REVISION."""
  repo, at, revision = text.partition("@")
  return is_hub_name(repo) and bool(not at or REVISION.fullmatch(revision))


def download(name: str, *, report: Report) -> pathlib.Path:
  """Downloads a model by its name; returns its folder in the hub's cache.

  Of the weights only the first of FORMATS that the model has is downloaded. If
  the hub does not answer, an earlier download is used. InputError: no such
  model, no access or no hub; DiskError: the cache cannot be written.
  """
  import huggingface_hub  # slow to import

  repo, _, revision = name.partition("@")
  report(f"Looking up {name!r} on the Hugging Face hub.")
  patterns = [*tokenizer_lib.HUB_FILES, f"{hf_names.DETECTOR}/*"]
  try:
    for weights in FORMATS:
      downloaded = huggingface_hub.snapshot_download(
        repo, revision=revision or None, allow_patterns=[*patterns, weights]
      )
      folder = pathlib.Path(downloaded)
      if (folder / weights).exists() and (folder / "config.json").exists():
        return folder
  except Exception as error:  # every network failure has its own class
    raise _explain_download(repo, error) from error
  raise InputError(
    f"init: {repo!r} has no config.json with {' or '.join(FORMATS)} on the hub"
    f" or, if the hub cannot be reached, in its cache. {ACCESS}"
  )


def _explain_download(repo: str, error: Exception) -> TrueNegsError:
  """Explains a failed download; leaves out its text, which may hold a token."""
  from huggingface_hub import constants

  errors = [x for x in (error, error.__cause__) if x]
  responses = [x.response for x in errors if hasattr(x, "response")]
  kind = " from ".join(type(x).__name__ for x in errors)
  if responses:
    kind += f", HTTP {responses[0].status_code}"
  if isinstance(error, PermissionError) or "space left" in str(error):
    return DiskError(
      f"init: {repo!r} could not be written to '{constants.HF_HUB_CACHE}'"
      f" ({kind}). Free some space, or set HF_HOME to another folder."
    )
  return InputError(
    f"init: there is no folder {repo!r}, and the hub gives no such model"
    f" ({kind}). {ACCESS}"
  )
