"""Finds and opens the weights that `config.init` names.

Weights("released/electra")               folder of one network or of a pair
Weights("google/electra-base-discriminator, google/electra-base-generator")
Weights("runs/mine"), Weights("runs/mine/checkpoints/500")

They are located and opened once, when first needed. Networks of runs have the
names and layouts of their exports. `match.match_weights` compares them with a
model, and `load.load_params` reads what fits.
"""

import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

from truenegs_jax.config import grammar
from truenegs_jax.data import tokenizer_files
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import (
  CHECKSUMS,
  atomic_folder,
  disk_errors,
  lock_folder,
  short_sha256,
)
from truenegs_jax.runtime.paths import (
  cache_folder,
  is_bucket,
  is_hub_name,
  join_inside,
  open_path,
)
from truenegs_jax.weights import hf_config, hf_names
from truenegs_jax.weights.hf_folder import (
  CHECKSUM,
  CONFIG,
  FORMATS,
  Named,
  Network,
  open_network,
)
from truenegs_jax.workdir import files, saved_model

PAIR = ("discriminator", "generator")  # roles of two locations
# A branch, a tag, a commit or refs/pr/N.
REVISION = re.compile(r"(?!.*\.\.)\w([\w./-]*[\w-])?", re.ASCII)
INIT_FORMATS = (
  "Pass a folder that save_pretrained of transformers or `truenegs export`"
  " wrote, with all weights in one file, DISCRIMINATOR,GENERATOR for two, the"
  " workdir of a pre-training, or TASK/seed-0/model in that of a fine-tuning."
)
# A path from the root, a home, a parent folder or a bucket, without its last
# part.
OUTSIDE = re.compile(
  r"(?<![^\s=,|&:'\"(\[])((hf|gs|s3):)?(~[^/]*|\.\.)?/([^=,|&]*/)?"
  r"(?=[^\s=,|&])"
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

    A pair can start from a discriminator alone; a model of a discriminator
    alone ignores a generator.
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
    return f"'{init}', here"
  return f"'{init}', not on this machine; the run looks there when it starts"


def split_init(init: str) -> list[str]:
  """Splits `config.init` into the locations of one network or of a pair."""
  if "," not in init or os.path.exists(os.path.expanduser(init)):
    return [init.strip()]
  return list(grammar.parse_names(init, key="init"))


def _open_location(location: str, report: Report) -> Iterable[Network]:
  path = open_path("init", location)
  if run := files.parse_run_path(path):
    return _open_run(*run, report)
  if path.exists():
    return _open_folder(path)
  if is_model_name(location):
    return [open_network(download(location, report=report))]
  raise InputError(f"init: there is no folder {location!r}. {INIT_FORMATS}")


def _open_folder(folder: pathlib.Path) -> list[Network]:
  """Opens a network, or those in subfolders that are named after roles."""
  networks = []
  for role in hf_names.NETWORKS:
    if (folder / role).is_dir():
      path = join_inside(folder, role, key="init")
      network = _assume_role(_open_anywhere(path), role)
      if network.role != role:
        raise InputError(
          f"init: '{path}' holds a {network.role}, according to its config and"
          " arrays. Rename the folder."
        )
      networks.append(network)
  if networks:
    return networks
  if any((folder / name).exists() for name in FORMATS):
    return [_open_anywhere(folder)]
  raise InputError(f"init: '{folder}' holds no weights. {INIT_FORMATS}")


def _assume_role(network: Network, role: str) -> Network:
  """Changes the role of ModernBERT's folders, which do not tell it."""
  is_open = network.backbone == "modern" and network.role == "bert"
  is_mlm = "decoder.bias" in network.shapes
  fits = role == ("generator" if is_mlm else "discriminator")
  return (
    dataclasses.replace(network, role=role) if fits and is_open else network
  )


def _open_anywhere(folder: pathlib.Path) -> Network:
  """Opens a folder with weights; of one in a bucket, its copy in the cache."""
  if not is_bucket(folder):
    return open_network(folder)
  if (folder / hf_names.DETECTOR / CONFIG).exists():
    folder /= hf_names.DETECTOR
  objects = cast(Any, folder).find()
  names = {CHECKSUMS, *tokenizer_files.HUB_FILES, *FORMATS} & objects.keys()
  names -= {*[x for x in FORMATS if x in objects][1:]}  # one is read
  if CHECKSUMS in objects:  # others may be left of an earlier export
    sums = (folder / CHECKSUMS).read_bytes().decode("utf-8", "replace")
    names &= {CHECKSUMS, *(name for _, name in CHECKSUM.findall(sums))}
  key = short_sha256(str(folder), *(f"{x} {objects[x]}" for x in sorted(names)))
  copy = cache_folder() / "buckets" / f"{folder.name}-{key}"
  with lock_folder(copy):  # of several processes, one copies
    if not copy.exists():
      with atomic_folder(copy) as new:
        for name in names:
          data = (folder / name).read_bytes()
          with disk_errors(copy):
            (new / name).write_bytes(data)
  try:
    network = open_network(copy)
  except InputError as e:
    raise InputError(str(e).replace(str(copy), str(folder))) from e
  return dataclasses.replace(network, location=f"'{folder}'")


def _open_run(
  workdir: pathlib.Path, step: int | None, report: Report
) -> list[Network]:
  """Opens the networks of a run's `step`; None: the newest undamaged one."""
  report = functools.cache(report)  # a damaged step once
  with saved_model.open_run(workdir) as checkpoints:
    saved = saved_model.read_model(checkpoints, step, report)

  read_step = step

  def load(role: str) -> Named:
    nonlocal read_step  # the run may go on, but all reads are of one step
    with saved_model.open_run(workdir) as checkpoints:
      loaded, params = saved_model.load(checkpoints, read_step, report=report)
    read_step = loaded.step
    return hf_names.to_huggingface(params, saved.model, role)

  return [
    Network(
      role=role,
      location=f"'{workdir}'" + ("" if step is None else f" at step {step:,}"),
      shapes=hf_names.list_shapes(saved.model, role),
      load=functools.partial(load, role),
      fields=hf_config.make_fields(saved.model, role, pad=saved.tokenizer.pad),
      vocabulary=files.vocabulary_path(workdir),
      lowercase=saved.tokenizer.lowercase,
      strip_accents=saved.tokenizer.strip_accents,
      backbone=saved.model.backbone,
    )
    for role in saved.model.roles
  ]


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
  model, no access, no hub, or a cache that cannot be written.
  """
  import huggingface_hub  # slow to import

  repo, _, revision = name.partition("@")
  report(f"Looking up {name!r} on the Hugging Face hub.")
  patterns = [*tokenizer_files.HUB_FILES, f"{hf_names.DETECTOR}/*"]
  cause: Exception | None = None
  reason = f"it has no {CONFIG} with {' or '.join(FORMATS)}"
  try:
    for weights in FORMATS:
      downloaded = huggingface_hub.snapshot_download(
        repo, revision=revision or None, allow_patterns=[*patterns, weights]
      )
      folder = pathlib.Path(downloaded)
      if (folder / weights).exists() and (folder / CONFIG).exists():
        return folder
  except Exception as error:  # every failure has its own class
    cause = error
    # Not its text, which may hold a token.
    reason = type(error).__name__
    if isinstance(error, OSError) and error.strerror:
      reason += f", {error.strerror}"
  raise InputError(
    f"init: {repo!r} is no folder, and was not downloaded ({reason}). If it is"
    " private or gated, set HF_TOKEN. Without the hub, pass a folder that"
    f" `hf download {repo} --local-dir FOLDER` wrote on another machine:"
    " --config.init=FOLDER."
  ) from cause


def hide_folders(text: str) -> str:
  """Reduces paths that lead out of the working directory to their last part."""
  return OUTSIDE.sub("", text)
