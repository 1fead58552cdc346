"""Signals and non-finite gradients stop a run; nothing else does."""

import io
import json
import os
import signal
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.train import guards, sharding

ROWS = np.array([4, 8], np.int32)


def add_steps(guard, skips):
  for step, skipped in enumerate(skips):
    guard.add(step, jnp.float32(skipped), ROWS + step)
  guard.check_pending()


def read_bad_rows(workdir):
  path = workdir / "bad_rows.jsonl"
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_first_skip_stops_a_run_without_allowed_skips(tmp_path):
  guard = guards.SkipGuard(tmp_path, max_skips=0)
  with pytest.raises(NonFiniteError, match="step 2 .*max_skips=0"):
    add_steps(guard, [0, 0, 1, 0])
  assert read_bad_rows(tmp_path) == [{"step": 2, "rows": [6, 10]}]


def test_allowed_number_of_consecutive_skips_passes(tmp_path):
  guard = guards.SkipGuard(tmp_path, max_skips=2)
  add_steps(guard, [1, 1, 0, 1, 1, 0, 0, 1, 1])
  assert [r["step"] for r in read_bad_rows(tmp_path)] == [0, 1, 3, 4, 7, 8]
  with pytest.raises(NonFiniteError, match="3 in a row"):
    add_steps(guard, [1])


def test_step_is_checked_when_the_next_is_added(tmp_path):
  guard = guards.SkipGuard(tmp_path, max_skips=0)
  guard.add(0, jnp.float32(1), ROWS)
  assert not (tmp_path / "bad_rows.jsonl").exists()
  with pytest.raises(NonFiniteError, match="step 0"):
    guard.add(1, jnp.float32(0), ROWS)
  guard.check_pending()  # raises once


def test_finite_steps_write_no_file(tmp_path):
  add_steps(guards.SkipGuard(tmp_path, max_skips=0), [0, 0, 0])
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_is_remembered_and_handlers_are_restored(number):
  out = io.StringIO()
  before = signal.getsignal(number)
  with guards.StopSignals(Console(file=out)) as signals:
    assert signals.received is None
    os.kill(os.getpid(), number)
    assert signals.received == number
  assert signal.getsignal(number) == before
  assert number.name in out.getvalue()


def test_second_signal_ends_the_process_at_once():
  code = (
    "import os, signal\n"
    "from rich.console import Console\n"
    "from truenegs_jax.train import guards\n"
    "with guards.StopSignals(Console(quiet=True)):\n"
    "  os.kill(os.getpid(), signal.SIGTERM)\n"
    "  os.kill(os.getpid(), signal.SIGTERM)\n"
    "print('still here')\n"
  )
  process = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, check=False
  )
  # 75 and 130 promise a checkpoint.
  assert process.returncode == guards.STOPPED_UNSAVED == 137
  assert b"still here" not in process.stdout


def test_single_process_stops_at_once():
  mesh = sharding.make_mesh(sharding.get_mesh_spec("dp"))
  with guards.StopSignals(Console(quiet=True)) as signals:
    vote = guards.StopVote(signals, mesh)
    assert vote.poll() is None
    os.kill(os.getpid(), signal.SIGINT)
    assert vote.poll() == signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_many_processes_stop_one_step_after_the_vote(monkeypatch, number):
  monkeypatch.setattr(guards.distributed, "process_count", lambda: 2)
  mesh = sharding.make_mesh(sharding.get_mesh_spec("dp"))
  with guards.StopSignals(Console(quiet=True)) as signals:
    vote = guards.StopVote(signals, mesh)
    assert vote.poll() is None
    os.kill(os.getpid(), number)
    assert vote.poll() is None  # the vote is not counted yet
    assert vote.poll() == number


def test_only_the_first_process_writes(tmp_path, monkeypatch):
  monkeypatch.setattr(guards.distributed, "is_first_process", lambda: False)
  with pytest.raises(NonFiniteError, match="step 0"):
    add_steps(guards.SkipGuard(tmp_path, max_skips=0), [1])
  assert not list(tmp_path.iterdir())
