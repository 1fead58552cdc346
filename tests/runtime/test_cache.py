"""Compiled programs: who can write to the cache."""

import os
import pathlib

import jax
import pytest

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


def test_open_folders_are_not_used_for_compiled_programs(tmp_path, monkeypatch):
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path))
  values, warnings = {}, []
  monkeypatch.setattr(jax.config, "update", values.__setitem__)
  cache.enable_compilation_cache(warnings.append)
  assert values == {"jax_compilation_cache_dir": str(tmp_path / "xla")}
  (tmp_path / "xla").chmod(0o777)
  values.clear()
  cache.enable_compilation_cache(warnings.append)
  assert not values and "are not kept" in warnings[0]
