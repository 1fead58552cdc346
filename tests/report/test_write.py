"""Workdirs, also unfinished or damaged ones, are read and never changed."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from support import commands, runs
from support.html_tables import read_rows
from support.report_workdirs import (
  write_finetuning,
  write_pretraining,
  write_results,
)
from truenegs_jax.report import page, write
from truenegs_jax.report.write import compare, read_workdir, read_workdirs
from truenegs_jax.runtime import files as files_lib
from truenegs_jax.workdir import files, lock, metrics_file

LOST = {  # by file: sections of the page
  files.RESULTS: ["Held-out rows", "Filled masks"],
  files.CASES: ["Corrections"],
  files.ABOUT: [],
}


@pytest.fixture
def workdir(tmp_path):
  return write_pretraining(tmp_path / "run")


def write_records(folder):
  """Writes what a run leaves after step 20 of 40."""
  folder.mkdir(parents=True, exist_ok=True)
  writer = metrics_file.JsonlWriter(folder, first_step=0)
  speed = {"time": 0.0, "rows_per_s": 50.0, "eta_s": 90.0}
  writer.write({"step": 20, "split": "train", "total": 4.0, **speed})
  writer.write({"step": 20, "time": 0.0, "split": "held_out", "mlm": 4.5})
  writer.close()


def write_run(folder, task="pretrain", **values):
  write_records(folder)
  config = {"task": task, "steps": 40, "batch_size": 8, "length": 32, **values}
  (folder / files.CONFIG).write_text(json.dumps(config))


@pytest.fixture
def report(monkeypatch):
  """Returns a function that types the command; returns exit code and output."""
  monkeypatch.setenv("COLUMNS", "200")
  return lambda *words: commands.type_line(
    shlex.join(["truenegs", "report", *map(str, words)])
  )


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("content", [b"\xff\x00", b"[1]"])
def test_a_damaged_file_is_a_note_and_costs_its_own_part(
  workdir, name, content
):
  before = [x.title for x in read_workdir(workdir).sections]
  (workdir / name).write_bytes(content)
  run = read_workdir(workdir)
  assert "</html>" in page.render([run])
  assert any(name in text for level, text in run.notes if level == page.ERROR)
  left = [x.title for x in run.sections]
  assert [x for x in before if x not in left] == LOST[name]
  (workdir / name).unlink()
  assert page.ERROR not in dict(read_workdir(workdir).notes)


def test_a_run_shows_how_far_it_is(tmp_path, monkeypatch):
  with lock.lock(tmp_path):
    assert read_workdir(tmp_path).state == "running"  # without a config yet
  write_run(tmp_path)
  with lock.lock(tmp_path):
    assert read_workdir(tmp_path).sentence == "Running at step 20 of 40."
  before = runs.read_files(tmp_path)
  with monkeypatch.context() as patch:  # a lock is read, not opened to write
    patch.setattr(files_lib, "open_append", pytest.fail)
    run = read_workdir(tmp_path)
  assert runs.read_files(tmp_path) == before
  assert run.sentence == "Stopped at step 20 of 40."
  assert run.progress == {
    **{"step": "20 of 40", "loss": "4"},
    **{"rate": "50 rows/s", "left": "0:01:30"},
  }
  with (tmp_path / files.METRICS).open("a") as file:  # of a limited time
    record = {"step": 30, "split": "train", "total_steps": 30, "eta_s": 1}
    file.write(json.dumps(record) + '\n{"step": "x"}\n\x00\n{"st')
  run = read_workdir(tmp_path)
  assert run.progress["step"] == "30 of 30" and "left" not in run.progress
  (tmp_path / files.RESULTS).write_text("{}")
  assert read_workdir(tmp_path).sentence == "Stopped at step 30 of 40."
  files.save_json(tmp_path / files.CONFIG, {"steps": 40, "minutes": 5.0})
  run = read_workdir(tmp_path)
  assert run.state == "finished"
  assert run.sentence == "Finished after minutes=5, at step 30 of 40."
  with lock.lock(tmp_path):  # a finished run gets more steps
    assert read_workdir(tmp_path).state == "running"
    write.write_own_report(tmp_path, print)  # but it is about to end
  assert ">finished</span>" in (tmp_path / files.REPORT).read_text()
  (tmp_path / files.LOCK).unlink()
  (tmp_path / files.LOCK).symlink_to(files.CONFIG)  # it is not followed
  run = read_workdir(tmp_path)
  assert run.state == "" and files.LOCK in run.notes[0][1]
  assert run.progress["step"] == "30 of 30"
  (tmp_path / files.LOCK).unlink()
  for text in ("{", '{"task": "study"}', '{"steps": "many"}'):
    (tmp_path / files.CONFIG).write_text(text)
    assert read_workdir(tmp_path).state == "finished"


def test_unfinished_fine_tunings_show_scores_of_finished_seeds(tmp_path):
  options = {"seeds": 2, "tasks": "rte, mrpc,"}
  folder = write_finetuning(tmp_path / "run")
  write_run(folder, task="finetune", seed=1, finetune=options)
  write_records(tmp_path / "run/mrpc/seed-0")
  [run] = read_workdirs([tmp_path / "run"])  # with results, after a signal
  assert run.progress["step"] == "2 of 4 runs finished"  # of seeds 1 and 2
  assert run.state == "stopped"
  assert run.progress["loss"] == "rte 62.0 (accuracy)"
  assert [text for _, text in run.notes] == ["rte, seed 1: constant"]
  assert {curve.group for curve in run.curves} == {"rte", "mrpc"}
  [rows] = read_rows(*run.sections[0].blocks)
  assert rows[0] == ["rte", "accuracy", "62", "60.0, 62.0, 70.0"]


@pytest.mark.parametrize(
  "task", ["blimp", "corrections", "robustness", "study"]
)
def test_results_of_other_tasks_are_tables(tmp_path, task):
  run = read_workdir(write_results(tmp_path / "run", task))
  assert not run.notes
  table, note = run.sections[0].blocks
  assert read_rows(table) == [[["S", "80 ± 1"]]] and note == "n"


def test_a_study_is_read_from_its_folders_and_never_planned(tmp_path, report):
  """Its config, of a stranger, names a file of code."""
  bad = tmp_path / "bad.py"
  bad.write_text(f"open({str(tmp_path / 'hacked')!r}, 'w')")
  config = {"task": "study", "study": {"config": str(bad)}, "config": str(bad)}
  root = tmp_path / "study"
  folders = [root / f"runs/{arm}/seed-0/pretrain" for arm in "abc"]
  for folder in folders:
    write_run(folder)
  (root / files.CONFIG).write_text(json.dumps(config))
  (folders[0] / files.RESULTS).write_text("{}")
  (folders[1] / "failed.json").write_text('{"code": 5, "line": "Full."}')
  with lock.lock(folders[2]):
    run = read_workdir(root)
  assert run.state == "running"
  expected = "3 parts: 1 finished, 1 failed, 1 running"
  assert run.progress["step"] == expected
  code, output = report(root, f"--output={tmp_path / 'page.html'}")
  assert code == 0 and "1 failed, 1 stopped" in output
  assert not (tmp_path / "hacked").exists()


def test_runs_are_compared_as_far_as_they_are(tmp_path):
  runs = [write_pretraining(tmp_path / name / "run") for name in "abc"]
  path = runs[1] / files.METRICS
  *train, last = path.read_text().splitlines()
  record = json.loads(last) | {"mlm_hidden": 3.25, "corrected_rows": 0.5}
  path.write_text("\n".join([*train, json.dumps(record), ""]))
  write_run(runs[2], steps=60, eval={"rows": 9})
  (runs[2] / files.METRICS).unlink()
  read = read_workdirs([runs[0] / ".." / "run", *runs])
  assert [run.name for run in read] == [*map(str, runs)]  # each once
  assert len({curve.group for run in read for curve in run.curves}) == 3
  table, _ = compare(read)
  [rows] = read_rows(table)
  assert {label: values for label, *values in rows} == {
    "MLM, all slots (nats/slot)": ["7.1", "7.1", "–"],
    "MLM, [MASK] (nats/slot)": ["7.5", "3.25", "–"],
    "Detection, AUC": ["0.5", "0.5", "–"],
    "Corrected slots (%)": ["1", "1", "–"],
    "Corrected rows (%)": ["–", "50", "–"],
    "eval.rows": ["null", "null", "9"],
  }
  assert compare(read[:1]) == []


def test_a_report_that_fails_is_a_warning_for_the_run(workdir):
  (workdir / files.REPORT).mkdir()
  lines = []
  write.write_own_report(workdir, lines.append)
  assert len(lines) == 1
  assert lines[0].startswith(f"warning: '{workdir / files.REPORT}' was not")


def test_names_are_no_markup_and_no_control_characters(workdir, tmp_path):
  folder = workdir.rename(tmp_path / os.fsdecode(b"[red]a\x1b[31m\xff"))
  command = [sys.executable, "-m", "truenegs_jax", "report", folder]
  command += [f"--output={tmp_path}/page.html"]
  environment = os.environ | {"COLUMNS": "200"}
  output = subprocess.check_output(command, text=True, env=environment)
  assert r"[red]a\x1b[31m" in output and "\x1b" not in output
  assert "a\x1b[31m\\udcff</title>" in (tmp_path / "page.html").read_text()


def test_runs_of_others_are_shown_though_nothing_can_be_written(
  workdir, tmp_path, report
):
  """The table comes before the page."""
  (workdir / files.LOCK).touch()
  before = runs.read_files(workdir)
  for path in (*workdir.rglob("*"), workdir):
    path.chmod(0o555 if path.is_dir() else 0o444)
  (tmp_path / "file").touch()
  code, output = report(workdir, f"--output={tmp_path}/file/page.html")
  assert code == 5
  assert "run  finished  60 of 60" in output and "saved:" not in output
  assert "page.html' could not be written: Not a directory." in output
  assert runs.read_files(workdir) == before
