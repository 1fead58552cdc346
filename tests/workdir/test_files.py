"""Configs are compared by key; records survive kills, written once."""

import json

import pytest

from truenegs_jax.configs import common
from truenegs_jax.runtime.errors import CheckpointError, DiskError
from truenegs_jax.runtime.files import atomic_file, lock_file
from truenegs_jax.workdir import files, metrics_file, saved_model


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


@pytest.fixture
def workdir(tmp_path):
  """Returns a workdir with the step 10 and its config."""
  files.save_json(tmp_path / files.CONFIG, make_config())
  (tmp_path / files.CHECKPOINTS / "10" / "run").mkdir(parents=True)
  return tmp_path


def test_saved_config_is_read_only_with_a_checkpoint(workdir):
  saved, now = saved_model.read_config(workdir), make_config()
  assert saved["data"].pop("vocab") == str(workdir / "vocab.txt")
  assert [x.key for x in files.find_changes(saved, now)] == ["data.vocab"]
  step = workdir / files.CHECKPOINTS / "10"
  step.rename(step.with_name("10.orbax-checkpoint-tmp"))
  assert not files.has_checkpoint(workdir)
  assert saved_model.read_config(workdir) is None


def test_keys_that_are_new_take_their_defaults(workdir, capsys):
  earlier = make_config()
  expected = earlier["optim"].pop("lr")
  del earlier["log"]
  files.save_json(workdir / files.CONFIG, earlier)
  saved = saved_model.read_config(workdir)
  line = capsys.readouterr().err
  assert saved["optim"]["lr"] == expected
  assert "written by another version of truenegs_jax" in line
  assert f"optim.lr={expected}" in line and "log.every_steps=" in line
  now = make_config()
  assert files.find_fixed_changes(earlier, now) == []
  now["optim"]["lr"] = 9.0
  [change] = files.find_fixed_changes(earlier, now)
  assert change == ("optim.lr", expected, 9.0)


@pytest.mark.parametrize(
  ("text", "problem"),
  [
    ("{", "cannot be read"),
    ('{"data": 3}', "is not the config of a run"),
    (json.dumps(make_config() | {"steps": "2"}), "'steps'"),
    (
      json.dumps(make_config() | {"new": 1}),
      r"sets new, which is no key.* If another version of truenegs_jax",
    ),
  ],
)
def test_damaged_saved_config_is_refused(workdir, text, problem):
  (workdir / files.CONFIG).write_text(text)
  with pytest.raises(CheckpointError, match=f"config.json'.*{problem}"):
    saved_model.read_config(workdir)


def test_a_record_is_on_disk_at_once_and_a_resume_drops_later_ones(tmp_path):
  values = {"split": "train", "total": 1.5}
  for first_step, steps in ((0, (10, 20, 30, 40)), (20, (30, 35))):
    writer = metrics_file.JsonlWriter(tmp_path, first_step=first_step)
    for step in steps:
      writer.write({"step": step, **values})
    records = metrics_file.read_records(tmp_path)  # before it is closed
    writer.close()
  assert records[0] == {"version": 1, "step": 10, **values}
  assert [r["step"] for r in records] == [10, 20, 30, 35]
  assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_no_number_is_written_that_json_does_not_have(tmp_path):
  record = {"auc": float("nan"), "loss": {"error": float("inf"), "step": 3}}
  expected = {"auc": None, "loss": {"error": None, "step": 3}}
  files.save_json(tmp_path / "a.json", record)
  assert json.loads((tmp_path / "a.json").read_text()) == expected


def test_a_link_out_of_a_workdir_is_not_written_to(tmp_path):
  outside, path = tmp_path / "outside", tmp_path / files.LOCK
  outside.write_text("mine\n")
  path.symlink_to(outside)
  with pytest.raises(DiskError, match="could not be written: it is a link"):
    with lock_file(path):
      pass
  assert outside.read_text() == "mine\n"


def test_a_link_in_place_of_a_temporary_file_is_replaced(tmp_path):
  outside, path = tmp_path / "outside", tmp_path / "vocab.txt"
  outside.write_text("mine\n")
  path.with_name(f"{path.name}.tmp").symlink_to(outside)
  with atomic_file(path) as file:
    file.write(b"a\n")
  assert outside.read_text() == "mine\n"
  assert path.read_text() == "a\n" and not path.is_symlink()
