"""Runs of several processes, all on this machine."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from support import runs, saved_steps, shared_runs
from truenegs_jax.runtime import distributed, errors
from truenegs_jax.workdir import lock

STEPS = 20
JOIN = """
import sys
from truenegs_jax.runtime import distributed
address, count, index = sys.argv[1:] or (None,) * 3
distributed.initialize(
  address, count and int(count), index and int(index), say=print
)
"""
PRINT_INDEX = (
  JOIN
  + """
import jax
print("process", jax.process_index(), "of", jax.process_count())
"""
)

GATHER = """
import functools, os, pathlib, signal, sys
import numpy as np
from rich.console import Console
from truenegs_jax.runtime import distributed, errors
index = int(sys.argv[2])
distributed.initialize(f"127.0.0.1:{sys.argv[1]}", 2, index, say=print)
from truenegs_jax.train import guards, sharding
from truenegs_jax.workdir.lock import lock
mesh = sharding.make_mesh(sharding.get_mesh_spec("dp"))
assert sharding.process_slice(mesh, 8) == (index, 2)
own_rows = {"row": np.arange(4) + 4 * index}
row_B = sharding.shard_batch(own_rows, mesh)["row"]
assert distributed.to_host(row_B).tolist() == list(range(8))
folder = pathlib.Path(sys.argv[3])
def refuse(function, words):
  try:
    function()
    sys.exit(f"accepted: {words}")
  except errors.InputError as e:
    assert words in str(e), e
"""
TWO_PROCESSES = (
  GATHER
  + """
from truenegs_jax.config.sections import Data
from truenegs_jax.pretrain.start import prepare_rows
quiet = Console(quiet=True)
with guards.StopSignals(quiet) as signals:
  vote = guards.StopVote(signals, mesh)
  assert vote.poll() is None
  os.kill(os.getpid(), (signal.SIGTERM, signal.SIGINT)[index])
  assert vote.poll() is None
  assert vote.poll() == signal.SIGTERM

refuse(lock(folder / str(index)).__enter__, "share")
none = Data(sources=str(folder / "texts"), rows=str(folder / "none"))
prepare = functools.partial(prepare_rows, none, 128, quiet)
refuse(prepare, " prepare with the same --config flags")
assert not (folder / "none").exists()
with distributed.raise_everywhere("good"):
  pass
error = errors.DataError("a row is missing") if index else None
vote = guards.StopVote(signals, mesh, lambda: error)
signals.received = signal.SIGTERM
assert vote.poll() is None
try:
  vote.poll()
except errors.DataError as e:
  distributed.warn(f"printed: {e}")
  distributed.exit_all(3, failed=True)
"""
)

LOST = (
  GATHER
  + """
refuse(lock(folder / "used").__enter__, "Another run is using")
distributed.SAME_ERROR_SECS = 0.5
if index:
  os.kill(os.getpid(), signal.SIGKILL)
try:
  while True:
    distributed.to_host(row_B)
except Exception as e:
  error = distributed.explain_loss(e)
  distributed.warn(str(error))
  distributed.exit_all(error.exit_code, failed=True)
"""
)


@pytest.fixture(scope="module")
def finished(shared_pretraining, tmp_path_factory):
  """Returns (root, flags, env) with a run of 1 process in root/single.

  Processes of `env` have two devices; this one hides all but four.
  """
  root = tmp_path_factory.mktemp("runs")
  env = runs.make_environment(root / "cache", devices=2)
  env |= {"TRUENEGS_JOIN_SECS": "60", "TRUENEGS_HEARTBEAT_SECS": "10"}
  flags = [*shared_pretraining.values, f"--config.steps={STEPS}"]
  # No draw of this seed depends on the rounding of a sum over devices.
  flags += ["--config.seed=1", "--config.checkpoint.keep=9"]
  flags += [runs.save_synonyms(root, shared_pretraining.workdir / "vocab.txt")]
  flags += ["--config.negatives.hard_correction=True"]
  flags += ["--config.eval.sentences=('the [MASK] sees',)"]
  with shared_runs.isolate(root, devices=4):
    code, output = runs.run_in_process(root / "single", flags)
    assert code == 0, output
    yield root, flags, env


@pytest.fixture(scope="module")
def stopped(finished):
  """Returns (workdir, outcomes) of 2 processes, one of which got SIGTERM."""
  root, flags, env = finished
  workdir = root / "stopped"
  for _ in range(2):  # the free port may be taken before it is used
    processes = runs.start_processes(workdir, flags, env, 2)
    wait_for_step(workdir, 4, processes)
    processes[1].send_signal(signal.SIGTERM)
    ended = runs.wait_for_all(processes)
    if not any("could not join" in output for _, output in ended):
      break
  return workdir, ended


def wait_for_step(workdir, step, processes):
  deadline = time.monotonic() + runs.TIMEOUT_SECS
  while runs.last_step(workdir) < step:
    assert time.monotonic() < deadline, f"no step {step} in time"
    if any(process.poll() is not None for process in processes):
      return
    time.sleep(0.01)


def checkpoint_steps(workdir):
  return sorted(int(f.name) for f in (workdir / "checkpoints").iterdir())


def assert_same_losses(a, b):
  for split in ("train", "held_out"):
    records_a = runs.read_records(a, split)
    records_b = runs.read_records(b, split)
    assert [r["step"] for r in records_a] == [r["step"] for r in records_b]
    for x, y in zip(records_a, records_b, strict=True):
      for name in ("total", "mlm", "detect", "soft", "auc", "grad_norm"):
        if name in x:
          np.testing.assert_allclose(x[name], y[name], rtol=1e-5, err_msg=name)


def assert_same_cases(a, b):
  texts = [(workdir / "cases.json").read_text() for workdir in (a, b)]
  searches = [json.loads(text) for text in texts]
  probabilities = [
    [case.pop("probability") for case in search["cases"]] for search in searches
  ]
  assert searches[0] == searches[1] and len(probabilities[0]) > 1
  np.testing.assert_allclose(*probabilities, rtol=1e-3)


def assert_same_parameters(a, b):
  params_a, params_b = runs.read_exported(a), runs.read_exported(b)
  assert params_a and params_a.keys() == params_b.keys()
  for name, array in params_a.items():
    np.testing.assert_allclose(array, params_b[name], atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_after_the_same_step(stopped):
  workdir, ended = stopped
  assert [code for code, _ in ended] == [75, 75], ended
  step = checkpoint_steps(workdir)[-1]
  assert 4 <= step < STEPS
  assert f"Saved at step {step}" in " ".join(ended[0][1].split())
  assert runs.last_step(workdir) == step


@pytest.mark.slow
def test_a_run_of_two_processes_resumes_with_one(finished, stopped):
  root, flags, _ = finished
  workdir, _ = stopped
  code, output = runs.run_in_process(workdir, flags)
  assert code == 0 and "resume" in output, output
  assert_same_losses(root / "single", workdir)
  assert_same_parameters(root / "single", workdir)


@pytest.mark.slow
def test_a_damaged_run_of_one_process_resumes_with_two(finished):
  root, flags, env = finished
  workdir = root / "resumed"
  shutil.copytree(root / "single", workdir)
  for step in checkpoint_steps(workdir):
    if step > 6:
      shutil.rmtree(workdir / "checkpoints" / str(step))
  for path in (workdir / "checkpoints" / "6").rglob("d/*"):  # values
    saved_steps.truncate(path, random.Random(0))
  shutil.rmtree(workdir / "export")
  (workdir / "cases.json").unlink()
  ended = runs.run_processes(workdir, flags, env, 2)
  assert [code for code, _ in ended] == [0, 0], ended
  output = " ".join(ended[0][1].split())
  assert "6' is damaged" in output or "6' cannot be restored" in output
  assert "now '6.damaged'. Step 5 is used instead" in output
  assert (workdir / "checkpoints" / "6").exists()
  assert_same_losses(root / "single", workdir)
  assert_same_cases(root / "single", workdir)
  results = json.loads((workdir / "results.json").read_text())
  assert results["fills"] and results["corrections"]["cases"]
  assert_same_parameters(root / "single", workdir)


@pytest.mark.slow
def test_damaged_rows_end_both_processes(finished, shared_pretraining):
  root, flags, env = finished
  rows = shared_pretraining.root / "rows"
  folder = shutil.copytree(rows, root / "damaged_rows")
  path = folder / "train-00000-0000.types.npy"
  data = bytearray(path.read_bytes())
  data[-1] ^= 1  # 0 or 1 as before
  path.write_bytes(data)
  flags = [*flags, f"--config.data.rows={folder}"]
  ended = runs.run_processes(root / "damaged", flags, env, 2)
  assert [code for code, _ in ended] == [3, 3], ended
  for _, output in ended:
    words = " ".join(output.split())
    assert f"{folder}: damaged" in words
    assert path.name in words and "Traceback" not in words
  assert not (root / "damaged/checkpoints").exists()


@pytest.mark.parametrize(
  "flags, words",
  [
    (("127.0.0.1:1", None, None), "--process_id=I, or none"),
    (("127.0.0.1:1", 2, 2), "not from 0 to 1"),
  ],
)
def test_impossible_flags_are_refused(flags, words):
  with pytest.raises(errors.InputError, match=re.escape(words)):
    distributed.initialize(*flags, say=print)


@pytest.mark.slow
@pytest.mark.parametrize("indices", [[2], [0, 1, 1]])
def test_processes_abort_when_one_is_missing_or_has_a_wrong_id(
  tmp_path, indices
):
  env = runs.make_environment(tmp_path) | {"TRUENEGS_JOIN_SECS": "1"}
  port = runs.find_free_port()
  arguments = [(f"127.0.0.1:{port}", 3, index) for index in indices]
  ended = run_scripts(JOIN, [env] * len(indices), arguments)
  for index, (code, output) in zip(indices, ended, strict=True):
    assert code == -signal.SIGABRT, output  # 134 in a shell
    before = output.splitlines()[0]
    assert f"process {index} of 3, coordinator 127.0.0.1:{port}" in before
    assert "at most 1 s" in before and "same process_id" in before


def test_different_numbers_of_processes_are_refused(tmp_path):
  env = runs.make_environment(tmp_path) | {"TRUENEGS_JOIN_SECS": "20"}
  address = f"127.0.0.1:{runs.find_free_port()}"
  ended = run_scripts(JOIN, [env] * 2, [(address, 2, 0), (address, 3, 1)])
  for code, output in ended:
    assert code == 1 and "do not agree on num_processes" in output


def run_scripts(code, envs, arguments):
  """Runs code in one process per environment; returns codes and outputs."""
  processes = [
    subprocess.Popen(
      [sys.executable, "-c", code, *map(str, argv)],
      env=env,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for env, argv in zip(envs, arguments, strict=True)
  ]
  return runs.wait_for_all(processes)


def test_arrays_signals_and_errors_reach_both_processes(tmp_path):
  port = runs.find_free_port()
  envs = [runs.make_environment(tmp_path)] * 2
  runs.write_corpus(tmp_path / "texts")
  arguments = [(port, i, tmp_path) for i in range(2)]
  ended = run_scripts(TWO_PROCESSES, envs, arguments)
  assert [code for code, _ in ended] == [3, 3], ended
  message = "printed: process 1 of 2: a row is missing"
  assert f"process 0 of 2: {message}" in ended[0][1]
  assert f"process 1 of 2: {message}" in ended[1][1]


def test_a_process_ends_with_a_sentence_if_another_is_killed(tmp_path):
  port = runs.find_free_port()
  envs = [runs.make_environment(tmp_path)] * 2
  arguments = [(port, i, tmp_path) for i in range(2)]
  with lock.lock(tmp_path / "used"):
    ended = run_scripts(LOST, envs, arguments)
  assert [code for code, _ in ended] == [errors.HANGS, -signal.SIGKILL], ended
  assert "0 of 2: Another process of the run is gone (" in ended[0][1]
  assert "Traceback" not in ended[0][1]


def slurm(index, count, port):
  return {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": str(count),
    "SLURM_PROCID": str(index),
    "SLURM_LOCALID": str(index),
    "JAX_COORDINATOR_PORT": str(port),
  }


def open_mpi(index, count, port):
  return {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": str(count),
    "OMPI_COMM_WORLD_RANK": str(index),
    "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
    "JAX_COORDINATOR_PORT": str(port),
  }


@pytest.mark.slow
def test_processes_of_launchers_join_without_flags(tmp_path):
  """Slurm starts the first, and Open MPI the second: their variables agree."""
  port, launchers = runs.find_free_port(), (slurm, open_mpi)
  clean = {
    name: value
    for name, value in runs.make_environment(tmp_path).items()
    if not name.startswith(("SLURM_", "OMPI_"))
  }
  envs = [clean | start(i, 2, port) for i, start in enumerate(launchers)]
  ended = run_scripts(PRINT_INDEX, envs, [()] * 2)
  for index, (code, output) in enumerate(ended):
    assert code == 0, output
    assert f"process {index} of 2\n" in output
    assert "Joining as" in output


@pytest.mark.parametrize("variables", [{}, slurm(0, 1, 1)])
def test_one_process_does_not_join(monkeypatch, variables):
  for name in list(os.environ):
    if name.startswith(("SLURM_", "OMPI_")):
      monkeypatch.delenv(name)
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  distributed.initialize(None, None, None, say=pytest.fail)
  assert not jax.distributed.is_initialized()


def test_a_task_of_one_process_runs_in_the_first(monkeypatch):
  monkeypatch.setattr(os, "environ", {"TPU_VISIBLE_CHIPS": "3"})
  flags = "127.0.0.1:1", 2, 1
  place = distributed.initialize(*flags, say=pytest.fail, first_alone=True)
  assert place == (1, 2) and not jax.distributed.is_initialized()
  # The first does not wait for the hosts of the others.
  assert os.environ["TPU_HOST_BOUNDS"] == "1,1,1"
  assert os.environ["TPU_VISIBLE_CHIPS"] == "3"
