"""Workdirs that are unfinished or damaged give a page that says so."""

import json
import os
import shutil

import pytest

from support.html_tables import read_rows
from support.report_workdirs import write_pretraining, write_results
from truenegs_jax.report import page, write
from truenegs_jax.report.write import read_workdir
from truenegs_jax.workdir import files, lock

FILES = [
  *(files.CONFIG, files.ABOUT, files.RESULTS, files.CASES, "metrics.jsonl"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  return write_pretraining(tmp_path_factory.mktemp("report") / "run")


@pytest.fixture
def workdir(finished, tmp_path):
  return shutil.copytree(finished, tmp_path / "run")


def levels(run):
  return {level for level, _ in run.notes}


def titles(run):
  return [section.title for section in run.sections]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"\xff\x00", b"[1]"])
def test_a_damaged_file_is_a_note_and_costs_its_own_part(
  workdir, name, content
):
  expected = titles(read_workdir(workdir))
  (workdir / name).write_bytes(content)
  run = read_workdir(workdir)
  page.render([run])
  if name == "metrics.jsonl":
    assert run.curves[0].splits == {}
    return
  assert page.ERROR in levels(run)
  lost = [x for x in expected if x not in titles(run)]
  assert (
    lost
    == {
      files.CONFIG: expected,
      files.ABOUT: [],
      files.RESULTS: ["Held-out rows", "Filled masks"],
      files.CASES: ["Corrections"],
    }[name]
  )


@pytest.mark.parametrize("name", FILES)
def test_every_file_may_be_missing_or_cut_off(workdir, name):
  content = (workdir / name).read_bytes()
  expected = titles(read_workdir(workdir))
  (workdir / name).write_bytes(content[: len(content) // 2])
  assert {*titles(read_workdir(workdir))} <= {*expected}
  (workdir / name).unlink()
  if name == files.CONFIG:
    (workdir / files.LOCK).touch()  # a run that has just begun
  run = read_workdir(workdir)
  assert run.sentence and "</html>" in page.render([run])
  assert page.ERROR not in levels(run)


@pytest.mark.parametrize("name", [files.RESULTS, files.ABOUT, files.CASES])
def test_values_of_other_types_are_an_error_of_the_page(workdir, name):
  saved = json.loads((workdir / name).read_text())
  for key in saved:
    for value in (None, [1]):
      (workdir / name).write_text(json.dumps(saved | {key: value}))
      run = read_workdir(workdir)
      assert "</html>" in page.render([run])
      texts = [text for level, text in run.notes if level == page.ERROR]
      assert all(name in text for text in texts)


def test_an_unfinished_run_says_how_far_it_is(workdir):
  (workdir / files.RESULTS).unlink()
  config = json.loads((workdir / files.CONFIG).read_text()) | {"steps": 100}
  (workdir / files.CONFIG).write_text(json.dumps(config))
  assert read_workdir(workdir).sentence == "Stopped at step 60 of 100."
  with lock.lock(workdir):
    assert read_workdir(workdir).sentence == "Running at step 60 of 100."
  with (workdir / "metrics.jsonl").open("a") as file:  # of a limited time
    file.write('{"step": 61, "split": "train", "total_steps": 70}\n')
  assert read_workdir(workdir).sentence == "Stopped at step 61 of 70."


def test_trouble_of_a_run_becomes_a_warning(workdir):
  path = workdir / "metrics.jsonl"
  records = [json.loads(line) for line in path.read_text().splitlines()]
  for record in records:
    record |= {"pair_cosine": 0.9, "skipped": 0.5}
  records[-1]["total"] = None
  path.write_text("".join(json.dumps(x) + "\n" for x in records))
  text = " ".join(text for _, text in read_workdir(workdir).notes)
  for sign in ("collapsed", "skipped", "not finite"):
    assert sign in text


def test_a_report_that_fails_is_a_warning_for_the_run(workdir):
  (workdir / files.REPORT).mkdir()
  lines = []
  write.write_own_report(workdir, lines.append)
  assert len(lines) == 1
  assert lines[0].startswith(f"warning: '{workdir / files.REPORT}' was not")


def test_a_folder_whose_name_is_no_utf8_is_shown(workdir, tmp_path):
  folder = workdir.rename(tmp_path / os.fsdecode(b"a\xff"))
  write.write_report(write.read_workdirs([folder]), tmp_path / "page.html")
  assert "<title>a\\udcff</title>" in (tmp_path / "page.html").read_text()


def test_a_run_that_ends_reports_itself_as_finished(workdir):
  with lock.lock(workdir):
    write.write_own_report(workdir, print)
  assert ">finished</span>" in (workdir / files.REPORT).read_text()


@pytest.mark.parametrize("task", ["corrections", "robustness", "study"])
def test_results_of_other_tasks_are_tables(tmp_path, task):
  run = read_workdir(write_results(tmp_path / "run", task))
  assert not run.notes and "</html>" in page.render([run])
  assert read_rows(*run.sections[0].blocks)[0][0] == ["S", "80 ± 1"]
