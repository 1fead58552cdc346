"""Records survive kills and are never doubled."""

import json

import pytest

from truenegs_jax.workdir import metrics_file


def record(step, **values):
  return {"step": step, "split": "train", "total": 1.5, "eta_s": 3.0, **values}


def records_in(workdir):
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


def write_steps(workdir, steps, *, first_step=0):
  writer = metrics_file.JsonlWriter(workdir, first_step=first_step)
  for step in steps:
    writer.write(record(step))
  writer.close()


def test_a_resumed_run_drops_what_the_killed_one_wrote_too_much(tmp_path):
  write_steps(tmp_path, [10, 20, 30, 40])
  write_steps(tmp_path, [30, 35], first_step=20)
  assert [r["step"] for r in records_in(tmp_path)] == [10, 20, 30, 35]
  assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_line_cut_short_by_a_kill_costs_that_line_alone(tmp_path):
  write_steps(tmp_path, [10, 20])
  path = tmp_path / "metrics.jsonl"
  path.write_text(path.read_text()[:-9])
  write_steps(tmp_path, [20], first_step=10)
  assert [r["step"] for r in records_in(tmp_path)] == [10, 20]


@pytest.mark.parametrize("rest", ['{"step": 1', "\0\0\0", "\n\n"])
def test_the_rest_of_a_crash_does_not_keep_a_run_from_starting(tmp_path, rest):
  write_steps(tmp_path, [10])
  with (tmp_path / "metrics.jsonl").open("a") as f:
    f.write(rest)
  write_steps(tmp_path, [20], first_step=10)
  assert [r["step"] for r in records_in(tmp_path)] == [10, 20]


def test_a_record_is_on_disk_as_soon_as_it_is_written(tmp_path):
  writer = metrics_file.JsonlWriter(tmp_path, first_step=0)
  writer.write(record(1))
  assert records_in(tmp_path) == [record(1)]
  writer.close()
