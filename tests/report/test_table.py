"""The terminal's table tells what folders are, and only reads them."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from support.json_readers import RESULT
from support.report_workdirs import write_pretraining
from truenegs_jax.report import __main__ as command
from truenegs_jax.report import write
from truenegs_jax.runtime import files as files_lib
from truenegs_jax.workdir import files, lock, metrics_file


def write_run(folder, task="pretrain", **values):
  """Writes what a run leaves after step 20 of 40, checkpoint 10 included."""
  (folder / files.CHECKPOINTS / "10" / "state").mkdir(parents=True)
  (folder / files.CHECKPOINTS / "12.damaged").mkdir()
  config = {"task": task, "steps": 40, "batch_size": 8, "length": 32, **values}
  (folder / files.CONFIG).write_text(json.dumps(config))
  write_records(folder)


def write_records(folder):
  folder.mkdir(parents=True, exist_ok=True)
  writer = metrics_file.JsonlWriter(folder, first_step=0)
  speed = {"time": 0.0, "rows_per_s": 50.0, "eta_s": 90.0}
  writer.write({"step": 10, "split": "train", "total": 5.0, **speed})
  writer.write({"step": 20, "split": "train", "total": 4.0, **speed})
  writer.write({"step": 20, "time": 0.0, "split": "held_out", "mlm": 4.5})
  writer.close()


def read_files(folder):
  return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def describe(folder):
  """Returns the row of a folder as a dict."""
  run = write.read_workdir(folder)
  return {"state": run.state} | run.progress


def report(*words, cwd=None):
  """Runs the command; returns its exit code, output and errors."""
  program = [sys.executable, "-m", "truenegs_jax.report", *map(str, words)]
  package = pathlib.Path(command.__file__).parents[2]
  done = subprocess.run(
    program,
    capture_output=True,
    text=True,
    cwd=cwd,
    env=os.environ | {"PYTHONPATH": str(package), "COLUMNS": "200"},
  )
  return done.returncode, done.stdout, done.stderr


def test_a_run_shows_its_newest_records_and_checkpoint(tmp_path, monkeypatch):
  write_run(tmp_path)
  (tmp_path / files.LOCK).touch()
  with monkeypatch.context() as patch:  # a lock is read, not opened to write
    patch.setattr(files_lib, "open_append", pytest.fail)
    assert describe(tmp_path)["state"] == "stopped"
  before = read_files(tmp_path)
  assert describe(tmp_path) == {
    **{"state": "stopped", "step": "20 of 40", "loss": "4"},
    **{"rate": "50 rows/s", "left": "0:01:30"},
  }
  assert read_files(tmp_path) == before
  writer = metrics_file.JsonlWriter(tmp_path, first_step=20)
  writer.write({"step": 30, "split": "train", "total_steps": 35})
  writer.close()
  assert describe(tmp_path)["step"] == "30 of 35"


def test_a_run_that_has_done_its_steps_has_no_time_left(tmp_path):
  write_run(tmp_path, steps=20)
  assert "left" not in describe(tmp_path)


def test_the_state_follows_the_lock_and_the_results(tmp_path):
  with lock.lock(tmp_path):
    assert describe(tmp_path)["state"] == "running"  # without a config yet
  write_run(tmp_path)
  with lock.lock(tmp_path):
    assert describe(tmp_path)["state"] == "running"
  assert describe(tmp_path)["state"] == "stopped"
  (tmp_path / files.RESULTS).write_text("{}")
  assert describe(tmp_path)["state"] == "finished"
  with lock.lock(tmp_path):  # a finished run gets more steps
    assert describe(tmp_path)["state"] == "running"


def test_unfinished_fine_tunings_show_scores_of_finished_seeds(tmp_path):
  write_run(tmp_path, task="finetune")
  for seed in (0, 1):
    write_records(tmp_path / f"mrpc/seed-{seed}")
  for seed, score in enumerate((70.0, 72.5)):
    folder = tmp_path / f"own/seed-{seed}"
    write_records(folder)
    scores = {"em": score, "f1": 90.0}
    result = RESULT | {"seed": seed, "scores": {"dev": scores}}
    result["failure"] = "constant" if seed else ""
    (folder / "result.json").write_text(json.dumps(result))
  run = write.read_workdir(tmp_path)
  assert run.progress["step"] == "2 of 4 begun runs finished"
  assert run.progress["loss"] == "own 71.2 (em)"
  assert [text for _, text in run.notes] == ["own, seed 1: constant"]


def test_a_study_is_read_from_its_folders_and_never_planned(tmp_path):
  """Its config, of a stranger, names a file of code."""
  bad = tmp_path / "bad.py"
  bad.write_text(f"open({str(tmp_path / 'hacked')!r}, 'w')")
  config = {"task": "study", "study": {"config": str(bad)}, "config": str(bad)}
  root = tmp_path / "study"
  folders = [root / f"runs/{arm}/seed-0/pretrain" for arm in "abc"]
  for folder in folders:
    write_run(folder)
  (root / files.CONFIG).write_text(json.dumps(config))
  assert describe(root)["state"] == "stopped"
  (folders[0] / files.RESULTS).write_text("{}")
  (folders[1] / "failed.json").write_text('{"code": 5, "line": "Full."}')
  with lock.lock(folders[2]):
    row = describe(root)
  assert row["state"] == "running"
  assert row["step"] == "3 parts: 1 finished, 1 failed, 1 running"
  code, output, _ = report(root, f"--output={tmp_path / 'page.html'}")
  assert code == 0 and "1 failed, 1 stopped" in output
  assert not (tmp_path / "hacked").exists()


def test_damaged_records_and_configs_are_left_out(tmp_path):
  write_run(tmp_path)
  huge = '{"step": 30, "split": "train", "time": 1e300, "rows_per_s": 1, '
  with (tmp_path / files.METRICS).open("a") as file:
    file.write(f'{huge}"eta_s": 1e300}}\n{{"step": "x"}}\n\x00\n{{"st')
  before = read_files(tmp_path)
  assert describe(tmp_path)["step"] == "30 of 40"
  assert read_files(tmp_path) == before
  for text in ("{", "[]", '{"task": "study"}', '{"steps": "many"}'):
    (tmp_path / files.CONFIG).write_text(text)
    assert describe(tmp_path)["state"] == "stopped"


def test_names_are_no_markup_and_no_control_characters(tmp_path):
  folder = tmp_path / "[red]a\x1b[31m"
  write_run(folder)
  _, output, _ = report(folder, f"--output={tmp_path}/page.html")
  assert r"[red]a\x1b[31m" in output and "\x1b" not in output


def test_runs_of_others_are_shown_though_nothing_can_be_written(tmp_path):
  """The table comes before the page."""
  theirs = write_pretraining(tmp_path / "theirs")
  before = read_files(theirs)
  blocked = tmp_path / "file"
  blocked.touch()
  code, output, errors = report(theirs, f"--output={blocked}/page.html")
  assert code == 5
  assert "theirs  finished  60 of 60" in output and "saved" not in output
  assert "page.html' could not be written: Not a directory." in errors
  assert read_files(theirs) == before


def test_a_read_only_folder_is_read(tmp_path):
  theirs = write_pretraining(tmp_path / "theirs")
  (theirs / files.LOCK).touch()
  for path in (*theirs.rglob("*"), theirs):
    path.chmod(0o555 if path.is_dir() else 0o444)
  page = tmp_path / "page.html"
  code, output, errors = report(theirs, f"--output={page}")
  assert (code, errors) == (0, "") and f"saved: {page}" in output
  assert page.exists() and not (theirs / files.REPORT).exists()
