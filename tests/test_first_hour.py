"""Tests how the first hour on a device runs its pieces, with other commands."""

import re
import time

import pytest

from support.doc_pages import ROOT
from truenegs_jax.config.load import load_config

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def first_hour(monkeypatch, tmp_path):
  monkeypatch.syspath_prepend(BENCHMARKS)
  import first_hour

  monkeypatch.setattr(first_hour, "FOLDER", tmp_path)
  monkeypatch.setattr(first_hour, "FIGURES", tmp_path / "figures.json")
  return first_hour


def test_a_failure_and_a_hang_do_not_stop_the_other_pieces(
  first_hour, monkeypatch, tmp_path
):
  hang = "import subprocess, sys; subprocess.run(['sleep', '99'])"
  pieces = {
    "fails": (1, [["-c", "print(3 / 0)"], ["-c", "print('after it')"]]),
    "hangs": (0.01, [["-c", hang]]),
    "device": (1, [["-c", "print('jax-cuda13-plugin 0.12')"]]),
  }
  monkeypatch.setattr(first_hour, "make_pieces", lambda sizes: pieces)
  smi = tmp_path / "nvidia-smi"
  smi.write_text("#!/bin/sh\necho 570.86.15\n")
  smi.chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
  output = tmp_path / "new" / "report.md"
  began = time.monotonic()
  assert first_hour.main(["--toy", f"--output={output}"]) == 1
  assert time.monotonic() - began < 20
  report = output.read_text()
  results = re.findall(r"(?m)^\| (\w+) \| `.*` \| [\d.]+ \| (.*) \|$", report)
  assert results == [
    ("fails", "exit code 1"),
    ("fails", "ok"),
    ("hangs", "not finished after 0.0 minutes"),
    ("device", "driver 570.86.15: jax-cuda13-plugin needs 580 or newer"),
  ]
  assert "ZeroDivisionError" in report and "after it" in report
  assert str(ROOT) not in report


@pytest.mark.parametrize("toy", [False, True])
def test_scripts_and_configs_know_all_flags(first_hour, toy):
  pieces = first_hour.make_pieces(first_hour.Sizes(toy, "cuda"))
  main = [*pieces.values()][: first_hour.MAIN_PIECES]
  assert sum(minutes for minutes, _ in main) < 60
  for _, commands in pieces.values():
    for script, *flags in commands:
      if script.startswith("-"):
        continue
      source = (BENCHMARKS / script).read_text()
      names = [re.match(r"--(\w+)", x)[1] for x in flags if "=" in x]
      for name in set(names) - {"config"}:
        assert re.search(rf'"(--)?{name}"|\b{name}=\d', source), (script, name)
      for flag in flags:
        if flag.startswith("--config="):
          load_config(flag.removeprefix("--config="))
