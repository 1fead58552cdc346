"""Only the user can write to the compilation cache; damage is harmless."""

import os
import pathlib
import subprocess
import sys

import pytest

from support import runs
from truenegs_jax.runtime import cache


def test_a_new_private_folder_has_no_access_for_others(tmp_path):
  before = os.umask(0)
  try:
    cache.make_private_folder(tmp_path / "xla")
  finally:
    os.umask(before)
  assert (tmp_path / "xla").stat().st_mode & 0o777 == 0o700
  cache.make_private_folder(tmp_path / "xla")  # it exists now


@pytest.mark.parametrize("part", ["a", "a/xla"])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_folder_that_others_can_write_to_or_replace_is_refused(
  tmp_path, part, mode
):
  cache.make_private_folder(tmp_path / "a" / "xla")
  (tmp_path / part).chmod(mode)
  with pytest.raises(PermissionError, match=f"{part}' can be written to"):
    cache.make_private_folder(tmp_path / "a" / "xla")
  (tmp_path / "a").chmod(0o1777)  # sticky: only owners can rename files in it
  (tmp_path / "a" / "xla").chmod(0o700)
  cache.make_private_folder(tmp_path / "a" / "xla")


def test_links_are_resolved_from_their_own_folder(tmp_path):
  cache.make_private_folder(tmp_path / "open" / "xla")
  (tmp_path / "safe" / "deep").mkdir(parents=True)
  (tmp_path / "open").chmod(0o777)
  (tmp_path / "safe" / "link").symlink_to("deep/../../open/xla")
  with pytest.raises(PermissionError, match="open' can be written to"):
    cache.make_private_folder(tmp_path / "safe" / "link")
  (tmp_path / "open").chmod(0o755)
  cache.make_private_folder(tmp_path / "safe" / "link")


def test_a_path_through_a_folder_of_another_user_is_refused(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(cache.os, "geteuid", lambda: 12_345)
  real = pathlib.Path.lstat

  def lstat(path):  # root owns all parts except one
    fields = list(real(path))
    fields[4] = 54_321 if path.name == "foreign" else 0
    return os.stat_result(fields)

  monkeypatch.setattr(pathlib.Path, "lstat", lstat)
  cache.make_private_folder(tmp_path / "own")
  with pytest.raises(PermissionError, match="foreign' belongs to user 54321"):
    cache.make_private_folder(tmp_path / "foreign" / "xla")


CODE = """
import jax
from truenegs_jax.runtime import cache
cache.enable_compilation_cache()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
print(jax.jit(lambda x: 3 * x + 1)(jax.numpy.ones(4)))
"""


def run_code(folder):
  """Runs CODE with this cache folder and returns its stderr."""
  env = runs.make_environment(folder)
  env.pop("JAX_COMPILATION_CACHE_DIR", None)  # set by conftest.py
  command = [sys.executable, "-c", CODE]
  process = subprocess.run(
    command, env=env, capture_output=True, text=True, check=True
  )
  assert process.stdout == "[4. 4. 4. 4.]\n"
  return process.stderr


def test_damaged_entries_are_recompiled_and_open_folders_not_used(tmp_path):
  run_code(tmp_path)
  entries = [p for p in (tmp_path / "xla").iterdir() if "lambda" in p.name]
  assert entries
  for entry in entries:
    entry.write_bytes(entry.read_bytes()[:-40])
  run_code(tmp_path)
  (tmp_path / "xla").chmod(0o777)
  for entry in (tmp_path / "xla").iterdir():
    entry.unlink()
  assert "are not kept" in run_code(tmp_path)
  assert not list((tmp_path / "xla").iterdir())
