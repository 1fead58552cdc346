"""A saved config is compared by keys, and completed where it is older."""

import json

import pytest

from truenegs_jax.configs import common, common_keys
from truenegs_jax.data.rows import layouts
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.workdir import files


def config() -> dict:
  return json.loads(common.get_config().to_json())


def test_every_key_of_a_config_has_its_rule_and_no_rule_is_without_one():
  assert list(files.flatten(config())) == list(common_keys.KEYS)
  assert not common_keys.KEYS.keys() & common_keys.REMOVED.keys()
  assert common_keys.KEYS["length"].low == layouts.MIN_LENGTH


def test_changes_are_listed_by_their_full_keys():
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
    "gone: True -> (not there)",
    "new: (not there) -> None",
  ]
  assert files.find_changes(now, now) == []


def test_a_saved_config_gets_the_keys_that_are_younger_than_it():
  saved = config()
  assert files.add_missing_keys(saved) == saved
  del saved["generator"]["variant"], saved["init_skip"]
  del saved["model"]["vocabulary_chunk"]
  before = json.dumps(saved)
  complete = files.add_missing_keys(saved)
  assert files.find_changes(complete, config()) == []
  assert json.dumps(saved) == before
  assert files.add_missing_keys({}) == {"init_skip": ""}


def test_the_config_of_a_workdir_is_that_of_its_checkpoint(tmp_path):
  files.save_json(tmp_path / files.CONFIG, config())
  (tmp_path / files.CHECKPOINTS / "10.orbax-checkpoint-tmp").mkdir(parents=True)
  assert not files.has_checkpoint(tmp_path)
  assert files.read_saved_config(tmp_path) is None
  (tmp_path / files.CHECKPOINTS / "10").mkdir()
  assert files.has_checkpoint(tmp_path)
  saved = files.read_saved_config(tmp_path)
  assert saved["data"].pop("vocab") == str(tmp_path / files.VOCABULARY)
  assert [x.key for x in files.find_changes(saved, config())] == ["data.vocab"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"data": 3}'])
def test_a_damaged_config_of_a_workdir_is_an_error(tmp_path, text):
  (tmp_path / files.CHECKPOINTS / "10").mkdir(parents=True)
  (tmp_path / files.CONFIG).write_text(text)
  with pytest.raises(CheckpointError, match="config.json cannot be read"):
    files.read_saved_config(tmp_path)
