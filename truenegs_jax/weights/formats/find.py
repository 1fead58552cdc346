"""The weights that `config.init` names: a folder, a hub name or a run.

Weights("released/electra")               a folder of one network or of a pair
Weights("google/electra-base-discriminator, google/electra-base-generator")
Weights("runs/mine"), Weights("runs/mine/checkpoints/500")
Weights("electra_base")                   Google's TF1 checkpoint, as unpacked
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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

# Runs of a fine-tuning, from its workdir, from a task of it and from a run.
TUNED = tuple(f"{x}result.json" for x in ("*/seed-*/", "seed-*/", ""))
INIT_FORMATS = (
  "It may be a folder that transformers' save_pretrained or"
  " truenegs_jax.export wrote (for ELECTRA's pair: one with discriminator/ and"
  " generator/, or two, DISCRIMINATOR,GENERATOR), a name on the Hugging Face"
  " hub, a folder of one of Google's TF1 checkpoints, or the workdir of a run"
  " of ours."
)


@dataclasses.dataclass(frozen=True)
class Weights:
  """Weights to start from: located and opened once, when first needed.

  Attributes:
    init: a value of `config.init`: one place, or DISCRIMINATOR,GENERATOR.
    report: receives a line about each download.
  """

  init: str
  report: Callable[[str], Any] = print

  @functools.cached_property
  def networks(self) -> dict[str, Network]:
    """All networks by role, a discriminator first; only headers are read.

    Raises:
      InputError: nothing there, damaged, or a format that is not read.
      CheckpointError: a run of ours that cannot be read.
    """
    by_role: dict[str, Network] = {}
    for place in _places(self.init):
      for role, network in _open(place, self.report).items():
        if role in by_role:
          raise InputError(
            f"init: {by_role[role].location} and {network.location} are both a"
            f" {role}; give DISCRIMINATOR,GENERATOR."
          )
        by_role[role] = network
    # The discriminator comes first: where the two differ, it decides.
    return dict(sorted(by_role.items()))

  def for_roles(self, roles: Sequence[str]) -> dict[str, Network]:
    """The networks for a model of these roles.

    A pair does with a discriminator alone, and where only that is wanted its
    generator is left out.

    Raises:
      InputError: networks of other roles; as `networks`.
      CheckpointError: as `networks`.
    """
    by_role, first = dict(self.networks), roles[0]
    if {"discriminator"} == set(roles) <= set(by_role):
      by_role.pop("generator", None)
    if first not in by_role or set(by_role) - set(roles):
      raise InputError(
        f"init: {self.init} holds {_described(by_role)}, and this run trains"
        f" {hf_names.NETWORKS[first].family!r}: give weights of"
        f" {'BERT' if first == 'bert' else 'a discriminator'}, or another"
        " config."
      )
    return by_role

  def encoder(self) -> Network:
    """The one network that can be fine-tuned.

    Raises:
      InputError: a generator alone; BERT and a discriminator; as `networks`.
      CheckpointError: as `networks`.
    """
    encoders = [x for role, x in self.networks.items() if role != "generator"]
    if len(encoders) != 1:
      raise InputError(
        f"init: {self.init} holds {_described(self.networks)}, and what is"
        " fine-tuned is BERT or a discriminator: give one, of a pair the"
        " generator's partner."
      )
    return encoders[0]


def _places(init: str) -> list[str]:
  """One place, or those of discriminator and generator."""
  init = init.strip()
  if "," not in init or os.path.exists(os.path.expanduser(init)):
    return [init]
  places = [place.strip() for place in init.split(",")]
  if not all(places):
    raise InputError(f"init: {init!r} has an empty part; leave out the comma.")
  return places


def _open(place: str, report: Callable[[str], Any]) -> dict[str, Network]:
  path = pathlib.Path(place).expanduser()
  try:
    path.exists()
  except (OSError, ValueError) as e:  # of too long a name, say
    raise InputError(f"init: {place[:80]!r} is no place: {e}.") from e
  if run := files.parse_run_path(path):
    return run_folder.open_networks(*run)
  if path.is_dir():
    return _open_folder(path)
  if path.exists():
    raise InputError(
      f"init: {place} is a file; give its folder: {path.parent}."
    )
  if path.with_name(f"{path.name}.index").is_file():
    raise InputError(f"init: {place}: give its folder: {path.parent}.")
  if not hf_hub.is_model_name(place):
    raise InputError(f"init: there is no folder {place}. {INIT_FORMATS}")
  return _by_role(hf_folder.open_network(hf_hub.download(place, report=report)))


def _open_folder(folder: pathlib.Path) -> dict[str, Network]:
  inside = [r for r in hf_names.NETWORKS if (folder / r).is_dir()]
  if inside:
    return _open_inside(folder, inside)
  has = lambda name: (folder / name).exists()
  if not (has(WEIGHTS) or has(INDEX)):
    # A copy of Google's on the hub may have a config.json beside it.
    if google_tf1.find_index(folder):
      return google_tf1.open_networks(folder)
    _check_not_tuned(folder)
  if not has(hf_folder.CONFIG) and not any(folder.glob("*model*")):
    raise InputError(f"init: {folder} holds no weights. {INIT_FORMATS}")
  return _by_role(hf_folder.open_network(folder))


def _check_not_tuned(folder: pathlib.Path) -> None:
  """Refuses what holds fine-tuned models, and names one of them."""
  runs = [path.parent for x in TUNED for path in folder.glob(x)]
  models = [x / "model" for x in runs if (x / "model" / WEIGHTS).exists()]
  if models:
    which = f"one of its {len(models)} models: " if models[1:] else ""
    raise InputError(
      f"init: {folder} is of a fine-tuning; give {which}{min(models)}."
    )
  if runs:
    raise InputError(
      f"init: {folder} is of a fine-tuning that has written no model;"
      " --config.finetune.export=all does."
    )


def _open_inside(
  folder: pathlib.Path, inside: Sequence[str]
) -> dict[str, Network]:
  """The folders in a folder, each of the network that it is named after."""
  found = {}
  for role in inside:
    if not (folder / role).resolve().is_relative_to(folder.resolve()):
      raise InputError(
        f"init: {folder / role} leads out of the folder; give both places as"
        " they are: DISCRIMINATOR,GENERATOR."
      )
    found[role] = hf_folder.open_network(folder / role)
    if found[role].role != role:
      raise InputError(
        f"init: {folder / role} holds a {found[role].role}, by its config and"
        " arrays."
      )
  return found


def _by_role(network: Network) -> dict[str, Network]:
  return {network.role: network}


def _described(found: Mapping[str, Network]) -> str:
  return " and ".join(
    "BERT" if role == "bert" else f"a {role}" for role in found
  )
