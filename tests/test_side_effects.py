"""Library calls change nothing outside of their objects."""

import json
import os
import subprocess
import sys

import pytest

from support import side_effects
from support.doc_pages import ROOT
from truenegs_jax.runtime import errors


@pytest.mark.slow
def test_the_package_changes_nothing_of_its_process(tmp_path):
  env = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "TRUENEGS_CACHE": str(tmp_path / "cache"),
    "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1",  # nobody answers
    "JAX_PLATFORMS": "cpu",
  }
  for name in errors.ENVIRONMENT:
    env.pop(name, None)
  command = [sys.executable, "-W", "ignore", side_effects.__file__, tmp_path]
  ended = subprocess.run(command, env=env, capture_output=True, text=True)
  assert ended.returncode == 0, ended.stderr
  changes = json.loads(ended.stdout)
  assert list(changes) == ["imports", "rows", "checkpoints", "models", "others"]
  for name, changed in changes.items():
    assert not changed, name


def test_a_change_would_be_seen(monkeypatch):
  state = side_effects.look()
  monkeypatch.setenv("TRUENEGS_TEST", "1")
  monkeypatch.setattr(sys, "unraisablehook", print)
  monkeypatch.setitem(sys.modules, "scipy.odr", None)
  changed = {x for x, y in side_effects.look().items() if state.get(x) != y}
  expected = {"environ TRUENEGS_TEST", "sys.unraisablehook", "module scipy.odr"}
  assert changed == expected
