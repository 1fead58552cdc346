"""Weights are opened only once per start of a run."""

import collections

import pytest
from rich.console import Console

from support import runs, tiny, weight_files
from truenegs_jax.configs import electra_demo, finetune_own
from truenegs_jax.finetune import initial_weights
from truenegs_jax.pretrain import run as run_lib
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights.formats import hf_folder
from truenegs_jax.weights.init import load

SILENT = Console(quiet=True)


@pytest.fixture
def weights(tmp_path, monkeypatch):
  """The folder of a pair, and how often each of its networks was opened."""
  folder = weight_files.write_export(
    tmp_path / "pair", tiny.make_model(max_positions=64)
  )
  counts = collections.Counter()
  open_arrays = hf_folder.open_arrays

  def count_and_open(folder):
    counts[folder.name] += 1
    return open_arrays(folder)

  monkeypatch.setattr(hf_folder, "open_arrays", count_and_open)
  return folder, counts


def test_pre_training_opens_each_network_once(weights, tmp_path, monkeypatch):
  folder, counts = weights
  c = electra_demo.get_config("runlocal,baseline")
  c.data.sources = str(runs.write_corpus(tmp_path / "corpus.txt"))
  c.data.rows = str(tmp_path / "rows")
  c.init, c.data.vocab, c.model.variant = str(folder), "init", "init"
  c.length = c.model.max_positions = 64

  class LoadedError(Exception):
    pass

  load_params = load.load_params

  def load_and_stop(*args, **kwargs):
    assert load_params(*args, **kwargs)
    raise LoadedError

  monkeypatch.setattr(load, "load_params", load_and_stop)
  with pytest.raises(LoadedError):
    run_lib.run(c, tmp_path / "run", SILENT)
  assert counts == {"discriminator": 1, "generator": 1}


def test_fine_tuning_opens_the_network_once(weights):
  folder, counts = weights
  c = finetune_own.get_config()
  c.init, c.length = str(folder), 32
  initial = initial_weights.open_weights(c, report=print)
  task = task_lib.Task("own", "Own", task_lib.CLASSES, labels=("no", "yes"))
  model = initial.make_model(2)
  for seed in range(2):
    assert initial.provenance(model, task, {})["weights"]
    assert initial.make_params(model, task, seed, report=print)
  assert counts == {"discriminator": 1, "generator": 1}
