"""The status of a folder tells what its process does, and reads only."""

import json

import pytest

from support.json_readers import RESULT
from truenegs_jax import status
from truenegs_jax.config.flags import parse_config
from truenegs_jax.data.rows import shards
from truenegs_jax.runtime import files as files_lib
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.workdir import files, lock


def write_run(folder, task="pretrain", **values):
  """Writes what a run leaves after step 20 of 40, checkpoint 10 included."""
  (folder / files.CHECKPOINTS / "10" / "state").mkdir(parents=True)
  (folder / files.CHECKPOINTS / "12.damaged").mkdir()
  config = {"task": task, "steps": 40, **values}
  (folder / files.CONFIG).write_text(json.dumps(config))
  write_records(folder)


def write_records(folder):
  folder.mkdir(parents=True, exist_ok=True)
  writer = files.JsonlWriter(folder, first_step=0)
  speed = {"time": 0.0, "rows_per_s": 50.0, "eta_s": 90.0}
  writer.write({"step": 10, "split": "train", "total": 5.0, **speed})
  writer.write({"step": 20, "split": "train", "total": 4.0, **speed})
  writer.write({"step": 20, "time": 0.0, "split": "held_out", "mlm": 4.5})
  writer.close()


def read_files(folder):
  return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_run_shows_its_newest_records_and_checkpoint(tmp_path):
  write_run(tmp_path)
  before = read_files(tmp_path)
  lines = dict(status.describe(tmp_path))
  assert lines["state"] == "stopped"
  assert lines["step"] == "20 of 40"
  assert lines["train, step 20"] == "total 4"
  assert lines["held_out, step 20"] == "mlm 4.5"
  assert lines["speed"] == "50 rows/s, 0:01:30 left"
  assert lines["newest checkpoint"].startswith("step 10, 0:00:0")
  assert read_files(tmp_path) == before
  writer = files.JsonlWriter(tmp_path, first_step=20)  # of a limited time
  writer.write({"step": 30, "split": "train", "total_steps": 35})
  writer.close()
  assert dict(status.describe(tmp_path))["step"] == "30 of 35"


def test_the_state_follows_the_lock_and_the_results(tmp_path):
  def state():
    return dict(status.describe(tmp_path))["state"]

  with lock.lock(tmp_path):
    assert state() == "running"  # without a config yet
  write_run(tmp_path)
  with lock.lock(tmp_path):
    assert state() == "running"
  assert state() == "stopped"
  (tmp_path / files.RESULTS).write_text("{}")
  assert state() == "finished"
  with lock.lock(tmp_path):  # a finished run gets more steps
    assert state() == "running"


def test_unfinished_fine_tunings_are_described(tmp_path):
  write_run(tmp_path, task="finetune")
  for seed in (0, 1):
    write_records(tmp_path / f"mrpc/seed-{seed}")
  for seed, score in enumerate((70.0, 72.5)):
    result = RESULT | {"seed": seed, "scores": {"dev": {"em": score}}}
    folder = tmp_path / f"own/seed-{seed}"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
  lines = status.describe(tmp_path)
  assert ("finished runs", "2") in lines
  assert ("own em", "mean 71.25; seed 0 70.00, seed 1 72.50") in lines
  running = [text for label, text in lines if label == "run"]
  assert running == ["mrpc/seed-0", "mrpc/seed-1"]


def test_a_study_names_the_part_that_runs(tmp_path):
  c = parse_config(["--config=study:runlocal"])
  (tmp_path / files.CONFIG).write_text(c.to_json())
  assert status.describe(tmp_path)[0] == ("state", "stopped")
  folder = tmp_path / "runs/hc/seed-0/pretrain"
  write_run(folder)
  with lock.lock(folder), files_lib.lock_file(folder / "part.lock"):
    lines = status.describe(tmp_path)
  assert lines[0] == ("state", "running")
  assert ("part", "runs/hc/seed-0/pretrain") in lines
  assert lines[-1] == ("next", "runs/baseline/seed-0/pretrain")
  assert dict(lines)["parts"].startswith("8 parts: 1 running, 7 missing")
  (folder / "failed.json").write_text('{"code": 5, "line": "A full disk."}')
  assert (
    "exit code 5: A full disk." in dict(status.describe(tmp_path))["failed"]
  )


def test_a_preparation_counts_its_shards(tmp_path):
  folder = tmp_path / "rows"
  unfinished = shards.unfinished_folder(folder)
  (unfinished / "rows").mkdir(parents=True)
  for number in range(3):
    (unfinished / f"shard-{number:05d}.json").touch()
    path = unfinished / f"rows/train-{number:05d}.tokens.npy"
    path.write_bytes(b"0" * 10**6)
  with files_lib.lock_folder(folder):
    lines = status.describe(folder)
  assert lines[0] == ("state", "running")
  assert lines[-1] == ("shards", "3 written, 3.0 MB")
  assert status.describe(folder)[0] == ("state", "stopped")


@pytest.mark.parametrize("task", ["corrections", "robustness"])
def test_measurements_have_a_state_and_a_task(tmp_path, task):
  (tmp_path / files.CONFIG).write_text(json.dumps({"task": task}))
  assert status.describe(tmp_path) == [("state", "stopped"), ("task", task)]
  (tmp_path / files.RESULTS).write_text("{}")
  assert status.describe(tmp_path) == [("state", "finished"), ("task", task)]


def test_damaged_records_are_left_out(tmp_path):
  write_run(tmp_path)
  huge = '{"step": 30, "split": "train", "time": 1e300, "rows_per_s": 1, '
  with (tmp_path / files.METRICS).open("a") as file:
    file.write(f'{huge}"eta_s": 1e300}}\n{{"step": "x"}}\n\x00\n{{"st')
  before = read_files(tmp_path)
  assert ("step", "30 of 40") in status.describe(tmp_path)
  assert read_files(tmp_path) == before


def test_other_folders_and_damaged_configs_are_refused(tmp_path):
  with pytest.raises(
    InputError, match="neither a workdir nor a folder of rows"
  ):
    status.describe(tmp_path)
  for text in ("{", "[]", '{"task": "study"}', '{"steps": "many"}'):
    (tmp_path / files.CONFIG).write_text(text)
    with pytest.raises(CheckpointError, match="config.json"):
      status.describe(tmp_path)
