"""Finds the weights that `config.init` names: a folder, a hub name or a run.

Weights("released/electra")               folder of one network or of a pair
Weights("google/electra-base-discriminator, google/electra-base-generator")
Weights("runs/mine"), Weights("runs/mine/checkpoints/500")
Weights("electra_base")                   Google's TF1 checkpoint, as unpacked
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats import (
  google_tf1,
  hf_folder,
  hf_hub,
  hf_names,
  run_folder,
)
from truenegs_jax.weights.formats.hf_safetensors import INDEX, WEIGHTS
from truenegs_jax.weights.formats.network import Network
from truenegs_jax.workdir import files

# Results in a workdir of fine-tuning, in a folder of a task, and of one run.
RESULTS = ("*/seed-*/result.json", "seed-*/result.json", "result.json")
INIT_FORMATS = (
  "config.init accepts a folder that save_pretrained of transformers or"
  " truenegs_jax.export wrote (for an ELECTRA pair, a folder with"
  " discriminator/ and generator/, or two folders, DISCRIMINATOR,GENERATOR), a"
  " name on the Hugging Face hub, a folder of one of Google's TF1 checkpoints,"
  " or the workdir of a pre-training run."
)


@dataclasses.dataclass(frozen=True)
class Weights:
  """Weights to start from, found and opened once, when first needed.

  Attributes:
    init: a value of `config.init`: one location, or DISCRIMINATOR,GENERATOR.
    report: receives a line about each download.
  """

  init: str
  report: Callable[[str], object] = print

  @functools.cached_property
  def networks(self) -> dict[str, Network]:
    """All networks by role, the discriminator first; only headers are read.

    Raises:
      InputError: the location does not exist, or its files are damaged or of
        an unknown format.
      CheckpointError: a run of this project that cannot be read.
    """
    by_role: dict[str, Network] = {}
    for location in _split_init(self.init):
      for network in _open_location(location, self.report):
        other = by_role.setdefault(network.role, network)
        if other is not network:
          raise InputError(
            f"init: {other.location} and {network.location} are both a"
            f" {network.role}. Pass --config.init=DISCRIMINATOR,GENERATOR."
          )
    # The discriminator is first: its values are used where the two differ.
    return dict(sorted(by_role.items()))

  def for_roles(self, roles: Sequence[str]) -> dict[str, Network]:
    """Returns the networks for a model with these roles.

    A pair can start from a discriminator alone. A model that is only a
    discriminator ignores the generator of a pair.

    Raises:
      InputError: the weights have other roles; as `networks`.
      CheckpointError: as `networks`.
    """
    by_role, first = dict(self.networks), roles[0]
    if tuple(roles) == ("discriminator",) and "discriminator" in by_role:
      by_role.pop("generator", None)
    if first not in by_role or set(by_role) - set(roles):
      raise InputError(
        f"init: {self.init!r} holds {_list_roles(by_role)}, but this run trains"
        f" {hf_names.NETWORKS[first].family!r}. Pass weights of"
        f" {_list_roles([first])}, or choose another config."
      )
    return by_role

  def encoder(self) -> Network:
    """Returns the one network that can be fine-tuned.

    Raises:
      InputError: a generator alone; BERT and a discriminator; as `networks`.
      CheckpointError: as `networks`.
    """
    encoders = [x for role, x in self.networks.items() if role != "generator"]
    if len(encoders) != 1:
      raise InputError(
        f"init: {self.init!r} holds {_list_roles(self.networks)}, but"
        " fine-tuning needs one BERT or one discriminator. Pass that one. If"
        " you have only the generator of a pair, get its discriminator."
      )
    return encoders[0]


def is_local(init: str) -> bool:
  """Whether a value of `config.init` names paths that exist; opens none."""
  paths = (pathlib.Path(x).expanduser() for x in _split_init(init))
  return bool(init) and all(path.exists() for path in paths)


def describe(init: str) -> str:
  """Describes in a dry run where weights come from; opens none."""
  if is_local(init):
    return f"'{init}', which fit this config"
  if all(map(hf_hub.is_model_name, _split_init(init))):
    hub = "looked up on the Hugging Face hub (offline: --config.init=FOLDER)"
    return f"'{init}', which are {hub}"
  return f"'{init}', which are missing"


def _split_init(init: str) -> list[str]:
  """Splits `config.init` into one location, or those of a pair."""
  init = init.strip()
  if "," not in init or os.path.exists(os.path.expanduser(init)):
    return [init]
  locations = [location.strip() for location in init.split(",")]
  if not all(locations):
    raise InputError(f"init: {init!r} has an empty name. Remove the comma.")
  return locations


def _open_location(
  location: str, report: Callable[[str], object]
) -> Iterable[Network]:
  path = pathlib.Path(location).expanduser()
  try:
    path.exists()
  except (OSError, ValueError) as e:  # for example, the name is too long
    raise InputError(f"init: {location[:80]!r} is not a path: {e}.") from e
  if run := files.parse_run_path(path):
    return run_folder.open_networks(*run, report).values()
  if path.is_dir():
    return _open_folder(path)
  if path.exists() or path.with_name(f"{path.name}.index").is_file():
    raise InputError(
      f"init: {location!r} is not a folder. Pass the folder of this file:"
      f" --config.init={path.parent}."
    )
  if not hf_hub.is_model_name(location):
    raise InputError(f"init: there is no folder {location!r}. {INIT_FORMATS}")
  return [hf_folder.open_network(hf_hub.download(location, report=report))]


def _open_folder(folder: pathlib.Path) -> Iterable[Network]:
  roles = [role for role in hf_names.NETWORKS if (folder / role).is_dir()]
  if roles:
    return [_open_subfolder(folder, role) for role in roles]
  if not any((folder / name).exists() for name in (WEIGHTS, INDEX)):
    # On the hub, a copy of Google's checkpoint may come with a config.json.
    if google_tf1.find_index(folder):
      return google_tf1.open_networks(folder).values()
    _refuse_fine_tuning(folder)
  has_config = (folder / hf_folder.CONFIG).exists()
  if not has_config and not any(folder.glob("*model*")):
    raise InputError(f"init: '{folder}' holds no weights. {INIT_FORMATS}")
  return [hf_folder.open_network(folder)]


def _refuse_fine_tuning(folder: pathlib.Path) -> None:
  """Refuses a folder of fine-tuning runs and names one of their models."""
  runs = [p.parent for pattern in RESULTS for p in folder.glob(pattern)]
  models = [x / "model" for x in runs if (x / "model" / WEIGHTS).exists()]
  if models:
    count = f"one of its {len(models)} models" if models[1:] else "its model"
    raise InputError(
      f"init: '{folder}' is a folder of fine-tuning. Pass {count}:"
      f" --config.init={min(models)}."
    )
  if runs:
    raise InputError(
      f"init: '{folder}' is a folder of fine-tuning without exported models."
      " Set --config.finetune.export=all and run the fine-tuning again."
    )


def _open_subfolder(folder: pathlib.Path, role: str) -> Network:
  """Opens a subfolder, which must hold the role that it is named after."""
  path = folder / role
  if not path.resolve().is_relative_to(folder.resolve()):
    raise InputError(
      f"init: '{path}' is a link that leads out of the folder. Pass both"
      " folders: --config.init=DISCRIMINATOR,GENERATOR."
    )
  network = hf_folder.open_network(path)
  if network.role != role:
    raise InputError(
      f"init: '{path}' holds a {network.role}, according to its config and"
      " arrays. Rename the folder."
    )
  return network


def _list_roles(roles: Iterable[str]) -> str:
  return " and ".join("BERT" if x == "bert" else f"a {x}" for x in roles)
