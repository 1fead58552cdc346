"""Tests steps on Beam's FnApiRunner, which runs on this machine."""

import contextlib
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from support import beam_steps, small_rows
from support.beam_steps import NUM_RANGES, NUM_UNITS, make_steps
from truenegs_jax.data.rows import beam_runner
from truenegs_jax.data.rows.beam_runner import run_steps
from truenegs_jax.data.rows.steps import Step
from truenegs_jax.runtime.errors import SAVED_INTERRUPT, DataError, InputError

RUNNER = "FnApiRunner"
TWO_WORKERS = [
  "--direct_running_mode=multi_processing",
  "--direct_num_workers=2",
]
# A command that waits in its workers, until it gets a signal.
WAIT = f"""
import pathlib, sys
from support import beam_steps, small_rows
from truenegs_jax.data.rows.beam_runner import run_steps
from truenegs_jax.runtime import signals

if __name__ == "__main__":
  signals.exit_at_signals()
  steps = beam_steps.make_steps(
    pathlib.Path(sys.argv[1]), beam_steps.wait_forever
  )
  run_steps(steps, runner="{RUNNER}", options={TWO_WORKERS})
"""


@pytest.fixture
def beam():
  """Skips a test without Beam, which only child processes import."""
  if importlib.util.find_spec("apache_beam") is None:
    pytest.skip("could not import 'apache_beam'")


def check_files(folder: pathlib.Path) -> None:
  """Checks that each item of all steps was processed."""
  counts = {"unit": NUM_UNITS, "range": NUM_RANGES, "shard": NUM_RANGES // 4}
  for kind, count in counts.items():
    names = {path.name for path in folder.glob(f"{kind}-*")}
    assert names == {f"{kind}-{item}" for item in range(count)}


def num_calls(folder: pathlib.Path) -> int:
  return sum(path.stat().st_size for path in folder.glob("calls-*"))


@pytest.mark.slow
def test_steps_run_one_after_the_other(beam, tmp_path, capfd):
  steps = make_steps(tmp_path)
  steps.insert(0, Step("empty", list, steps[0].function))
  run_steps(steps, runner=RUNNER, options=TWO_WORKERS)
  check_files(tmp_path)
  assert num_calls(tmp_path) == NUM_UNITS + NUM_RANGES + NUM_RANGES // 4
  workers = {path.read_text() for path in tmp_path.glob("unit-*")}
  assert len(workers) == 2
  assert str(os.getpid()) not in workers
  assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_error_keeps_class_and_message(beam, tmp_path, capfd):
  steps = make_steps(tmp_path, beam_steps.raise_error)
  with pytest.raises(DataError) as error:
    run_steps(steps, runner=RUNNER, options=TWO_WORKERS)
  assert str(error.value) == f"unit 5 of\n'{tmp_path}' is 'damagéd'."
  assert not list(tmp_path.glob("range-*"))
  assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_bug_keeps_its_traceback(beam, tmp_path):
  steps = make_steps(tmp_path, beam_steps.raise_bug)
  with pytest.raises(RuntimeError, match="in raise_bug"):
    run_steps(steps, runner=RUNNER, options=[])


@pytest.mark.slow
def test_workers_that_are_always_killed(beam, tmp_path, monkeypatch):
  monkeypatch.setattr(beam_runner, "MAX_ATTEMPTS", 2)
  steps = make_steps(tmp_path, beam_steps.kill_always)
  with pytest.raises(InputError, match="in 2 of 2 attempts"):
    run_steps(steps, runner=RUNNER, options=[])
  assert (tmp_path / "attempts").read_text() == ".."


@pytest.mark.slow
@pytest.mark.parametrize(
  "runner, option, reason",
  [
    ("NoRunner", [], "Unexpected pipeline runner: NoRunner"),
    (RUNNER, ["--direct_num_workers=x"], "invalid int value: 'x'"),
    (RUNNER, ["--regoin=us-central1"], "--regoin is unknown to Beam"),
  ],
)
def test_refused_runner_or_option(beam, runner, option, reason):
  with pytest.raises(InputError, match=f"--runner={runner}: .*{reason}"):
    run_steps([], runner=runner, options=option)


@pytest.mark.slow
@pytest.mark.parametrize(
  "number, code",
  [(signal.SIGINT, SAVED_INTERRUPT), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_signal_ends_all_processes(beam, tmp_path, number, code):
  script = tmp_path / "wait.py"
  script.write_text(WAIT)
  folder = tmp_path / "files"
  folder.mkdir()
  temporary = tmp_path / "temporary"
  temporary.mkdir()
  env = os.environ | {"TMPDIR": str(temporary)}
  env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
  process = subprocess.Popen(
    [sys.executable, script, folder], env=env, stderr=subprocess.DEVNULL
  )
  try:
    wait_until(lambda: len(list(folder.iterdir())) == 2)
    workers = [int(path.name.split("-")[1]) for path in folder.iterdir()]
    process.send_signal(number)
    assert process.wait(20) == code
    wait_until(lambda: not any(map(is_running, workers)))
    assert number == signal.SIGKILL or not list(temporary.iterdir())
  finally:
    process.kill()
    process.wait()


def test_rows_equal_those_of_one_process_although_a_worker_is_killed(
  beam, tmp_path, monkeypatch
):
  for module, name, value in beam_steps.SMALL:
    monkeypatch.setattr(module, name, value)
  sources = small_rows.write_sources(tmp_path)
  killed = tmp_path / "killed"

  def run_small(steps):
    steps = beam_steps.with_small_shards(steps, killed)
    run_steps(steps, runner=RUNNER, options=[])

  expected = small_rows.prepare_files(sources, tmp_path / "plain")
  rows = small_rows.prepare_files(sources, tmp_path / "rows", run_small)
  assert killed.exists()
  assert rows == expected


def wait_until(is_true, seconds: float = 30) -> None:
  deadline = time.monotonic() + seconds
  while not is_true():
    assert time.monotonic() < deadline
    time.sleep(0.05)


def is_running(process: int) -> bool:
  """Whether a process runs; a zombie does not."""
  with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    state = pathlib.Path(f"/proc/{process}/stat").read_text()
    return state.rpartition(")")[2].split()[0] != "Z"
  return False
