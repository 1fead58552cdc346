"""Signals and non-finite gradients stop a run; nothing else does."""

import io
import json
import os
import signal

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


@pytest.mark.parametrize("is_first", [True, False])
def test_first_skip_stops_a_run_and_the_first_process_lists_its_rows(
  tmp_path, monkeypatch, is_first
):
  monkeypatch.setattr(guards.distributed, "is_first_process", lambda: is_first)
  guard = guards.SkipGuard(tmp_path, max_skips=0)
  with pytest.raises(NonFiniteError, match="step 2 .*max_skips=0"):
    add_steps(guard, [0, 0, 1, 0])
  if is_first:
    assert read_bad_rows(tmp_path) == [{"step": 2, "rows": [6, 10]}]
  else:
    assert not list(tmp_path.iterdir())


def test_allowed_number_of_consecutive_skips_passes(tmp_path):
  guard = guards.SkipGuard(tmp_path, max_skips=2)
  add_steps(guard, [1, 1, 0, 1, 1, 0, 0, 1, 1])
  assert [r["step"] for r in read_bad_rows(tmp_path)] == [0, 1, 3, 4, 7, 8]
  with pytest.raises(NonFiniteError, match="3 in a row"):
    add_steps(guard, [1])


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


def test_second_signal_ends_the_process_at_once(monkeypatch):
  def leave(code):
    raise SystemExit(code)

  monkeypatch.setattr(os, "_exit", leave)
  with guards.StopSignals(Console(quiet=True)):
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit, match="137"):  # 75 promises a checkpoint
      os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("processes", [1, 2])
def test_many_processes_stop_one_step_after_the_vote(monkeypatch, processes):
  number = signal.SIGTERM
  monkeypatch.setattr(guards.distributed, "process_count", lambda: processes)
  mesh = sharding.make_mesh(sharding.get_mesh_spec("dp"))
  with guards.StopSignals(Console(quiet=True)) as signals:
    vote = guards.StopVote(signals, mesh)
    assert vote.poll() is None
    os.kill(os.getpid(), number)
    if processes > 1:
      assert vote.poll() is None  # the vote is not counted yet
    assert vote.poll() == number
