"""Where weights are looked for: what `config.init` may say.

find("released/electra")                        a folder of one or of a pair
find("google/electra-base-discriminator, google/electra-base-generator")
find("runs/mine"), find("runs/mine/checkpoints/500")
find("electra_base")                            Google's, as unpacked
"""

import os
import pathlib
from collections.abc import Callable, Sequence
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

# Runs of a fine-tuning, from its workdir, from a task of it and from a run.
TUNED = tuple(f"{x}result.json" for x in ("*/seed-*/", "seed-*/", ""))
WAYS = (
  "It may be a folder that transformers' save_pretrained or"
  " truenegs_jax.export wrote (for ELECTRA's pair: one with discriminator/ and"
  " generator/, or two, DISCRIMINATOR,GENERATOR), a name on the Hugging Face"
  " hub, a folder of one of Google's TF1 checkpoints, or the workdir of a run"
  " of ours."
)


def find(
  init: str,
  roles: Sequence[str] = (),
  *,
  say: Callable[[str], Any] = print,
) -> dict[str, Network]:
  """The networks that are there, by role; only headers are read.

  Args:
    init: what the user said.
    roles: of the model that wants them; none: whatever is there will do. A
      pair does with a discriminator alone, and where only that is wanted its
      generator is left out.
    say: told of what is downloaded.

  Raises:
    InputError: nothing there, damaged, in a format that is not read, or of
      other roles.
    CheckpointError: a run of ours that cannot be read.
  """
  places = _places(init)
  found: dict[str, Network] = {}
  for place in places:
    for role, network in _open(place, say).items():
      if role in found:
        raise InputError(
          f"init: {found[role].place} and {network.place} are both a {role};"
          " give DISCRIMINATOR,GENERATOR."
        )
      found[role] = network
  kept = roles[0] if roles else ""
  if {"discriminator"} == set(roles) <= set(found):
    found.pop("generator", None)
  if roles and (kept not in found or set(found) - set(roles)):
    raise InputError(
      f"init: {init} holds {_described(found)}, and this run trains"
      f" {_family(kept)!r}: give weights of"
      f" {'BERT' if kept == 'bert' else 'a discriminator'}, or another config."
    )
  # The discriminator comes first: where the two differ, it decides.
  return {role: found[role] for role in sorted(found)}


def find_encoder(init: str, *, say: Callable[[str], Any] = print) -> Network:
  """The one network of weights that is fine-tuned: its role, sizes, words.

  Args:
    init, say: as in `find`.

  Raises:
    InputError: as `find`; a generator alone; BERT and a discriminator.
    CheckpointError: as `find`.
  """
  found = find(init, say=say)
  kept = [network for role, network in found.items() if role != "generator"]
  if len(kept) != 1:
    raise InputError(
      f"init: {init} holds {_described(found)}, and what is fine-tuned is BERT"
      " or a discriminator: give one, of a pair the generator's partner."
    )
  return kept[0]


def _places(init: str) -> list[str]:
  """One place, or those of discriminator and generator."""
  init = init.strip()
  if "," not in init or os.path.exists(os.path.expanduser(init)):
    return [init]
  places = [place.strip() for place in init.split(",")]
  if not all(places):
    raise InputError(f"init: {init!r} has an empty part; leave out the comma.")
  return places


def _open(place: str, say: Callable[[str], Any]) -> dict[str, Network]:
  path = pathlib.Path(place).expanduser()
  try:
    path.exists()
  except (OSError, ValueError) as e:  # of too long a name, say
    raise InputError(f"init: {place[:80]!r} is no place: {e}.") from e
  if run := run_folder.locate(path):
    return run_folder.open_networks(*run)
  if path.is_dir():
    return _open_folder(path)
  if path.exists():
    raise InputError(
      f"init: {place} is a file; give its folder: {path.parent}."
    )
  if path.with_name(f"{path.name}.index").is_file():
    raise InputError(f"init: {place}: give its folder: {path.parent}.")
  if not hf_hub.is_name(place):
    raise InputError(f"init: there is no folder {place}. {WAYS}")
  return _by_role(hf_folder.open_network(hf_hub.fetch(place, say=say)))


def _open_folder(folder: pathlib.Path) -> dict[str, Network]:
  inside = [r for r in hf_names.NETWORKS if (folder / r).is_dir()]
  if inside:
    return _open_inside(folder, inside)
  has = lambda name: (folder / name).exists()
  if not (has(WEIGHTS) or has(INDEX)):
    # A copy of Google's on the hub may have a config.json beside it.
    if google_tf1.find_index(folder):
      return google_tf1.networks(folder)
    _check_not_tuned(folder)
  if not has(hf_folder.CONFIG) and not any(folder.glob("*model*")):
    raise InputError(f"init: {folder} holds no weights. {WAYS}")
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


def _described(found: dict[str, Network]) -> str:
  return " and ".join(
    "BERT" if role == "bert" else f"a {role}" for role in found
  )


def _family(role: str) -> str:
  return hf_names.NETWORKS[role].family
