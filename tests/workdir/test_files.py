"""Configs are compared by key; records survive kills, written once."""

import json

import pytest

from truenegs_jax.configs import common
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.workdir import files


def make_config() -> dict:
  return json.loads(common.get_config().to_json())


def test_changes_are_listed_by_full_key():
  saved = {"a": 1, "b": {"c": [1, 2], "d": "x"}, "gone": True, "n": None}
  now = {"a": 1, "b": {"c": (1, 2), "d": "y"}, "new": None, "n": None}
  changed = files.find_changes(saved, now)
  assert changed == [
    ("b.d", "x", "y"),
    ("gone", True, files.ABSENT),
    ("new", files.ABSENT, None),
  ]
  assert [str(change) for change in changed] == [
    "b.d: 'x' -> 'y'",
    "gone: True -> (missing)",
    "new: (missing) -> None",
  ]
  assert files.find_changes(now, now) == []


def test_saved_config_is_read_only_with_a_checkpoint(tmp_path):
  files.save_json(tmp_path / files.CONFIG, make_config())
  (tmp_path / files.CHECKPOINTS / "10.orbax-checkpoint-tmp").mkdir(parents=True)
  assert not files.has_checkpoint(tmp_path)
  assert files.read_saved_config(tmp_path) is None
  (tmp_path / files.CHECKPOINTS / "10").mkdir()
  assert files.has_checkpoint(tmp_path)
  saved = files.read_saved_config(tmp_path)
  assert saved["data"].pop("vocab") == str(tmp_path / files.VOCABULARY)
  assert [x.key for x in files.find_changes(saved, make_config())] == [
    "data.vocab"
  ]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"data": 3}'])
def test_damaged_saved_config_is_refused(tmp_path, text):
  (tmp_path / files.CHECKPOINTS / "10").mkdir(parents=True)
  (tmp_path / files.CONFIG).write_text(text)
  with pytest.raises(CheckpointError, match="config.json' cannot be read"):
    files.read_saved_config(tmp_path)


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
