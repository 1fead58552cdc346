"""A process that hangs in a step ends with its stacks; others go on."""

import signal
import time

import pytest

from support import runs
from support.faults import tries
from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import HANGS

# Takes steps of so many seconds in which it runs, then waits.
PROGRAM = """
import sys, time
from truenegs_jax.runtime import distributed

def wait(secs):
  for _ in range(round(100 * secs)):
    time.sleep(0.01)

stall_secs, after, *steps = map(float, sys.argv[1:])
distributed.TICK_SECS = 0.05
distributed.start_watchdog(stall_secs)
for secs in steps:
  with distributed.watch_step():
    print("step", flush=True)
    wait(secs)
wait(after)
print("end")
"""


def start(folder, stall_secs, steps, after=0.0):
  env = runs.make_environment(folder)
  return runs.start_code(PROGRAM, stall_secs, after, *steps, env=env)


def test_a_step_that_hangs_ends_the_process_with_its_stacks(tmp_path):
  process = start(tmp_path, 0.1, [0.01, 0.01, 60])
  output, _ = process.communicate(timeout=30)
  assert process.returncode == HANGS
  assert "\nerror: A step has taken " in output
  assert "in wait\n" in output and "in _watch\n" in output


@pytest.mark.parametrize(
  ("steps", "after"),
  [
    ([0.5, 0.01], 0.5),  # the first step; then, for example, it saves
    ([0.1, 0.1, 0.5], 0),  # less than 20 times the median
  ],
)
def test_other_waiting_does_not_end_the_process(tmp_path, steps, after):
  process = start(tmp_path, 0.1, steps, after)
  output, _ = process.communicate(timeout=30)
  assert (process.returncode, output) == (0, "step\n" * len(steps) + "end\n")


def test_a_process_that_is_stopped_as_a_whole_goes_on(tmp_path):
  process = start(tmp_path, 0.8, [0.01, 0.5])
  for _ in range(2):
    process.stdout.readline()
  process.send_signal(signal.SIGSTOP)
  time.sleep(1.2)
  process.send_signal(signal.SIGCONT)
  output, _ = process.communicate(timeout=30)
  assert (process.returncode, output) == (0, "end\n")


@pytest.mark.slow
@pytest.mark.parametrize("stuck", tries(0, 2))
def test_a_run_ends_if_one_of_its_processes_is_stuck(
  shared_pretraining, tmp_path, stuck
):
  # Neither saves nor evaluates: while one process compiles this, others wait.
  names = "steps", "checkpoint.every_steps", "eval.every_steps"
  flags = [f"--config.{name}=1000000" for name in names]
  flags = [*shared_pretraining.values, *flags]
  env = runs.make_environment(tmp_path / "cache")
  env[distributed.STALL_VARIABLE] = "15"  # collectives give up after 30 s
  processes = runs.start_processes(tmp_path / "run", flags, env, 2)
  waiting, stopped = processes[1 - stuck], processes[stuck]
  runs.wait_for_step(processes[0], tmp_path / "run", 10)
  stopped.send_signal(signal.SIGSTOP)
  output, _ = waiting.communicate(timeout=runs.TIMEOUT_SECS)
  assert waiting.returncode == HANGS, output
  assert "in take_step\n" in output or "in run\n" in output
  stopped.send_signal(signal.SIGCONT)
  stopped.communicate(timeout=runs.TIMEOUT_SECS)
  assert stopped.returncode not in (0, 75)
