"""Tests the script for the first hour on a GPU, in tiny sizes on the CPU."""

import re
import subprocess
import sys

import pytest

from support import runs
from support.doc_pages import ROOT

SCRIPT = ROOT / "benchmarks" / "first_hour.py"


@pytest.fixture
def first_hour(monkeypatch):
  monkeypatch.syspath_prepend(str(SCRIPT.parent))
  import first_hour

  return first_hour


def run_main(first_hour, monkeypatch, capsys, train):
  """Runs `main` with other parts, in this process; returns code and output."""
  monkeypatch.setattr(first_hour, "train", train)
  monkeypatch.setattr(first_hour, "check_device", lambda tiny: {"device": "x"})
  monkeypatch.setattr(first_hour, "run_apart", lambda part, *args: part(*args))
  monkeypatch.setattr(sys, "argv", ["first_hour.py"])
  return first_hour.main(), capsys.readouterr().out


def test_rows_are_halved_until_they_fit(first_hour, monkeypatch, capsys):
  def train(name, rows, tiny):
    return {f"{name}: rows": str(rows)} if rows <= 64 else {}

  code, table = run_main(first_hour, monkeypatch, capsys, train)
  assert code == 0
  assert "| electra_base: rows | 64 |\n| bert_base: rows | 64 |" in table


def test_what_does_not_fit_or_is_wrong_fails(first_hour, monkeypatch, capsys):
  def train(name, rows, tiny):
    return {}

  code, table = run_main(first_hour, monkeypatch, capsys, train)
  assert code == 1
  assert "| electra_base: rows | WRONG: not even one fits |" in table


@pytest.mark.slow
def test_tiny_sizes_run_on_a_cpu(tmp_path):
  command = [sys.executable, SCRIPT, "--tiny"]
  env = runs.make_environment(tmp_path)
  done = subprocess.run(command, env=env, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  lines = done.stdout.splitlines()
  assert lines[:2] == ["| what | result |", "| --- | --- |"]
  table = dict(re.fullmatch(r"\| (.*?) \| (.*) \|", x).groups() for x in lines)
  for dtype in ("bfloat16", "float32"):
    assert table[f"flash attention in {dtype}, error"].startswith("right: ")
  for name in ("electra_base", "bert_base"):
    assert table[f"{name}: rows"] == "8 of 32 tokens, float32"
    assert table[f"{name}: resumed at step 10"] == "equal to the last bit"
