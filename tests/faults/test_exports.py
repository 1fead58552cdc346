"""Exports to one folder do not mix, and their files are verified."""

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


def assert_whole(folder):
  texts = [path.read_text() for path in folder.iterdir()]
  assert len(texts) == 20 and len(set(texts)) == 1
  return texts[0]


@pytest.mark.parametrize("case", tries(2, 30))
def test_writers_of_one_folder_leave_one_whole_folder(tmp_path, case):
  output = tmp_path / "out[1]"
  secs = [0.3, 0.02 * (case % 3), 0.1]  # the first is often the last to end
  writers = [start(output, i, x) for i, x in enumerate(secs)]
  for writer in writers:
    writer.communicate()
    assert writer.returncode == 0
    assert_whole(output)
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
