"""A signal ends a command cleanly from its first line on."""

import random
import signal
import subprocess
import sys
import time

import pytest

from support import runs
from support.faults import tries

EXIT_CODES = {signal.SIGTERM: 75, signal.SIGINT: 130}
# A module that gets a signal while it is imported, and drops what this raises.
MODULE = """
import os, time
try:
  os.kill(os.getpid(), {number})
  time.sleep(60)
except BaseException as e:
  print("raised", repr(e), flush=True)
"""
FOLDER = """
import os, pathlib
from truenegs_jax.runtime import errors
errors.exit_at_signals()
with errors.temporary_folder("unfinished", pathlib.Path()) as folder:
  (folder / "file").touch()
  os.kill(os.getpid(), {number})
"""

# Waits for another process, which does not exist or does not come.
WAITING = """
import sys
from truenegs_jax.runtime import errors
errors.exit_at_signals()
from truenegs_jax.runtime import distributed
index = int(sys.argv[2])
distributed.initialize(sys.argv[1], 2, index, say=lambda _: print(flush=True))
with distributed.raise_everywhere("one of two"):
  if index:
    sys.stdin.read()
"""


def assert_ended(process, number):
  assert process.returncode == EXIT_CODES[number], process
  assert process.stdout == ""
  assert process.stderr.startswith(f"\n{number.name}: stopped. Nothing more")
  assert process.stderr.count("\n") == 2


@pytest.mark.parametrize(
  ("program", "module", "number"),
  [
    ("truenegs_jax.main", "jax", signal.SIGTERM),
    ("truenegs_jax main", "jax", signal.SIGINT),
    ("truenegs_jax prepare", "absl", signal.SIGINT),
  ],
)
def test_a_signal_during_an_import_ends_the_command(
  tmp_path, program, module, number
):
  env = runs.make_environment(tmp_path)
  (tmp_path / "hidden" / f"{module}.py").write_text(
    MODULE.format(number=int(number))
  )
  command = [sys.executable, "-m", *program.split()]
  command += ["--config=demo"] * program.endswith("main")
  process = subprocess.run(command, env=env, capture_output=True, text=True)
  assert_ended(process, number)


def test_a_signal_leaves_no_temporary_folder(tmp_path):
  process = runs.run_code(
    FOLDER.format(number=int(signal.SIGTERM)),
    env=runs.make_environment(tmp_path),
    cwd=tmp_path,
  )
  assert_ended(process, signal.SIGTERM)
  assert not [*tmp_path.glob("unfinished*")]


@pytest.mark.parametrize(("indices", "lines"), [([1], 1), ([0, 1], 2)])
def test_a_process_that_waits_for_others_ends_at_once(tmp_path, indices, lines):
  address = f"127.0.0.1:{runs.find_free_port()}"
  processes = [
    runs.start_code(
      *(WAITING, address, index),
      env=runs.make_environment(tmp_path),
      stdin=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
    )
    for index in indices
  ]
  number = list(EXIT_CODES)[indices[0]]
  for _ in range(lines):  # joining, joined
    processes[0].stdout.readline()
  time.sleep(0.5)
  try:
    processes[0].send_signal(number)
    assert processes[0].wait(timeout=5) == EXIT_CODES[number]
  finally:
    for process in processes:
      process.kill()
      process.communicate()


@pytest.fixture(scope="module")
def prepared(shared_pretraining, tmp_path_factory):
  """Returns (folder, flags, environment) of a run whose rows are prepared."""
  root = tmp_path_factory.mktemp("signals")
  flags = [*shared_pretraining.values, "--config.steps=1000000"]
  return root, flags, runs.make_environment(root / "cache")


@pytest.mark.slow
@pytest.mark.parametrize("case", tries(0, 27))
def test_a_run_stopped_in_its_first_seconds_says_what_is_saved(prepared, case):
  root, flags, env = prepared
  number = list(EXIT_CODES)[case % 2]
  process = runs.start(root / f"run{case}", flags, env)
  with pytest.raises(subprocess.TimeoutExpired):
    process.wait(random.Random(case + 3).uniform(0.3, 12))  # first: 3 s
  process.send_signal(number)
  output, _ = process.communicate(timeout=runs.TIMEOUT_SECS)
  assert process.returncode == EXIT_CODES[number], output
  assert "Traceback" not in output and "Fatal" not in output
  assert "Nothing more was saved" in output or "Saved at step" in output


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kills", "steps"), [(1, 12), pytest.param(20, 60, marks=pytest.mark.faults)]
)
def test_run_killed_at_random_steps_ends_bit_equal(
  shared_pretraining, prepared, kills, steps
):
  root, flags, env = prepared
  flags = [*flags, f"--config.steps={steps}"]
  expected = shared_pretraining.workdir
  if steps != 12:
    expected = root / "complete"
    assert runs.run(expected, flags, env)[0] == 0
  workdir = root / f"killed{kills}"
  for step in sorted(random.Random(7).sample(range(1, steps - 5), kills)):
    process = runs.start(workdir, flags, env)
    runs.wait_for_step(process, workdir, step)
    process.kill()
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output
  code, output = runs.run(workdir, flags, env)
  assert code == 0 and "resume" in output, output
  runs.assert_equal_runs(expected, workdir, steps)
