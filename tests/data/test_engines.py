"""Tests steps on Beam's FnApiRunner, which runs on this machine."""

import functools
import importlib.util
import os
import pathlib
import sys

import pytest

from support import beam_steps, small_rows
from support.beam_steps import NUM_RANGES, NUM_UNITS, make_steps
from truenegs_jax.data.engines import Step, run_on_beam

RUNNER = "FnApiRunner"
TWO_WORKERS = [
  "--direct_running_mode=multi_processing",
  "--direct_num_workers=2",
]


@pytest.fixture
def beam(monkeypatch):
  """Skips a test without Beam; its workers import the modules of tests."""
  path = os.pathsep.join(filter(None, sys.path))  # as `truenegs prepare`
  monkeypatch.setenv("PYTHONPATH", path)
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
def test_steps_run_one_after_the_other(beam, tmp_path):
  steps = make_steps(tmp_path)
  steps.insert(0, Step("empty", list, steps[0].function))
  run_on_beam(steps, runner=RUNNER, options=TWO_WORKERS)
  check_files(tmp_path)
  assert num_calls(tmp_path) == NUM_UNITS + NUM_RANGES + NUM_RANGES // 4
  workers = {path.read_text() for path in tmp_path.glob("unit-*")}
  assert len(workers) == 2
  assert str(os.getpid()) not in workers


@pytest.mark.slow
def test_an_error_of_a_worker_is_raised(beam, tmp_path):
  steps = make_steps(tmp_path, beam_steps.raise_error)
  with pytest.raises(Exception, match=f"DataError: unit 5 of '{tmp_path}' is"):
    run_on_beam(steps, runner=RUNNER, options=TWO_WORKERS)
  assert not list(tmp_path.glob("range-*"))


def test_rows_equal_those_of_one_process(beam, tmp_path, monkeypatch):
  for module, name, value in beam_steps.SMALL:
    monkeypatch.setattr(module, name, value)
  sources = small_rows.write_sources(tmp_path)
  run = functools.partial(run_on_beam, runner=RUNNER, options=[])
  expected = small_rows.prepare_files(sources, tmp_path / "plain")
  rows = small_rows.prepare_files(sources, tmp_path / "rows", run)
  assert rows == expected
