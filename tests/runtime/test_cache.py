"""The folder of compiled steps is the user's alone, and survives damage."""

import os
import pathlib
import subprocess
import sys

import pytest

from support import runs
from truenegs_jax.runtime import cache


def test_a_folder_is_made_that_nobody_else_can_read_or_write(tmp_path):
  before = os.umask(0)
  try:
    cache.make_private_folder(tmp_path / "xla")
  finally:
    os.umask(before)
  assert (tmp_path / "xla").stat().st_mode & 0o777 == 0o700
  cache.make_private_folder(tmp_path / "xla")  # once more


@pytest.mark.parametrize("part", ["a", "a/xla"])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_folder_on_a_path_that_others_can_write_to_is_refused(
  tmp_path, part, mode
):
  cache.make_private_folder(tmp_path / "a" / "xla")
  (tmp_path / part).chmod(mode)
  with pytest.raises(PermissionError, match=f"{part}' can be written to"):
    cache.make_private_folder(tmp_path / "a" / "xla")
  (tmp_path / "a").chmod(0o1777)  # sticky: what is in it stays its owner's
  (tmp_path / "a" / "xla").chmod(0o700)
  cache.make_private_folder(tmp_path / "a" / "xla")


def test_a_link_is_followed_as_the_system_follows_it(tmp_path):
  cache.make_private_folder(tmp_path / "open" / "xla")
  (tmp_path / "safe" / "deep").mkdir(parents=True)
  (tmp_path / "open").chmod(0o777)
  (tmp_path / "safe" / "link").symlink_to("deep/../../open/xla")
  with pytest.raises(PermissionError, match="open' can be written to"):
    cache.make_private_folder(tmp_path / "safe" / "link")
  (tmp_path / "open").chmod(0o755)
  cache.make_private_folder(tmp_path / "safe" / "link")


def test_a_path_through_what_somebody_else_owns_is_refused(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(cache.os, "geteuid", lambda: 12_345)
  real = pathlib.Path.lstat

  def lstat(path):  # all is root's, as / is, but one part
    fields = list(real(path))
    fields[4] = 54_321 if path.name == "theirs" else 0
    return os.stat_result(fields)

  monkeypatch.setattr(pathlib.Path, "lstat", lstat)
  cache.make_private_folder(tmp_path / "mine")
  with pytest.raises(PermissionError, match="theirs' belongs to user 54321"):
    cache.make_private_folder(tmp_path / "theirs" / "xla")


CODE = """
import jax
from truenegs_jax.runtime import cache
cache.enable_compilation_cache()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
print(jax.jit(lambda x: 3 * x + 1)(jax.numpy.ones(4)))
"""


def compute(folder):
  env = runs.make_environment(folder)
  env.pop("JAX_COMPILATION_CACHE_DIR", None)  # that of the tests
  done = subprocess.run(
    [sys.executable, "-c", CODE],
    env=env,
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout == "[4. 4. 4. 4.]\n"
  return done.stderr


def test_damaged_entries_are_compiled_again_and_an_open_folder_is_not_used(
  tmp_path,
):
  compute(tmp_path)
  entries = [p for p in (tmp_path / "xla").iterdir() if "lambda" in p.name]
  sizes = {p: p.stat().st_size for p in entries}
  assert sizes
  for entry in entries:
    entry.write_bytes(entry.read_bytes()[:-40])
  compute(tmp_path)
  (tmp_path / "xla").chmod(0o777)
  for entry in (tmp_path / "xla").iterdir():
    entry.unlink()
  assert "are not kept" in compute(tmp_path)
  assert not list((tmp_path / "xla").iterdir())
