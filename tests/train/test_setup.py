"""A workdir is resumed by the run that it is of, and by no other."""

import json
import pathlib
import types

import pytest

from truenegs_jax.configs import common, common_keys
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.train import setup
from truenegs_jax.workdir import files

FINGERPRINTS = {"vocabulary": "v", "rows": "r", "synonyms": None}


def description(**changes) -> dict:
  """A run of the defaults but for some keys, `__` for the dots."""
  c = common.get_config()
  named = {name.replace("__", "."): x for name, x in changes.items()}
  c.update_from_flattened_dict(named)
  return {"config": json.loads(c.to_json()), "fingerprints": FINGERPRINTS}


def resume(saved, now, step=7):
  checkpoints = types.SimpleNamespace(
    folder=pathlib.Path("run/checkpoints"),
    latest_step=lambda: step,
    read_description=lambda step: saved,
  )
  return setup.resumable_step(checkpoints, now)


def other(value):
  """Some other value of the same type."""
  if isinstance(value, bool):
    return not value
  return (
    value + type(value)([9])
    if isinstance(value, tuple)
    else (f"{value}x" if isinstance(value, str) else value + 1)
  )


@pytest.mark.parametrize("key", common_keys.KEYS)
def test_a_key_may_change_where_its_rule_says_so(key):
  value = files.flatten(common.get_config().to_dict())[key]
  now = description(**{key: other(value)})
  if common_keys.KEYS[key].may_change:
    assert resume(description(), now) == 7
  else:
    with pytest.raises(CheckpointError, match=f"(?s){key}: .* -> .*--workdir"):
      resume(description(), now)


def test_a_new_workdir_and_the_same_run_are_no_matter():
  assert resume(None, description(), step=None) is None
  assert resume(description(), description()) == 7


def test_all_that_differs_is_listed_and_none_of_what_may():
  now = description(optim__lr=0.5, log__every_steps=3, seed=4)
  now["fingerprints"] = FINGERPRINTS | {"rows": "other"}
  with pytest.raises(CheckpointError) as e:
    resume(description(), now)
  assert all(
    x in str(e.value) for x in ("optim.lr: 0.0005 -> 0.5", "seed", "rows")
  )
  assert "log." not in str(e.value)


def test_a_run_that_was_saved_before_a_key_is_resumed_by_what_it_was():
  saved = description()
  del saved["config"]["generator"]["variant"], saved["config"]["init_skip"]
  assert resume(saved, description()) == 7
  with pytest.raises(CheckpointError, match="generator.variant: '' -> 'tiny'"):
    resume(saved, description(generator__variant="tiny"))
  del saved["config"]["data"]["overflow"]  # no run was saved before that one
  with pytest.raises(CheckpointError, match="data.overflow: .missing"):
    resume(saved, description())


def test_a_removed_key_is_resumed_by_the_value_that_all_have_now(monkeypatch):
  gone = {"negatives.gone": common_keys.RemovedKey("usual", "0.1.0")}
  monkeypatch.setattr(common_keys, "REMOVED", gone)
  saved = description()
  saved["config"]["negatives"]["gone"] = "usual"
  assert resume(saved, description()) == 7
  saved["config"]["negatives"]["gone"] = "special"
  with pytest.raises(CheckpointError, match="gone=special.*truenegs_jax 0.1.0"):
    resume(saved, description())


def test_a_description_names_the_run_its_data_and_its_versions():
  run = types.SimpleNamespace(config={"steps": 3})
  described = setup.make_description(run, FINGERPRINTS)
  assert described["config"] == {"steps": 3}
  assert described["fingerprints"] == FINGERPRINTS
  assert {"jax", "optax"} <= described["versions"].keys()
  json.dumps(described)
