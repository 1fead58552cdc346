"""Records survive kills and are written once."""

import json

import pytest

from truenegs_jax.workdir import files


def make_record(step, **values):
  return {"step": step, "split": "train", "total": 1.5, "eta_s": 3.0, **values}


def load_records(workdir):
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


def write_steps(workdir, steps, *, first_step=0):
  writer = files.JsonlWriter(workdir, first_step=first_step)
  for step in steps:
    writer.write(make_record(step))
  writer.close()


def test_resumed_run_drops_records_after_its_checkpoint(tmp_path):
  write_steps(tmp_path, [10, 20, 30, 40])
  write_steps(tmp_path, [30, 35], first_step=20)
  assert [r["step"] for r in load_records(tmp_path)] == [10, 20, 30, 35]
  assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize(
  "rest", ['{"step": 15, "split": "train"', "\0\0\0", "\n\n"]
)
def test_garbage_after_a_crash_is_dropped(tmp_path, rest):
  write_steps(tmp_path, [10])
  with (tmp_path / "metrics.jsonl").open("a") as f:
    f.write(rest)
  write_steps(tmp_path, [20], first_step=10)
  assert [r["step"] for r in load_records(tmp_path)] == [10, 20]
  assert not (tmp_path / files.DAMAGED).exists()


def test_record_is_on_disk_at_once_with_its_version(tmp_path):
  writer = files.JsonlWriter(tmp_path, first_step=0)
  writer.write(make_record(1))
  assert load_records(tmp_path) == [{"version": 1, **make_record(1)}]
  writer.close()


def test_no_number_is_written_that_json_does_not_have():
  record = {"auc": float("nan"), "loss": {"error": float("inf"), "step": 3}}
  expected = {"auc": None, "loss": {"error": None, "step": 3}}
  assert files.finite_or_null(record) == expected
