"""Runs killed at bad moments, and resumed elsewhere, end as if they were not.

The long forms, without which `test_signals.py` kills a run at random steps,
`test_damaged_checkpoints.py` simulates crashes, and
`tests/runtime/test_distributed.py` resumes with other processes.
"""

import pathlib
import random
import signal
import time

import pytest

from support import runs
from truenegs_jax.runtime import errors

pytestmark = pytest.mark.faults
STEPS = 120
HEARTBEAT_SECS = 10


@pytest.fixture(scope="module")
def base(shared_pretraining, tmp_path_factory):
  """Returns (folder, flags, environment) of runs of one small network."""
  root = tmp_path_factory.mktemp("killed")
  values = {
    "steps": STEPS,
    "checkpoint.keep_percent": "()",
    "eval.every_steps": STEPS,
    "batch_size": 8,
    "model.layers": 2,
  }
  flags = [f"--config.{name}={value}" for name, value in values.items()]
  env = runs.make_environment(root / "cache") | {"PYTHONUNBUFFERED": "1"}
  return root, [*shared_pretraining.values, *flags], env


@pytest.fixture(scope="module")
def golden(base):
  """Returns the workdir of an uninterrupted run of one process."""
  root, flags, env = base
  code, output = runs.run(root / "golden", flags, env)
  assert code == 0, output
  return root / "golden"


def saved_steps(workdir):
  names = [path.name for path in workdir.glob("checkpoints/*")]
  return sorted(int(name) for name in names if name.isdigit())


def wait_for_saves(process, workdir, count):
  """Waits until a run has begun to save `count` times."""
  before = set(workdir.glob("checkpoints/*-tmp*"))  # of an earlier kill
  while count > 0:
    assert process.poll() is None
    unfinished = set(workdir.glob("checkpoints/*-tmp*"))
    count -= len(unfinished - before)
    before = unfinished
    time.sleep(0.001)


def assert_nothing_is_left(workdir):
  """Asserts that killed runs left no process and no unfinished file."""
  names = [path.name for path in workdir.rglob("*")]
  assert not [x for x in names if "tmp" in x or "partial" in x or x[0] == "."]
  commands = pathlib.Path("/proc").glob("[0-9]*/cmdline")
  assert not [x for x in commands if str(workdir).encode() in x.read_bytes()]


@pytest.mark.parametrize("seed", range(4))
def test_a_run_killed_while_it_saves_ends_bit_equal(base, golden, seed):
  root, flags, env = base
  workdir, rng = root / f"saving{seed}", random.Random(seed)
  newest = 0
  for _ in range(5):
    process = runs.start(workdir, flags, env)
    wait_for_saves(process, workdir, rng.randint(1, 2))
    time.sleep(rng.random() / 5)
    process.kill()
    output = " ".join(process.communicate()[0].split())
    assert not newest or f"resumed at step {newest} of" in output, output
    before, newest = newest, max(saved_steps(workdir), default=0)
    assert newest >= before
  code, output = runs.run(workdir, flags, env)
  assert code == 0, output
  runs.assert_equal_runs(golden, workdir, STEPS)
  assert_nothing_is_left(workdir)


@pytest.mark.parametrize("killed", [0, 1])
def test_processes_killed_together_end_bit_equal(base, golden, killed):
  root, flags, env = base
  env |= {"TRUENEGS_HEARTBEAT_SECS": str(HEARTBEAT_SECS)}
  workdirs = [root / f"{name}{killed}" for name in ("pair", "killed")]
  processes = runs.start_processes(workdirs[1], flags, env, 2)
  runs.wait_for_step(processes[0], workdirs[1], 20)
  processes[killed].kill()
  start = time.monotonic()
  codes = [code for code, _ in runs.wait_for_all(processes)]
  assert codes[1 - killed] in (errors.HANGS, -signal.SIGABRT)
  assert time.monotonic() - start < HEARTBEAT_SECS + 10
  for workdir in workdirs:
    ended = runs.wait_for_all(runs.start_processes(workdir, flags, env, 2))
    assert [code for code, _ in ended] == [0, 0], ended
  runs.assert_equal_runs(*workdirs, STEPS)
