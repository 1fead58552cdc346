"""Exports to one folder do not mix."""

import os
import subprocess
import sys

import pytest

from support.faults import tries

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
