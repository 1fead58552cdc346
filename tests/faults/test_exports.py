"""Exports to one folder do not mix."""

import os
import signal
import subprocess
import sys

import pytest

from support.faults import tries
from truenegs_jax.runtime import files

# Writes 20 files with its number, slowly, and says when it has begun.
WRITER = """
import pathlib, sys, time
from truenegs_jax.runtime.files import atomic_folder
output, number, secs = sys.argv[1:]
with atomic_folder(pathlib.Path(output)) as folder:
  print("begun", flush=True)
  for i in range(20):
    (folder / str(i)).write_text(number)
    time.sleep(float(secs) / 20)
"""


def start(output, number, secs):
  command = [sys.executable, "-c", WRITER, output, str(number), str(secs)]
  return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.mark.parametrize("case", tries(1, 30))
def test_writers_of_one_folder_leave_one_whole_folder(tmp_path, case):
  output = tmp_path / "out[1]"
  secs = [0.3, 0.02 * (case % 3), 0.1]  # the first is often the last to end
  writers = [start(output, i, x) for i, x in enumerate(secs)]
  for writer in writers:
    writer.communicate()
    assert writer.returncode == 0
  texts = [path.read_text() for path in output.iterdir()]
  assert len(texts) == 20 and len(set(texts)) == 1
  assert os.listdir(tmp_path) == [output.name]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_folder_of_a_killed_writer_is_removed_by_the_next(tmp_path, number):
  output = tmp_path / "out"
  killed, running = (start(output, i, 60) for i in range(2))
  for writer in (killed, running):
    writer.stdout.readline()
  killed.send_signal(number)
  killed.communicate()
  with files.atomic_folder(output) as folder:
    assert len(os.listdir(tmp_path)) == 2  # of this process and of `running`
    (folder / "new").touch()
  assert os.listdir(output) == ["new"]
  running.kill()
  running.communicate()


# Replaces a folder and is killed between the two renames.
KILLED = """
import os, pathlib, sys
from truenegs_jax.runtime import files
output = sys.argv[1]
rename = pathlib.Path.rename
def rename_and_die(path, target):
  rename(path, target)
  if str(path) == output:
    os.kill(os.getpid(), 9)
pathlib.Path.rename = rename_and_die
with files.atomic_folder(pathlib.Path(output)) as folder:
  (folder / "new").touch()
"""


def test_a_kill_between_two_renames_loses_no_folder(tmp_path):
  output = tmp_path / "out[1]"
  with files.atomic_folder(output) as folder:
    (folder / "old").touch()
  (tmp_path / ".out[1].b.12345678.old").mkdir()  # of a folder `out[1].b`
  command = [sys.executable, "-c", KILLED, str(output)]
  assert subprocess.call(command) == -9 and not output.exists()
  with pytest.raises(ValueError), files.atomic_folder(output):
    raise ValueError
  assert os.listdir(output) == ["old"]
  assert sorted(os.listdir(tmp_path)) == [".out[1].b.12345678.old", "out[1]"]
