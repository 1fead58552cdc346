"""Fine-tunings that are stopped or killed end as uninterrupted ones."""

import json
import os
import signal

import pytest

from support import runs, shared_runs, word_task
from truenegs_jax.configs import finetune_own
from truenegs_jax.runtime.errors import DiskError
from truenegs_jax.train import sharding
from truenegs_jax.weights import export_model

# Times, and a line with the name of the workdir.
DIFFERENT = ("time", "eta_s", "rows_per_s", "secs", "exported")
VALUES = {
  "finetune.seeds": 1,
  "finetune.epochs": 3.0,
  "optim.lr": 5e-3,
  "finetune.evals_per_epoch": 1,
  "log.every_steps": 1,
}
SEED = "own/seed-0"


@pytest.fixture(scope="module")
def values(tmp_path_factory):
  """Writes the task's files and returns the values of the config."""
  folder = word_task.write_files(tmp_path_factory.mktemp("task"))
  vocab = word_task.write_vocabulary(folder)
  return word_task.config_values(vocab, folder) | VALUES


@pytest.fixture(scope="module", autouse=True)
def complete(values, tmp_path_factory):
  """Runs to the end on two devices, as all tests here; returns the workdir."""
  root = tmp_path_factory.mktemp("complete")
  with shared_runs.isolate(root, devices=2):
    assert run_here(values, root / "run") == 0
    yield root / "run"


def read_outcome(workdir):
  """Returns all that a run leaves, without what differs between two."""
  folder = workdir / SEED
  lines = (folder / "metrics.jsonl").read_text().splitlines()
  records = [
    *map(json.loads, lines),
    json.loads((folder / "result.json").read_text()),
  ]
  for record in records:
    for name in DIFFERENT:
      record.pop(name, None)
  exported = {x.name: x.read_bytes() for x in (folder / "model").iterdir()}
  return sorted(x.name for x in folder.iterdir()), records, exported


def run_here(values, workdir):
  """Returns the exit code."""
  c = finetune_own.get_config()
  c.update_from_flattened_dict(values)
  code, _ = runs.run_task(c, workdir)
  return code


def stop_at_batch(monkeypatch, number):
  """Sends SIGTERM at a batch, of training or evaluation, counted from 1."""
  place_batch, count = sharding.place_batch, 0

  def stop(batch, mesh):
    nonlocal count
    count += 1
    if count == number:
      os.kill(os.getpid(), signal.SIGTERM)
    return place_batch(batch, mesh)

  monkeypatch.setattr(sharding, "place_batch", stop)


def fill_disk(params, model, tokenizer, output, **kwargs):
  """Fails as an export that is killed or has no room."""
  (output.parent / f".{output.name}.killed").mkdir()
  output.mkdir()
  raise DiskError("no space left")


@pytest.mark.slow
def test_stopped_run_ends_bit_equal(values, complete, tmp_path, monkeypatch):
  stopped = tmp_path / "stopped"
  with monkeypatch.context() as patch:
    stop_at_batch(patch, 15)  # in the first evaluation, of three batches
    assert run_here(values, stopped) == 75
  with monkeypatch.context() as patch:
    patch.setattr(export_model, "export_task", fill_disk)
    with pytest.raises(DiskError):
      run_here(values, stopped)
  (stopped / SEED / ".model.killed").rmdir()
  assert run_here(values, stopped) == 0
  assert read_outcome(stopped) == read_outcome(complete)


@pytest.mark.slow
def test_two_processes_stop_and_end_as_one(complete, values, tmp_path):
  flags = [f"--config.{name}={value}" for name, value in values.items()]
  env = runs.make_environment(tmp_path / "cache")
  env |= {"TRUENEGS_JOIN_SECS": "60", "TRUENEGS_HEARTBEAT_SECS": "10"}
  workdir = tmp_path / "several"
  processes = runs.start_processes(
    workdir, flags, env, 2, config="finetune_own"
  )
  runs.wait_for_step(processes[1], workdir / "own/seed-0", 8)
  processes[1].send_signal(signal.SIGTERM)
  ended = runs.wait_for_all(processes)
  assert [code for code, _ in ended] == [75, 75], ended
  assert run_here(values, workdir) == 0
  assert read_outcome(workdir) == read_outcome(complete)
