"""Tests the functions of the benchmarks, without measuring any speed."""

import os
import runpy
import subprocess
import sys

import jax
import numpy as np
import pytest
from absl import flags

from support.doc_pages import ROOT
from truenegs_jax.configs import own

FOLDER = ROOT / "benchmarks"


@pytest.fixture
def load(monkeypatch):
  """Returns a function that returns the globals of a script."""
  before = set(flags.FLAGS)
  monkeypatch.syspath_prepend(str(FOLDER))
  yield lambda name: runpy.run_path(str(FOLDER / f"{name}.py"))
  for flag in set(flags.FLAGS) - before:
    delattr(flags.FLAGS, flag)


def test_paired_ratio_is_right_while_the_machine_drifts(load):
  rng = np.random.default_rng(0)
  drift = np.exp(np.cumsum(rng.normal(0, 0.05, 400)))
  secs = [scale * drift * rng.normal(1, 0.01, 400) for scale in (1.02, 1.0)]
  ratio = load("steps")["paired_ratio"](*secs)
  assert ratio.low < 1.02 < ratio.high
  assert 0.0004 < ratio.high - ratio.low < 0.006


def test_memory_is_told_of_configs_that_leave_the_dtype_open(load):
  c = own.get_config()
  assert c.model.dtype == "auto"
  lines = load("memory")["report"](c, jax.devices()[:1], programs=[])
  assert lines["batch"].startswith(f"{c.batch_size} rows of {c.length} tokens")


@pytest.mark.slow
def test_the_peer_in_pytorch_computes_the_same_losses():
  pytest.importorskip("torch")
  command = [sys.executable, FOLDER / "step_peer.py", "--variant=tiny"]
  command += ["--batch=2", "--length=16", "--sides=eager"]
  command += ["--plain_steps=3", "--rounds=0"]
  env = os.environ | {"PYTHONPATH": str(ROOT)}
  done = subprocess.run(command, env=env, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  assert "largest difference" in done.stdout


@pytest.mark.slow
def test_the_first_hour_runs_on_a_cpu_in_tiny_sizes(load, monkeypatch, capsys):
  main = load("first_hour")["main"]
  monkeypatch.setattr(sys, "argv", ["first_hour.py", "--tiny"])
  monkeypatch.setitem(main.__globals__, "run_apart", lambda f, *x: f(*x))
  assert main() == 0
  printed = capsys.readouterr().out
  for dtype in ("bfloat16", "float32"):
    assert f"flash attention in {dtype}, error | right: " in printed
  for name in ("electra_base", "bert_base"):
    assert f"{name}: rows | 8 of 32 tokens, float32 |" in printed
    assert f"{name}: resumed at step 10 | equal to the last bit" in printed
