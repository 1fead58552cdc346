"""Runs of several processes, all on this machine."""

import re
import signal

import jax
import numpy as np
import pytest

from support import runs, shared_runs
from truenegs_jax.runtime import distributed, errors
from truenegs_jax.workdir import lock

STEPS = 20
CONFIG = "bert_base:baseline,runlocal"
JOIN = """
import sys
from truenegs_jax.runtime import distributed
address, count, index = sys.argv[1:]
distributed.initialize(address, int(count), int(index), say=print)
"""
GATHER = """
import functools, os, pathlib, signal, sys, types
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
from truenegs_jax.pretrain import start
quiet = Console(quiet=True)
with guards.StopSignals(quiet) as signals:
  vote = guards.StopVote(signals, mesh)
  assert vote.poll() is None
  os.kill(os.getpid(), (signal.SIGTERM, signal.SIGINT)[index])
  assert vote.poll() is None
  assert vote.poll() == signal.SIGTERM

refuse(lock(folder / str(index)).__enter__, "share")
none = Data(sources=str(folder / "texts"), rows=str(folder / "none"))
prepare = functools.partial(start.prepare_rows, none, 128, quiet)
refuse(prepare, " prepare with the same --config flags")
assert not (folder / "none").exists()
config = types.SimpleNamespace(init="runs/x", seed=0)
run = types.SimpleNamespace(config=config, matched=None)
start.load.load_params = lambda *args, **options: {"w": np.full(2, index)}
read = functools.partial(start.prepare_state, run, {}, quiet)
refuse(read, "do not agree on weights")  # of two steps of a run
for number in "ab":
  with distributed.raise_everywhere("good"):
    pass
  value = distributed.from_first("value", number + str(index))
  assert value == number + "0"
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


@pytest.mark.slow
def test_two_processes_stop_after_the_same_step_and_one_goes_on(
  shared_pretraining, tmp_path
):
  """Processes have two devices; this one hides all but four."""
  env = runs.make_environment(tmp_path / "cache", devices=2)
  flags = [*shared_pretraining.values, f"--config.steps={STEPS}"]
  flags += ["--config.checkpoint.keep=9"]
  workdir, single = tmp_path / "stopped", tmp_path / "single"
  processes = runs.start_processes(workdir, flags, env, 2, config=CONFIG)
  runs.wait_for_step(processes[0], workdir, 4)
  processes[1].send_signal(signal.SIGTERM)
  ended = runs.wait_for_all(processes)
  assert [code for code, _ in ended] == [75, 75], ended
  steps = [int(x.name) for x in (workdir / "checkpoints").iterdir()]
  assert 4 <= max(steps) == runs.last_step(workdir) < STEPS
  assert f"Saved at step {max(steps)}" in " ".join(ended[0][1].split())
  with shared_runs.isolate(tmp_path, devices=4):
    for folder in (single, workdir):
      code, output = runs.run_in_process(folder, flags, CONFIG)
      assert code == 0, output
  for split in ("train", "held_out"):
    records = [runs.read_records(x, split) for x in (single, workdir)]
    for one, two in zip(*records, strict=True):
      assert one["step"] == two["step"]
      for name in {"total", "mlm", "grad_norm"} & one.keys():
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5)
  one, two = runs.read_exported(single), runs.read_exported(workdir)
  assert one and one.keys() == two.keys()
  for name, array in one.items():
    np.testing.assert_allclose(array, two[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
  "flags, words",
  [
    (("127.0.0.1:1", None, None), "Pass all of --coordinator=HOST:PORT"),
    (("127.0.0.1:1", 2, 2), "with I from 0 to N - 1"),
  ],
)
def test_impossible_flags_are_refused(flags, words):
  with pytest.raises(errors.InputError, match=re.escape(words)):
    distributed.initialize(*flags, say=print)


def test_different_numbers_of_processes_are_refused(tmp_path):
  env = runs.make_environment(tmp_path) | {"TRUENEGS_JOIN_SECS": "20"}
  address = f"127.0.0.1:{runs.find_free_port()}"
  ended = run_scripts(JOIN, [env] * 2, [(address, 2, 0), (address, 3, 1)])
  for code, output in ended:
    assert code == 1 and "do not agree on num_processes" in output


def run_scripts(code, envs, arguments):
  """Runs code in one process per environment; returns codes and outputs."""
  processes = [
    runs.start_code(code, *argv, env=env)
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


def test_one_process_of_slurm_does_not_join(monkeypatch):
  for name, value in {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
  }.items():
    monkeypatch.setenv(name, value)
  distributed.initialize(None, None, None, say=pytest.fail)
  assert not jax.distributed.is_initialized()
