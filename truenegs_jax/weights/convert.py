"""Exports weights in any format of `config.init` without training.

export_weights("google-bert/bert-base-uncased", output)
"""

import os
import pathlib
from collections.abc import Callable, Mapping

from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights import (
  check_fit,
  export_model,
  hf_names,
  load,
  model_card,
)
from truenegs_jax.weights.find import Weights
from truenegs_jax.weights.network import Network


def export_weights(
  init: str,
  output: pathlib.Path,
  *,
  vocab: str = "",
  dtype: str = "float32",
  report: Callable[[str], object] = print,
) -> export_model.ExportResult:
  """Converts weights of any size, with a pooler if they have one.

  Args:
    init: a value of `config.init`. Export a run with
      `export_run.export_workdir`, whose model card says more.
    output: the folder to create. An older export there is replaced.
    vocab: the vocabulary file of weights that come without one.
    dtype: of the written weights, "float32" or "bfloat16".
    report: receives lines about downloads and about heads drawn at random.
  """
  # Checked first, as reading the weights may take long.
  _check_apart(init, export_model.check_replaceable(output))
  weights = Weights(init, report)
  model, tokenizer, skip = load.build_model(weights, vocab, report)
  networks = weights.networks
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
      f" `{model_card.hide_folders(init)}`"
    },
    metadata={
      **model_card.read_metadata(init),
      "base_model": model_card.find_models(init),
    },
    random_modules=_find_random_modules(networks, model, report),
  )
  return export_model.export_model(
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
