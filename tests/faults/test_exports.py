"""Exports to one folder do not mix."""

import contextlib
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from support import saved_steps, tiny, weight_files
from support.faults import tries
from truenegs_jax.configs import electra_demo
from truenegs_jax.runtime import files
from truenegs_jax.workdir import checkpoints, saved_model
from truenegs_jax.workdir.saved_model import build_model

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


CONFIG = electra_demo.get_config("runlocal")
MODEL = build_model(CONFIG, vocab_size=tiny.V)


@pytest.fixture
def prune(tmp_path, monkeypatch, no_torch):
  """Writes a run; returns a function that lets it prune before a function."""
  params = {step: weight_files.random_params(MODEL, step) for step in (10, 20)}
  weight_files.write_run(tmp_path / "run", CONFIG, params)

  def save_and_prune():
    running = checkpoints.Checkpoints(tmp_path / "run" / "checkpoints", keep=1)
    with contextlib.closing(running):
      described = running.read_description(20)
      params = weight_files.random_params(MODEL, 30)
      running.save(30, {"params": params}, described, wait=True)
      assert running.steps() == [30]

  def patch(name):
    function, waiting = getattr(saved_model, name), [save_and_prune]

    def call(*args):
      if waiting:
        waiting.pop()()
      return function(*args)

    monkeypatch.setattr(saved_model, name, call)
    return tmp_path / "run"

  return patch


BEFORE = pytest.mark.parametrize("name", ["read_saved_model", "read_params"])


@BEFORE
@saved_steps.IGNORE_UNFINISHED_READS
def test_an_export_beside_a_run_that_prunes_has_the_newest_step(
  prune, name, tmp_path, capsys
):
  assert weight_files.run_export(prune(name)) == 0
  assert "Step 30 is used instead." in capsys.readouterr().out
  exported = tmp_path / "run/export/generator"
  word_VxE = weight_files.random_params(MODEL, 30)["embeddings"]["word"]
  tensors = weight_files.read_tensors(exported).values()
  assert any(np.array_equal(x, word_VxE) for x in tensors)


@BEFORE
@saved_steps.IGNORE_UNFINISHED_READS
def test_an_export_of_a_pruned_step_says_so(prune, name, tmp_path, capsys):
  assert weight_files.run_export(prune(name), "--step=20") == 4
  assert "20' was deleted by its run." in capsys.readouterr().err
  assert not (tmp_path / "run/export-20").exists()
