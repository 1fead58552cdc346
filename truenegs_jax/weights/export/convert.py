"""Exports weights in any format of `config.init` without training.

export_weights("uncased_L-12_H-768_A-12", output)  # Google's BERT, as unpacked
"""

import os
import pathlib
from collections.abc import Callable, Mapping

from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.export import model_card, pretrained, public_names
from truenegs_jax.weights.formats import hf_folder, hf_names
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.formats.network import Network
from truenegs_jax.weights.init import check_fit, load, load_model


def export_weights(
  init: str,
  output: pathlib.Path,
  *,
  vocab: str = "",
  dtype: str = "float32",
  report: Callable[[str], object] = print,
) -> pretrained.ExportResult:
  """Converts weights of any size, with a pooler if they have one.

  Args:
    init: a value of `config.init`. Export a run with
      `export_run.export_workdir`, whose model card says more.
    output, dtype: as in `pretrained.export_model`.
    vocab: the vocabulary file of weights that come without one.
    report: receives lines about downloads and about heads drawn at random.

  Raises:
    InputError: `output` and `init` overlap; a generator alone; no vocabulary,
      or one of another size; as `load.load_params` and
      `pretrained.export_model`.
    CheckpointError, NonFiniteError, DiskError, TrueNegsError: as these.
  """
  # Checked first, as reading the weights may take long.
  _check_apart(init, pretrained.check_replaceable(output))
  weights = Weights(init, report)
  model, tokenizer, skip = load_model.build_model(weights, vocab, report)
  networks = weights.networks
  hf_folder.check_backbone(model)
  params = load.load_params(
    weights,
    model,
    tokenizer=tokenizer,
    skip=skip,
    report=lambda line: None,  # would name a generator that is not written
  )
  origin = model_card.ModelOrigin(
    {
      "Training": "* Converted, not trained, by truenegs_jax from:"
      f" `{public_names.hide_folders(init)}`"
    },
    metadata={
      **public_names.read_metadata(init),
      "base_model": public_names.find_models(init),
    },
    random_modules=_find_random_modules(networks, model, report),
  )
  return pretrained.export_model(
    model,
    params,
    tokenizer,
    output,
    origin=origin,
    roles=tuple(networks),
    dtype=dtype,
  )


def _check_apart(init: str, output: pathlib.Path) -> None:
  """Refuses an output that contains, or is inside, the weights."""
  for location in map(str.strip, (init, *init.split(","))):
    path = pathlib.Path(os.path.realpath(os.path.expanduser(location)))
    overlaps = output in (path, *path.parents) or path in output.parents
    if location and path.exists() and overlaps:
      raise InputError(
        f"output='{output}' overlaps with the weights to convert, '{path}'."
        " Choose another --output."
      )


def _find_random_modules(
  networks: Mapping[str, Network],
  model: pretrain.Model,
  report: Callable[[str], object],
) -> dict[str, str]:
  """Reports and returns Hugging Face's names of missing modules, by role."""
  random_modules = {}
  for role, network in networks.items():
    loadable = check_fit.loadable_names(network, model, role)
    missing = set(network.name_table(model, role)) - set(loadable)
    table = hf_names.name_table(model, role)
    modules = sorted({table[path].rpartition(".")[0] for path in missing})
    random_modules[role] = names = ", ".join(modules)
    if names:
      report(f"init: NOT in {network.location}, so DRAWN AT RANDOM: {names}.")
  return random_modules
