"""Saved configs are compared by key."""

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
