"""Files appear once complete or not at all; JSON is read or refused."""

import errno
import fcntl
import hashlib
import os
import pathlib
import threading

import pytest

from truenegs_jax.runtime import files
from truenegs_jax.runtime.errors import DiskError, InputError


@pytest.mark.parametrize("several_writers", [False, True])
def test_a_file_is_old_or_new_and_no_temporary_file_remains(
  tmp_path, several_writers
):
  path, options = tmp_path / "a.json", {"several_writers": several_writers}
  for content in (b"old", b"new"):
    with files.atomic_file(path, **options) as file:
      file.write(content)
      assert path.exists() == (content == b"new")
  for error in (KeyboardInterrupt, ValueError):
    with pytest.raises(error), files.atomic_file(path, **options) as file:
      file.write(b"cut")
      raise error
  assert path.read_bytes() == b"new"
  assert list(tmp_path.iterdir()) == [path]
  before = os.umask(0o027)
  try:
    with files.atomic_file(path):
      pass
  finally:
    os.umask(before)
  assert path.stat().st_mode & 0o777 == 0o640  # the mode that `open` would set


def test_a_file_is_synced_before_it_is_renamed(tmp_path, monkeypatch):
  path, events = tmp_path / "a", []
  sync, replace = os.fsync, pathlib.Path.replace
  monkeypatch.setattr(os, "fsync", lambda f: (events.append("sync"), sync(f)))
  monkeypatch.setattr(
    pathlib.Path,
    "replace",
    lambda a, b: (events.append("rename"), replace(a, b)),
  )
  with files.atomic_file(path) as file:
    file.write(b"x")
  assert events == ["sync", "rename"]


def test_two_writers_of_one_file_do_not_mix(tmp_path):
  path = tmp_path / "a"
  with files.atomic_file(path, several_writers=True) as first:
    with files.atomic_file(path, several_writers=True) as second:
      second.write(b"2")
    assert path.read_bytes() == b"2"
    first.write(b"1")
  assert path.read_bytes() == b"1"


def test_a_folder_is_replaced_completely_or_not_at_all(tmp_path):
  path = tmp_path / "deep" / "a"
  for content in ("old", "new"):
    with files.atomic_folder(path) as partial:
      (partial / content).write_text(content)
  assert [x.name for x in path.iterdir()] == ["new"]
  with pytest.raises(KeyboardInterrupt), files.atomic_folder(path) as partial:
    (partial / "cut").touch()
    raise KeyboardInterrupt
  with pytest.raises(DiskError), files.atomic_folder(path) as partial:
    partial.rmdir()  # makes the rename fail
  assert [x.name for x in path.iterdir()] == ["new"]
  assert list(path.parent.iterdir()) == [path]


class BucketFolder:
  """A folder in a bucket, which remembers the names of written objects."""

  name = "export"

  def __init__(self, written, name=""):
    self.written = written
    self.path = name

  def __truediv__(self, name):
    return BucketFolder(self.written, name)

  def write_bytes(self, data):
    self.written[self.path] = data


def test_a_folder_in_a_bucket_begins_with_its_checksums():
  written = {}
  with files.atomic_folder(BucketFolder(written)) as partial:
    (partial / "bert").mkdir()
    for name in ("A", files.CHECKSUMS, "bert/model"):
      (partial / name).write_text(name)
  assert [*written] == [files.CHECKSUMS, "A", "bert/model"]
  assert all(data == name.encode() for name, data in written.items())


@pytest.mark.parametrize(
  ("number", "fix"),
  [(errno.ENOSPC, "Free some space"), (errno.EACCES, "another folder")],
)
def test_write_errors_become_disk_errors_that_say_how_to_fix_them(
  tmp_path, number, fix
):
  with pytest.raises(DiskError, match=f"a' could not be written: .*{fix}"):
    with files.atomic_file(tmp_path / "a"):
      raise OSError(number, os.strerror(number))
  with pytest.raises(DiskError), files.atomic_file(tmp_path / "no" / "a"):
    pass
  path = pathlib.Path("/dev/null/a")
  with pytest.raises(DiskError), files.atomic_folder(path):
    pass
  with pytest.raises(DiskError, match="header too large"):
    with files.disk_errors(tmp_path, RuntimeError):
      raise RuntimeError("header too large")


def test_short_sha256_is_a_prefix_of_sha256():
  digest = hashlib.sha256("Schwäne".encode()).hexdigest()
  assert files.short_sha256(b"Schw", "äne") == digest[:16]


def test_who_asks_for_a_lock_does_not_keep_a_run_from_it(tmp_path):
  path = tmp_path / "lock"
  path.touch()
  with path.open() as file:
    fcntl.flock(file, fcntl.LOCK_SH)  # as `is_locked` does
    threading.Timer(files.RETRY_SECS / 2, file.close).start()
    with files.lock_file(path) as locked:
      assert locked


@pytest.mark.parametrize(
  ("text", "reason"),
  [
    (b"{", "not JSON"),
    (b'{"a": "\xff"}', "byte 0xff in position 7"),
    (b"[]", "list, not a JSON object"),
    (b'{"a":' * 9_000 + b"1" + b"}" * 9_000, "nested too deep"),
  ],
)
def test_other_texts_are_refused_with_the_reason(text, reason):
  for strict in (True, False):
    with pytest.raises(ValueError, match=reason):
      files.parse_json(text, strict=strict)
  # Values that cannot be written again.
  for text in ('{"a": NaN}', '{"a": [1e999]}', '{"\\ud800": 1}'):
    assert files.parse_json(text, strict=False)
    with pytest.raises(ValueError):
      files.parse_json(text)


@pytest.mark.parametrize("case", ["pipe", "device", "huge", "many values"])
def test_a_file_that_would_hang_or_fill_the_memory_is_refused(tmp_path, case):
  path = tmp_path / "config.json"
  if case == "pipe":
    os.mkfifo(path)
  elif case == "device":
    path.symlink_to("/dev/zero")
  else:
    path.write_text('{"a": [' + "[]," * files.MAX_VALUES + "0]}")
  if case == "huge":
    os.truncate(path, 2**40)
  with (
    pytest.raises(InputError, match="config.json' cannot be read .*Fix it"),
    files.read_json(path, InputError, "Fix it."),
  ):
    pass
